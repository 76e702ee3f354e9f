"""Tries each subject that reading and writing need, without changing anything on the server or taking a message from
anybody. Knows which questions are harmless; check_account.py says what a refusal means.
"""

import secrets
from collections.abc import Sequence
from typing import NamedTuple

from penstock.clients.jetstream.api import LEDGER
from penstock.clients.jetstream.calls import Calls
from penstock.clients.jetstream.trace import trace
from penstock.clients.nats.client import Connection, Denied
from penstock.errors import Disconnected, PenstockError
from penstock.operate.asking import settle
from penstock.operate.doctor.facts import Tried
from penstock.operate.figures import StreamFigures

# A sequence that no stream has: whoever may ask for it is told that there is no message.
NOWHERE = b'{"seq": 4611686018427387904}'
# What is no JSON: whoever may ask is told so, and nothing is made.
BROKEN = b"["
# Message tracing came with this version: a message that is traced only is stored nowhere and given to nobody.
TRACES = (2, 11)
# The token that stands for a wildcard where a subject is made up.
MADE_UP = "penstock-doctor"


class Need(NamedTuple):
    """A subject that somebody needs. `body` makes the question harmless; None: it cannot be asked, only traced."""

    name: str
    action: str  # {stream} is its name, and {any} a name that no consumer has
    body: bytes | None
    queues_only: bool = False


# Those of every query come first: without them, nothing else matters.
NEEDS = (
    Need("info", "STREAM.INFO.{stream}", b""),
    Need("get", "STREAM.MSG.GET.{stream}", NOWHERE),
    Need("direct", "DIRECT.GET.{stream}", NOWHERE),
    Need("create", "CONSUMER.CREATE.{stream}", BROKEN),
    Need("next", "CONSUMER.MSG.NEXT.{stream}.{any}", BROKEN),
    Need("delete", "CONSUMER.DELETE.{stream}.{any}", b""),
    Need("list", "CONSUMER.LIST.{stream}", b'{"offset": 0}'),
    Need("claim", "CONSUMER.CREATE.{stream}.penstock", BROKEN, queues_only=True),
    Need("purge", "STREAM.PURGE.{stream}", None, queues_only=True),
)
LEDGER_NEEDS = (
    Need("info", "STREAM.INFO.{stream}", b""),
    Need("get", "STREAM.MSG.GET.{stream}", NOWHERE),
    Need("purge", "STREAM.PURGE.{stream}", None),
)


def try_streams(calls: Calls, streams: Sequence[StreamFigures], names: Sequence[str]) -> list[Tried]:
    """What of NEEDS is allowed, for each stream. `names` are those that could not be looked at."""
    found = [_asked(calls, "names", "", f"{calls.prefix}.STREAM.NAMES", b"")]
    retentions = {each.name: dict(each.raw).get("config", {}) for each in streams}
    for name in [*retentions, *names]:
        config = retentions.get(name, {})
        is_queue = config.get("retention") == "workqueue"
        for need in NEEDS:
            if need.queues_only and not is_queue:
                continue
            if need.name == "direct" and not config.get("allow_direct", True):
                continue  # nobody listens there; the check of flags says so
            found.append(_tried(calls, need, name))
    return found


def try_ledger(calls: Calls, exists: bool) -> list[Tried]:
    """What the ledger needs: notes in it, and to be made where it does not exist."""
    found = [_tried(calls, need, LEDGER) for need in LEDGER_NEEDS]
    if not exists:
        found.append(_tried(calls, Need("make", "STREAM.CREATE.{stream}", None), LEDGER))
    subject = f"{LEDGER}.{MADE_UP}.0.0.0"
    return [*found, _traced(calls, "publish", LEDGER, subject)]


def try_publish(calls: Calls, streams: Sequence[StreamFigures], subject: str = "") -> list[Tried]:
    """Whether a subject may be published to, and is stored where it should be: the one that is given, or one of each
    stream, with something made up for its wildcards.
    """
    if subject:
        return [_stored(calls, _owner(calls, subject), subject)]
    found = []
    for each in streams:
        subjects = dict(each.raw).get("config", {}).get("subjects") or []
        if subjects and each.name != LEDGER and not dict(each.raw)["config"].get("sealed"):
            found.append(_stored(calls, each.name, made_up(str(subjects[0]))))
    return found


def made_up(pattern: str) -> str:
    """A subject that a filter matches."""
    return ".".join(MADE_UP if token in ("*", ">") else token for token in pattern.split("."))


def _owner(calls: Calls, subject: str) -> str:
    """The stream that takes a subject; empty where none does, or nobody may know."""
    try:
        return next(iter(calls.names(subject)), "")
    except Denied:
        settle(calls.connection)
    except Disconnected:
        raise
    except PenstockError:
        pass
    return ""


def _stored(calls: Calls, stream: str, subject: str) -> Tried:
    found = _traced(calls, "publish", stream, subject)
    if not found.allowed or found.why:
        return found
    if not stream:
        return found._replace(why="no stream takes it, as far as can be seen")
    try:
        shown = trace(calls.connection, subject, stream)
    except Denied:
        settle(calls.connection)
        return found
    if shown is None:
        return found._replace(why="which stream stores it is not shown")
    return found


def _tried(calls: Calls, need: Need, stream: str) -> Tried:
    name = f"{MADE_UP}-{secrets.token_hex(4)}"
    subject = f"{calls.prefix}.{need.action.format(stream=stream, any=name)}"
    if need.body is None:
        return _traced(calls, need.name, stream, subject)
    return _asked(calls, need.name, stream, subject, need.body)


def _asked(calls: Calls, need: str, stream: str, subject: str, body: bytes) -> Tried:
    """Ask, and see whether that is refused; what is answered does not matter."""
    try:
        calls.connection.request(subject, body)
    except Denied as error:
        settle(calls.connection)
        return Tried(need, stream, subject, False, str(error))
    except Disconnected as error:
        if not calls.connection.alive():
            raise
        return Tried(need, stream, subject, None, str(error))
    return Tried(need, stream, subject, True)


def _traced(calls: Calls, need: str, stream: str, subject: str) -> Tried:
    """Publish a message that is traced only. A server may allow traces only to where the account may publish."""
    connection = calls.connection
    if connection.version() < TRACES:
        return Tried(need, stream, subject, None, "to try it without doing it takes nats-server 2.11")
    for place in (f"{connection.inbox}.1.trace", f"{calls.prefix}.STREAM.INFO.{stream or LEDGER}"):
        refused = _refused(connection, subject, place)
        if f'"{subject}"' in refused:
            return Tried(need, stream, subject, False, refused)
        if not refused:
            why = "" if place.startswith(connection.inbox) else "which stream stores it is not shown"
            return Tried(need, stream, subject, True, why if need == "publish" else "")
    why = f"to try it without doing it takes the right to publish to {connection.options.inbox_prefix}.>"
    return Tried(need, stream, subject, None, why)


def _refused(connection: Connection, subject: str, place: str) -> str:
    """What the server refuses of a traced message; empty where nothing."""
    block = f"NATS/1.0\r\nNats-Trace-Dest: {place}\r\nNats-Trace-Only: true\r\n\r\n".encode()
    connection.send(b"HPUB %s %d %d\r\n%s\r\n" % (subject.encode(), len(block), len(block), block))
    try:
        connection.flush()
    except Denied as error:
        settle(connection)
        return str(error)
    return ""
