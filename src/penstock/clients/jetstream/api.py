"""JetStream's JSON API, as pure functions: requests, replies and error codes. Knows no sockets and no messages."""

import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from penstock.clients.answers import field, texts
from penstock.errors import ProtocolError

# The stream where sinks keep notes of their attempts, unless a user names another one.
LEDGER = "PENSTOCK_LEDGER"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Error codes of the server (server/errors.json) that are handled.
NO_MESSAGE, NO_STREAM, NO_CONSUMER = 10037, 10059, 10014
NAME_IN_USE, STORE_FAILED, TOO_BUSY, WRONG_SEQUENCE, SEALED = 10058, 10077, 10167, (10071, 10164), 10109
# A message with the same id is being stored: by another attempt, or as an earlier row with that id.
IN_PROCESS = 10158
# A status of NATS, not of JetStream: nobody subscribes to the subject.
NO_LISTENER = 503
NOT_ENABLED, NOT_ENABLED_FOR_ACCOUNT = 10076, 10039
TOO_MANY_CONSUMERS = (10026, 10002)
# The description of a durable that follows a query: it shows that the durable is ours.
FOLLOWER = "shows how far a Penstock query has read; Penstock moves it"
# The fields of its metadata for its owner: the query, and the run of that query.
OWNER, RUN = "penstock.query", "penstock.run"
# Seconds without a pull after which the server deletes a consumer of ours.
READER_IDLE = 30.0


@dataclass(frozen=True)
class StreamInfo:
    """The fields of STREAM.INFO that are used."""

    name: str
    created: str
    subjects: tuple[str, ...]
    derived: bool  # a mirror, or with sources or a subject transform: it may hold subjects that it does not list
    takes: bool  # stores what is published on its subjects, unchanged
    retention: str
    allow_direct: bool
    deny_purge: bool
    compacts: bool  # keeps only the newest messages of each subject
    first: int
    last: int
    messages: int
    size: int
    first_time: int  # time of the first message, in microseconds
    last_time: int  # time of the last message, also where it was deleted
    duplicate_window: float  # seconds
    replicas: int
    in_memory: bool
    allow_atomic: bool
    allow_batched: bool
    one_per_subject: bool  # refuses a second message on a subject
    max_age: float  # seconds; 0 is no limit
    allow_ttl: bool
    counts: bool  # its messages are counters that the server adds up
    leader: str  # name of the server that is its leader
    leader_since: str  # since when; empty before server 2.12 and without replicas
    most_idle: float  # the longest inactive_threshold of a consumer, in seconds

    def numbers_hold(self, before: int, mark: str) -> bool:
        """Whether sequences still count the same messages as when the message before `before` was stored at the time
        `mark`. Where they have started again, all messages are younger. Clocks of servers differ: False is no proof.
        """
        return not mark or self.first >= before or self.first_time <= int(mark)

    @classmethod
    def of(cls, reply: dict[str, Any]) -> "StreamInfo":
        """From a reply to STREAM.INFO or an item of STREAM.LIST."""
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
            # An empty stream has first = last + 1, but one that never had a message has 0 and 0.
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


def unfit_for_ledger(info: StreamInfo) -> str:
    """Why a stream cannot be the ledger, where sinks keep notes of their attempts; empty where it can."""
    if f"{info.name}.>" not in info.subjects:
        return f"does not take '{info.name}.>'"
    if not info.one_per_subject:
        return "takes several messages on a subject"
    if info.max_age:
        return f"forgets notes after {info.max_age:g}s (max_age)"
    if info.retention != "limits":
        return f"has {info.retention} retention, and forgets what is consumed"
    if info.derived:
        return "is fed by other streams, or changes subjects"
    if info.in_memory:
        return "is kept in memory, and forgets all when its server restarts"
    return ""


def micros(moment: str) -> int:
    """Microseconds since 1970, from RFC 3339 text with up to nine digits after the second."""
    try:
        return (datetime.fromisoformat(moment) - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, TypeError):  # a TypeError where the time zone is missing
        raise ProtocolError(f"the server sent {moment[:40]!r}, which is no time.") from None


def reserved(account: dict[str, Any], storage: str) -> int:
    """The bytes of "file" or "memory" that an account, or a tier of it, has promised to streams with max_bytes, from
    the reply to INFO. Servers 2.10 count -1 for each stream without a limit, and tell less than nothing as almost
    2**64: that is 0.
    """
    count = account.get("reserved_memory" if storage == "memory" else "reserved_storage")
    return count if isinstance(count, int) and 0 <= count < 1 << 63 else 0


def number(text: bytes) -> int:
    """A count in a header or an ack subject."""
    if not re.fullmatch(rb"\d{1,18}", text):
        raise ProtocolError(f"the server sent {text[:40]!r}, which is no count.")
    return int(text)


def reader(start: int, filters: Sequence[str], stream: str, most_idle: float = READER_IDLE) -> bytes:
    """CONSUMER.CREATE for an ephemeral consumer that reads from `start` on, without acks."""
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
    """The configuration of a durable that follows a query: it shows the query's position, and keeps unread messages in
    streams that delete what is acknowledged. `at` is None for a work queue, which allows no start position.
    """
    start = {"deliver_policy": "by_start_sequence", "opt_start_seq": max(1, at)} if at is not None else {}
    config = {"durable_name": name, "description": FOLLOWER, "ack_policy": "explicit"}
    return config | start | filter_config(filters)


def queue_reader(filters: Sequence[str]) -> str:
    """The name of the durable with which a query claims a work queue, or the part that `filters` match."""
    part = f"-{zlib.crc32(','.join(sorted(filters)).encode()):08x}" if filters else ""
    return f"penstock{part}"


def filter_config(filters: Sequence[str]) -> dict[str, Any]:
    """The fields for filters: one for a single filter, which every server knows, and one for several, since 2.10."""
    if not filters:
        return {}
    return {"filter_subject": filters[0]} if len(filters) == 1 else {"filter_subjects": list(filters)}


def consumer(stream: str, config: dict[str, Any]) -> bytes:
    """The body of CONSUMER.CREATE."""
    return json.dumps({"stream_name": stream, "config": config}).encode()


class PullLimits(NamedTuple):
    """The limits of one pull."""

    batch: int
    max_bytes: int
    expires: float  # seconds

    @classmethod
    def of(cls, config: dict[str, Any], batch: int, max_bytes: int, expires: float = 0) -> "PullLimits":
        """These limits, or those of the consumer where they are lower: it refuses a pull that asks for more."""
        return cls(
            min(batch, field(config, "max_batch", int, 0) or batch),
            min(max_bytes, field(config, "max_bytes", int, 0) or max_bytes),
            min(expires, (field(config, "max_expires", int, 0) or expires * 1e9) / 1e9),
        )


def pull(batch: int, max_bytes: int | None, wait: float = 0) -> bytes:
    """A pull request for up to `batch` messages, which arrive within `wait` seconds; 0 does not wait.

    With `max_bytes`, the pull always ends with a status.
    """
    until = {"expires": int(wait * 1e9)} if wait else {"no_wait": True}
    limit = {} if max_bytes is None else {"max_bytes": max_bytes}
    return json.dumps({"batch": batch} | limit | until).encode()


def get(start: int, batch: int, max_bytes: int, filters: Sequence[str]) -> bytes:
    """A DIRECT.GET request for up to `batch` messages from `start` on. Only a single filter is applied."""
    request: dict[str, Any] = {"seq": max(1, start), "batch": batch, "max_bytes": max_bytes}
    return json.dumps(request | ({"next_by_subj": filters[0]} if len(filters) == 1 else {})).encode()
