"""NATS frames, without I/O: one by one, exactly; or all of a buffer at once, into columns.

The columns come from vectors, with no Python statement per message. Every frame start is guessed at
once (a newline followed by 'MSG ' or 'HMSG '), the sizes are read from the ends of the control lines,
and the guess counts only if the frames chain: each ends where the next starts. Where they do not
(a payload that contains a frame, a PING in between) the chain is walked in Python over the same
guesses. Above `LARGE` bytes a frame the scan for newlines costs more than it saves, and frames are
found one by one. Knows nothing of JetStream.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ProtocolError
from penstock.record import HEADER, HEADERS

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

LARGE = 2048
_POW = 10 ** np.arange(9, dtype=np.int64)
_INDICES: dict[tuple[int, int], pa.Array] = {}
_CR, _LF, _SPACE, _TAB, _COLON = 13, 10, 32, 9, 58


class Frame(NamedTuple):
    """One frame. `kind` is MSG, HMSG, PING, PONG, INFO, +OK or -ERR; `payload` of the last three is their text."""

    kind: bytes
    subject: bytes = b""
    sid: bytes = b""
    reply: bytes = b""
    headers: bytes = b""
    payload: bytes = b""


def parse(buffer: bytes | bytearray, at: int, size: int) -> tuple[Frame | None, int]:
    """The frame at `at` and where the next one starts; None where buffer[:size] does not hold all of it."""
    stop = buffer.find(b"\r\n", at, size)
    if stop < 0:
        return None, at
    kind, _, rest = bytes(buffer[at:stop]).partition(b" ")
    if kind not in (b"MSG", b"HMSG"):
        if kind not in (b"PING", b"PONG", b"INFO", b"+OK", b"-ERR"):
            raise ProtocolError(f"the server sent {bytes(buffer[at : min(stop, at + 60)])!r}, which is no NATS frame")
        return Frame(kind, payload=rest), stop + 2
    words = rest.split()
    numbers = 2 if kind == b"HMSG" else 1
    try:
        if not all(word.isdigit() for word in words[-numbers:]):
            raise ValueError
        total = int(words[-1])
        split = int(words[-2]) if numbers == 2 else 0
        if split > total:
            raise ValueError
        subject, sid, *reply = words[:-numbers]
    except (ValueError, IndexError):
        raise ProtocolError(f"the server sent {bytes(buffer[at:stop])!r}, which is no NATS message") from None
    body = stop + 2
    if body + total + 2 > size:
        return None, at
    if buffer[body + total : body + total + 2] != b"\r\n":
        raise ProtocolError(f"a message does not end where it said it would, near {bytes(buffer[at:stop])!r}")
    headers, payload = bytes(buffer[body : body + split]), bytes(buffer[body + split : body + total])
    return Frame(kind, subject, sid, reply[0] if reply else b"", headers, payload), body + total + 2


def _frames(buffer: bytes | bytearray, size: int) -> tuple[list[Frame], int]:
    found: list[Frame] = []
    at = 0
    while at < size:
        frame, at = parse(buffer, at, size)
        if frame is None:
            break
        found.append(frame)
    return found, at


def fields(block: bytes) -> tuple[int, str, list[tuple[str, bytes]]]:
    """Status code (0: none), its text, and the fields of a header block."""
    first, *lines = block.split(b"\r\n")
    _, _, status = first.partition(b" ")
    code, _, text = status.strip().partition(b" ")
    found = []
    for line in lines:
        key, colon, value = line.partition(b":")
        if colon and key:
            found.append((key.decode(errors="replace"), value.lstrip(b" \t")))
    return int(code) if code.isdigit() else 0, text.decode(errors="replace"), found


@dataclass(frozen=True)
class Messages:
    """The messages of a buffer, one row each: where their parts lie in `lines` (their control lines, joined)."""

    values: pa.Array
    blocks: pa.Array | None  # header blocks; None where no message has one
    lines: pa.Buffer
    subject_start: Ints
    subject_end: Ints
    reply_end: Ints
    line_bounds: Ints | None  # where each control line starts and the last one ends; None where some were left out

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class Scan:
    """What a buffer held: messages with a reply subject as columns, everything else frame by frame."""

    messages: Messages | None
    others: list[Frame]
    used: int


def scan(buffer: bytes | bytearray, size: int, *, sid: int = 0, direct: bool = False, vectors: bool = True) -> Scan:
    """All whole frames of buffer[:size]: messages of subscription `sid` (0: none) as columns, the rest one by one.

    Those with a reply subject become columns; with `direct`, those with headers, no reply subject and no
    status, which is how DIRECT.GET answers. `vectors` says how frame starts are found, not what is found.
    """
    if not sid:
        return Scan(None, *_frames(buffer, size))
    found, others, used = _chain(buffer, size) if vectors else _walk(buffer, size, None)
    if found is None:
        return Scan(None, others, used)
    start, line_end, end = found
    raw = pa.py_buffer(buffer)
    lines = segments(raw, start, line_end)
    at = offsets(lines)
    text = np.frombuffer(lines.buffers()[2], np.uint8, count=int(at[-1]))
    space = np.flatnonzero(text == _SPACE)
    with_headers = text[at[:-1]] == ord("H")
    # The spaces of a line: behind the kind, the subject, the sid and, if any, the reply subject and the header size.
    edges = grid(space, at)
    if edges is not None and edges.shape[1] > 2:
        count = np.full(len(edges), edges.shape[1], np.int64)
    else:
        first = np.searchsorted(space, at[:-1])
        count = np.diff(first, append=len(space))
        edges = space[np.minimum(first[:, None] + np.arange(5), len(space) - 1)]
    wanted = (count == 4) if direct else (count == 4 + with_headers)
    if direct:
        u = np.frombuffer(buffer, np.uint8, count=size)
        wanted &= with_headers & (u[np.minimum(line_end + 10, size - 1)] == _CR)
    # A message that was under way when its subscription ended must not be taken for one of the next.
    wanted &= _spells(text, edges[:, 2], b" %d" % sid)
    whole_lines: Ints | None = at
    if not wanted.all():
        for i in np.flatnonzero(~wanted):
            frame, _ = parse(buffer, int(start[i]), size)
            if frame is not None:
                others.append(frame)
        keep = np.flatnonzero(wanted)
        if not len(keep):
            return Scan(None, others, used)
        line_end, end, edges, with_headers = line_end[keep], end[keep], edges[keep], with_headers[keep]
        whole_lines = None
    body, blocks = line_end + 2, None
    if with_headers.any():
        split = np.zeros(len(body), np.int64)
        rows = np.flatnonzero(with_headers)
        size_end = edges[rows, 3 if direct else 4]
        split[rows] = decimals(text, size_end)
        if (body + split > end).any() or (text[size_end - 1] - 48 > 9).any():
            raise ProtocolError("the server sent headers that are longer than their message")
        blocks = segments(raw, body, body + split)
        body = body + split
    values = segments(raw, body, end)
    reply_end = edges[:, 2 if direct else 3]
    messages = Messages(values, blocks, lines.buffers()[2], edges[:, 0] + 1, edges[:, 1], reply_end, whole_lines)
    return Scan(messages, others, used)


def grid(found: Ints, at: Ints) -> Ints | None:
    """The positions of a separator as a table, a row for each line that `at` bounds; None where lines differ."""
    width, odd = divmod(len(found), len(at) - 1)
    if odd or not width:
        return None
    table = found.reshape(-1, width)
    return table if (table[:, 0] >= at[:-1]).all() and (table[:, -1] < at[1:]).all() else None


def _spells(u: Bytes, end: Ints, word: bytes) -> npt.NDArray[np.bool_]:
    """Whether `word` stands before each `end`."""
    same: npt.NDArray[np.bool_] = u[end - 1] == word[-1]
    for back, letter in enumerate(reversed(word[:-1]), start=2):
        same &= u[end - back] == letter
    return same


_Found = tuple[tuple[Ints, Ints, Ints] | None, list[Frame], int]


def _chain(buffer: bytes | bytearray, size: int) -> _Found:
    """Start, end of the control line and end of the body of every whole message, found by guessing all at once."""
    u = np.frombuffer(buffer, np.uint8, count=size)
    newline = np.flatnonzero(u == _LF)
    if not len(newline):
        return None, [], 0
    start = np.empty(len(newline), np.int64)
    start[0] = 0
    np.add(newline[:-1], 1, out=start[1:])
    # Line k runs from start[k] to newline[k]; keep those that look like the first line of a message. Looking at
    # three letters is enough: what only looks like one breaks the chain.
    first = u[start]
    line = np.flatnonzero((first == ord("M")) | (first == ord("H")))
    line = line[newline[line] - start[line] > 8]
    at = start[line] + (first[line] == ord("H"))
    line = line[(u[at + 1] == ord("S")) & (u[at + 3] == _SPACE)]
    start, line_end = start[line], newline[line] - 1
    if not len(start):
        return _walk(buffer, size, None)
    end = line_end + 2 + decimals(u, line_end)
    if not (u[line_end - 1] - 48 < 10).all():
        return _walk(buffer, size, None)  # some line has no size
    if start[0] != 0 or not (end[:-1] + 2 == start[1:]).all():
        return _walk(buffer, size, (start, line_end, end))
    whole = len(start) - int(end[-1] + 2 > size)
    if not whole:
        return None, [], 0
    used = int(end[whole - 1]) + 2
    if whole == len(start) and newline[-1] >= used:
        return _walk(buffer, size, (start, line_end, end))  # a frame of another kind behind the last message
    # The line feed behind a body is there, as the next line starts after it; the last one has no next.
    if not (u[end[:whole]] == _CR).all() or u[used - 1] != _LF:
        raise ProtocolError(f"a message does not end where it said it would, near {bytes(buffer[:60])!r}")
    return (start[:whole], line_end[:whole], end[:whole]), [], used


def _walk(buffer: bytes | bytearray, size: int, guesses: tuple[Ints, Ints, Ints] | None) -> _Found:
    """The same, frame after frame, using the guesses that turn out right."""
    known = (
        dict(zip(guesses[0].tolist(), zip(*(g.tolist() for g in guesses[1:]), strict=True), strict=True))
        if guesses
        else {}
    )
    found: list[tuple[int, int, int]] = []
    others: list[Frame] = []
    at = 0
    while at < size:
        if at in known:
            line_end, end = known[at]
        elif buffer[at : at + 1] in (b"M", b"H"):
            line_end = buffer.find(b"\r\n", at, size)
            if line_end < 0:
                break
            words = buffer[at:line_end].split()
            if words[0] not in (b"MSG", b"HMSG") or not words[-1].isdigit():
                parse(buffer, at, size)  # raises
            end = line_end + 2 + int(words[-1])
        else:
            frame, after = parse(buffer, at, size)
            if frame is None:
                break
            others.append(frame)
            at = after
            continue
        if end + 2 > size:
            break
        if buffer[end : end + 2] != b"\r\n":
            raise ProtocolError(f"a message does not end where it said it would, near {bytes(buffer[at:line_end])!r}")
        found.append((at, line_end, end))
        at = end + 2
    if not found:
        return None, others, at
    table = np.array(found, np.int64)
    return (table[:, 0], table[:, 1], table[:, 2]), others, at


def segments(data: pa.Buffer, start: Ints, end: Ints) -> pa.Array:
    """A binary array of data[start[i]:end[i]], copied together. Starts and ends must ascend."""
    return interleaved(data, start, end)[0]


def interleaved(data: pa.Buffer, *bounds: Ints) -> list[pa.Array]:
    """The same for several pairs of start and end a row, which must ascend from pair to pair and row to row.

    A binary array over all pieces, wanted and not, is free; taking every k-th copies with one memcpy each.
    """
    rows, width = len(bounds[0]), len(bounds)
    edges = np.empty(rows * width + 1, np.int32)
    for k, bound in enumerate(bounds):
        edges[k : rows * width : width] = bound
    edges[-1] = bounds[-1][-1]
    pieces = pa.Array.from_buffers(pa.binary(), rows * width, [None, pa.py_buffer(edges), data])
    unchecked = pc.TakeOptions(boundscheck=False)
    return [pc.call_function("take", [pieces, _every(width, k, rows)], unchecked) for k in range(0, width, 2)]


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
    """The whole number that ends before each `end`, of at most nine digits."""
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
    return out


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


def headers_column(messages: Messages) -> pa.Array:
    """The `headers` column: null for a message without any."""
    if messages.blocks is None:
        return pa.nulls(len(messages), HEADERS)
    return all_fields(messages.blocks).as_column()
