"""What there is before a migration: what is published, who subscribes, which streams exist, what the account may use.
Listens and asks; changes nothing, and publishes nothing but a question to services.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from penstock.clients.answers import an_object, field, objects
from penstock.clients.jetstream import api
from penstock.clients.jetstream.calls import Calls
from penstock.clients.jetstream.listing import listing
from penstock.clients.nats.client import Connection
from penstock.clients.nats.options import NatsOptions
from penstock.clients.nats.subjects import overlapping
from penstock.errors import ConnectError, PenstockError
from penstock.kit.retry import Retry
from penstock.operate.migrate import subscribers
from penstock.operate.migrate.listening import NAME, Listener
from penstock.operate.migrate.proposal import Existing, World
from penstock.operate.migrate.storage import Limits
from penstock.operate.migrate.traffic import Heard

# How long services have to answer; and how long a server may stay away while we listen.
SERVICES, AWAY = 0.5, 30.0
# Services of NATS' own framework tell what they answer, when they are asked so.
_ASK_SERVICES = "$SRV.INFO"
_STEP = 0.2

Tell = Callable[[str], None]


def find(
    options: NatsOptions, subjects: Sequence[str], seconds: float, monitoring: Sequence[str], tell: Tell | None = None
) -> World:
    """All that can be known. `tell` gets a line of progress now and then."""
    options = options.model_copy(update={"connection_name": NAME})
    tell = tell or (lambda line: None)
    connection = Connection(options)
    try:
        calls = Calls(connection, options)
        existing = tuple(Existing(each.name, each.subjects) for each in listing(calls))
        limits = account_limits(calls.call("INFO"))
        services = _services(connection)
        account = _account(connection)
        size = _cluster_size(connection)
    finally:
        connection.close()
    heard = listen(options, subjects, seconds, tell)
    taken = [text for each in existing for text in each.subjects]
    seen = subscribers.look(monitoring, subjects, account, NAME, taken)
    if monitoring and not seen.servers:
        raise ConnectError(f"no monitoring page answers. {' '.join(seen.away)} Check --monitoring, or leave it out.")
    return World(heard, seen, bool(monitoring), existing, services, limits, seen.cluster_size or size)


def listen(options: NatsOptions, subjects: Sequence[str], seconds: float, tell: Tell) -> Heard:
    """What is published in that time. A lost connection is opened again, and told."""
    heard = Heard()
    overlap = overlapping(subjects) is not None
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        listener = Listener(options, subjects, heard.take, once=overlap)
        Retry("listening", timeout=AWAY).run(listener.open)
        began = time.monotonic()
        try:
            while listener.lost is None and (left := deadline - time.monotonic()) > 0:
                time.sleep(min(_STEP, left))
                tell(f"{heard.all().messages:,} messages on {len(heard.subjects):,} subjects, {left:.0f} s left")
        finally:
            listener.close()
        heard.seconds += (listener.until if listener.lost else time.monotonic()) - began
        if listener.lost is not None:
            heard.interruptions.append(str(listener.lost))
    return heard


def account_limits(info: dict[str, Any]) -> Limits:
    """From the answer to $JS.API.INFO. With tiers, those of the largest one: which one a stream is in is not known."""
    tiers = [each for each in field(info, "tiers", dict, {}).values() if isinstance(each, dict)]
    found = [_limits(each) for each in (tiers or [info])]
    return max(found, key=lambda each: float("inf") if each.storage is None else each.storage)


def _limits(info: dict[str, Any]) -> Limits:
    limits = field(info, "limits", dict, {})

    def most(name: str) -> int | None:
        value = field(limits, name, int, -1)
        return value if value >= 0 else None

    return Limits(
        most("max_storage"),
        max(field(info, "storage", int, 0), api.reserved(info, "file")),
        most("max_memory"),
        max(field(info, "memory", int, 0), api.reserved(info, "memory")),
        most("max_streams"),
        bool(limits.get("max_bytes_required")),
    )


def _services(connection: Connection) -> dict[str, str]:
    """The subjects that services of NATS' own framework answer, with the names of the services."""
    sid, inbox = connection.subscribe()
    found: dict[str, str] = {}
    connection.publish(_ASK_SERVICES, b"", f"{inbox}.info")
    deadline = time.monotonic() + SERVICES
    with suppress(PenstockError):  # nobody answers, or the account may not ask
        while (left := deadline - time.monotonic()) > 0:
            for frame in connection.receive(sid, linger=False, timeout=left).others:
                if not frame.subject.startswith(inbox.encode()):
                    continue
                if not frame.payload:  # nobody is there to answer
                    return found
                found |= endpoints(frame.payload)
    with suppress(PenstockError):
        connection.unsubscribe(sid)
    return found


def endpoints(answer: bytes) -> dict[str, str]:
    """From the answer of a service to INFO. Nothing where it is no such answer."""
    try:
        told = an_object(answer, "a service")
        name = field(told, "name", str, "")
        return {field(each, "subject", str): name for each in objects(told, "endpoints") if each.get("subject")}
    except PenstockError:
        return {}


def _account(connection: Connection) -> str | None:
    """The name of our account, as monitoring pages have it; None where the server does not say."""
    with suppress(PenstockError):
        reply = connection.request("$SYS.REQ.USER.INFO")
        if not reply.headers:
            return field(field(an_object(reply.payload, "the server"), "data", dict, {}), "account", str, "") or None
    return None


def _cluster_size(connection: Connection) -> int:
    """How many servers the cluster seems to have. A server may have several addresses, so this is only a hint."""
    told = connection.info.get("connect_urls")
    return max(1, len(told)) if isinstance(told, list) and connection.info.get("cluster") else 1
