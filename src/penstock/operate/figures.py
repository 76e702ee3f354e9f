"""Streams and consumers in numbers: what a server tells of them, what two looks make of it, and which are worst. Pure;
`looking.py` asks the server.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.clients.answers import field as value
from penstock.clients.answers import objects, texts
from penstock.clients.jetstream.api import FOLLOWER, micros

# A consumer with unread messages that nobody has pulled for so many seconds is forgotten by whoever made it.
QUIET = 60.0
# Of so many redelivered messages on, and if they are half of those that wait for an ack, something cannot be processed.
MANY_REDELIVERED = 10


@dataclass(frozen=True)
class StreamFigures:
    """A stream at one moment. Times are microseconds since 1970; None where there is no message."""

    name: str
    created: str
    messages: int
    size: int
    first: int
    last: int
    first_time: int | None
    last_time: int | None
    consumers: int
    subjects: int
    replicas: int
    leader: str
    behind: tuple[str, ...]  # replicas that are offline or not current
    lag: int  # messages that a mirror, or the source that is most behind, lacks
    max_messages: int  # -1 is no limit
    max_bytes: int
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)  # as the server told it
    rate: float | None = None  # messages stored a second, since the look before
    byte_rate: float | None = None
    out_rate: float | None = None  # messages that its consumers were given a second

    @classmethod
    def of(cls, item: dict[str, Any]) -> "StreamFigures":
        """From an answer to STREAM.INFO or an item of STREAM.LIST."""
        config, state = value(item, "config", dict), value(item, "state", dict)
        cluster = value(item, "cluster", dict, {})
        messages, last = value(state, "messages", int, 0), value(state, "last_seq", int, 0)
        feeds = [each for each in (item.get("mirror"), *objects(item, "sources")) if isinstance(each, dict)]
        return cls(
            name=value(config, "name", str),
            created=value(item, "created", str, ""),
            messages=messages,
            size=value(state, "bytes", int, 0),
            first=value(state, "first_seq", int, 0),
            last=last,
            first_time=_moment(state, "first_ts") if messages else None,
            last_time=_moment(state, "last_ts") if last else None,
            consumers=value(state, "consumer_count", int, 0),
            subjects=value(state, "num_subjects", int, 0),
            replicas=value(config, "num_replicas", int, 1),
            leader=value(cluster, "leader", str, ""),
            behind=tuple(
                value(each, "name", str, "?")
                for each in objects(cluster, "replicas")
                if each.get("offline") or each.get("current") is False
            ),
            lag=max((value(each, "lag", int, 0) for each in feeds), default=0),
            max_messages=value(config, "max_msgs", int, -1),
            max_bytes=value(config, "max_bytes", int, -1),
            raw=item,
        )

    @property
    def full(self) -> float:
        """How much of its limits is used, from 0 to 1; 0 where it has none."""
        limits = ((self.messages, self.max_messages), (self.size, self.max_bytes))
        return min(1.0, max((used / limit for used, limit in limits if limit > 0), default=0.0))


@dataclass(frozen=True)
class ConsumerFigures:
    """A consumer at one moment. Ages are seconds by the clock of its server; None where there is nothing to tell."""

    stream: str
    name: str
    created: str
    delivered: int  # messages that it gave, those given again included
    delivered_stream: int
    ack_floor: int
    ack_floor_stream: int
    pending: int
    ack_pending: int
    redelivered: int
    waiting: int
    last_delivery: float | None
    last_ack: float | None
    age: float
    leader: str
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    rate: float | None = None  # messages given a second, since the look before
    ack_rate: float | None = None  # how fast its ack floor moves, in messages a second
    lag_seconds: float | None = None  # the age of the oldest message that is not given, or not acknowledged

    @classmethod
    def of(cls, item: dict[str, Any]) -> "ConsumerFigures":
        """From an answer to CONSUMER.INFO or an item of CONSUMER.LIST."""
        delivered, floor = value(item, "delivered", dict, {}), value(item, "ack_floor", dict, {})
        cluster, now = value(item, "cluster", dict, {}), _moment(item, "ts")
        return cls(
            stream=value(item, "stream_name", str),
            name=value(item, "name", str),
            created=value(item, "created", str, ""),
            delivered=value(delivered, "consumer_seq", int, 0),
            delivered_stream=value(delivered, "stream_seq", int, 0),
            ack_floor=value(floor, "consumer_seq", int, 0),
            ack_floor_stream=value(floor, "stream_seq", int, 0),
            pending=value(item, "num_pending", int, 0),
            ack_pending=value(item, "num_ack_pending", int, 0),
            redelivered=value(item, "num_redelivered", int, 0),
            waiting=value(item, "num_waiting", int, 0),
            last_delivery=_since(delivered, "last_active", now),
            last_ack=_since(floor, "last_active", now),
            age=_since(item, "created", now) or 0.0,
            leader=value(cluster, "leader", str, ""),
            raw=item,
        )

    @property
    def config(self) -> Mapping[str, Any]:
        """Its configuration, as the server tells it."""
        return value(dict(self.raw), "config", dict, {})

    @property
    def is_push(self) -> bool:
        """Whether the server sends messages by itself to a subject."""
        return bool(self.config.get("deliver_subject"))

    @property
    def is_follower(self) -> bool:
        """Whether it is one of ours, which shows how far a query has read and from which nobody pulls."""
        return self.config.get("description") == FOLLOWER

    @property
    def quiet(self) -> float:
        """Seconds since it gave or was acknowledged something, or since it was made."""
        return min((each for each in (self.last_delivery, self.last_ack) if each is not None), default=self.age)

    @property
    def filters(self) -> list[str]:
        """The subjects that it reads; empty is all."""
        config = dict(self.config)
        one = value(config, "filter_subject", str, "")
        return [one] if one else texts(config, "filter_subjects")


@dataclass(frozen=True)
class Trouble:
    """What is wrong with a consumer, in words. `harm`: 2 where it stands still, 1 where it goes on."""

    kind: str
    harm: int
    text: str


def trouble(each: ConsumerFigures) -> Trouble | None:
    """The worst that can be told of a consumer from what it shows; None where all seems well."""
    config, found = dict(each.config), []
    most_unacked, most_waiting = value(config, "max_ack_pending", int, 0), value(config, "max_waiting", int, 0)
    is_moving = bool(each.rate) or bool(each.ack_rate)
    if each.raw.get("paused"):
        found.append(Trouble("paused", 1, "is paused"))
    elif each.is_push and each.raw.get("push_bound") is not True and each.pending:
        found.append(Trouble("unbound", 2, "nobody subscribes to where it delivers"))
    elif 0 < most_unacked <= each.ack_pending and not is_moving:
        text = f"stands still: {each.ack_pending:,} messages wait for an ack, which is its limit"
        found.append(Trouble("unacked", 2, text))
    elif each.is_follower:  # nobody pulls from it, and the server does not tell when it was moved
        if each.pending and not is_moving and (each.lag_seconds or 0.0) > QUIET:
            text = f"its query has left messages unread for {duration(each.lag_seconds or 0.0)}"
            found.append(Trouble("follower", 1, text))
    elif each.pending and not each.waiting and not each.is_push and not each.rate and each.quiet > QUIET:
        found.append(Trouble("unpulled", 2, f"nobody has pulled for {duration(each.quiet)}"))
    if each.redelivered >= max(MANY_REDELIVERED, each.ack_pending / 2):
        found.append(Trouble("redelivered", 1, f"{each.redelivered:,} messages were given again"))
    if 0 < most_waiting <= each.waiting:
        found.append(Trouble("waiting", 1, f"{each.waiting:,} pulls wait, which is its limit"))
    return max(found, key=lambda one: one.harm, default=None)


@dataclass(frozen=True)
class Look:
    """What a server told at one moment. `at` is by a clock that only goes forward. `problems`: what it did not tell."""

    at: float
    server: Mapping[str, Any] = field(default_factory=dict)
    account: Mapping[str, Any] | None = None
    streams: tuple[StreamFigures, ...] = ()
    consumers: tuple[ConsumerFigures, ...] = ()
    missing: tuple[str, ...] = ()  # streams that are there and do not answer
    absent: tuple[str, ...] = ()  # of the streams that were named, what to say of those that do not exist
    hidden: tuple[str, ...] = ()  # of these, those that the account may not look at
    unasked: int = 0  # streams whose consumers were not asked for: there are too many
    is_whole: bool = True  # whether these are all streams of the account, so that sums are the account's
    problems: tuple[str, ...] = ()


def rated(before: Look | None, now: Look) -> Look:
    """The later look with rates. None of what was made, or made anew under its name, since the earlier one."""
    if before is None or now.at <= before.at:
        return now
    seconds = now.at - before.at
    old_consumers = {(each.stream, each.name): each for each in before.consumers}
    consumers = []
    for each in now.consumers:
        old = old_consumers.get((each.stream, each.name))
        if old is not None and old.created == each.created:
            # One of ours is moved and gives nothing: its numbers of messages stay at 0.
            moved = _rate(old.ack_floor_stream, each.ack_floor_stream, seconds)
            rate, ack_rate = (
                _rate(old.delivered, each.delivered, seconds),
                _rate(old.ack_floor, each.ack_floor, seconds),
            )
            each = (
                replace(each, rate=moved, ack_rate=moved)
                if each.is_follower
                else replace(each, rate=rate, ack_rate=ack_rate)
            )
        consumers.append(each)
    given: dict[str, float] = {}
    for each in consumers:
        if each.rate is not None:
            given[each.stream] = given.get(each.stream, 0.0) + each.rate
    old_streams = {each.name: each for each in before.streams}
    streams = []
    for stream in now.streams:
        past = old_streams.get(stream.name)
        if past is not None and past.created == stream.created:
            rate = _rate(past.last, stream.last, seconds)
            size = stream.size / stream.messages if stream.messages else 0.0
            byte_rate = None if rate is None else rate * size
            stream = replace(stream, rate=rate, byte_rate=byte_rate, out_rate=given.get(stream.name))
        streams.append(stream)
    return replace(now, streams=tuple(streams), consumers=tuple(consumers))


def worst_streams(look: Look) -> list[StreamFigures]:
    """All streams: those without all their replicas, then full ones, then by what comes in and by size."""
    return sorted(
        look.streams, key=lambda each: (not each.behind, each.full < 1, -(each.rate or 0), -each.size, each.name)
    )


def worst_consumers(look: Look) -> list[ConsumerFigures]:
    """All consumers: those that stand still first, then what is in trouble, then by unread messages."""

    def key(each: ConsumerFigures) -> tuple[int, int, int, str, str]:
        wrong = trouble(each)
        return -(wrong.harm if wrong else 0), -each.pending, -each.ack_pending, each.stream, each.name

    return sorted(look.consumers, key=key)


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    for size, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {name}"
    return f"{seconds:.0f} s"


def size_text(count: float) -> str:
    """Bytes as people say them."""
    for unit in ("B", "KB", "MB", "GB"):
        if abs(count) < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" or count >= 100 else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TB"


def as_json(look: Look, most: int | None = None) -> dict[str, Any]:
    """A look as JSON, worst first. `most`: so many streams and consumers have figures, the others are added up."""
    streams, consumers = worst_streams(look), worst_consumers(look)
    other_streams, other_consumers = streams[most:] if most else [], consumers[most:] if most else []
    shown: dict[str, Any] = {
        "server": {name: look.server.get(name, "") for name in ("name", "version", "cluster", "domain")},
        "streams": [_stream_json(each) for each in streams[:most]],
        "consumers": [_consumer_json(each) for each in consumers[:most]],
        "missing": list(look.missing),
        "problems": [*look.absent, *look.problems],
        "unasked": look.unasked,
    }
    if other_streams:
        shown["other_streams"] = {
            "count": len(other_streams),
            "messages": sum(each.messages for each in other_streams),
            "bytes": sum(each.size for each in other_streams),
            "rate": round(sum(each.rate or 0 for each in other_streams), 1),
        }
    if other_consumers:
        pending = sum(each.pending for each in other_consumers)
        shown["other_consumers"] = {"count": len(other_consumers), "pending": pending}
    return shown


def _stream_json(each: StreamFigures) -> dict[str, Any]:
    return {
        "stream": each.name,
        "messages": each.messages,
        "bytes": each.size,
        "first": each.first,
        "last": each.last,
        "last_time": None if each.last_time is None else each.last_time / 1e6,
        "rate": _rounded(each.rate),
        "byte_rate": _rounded(each.byte_rate),
        "out_rate": _rounded(each.out_rate),
        "consumers": each.consumers,
        "replicas": each.replicas,
        "leader": each.leader,
        "behind": list(each.behind),
        "full": round(each.full, 4),
        "lag": each.lag,
    }


def _consumer_json(each: ConsumerFigures) -> dict[str, Any]:
    wrong = trouble(each)
    return {
        "stream": each.stream,
        "consumer": each.name,
        "pending": each.pending,
        "rate": _rounded(each.rate),
        "ack_rate": _rounded(each.ack_rate),
        "ack_pending": each.ack_pending,
        "redelivered": each.redelivered,
        "waiting": each.waiting,
        "lag_seconds": _rounded(each.lag_seconds),
        "trouble": wrong.text if wrong else "",
        "harm": wrong.harm if wrong else 0,
    }


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 1)


def _rate(before: int, now: int, seconds: float) -> float | None:
    """Per second; None where it went backwards, as after a reset of a consumer."""
    return (now - before) / seconds if now >= before else None


def _moment(item: dict[str, Any], name: str) -> int | None:
    text = value(item, name, str, "")
    return micros(text) if text and not text.startswith("0001") else None


def _since(item: dict[str, Any], name: str, now: int | None) -> float | None:
    then = _moment(item, name)
    return None if then is None or now is None else max(0.0, (now - then) / 1e6)


def oldest(each: ConsumerFigures) -> list[tuple[str, Mapping[str, Any]]]:
    """The questions for the oldest message that a consumer has not given, or that nobody has acknowledged: one for each
    of its filters.
    """
    start = {"seq": max(1, each.ack_floor_stream + 1)}
    return [(f"STREAM.MSG.GET.{each.stream}", start | {"next_by_subj": text}) for text in each.filters or (">",)]
