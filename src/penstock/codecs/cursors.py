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


MOST_EMPTY = 10_000  # items of a record that have no bytes at all
_OVER = 1 << 40  # a length that none has: the number has no end
_ONE = np.uint64(1)
_HIGH = np.uint64(0x8080808080808080)  # set in each byte that is not the last one of its number
_PAIRS = np.uint64(0x007F007F007F007F)
_FOURS = np.uint64(0x00003FFF00003FFF)
_EIGHTS = np.uint64(0x000000000FFFFFFF)
_LENGTHS = np.uint64(0x0102030405060708)  # times a bit of byte n: n + 1, in the highest byte


class Cursors:
    """A place in each record of a column of bytes. `rows` are the numbers of the records, also in a part of them.
    `room`: how many items each record may still have in its arrays.
    """

    def __init__(
        self, data: pa.Buffer, at: Ints, end: Ints, rows: Ints, errors: dict[int, str], room: Ints | None = None
    ):
        self.data, self.at, self.end, self.rows, self.errors, self.room = data, at, end, rows, errors, room
        self.bytes = np.frombuffer(data, np.uint8) if data.size else np.zeros(1, np.uint8)
        self._words: npt.NDArray[np.uint64] | None = None

    @classmethod
    def over(cls, values: pa.Array) -> "Cursors":
        """The first byte of each value of a binary array."""
        bounds = offsets(values) if len(values) else np.zeros(1, np.int64)
        data = values.buffers()[2] if len(values) and values.buffers()[2] is not None else pa.py_buffer(b"")
        room = np.diff(bounds) + MOST_EMPTY
        return cls(data, bounds[:-1].copy(), bounds[1:].copy(), np.arange(len(values)), {}, room)

    def __len__(self) -> int:
        return len(self.at)

    def part(self, indices: Ints) -> "Cursors":
        """Some of them, in their order. `join` brings them back."""
        if len(indices) == len(self):
            return Cursors(self.data, self.at, self.end, self.rows, self.errors, self.room)
        return Cursors(self.data, self.at[indices], self.end[indices], self.rows[indices], self.errors, self.room)

    def join(self, part: "Cursors", indices: Ints) -> None:
        """Go on where a part has come to."""
        if len(indices) == len(self):
            self.at = part.at
        else:
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
        short = self.end - self.at < count
        if not short.any():
            self.at = self.at + count
            return
        self.at = self.at + np.where(short, 0, count)
        self.fail(short, "breaks off")

    def claim(self, items: Ints) -> Mask:
        """Say how many items come in each record. One that claims more than it can have has an error, and is told."""
        assert self.room is not None
        np.subtract.at(self.room, self.rows, np.where((items < 0) | (items > _OVER), _OVER, items))
        is_endless = self.room[self.rows] < 0
        if is_endless.any():
            self.fail(is_endless, "has an array of more items than it has bytes")
        return is_endless

    def varint(self) -> npt.NDArray[np.uint64]:
        """A number of seven bits a byte, the lowest first."""
        first = self.bytes.take(self.at, mode="clip")
        long = np.flatnonzero(first >= 128)
        if not len(long):
            self.skip(1)
            return first.astype(np.uint64)
        if 2 * len(long) > len(self):  # to choose some of them would cost more than it saves
            value, length = self._long_varint(self.at, self.end)
        else:
            value, length = first.astype(np.uint64), np.ones(len(self), np.int64)
            value[long], length[long] = self._long_varint(self.at[long], self.end[long])
        over = length == _OVER
        if over.any():
            length[over] = 0
            self.fail(over, "has a number of more than ten bytes")
        self.skip(length)
        return value

    def _long_varint(self, at: Ints, end: Ints) -> tuple[npt.NDArray[np.uint64], Ints]:
        """Numbers of several bytes, and how many these are: more than are left where one breaks off. Eight bytes are
        looked at at once, in place of one after the other.
        """
        word = self._word(at)
        stops = ~word & _HIGH
        # The lowest bit that stands says how many bytes there are; where none does, they are more than eight.
        lowest = stops & (~stops + _ONE)
        length = (((lowest >> np.uint64(7)) * _LENGTHS) >> np.uint64(56)).view(np.int64)
        word &= lowest * np.uint64(2) - _ONE
        word &= ~_HIGH
        # Seven bits of each byte, side by side: first those of two bytes, then of four, then of all.
        word = (word & _PAIRS) | ((word & ~_PAIRS) >> _ONE)
        word = (word & _FOURS) | ((word & ~_FOURS) >> np.uint64(2))
        word = (word & _EIGHTS) | ((word & ~_EIGHTS) >> np.uint64(4))
        more = np.flatnonzero(stops == 0)
        if len(more):
            tail = self._word(at[more] + 8)
            low, high = tail & np.uint64(127), (tail >> np.uint64(8)) & np.uint64(127)
            is_nine = tail & np.uint64(128) == 0
            is_ten = tail & np.uint64(1 << 15) == 0
            word[more] |= low << np.uint64(56)
            word[more] |= np.where(is_nine, np.uint64(0), high << np.uint64(63))
            length[more] = np.where(is_nine, 9, np.where(is_ten, 10, np.where(end[more] - at[more] <= 10, 11, _OVER)))
        return word, length

    def _word(self, at: Ints) -> npt.NDArray[np.uint64]:
        """Eight bytes from each place on; what is behind the last one is as if there were zeros."""
        if self._words is None:
            octets = self.bytes if len(self.bytes) >= 8 else np.append(self.bytes, np.zeros(8, np.uint8))
            self._words = np.ndarray(len(octets) - 7, "<u8", octets, strides=(1,))
        last = len(self._words) - 1
        words: npt.NDArray[np.uint64] = self._words[np.minimum(at, last)]  # `take` would copy all of them first
        near = np.flatnonzero(at > last)
        if len(near):
            words[near] >>= (np.minimum(at[near] - last, 7) * 8).astype(np.uint64)
        return words

    def zigzag(self) -> Ints:
        """A number of seven bits a byte whose lowest bit is the sign."""
        value = self.varint()
        return (value >> _ONE).view(np.int64) ^ -(value & _ONE).view(np.int64)

    def fixed(self, width: int) -> npt.NDArray[np.uint8]:
        """As many bytes of each record: a row of the result for each."""
        at = self.at
        self.skip(width)
        if width <= 8:
            return self._word(at).view(np.uint8).reshape(-1, 8)[:, :width]
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


def map_of(counts: Ints, keys: pa.Array, values: pa.Array, type: pa.DataType) -> pa.Array:
    """Maps of so many entries each. Where a key comes twice, the last one counts: Spark's maps have it once."""
    row = np.repeat(np.arange(len(counts)), counts)
    key = keys.dictionary_encode().indices.to_numpy().astype(np.int64)
    entry = row * (len(key) + 1) + key
    if len(np.unique(entry)) < len(entry):
        _, last = np.unique(entry[::-1], return_index=True)
        kept = np.sort(len(entry) - 1 - last)
        counts = np.bincount(row[kept], minlength=len(counts)).astype(np.int64)
        keys, values = keys.take(pa.array(kept)), values.take(pa.array(kept))
    starts = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    return pa.MapArray.from_arrays(starts, keys, values, type=type)


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
    values = pa.concat_arrays([values.cast(pa.binary())])  # one that begins with its first byte
    present = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False)) if values.null_count else None
    rows, errors = read(values if present is None else values.take(pa.array(present)))
    arrays = list(rows.columns)
    if errors:
        said = pa.array([errors.get(number) for number in range(len(rows))], pa.string())
        arrays = [pc.if_else(said.is_null(), each, pa.nulls(len(rows), each.type)) for each in arrays]
    else:
        said = pa.nulls(len(rows), pa.string())
    arrays.append(said)
    if present is not None:
        arrays = [together([(present, each)], len(values), each.type) for each in arrays]
    return pa.StructArray.from_arrays(arrays, fields=[*rows.schema, pa.field(ERROR, pa.string())])
