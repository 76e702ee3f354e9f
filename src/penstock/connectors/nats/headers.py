"""Header blocks of NATS messages: one by one, or all of a column at once. Knows no frames."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.columns import Ints, interleaved, offsets, text
from penstock.record import HEADER, HEADERS

_CR, _LF, _SPACE, _TAB, _COLON = 13, 10, 32, 9, 58


def fields(block: bytes) -> tuple[int, str, list[tuple[str, bytes]]]:
    """Status code (0: none), its text, and the fields of a header block."""
    first, *lines = (line.removesuffix(b"\r") for line in block.split(b"\n"))
    _, _, status = first.partition(b" ")
    code, _, text = status.strip().partition(b" ")
    found = []
    for line in lines:
        key, colon, value = line.partition(b":")
        if colon and key:
            found.append((key.decode(errors="replace"), value.lstrip(b" \t")))
    return int(code) if code.isdigit() else 0, text.decode(errors="replace"), found


class Fields(NamedTuple):
    """The fields of many header blocks: keys and values on end, and how many each block has."""

    keys: pa.Array
    values: pa.Array
    counts: Ints

    def as_column(self, drop_last: int = 0) -> pa.Array:
        """A `headers` column: null where a block has no field. `drop_last` fields of each block are left out."""
        ends = np.cumsum(self.counts)
        kept = np.maximum(self.counts - drop_last, 0)
        keys, values = self.keys, self.values
        if drop_last and len(keys):
            block = np.repeat(np.arange(len(ends)), self.counts)
            inside = np.arange(len(keys)) < (ends - (self.counts - kept))[block]
            chosen = pa.array(np.flatnonzero(inside))
            keys, values = keys.take(chosen), values.take(chosen)
        at = np.zeros(len(kept) + 1, np.int32)
        np.cumsum(kept, out=at[1:])
        structs = pa.StructArray.from_arrays([text(keys), values], fields=list(HEADER))
        valid = None if kept.all() else pa.py_buffer(np.packbits(kept > 0, bitorder="little"))
        return pa.Array.from_buffers(HEADERS, len(kept), [valid, pa.py_buffer(at)], children=[structs])


def all_fields(blocks: pa.Array) -> Fields:
    """`fields` of every block at once."""
    at = offsets(blocks)
    u = np.frombuffer(blocks.buffers()[2], np.uint8, count=int(at[-1]))
    newline = np.flatnonzero(u == _LF)
    if not len(newline):
        return Fields(pa.array([], pa.binary()), pa.array([], pa.binary()), np.zeros(len(blocks), np.int64))
    start = np.empty(len(newline), np.int64)
    start[0] = 0
    np.add(newline[:-1], 1, out=start[1:])
    stop = newline - (u[newline - 1] == _CR)
    block = np.searchsorted(at, start, side="right") - 1
    colons = np.append(np.flatnonzero(u == _COLON), len(u))
    colon = colons[np.searchsorted(colons, start)]
    keep = np.flatnonzero((start != at[block]) & (colon > start) & (colon < stop))
    start, stop, colon, block = start[keep], stop[keep], colon[keep], block[keep]
    value = colon + 1
    while len(
        blank := np.flatnonzero(
            (value < stop) & ((u[np.minimum(value, len(u) - 1)] == _SPACE) | (u[np.minimum(value, len(u) - 1)] == _TAB))
        )
    ):
        value[blank] += 1
    counts = np.bincount(block, minlength=len(blocks)).astype(np.int64)
    if not len(start):
        return Fields(pa.array([], pa.binary()), pa.array([], pa.binary()), counts)
    data = blocks.buffers()[2]
    keys, values = interleaved(data, start, colon, value, stop)
    return Fields(keys, values, counts)


def headers_column(blocks: pa.Array | None, rows: int) -> pa.Array:
    """The `headers` column: null for a message without any."""
    return pa.nulls(rows, HEADERS) if blocks is None else all_fields(blocks).as_column()
