"""Records that S2 sends, as columns. Knows the protobuf message ReadBatch; no sockets and no Spark.

All records of a message are read at once. Fields come in the order of their numbers, as protobuf writes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.buffers import Bytes, Ints, lengths, segments, text
from penstock.arrow.types import HEADERS
from penstock.clients.s2.varints import read_varint, read_varints
from penstock.errors import ProtocolError

# The last millisecond that Spark's timestamps can hold. A client may send any number.
_LAST = (2**63 - 1) // 1000


@dataclass(frozen=True)
class Records:
    """Records of a stream. `header_*` have a row for each header of each record; `header_row` is the record of each."""

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
        """The records of all parts, in order."""
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
        """The records for which `wanted` is true."""
        if wanted.all():
            return self
        rows, kept = pa.array(wanted), wanted[self.header_row]
        new_row = np.cumsum(wanted) - 1
        headers = pa.array(kept)
        return Records(
            self.sequence[wanted], self.timestamp[wanted], self.value.filter(rows), new_row[self.header_row[kept]],
            self.header_name.filter(headers), self.header_value.filter(headers),
        )  # fmt: skip

    def without(self, name: bytes) -> "Records":
        """The same records, without the headers called `name`."""
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
        """Which records are commands of S2, fence and trim: they have one header, with an empty name."""
        is_command = np.zeros(len(self), bool)
        if len(self.header_row):
            is_command[self.header_row[lengths(self.header_name) == 0]] = True
        return is_command

    def headers(self) -> pa.Array:
        """A `headers` column; null where a record has none."""
        if not len(self.header_row):
            return pa.nulls(len(self), HEADERS)
        count = np.bincount(self.header_row, minlength=len(self))
        at = np.zeros(len(self) + 1, np.int32)
        np.cumsum(count, out=at[1:])
        name, value = HEADERS.value_type
        structs = pa.StructArray.from_arrays([text(self.header_name), self.header_value], fields=[name, value])
        return pa.ListArray.from_arrays(pa.array(at), structs, type=HEADERS, mask=pa.array(count == 0))


def read_batch(data: bytes) -> Records:
    """The records of one or more ReadBatch messages, concatenated. Tails are left out. A timestamp that Spark cannot
    hold becomes the last that it can.
    """
    u = np.frombuffer(data, np.uint8)
    start, end = _find_records(u) or _walk_records(data)
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


def _find_records(u: Bytes) -> tuple[Ints, Ints] | None:
    """Where each record starts and ends, found with numpy; None where there is a doubt.

    A record starts with its tag, its length, and the tag of its position: bytes that are rare in text. All places that
    look so are candidates. If they follow each other without a gap, they are the records.
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


def _walk_records(data: bytes) -> tuple[Ints, Ints]:
    """Where each record starts and ends, found one after the other by their lengths."""
    starts, ends = [], []
    at, size = 0, len(data)
    try:
        while at < size:
            tag = data[at]
            length, at = read_varint(data, at + 1)
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


def _number(u: Bytes, at: Ints, end: Ints, tag: int) -> tuple[Ints, Ints]:
    """A field that is a number: the place after it, and its value; 0 where the field is left out."""
    present = (u.take(at, mode="clip") == tag) & (at < end)
    if present.all():
        value, after = read_varints(u, at + 1)
        return after, value
    value, after = np.zeros(len(at), np.int64), at.copy()
    value[present], after[present] = read_varints(u, at[present] + 1)
    return after, value


def _piece(u: Bytes, at: Ints, end: Ints, tag: int) -> tuple[Ints, Ints, Ints]:
    """A field that is bytes: the place after it, and where it starts and ends; empty where the field is left out.

    Its length is not checked. The caller must check that the last field ends where its message ends.
    """
    present = (u.take(at, mode="clip") == tag) & (at < end)
    if present.all():
        size, low = read_varints(u, at + 1)
        return low + size, low, low + size
    low, high = at.copy(), at.copy()
    size, low[present] = read_varints(u, at[present] + 1)
    high[present] = low[present] + size
    return high, low, high


def _headers(u: Bytes, at: Ints, end: Ints) -> tuple[Ints, Ints, tuple[Ints, Ints], tuple[Ints, Ints]]:
    """The place after the headers of each record; and for each header its record, and where its name and value are.

    Each round reads one header of every record that has another one.
    """
    rounds: list[tuple[Ints, ...]] = []
    at = at.copy()
    rows = np.flatnonzero((u.take(at, mode="clip") == 0x1A) & (at < end))
    while len(rows):
        size, low = read_varints(u, at[rows] + 1)
        high = low + size
        behind, *name = _piece(u, low, high, 0x0A)
        behind, *value = _piece(u, behind, high, 0x12)
        if (behind != high).any() or size.view(np.uint64).max() > len(u):
            bad = int(np.argmax((behind != high) | (size < 0) | (size > len(u))))
            raise ProtocolError(
                f"S2 sent a header at byte {int(at[rows][bad]):,} that says it has {int(size[bad]):,} bytes, which its "
                f"name and its value do not fill: they end after {int(behind[bad] - low[bad]):,}."
            )
        rounds.append((rows, *name, *value))
        at[rows] = high
        rows = rows[(u.take(high, mode="clip") == 0x1A) & (high < end[rows])]
    if not rounds:
        none = np.empty(0, np.int64)
        return at, none, (none, none), (none, none)
    row, name_start, name_end, value_start, value_end = (np.concatenate(column) for column in zip(*rounds, strict=True))
    order = np.argsort(row, kind="stable")
    names, values = (name_start[order], name_end[order]), (value_start[order], value_end[order])
    return at, row[order], names, values
