"""Findings about what streams keep: limits and when they are reached, and what is deleted unread. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any

from penstock.clients.answers import field
from penstock.clients.jetstream.api import LEDGER
from penstock.operate.doctor.facts import Facts
from penstock.operate.doctor.findings import Finding, Level, setting
from penstock.operate.figures import ConsumerFigures, StreamFigures, duration, size_text

HOUR, DAY = 3600.0, 86400.0
# A stream that refuses messages when it is full, and will be so before this, is a warning.
SOON = 7 * DAY
# How much of a limit that refuses messages may be used before that is told.
NEARLY = 0.8
# A stream whose last message is older than this is not expected to grow by what it did before.
RECENT = 600.0
# A stream is not judged by the average of less than this: it may be one burst.
LEAST_SPAN = 60.0


def rate_of(stream: StreamFigures, facts: Facts) -> tuple[float, str]:
    """Messages a second, and how that is known: seen just now, or the average since the first that is stored, where
    that is some time ago and the last is not. 0 where nothing comes.
    """
    if stream.rate:
        return stream.rate, f"{stream.rate:,.0f} messages a second, in {duration(facts.seconds)}"
    first, last = stream.first_time, stream.last_time
    if first is None or last is None or facts.now - last / 1e6 > RECENT or facts.now - first / 1e6 < LEAST_SPAN:
        return 0.0, ""
    average = stream.messages / (facts.now - first / 1e6)
    return average, f"{average:,.1f} messages a second, on average"


def limits(stream: StreamFigures, config: dict[str, Any], facts: Facts) -> Iterator[Finding]:
    """Streams that are full or will be, have no limit, or one that makes no sense."""
    max_age, per_subject = field(config, "max_age", int, 0), field(config, "max_msgs_per_subject", int, -1)
    is_refusing = config.get("discard") == "new"
    rate, how = rate_of(stream, facts)
    left = _left(stream, rate)
    raise_them = larger(stream)
    if is_refusing and stream.name != LEDGER and stream.full >= 1:
        yield Finding(
            "limits",
            Level.ERROR,
            f"stream {stream.name}",
            f"It is full ({_usage(stream)}) and refuses what is published (discard new).",
            f"{raise_them} Or let the oldest go: --discard=old.",
        )
    elif is_refusing and (stream.full > NEARLY or left < SOON):
        when = f"; at {how}, it refuses messages in {duration(left)}" if left < float("inf") else ""
        yield Finding(
            "limits",
            Level.WARNING,
            f"stream {stream.name}",
            f"{stream.full:.0%} of its limits are used ({_usage(stream)}){when} (discard new).",
            raise_them,
        )
    has_limit = stream.max_messages > 0 or stream.max_bytes > 0 or max_age > 0 or per_subject > 0
    if not has_limit and config.get("retention", "limits") == "limits" and not config.get("sealed"):
        room, what = _room(stream, facts)
        bytes_a_second = rate * (stream.size / stream.messages if stream.messages else 0.0)
        until = room / bytes_a_second if room is not None and bytes_a_second else float("inf")
        grows = f", and takes {size_text(bytes_a_second * DAY)} a day at {how}" if bytes_a_second else ""
        then = f": {what} is full in {duration(until)}" if until < float("inf") else ""
        yield Finding(
            "limits",
            Level.WARNING if until < SOON else Level.ADVICE,
            f"stream {stream.name}",
            f"It has no limits{grows}{then}. It fills the storage in the end, and then no stream takes anything.",
            setting(stream.name, 'max_age = "30d"', "--max-age=30d"),
        )
    most, payload = field(config, "max_msg_size", int, -1), _max_payload(facts)
    if most > payload > 0:
        yield Finding(
            "limits",
            Level.ADVICE,
            f"stream {stream.name}",
            f"max_msg_size is {size_text(most)}, but the server takes at most {size_text(payload)} (max_payload).",
            "Raise max_payload in the server's configuration, or lower max_msg_size.",
        )


def larger(stream: StreamFigures) -> str:
    """How the limits of a stream that it has are raised."""
    flags = [("max_msgs", "--max-msgs=N")] if stream.max_messages > 0 else []
    flags += [("max_bytes", "--max-bytes=SIZE")] if stream.max_bytes > 0 else []
    names = " and ".join(f"a larger {name}" for name, _ in flags)
    return setting(stream.name, names, " ".join(flag for _, flag in flags))


def _left(stream: StreamFigures, rate: float) -> float:
    """Seconds until a limit of messages or bytes is reached; infinite where that is never."""
    if rate <= 0:
        return float("inf")
    size = stream.size / stream.messages if stream.messages else 0.0
    waits = [float("inf")]
    if stream.max_messages > 0:
        waits.append((stream.max_messages - stream.messages) / rate)
    if stream.max_bytes > 0 and size:
        waits.append((stream.max_bytes - stream.size) / (rate * size))
    return max(0.0, min(waits))


def _usage(stream: StreamFigures) -> str:
    parts = []
    if stream.max_messages > 0:
        parts.append(f"{stream.messages:,} of {stream.max_messages:,} messages")
    if stream.max_bytes > 0:
        parts.append(f"{size_text(stream.size)} of {size_text(stream.max_bytes)}")
    return ", ".join(parts)


def _room(stream: StreamFigures, facts: Facts) -> tuple[float | None, str]:
    """Bytes that are left for a stream in the account or on the server; None where neither tells."""
    kind = "memory" if field(dict(stream.raw), "config", dict, {}).get("storage") == "memory" else "storage"
    rooms: list[tuple[float, str]] = []
    account = dict(facts.look.account or {}) if facts.look is not None else {}
    limits = field(account, "limits", dict, {})
    if (most := field(limits, f"max_{kind}", int, -1)) > 0:
        rooms.append((max(0, most - field(account, kind, int, 0)) / max(1, stream.replicas), "the account"))
    for each in facts.monitored:
        jetstream = field(dict(each.varz), "jetstream", dict, {})
        most = field(field(jetstream, "config", dict, {}), f"max_{kind}", int, 0)
        if most > 0:
            rooms.append((max(0, most - field(field(jetstream, "stats", dict, {}), kind, int, 0)), "the server"))
    return min(rooms, default=(None, ""))


def _max_payload(facts: Facts) -> int:
    return field(dict(facts.connected.info), "max_payload", int, 0) if facts.connected else 0


def retention(stream: StreamFigures, config: dict[str, Any], facts: Facts) -> Iterator[Finding]:
    """What is deleted before its consumers have read it, and streams that keep nothing."""
    kind = field(config, "retention", str, "limits")
    if kind == "interest" and not stream.consumers and not config.get("sealed"):
        yield Finding(
            "retention",
            Level.WARNING,
            f"stream {stream.name}",
            "It has interest retention and no consumer: it keeps nothing of what is published.",
            f"Make the consumers first (nats consumer add {stream.name}), or use limits retention.",
        )
    if facts.look is None or config.get("discard") == "new":
        return
    consumers = [
        each for each in facts.look.consumers if each.stream == stream.name and (each.pending or each.ack_pending)
    ]
    yield from _overtaken(stream, consumers, facts)
    max_age = field(config, "max_age", int, 0) / 1e9
    for each in consumers:
        if max_age and each.lag_seconds is not None and each.lag_seconds > NEARLY * max_age:
            yield Finding(
                "retention",
                Level.WARNING,
                f"consumer {stream.name}/{each.name}",
                f"Its oldest unread message is {duration(each.lag_seconds)} old, and is deleted unread at "
                f"{duration(max_age)} (max_age).",
                setting(stream.name, "a longer max_age", "--max-age=AGE") + " Or let the consumer read faster.",
            )


def _overtaken(stream: StreamFigures, consumers: Sequence[ConsumerFigures], facts: Facts) -> Iterator[Finding]:
    """Consumers that read slower than the oldest messages are deleted, in a stream that is at its limit."""
    rate, how = rate_of(stream, facts)
    if not rate or _left(stream, rate) > DAY or stream.full <= 0:
        return
    until_full = _left(stream, rate)
    for each in consumers:
        reads = each.ack_rate or 0.0
        if reads >= rate:
            continue
        ahead = max(0, each.ack_floor_stream + 1 - stream.first)
        # Until the stream is full nothing goes; from then on as many as come.
        seconds = until_full + max(0.0, (ahead + reads * until_full) / (rate - reads))
        if seconds < DAY:
            yield Finding(
                "retention",
                Level.ERROR if seconds < HOUR else Level.WARNING,
                f"consumer {stream.name}/{each.name}",
                f"It is {each.pending:,} messages behind and reads {reads:,.0f} a second, while {how} come in: in "
                f"{duration(seconds)} the stream deletes what it has not read (discard old).",
                setting(stream.name, "larger limits", "--max-msgs=N --max-bytes=SIZE")
                + " Or let the consumer read faster.",
            )
