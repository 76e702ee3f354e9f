"""What a server has: streams, consumers, limits. Only looks. Knows the client and its calls."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from penstock.clients.answers import field, objects
from penstock.clients.jetstream import api
from penstock.clients.jetstream.calls import ApiError, Calls
from penstock.clients.nats.client import Denied
from penstock.errors import Disconnected
from penstock.operate.declared.model import Config, Live, LiveConsumer, LiveStream
from penstock.operate.declared.retrying import Asking

# Questions that are sent together: each answer has up to 256 consumers.
_AT_ONCE = 100

Progress = Callable[[str], None]


def look(calls: Calls, names: Iterable[str] | None = None, progress: Progress | None = None) -> Live:
    """What the server has: all streams, and the consumers of those with `names`; without names, of all.

    The streams with names are asked of their leaders: a list may lack a stream whose leader is away. Without names,
    those that it lacks are asked too, and `unknown` has those that do not answer. An account that may not list streams
    sees those with names only, and `unseen` says so. Tries again within reconnectTimeout.
    """
    asking = Asking(calls)
    try:
        return asking.run("looking at the streams", lambda found: _look(found, names, progress or (lambda _: None)))
    finally:
        asking.close()


def _look(calls: Calls, names: Iterable[str] | None, progress: Progress) -> Live:
    unseen: list[str] = []
    streams: dict[str, LiveStream] = {}
    account: dict[str, Any] = {}
    unknown: list[str] = []
    try:
        account = calls.call("INFO")
    except Denied as error:
        unseen.append(f"The limits of the account are not known: {error}")
    try:
        streams, unknown = _listed(calls, progress)
        if names is None and unknown:
            found, unknown = _asked_again(calls, unknown)
            streams |= found
        if unknown:
            unseen.append(f"These streams did not answer: {', '.join(unknown)}. What they have is not known.")
    except Denied as error:
        if names is None:
            raise
        unseen.append(f"Other streams are not known, so neither are subjects that they have: {error}")
    wanted = sorted(streams if names is None else names)
    if names is not None:
        streams = {name: each for name, each in streams.items() if name not in wanted} | _named(calls, wanted)
    asked = [name for name in wanted if name in streams]
    for name, consumers in _consumers(calls, asked, progress).items():
        streams[name] = replace(streams[name], consumers=consumers)
    info, options = calls.connection.info, calls.connection.options
    is_elsewhere = options.domain is not None or options.api_prefix is not None
    return Live(
        version=calls.connection.version(),
        server=str(info.get("version", "")),
        streams=dict(sorted(streams.items())),
        is_clustered=None if is_elsewhere else bool(info.get("cluster")),
        servers=None if is_elsewhere or not info.get("cluster") else len(info.get("connect_urls") or ()) or None,
        account=account,
        now=time.time_ns() // 1000,
        unseen=tuple(unseen),
        unknown=tuple(name for name in unknown if name not in streams and name not in wanted),
    )


def stream(calls: Calls, name: str) -> LiveStream | None:
    """One stream, from its leader, without its consumers; None where there is none."""
    return _named(calls, [name]).get(name)


def consumers(calls: Calls, stream: str) -> dict[str, LiveConsumer]:
    """The consumers of one stream by their names; none where there is no such stream."""
    return _consumers(calls, [stream], lambda _: None).get(stream, {})


def consumer(calls: Calls, stream: str, name: str) -> LiveConsumer | None:
    """One consumer, from its leader; None where there is none, or no such stream."""
    try:
        return consumer_of(calls.call(f"CONSUMER.INFO.{stream}.{name}"))
    except ApiError as error:
        if error.code not in (api.NO_CONSUMER, api.NO_STREAM):
            raise
        return None


def stream_of(info: dict[str, Any]) -> LiveStream:
    """A stream, from STREAM.INFO or an item of STREAM.LIST."""
    config, state = field(info, "config", dict), field(info, "state", dict)
    return LiveStream(
        name=field(config, "name", str),
        config=config,
        created=field(info, "created", str),
        messages=field(state, "messages", int),
        size=field(state, "bytes", int),
        first=max(1, field(state, "first_seq", int)),
        last=field(state, "last_seq", int),
        first_time=api.micros(field(state, "first_ts", str)),
        last_time=api.micros(field(state, "last_ts", str)),
        subjects=field(state, "num_subjects", int, 0),
        consumer_count=field(state, "consumer_count", int, 0),
    )


def consumer_of(info: dict[str, Any]) -> LiveConsumer:
    """A consumer, from CONSUMER.INFO or an item of CONSUMER.LIST."""
    floor, delivered = field(info, "ack_floor", dict, {}), field(info, "delivered", dict, {})
    return LiveConsumer(
        name=field(info, "name", str),
        config=field(info, "config", dict),
        created=field(info, "created", str),
        ack_floor=field(floor, "stream_seq", int, 0),
        delivered=field(delivered, "stream_seq", int, 0),
        pending=field(info, "num_pending", int, 0),
        ack_pending=field(info, "num_ack_pending", int, 0),
    )


def _listed(calls: Calls, progress: Progress) -> tuple[dict[str, LiveStream], list[str]]:
    """All streams by STREAM.LIST, page by page, and those that it names but knows nothing of."""
    found: dict[str, LiveStream] = {}
    missing: dict[str, None] = {}
    while True:
        before = len(found)
        page = calls.call("STREAM.LIST", {"offset": before} if before else None)
        found |= {each.name: each for each in map(stream_of, objects(page, "streams"))}
        missing |= dict.fromkeys(str(each) for name in ("missing", "offline") for each in page.get(name) or ())
        total = field(page, "total", int, 0)
        progress(f"{len(found)} of {total} streams")
        if len(found) == before or len(found) + len(missing) >= total:
            return found, [name for name in missing if name not in found]


def _asked_again(calls: Calls, names: Sequence[str]) -> tuple[dict[str, LiveStream], list[str]]:
    """The streams that a list lacks, each asked by its name, and the names of those that are not known then either.
    All that takes about reconnectTimeout at most, however many they are.
    """
    found: dict[str, LiveStream] = {}
    unknown: list[str] = []
    deadline = time.monotonic() + calls.connection.options.reconnect_timeout
    for name in names:
        try:
            if time.monotonic() > deadline:
                unknown.append(name)
            else:
                found |= _named(calls, [name])
        except (ApiError, Disconnected):
            unknown.append(name)
    return found, unknown


def _named(calls: Calls, names: Sequence[str]) -> dict[str, LiveStream]:
    """The streams with these names that there are, asked together."""
    found = {}
    for low in range(0, len(names), _AT_ONCE):
        part = names[low : low + _AT_ONCE]
        asked = [(f"{calls.prefix}.STREAM.INFO.{name}", b"") for name in part]
        for name, reply in zip(part, calls.connection.requests(asked), strict=True):
            try:
                found[name] = stream_of(calls.answer(reply))
            except ApiError as error:
                if error.code != api.NO_STREAM:
                    raise
    return found


def _consumers(calls: Calls, names: Sequence[str], progress: Progress) -> dict[str, dict[str, LiveConsumer]]:
    """The consumers of streams: the first page of each is asked together with others, further ones by themselves."""
    found: dict[str, dict[str, LiveConsumer]] = {}
    for low in range(0, len(names), _AT_ONCE):
        part = names[low : low + _AT_ONCE]
        asked = [(f"{calls.prefix}.CONSUMER.LIST.{name}", b"") for name in part]
        for name, reply in zip(part, calls.connection.requests(asked), strict=True):
            try:
                found[name] = _pages(calls, name, calls.answer(reply))
            except ApiError as error:
                if error.code != api.NO_STREAM:  # deleted in between
                    raise
        progress(f"consumers of {low + len(part)} of {len(names)} streams")
    return found


def _pages(calls: Calls, name: str, page: Config) -> dict[str, LiveConsumer]:
    found: dict[str, LiveConsumer] = {}
    while True:
        before = len(found)
        found |= {each.name: each for each in map(consumer_of, objects(page, "consumers"))}
        if len(found) == before or len(found) >= field(page, "total", int, 0):
            break
        page = calls.call(f"CONSUMER.LIST.{name}", {"offset": len(found)})
    for missing in page.get("missing") or ():  # its leader did not answer the list
        if str(missing) not in found and (one := consumer(calls, name, str(missing))) is not None:
            found[one.name] = one
    return dict(sorted(found.items()))


def limits(account: dict[str, Any], replicas: int) -> dict[str, Any]:
    """The limits of the account for streams with so many replicas: its tier, or those of the whole account."""
    tier = (account.get("tiers") or {}).get(f"R{replicas}")
    return dict((tier or account).get("limits") or {})


def reserved(account: dict[str, Any], replicas: int, storage: str) -> int:
    """The bytes of such storage that the account, or its tier, has promised to streams. What they use does not count:
    the server compares promises.
    """
    return api.reserved((account.get("tiers") or {}).get(f"R{replicas}") or account, storage)
