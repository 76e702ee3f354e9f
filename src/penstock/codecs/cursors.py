"""Where a decoder is in each of many records, all moved at once. Knows numpy and Arrow; no format.

A record that breaks off, or has what cannot be, gets an error and is not read on. The others are.
"""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.buffers import offsets, segments
from penstock.codecs import ERROR

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Cursors:
    """A place in each record of a column of bytes. `rows` are the numbers of the records, also in a part of them."""

    def __init__(self, data: pa.Buffer, at: Ints, end: Ints, rows: Ints, errors: dict[int, str]):
        self.data, self.at, self.end, self.rows, self.errors = data, at, end, rows, errors
        self.bytes = np.frombuffer(data, np.uint8) if data.size else np.zeros(1, np.uint8)

    @classmethod
    def over(cls, values: pa.Array) -> "Cursors":
        """The first byte of each value of a binary array."""
        bounds = offsets(values) if len(values) else np.zeros(1, np.int64)
        data = values.buffers()[2] if len(values) and values.buffers()[2] is not None else pa.py_buffer(b"")
        return cls(data, bounds[:-1].copy(), bounds[1:].copy(), np.arange(len(values)), {})

    def __len__(self) -> int:
        return len(self.at)

    def part(self, indices: Ints) -> "Cursors":
        """Some of them, in their order. `join` brings them back."""
        return Cursors(self.data, self.at[indices], self.end[indices], self.rows[indices], self.errors)

    def join(self, part: "Cursors", indices: Ints) -> None:
        """Go on where a part has come to."""
        self.at[indices] = part.at

    def fail(self, where: Ints | Mask, why: str) -> None:
        """Give records an error, unless they have one, and go to their end."""
        for row in self.rows[where].tolist():
            self.errors.setdefault(row, why)
        self.at[where] = self.end[where]

    def failed(self) -> Mask:
        """Which records have an error."""
        if not self.errors:
            return np.zeros(len(self), np.bool_)
        return np.isin(self.rows, np.fromiter(self.errors, np.int64, len(self.errors)))

    def skip(self, count: Ints | int) -> None:
        """Go on by a number of bytes. Who has not so many left breaks off."""
        left = self.end - self.at
        short = left < count
        self.at = self.at + np.where(short, 0, count)
        if short.any():
            self.fail(short, "breaks off")

    def varint(self) -> npt.NDArray[np.uint64]:
        """A number of seven bits a byte, the lowest first."""
        last = len(self.bytes) - 1
        first = self.bytes[np.minimum(self.at, last)]
        value = (first & 127).astype(np.uint64)
        length = np.ones(len(self), np.int64)
        more = np.flatnonzero(first >= 128)
        for shift in range(7, 71, 7):
            short = self.at[more] + length[more] >= self.end[more]
            if short.any():
                length[more[short]] = 11  # more than it has
                more = more[~short]
            if not len(more):
                break
            if shift == 70:
                length[more] = 0
                self.fail(more, "has a number of more than ten bytes")
                break
            byte = self.bytes[np.minimum(self.at[more] + length[more], last)]
            value[more] |= (byte & 127).astype(np.uint64) << np.uint64(shift)
            length[more] += 1
            more = more[byte >= 128]
        self.skip(length)
        return value

    def zigzag(self) -> Ints:
        """A number of seven bits a byte whose lowest bit is the sign."""
        value = self.varint()
        return (value >> np.uint64(1)).astype(np.int64) ^ -(value & np.uint64(1)).astype(np.int64)

    def fixed(self, width: int) -> npt.NDArray[np.uint8]:
        """As many bytes of each record: a row of the result for each."""
        at = self.at
        self.skip(width)
        places = np.minimum(at[:, None] + np.arange(width), len(self.bytes) - 1)
        octets: npt.NDArray[np.uint8] = self.bytes[places]
        return octets

    def slices(self, length: Ints) -> pa.Array:
        """So many bytes of each record, as a binary array. A negative length is an error."""
        negative = length < 0
        if negative.any():
            self.fail(negative, "has a length below zero")
        before = self.at
        self.skip(np.where(negative, 0, length))
        start = np.where(self.at - before == length, before, self.at)
        return segments(self.data, start, self.at)

    def finish(self) -> Mapping[int, str]:
        """The errors by record. One that has bytes left is none of this schema."""
        left = np.flatnonzero(self.at < self.end)
        if len(left):
            self.fail(left, "goes on behind its last field")
        return self.errors


def together(parts: "list[tuple[Ints, pa.Array]]", count: int, kind: pa.DataType) -> pa.Array:
    """One array of arrays whose values belong at the given places. Places that none has are null."""
    parts = [(places, values) for places, values in parts if len(places)]
    if len(parts) == 1 and len(parts[0][0]) == count:
        return parts[0][1]
    if not parts:
        return pa.nulls(count, kind)
    order = np.full(count, -1, np.int64)
    places = np.concatenate([each for each, _ in parts])
    order[places] = np.arange(len(places))
    values = pa.concat_arrays([each for _, each in parts])
    return values.take(pa.array(order, mask=order < 0))


def utf8(cursors: Cursors, values: pa.Array) -> pa.Array:
    """Bytes as text. A record whose bytes are none has an error."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        valid = np.array([_is_text(value) for value in values.to_pylist()], np.bool_)
        cursors.fail(~valid, "has text that is not UTF-8")
        return pc.if_else(pa.array(valid), values, pa.scalar(b"", pa.binary())).cast(pa.string())


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def with_errors(values: pa.Array, read: Callable[[pa.Array], tuple[pa.RecordBatch, Mapping[int, str]]]) -> pa.Array:
    """A struct for each value: the columns that `read` gives, and `_error`. What has an error has no columns, and a
    null has neither.
    """
    values = pa.concat_arrays([values.cast(pa.binary())])
    present = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
    rows, errors = read(values if len(present) == len(values) else values.take(pa.array(present)))
    arrays = list(rows.columns)
    if errors:
        said = pa.array([errors.get(number) for number in range(len(rows))], pa.string())
        arrays = [pc.if_else(said.is_null(), each, pa.nulls(len(rows), each.type)) for each in arrays]
    else:
        said = pa.nulls(len(rows), pa.string())
    arrays.append(said)
    if len(present) != len(values):
        arrays = [together([(present, each)], len(values), each.type) for each in arrays]
    return pa.StructArray.from_arrays(arrays, fields=[*rows.schema, pa.field(ERROR, pa.string())])
