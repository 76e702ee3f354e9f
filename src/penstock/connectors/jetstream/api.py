"""JetStream's JSON API and metadata, as pure functions: requests, replies, error codes, ack subjects."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columns import grid, interleaved, text
from penstock.connectors.nats.headers import Fields
from penstock.connectors.nats.wire import Messages
from penstock.record import TIMESTAMP

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Error codes of the server (server/errors.json) that mean something to us.
NO_MESSAGE, NO_STREAM, NO_CONSUMER = 10037, 10059, 10014
NAME_IN_USE, STORE_FAILED, TOO_BUSY, WRONG_SEQUENCE, SEALED = 10058, 10077, 10167, (10071, 10164), 10109
# Not JetStream's own: nobody listens on the subject.
NO_LISTENER = 503
NOT_ENABLED, NOT_ENABLED_FOR_ACCOUNT = 10076, 10039
TOO_MANY_CONSUMERS = (10026, 10002)
# How the durable that follows a query is known again as ours.
FOLLOWER = "shows how far a Penstock query has read; Penstock moves it"
# The server adds these to every message of DIRECT.GET, after the publisher's own.
DIRECT_FIELDS = 6


@dataclass(frozen=True)
class StreamInfo:
    """What STREAM.INFO tells, as far as we need it."""

    name: str
    created: str
    subjects: tuple[str, ...]
    derived: bool  # fed by other streams, or subjects rewritten: it may hold subjects that it does not list
    retention: str
    allow_direct: bool
    deny_purge: bool
    compacts: bool  # keeps only the newest messages of each subject
    first: int
    last: int
    messages: int
    size: int
    last_time: int  # microseconds
    duplicate_window: float  # seconds
    replicas: int
    in_memory: bool
    allow_atomic: bool
    allow_batched: bool
    one_per_subject: bool  # a second message on a subject is refused, for ever

    @property
    def transient(self) -> bool:
        """Whether messages go by design: consumed, or replaced by newer ones of their subject."""
        return self.retention != "limits" or self.compacts

    @classmethod
    def of(cls, reply: dict[str, Any]) -> "StreamInfo":
        """From the reply to STREAM.INFO or an item of STREAM.LIST."""
        config, state = reply["config"], reply["state"]
        return cls(
            name=config["name"],
            created=reply["created"],
            subjects=tuple(config.get("subjects") or ()),
            derived=bool(config.get("mirror") or config.get("sources") or config.get("subject_transform")),
            retention=config.get("retention", "limits"),
            allow_direct=bool(config.get("allow_direct")),
            deny_purge=bool(config.get("deny_purge")),
            compacts=config.get("max_msgs_per_subject", -1) > 0,
            # An empty stream says first = last + 1, but one that never had a message says 0 and 0.
            first=max(1, state["first_seq"]),
            last=state["last_seq"],
            messages=state["messages"],
            size=state["bytes"],
            last_time=micros(state["last_ts"]),
            duplicate_window=config.get("duplicate_window", 0) / 1e9,
            replicas=config.get("num_replicas", 1),
            in_memory=config.get("storage") == "memory",
            allow_atomic=bool(config.get("allow_atomic")),
            allow_batched=bool(config.get("allow_batched")),
            one_per_subject=bool(config.get("discard_new_per_subject")) and config.get("max_msgs_per_subject") == 1,
        )


def micros(moment: str) -> int:
    """RFC 3339 with up to nine digits of a second, as microseconds since 1970."""
    return (datetime.fromisoformat(moment) - _EPOCH) // timedelta(microseconds=1)


def reader(start: int, filters: Sequence[str], stream: str) -> bytes:
    """A request for a consumer that reads from `start` on, keeps no state, and goes away by itself."""
    config: dict[str, Any] = {
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": max(1, start),
        "ack_policy": "none",
        "max_deliver": 1,
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": 30_000_000_000,
    }
    return consumer(stream, config | filter_config(filters))


def follower(name: str, at: int, filters: Sequence[str], stream: str, holds: bool) -> bytes:
    """A request for the durable that shows where a query stands, and where it `holds` messages, keeps them."""
    config: dict[str, Any] = {
        "durable_name": name,
        "description": FOLLOWER,
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": max(1, at),
        "ack_policy": "explicit" if holds else "none",
    }
    return consumer(stream, config | filter_config(filters))


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
            min(batch, config.get("max_batch") or batch),
            min(max_bytes, config.get("max_bytes") or max_bytes),
            min(expires, (config.get("max_expires") or expires * 1e9) / 1e9),
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


def ack_columns(messages: Messages) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Subject, sequence and timestamp, from the control lines.

    The reply is $JS.ACK[.domain.account].stream.consumer.delivered.sequence.consumer_sequence.nanoseconds.pending:
    counted from its end, as servers from 2.14 on may put two more tokens in front.
    """
    line = np.frombuffer(messages.lines, np.uint8)
    dot = np.flatnonzero(line == ord("."))
    table = grid(dot, messages.line_bounds) if messages.line_bounds is not None else None
    if table is not None:
        dots = table[:, -4:]
    else:
        dots = dot[np.searchsorted(dot, messages.reply_end)[:, None] + np.arange(-4, 0)]
    subject, sequence, moment = interleaved(
        messages.lines,
        messages.subject_start, messages.subject_end,
        dots[:, 0] + 1, dots[:, 1],
        # Nanoseconds have 19 digits until the year 2286; without the last three they are microseconds.
        dots[:, 2] + 1, dots[:, 3] - 3,
    )  # fmt: skip
    return text(subject), text(sequence).cast(pa.int64()), text(moment).cast(pa.int64()).view(TIMESTAMP)


def answered_by_other(fields: Fields, stream: str) -> str:
    """The name of another stream, a mirror, that answered for `stream`; empty where it did itself."""
    names = text(fields.values.take(pa.array(np.cumsum(fields.counts) - DIRECT_FIELDS)))
    other = pc.index(pc.equal(names, stream), False).as_py()
    return "" if other < 0 else str(names[other].as_py())


def direct_columns(fields: Fields) -> tuple[pa.Array, pa.Array, pa.Array]:
    """The same from the header fields of DIRECT.GET, which come last in each block, in the server's order."""
    ends = np.cumsum(fields.counts)
    subject, sequence, moment = (fields.values.take(pa.array(ends - DIRECT_FIELDS + k)) for k in (1, 2, 3))
    times = pc.utf8_rtrim(text(moment), "Z").cast(pa.timestamp("ns")).cast(pa.timestamp("us"), safe=False)
    return text(subject), text(sequence).cast(pa.int64()), times.cast(pa.int64()).view(TIMESTAMP)
