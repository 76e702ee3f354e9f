"""Three ways to publish rows and know that they are stored: one by one with acks that overlap, in atomic batches, and
by fast ingest. Knows frames and answers; nothing of ids' meaning, attempts or Spark.
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

# One write to the socket; the acks of the last ones come while the next is written.
STEP = 1000
# The server's own limits.
ATOMIC_ROWS, ATOMIC_OPEN = 1000, 4
FAST_FLOW, FAST_ROUNDS = 500, 2


@dataclass
class Chunk:
    """Rows on their way, as binary columns without nulls, and which of them are stored."""

    number: Ints  # of each row in its task
    subject: pa.Array
    block: pa.Array | None
    value: pa.Array
    stored: npt.NDArray[np.bool_]
    ids: pa.Array | None = None
    reached: dict[str, int] = dataclasses.field(
        default_factory=dict
    )  # rows that are stored, but not known to be, lie behind these
    conditional: bool = False  # some rows may tell the server when or how to store them: each is answered for itself

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
        """Some of the rows, as a chunk of its own."""
        subject, block, value, ids = (
            None if column is None else column[low:high] for column in (self.subject, self.block, self.value, self.ids)
        )
        stored = self.stored[low:high].copy()
        return Chunk(self.number[low:high], subject, block, value, stored, ids, conditional=self.conditional)

    def mark(self, rows: Ints) -> None:
        """These rows are stored, as far as they are of this chunk."""
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
    """Publish one by one: many frames to a write, and at most `window` rows without an answer.

    Marks rows in `chunk` as their answers come, so that what is stored is known even if this fails. `go_on` is asked
    before each write but the first; once it says no, only what is under way is waited for. `meanwhile` is work for
    the time in which the server has all rows and has not answered the last.
    """
    sid, inbox = connection.subscribe()
    prefix = inbox.encode() + b"."
    done = Acks(acks.nothing())
    sent, answered, total = 0, 0, len(chunk)

    def quick(received: bytes) -> int:
        nonlocal answered
        found = acks.in_a_row(received, prefix, chunk.number)
        if found is None:
            return 0
        answered += len(found[0].rows)
        done.add(found[0], chunk.mark)
        return found[1]

    while True:
        while sent < total and (sent == answered or sent + STEP - answered <= window):
            if sent and not go_on():
                total = sent
                break
            high = min(total, sent + min(STEP, window))
            # Made only now, while the server is busy with the ones before.
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
        if chunk.stored[:answered].all():  # none before these is in doubt, and those behind were sent later
            chunk.reached = done.lasts()
    connection.unsubscribe(sid)
    return done


def _frames(chunk: Chunk, prefix: bytes, low: int, high: int) -> memoryview:
    block = None if chunk.block is None else chunk.block[low:high]
    reply = join(prefix, numbers(np.arange(low, high)))
    return memoryview(frames(chunk.subject[low:high], reply, block, chunk.value[low:high]).buffers()[2])


def atomic(connection: Connection, chunk: Chunk, timeout: float) -> Acks:
    """Publish in batches that are stored whole or not at all. Rows from the first one that was refused are not marked.

    The next batches wait at the server while one is stored, but each is only finished when the one before it is: rows
    behind one that was refused must not be there before it.
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
                # An empty answer: the first message of a batch was accepted.
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
    """A batch, and its last row, which finishes it."""
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
    """Publish by fast ingest: the server says how far it is and how much may be on its way. What it stored before a
    gap or an error is marked.
    """
    done = Acks(acks.nothing())
    if len(chunk) == 1:
        return done  # a batch has a beginning and an end
    sid, inbox = connection.subscribe(deep=True)
    prefix = f"{inbox}.{uuid.uuid4().hex}.{FAST_FLOW}.fail.".encode()
    op = pa.array([b".0.$FI"] + [b".1.$FI"] * (len(chunk) - 2) + [b".2.$FI"], pa.binary())
    out = frames(chunk.subject, join(prefix, numbers(np.arange(1, len(chunk) + 1)), op), chunk.block, chunk.value)
    at, data = offsets(out), memoryview(out.buffers()[2])
    sent, allowed = 0, 1  # the first must be answered before the others follow
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
            elif kind != "gap":  # behind a gap comes the final answer, with the number of rows before it
                final = answer
    connection.unsubscribe(sid)
    stored = field(final, "count", int, 0)
    if not 0 <= stored <= len(chunk):
        raise ProtocolError(f"JetStream says that {stored:,} rows were stored, but {len(chunk):,} were sent.")
    if stored:
        last = field(final, "seq", int, 0)  # 0: all were there already
        spans = {field(final, "stream", str): (last - stored + 1, last)} if last else {}
        done.add(Acks(chunk.number[:stored], spans), chunk.mark)
    return done
