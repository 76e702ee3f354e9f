"""Iggy's binary requests, and its answers to polls as columns. Knows no sockets, no SDK and no Spark."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.arrow.buffers import Ints, segments, text
from penstock.arrow.types import HEADERS
from penstock.errors import ProtocolError

# Limits of the server, in bytes.
MOST_PAYLOAD, MOST_REQUEST, MOST_HEADER = 64_000_000, 60 << 20, 255

POLL, STORE_OFFSET = 100, 121
# Where a poll starts: at an offset, at a time, or at the first message.
OFFSET, TIME, FIRST = 1, 2, 3
KINDS = (
    "raw", "string", "bool", "int8", "int16", "int32", "int64", "int128", "uint8", "uint16", "uint32", "uint64",
    "uint128", "float32", "float64",
)  # fmt: skip
TYPED_HEADERS = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary()), pa.field("kind", pa.string())]),
    )
)
_BATCH, _FRAME = 256, 48  # bytes before the first message of a batch, and before the payload of a message
_LAST = 2**63 - 2**32  # the largest base: what a message adds to it has 32 bits
_HEAD = np.dtype(
    [("sum", "<u8"), ("low", "<u8"), ("high", "<u8"), ("delta", "<u4"), ("later", "<u4"), ("headers", "<u4"),
     ("payload", "<u4"), ("zero", "<u8")]
)  # fmt: skip
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Messages:
    """Messages of one partition, in order. `high` and `low` are the halves of an id; `headers` are not parsed yet."""

    offset: Ints
    time: Ints  # microseconds, from the server
    origin: Ints  # microseconds, from the client
    high: Words
    low: Words
    value: pa.Array
    headers: pa.Array

    def __len__(self) -> int:
        return len(self.offset)

    @classmethod
    def joined(cls, parts: "Sequence[Messages]") -> "Messages":
        """The messages of all parts, in order."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return read_poll(bytes(16))
        columns = zip(*(part.__dict__.values() for part in parts), strict=True)
        return cls(*(pa.concat_arrays(c) if isinstance(c[0], pa.Array) else np.concatenate(c) for c in columns))

    def before(self, end: int) -> "Messages":
        """The messages with offsets below `end`."""
        count = int(np.searchsorted(self.offset, end))
        return self.part(0, count) if count < len(self) else self

    def part(self, low: int, high: int) -> "Messages":
        """The messages from index `low` up to `high`."""
        return Messages(*(column[low:high] for column in self.__dict__.values()))


class Where(NamedTuple):
    """One partition of a topic."""

    stream: str
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.stream}/{self.topic}/{self.partition}"

    @classmethod
    def of(cls, shard: str) -> "Where":
        """From `stream/topic/partition`. The name of a stream may have slashes, that of a topic may not."""
        stream, topic, partition = shard.rsplit("/", 2)
        return cls(stream, topic, int(partition))


def poll(where: Where, kind: int, value: int, count: int) -> bytes:
    """The body of a poll request. It stores no offset."""
    return _consumer(1) + _place(where) + struct.pack("<BQIB", kind, value, count, 0)


def store_offset(where: Where, consumer: str, offset: int) -> bytes:
    """The body of a request to store the offset of a consumer."""
    return _consumer(consumer) + _place(where) + struct.pack("<QB", offset, 1)


def _consumer(consumer: int | str) -> bytes:
    return b"\x01" + _ident(consumer)


def _place(where: Where) -> bytes:
    return _ident(where.stream) + _ident(where.topic) + struct.pack("<BI", 1, where.partition)


def _ident(name: int | str) -> bytes:
    data = struct.pack("<I", name) if isinstance(name, int) else name.encode()
    return bytes([1 if isinstance(name, int) else 2, len(data)]) + data


def read_poll(data: bytes) -> Messages:
    """The messages in the answer to a poll. A time that a column cannot hold becomes the last that it can."""
    if len(data) < 16:
        raise ProtocolError(f"Iggy answered a poll with {len(data)} bytes, which are no messages.")
    (count,) = struct.unpack_from("<I", data, 12)
    at, starts = 16, []
    lengths = struct.Struct("<II").unpack_from  # not a global: it cannot be pickled with its module
    bases: list[tuple[int, int, int, int]] = []
    try:
        while at < len(data):
            _, base, when, origin, length, _, inside = struct.unpack_from("<QQQQQQI", data, at)
            end = at + length
            bases.append((base, when, origin, inside))
            place = at + _BATCH
            for _ in range(inside):
                starts.append(place)
                headers_size, payload_size = lengths(data, place + 32)
                place += _FRAME + headers_size + payload_size
            if place != end or length < _BATCH or base > _LAST:
                raise ProtocolError(
                    f"Iggy answered a poll with a batch at offset {base} that says it has {inside:,} messages in "
                    f"{length:,} bytes, but they end after {place - at:,}."
                )
            at = end
    except struct.error:
        raise ProtocolError(
            f"Iggy answered a poll with {len(data):,} bytes that are cut off in message {len(starts)}, at byte {at:,}."
        ) from None
    if len(starts) != count or at != len(data):
        raise ProtocolError(f"Iggy announced {count} messages and sent {len(starts)}.")
    frame = np.array(starts, np.int64)
    if not count:
        none, words, empty = np.empty(0, np.int64), np.empty(0, np.uint64), pa.array([], pa.binary())
        return Messages(none, none, none, words, words, empty, empty)
    u = np.frombuffer(data, np.uint8)
    inside = np.array([base[3] for base in bases])
    base, when, origin = (np.repeat(np.array([min(b[i], _LAST) for b in bases], np.int64), inside) for i in range(3))
    heads = np.lib.stride_tricks.sliding_window_view(u, _FRAME)[frame].view(_HEAD)[:, 0]
    start = frame + _FRAME
    middle = start + heads["payload"]
    buffer = pa.py_buffer(data)
    return Messages(
        base + heads["delta"], when, origin + heads["later"],
        np.ascontiguousarray(heads["high"]), np.ascontiguousarray(heads["low"]),
        segments(buffer, start, middle), segments(buffer, middle, middle + heads["headers"]),
    )  # fmt: skip


def _numbers(u: npt.NDArray[np.uint8], at: Ints, size: int) -> Ints:
    """The little-endian number at each place. A place outside of the buffer gives any number."""
    values = np.zeros(len(at), np.int64)
    for i in range(size):
        values |= u.take(at + i, mode="clip").astype(np.int64) << (8 * i)
    return values


def headers(column: pa.Array, *, typed: bool) -> pa.Array:
    """The headers of each message as a list; null where there are none. `typed` ones have their kind.

    Servers store what a client sent without a check: a header that is longer than its message ends the list of that
    message. Each round reads one header of every message that has another one.
    """
    kind = TYPED_HEADERS if typed else HEADERS
    data = column.buffers()[2]
    edges = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1].astype(
        np.int64
    )
    if data is None or edges[0] == edges[-1]:
        return pa.nulls(len(column), kind)
    u = np.frombuffer(data, np.uint8)
    at, end = edges[:-1].copy(), edges[1:]
    rows = np.flatnonzero(at < end)
    rounds: list[tuple[Ints, ...]] = [(np.empty(0, np.int64),) * 6]
    while len(rows):
        key = at[rows] + 5
        key_end = key + _numbers(u, key - 4, 4)
        kinds, value = u.take(key_end, mode="clip").astype(np.int64), key_end + 5
        value_end = value + _numbers(u, value - 4, 4)
        whole = value_end <= end[rows]
        if not whole.all():
            rows, key, key_end = rows[whole], key[whole], key_end[whole]
            value, value_end, kinds = value[whole], value_end[whole], kinds[whole]
        rounds.append((rows, key, key_end, value, value_end, kinds))
        at[rows] = value_end
        rows = rows[value_end < end[rows]]
    row, key, key_end, value, value_end, kinds = (np.concatenate(part) for part in zip(*rounds, strict=True))
    order = np.argsort(row, kind="stable")
    count = np.bincount(row, minlength=len(column))
    place = np.zeros(len(column) + 1, np.int32)
    np.cumsum(count, out=place[1:])
    keys, values = segments(data, key[order], key_end[order]), segments(data, value[order], value_end[order])
    parts = [text(keys), values]
    if typed:
        names = pa.array(["", *KINDS], pa.string())
        parts.append(names.take(pa.array(np.clip(kinds[order], 0, len(KINDS)))))
    structs = pa.StructArray.from_arrays(parts, fields=list(kind.value_type))
    return pa.ListArray.from_arrays(pa.array(place), structs, type=kind, mask=pa.array(count == 0))


def identities(high: Words, low: Words) -> pa.Array:
    """Ids, which have 128 bits, as decimal text."""
    words = np.zeros((len(low), 4), np.uint64)
    words[:, 0], words[:, 1] = low, high
    return pa.Array.from_buffers(pa.decimal256(39, 0), len(low), [None, pa.py_buffer(words)]).cast(pa.string())
