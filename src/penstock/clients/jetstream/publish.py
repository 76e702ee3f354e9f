"""Three ways to publish rows and know that they are stored: pipelined, in atomic batches, and by fast ingest. Knows
frames and answers; nothing of what ids mean, of attempts or of Spark.
"""

import dataclasses
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.arrow.buffers import Ints, join, numbers, offsets
from penstock.clients.answers import field
from penstock.clients.jetstream import acks
from penstock.clients.jetstream.acks import Acks, Refusal
from penstock.clients.nats import headers
from penstock.clients.nats.client import Connection
from penstock.clients.nats.frames import frames
from penstock.errors import ProtocolError

# Rows of one write to the socket. The acks of earlier rows arrive while the next ones are written.
STEP = 1000
# Limits of the server.
ATOMIC_ROWS, ATOMIC_OPEN = 1000, 4
FAST_FLOW, FAST_ROUNDS = 500, 2


@dataclass
class Chunk:
    """Rows to publish, as binary columns without nulls, and which of them are stored."""

    number: Ints  # of each row in its task
    subject: pa.Array
    block: pa.Array | None
    value: pa.Array
    stored: npt.NDArray[np.bool_]
    ids: pa.Array | None = None
    # A sequence in each stream: rows that are stored without being marked come after it.
    reached: dict[str, int] = dataclasses.field(default_factory=dict)
    conditional: bool = False  # some rows have command headers: the server may refuse each row for itself

    def __len__(self) -> int:
        return len(self.number)

    def rest(self) -> "Chunk":
        """The rows that are not stored yet."""
        if not self.stored.any():
            return self
        left = np.flatnonzero(~self.stored)
        take = pa.array(left)
        subject, block, value, ids = (
            None if column is None else column.take(take) for column in (self.subject, self.block, self.value, self.ids)
        )
        return Chunk(
            self.number[left], subject, block, value, np.zeros(len(left), bool), ids, conditional=self.conditional
        )

    def part(self, low: int, high: int) -> "Chunk":
        """The rows from `low` up to `high`, as a chunk of its own."""
        subject, block, value, ids = (
            None if column is None else column[low:high] for column in (self.subject, self.block, self.value, self.ids)
        )
        stored = self.stored[low:high].copy()
        return Chunk(self.number[low:high], subject, block, value, stored, ids, conditional=self.conditional)

    def mark(self, rows: Ints) -> None:
        """Mark rows as stored; those of other chunks are ignored."""
        at = np.searchsorted(self.number, rows)
        inside = at < len(self.number)
        at = at[inside]
        self.stored[at[self.number[at] == rows[inside]]] = True


def pipelined(
    connection: Connection,
    chunk: Chunk,
    window: int,
    timeout: float,
    go_on: Callable[[], bool],
    meanwhile: Callable[[], None] = lambda: None,
) -> Acks:
    """Publish rows one by one: many frames per write, and at most `window` rows without an answer.

    Rows of `chunk` are marked as answers arrive, so that it is known what is stored even where this fails. `go_on` is
    asked before each write but the first: if it is False, no more is sent, and open answers are awaited. `meanwhile` is
    called after the last write, while the server works.
    """
    sid, inbox = connection.subscribe()
    prefix = inbox.encode() + b"."
    done = Acks(acks.nothing())
    sent, answered, total = 0, 0, len(chunk)

    def quick(received: bytes) -> int:
        nonlocal answered
        answers = acks.in_a_row(received, prefix, chunk.number)
        if answers is None:
            return 0
        stored, used = answers
        answered += len(stored.rows)
        done.add(stored, chunk.mark)
        return used

    while True:
        while sent < total and (sent == answered or sent + STEP - answered <= window):
            if sent and not go_on():
                total = sent
                break
            high = min(total, sent + min(STEP, window))
            # Frames are made only now, while the server works on the ones before.
            connection.send(_frames(chunk, prefix, sent, high))
            sent = high
            if sent == len(chunk):
                meanwhile()
        if sent == answered:
            break
        scan = connection.receive(sid, linger=False, kind="reply", timeout=timeout, quick=quick)
        if scan.messages is not None:
            answered += len(scan.messages)
            done.add(acks.read(scan.messages, chunk.number), chunk.mark)
        for frame in scan.others:
            if frame.subject.startswith(prefix):
                answered += 1
                status, text, _ = headers.fields(frame.headers)
                row = int(chunk.number[acks.place(frame.subject, prefix, len(chunk))])
                done.refused.append(Refusal(row, status, text))
        if chunk.stored[:answered].all():  # later rows were sent after these, so that they are stored after them
            chunk.reached = done.lasts()
    connection.unsubscribe(sid)
    return done


def _frames(chunk: Chunk, prefix: bytes, low: int, high: int) -> memoryview:
    block = None if chunk.block is None else chunk.block[low:high]
    reply = join(prefix, numbers(np.arange(low, high)))
    return memoryview(frames(chunk.subject[low:high], reply, block, chunk.value[low:high]).buffers()[2])


def atomic(connection: Connection, chunk: Chunk, timeout: float) -> Acks:
    """Publish in batches that are stored whole or not at all. From the first refused batch on, rows are not marked.

    Several batches are open at the server at a time. Each is committed only after the one before it was stored: no row
    may be stored before a row that was refused.
    """
    sid, inbox = connection.subscribe()
    prefix = inbox.encode() + b"."
    done = Acks(acks.nothing())
    parts = [chunk.part(low, low + ATOMIC_ROWS) for low in range(0, len(chunk), ATOMIC_ROWS)]
    ends: list[memoryview] = []
    answers: dict[int, dict[str, Any]] = {}
    for i, part in enumerate(parts):
        while len(ends) < min(len(parts), i + ATOMIC_OPEN):
            begin, end = _atomic_frames(parts[len(ends)], prefix, len(ends))
            connection.send(begin)
            ends.append(end)
        connection.send(ends[i])
        while i not in answers:
            for frame in connection.receive(sid, linger=False, timeout=timeout).others:
                # An empty answer only says that the first message of a batch was accepted.
                if frame.subject.startswith(prefix) and (frame.payload or frame.headers):
                    answer = acks.parse(frame.payload) if frame.payload else {}
                    answers[acks.place(frame.subject, prefix, len(parts))] = answer
        if answers[i].get("count") != len(part):
            break
        stream, last = acks.stored_at(answers[i])
        done.add(Acks(part.number, {stream: (last - len(part) + 1, last)}), chunk.mark)
    connection.unsubscribe(sid)
    return done


def _atomic_frames(part: Chunk, prefix: bytes, which: int) -> tuple[memoryview, memoryview]:
    """The frames of a batch, without and only its last row, which commits it."""
    batch = uuid.uuid4().hex.encode()
    last = pa.array([b""] * (len(part) - 1) + [b"Nats-Batch-Commit: 1\r\n"], pa.binary())
    own = b"" if part.block is None else part.block
    count = numbers(np.arange(1, len(part) + 1))
    block = join(b"Nats-Batch-Id: " + batch + b"\r\nNats-Batch-Sequence: ", count, b"\r\n", last, own)
    # Only the first and the last are answered.
    reply = [b""] * len(part)
    reply[0] = reply[-1] = prefix + b"%d" % which
    out = frames(part.subject, pa.array(reply, pa.binary()), block, part.value)
    data, cut = memoryview(out.buffers()[2]), int(offsets(out)[-2])
    return data[:cut], data[cut:]


def fast(connection: Connection, chunk: Chunk, timeout: float) -> Acks:
    """Publish by fast ingest: the server says how far it is and how many rows may be sent ahead. Rows that it stored
    before a gap or an error are marked.
    """
    done = Acks(acks.nothing())
    if len(chunk) == 1:
        return done  # fast ingest needs a first and a last row
    sid, inbox = connection.subscribe(deep=True)
    prefix = f"{inbox}.{uuid.uuid4().hex}.{FAST_FLOW}.fail.".encode()
    op = pa.array([b".0.$FI"] + [b".1.$FI"] * (len(chunk) - 2) + [b".2.$FI"], pa.binary())
    out = frames(chunk.subject, join(prefix, numbers(np.arange(1, len(chunk) + 1)), op), chunk.block, chunk.value)
    at, data = offsets(out), memoryview(out.buffers()[2])
    sent, allowed = 0, 1  # the first row must be answered before others are sent
    final: dict[str, Any] | None = None
    while final is None:
        if sent < allowed:
            connection.send(data[at[sent] : at[allowed]])
            sent = allowed
        for frame in connection.receive(sid, linger=False, timeout=timeout).others:
            if not frame.subject.startswith(inbox.encode()):
                continue
            answer = acks.parse(frame.payload) if frame.payload else {}
            kind = answer.get("type")
            if kind == "ack":
                seen, at_once = field(answer, "seq", int), field(answer, "msgs", int)
                allowed = max(allowed, min(len(chunk), seen + FAST_ROUNDS * at_once))
            elif kind != "gap":  # after a gap comes the final answer, with the number of rows before it
                final = answer
    connection.unsubscribe(sid)
    stored = field(final, "count", int, 0)
    if not 0 <= stored <= len(chunk):
        raise ProtocolError(f"JetStream says that {stored:,} rows were stored, but {len(chunk):,} were sent.")
    if stored:
        last = field(final, "seq", int, 0)  # 0 where all rows were duplicates
        spans = {field(final, "stream", str): (last - stored + 1, last)} if last else {}
        done.add(Acks(chunk.number[:stored], spans), chunk.mark)
    return done
