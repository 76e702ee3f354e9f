"""Consuming: pull or push, with each ack policy, on one connection. Runs in a process of the load generator. Knows
consumers and acks; knows no scenarios.

One subscription gets the messages of all streams of a scenario, as columns. Acks of all messages of a buffer go out in
one write.
"""

import contextlib
import time
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.clients.answers import field
from penstock.clients.jetstream import api
from penstock.clients.jetstream.calls import ApiError, Calls
from penstock.clients.jetstream.engines import pull_ended
from penstock.clients.nats import headers, wire
from penstock.clients.nats.client import Connection
from penstock.clients.nats.frames import frames
from penstock.errors import Disconnected, ProtocolError
from penstock.operate.bench.figures import Ints
from penstock.operate.bench.jobs import Consume, Deliver, Place, Told
from penstock.operate.bench.pacing import Windows, stamps
from penstock.operate.bench.publishing import Report, heard, patience

PUSHED = 900_001  # the subscription of push consumers; those of the connection are counted from 1 on
PULL, PULL_BYTES = 5000, 8 << 20  # of one pull
MAX_ACK_PENDING = 10_000
IDLE = 1.0  # seconds without a message after which a consumer looks at the clock
# A server disconnects a client with 64 MB pending. A consumer that pushes without acks asks to go on before that.
HEARTBEAT = 1.0
ACKED = 2.0  # seconds in which the server takes the last acks


def config(name: str, consume: str, ack: str, deliver: str) -> dict[str, Any]:
    """The configuration of a durable, as a subscription would have it. `deliver` is where a push consumer sends to."""
    common: dict[str, Any] = {"durable_name": name, "deliver_policy": "all", "ack_policy": ack}
    if ack != "none":
        common |= {"max_ack_pending": MAX_ACK_PENDING, "ack_wait": 30_000_000_000}
    if consume == "push":
        common |= {"deliver_subject": deliver, "flow_control": True, "idle_heartbeat": int(HEARTBEAT * 1e9)}
    return common


def replies(messages: wire.Messages, rows: Ints) -> pa.Array:
    """The ack subjects of these rows."""
    start, end = messages.sid_end[rows] + 1, messages.reply_end[rows]
    edges = np.empty(2 * len(rows), np.int32)
    edges[0::2], edges[1::2] = start, end
    if not len(rows) or (edges[1:] < edges[:-1]).any() or edges[0] < 0 or edges[-1] > messages.lines.size:
        return pa.array([], pa.binary())
    pieces = pa.Array.from_buffers(pa.binary(), 2 * len(rows) - 1, [None, pa.py_buffer(edges), messages.lines])
    return pieces.take(pa.array(np.arange(0, 2 * len(rows) - 1, 2)))


def ack_frames(subjects: pa.Array) -> memoryview:
    """An ack for each subject, in one buffer."""
    out = frames(subjects, None, None, pa.repeat(pa.scalar(b"+ACK", pa.binary()), len(subjects)))
    size = int(np.frombuffer(out.buffers()[1], np.int32, count=len(out) + 1)[-1])
    return memoryview(out.buffers()[2])[:size]


def app_of(messages: wire.Messages, place: Place, rows: Ints) -> Ints:
    """The number of the application in the subject of each row."""
    line = np.frombuffer(messages.lines, np.uint8)
    at = messages.subject_start[rows] + place.app_at
    tens, ones = line[at].astype(np.int64) - 48, line[at + 1].astype(np.int64) - 48
    return tens * 10 + ones


def sizes(values: pa.Array) -> Ints:
    """The length of each value."""
    edges = np.frombuffer(values.buffers()[1], np.int32, count=len(values) + 1 + values.offset)[values.offset :]
    return np.diff(edges).astype(np.int64)


class Consumer:
    """Durables on all streams of a scenario, and one subscription that gets their messages."""

    def __init__(self, job: Consume | Deliver):
        self.job = job
        self.told = Told()
        self._open()

    def _open(self) -> None:
        job = self.job
        self.connection = Connection(job.options)
        # Requests go over another connection: while one waits for its answer, it drops messages.
        self.calls = Calls(Connection(job.options), job.options)
        self.sid, self.inbox = self.connection.subscribe(deep=True)
        if job.consume == "push":
            # A server pushes only where somebody subscribes to the very subject: to a wildcard it sends nothing.
            self.sid = PUSHED
            self.connection.send(f"SUB {self.inbox}.{PUSHED} {PUSHED}\r\n".encode())
        self.connection.flush()
        self.asked = [0] * len(job.place.streams)  # messages that are asked for and have not come
        self.pulls: dict[bytes, tuple[int, int]] = {}  # the stream and size of each open pull, by its reply subject
        self._pull = 0
        if job.consume == "pull" or isinstance(job, Deliver) or self.told.interruptions:
            self.make()

    def make(self) -> None:
        """Make the durables. What is stored comes at once from one that pushes."""
        job = self.job
        for stream in job.place.streams:
            made = config(job.name, job.consume, job.ack, f"{self.inbox}.{PUSHED}")
            deadline = time.monotonic() + patience(self.job.options)
            while True:
                try:
                    self.calls.create(stream, api.consumer(stream, made), job.name)
                    break
                except (ApiError, Disconnected) as error:
                    # A cluster may have no leader just then; and after a lost connection, a server may take us for
                    # another subscriber for a while.
                    waits = isinstance(error, Disconnected) or self.told.interruptions
                    if not waits or time.monotonic() > deadline:
                        raise
                    time.sleep(0.1)

    def ask(self, stream: int, count: int, expires: float) -> None:
        """Pull so many messages of a stream."""
        self._pull += 1
        reply = f"{self.inbox}.{self._pull}"
        name = self.job.place.streams[stream]
        subject = f"{self.calls.prefix}.CONSUMER.MSG.NEXT.{name}.{self.job.name}"
        self.connection.publish(subject, api.pull(count, None, expires), reply)
        self.pulls[reply.encode()] = (stream, count)
        self.asked[stream] += count

    def receive(self, timeout: float) -> tuple[wire.Messages, Ints, int] | None:
        """The next messages, which rows of them are no control messages, and when they came, in nanoseconds. They are
        acknowledged. None where none came in time.
        """
        scan = heard(self.connection, self.sid, "delivery", timeout)
        if scan is None:
            return None
        now = time.monotonic_ns()
        for frame in scan.others:
            self._status(frame)
        if scan.messages is None:
            return None
        length = sizes(scan.messages.values)
        rows = np.flatnonzero(length > 0)
        if len(rows) < len(length):  # requests of flow control have no body
            for subject in replies(scan.messages, np.flatnonzero(length == 0)).to_pylist():
                self.connection.publish(subject.decode())
        if not len(rows):
            return None
        if self.job.ack == "explicit":
            self.connection.send(ack_frames(replies(scan.messages, rows)))
        elif self.job.ack == "all":
            self._ack_all(scan.messages, rows)
        return scan.messages, rows, now

    def _ack_all(self, messages: wire.Messages, rows: Ints) -> None:
        """Acknowledge the last message of each stream, and so all before it."""
        if len(self.job.place.streams) == 1:
            last = rows[-1:]
        else:
            apps = app_of(messages, self.job.place, rows)
            _, first_from_end = np.unique(apps[::-1], return_index=True)
            last = np.sort(rows[len(rows) - 1 - first_from_end])
        self.connection.send(ack_frames(replies(messages, last)))

    def _status(self, frame: wire.Frame) -> None:
        """What a message without a reply says: the end of a pull, or a heartbeat."""
        if frame.kind not in (b"HMSG", b"MSG") or not frame.headers:
            return
        status, text, fields = headers.fields(frame.headers)
        if frame.subject in self.pulls:
            stream, count = self.pulls.pop(frame.subject)
            if status == 409 and "leader" in text.lower():
                self.asked[stream] = 0
                return
            self.asked[stream] = max(0, self.asked[stream] - pull_ended(frame, count).missing)
        elif status == 100:
            stalled = dict(fields).get("Nats-Consumer-Stalled")
            if stalled:
                self.connection.publish(stalled.decode())
        elif status == 503:
            raise Disconnected("the consumer is gone: 503 no responders")

    def reopen(self, error: Disconnected) -> None:
        """Go on with another connection. The error where no server comes back in time."""
        self.connection.close()
        self.calls.connection.close()
        self.told.interruptions += 1
        deadline = time.monotonic() + patience(self.job.options)
        while True:
            try:
                self._open()
                return
            except Disconnected:
                if time.monotonic() > deadline:
                    raise error from None
                time.sleep(0.2)

    def close(self) -> None:
        """Let the server take the last acks, and say how far the consumers are then."""
        with contextlib.suppress(Disconnected):
            self.connection.flush()
            deadline = time.monotonic() + ACKED
            while True:
                infos = [self.calls.call(f"CONSUMER.INFO.{each}.{self.job.name}") for each in self.job.place.streams]
                pending = sum(field(info, "num_ack_pending", int, 0) for info in infos)
                if not pending or time.monotonic() > deadline:
                    break
                time.sleep(0.02)
            self.told.more |= {
                "ack_pending": pending,
                "ack_floor": sum(field(field(info, "ack_floor", dict), "stream_seq", int) for info in infos),
                "redelivered": sum(field(info, "num_redelivered", int, 0) for info in infos),
            }
        self.connection.close()
        self.calls.connection.close()


def consumed(job: Consume, report: Report, consumer: Consumer) -> Told:
    """Consume what is stored, as fast as it goes."""
    told = consumer.told
    left = list(job.expected)
    got = np.zeros(len(left), np.int64)
    batch = max(1, min(PULL, PULL_BYTES // (job.size + 150)))
    began = time.monotonic()
    if job.consume == "push":
        consumer.make()
    until, next_report, last = began + job.seconds, 0.0, began
    many = len(left) > 1
    while any(n > 0 for n in left):
        now = time.monotonic()
        if now >= until:
            told.remark = "not all was consumed in the time"
            break
        if now >= next_report:
            next_report = now + 0.25
            report({"messages": told.messages})
        try:
            if job.consume == "pull":
                for stream, n in enumerate(left):
                    while n - consumer.asked[stream] > 0 and consumer.asked[stream] < 2 * batch:
                        consumer.ask(stream, min(batch, n - consumer.asked[stream]), 30.0)
            found = consumer.receive(IDLE)
        except Disconnected as error:
            consumer.reopen(error)
            last = time.monotonic()
            continue
        if found is None:
            if time.monotonic() - last > patience(job.options):
                missing = sum(n for n in left if n > 0)
                raise ProtocolError(
                    f"nothing came for {patience(job.options):g} s, with {missing:,} messages still to be consumed: "
                    "messages are lost, or the consumer has stopped."
                )
            continue
        last = time.monotonic()
        messages, rows, _ = found
        counts = np.bincount(app_of(messages, job.place, rows), minlength=len(left)) if many else [len(rows)]
        for stream in range(len(left)):
            n = int(counts[stream])
            left[stream] -= n
            got[stream] += n
            consumer.asked[stream] = max(0, consumer.asked[stream] - n)
        told.messages += len(rows)
    told.seconds = time.monotonic() - began
    consumer.close()
    told.more["got"] = got.tolist()
    return told


def delivered(job: Deliver, report: Report, consumer: Consumer) -> Told:
    """Consume what is published at a constant rate, and measure how late each message comes."""
    told = consumer.told
    total = max(1, int(job.seconds * job.rate))
    began = time.monotonic_ns()
    until = time.monotonic() + job.seconds + 8
    windows = Windows(began, job.window, job.seconds, report, "delivered")
    seen = 0
    while seen < total and time.monotonic() < until:
        try:
            if job.consume == "pull":
                for stream in range(len(job.place.streams)):
                    if consumer.asked[stream] < PULL // 2:
                        consumer.ask(stream, PULL, 60.0)
            found = consumer.receive(0.5)
        except Disconnected as error:
            consumer.reopen(error)
            continue
        if found is None:
            continue
        messages, rows, now = found
        values = messages.values if len(rows) == len(messages.values) else messages.values.take(pa.array(rows))
        windows.add(stamps(values), now)
        if job.consume == "pull":
            many = len(job.place.streams) > 1
            counts = np.bincount(app_of(messages, job.place, rows), minlength=len(consumer.asked)) if many else None
            for stream in range(len(consumer.asked)):
                n = int(counts[stream]) if counts is not None else len(rows)
                consumer.asked[stream] = max(0, consumer.asked[stream] - n)
        seen += len(rows)
    told.messages, told.seconds, told.latency_ms = seen, job.seconds, windows.everything()
    consumer.close()
    return told
