"""NATS frames, without I/O: parsed one by one, or a whole buffer at once, into columns. Knows no JetStream.

Columns are made by numpy and Arrow, with no Python statement per message. All lines that look like the control line of
a message (a newline, then 'MSG ' or 'HMSG ') are candidates. The sizes are at the ends of these lines. The candidates
are right if they form a chain: each frame ends where the next one starts. If they do not (a payload contains a frame,
or a PING is in between), the frames are walked one by one in Python, with the help of the candidates. For frames above
`LARGE` bytes the search for newlines costs more than it saves, and all are walked.
"""

import re
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.arrow.buffers import Bytes, Ints, decimals, grid, offsets, segments
from penstock.clients.answers import an_object, field
from penstock.errors import ProtocolError

LARGE = 2048
# The longest line, which is an INFO with all servers of a cluster, and the most digits of a size.
LINE, DIGITS = 1 << 20, 9
Kind = Literal["delivery", "direct", "reply", "any"]
_CR, _LF, _SPACE = 13, 10, 32


class Frame(NamedTuple):
    """One frame. `kind` is MSG, HMSG, PING, PONG, INFO, +OK or -ERR. The text of the last three is the `payload`."""

    kind: bytes
    subject: bytes = b""
    sid: bytes = b""
    reply: bytes = b""
    headers: bytes = b""
    payload: bytes = b""


def parse(buffer: bytes | bytearray, at: int, size: int) -> tuple[Frame | None, int]:
    """The frame at `at`, and where the next one starts. None and `at` where buffer[:size] ends inside of the frame."""
    stop = _line_end(buffer, at, size)
    if stop < 0:
        return None, at
    kind, _, rest = bytes(buffer[at:stop]).partition(b" ")
    if kind not in (b"MSG", b"HMSG"):
        if kind not in (b"PING", b"PONG", b"INFO", b"+OK", b"-ERR"):
            raise ProtocolError(f"the server sent {bytes(buffer[at : min(stop, at + 60)])!r}, which is no NATS frame")
        return Frame(kind, payload=rest), stop + 2
    subject, sid, reply, split, total = _parse_control_line(kind, rest)
    body = stop + 2
    if body + total + 2 > size:
        return None, at
    if buffer[body + total : body + total + 2] != b"\r\n":
        raise ProtocolError(f"a message does not end where it said it would, near {bytes(buffer[at : at + 100])!r}")
    headers, payload = bytes(buffer[body : body + split]), bytes(buffer[body + split : body + total])
    return Frame(kind, subject, sid, reply, headers, payload), body + total + 2


def _line_end(buffer: bytes | bytearray, at: int, size: int) -> int:
    """Where the line at `at` ends; -1 where the buffer ends before. A line longer than LINE is a ProtocolError."""
    stop = buffer.find(b"\r\n", at, min(size, at + LINE))
    if stop < 0 and size - at > LINE:
        raise ProtocolError(f"the server sent {bytes(buffer[at : at + 60])!r}..., which is no line of NATS")
    return stop


def _parse_control_line(kind: bytes, rest: bytes) -> tuple[bytes, bytes, bytes, int, int]:
    """Subject, sid, reply subject, size of the headers and total size, from the control line after `kind`."""
    numbers = 2 if kind == b"HMSG" else 1
    words = rest.split()  # an empty reply subject leaves two spaces
    names, sizes = words[:-numbers], words[-numbers:]
    if len(names) in (2, 3) and all(word.isdigit() and len(word) <= DIGITS for word in sizes):
        total, split = int(sizes[-1]), int(sizes[0]) if numbers == 2 else 0
        if split <= total:
            return names[0], names[1], names[2] if len(names) == 3 else b"", split, total
    raise _no_message(kind + b" " + rest)


def _no_message(line: bytes) -> ProtocolError:
    return ProtocolError(f"the server sent {line[:100]!r}, which is no NATS message")


def info(payload: bytes) -> dict[str, Any]:
    """The fields of an INFO. Those that are used have been checked for their types."""
    fields = an_object(payload, "the server greets with INFO, and")
    field(fields, "max_payload", int, 0)
    field(fields, "nonce", str, "")
    version = field(fields, "version", str, "0.0")
    if not re.match(r"\d+\.\d+", version, re.ASCII):
        raise ProtocolError(f"the server says that its version is {version[:40]!r}.")
    return fields


def _frames(buffer: bytes | bytearray, size: int) -> tuple[list[Frame], int]:
    frames: list[Frame] = []
    at = 0
    while at < size:
        frame, at = parse(buffer, at, size)
        if frame is None:
            break
        frames.append(frame)
    return frames, at


@dataclass(frozen=True)
class Messages:
    """The messages of a buffer, one row each. The positions are in `lines`, which are the control lines, joined."""

    values: pa.Array
    blocks: pa.Array | None  # header blocks; None where no message has one
    lines: pa.Buffer
    subject_start: Ints
    subject_end: Ints
    sid_end: Ints
    reply_end: Ints  # the same as sid_end where there is no reply subject
    line_bounds: Ints | None  # the edges of the control lines; None where `lines` has more than those of the rows

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class Scan:
    """The frames of a buffer: the messages that were asked for as columns, all others one by one."""

    messages: Messages | None
    others: list[Frame]
    used: int  # bytes of the buffer that these frames fill


def scan(buffer: bytes | bytearray, size: int, *, sid: int = 0, kind: Kind = "delivery", vectors: bool = True) -> Scan:
    """All whole frames of buffer[:size]: messages of subscription `sid` that are of `kind` as columns, the others one
    by one. With sid 0 all are one by one.

    A `delivery` has a reply subject. A `direct` answer, from DIRECT.GET, has headers and no reply subject. A `reply`
    has neither. `any` takes every message except those of subscription `sid`. `vectors` chooses how frames are found,
    not which ones.
    """
    if not sid:
        return Scan(None, *_frames(buffer, size))
    edges, others, used = _chain(buffer, size) if vectors else _walk(buffer, size, None)
    if edges is None:
        return Scan(None, others, used)
    start, line_end, end = edges
    raw = pa.py_buffer(buffer)
    lines = segments(raw, start, line_end)
    at = offsets(lines)
    text = np.frombuffer(lines.buffers()[2], np.uint8, count=int(at[-1]))
    space = np.flatnonzero(text == _SPACE)
    with_headers = text[at[:-1]] == ord("H")
    # The spaces of a line: after the kind, the subject, the sid and, if any, the reply subject and the header size.
    spaces = grid(space, at)
    if spaces is not None and spaces.shape[1] > 2:
        count = np.full(len(spaces), min(spaces.shape[1], 9), np.int8)
    else:
        first = np.searchsorted(space, at[:-1])
        count = np.minimum(np.diff(first, append=len(space)), 9).astype(np.int8)
        spaces = space[np.minimum(first[:, None] + np.arange(5), len(space) - 1)]
    replies = count - with_headers.view(np.int8) - 3  # 0, or 1 where there is a reply subject
    if replies.view(np.uint8).max() > 1:
        row = int(np.argmax((replies < 0) | (replies > 1)))
        raise _no_message(bytes(buffer[start[row] : line_end[row]]))
    fourth = spaces[:, min(3, spaces.shape[1] - 1)]
    replied = (replies == 1) & (fourth - spaces[:, 2] > 1)  # an empty reply subject is none
    if kind == "any":
        wanted = replies >= 0
    elif kind == "delivery":
        wanted = replied.copy()
    else:
        wanted = ~replied & (with_headers if kind == "direct" else ~with_headers)
    # Messages of a subscription that has ended may still arrive: they are not those of the next one.
    of_sid = _ends_with(text, spaces[:, 2], b" %d" % sid)
    if kind == "any":
        wanted &= ~of_sid
    else:
        wanted &= of_sid
    line_bounds: Ints | None = at
    if not wanted.all():
        for i in np.flatnonzero(~wanted):
            frame, _ = parse(buffer, int(start[i]), size)
            if frame is not None:
                others.append(frame)
        keep = np.flatnonzero(wanted)
        if not len(keep):
            return Scan(None, others, used)
        line_end, end, spaces, with_headers = line_end[keep], end[keep], spaces[keep], with_headers[keep]
        count, replied, fourth = count[keep], replied[keep], fourth[keep]
        line_bounds = None
    body, blocks = line_end + 2, None
    if with_headers.any():
        split = np.zeros(len(body), np.int64)
        rows = np.flatnonzero(with_headers)
        size_end = spaces[rows, count[rows] - 1]
        split[rows] = decimals(text, size_end)
        if (body + split > end).any() or (text[size_end - 1] - 48 > 9).any():
            row = rows[np.argmax((body + split > end)[rows] | (text[size_end - 1] - 48 > 9))]
            shown = bytes(buffer[max(0, line_end[row] - 60) : line_end[row]])
            raise ProtocolError(f"the server sent headers that are longer than their message: ...{shown!r}")
        blocks = segments(raw, body, body + split)
        body = body + split
    values = segments(raw, body, end)
    reply_end = np.where(replied, fourth, spaces[:, 2])
    messages = Messages(
        values, blocks, lines.buffers()[2], spaces[:, 0] + 1, spaces[:, 1], spaces[:, 2], reply_end, line_bounds
    )
    return Scan(messages, others, used)


def _ends_with(u: Bytes, end: Ints, word: bytes) -> npt.NDArray[np.bool_]:
    """Whether the bytes before each `end` are `word`."""
    same: npt.NDArray[np.bool_] = u[end - 1] == word[-1]
    for back, letter in enumerate(reversed(word[:-1]), start=2):
        same &= u[end - back] == letter
    return same


# Of each message: where it starts, where its control line ends, and where its body ends.
_Edges = tuple[Ints, Ints, Ints]


def _chain(buffer: bytes | bytearray, size: int) -> tuple[_Edges | None, list[Frame], int]:
    """The edges of every whole message, all other whole frames, and the bytes that they fill. Candidates are found with
    numpy; where they are no chain, `_walk` takes over.
    """
    u = np.frombuffer(buffer, np.uint8, count=size)
    newline = np.flatnonzero(u == _LF)
    if not len(newline):
        _line_end(buffer, 0, size)
        return None, [], 0
    start = np.empty(len(newline), np.int64)
    start[0] = 0
    np.add(newline[:-1], 1, out=start[1:])
    # Line k runs from start[k] to newline[k]. Three letters are enough for candidates: wrong ones break the chain.
    first = u[start]
    line = np.flatnonzero((first == ord("M")) | (first == ord("H")))
    line = line[newline[line] - start[line] > 8]
    at = start[line] + (first[line] == ord("H"))
    line = line[(u[at + 1] == ord("S")) & (u[at + 3] == _SPACE)]
    start, line_end = start[line], newline[line] - 1
    if not len(start):
        return _walk(buffer, size, None)
    end = line_end + 2 + decimals(u, line_end)
    if not ((u[line_end - 1] - 48 < 10) & (u[line_end] == _CR)).all():
        return _walk(buffer, size, None)  # a line without a size, or without a carriage return
    if start[0] != 0 or not (end[:-1] + 2 == start[1:]).all():
        return _walk(buffer, size, (start, line_end, end))
    whole = len(start) - int(end[-1] + 2 > size)
    if not whole:
        return None, [], 0
    used = int(end[whole - 1]) + 2
    if whole == len(start) and newline[-1] >= used:
        return _walk(buffer, size, (start, line_end, end))  # another frame follows the last message
    # After each body but the last, a line feed was seen: the next candidate starts after it.
    if not (u[end[:whole]] == _CR).all() or u[used - 1] != _LF:
        raise ProtocolError(f"a message does not end where it said it would, near {bytes(buffer[:60])!r}")
    return (start[:whole], line_end[:whole], end[:whole]), [], used


def _walk(buffer: bytes | bytearray, size: int, candidates: _Edges | None) -> tuple[_Edges | None, list[Frame], int]:
    """The same as `_chain`, frame by frame. Candidates at the start of a frame save parsing its control line."""
    known: dict[int, tuple[int, int]] = {}
    if candidates is not None:
        starts, line_ends, ends = (column.tolist() for column in candidates)
        known = dict(zip(starts, zip(line_ends, ends, strict=True), strict=True))
    edges: list[tuple[int, int, int]] = []
    others: list[Frame] = []
    at = 0
    while at < size:
        if at in known:
            line_end, end = known[at]
        elif buffer[at : at + 1] in (b"M", b"H"):
            line_end = _line_end(buffer, at, size)
            if line_end < 0:
                break
            word, _, rest = bytes(buffer[at:line_end]).partition(b" ")
            if word not in (b"MSG", b"HMSG"):
                parse(buffer, at, size)  # raises the error for such a line
            end = line_end + 2 + _parse_control_line(word, rest)[-1]
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
            raise ProtocolError(f"a message does not end where it said it would, near {bytes(buffer[at : at + 100])!r}")
        edges.append((at, line_end, end))
        at = end + 2
    if not edges:
        return None, others, at
    table = np.array(edges, np.int64)
    return (table[:, 0], table[:, 1], table[:, 2]), others, at
