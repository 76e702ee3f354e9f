"""Publishing at a constant rate, and how late acks and deliveries are. Runs in a process of the load generator.

Latency counts from the time at which a message was due, not from when it was sent: a message that was sent late because
the one before took long is late, too. A body begins with that time, so that whoever gets it can tell.
"""

import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.clients.jetstream import acks
from penstock.clients.jetstream.calls import ApiError
from penstock.clients.nats.client import Connection
from penstock.errors import Disconnected, PenstockError
from penstock.operate.bench.figures import Floats, Ints, percentiles
from penstock.operate.bench.jobs import Pace, Told
from penstock.operate.bench.matrix import EVENTS
from penstock.operate.bench.publishing import Report, again, body, heard, refused

RING = 1 << 17  # messages that can be without an ack; their numbers are used again
LEAD = 50_000_000  # nanoseconds before the first message is due
ANSWERS = 10.0  # seconds in which the last acks must come


def stamps(values: pa.Array) -> Ints:
    """The times at the start of bodies that were published at a constant rate."""
    return np.asarray(pc.binary_slice(values, 0, 20).cast(pa.string()).cast(pa.int64()))


class Windows:
    """Latencies, told once for each window of time. They are kept only where one window is all."""

    def __init__(self, began: int, window: float, seconds: float, report: Report, kind: str):
        self.began, self.window, self.report, self.kind = began, int(window * 1e9), report, kind
        self.at = 0
        self.keep = window >= seconds
        self.parts: list[Floats] = []

    def add(self, due: Ints, now: int) -> None:
        """Messages that were due then, and are done now. Nanoseconds."""
        while now - self.began > (self.at + 1) * self.window:
            self.tell()
            self.at += 1
        self.parts.append((now - due) / 1e6)

    def tell(self) -> None:
        """Tell the percentiles of the window that is over."""
        if self.parts:
            values = np.concatenate(self.parts)
            self.report({self.kind: percentiles(values), "window": self.at, "count": len(values)})
            if not self.keep:
                self.parts = []

    def everything(self) -> list[float]:
        """All latencies, in milliseconds; none where there were many windows."""
        self.tell()
        return np.concatenate(self.parts).tolist() if self.parts else []


class Acks:
    """The acks of paced messages, collected in a thread, on a connection of its own."""

    def __init__(self, job: Pace, report: Report, began: int):
        self.job, self.total = job, max(1, int(job.seconds * job.rate))
        self.connection = Connection(job.options)
        self.sid, inbox = self.connection.subscribe()
        self.connection.flush()
        self.prefix = inbox.encode() + b"."
        self.due = np.zeros(min(RING, self.total), np.int64)  # of the last message with each number
        self.windows = Windows(began, job.window, job.seconds, report, "ack")
        self.count = 0
        self.failed: PenstockError | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()

    def _collect(self) -> None:
        numbers = np.arange(len(self.due))
        try:
            while self.count < self.total and not self._over.is_set():
                scan = heard(self.connection, self.sid, "reply", 1.0)
                if scan is None:
                    continue
                now = time.monotonic_ns()
                if scan.messages is not None:
                    got = acks.read(scan.messages, numbers)
                    if got.refused:
                        raise ApiError(got.refused[0].code, f"JetStream refuses: {got.refused[0].text}")
                    self.windows.add(self.due[got.rows], now)
                    self.count += len(got.rows)
                for frame in scan.others:
                    if frame.subject.startswith(self.prefix):
                        raise refused(frame)
        except PenstockError as error:
            self.failed = error

    def end(self) -> None:
        """Wait for the last acks. What went wrong is raised."""
        self._thread.join(min(ANSWERS, self.job.options.request_timeout))
        self._over.set()
        self._thread.join(2)
        self.connection.close()
        if self.failed is not None:
            raise self.failed


def paced(job: Pace, report: Report) -> Told:
    """Publish at a constant rate, and measure how late acks are. One connection sends, another one gets the acks."""
    told, sender = Told(), Connection(job.options)
    began = time.monotonic_ns() + LEAD
    collected = Acks(job, report, began)
    total, step, due_of = collected.total, 1e9 / job.rate, collected.due
    names = [job.place.subject(app, event).encode() for event in range(EVENTS) for app in range(job.place.apps)]
    filler = body(max(1, job.size - 20))
    late: list[float] = []
    sent, ping = 0, time.monotonic() + 1
    while sent < total and collected.failed is None:
        due, now = began + int(sent * step), time.monotonic_ns()
        if now < due:
            time.sleep((due - now) / 1e9)
            now = time.monotonic_ns()
        out = bytearray()
        while sent < total and due <= now:
            number = sent % len(due_of)
            due_of[number] = due
            value = b"%020d%s" % (due, filler)
            subject = names[sent % len(names)]
            out += b"PUB %s %s%d %d\r\n%s\r\n" % (subject, collected.prefix, number, len(value), value)
            if collected.windows.keep:
                late.append((now - due) / 1e6)
            sent += 1
            due = began + int(sent * step)
        try:
            sender.send(bytes(out))
        except Disconnected as error:
            told.interruptions += 1
            sender = again(job, error, sender)
        if time.monotonic() > ping:
            sender.alive()  # answers PINGs of the server
            ping = time.monotonic() + 1
            report({"messages": sent})
    collected.end()
    told.messages, told.unknown = collected.count, sent - collected.count
    told.latency_ms, told.late_ms, told.seconds = collected.windows.everything(), late, job.seconds
    sender.close()
    return told
