"""Pieces of a buffer as Arrow columns, with no Python statement per piece. Knows numpy and Arrow; no protocol.

Where pieces lie is often what a server says. Arrow believes any place, also one outside of the buffer, so each is
checked here, before an array is made of it.
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
_LARGEST = 2**31 - 1  # as far as an offset of Arrow reaches
_INDICES: dict[tuple[int, int], pa.Array] = {}


def segments(data: pa.Buffer, start: Ints, end: Ints) -> pa.Array:
    """A binary array of data[start[i]:end[i]], copied together. Where they do not ascend, or leave the buffer, it is
    a ProtocolError.
    """
    return interleaved(data, start, end)[0]


def interleaved(data: pa.Buffer, *bounds: Ints) -> list[pa.Array]:
    """The same for several pairs of start and end a row, which must ascend from pair to pair and row to row.

    A binary array over all pieces, wanted and not, is free; taking every k-th copies with one memcpy each.
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
    """The indices phase, phase + width, ...: the same ones again and again, so they are kept."""
    kept = _INDICES.get((width, phase))
    if kept is None or len(kept) < rows:
        most = max(rows, 8192)
        kept = _INDICES[width, phase] = pa.array(np.arange(phase, phase + most * width, width, dtype=np.int32))
    return kept[:rows]


def offsets(array: pa.Array) -> Ints:
    """Where the values of a binary array lie in its data."""
    return np.frombuffer(array.buffers()[1], np.int32, count=len(array) + 1).astype(np.int64)


def text(array: pa.Array) -> pa.Array:
    """A binary array as strings, as they are: the JVM takes any bytes, and names are nearly always ASCII."""
    return pa.Array.from_buffers(pa.string(), len(array), array.buffers())


def decimals(u: Bytes, end: Ints) -> Ints:
    """The whole number that ends before each `end`, of at most nine digits; one of more is a ProtocolError."""
    out = np.zeros(len(end), np.int64)
    alive: npt.NDArray[np.bool_] | None = None
    at = end
    for power in _POW:
        at = at - 1
        digit = u[at] - 48  # bytes wrap around: whatever is no digit is above 9
        some = digit < 10
        alive = some if alive is None else alive & some
        if not alive.any():
            break
        digit *= alive
        out += np.multiply(digit, power, dtype=np.int64)
    else:
        longer = u[at - 1] - 48 < 10
        if alive is not None and (alive & longer).any():
            last = int(end[np.argmax(alive & longer)])
            shown = bytes(u[max(0, last - 20) : last])
            raise ProtocolError(f"the server sent a number of more than nine digits: ...{shown!r}")
    return out


def parsed(column: pa.Array, kind: pa.DataType, what: str) -> pa.Array:
    """Text as numbers or times; `what` they are is for the error where one is not."""
    try:
        return text(column).cast(kind)
    except pa.ArrowInvalid as error:
        raise ProtocolError(f"the server sent {what} that is none: {str(error)[:200]}") from None


def grid(found: Ints, at: Ints) -> Ints | None:
    """The positions of a separator as a table, a row for each line that `at` bounds; None where lines differ."""
    width, odd = divmod(len(found), len(at) - 1)
    if odd or not width:
        return None
    table = found.reshape(-1, width)
    return table if (table[:, 0] >= at[:-1]).all() and (table[:, -1] < at[1:]).all() else None


def join(*pieces: pa.Array | bytes) -> pa.Array:
    """The pieces of each row, put together."""
    return pc.binary_join_element_wise(
        *(pa.scalar(p, pa.binary()) if isinstance(p, bytes) else p for p in pieces), _EMPTY
    )


def numbers(values: Ints) -> pa.Array:
    """Whole numbers as text."""
    return pa.array(values).cast(pa.string()).cast(pa.binary())


def lengths(column: pa.Array) -> Ints:
    """How many bytes each row has."""
    found: Ints = pc.binary_length(column).to_numpy().astype(np.int64)
    return found


def sizes(column: pa.Array) -> Ints:
    """About how many bytes each row takes, whatever the type; the same however the column is sliced."""
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return lengths(pc.fill_null(column, b"" if pa.types.is_binary(kind) else "")) + 4
    if pa.types.is_struct(kind):
        return sum((sizes(part) for part in column.flatten()), np.zeros(len(column), np.int64))
    if pa.types.is_list(kind):
        total = np.concatenate([[0], np.cumsum(sizes(column.flatten()))])
        end = np.cumsum(pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64))
        found: Ints = np.diff(total[end], prepend=0) + 4
        return found
    return np.full(len(column), max(1, kind.bit_width // 8), np.int64)


def cuts(size: Ints, most: int) -> list[tuple[int, int]]:
    """Rows of these sizes in runs of at most `most` bytes, from and to; a row that is larger has one of its own."""
    total, found, low = np.concatenate([[0], np.cumsum(size)]), [], 0
    while low < len(size):
        high = max(low + 1, int(np.searchsorted(total, total[low] + most, side="right")) - 1)
        found.append((low, high))
        low = high
    return found
