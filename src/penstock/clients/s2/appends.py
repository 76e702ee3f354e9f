"""Appends to S2: records from columns, and the positions where S2 stored them. Knows the protobuf messages AppendInput
and AppendAck; no sockets and no Spark.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.buffers import Ints, join, lengths, offsets
from penstock.clients.s2.varints import read_varint, varint, varints
from penstock.errors import ProtocolError

MOST_RECORDS, MOST_BYTES = 1000, 1 << 20  # limits of the server for a batch; a record has the same limit of bytes


class Batch(NamedTuple):
    """Records of one AppendInput: `message` holds `records` of them, of rows up to `end`, to be stored from `at` on."""

    end: int
    records: int
    at: int
    message: bytes


@dataclass(frozen=True)
class Encoded:
    """Encoded records: each as a field of AppendInput, and its size as the server counts it."""

    data: pa.Array
    metered: Ints

    def __len__(self) -> int:
        return len(self.data)

    def part(self, low: int, high: int) -> "Encoded":
        """The records from `low` up to `high`."""
        return Encoded(self.data[low:high], self.metered[low:high])

    def joined(self) -> memoryview:
        """The bytes of all records."""
        at = np.frombuffer(self.data.buffers()[1], np.int32)[self.data.offset : self.data.offset + len(self.data) + 1]
        return memoryview(self.data.buffers()[2] or b"")[at[0] : at[-1]]


def encode(value: pa.Array, headers: "Headers | None" = None, timestamp: Ints | None = None) -> Encoded:
    """Records from columns: values without nulls, headers, and timestamps in milliseconds. Where a timestamp is
    negative, the server sets it.
    """
    size = lengths(value)
    metered = size + 8
    pieces: list[pa.Array | bytes] = []
    if timestamp is not None:
        moment = join(b"\x08", varints(np.maximum(timestamp, 0)))
        pieces.append(pc.if_else(pa.array(timestamp >= 0), moment, pa.scalar(b"", pa.binary())))
    if headers is not None:
        pieces.append(headers.data)
        metered = metered + headers.metered
    pieces += [b"\x1a", varints(size), value]
    body = join(*pieces)
    return Encoded(join(b"\x0a", varints(lengths(body)), body), metered)


class Headers(NamedTuple):
    """The headers of each record, as fields of AppendRecord, and their size as the server counts it."""

    data: pa.Array
    metered: Ints


def encode_headers(rows: int, row: Ints, name: pa.Array, value: pa.Array) -> Headers:
    """Encode headers from columns without nulls. `row` is the record of each header, ascending; `rows` counts the
    records.
    """
    a, b = lengths(name), lengths(value)
    inner = join(b"\x0a", varints(a), name, b"\x12", varints(b), value)
    fields = join(b"\x12", varints(lengths(inner)), inner)
    at = np.zeros(rows + 1, np.int32)
    np.cumsum(np.bincount(row, minlength=rows), out=at[1:])
    where = offsets(fields) if len(fields) else np.zeros(1, np.int64)
    edges = where[at].astype(np.int32)
    data = pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(edges), fields.buffers()[2]])
    return Headers(data, np.bincount(row, weights=a + b + 2, minlength=rows).astype(np.int64))


def with_header(record: bytes, name: bytes, value: bytes) -> bytes:
    """One record from `encode`, with one more header after its others."""
    _, low = read_varint(record, 1)
    body = record[low:]
    at = 0
    while at < len(body) and body[at] in (0x08, 0x12):
        tag = body[at]
        number, at = read_varint(body, at + 1)
        if tag == 0x12:
            at += number
    inner = b"\x0a" + varint(len(name)) + name + b"\x12" + varint(len(value)) + value
    body = body[:at] + b"\x12" + varint(len(inner)) + inner + body[at:]
    return b"\x0a" + varint(len(body)) + body


def append_input(records: bytes, match: int | None, token: bytes | None = None) -> bytes:
    """An AppendInput of encoded records. S2 refuses it unless the tail is `match` and the fencing token is `token`;
    None
    checks nothing.
    """
    if match is not None:
        records += b"\x10" + varint(match)
    return records if token is None else records + b"\x1a" + varint(len(token)) + token


def append_ack(data: bytes) -> tuple[int, int]:
    """The position of the first record, and the one after the last, from an AppendAck."""
    positions = {0x0A: 0, 0x12: 0, 0x1A: 0}  # start, end and tail
    at = 0
    try:
        while at < len(data):
            tag = data[at]
            size, low = read_varint(data, at + 1)
            at = low + size
            if tag not in positions or at > len(data):
                raise IndexError
            if size and data[low] == 0x08:
                positions[tag], after = read_varint(data, low + 1)
                if after > at:
                    raise IndexError
    except IndexError:
        raise ProtocolError(f"S2 answered an append with {data[:60]!r}, which says no positions.") from None
    first, end = positions[0x0A], positions[0x12]
    if not first <= end < 2**63:
        raise ProtocolError(f"S2 says that records were stored from {first} up to {end}.")
    return first, end
