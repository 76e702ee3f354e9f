"""Header blocks of NATS messages: one by one, or a whole column at once. Knows no frames.

A block ends with an empty line. A publisher may leave it out, and servers store and deliver the block as it is. Then
only the headers of that message suffer: the text after the last whole line, and the last two bytes, where the empty
line would be, are no field. The server also takes the last two bytes for the empty line: when it adds fields to a
block, it overwrites them.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.arrow.buffers import Bytes, Ints, interleaved, offsets, text
from penstock.arrow.types import HEADER, HEADERS

_CR, _LF, _SPACE, _TAB, _COLON = 13, 10, 32, 9, 58
END = 2  # bytes of the empty line that ends a block


def fields(block: bytes) -> tuple[int, str, list[tuple[str, bytes]]]:
    """Status code, its text, and the fields of a header block. The code is 0 where there is none."""
    status = block.partition(b"\n")[0].partition(b" ")[2]
    code, _, text = status.strip().partition(b" ")
    pairs = []
    for line in block[:-END].split(b"\n")[1:-1]:
        key, colon, value = line.removesuffix(b"\r").partition(b":")
        if colon and key:
            pairs.append((key.decode(errors="replace"), value.lstrip(b" \t")))
    return int(code) if code.isdigit() and len(code) == 3 else 0, text.decode(errors="replace"), pairs


class Fields(NamedTuple):
    """The fields of many header blocks: all keys, all values, and how many fields each block has."""

    keys: pa.Array
    values: pa.Array
    counts: Ints

    def as_column(self) -> pa.Array:
        """A `headers` column; null where a block has no field."""
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
    # Not the first line of a block, a line that began in the block before, or the last two bytes.
    whole = (start > at[block]) & (newline < at[block + 1] - END)
    keep = np.flatnonzero(whole & (colon > start) & (colon < stop))
    start, stop, colon, block = start[keep], stop[keep], colon[keep], block[keep]
    value = colon + 1  # inside of the buffer: the line feed comes later
    value += _blank(u[value])
    if len(padded := np.flatnonzero(_blank(u[value]))):  # more than one blank before the value
        solid = np.flatnonzero(~_blank(u))
        value[padded] = solid[np.searchsorted(solid, value[padded])]
    counts = np.bincount(block, minlength=len(blocks)).astype(np.int64)
    keys, values = interleaved(data, start, colon, value, stop)
    return Fields(keys, values, counts)


def _blank(u: Bytes) -> npt.NDArray[np.bool_]:
    blank: npt.NDArray[np.bool_] = (u == _SPACE) | (u == _TAB)
    return blank


def headers_column(blocks: pa.Array | None, rows: int) -> pa.Array:
    """A `headers` column of so many rows; null for a message without headers. `blocks` is None where none has any."""
    return pa.nulls(rows, HEADERS) if blocks is None else all_fields(blocks).as_column()
