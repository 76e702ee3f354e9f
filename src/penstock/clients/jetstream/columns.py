"""Columns from JetStream's messages: of a consumer, from the ack subjects; of DIRECT.GET, from the headers. Knows NATS
messages; no sockets.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.buffers import grid, interleaved, offsets, parsed, segments, text
from penstock.arrow.types import TIMESTAMP
from penstock.clients.jetstream.api import number
from penstock.clients.nats import headers
from penstock.clients.nats.wire import Messages
from penstock.errors import ProtocolError

# The server adds these fields to every message of DIRECT.GET, after the publisher's own, and an empty line. Where the
# publisher's block has no empty line, the first field is on a line with the rest of that block.
DIRECT_FIELDS = (
    b"Nats-Stream: ", b"Nats-Subject: ", b"Nats-Sequence: ", b"Nats-Time-Stamp: ", b"Nats-Num-Pending: ",
    b"Nats-Last-Sequence: ",
)  # fmt: skip
DIRECT_LINES = len(DIRECT_FIELDS) + 1


def deliveries(messages: Messages) -> tuple[int, int]:
    """The consumer sequences of the first and the last message. `ack_columns` must have accepted the messages: it
    checks the ack subjects.
    """
    return _consumer_sequence(messages, 0), _consumer_sequence(messages, -1)


def _consumer_sequence(messages: Messages, row: int) -> int:
    reply = bytes(messages.lines[int(messages.sid_end[row]) + 1 : int(messages.reply_end[row])])
    return number(reply.split(b".")[-3])


def ack_columns(messages: Messages) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Subject, sequence and timestamp of each message of a consumer, from the control lines.

    The reply subject is
    $JS.ACK[.domain.account].stream.consumer.delivered.sequence.consumer_sequence.nanoseconds.pending. Tokens are
    counted from the end, as only some servers send the two in brackets.
    """
    line = np.frombuffer(messages.lines, np.uint8)
    dot = np.flatnonzero(line == ord("."))
    table = grid(dot, messages.line_bounds) if messages.line_bounds is not None else None
    if table is not None and table.shape[1] > 3:
        dots = table[:, -4:]
    else:
        last = np.searchsorted(dot, messages.reply_end)
        dots = np.append(dot, -1)[np.maximum(last[:, None] + np.arange(-4, 0), -1)]
    if (dots[:, 0] <= messages.sid_end).any():
        row = int(np.argmax(dots[:, 0] <= messages.sid_end))
        reply = line[messages.sid_end[row] + 1 : messages.reply_end[row]].tobytes()
        raise ProtocolError(
            f"the server delivered a message to be answered on {reply[:100]!r}, which is no ack subject."
        )
    subject, sequence, moment = interleaved(
        messages.lines,
        messages.subject_start, messages.subject_end,
        dots[:, 0] + 1, dots[:, 1],
        # Nanoseconds have 19 digits until the year 2286; without the last three they are microseconds.
        dots[:, 2] + 1, dots[:, 3] - 3,
    )  # fmt: skip
    times = parsed(moment, pa.int64(), "a time in an ack subject").view(TIMESTAMP)
    return text(subject), parsed(sequence, pa.int64(), "a sequence in an ack subject"), times


class Direct(NamedTuple):
    """Messages of DIRECT.GET: subject, sequence, timestamp, and the header blocks as they were published. A line
    without its end is left out of a block.
    """

    subject: pa.Array
    sequence: pa.Array
    timestamp: pa.Array
    blocks: Callable[[], pa.Array]
    mirror: str  # the name of a mirror that answered instead of the stream; empty where none did


def direct_columns(blocks: pa.Array, stream: str) -> Direct:
    """The columns of messages from DIRECT.GET, from their header blocks: the last lines are the server's own fields."""
    at, data = offsets(blocks), blocks.buffers()[2]
    u = np.frombuffer(data, np.uint8, count=int(at[-1])) if at[-1] else np.empty(0, np.uint8)
    newline = np.flatnonzero(u == 10)
    before = np.searchsorted(newline, at)
    if (np.diff(before) < DIRECT_LINES).any():
        raise _not_direct(blocks, int(np.argmax(np.diff(before) < DIRECT_LINES)))
    last = before[1:] - DIRECT_LINES  # the line with the name of the stream
    ends = [newline[last + k] for k in range(4)]
    name = f": {stream}".encode()
    bounds = [np.maximum(ends[0] - 1 - len(name), at[:-1]), ends[0] - 1]
    for k in (1, 2, 3):
        bounds += [ends[k - 1] + 1 + len(DIRECT_FIELDS[k]), ends[k] - 1]
    names, subject, sequence, moment = interleaved(data, *bounds)
    has_colon = [u[ends[k - 1] + len(DIRECT_FIELDS[k]) - 1] == ord(":") for k in (1, 2, 3)]
    if not np.logical_and.reduce(has_colon).all():
        raise _not_direct(blocks, int(np.argmin(np.logical_and.reduce(has_colon))))
    other, mirror = pc.index(pc.equal(names, name), False).as_py(), ""
    if other >= 0:
        values = direct_fields(blocks[other].as_py())
        if values is None:
            raise _not_direct(blocks, other)
        mirror = values[0].decode(errors="replace")
    times = parsed(pc.ascii_rtrim(text(moment), "Z"), pa.timestamp("ns"), "a time of a message")
    return Direct(
        text(subject),
        parsed(sequence, pa.int64(), "a sequence of a message"),
        times.cast(pa.timestamp("us"), safe=False).cast(pa.int64()).view(TIMESTAMP),
        # Up to the last line before the server's own: text on a line with those has no end of its own. Two more bytes
        # stand for the empty line that ends a block.
        lambda: segments(data, at[:-1], np.where(last > before[:-1], newline[last - 1] + 1 + headers.END, at[:-1])),
        mirror,
    )


def direct_fields(block: bytes) -> tuple[bytes, ...] | None:
    """The values of DIRECT_FIELDS in a header block; None where it is that of a status, not of a message."""
    lines = block.split(b"\r\n")[-DIRECT_LINES - 1 : -2]
    parts = [line.rpartition(name) for name, line in zip(DIRECT_FIELDS, lines, strict=False)]
    if len(parts) < len(DIRECT_FIELDS) or not all(name for _, name, _ in parts):
        return None
    return tuple(value for _, _, value in parts)


def _not_direct(blocks: pa.Array, row: int) -> ProtocolError:
    shown = blocks[row].as_py()[-200:]
    return ProtocolError(f"DIRECT.GET answered with the headers ...{shown!r}, which do not tell which message it is.")
