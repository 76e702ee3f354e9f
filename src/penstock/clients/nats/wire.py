"""NATS frames, without I/O: one by one, exactly; or all of a buffer at once, into columns.

The columns come from vectors, with no Python statement per message. Every frame start is guessed at
once (a newline followed by 'MSG ' or 'HMSG '), the sizes are read from the ends of the control lines,
and the guess counts only if the frames chain: each ends where the next starts. Where they do not
(a payload that contains a frame, a PING in between) the chain is walked in Python over the same
guesses. Above `LARGE` bytes a frame the scan for newlines costs more than it saves, and frames are
found one by one. Knows nothing of JetStream.
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
# No line is longer, not even what a server says of itself and all its cluster; and no size has more digits.
LINE, DIGITS = 1 << 20, 9
Kind = Literal["delivery", "direct", "reply", "any"]
_CR, _LF, _SPACE = 13, 10, 32


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
    stop = _line_end(buffer, at, size)
    if stop < 0:
        return None, at
    kind, _, rest = bytes(buffer[at:stop]).partition(b" ")
    if kind not in (b"MSG", b"HMSG"):
        if kind not in (b"PING", b"PONG", b"INFO", b"+OK", b"-ERR"):
            raise ProtocolError(f"the server sent {bytes(buffer[at : min(stop, at + 60)])!r}, which is no NATS frame")
        return Frame(kind, payload=rest), stop + 2
    subject, sid, reply, split, total = _words(kind, rest)
    body = stop + 2
    if body + total + 2 > size:
        return None, at
    if buffer[body + total : body + total + 2] != b"\r\n":
        raise ProtocolError(f"a message does not end where it said it would, near {bytes(buffer[at : at + 100])!r}")
    headers, payload = bytes(buffer[body : body + split]), bytes(buffer[body + split : body + total])
    return Frame(kind, subject, sid, reply, headers, payload), body + total + 2


def _line_end(buffer: bytes | bytearray, at: int, size: int) -> int:
    """Where the line at `at` ends; -1 where that is still to come."""
    stop = buffer.find(b"\r\n", at, min(size, at + LINE))
    if stop < 0 and size - at > LINE:
        raise ProtocolError(f"the server sent {bytes(buffer[at : at + 60])!r}..., which is no line of NATS")
    return stop


def _words(kind: bytes, rest: bytes) -> tuple[bytes, bytes, bytes, int, int]:
    """The control line of a message behind its kind: subject, sid, reply subject, size of the headers and of all."""
    numbers = 2 if kind == b"HMSG" else 1
    words = rest.split()  # servers send two spaces for a reply subject that is empty
    names, sizes = words[:-numbers], words[-numbers:]
    if len(names) in (2, 3) and all(word.isdigit() and len(word) <= DIGITS for word in sizes):
        total, split = int(sizes[-1]), int(sizes[0]) if numbers == 2 else 0
        if split <= total:
            return names[0], names[1], names[2] if len(names) == 3 else b"", split, total
    raise _no_message(kind + b" " + rest)


def _no_message(line: bytes) -> ProtocolError:
    return ProtocolError(f"the server sent {line[:100]!r}, which is no NATS message")


def info(payload: bytes) -> dict[str, Any]:
    """What a server says of itself; what is used of it is of its kind."""
    said = an_object(payload, "the server greets with INFO, and")
    field(said, "max_payload", int, 0)
    field(said, "nonce", str, "")
    version = field(said, "version", str, "0.0")
    if not re.match(r"\d+\.\d+", version, re.ASCII):
        raise ProtocolError(f"the server says that its version is {version[:40]!r}.")
    return said


def _frames(buffer: bytes | bytearray, size: int) -> tuple[list[Frame], int]:
    found: list[Frame] = []
    at = 0
    while at < size:
        frame, at = parse(buffer, at, size)
        if frame is None:
            break
        found.append(frame)
    return found, at


@dataclass(frozen=True)
class Messages:
    """The messages of a buffer, one row each: where their parts lie in `lines` (their control lines, joined)."""

    values: pa.Array
    blocks: pa.Array | None  # header blocks; None where no message has one
    lines: pa.Buffer
    subject_start: Ints
    subject_end: Ints
    sid_end: Ints
    reply_end: Ints  # the same as sid_end where there is no reply subject
    line_bounds: Ints | None  # where each control line starts and the last one ends; None where some were left out

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class Scan:
    """What a buffer held: the messages that were asked for as columns, everything else frame by frame."""

    messages: Messages | None
    others: list[Frame]
    used: int


def scan(buffer: bytes | bytearray, size: int, *, sid: int = 0, kind: Kind = "delivery", vectors: bool = True) -> Scan:
    """All whole frames of buffer[:size]: messages of subscription `sid` (0: none) as columns, the rest one by one.

    A `delivery` has a reply subject. A `direct` one has headers and no reply subject, which is how DIRECT.GET answers.
    A `reply` has neither. `any` is every message, but for those of subscription `sid`.
    `vectors` says how frame starts are found, not what is found.
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
        count = np.full(len(edges), min(edges.shape[1], 9), np.int8)
    else:
        first = np.searchsorted(space, at[:-1])
        count = np.minimum(np.diff(first, append=len(space)), 9).astype(np.int8)
        edges = space[np.minimum(first[:, None] + np.arange(5), len(space) - 1)]
    replies = count - with_headers.view(np.int8) - 3  # 0, or 1 where there is a reply subject
    if replies.view(np.uint8).max() > 1:
        row = int(np.argmax((replies < 0) | (replies > 1)))
        raise _no_message(bytes(buffer[start[row] : line_end[row]]))
    fourth = edges[:, min(3, edges.shape[1] - 1)]
    replied = (replies == 1) & (fourth - edges[:, 2] > 1)  # it may be there and empty
    if kind == "any":
        wanted = replies >= 0
    elif kind == "delivery":
        wanted = replied.copy()
    else:
        wanted = ~replied & (with_headers if kind == "direct" else ~with_headers)
    # A message that was under way when its subscription ended must not be taken for one of the next.
    wanted &= _spells(text, edges[:, 2], b" %d" % sid) ^ (kind == "any")
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
        count, replied, fourth = count[keep], replied[keep], fourth[keep]
        whole_lines = None
    body, blocks = line_end + 2, None
    if with_headers.any():
        split = np.zeros(len(body), np.int64)
        rows = np.flatnonzero(with_headers)
        size_end = edges[rows, count[rows] - 1]
        split[rows] = decimals(text, size_end)
        if (body + split > end).any() or (text[size_end - 1] - 48 > 9).any():
            row = rows[np.argmax((body + split > end)[rows] | (text[size_end - 1] - 48 > 9))]
            shown = bytes(buffer[max(0, line_end[row] - 60) : line_end[row]])
            raise ProtocolError(f"the server sent headers that are longer than their message: ...{shown!r}")
        blocks = segments(raw, body, body + split)
        body = body + split
    values = segments(raw, body, end)
    # A line without a reply subject has one piece less; then the reply ends where it would begin.
    reply_end = np.where(replied, fourth, edges[:, 2])
    messages = Messages(
        values, blocks, lines.buffers()[2], edges[:, 0] + 1, edges[:, 1], edges[:, 2], reply_end, whole_lines
    )
    return Scan(messages, others, used)


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
        _line_end(buffer, 0, size)
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
    if not ((u[line_end - 1] - 48 < 10) & (u[line_end] == _CR)).all():
        return _walk(buffer, size, None)  # some line has no size, or not the end of a line
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
            line_end = _line_end(buffer, at, size)
            if line_end < 0:
                break
            word, _, rest = bytes(buffer[at:line_end]).partition(b" ")
            if word not in (b"MSG", b"HMSG"):
                parse(buffer, at, size)  # raises
            end = line_end + 2 + _words(word, rest)[-1]
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
        found.append((at, line_end, end))
        at = end + 2
    if not found:
        return None, others, at
    table = np.array(found, np.int64)
    return (table[:, 0], table[:, 1], table[:, 2]), others, at
