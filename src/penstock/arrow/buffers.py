"""Slices of a byte buffer as Arrow columns, with no Python statement per slice. Knows numpy and Arrow; no protocol.

The bounds of a slice often come from a server. Arrow does not check them, not even against the size of the buffer. So
all bounds are checked here, before an array is made.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ProtocolError

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_POW = 10 ** np.arange(9, dtype=np.int64)
_EMPTY = pa.scalar(b"", pa.binary())
_LARGEST = 2**31 - 1  # the largest offset in an Arrow binary array
_INDICES: dict[tuple[int, int], pa.Array] = {}


def segments(data: pa.Buffer, start: Ints, end: Ints) -> pa.Array:
    """A binary array of data[start[i]:end[i]], copied. Slices that overlap, go backwards or leave the buffer are a
    ProtocolError.
    """
    return interleaved(data, start, end)[0]


def interleaved(data: pa.Buffer, *bounds: Ints) -> list[pa.Array]:
    """Like `segments`, with several slices per row: `bounds` are start, end, start, end, ... One array per pair.

    Bounds must ascend within a row and from row to row. An array over all pieces, slices and what lies between them,
    costs no copy; then `take` copies each slice with one memcpy.
    """
    rows, width = len(bounds[0]), len(bounds)
    if not rows:
        return [pa.array([], pa.binary())] * (width // 2)
    last = bounds[-1][-1]
    fits = bounds[0][0] >= 0 and last <= min(data.size, _LARGEST)
    edges = np.empty(rows * width + 1, np.int32)
    for k, bound in enumerate(bounds):
        edges[k : rows * width : width] = bound
    edges[-1] = last if fits else 0
    if (edges[:-1] > edges[1:]).any() or not fits:
        raise _outside(data.size, np.stack(bounds, axis=1))
    pieces = pa.Array.from_buffers(pa.binary(), rows * width, [None, pa.py_buffer(edges), data])
    unchecked = pc.TakeOptions(boundscheck=False)
    return [pc.call_function("take", [pieces, _every(width, k, rows)], unchecked) for k in range(0, width, 2)]


def _outside(size: int, bounds: Ints) -> ProtocolError:
    edges = np.concatenate([[0], bounds.ravel(), [size]])
    bad = int(np.argmax(np.diff(edges) < 0))
    row = min(bad // bounds.shape[1], len(bounds) - 1)
    return ProtocolError(
        f"the server sent {size:,} bytes whose lengths do not fit: behind byte {edges[bad]:,} comes byte "
        f"{edges[bad + 1]:,}, in part {row} of {len(bounds)}."
    )


def _every(width: int, phase: int, rows: int) -> pa.Array:
    """The indices phase, phase + width, phase + 2 * width, ... They are cached: the same ones are needed for each
    buffer.
    """
    indices = _INDICES.get((width, phase))
    if indices is None or len(indices) < rows:
        count = max(rows, 8192)
        indices = _INDICES[width, phase] = pa.array(np.arange(phase, phase + count * width, width, dtype=np.int32))
    return indices[:rows]


def offsets(array: pa.Array) -> Ints:
    """The offsets of a binary array: value i is data[offsets[i]:offsets[i + 1]]."""
    return np.frombuffer(array.buffers()[1], np.int32, count=len(array) + 1).astype(np.int64)


def text(array: pa.Array) -> pa.Array:
    """A binary array as strings, not checked for UTF-8: the JVM takes any bytes, and names are nearly always ASCII."""
    return pa.Array.from_buffers(pa.string(), len(array), array.buffers())


def decimals(u: Bytes, end: Ints) -> Ints:
    """The decimal number that ends before each `end`; 0 where there is no digit. More than nine digits are a
    ProtocolError.
    """
    out = np.zeros(len(end), np.int64)
    in_number: npt.NDArray[np.bool_] | None = None  # rows with nothing but digits so far, from the end
    at = end
    for power in _POW:
        at = at - 1
        digit = u[at] - 48  # bytes wrap around: whatever is no digit is above 9
        is_digit = digit < 10
        in_number = is_digit if in_number is None else in_number & is_digit
        if not in_number.any():
            break
        digit *= in_number
        out += np.multiply(digit, power, dtype=np.int64)
    else:
        longer = u[at - 1] - 48 < 10
        if in_number is not None and (in_number & longer).any():
            last = int(end[np.argmax(in_number & longer)])
            shown = bytes(u[max(0, last - 20) : last])
            raise ProtocolError(f"the server sent a number of more than nine digits: ...{shown!r}")
    return out


def parsed(column: pa.Array, kind: pa.DataType, what: str) -> pa.Array:
    """Text cast to numbers or times. A ProtocolError names `what` was expected where a value is not one."""
    try:
        return text(column).cast(kind)
    except pa.ArrowInvalid as error:
        raise ProtocolError(f"the server sent {what} that is none: {str(error)[:200]}") from None


def grid(separators: Ints, bounds: Ints) -> Ints | None:
    """The positions of separators as a table with a row per line, where `bounds` are the edges of the lines. None where
    not all lines have the same number of them.
    """
    width, odd = divmod(len(separators), len(bounds) - 1)
    if odd or not width:
        return None
    table = separators.reshape(-1, width)
    if (table[:, 0] >= bounds[:-1]).all() and (table[:, -1] < bounds[1:]).all():
        return table
    return None


def join(*pieces: pa.Array | bytes) -> pa.Array:
    """The pieces of each row, concatenated; `bytes` are the same in every row."""
    return pc.binary_join_element_wise(
        *(pa.scalar(p, pa.binary()) if isinstance(p, bytes) else p for p in pieces), _EMPTY
    )


def numbers(values: Ints) -> pa.Array:
    """Whole numbers as decimal text, in a binary array."""
    return pa.array(values).cast(pa.string()).cast(pa.binary())


def lengths(column: pa.Array) -> Ints:
    """The length of each value in bytes."""
    counts: Ints = pc.binary_length(column).to_numpy().astype(np.int64)
    return counts


def sizes(column: pa.Array) -> Ints:
    """About how many bytes each row takes, of any type. Slicing the column does not change it."""
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return lengths(pc.fill_null(column, b"" if pa.types.is_binary(kind) else "")) + 4
    if pa.types.is_struct(kind):
        return sum((sizes(part) for part in column.flatten()), np.zeros(len(column), np.int64))
    if pa.types.is_list(kind):
        total = np.concatenate([[0], np.cumsum(sizes(column.flatten()))])
        end = np.cumsum(pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64))
        row_sizes: Ints = np.diff(total[end], prepend=0) + 4
        return row_sizes
    return np.full(len(column), max(1, kind.bit_width // 8), np.int64)


def cuts(size: Ints, most: int) -> list[tuple[int, int]]:
    """Row ranges (first, next) of at most `most` bytes each. A row larger than that is a range of its own."""
    total = np.concatenate([[0], np.cumsum(size)])
    ranges, low = [], 0
    while low < len(size):
        high = max(low + 1, int(np.searchsorted(total, total[low] + most, side="right")) - 1)
        ranges.append((low, high))
        low = high
    return ranges
