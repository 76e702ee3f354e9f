"""Columns of bytes that become rows: numbers, groups of items, and all of a row joined. Knows numpy and Arrow; no
format.

A null is a value without bytes: whoever has nothing to write for a row leaves it out.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.buffers import lengths, offsets

Ints = npt.NDArray[np.int64]
EMPTY = pa.scalar(b"", pa.binary())


def joined(parts: "list[pa.Array | pa.Scalar]", rows: int) -> pa.Array:
    """The bytes of several columns, row by row. There may be no columns."""
    if not any(isinstance(part, pa.Array) for part in parts):
        return pa.repeat(EMPTY, rows)
    # "skip" would leave out rows where there is a single column.
    return pc.binary_join_element_wise(*parts, EMPTY, null_handling="replace", null_replacement="")


def varints(values: npt.NDArray[np.uint64]) -> pa.Array:
    """Numbers of seven bits a byte, the lowest first."""
    left = values
    digits = np.empty((len(left), 10), np.uint8)
    length = np.ones(len(left), np.int64)
    for place in range(10):
        digits[:, place] = left & np.uint64(127)
        left = left >> np.uint64(7)
        if not left.any():
            break
        more = left != 0
        digits[more, place] |= 128
        length += more
    width = int(length.max()) if len(length) else 1
    kept = digits[:, :width][np.arange(width) < length[:, None]]
    return array(kept, length)


def zigzag(values: Ints) -> npt.NDArray[np.uint64]:
    """Numbers with their sign in the lowest bit."""
    signed: npt.NDArray[np.uint64] = (values.astype(np.uint64) << np.uint64(1)) ^ (values >> np.int64(63)).astype(
        np.uint64
    )
    return signed


def array(data: npt.NDArray[np.uint8], widths: Ints) -> pa.Array:
    """Bytes that lie side by side, so many for each row."""
    starts = np.concatenate([[0], np.cumsum(widths)]).astype(np.int32)
    buffers = [None, pa.py_buffer(starts), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), len(widths), buffers)


def fixed(rows: npt.NDArray[np.uint8]) -> pa.Array:
    """As many bytes for each row."""
    return array(rows.ravel(), np.full(len(rows), rows.shape[1], np.int64))


def sized(values: pa.Array) -> pa.Array:
    """Bytes with their number in front. A null stays one."""
    sizes = varints(lengths(pc.fill_null(values, b"")).astype(np.uint64))
    return pc.binary_join_element_wise(sizes, values, EMPTY)


def grouped(items: pa.Array, counts: Ints) -> pa.Array:
    """The items of each row, joined. They lie side by side already, so a group is only another offset."""
    starts = np.concatenate([[0], np.cumsum(counts)])
    if not len(items):
        return pa.repeat(EMPTY, len(counts))
    whole = pa.concat_arrays([items])
    bounds = offsets(whole)[starts].astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(counts), [None, pa.py_buffer(bounds), whole.buffers()[2]])


def listed(column: pa.Array) -> pa.Array:
    """A list for each row; of a map, its entries."""
    if not pa.types.is_map(column.type):
        return column
    return column.cast(pa.list_(pa.struct([("key", column.type.key_type), ("value", column.type.item_type)])))


def counts(lists: pa.Array) -> Ints:
    """How many items each list has. A null has none."""
    numbers: Ints = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    return numbers


def spread(values: pa.Array, places: Ints, rows: int) -> pa.Array:
    """Values at their places of so many rows; the others are null."""
    if not len(places):
        return pa.nulls(rows, values.type)
    order = np.full(rows, -1, np.int64)
    order[places] = np.arange(len(places))
    return values.take(pa.array(order, mask=order < 0))
