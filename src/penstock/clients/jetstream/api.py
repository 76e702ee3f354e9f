"""JetStream's JSON API and metadata, as pure functions: requests, replies, error codes, ack subjects."""

import json
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.buffers import grid, interleaved, offsets, parsed, segments, text
from penstock.arrow.types import TIMESTAMP
from penstock.clients.answers import field, texts
from penstock.clients.nats import headers
from penstock.clients.nats.wire import Messages
from penstock.errors import ProtocolError

# The stream where sinks keep their notes, unless a user names another one.
LEDGER = "PENSTOCK_LEDGER"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Error codes of the server (server/errors.json) that mean something to us.
NO_MESSAGE, NO_STREAM, NO_CONSUMER = 10037, 10059, 10014
NAME_IN_USE, STORE_FAILED, TOO_BUSY, WRONG_SEQUENCE, SEALED = 10058, 10077, 10167, (10071, 10164), 10109
# An id that is being stored: by another attempt, or by a row just before with the same id of its own.
IN_PROCESS = 10158
# Not JetStream's own: nobody listens on the subject.
NO_LISTENER = 503
NOT_ENABLED, NOT_ENABLED_FOR_ACCOUNT = 10076, 10039
TOO_MANY_CONSUMERS = (10026, 10002)
# How the durable that follows a query is known again as ours.
FOLLOWER = "shows how far a Penstock query has read; Penstock moves it"
# The fields of its metadata that tell whose it is: of which query, and of which run of it.
OWNER, RUN = "penstock.query", "penstock.run"
# The server adds these to every message of DIRECT.GET, behind the publisher's own, and an empty line behind them. Where
# the publisher's block lacks its end, the first of them is on a line with what is left of it.
DIRECT_FIELDS = (
    b"Nats-Stream: ", b"Nats-Subject: ", b"Nats-Sequence: ", b"Nats-Time-Stamp: ", b"Nats-Num-Pending: ",
    b"Nats-Last-Sequence: ",
)  # fmt: skip
DIRECT_LINES = len(DIRECT_FIELDS) + 1
# So many seconds after its last use a consumer of ours goes away.
READER_IDLE = 30.0


@dataclass(frozen=True)
class StreamInfo:
    """What STREAM.INFO tells, as far as we need it."""

    name: str
    created: str
    subjects: tuple[str, ...]
    derived: bool  # fed by other streams, or subjects rewritten: it may hold subjects that it does not list
    takes: bool  # what is published on its subjects, as it is published
    retention: str
    allow_direct: bool
    deny_purge: bool
    compacts: bool  # keeps only the newest messages of each subject
    first: int
    last: int
    messages: int
    size: int
    first_time: int  # of the first message, in microseconds
    last_time: int  # of the last one, also when that was deleted
    duplicate_window: float  # seconds
    replicas: int
    in_memory: bool
    allow_atomic: bool
    allow_batched: bool
    one_per_subject: bool  # a second message on a subject is refused, for ever
    max_age: float  # seconds; 0: for ever
    allow_ttl: bool
    counts: bool  # bodies are counters, which the server adds up
    leader: str  # name of the server that leads it
    leader_since: str  # when that began, where the server says so: 2.12, with replicas
    most_idle: float  # seconds after which a consumer that nobody pulls from is deleted, at the latest

    def numbers_hold(self, before: int, mark: str) -> bool:
        """Whether the numbers mean what they meant when the message before `before` was stored at the time `mark`:
        where they began anew, all messages are younger. Clocks of servers differ, so that a no is no proof.
        """
        return not mark or self.first >= before or self.first_time <= int(mark)

    @classmethod
    def of(cls, reply: dict[str, Any]) -> "StreamInfo":
        """From the reply to STREAM.INFO or an item of STREAM.LIST."""
        config, state = field(reply, "config", dict), field(reply, "state", dict)
        limits, cluster = field(config, "consumer_limits", dict, {}), field(reply, "cluster", dict, {})
        return cls(
            name=field(config, "name", str),
            created=field(reply, "created", str),
            subjects=tuple(texts(config, "subjects")),
            derived=bool(config.get("mirror") or config.get("sources") or config.get("subject_transform")),
            takes=not (config.get("sealed") or config.get("mirror") or config.get("subject_transform")),
            retention=field(config, "retention", str, "limits"),
            allow_direct=bool(config.get("allow_direct")),
            deny_purge=bool(config.get("deny_purge")),
            compacts=field(config, "max_msgs_per_subject", int, -1) > 0,
            # An empty stream says first = last + 1, but one that never had a message says 0 and 0.
            first=max(1, field(state, "first_seq", int)),
            last=field(state, "last_seq", int),
            messages=field(state, "messages", int),
            size=field(state, "bytes", int),
            first_time=micros(field(state, "first_ts", str)),
            last_time=micros(field(state, "last_ts", str)),
            duplicate_window=field(config, "duplicate_window", int, 0) / 1e9,
            replicas=field(config, "num_replicas", int, 1),
            in_memory=config.get("storage") == "memory",
            allow_atomic=bool(config.get("allow_atomic")),
            allow_batched=bool(config.get("allow_batched")),
            one_per_subject=bool(config.get("discard_new_per_subject")) and config.get("max_msgs_per_subject") == 1,
            max_age=field(config, "max_age", int, 0) / 1e9,
            allow_ttl=bool(config.get("allow_msg_ttl")),
            counts=bool(config.get("allow_msg_counter")),
            leader=field(cluster, "leader", str, ""),
            leader_since=field(cluster, "leader_since", str, ""),
            most_idle=field(limits, "inactive_threshold", int, 0) / 1e9 or float("inf"),
        )


def micros(moment: str) -> int:
    """RFC 3339 with up to nine digits of a second, as microseconds since 1970."""
    try:
        return (datetime.fromisoformat(moment) - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, TypeError):  # or it lacks its time zone
        raise ProtocolError(f"the server sent {moment[:40]!r}, which is no time.") from None


def number(text: bytes) -> int:
    """A count in a header."""
    if not re.fullmatch(rb"\d{1,18}", text):
        raise ProtocolError(f"the server sent {text[:40]!r}, which is no count.")
    return int(text)


def reader(start: int, filters: Sequence[str], stream: str, most_idle: float = READER_IDLE) -> bytes:
    """A request for a consumer that reads from `start` on, keeps no state, and goes away by itself."""
    config: dict[str, Any] = {
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": max(1, start),
        "ack_policy": "none",
        "max_deliver": 1,
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": int(min(READER_IDLE, most_idle) * 1e9),
    }
    return consumer(stream, config | filter_config(filters))


def follower(name: str, at: int | None, filters: Sequence[str]) -> dict[str, Any]:
    """A durable that shows where a query stands and, on streams that release messages, keeps them. A work queue lets it
    begin nowhere in particular.
    """
    start = {"deliver_policy": "by_start_sequence", "opt_start_seq": max(1, at)} if at is not None else {}
    config = {"durable_name": name, "description": FOLLOWER, "ack_policy": "explicit"}
    return config | start | filter_config(filters)


def queue_reader(filters: Sequence[str]) -> str:
    """The name of the durable by which a query without one of its own makes a work queue, or a part of it, its own."""
    part = f"-{zlib.crc32(','.join(sorted(filters)).encode()):08x}" if filters else ""
    return f"penstock{part}"


def filter_config(filters: Sequence[str]) -> dict[str, Any]:
    """One filter in the field that every server knows, several in that of 2.10."""
    if not filters:
        return {}
    return {"filter_subject": filters[0]} if len(filters) == 1 else {"filter_subjects": list(filters)}


def consumer(stream: str, config: dict[str, Any]) -> bytes:
    """The body of CONSUMER.CREATE."""
    return json.dumps({"stream_name": stream, "config": config}).encode()


class PullLimits(NamedTuple):
    """What one pull may ask for."""

    batch: int
    max_bytes: int
    expires: float  # seconds

    @classmethod
    def of(cls, config: dict[str, Any], batch: int, max_bytes: int, expires: float = 0) -> "PullLimits":
        """These, or less where the consumer says so: it refuses a pull that asks for more."""
        return cls(
            min(batch, field(config, "max_batch", int, 0) or batch),
            min(max_bytes, field(config, "max_bytes", int, 0) or max_bytes),
            min(expires, (field(config, "max_expires", int, 0) or expires * 1e9) / 1e9),
        )


def pull(batch: int, max_bytes: int | None, wait: float = 0) -> bytes:
    """A request for up to `batch` messages that are there, or come in `wait` seconds.

    With a limit of bytes it always ends with a status.
    """
    until = {"expires": int(wait * 1e9)} if wait else {"no_wait": True}
    limit = {} if max_bytes is None else {"max_bytes": max_bytes}
    return json.dumps({"batch": batch} | limit | until).encode()


def get(start: int, batch: int, max_bytes: int, filters: Sequence[str]) -> bytes:
    """A request of DIRECT.GET for up to `batch` messages from `start` on, of the filter if there is just one."""
    asked: dict[str, Any] = {"seq": max(1, start), "batch": batch, "max_bytes": max_bytes}
    return json.dumps(asked | ({"next_by_subj": filters[0]} if len(filters) == 1 else {})).encode()


def deliveries(messages: Messages) -> tuple[int, int]:
    """The numbers of the first and the last of these deliveries among all that the consumer made: the third token from
    the end of their ack subjects, which `ack_columns` has looked at.
    """
    ends = []
    for row in (0, -1):
        reply = bytes(messages.lines[int(messages.sid_end[row]) + 1 : int(messages.reply_end[row])])
        ends.append(number(reply.split(b".")[-3]))
    return ends[0], ends[1]


def ack_columns(messages: Messages) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Subject, sequence and timestamp, from the control lines.

    The reply is $JS.ACK[.domain.account].stream.consumer.delivered.sequence.consumer_sequence.nanoseconds.pending:
    counted from its end, as servers from 2.14 on may put two more tokens in front.
    """
    line = np.frombuffer(messages.lines, np.uint8)
    dot = np.flatnonzero(line == ord("."))
    table = grid(dot, messages.line_bounds) if messages.line_bounds is not None else None
    if table is not None and table.shape[1] > 3:
        dots = table[:, -4:]
    else:
        last = np.searchsorted(dot, messages.reply_end)
        dots = np.append(dot, -1)[np.maximum(last[:, None] + np.arange(-4, 0), -1)]
    if (dots[:, 0] <= messages.sid_end).any():
        row = int(np.argmax(dots[:, 0] <= messages.sid_end))
        reply = line[messages.sid_end[row] + 1 : messages.reply_end[row]].tobytes()
        raise ProtocolError(
            f"the server delivered a message to be answered on {reply[:100]!r}, which is no ack subject."
        )
    subject, sequence, moment = interleaved(
        messages.lines,
        messages.subject_start, messages.subject_end,
        dots[:, 0] + 1, dots[:, 1],
        # Nanoseconds have 19 digits until the year 2286; without the last three they are microseconds.
        dots[:, 2] + 1, dots[:, 3] - 3,
    )  # fmt: skip
    times = parsed(moment, pa.int64(), "a time in an ack subject").view(TIMESTAMP)
    return text(subject), parsed(sequence, pa.int64(), "a sequence in an ack subject"), times


class Direct(NamedTuple):
    """What DIRECT.GET tells: the same three, and the header blocks as they were published, as far as they are whole."""

    subject: pa.Array
    sequence: pa.Array
    timestamp: pa.Array
    blocks: Callable[[], pa.Array]
    mirror: str  # the name of another stream that answered in the place of the one that was asked, or empty


def direct_columns(blocks: pa.Array, stream: str) -> Direct:
    """What the blocks of messages from DIRECT.GET tell. The server's own fields are the last lines of each."""
    at, data = offsets(blocks), blocks.buffers()[2]
    u = np.frombuffer(data, np.uint8, count=int(at[-1])) if at[-1] else np.empty(0, np.uint8)
    newline = np.flatnonzero(u == 10)
    before = np.searchsorted(newline, at)
    if (np.diff(before) < DIRECT_LINES).any():
        raise _not_direct(blocks, int(np.argmax(np.diff(before) < DIRECT_LINES)))
    last = before[1:] - DIRECT_LINES  # the line that ends with the name of the stream
    ends = [newline[last + k] for k in range(4)]
    name = f": {stream}".encode()
    bounds = [np.maximum(ends[0] - 1 - len(name), at[:-1]), ends[0] - 1]
    for k in (1, 2, 3):
        bounds += [ends[k - 1] + 1 + len(DIRECT_FIELDS[k]), ends[k] - 1]
    names, subject, sequence, moment = interleaved(data, *bounds)
    named = [u[ends[k - 1] + len(DIRECT_FIELDS[k]) - 1] == ord(":") for k in (1, 2, 3)]
    if not np.logical_and.reduce(named).all():
        raise _not_direct(blocks, int(np.argmin(np.logical_and.reduce(named))))
    other, mirror = pc.index(pc.equal(names, name), False).as_py(), ""
    if other >= 0:
        found = direct_fields(blocks[other].as_py())
        if found is None:
            raise _not_direct(blocks, other)
        mirror = found[0].decode(errors="replace")
    times = parsed(pc.ascii_rtrim(text(moment), "Z"), pa.timestamp("ns"), "a time of a message")
    return Direct(
        text(subject),
        parsed(sequence, pa.int64(), "a sequence of a message"),
        times.cast(pa.timestamp("us"), safe=False).cast(pa.int64()).view(TIMESTAMP),
        # Up to the last line before the server's own; what is on a line with those is not whole. Two bytes more take
        # the place of the empty line at the end.
        lambda: segments(data, at[:-1], np.where(last > before[:-1], newline[last - 1] + 1 + headers.END, at[:-1])),
        mirror,
    )


def direct_fields(block: bytes) -> tuple[bytes, ...] | None:
    """The values of DIRECT_FIELDS in one block; None where that is no message, but a status."""
    lines = block.split(b"\r\n")[-DIRECT_LINES - 1 : -2]
    found = [line.rpartition(name) for name, line in zip(DIRECT_FIELDS, lines, strict=False)]
    whole = len(found) == len(DIRECT_FIELDS) and all(name for _, name, _ in found)
    return tuple(value for _, _, value in found) if whole else None


def _not_direct(blocks: pa.Array, row: int) -> ProtocolError:
    shown = blocks[row].as_py()[-200:]
    return ProtocolError(f"DIRECT.GET answered with the headers ...{shown!r}, which do not tell which message it is.")
