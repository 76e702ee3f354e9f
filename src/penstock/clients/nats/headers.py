"""Header blocks of NATS messages: one by one, or all of a column at once. Knows no frames.

A block ends with an empty line. A publisher may have left that out, and servers store and deliver what they get. Its
message costs only itself: what lies behind the last whole line, or in the last two bytes, where the empty line would
be, is no field. The server takes those two bytes for the end as well: what it adds to a block comes in their place.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.arrow.buffers import Bytes, Ints, interleaved, offsets, text
from penstock.arrow.types import HEADER, HEADERS

_CR, _LF, _SPACE, _TAB, _COLON = 13, 10, 32, 9, 58
END = 2  # of each block: its empty line


def fields(block: bytes) -> tuple[int, str, list[tuple[str, bytes]]]:
    """Status code (0: none), its text, and the fields of a header block."""
    status = block.partition(b"\n")[0].partition(b" ")[2]
    code, _, text = status.strip().partition(b" ")
    found = []
    for line in block[:-END].split(b"\n")[1:-1]:
        key, colon, value = line.removesuffix(b"\r").partition(b":")
        if colon and key:
            found.append((key.decode(errors="replace"), value.lstrip(b" \t")))
    return int(code) if code.isdigit() and len(code) == 3 else 0, text.decode(errors="replace"), found


class Fields(NamedTuple):
    """The fields of many header blocks: keys and values on end, and how many each block has."""

    keys: pa.Array
    values: pa.Array
    counts: Ints

    def as_column(self) -> pa.Array:
        """A `headers` column: null where a block has no field."""
        at = np.zeros(len(self.counts) + 1, np.int32)
        np.cumsum(self.counts, out=at[1:])
        structs = pa.StructArray.from_arrays([text(self.keys), self.values], fields=list(HEADER))
        valid = None if self.counts.all() else pa.py_buffer(np.packbits(self.counts > 0, bitorder="little"))
        return pa.Array.from_buffers(HEADERS, len(self.counts), [valid, pa.py_buffer(at)], children=[structs])


def all_fields(blocks: pa.Array) -> Fields:
    """`fields` of every block at once."""
    at = offsets(blocks)
    data = blocks.buffers()[2]
    u = np.frombuffer(data, np.uint8, count=int(at[-1])) if at[-1] else np.empty(0, np.uint8)
    newline = np.flatnonzero(u == _LF)
    start = np.empty(len(newline), np.int64)
    start[:1] = 0
    np.add(newline[:-1], 1, out=start[1:])
    stop = newline - (u[newline - 1] == _CR)
    block = np.searchsorted(at, newline, side="right") - 1
    colons = np.append(np.flatnonzero(u == _COLON), len(u))
    colon = colons[np.searchsorted(colons, start)]
    # Not the first line of a block, nor one that began in the block before, nor the last two bytes.
    whole = (start > at[block]) & (newline < at[block + 1] - END)
    keep = np.flatnonzero(whole & (colon > start) & (colon < stop))
    start, stop, colon, block = start[keep], stop[keep], colon[keep], block[keep]
    value = colon + 1  # behind it is the end of the line at the latest, which is no blank
    value += _blank(u[value])
    if len(more := np.flatnonzero(_blank(u[value]))):
        solid = np.flatnonzero(~_blank(u))
        value[more] = solid[np.searchsorted(solid, value[more])]
    counts = np.bincount(block, minlength=len(blocks)).astype(np.int64)
    keys, values = interleaved(data, start, colon, value, stop)
    return Fields(keys, values, counts)


def _blank(u: Bytes) -> npt.NDArray[np.bool_]:
    blank: npt.NDArray[np.bool_] = (u == _SPACE) | (u == _TAB)
    return blank


def headers_column(blocks: pa.Array | None, rows: int) -> pa.Array:
    """The `headers` column: null for a message without any."""
    return pa.nulls(rows, HEADERS) if blocks is None else all_fields(blocks).as_column()
