"""S2's frames and messages, to and from columns. Pure: knows no sockets and no Spark.

A session is a row of frames: three bytes of length, a byte of flags, and a protobuf message. Messages are read and made
for all records at once; fields come in the order of their numbers, as protobuf writes them.
"""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.buffers import Bytes, Ints, join, lengths, offsets, segments, text
from penstock.arrow.types import HEADERS
from penstock.clients.answers import an_object
from penstock.errors import OptionError, ProtocolError

MOST_RECORDS, MOST_BYTES = 1000, 1 << 20  # of a batch, and of a record: the server's own limits
_TERMINAL, _ZSTD, _GZIP = 0x80, 0x20, 0x40
# Smaller messages are not worth the effort; larger ones than this S2 does not make.
_SMALL, _LARGE = 1024, 4 << 20
# The last moment that has a place among Spark's microseconds: a client may have chosen any.
_LAST = (2**63 - 1) // 1000


class Frame(NamedTuple):
    """One message of a session; the last one of a session that failed has the reason in it."""

    body: bytes
    terminal: bool


class Batch(NamedTuple):
    """What is sent at once: rows up to `end`, as a message, and where they begin in the stream."""

    end: int
    records: int
    at: int
    message: bytes


class Failure(NamedTuple):
    """Why a session ended."""

    status: int
    answer: dict[str, Any]


@dataclass(frozen=True)
class Records:
    """Records that were read. `header_*` are of all headers of all records, `header_row` says whose they are."""

    sequence: Ints
    timestamp: Ints  # milliseconds
    value: pa.Array
    header_row: Ints
    header_name: pa.Array
    header_value: pa.Array

    def __len__(self) -> int:
        return len(self.sequence)

    @classmethod
    def joined(cls, parts: "Sequence[Records]") -> "Records":
        """Several of them, one behind the other."""
        if len(parts) == 1:
            return parts[0]
        first = np.cumsum([0, *(len(part) for part in parts)])
        return cls(
            np.concatenate([part.sequence for part in parts]),
            np.concatenate([part.timestamp for part in parts]),
            pa.concat_arrays([part.value for part in parts]),
            np.concatenate([part.header_row + at for part, at in zip(parts, first, strict=False)]),
            pa.concat_arrays([part.header_name for part in parts]),
            pa.concat_arrays([part.header_value for part in parts]),
        )

    def where(self, wanted: npt.NDArray[np.bool_]) -> "Records":
        """Some of the records."""
        if wanted.all():
            return self
        rows, kept = pa.array(wanted), wanted[self.header_row]
        place = np.cumsum(wanted) - 1
        headers = pa.array(kept)
        return Records(
            self.sequence[wanted], self.timestamp[wanted], self.value.filter(rows), place[self.header_row[kept]],
            self.header_name.filter(headers), self.header_value.filter(headers),
        )  # fmt: skip

    def without(self, name: bytes) -> "Records":
        """The same records without the headers of a name."""
        if not len(self.header_row):
            return self
        kept = np.asarray(pc.not_equal(self.header_name, name))
        if kept.all():
            return self
        headers = pa.array(kept)
        return replace(
            self,
            header_row=self.header_row[kept],
            header_name=self.header_name.filter(headers),
            header_value=self.header_value.filter(headers),
        )

    def commands(self) -> npt.NDArray[np.bool_]:
        """Which ones are fence and trim records: they have one header, without a name."""
        found = np.zeros(len(self), bool)
        if len(self.header_row):
            found[self.header_row[lengths(self.header_name) == 0]] = True
        return found

    def headers(self) -> pa.Array:
        """The headers of each record as a list, null where there are none."""
        if not len(self.header_row):
            return pa.nulls(len(self), HEADERS)
        count = np.bincount(self.header_row, minlength=len(self))
        at = np.zeros(len(self) + 1, np.int32)
        np.cumsum(count, out=at[1:])
        name, value = HEADERS.value_type
        both = pa.StructArray.from_arrays([text(self.header_name), self.header_value], fields=[name, value])
        return pa.ListArray.from_arrays(pa.array(at), both, type=HEADERS, mask=pa.array(count == 0))


class Deframer:
    """Bytes of a session, in any pieces, into its frames."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete with `data`."""
        data, at = self._rest + data if self._rest else data, 0
        while len(data) - at >= 4:
            end = at + 3 + int.from_bytes(data[at : at + 3], "big")
            if not at + 4 <= end <= at + 4 + _LARGE:
                raise ProtocolError(
                    f"S2 sent a frame of {end - at - 3:,} bytes, beginning with {data[at : at + 20]!r}."
                )
            if end > len(data):
                break
            flags, body = data[at + 3], data[at + 4 : end]
            yield Frame(_decompress(body, flags), bool(flags & _TERMINAL))
            at = end
        self._rest = data[at:]

    @property
    def complete(self) -> bool:
        """Whether nothing of a frame is left over."""
        return not self._rest


def failure(frame: Frame) -> Failure:
    """What a terminal frame says."""
    try:
        answer = an_object(frame.body[2:] or b"{}", "S2")
    except ProtocolError:
        answer = {"message": frame.body[2:100].decode(errors="replace")}
    return Failure(int.from_bytes(frame.body[:2], "big"), answer)


def frame(body: bytes, compression: str = "none") -> bytes:
    """A message as a frame."""
    flags = 0
    if compression != "none" and len(body) >= _SMALL:
        flags, body = (
            (_ZSTD, _zstd().ZstdCompressor().compress(body))
            if compression == "zstd"
            else (
                _GZIP,
                gzip.compress(body, 1),
            )
        )
    return (len(body) + 1).to_bytes(3, "big") + bytes([flags]) + body


def _decompress(body: bytes, flags: int) -> bytes:
    if not flags & (_ZSTD | _GZIP):
        return body
    found = _from_zstd(body) if flags & _ZSTD else _from_gzip(body)
    if found is None:
        how = "zstd" if flags & _ZSTD else "gzip"
        raise ProtocolError(f"S2 sent {len(body):,} bytes that are no {how} of at most {_LARGE:,}: {body[:20]!r}.")
    return found


def _from_zstd(body: bytes) -> bytes | None:
    zstd = _zstd()
    try:
        if zstd.frame_content_size(body) > _LARGE:
            return None
        found: bytes = zstd.ZstdDecompressor().decompress(body, max_output_size=_LARGE)
        return found
    except zstd.ZstdError:
        return None


def _from_gzip(body: bytes) -> bytes | None:
    whole = zlib.decompressobj(wbits=31)
    try:
        found = whole.decompress(body, _LARGE)
    except zlib.error:
        return None
    return found if whole.eof else None


def _zstd() -> Any:
    try:
        import zstandard
    except ImportError:
        raise OptionError("compression=zstd needs the extra: pip install 'penstock[s2]'") from None
    return zstandard


# Reading


def read_batch(data: bytes) -> Records:
    """The records of one or more ReadBatch messages, one behind the other; their tails are left out."""
    u = np.frombuffer(data, np.uint8)
    start, end = _at_a_glance(u) or _one_by_one(data)
    if not len(start):
        empty = pa.array([], pa.binary())
        return Records(start, start, empty, start, empty, empty)
    at, sequence = _number(u, start, end, 0x08)
    at, timestamp = _number(u, at, end, 0x10)
    at, rows, names, values = _headers(u, at, end)
    at, low, high = _piece(u, at, end, 0x22)
    if (at != end).any() or sequence.view(np.uint64).max() > _LAST:
        bad = int(np.argmax((at != end) | (sequence < 0) | (sequence > _LAST)))
        raise ProtocolError(
            f"S2 sent record {int(sequence[bad])}, number {bad} of {len(at)}, with fields that this Penstock does not "
            f"know at byte {int(at[bad] - start[bad])} of {int(end[bad] - start[bad])}."
        )
    if timestamp.view(np.uint64).max() > _LAST:
        timestamp = np.where(timestamp < 0, _LAST, np.minimum(timestamp, _LAST))
    buffer = pa.py_buffer(data)
    return Records(
        sequence, timestamp, segments(buffer, low, high), rows, segments(buffer, *names), segments(buffer, *values)
    )


def _at_a_glance(u: Bytes) -> tuple[Ints, Ints] | None:
    """Where the records lie, if all that looks like the beginning of one is one, and nothing is between them.

    A record begins with its tag, its length, and the tag of its number, two bytes that text has not. That those found
    follow each other without a gap proves that they are the records.
    """
    at = np.flatnonzero(u[: max(0, len(u) - 4)] == 0x0A)
    one, two, three = (u[at + i].astype(np.int64) for i in (1, 2, 3))
    size = np.where(
        one < 128, one, np.where(two < 128, (one & 127) | two << 7, (one & 127) | (two & 127) << 7 | three << 14)
    )
    start = at + 2 + (one > 127) + ((one > 127) & (two > 127))
    likely = (u[np.minimum(start, len(u) - 1)] == 0x08) & ((one < 128) | (two < 128) | (three < 128))
    at, start, end = at[likely], start[likely], (start + size)[likely]
    if not len(at) or at[0] != 0 or end[-1] != len(u) or (end[:-1] != at[1:]).any():
        return None
    return start, end


def _one_by_one(data: bytes) -> tuple[Ints, Ints]:
    """Where the records lie: their lengths lead from one to the next."""
    starts, ends = [], []
    at, size = 0, len(data)
    try:
        while at < size:
            tag = data[at]
            length, at = _varint_at(data, at + 1)
            if tag == 10:
                starts.append(at)
                at += length
                ends.append(at)
            elif tag == 18:
                at += length
            else:
                raise ProtocolError(f"S2 sent a field {tag} at byte {at:,} of {size:,} that no batch of records has.")
    except IndexError:
        at = size + 1
    if at > size:
        raise ProtocolError(f"S2 sent {size:,} bytes of records that are cut off in or behind record {len(ends)}.")
    return np.array(starts, np.int64), np.array(ends, np.int64)


def _varint(u: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """The number at each place, and the place behind it. One of 64 bits is negative."""
    byte = u.take(at, mode="clip").astype(np.int64)
    value, at, shift = byte & 127, at + 1, 7
    more = byte > 127
    while more.any():
        byte = np.where(more, u.take(at, mode="clip"), 0).astype(np.int64)
        value |= (byte & 127) << shift
        at = at + more
        if shift > 56 and (byte > 1).any():
            raise ProtocolError(f"S2 sent a number of more than 64 bits before byte {int(at[np.argmax(byte > 1)]):,}.")
        more, shift = byte > 127, shift + 7
    return value, at


def _number(u: Bytes, at: Ints, end: Ints, tag: int) -> tuple[Ints, Ints]:
    """A field that is a number; left out, it is 0."""
    there = (u.take(at, mode="clip") == tag) & (at < end)
    if there.all():
        value, after = _varint(u, at + 1)
        return after, value
    value, after = np.zeros(len(at), np.int64), at.copy()
    value[there], after[there] = _varint(u, at[there] + 1)
    return after, value


def _piece(u: Bytes, at: Ints, end: Ints, tag: int) -> tuple[Ints, Ints, Ints]:
    """A field that is bytes: the place behind it, and where it begins and ends; left out, it is empty.

    Its length may lie: whoever asks must find that the last field of what holds it ends where that does.
    """
    there = (u.take(at, mode="clip") == tag) & (at < end)
    if there.all():
        size, low = _varint(u, at + 1)
        return low + size, low, low + size
    low, high = at.copy(), at.copy()
    size, low[there] = _varint(u, at[there] + 1)
    high[there] = low[there] + size
    return high, low, high


def _headers(u: Bytes, at: Ints, end: Ints) -> tuple[Ints, Ints, tuple[Ints, Ints], tuple[Ints, Ints]]:
    """The place behind the headers of each record; and of each header its row, and where name and value lie."""
    found: list[tuple[Ints, ...]] = []
    at = at.copy()
    rows = np.flatnonzero((u.take(at, mode="clip") == 0x1A) & (at < end))
    while len(rows):
        size, low = _varint(u, at[rows] + 1)
        high = low + size
        behind, *name = _piece(u, low, high, 0x0A)
        behind, *value = _piece(u, behind, high, 0x12)
        if (behind != high).any() or size.view(np.uint64).max() > len(u):
            bad = int(np.argmax((behind != high) | (size < 0) | (size > len(u))))
            raise ProtocolError(
                f"S2 sent a header at byte {int(at[rows][bad]):,} that says it has {int(size[bad]):,} bytes, which its "
                f"name and its value do not fill: they end after {int(behind[bad] - low[bad]):,}."
            )
        found.append((rows, *name, *value))
        at[rows] = high
        rows = rows[(u.take(high, mode="clip") == 0x1A) & (high < end[rows])]
    if not found:
        none = np.empty(0, np.int64)
        return at, none, (none, none), (none, none)
    row, a, b, c, d = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.argsort(row, kind="stable")
    return at, row[order], (a[order], b[order]), (c[order], d[order])


# Writing


@dataclass(frozen=True)
class Encoded:
    """Records ready to be sent: each as a field of AppendInput, and what the server counts it for."""

    data: pa.Array
    metered: Ints

    def __len__(self) -> int:
        return len(self.data)

    def part(self, low: int, high: int) -> "Encoded":
        """Some of them."""
        return Encoded(self.data[low:high], self.metered[low:high])

    def joined(self) -> memoryview:
        """All of them, one behind the other."""
        at = np.frombuffer(self.data.buffers()[1], np.int32)[self.data.offset : self.data.offset + len(self.data) + 1]
        return memoryview(self.data.buffers()[2] or b"")[at[0] : at[-1]]


def encode(value: pa.Array, headers: "Headers | None" = None, timestamp: Ints | None = None) -> Encoded:
    """Records from columns: bodies without nulls, headers, and milliseconds; a negative one is left to the server."""
    size = lengths(value)
    metered = size + 8
    pieces: list[pa.Array | bytes] = []
    if timestamp is not None:
        moment = join(b"\x08", _varints(np.maximum(timestamp, 0)))
        pieces.append(pc.if_else(pa.array(timestamp >= 0), moment, pa.scalar(b"", pa.binary())))
    if headers is not None:
        pieces.append(headers.data)
        metered = metered + headers.metered
    pieces += [b"\x1a", _varints(size), value]
    body = join(*pieces)
    return Encoded(join(b"\x0a", _varints(lengths(body)), body), metered)


class Headers(NamedTuple):
    """The headers of each record, as fields of AppendRecord, and what the server counts them for."""

    data: pa.Array
    metered: Ints


def encode_headers(rows: int, row: Ints, name: pa.Array, value: pa.Array) -> Headers:
    """Headers from columns: `row` says whose each is, in ascending order. No nulls."""
    a, b = lengths(name), lengths(value)
    inner = join(b"\x0a", _varints(a), name, b"\x12", _varints(b), value)
    fields = join(b"\x12", _varints(lengths(inner)), inner)
    at = np.zeros(rows + 1, np.int32)
    np.cumsum(np.bincount(row, minlength=rows), out=at[1:])
    where = offsets(fields) if len(fields) else np.zeros(1, np.int64)
    edges = where[at].astype(np.int32)
    data = pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(edges), fields.buffers()[2]])
    return Headers(data, np.bincount(row, weights=a + b + 2, minlength=rows).astype(np.int64))


def with_header(record: bytes, name: bytes, value: bytes) -> bytes:
    """One record, as `encode` made it, with one more header behind its others."""
    _, low = _varint_at(record, 1)
    body = record[low:]
    at = 0
    while at < len(body) and body[at] in (0x08, 0x12):
        tag = body[at]
        number, at = _varint_at(body, at + 1)
        if tag == 0x12:
            at += number
    inner = b"\x0a" + varint(len(name)) + name + b"\x12" + varint(len(value)) + value
    body = body[:at] + b"\x12" + varint(len(inner)) + inner + body[at:]
    return b"\x0a" + varint(len(body)) + body


def append_input(records: bytes, match: int | None, token: bytes | None = None) -> bytes:
    """An AppendInput of records that are encoded, where they must begin, and the token that must be in force."""
    if match is not None:
        records += b"\x10" + varint(match)
    return records if token is None else records + b"\x1a" + varint(len(token)) + token


def append_ack(data: bytes) -> tuple[int, int]:
    """The first position that an AppendAck tells, and the one behind its last."""
    found = {0x0A: 0, 0x12: 0, 0x1A: 0}
    at = 0
    try:
        while at < len(data):
            tag = data[at]
            size, low = _varint_at(data, at + 1)
            at = low + size
            if tag not in found or at > len(data):
                raise IndexError
            if size and data[low] == 0x08:
                found[tag], behind = _varint_at(data, low + 1)
                if behind > at:
                    raise IndexError
    except IndexError:
        raise ProtocolError(f"S2 answered an append with {data[:60]!r}, which says no positions.") from None
    if not found[0x0A] <= found[0x12] < 2**63:
        raise ProtocolError(f"S2 says that records were stored from {found[0x0A]} up to {found[0x12]}.")
    return found[0x0A], found[0x12]


def varint(number: int) -> bytes:
    """A whole number as protobuf writes it."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _varint_at(data: bytes, at: int) -> tuple[int, int]:
    """One number, and the place behind it; an IndexError where it is cut off or has no end."""
    number = shift = 0
    while True:
        byte, at = data[at], at + 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
        if shift > 63:
            raise IndexError


def _varints(values: Ints) -> pa.Array:
    """The same for a column; few numbers are different."""
    different, place = np.unique(values, return_inverse=True)
    return pa.array([varint(int(number)) for number in different], pa.binary()).take(pa.array(place))
