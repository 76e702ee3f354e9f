"""Making load: publishing as fast as it goes. Runs in a process of the load generator, on one
connection. Knows frames and acks; knows no scenarios.

In throughput scenarios no Python statement runs for each message. Frames are made once, by columns, a thousand in a
block, and sent again and again; answers are counted, not parsed.
"""

import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from penstock.clients.jetstream import acks, publish
from penstock.clients.jetstream.calls import ApiError
from penstock.clients.nats import headers, wire
from penstock.clients.nats.client import Connection
from penstock.clients.nats.frames import frames
from penstock.clients.nats.options import NatsOptions
from penstock.errors import Disconnected, PenstockError, ProtocolError
from penstock.operate.bench.figures import percentiles
from penstock.operate.bench.jobs import Pace, Place, Publish, Told
from penstock.operate.bench.matrix import EVENTS

BLOCK = 1000  # messages of one write
WINDOW = 5000  # messages without an ack
CALL = 10_000  # messages of one call of `atomic` and `fast`
BLOCK_BYTES = 4 << 20
# The longest wait for a lost server: a cluster chooses another leader in that time. reconnectTimeout may be less.
PATIENCE = 15.0
Report = Callable[[dict[str, object]], None]


def body(size: int) -> bytes:
    """A body of letters that repeat after a while. It holds no line ends, so that frames are found fast."""
    letters = np.random.default_rng(size).integers(ord("a"), ord("z"), max(1, size), dtype=np.uint8)
    return letters.tobytes()


def subjects(place: Place, count: int, app: int | None = None) -> pa.Array:
    """The subjects of `count` messages: all events of one application, or of all in turn."""
    apps = range(place.apps) if app is None else [app]
    ring = [place.subject(each, event).encode() for event in range(EVENTS) for each in apps]
    return pa.array([ring[i % len(ring)] for i in range(count)], pa.binary())


def answered(data: bytes, prefix: bytes) -> tuple[int, int] | None:
    """How many whole answers to publishes `data` begins with, all of them stored, and how many bytes these are. None
    where something else is in between: then it must be parsed.
    """
    start = b"MSG " + prefix
    lines = data.count(b"\r\n")
    if not data.startswith(start) or lines < 2:
        return None
    end = len(data) if data.endswith(b"\r\n") else data.rfind(b"\r\n") + 2
    if lines % 2:  # behind the last whole answer is the control line of the next
        end = data.rfind(b"\r\n", 0, end - 2) + 2
    count = lines // 2
    if (
        data.count(b"\n" + start, 0, end) + 1 != count
        or data.count(b'"seq":', 0, end) != count
        or data.find(b'"error"', 0, end) >= 0
        or data.find(b'"duplicate"', 0, end) >= 0
    ):
        return None
    return count, end


def blocks(place: Place, prefix: bytes, size: int) -> list[tuple[int, memoryview]]:
    """The frames of some blocks, each with its number of messages: in all, every subject is in them equally often."""
    rows = max(1, min(BLOCK, BLOCK_BYTES // (size + 100)))
    value = pa.repeat(pa.scalar(body(size), pa.binary()), rows)
    reply = pa.array([prefix + b"%d" % i for i in range(rows)], pa.binary())
    names = subjects(place, rows * place.apps)
    made = []
    for k in range(place.apps):
        data = memoryview(frames(names[k * rows : (k + 1) * rows], reply, None, value).buffers()[2])
        made.append((rows, data))
    return made


class Publishing:
    """A publisher, over the connections that it may need: a lost one is made anew."""

    def __init__(self, job: Publish, report: Report):
        self.job, self.report = job, report
        self.told = Told()
        self.connection = Connection(job.options)
        self.until = 0.0
        self._next = 0.0
        self._prepare()

    def _prepare(self) -> None:
        """Make the frames, before the clock runs."""
        if self.job.mode == "pipelined":
            self._sid, inbox = self.connection.subscribe()
            self._prefix = inbox.encode() + b"."
            self._ring = blocks(self.job.place, self._prefix, self.job.size)
        elif self.job.mode in ("atomic", "fast"):
            place, rows = self.job.place, max(2, min(CALL, (16 << 20) // (self.job.size + 100)))
            self._value = pa.repeat(pa.scalar(body(self.job.size), pa.binary()), rows)
            self._names = [subjects(place, rows, app) for app in range(place.apps)]

    def run(self) -> Told:
        """Publish until the time is over, or all is published."""
        self.until = time.monotonic() + self.job.seconds
        way = {"pipelined": self._pipelined, "one-by-one": self._one_by_one, "atomic": self._calls, "fast": self._calls}
        began = time.monotonic()
        while not self._over():
            try:
                way[self.job.mode]()
            except Disconnected as error:
                self.connection = again(self.job, error, self.connection)
                self._prepare()
                self.told.interruptions += 1
        self.told.seconds = time.monotonic() - began
        self.connection.close()
        return self.told

    def _over(self) -> bool:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + 0.25
            self.report({"messages": self.told.messages})
        return now >= self.until or self.told.messages >= self.job.most

    def _pipelined(self) -> None:
        connection, told = self.connection, self.told
        sid, prefix, ring = self._sid, self._prefix, self._ring
        rows = ring[0][0]
        window = min(WINDOW, max(2 * rows, (64 << 20) // (self.job.size + 100) // 8))
        sent, before = 0, told.messages  # messages that were sent here, and that were stored before

        def quick(data: bytes) -> int:
            found = answered(data, prefix)
            if found is None:
                return 0
            told.messages += found[0]
            return found[1]

        try:
            while not self._over() or told.messages - before < sent:
                while (
                    sent + rows - (told.messages - before) <= window
                    and before + sent < self.job.most
                    and (not sent or time.monotonic() < self.until)
                ):
                    connection.send(ring[sent // rows % len(ring)][1])
                    sent += rows
                if told.messages - before < sent:
                    self._answers(sid, prefix, quick)
        except Disconnected:
            told.unknown += sent - (told.messages - before)
            raise

    def _answers(self, sid: int, prefix: bytes, quick: Callable[[bytes], int]) -> None:
        """Wait for answers, and count those that `quick` did not."""
        scan = self.connection.receive(sid, linger=False, kind="reply", quick=quick)
        if scan.messages is not None:
            got = acks.read(scan.messages, np.arange(BLOCK))
            if got.refused:
                raise ApiError(got.refused[0].code, f"JetStream refuses: {got.refused[0].text}")
            self.told.messages += len(scan.messages)
        for frame in scan.others:
            if frame.subject.startswith(prefix):
                raise refused(frame)

    def _one_by_one(self) -> None:
        """Each message waits for the ack of the one before. The time of each is measured."""
        connection, told = self.connection, self.told
        place, value = self.job.place, body(self.job.size)
        ring = [place.subject(app, event) for event in range(EVENTS) for app in range(place.apps)]
        clock, times = time.perf_counter_ns, []
        while not self._over():
            for subject in ring:
                began = clock()
                try:
                    frame = connection.request(subject, value)
                except Disconnected:
                    told.unknown += 1
                    raise
                times.append(clock() - began)
                if b'"seq":' not in frame.payload or b'"error"' in frame.payload:
                    raise refused(frame)
                told.messages += 1
                if told.messages >= self.job.most:
                    break
        told.more["call_ms"] = percentiles(np.array(times, float) / 1e6)

    def _calls(self) -> None:
        """Whole chunks by `publish.atomic` or `publish.fast`, one application after the other: a batch is one
        stream's.
        """
        told, names, value, rows = self.told, self._names, self._value, len(self._value)
        turn = 0
        while not self._over():
            chunk = publish.Chunk(np.arange(rows), names[turn % len(names)], None, value, np.zeros(rows, bool))
            turn += 1
            try:
                if self.job.mode == "atomic":
                    publish.atomic(self.connection, chunk, self.job.options.request_timeout)
                else:
                    publish.fast(self.connection, chunk, self.job.options.request_timeout)
            except Disconnected:
                told.messages += int(chunk.stored.sum())
                told.unknown += int((~chunk.stored).sum())
                raise
            told.messages += int(chunk.stored.sum())
            if not chunk.stored.all():
                missing = int((~chunk.stored).sum())
                raise ProtocolError(f"JetStream did not store {missing:,} of {rows:,} messages ({self.job.mode}).")


def again(job: Publish | Pace, error: Disconnected, old: Connection) -> Connection:
    """Another connection after a lost one. The error where no server comes back in time."""
    old.close()
    deadline = time.monotonic() + patience(job.options)
    while True:
        try:
            return Connection(job.options)
        except Disconnected:
            if time.monotonic() > deadline:
                raise error from None
            time.sleep(0.2)


def patience(options: NatsOptions) -> float:
    """How many seconds a lost server is waited for."""
    return min(PATIENCE, options.reconnect_timeout)


def heard(connection: Connection, sid: int, kind: wire.Kind, timeout: float) -> wire.Scan | None:
    """The next frames; None where none came in time."""
    began = time.monotonic()
    try:
        return connection.receive(sid, linger=False, kind=kind, timeout=timeout)
    except Disconnected:
        # A connection that breaks says so at once; what took all the time was only silence.
        if time.monotonic() - began >= timeout:
            return None
        raise


def refused(frame: wire.Frame) -> PenstockError:
    """The error in an answer to a publish."""
    if frame.headers:
        status, text, _ = headers.fields(frame.headers)
        if status == 503:
            return Disconnected("no stream answers: 503 no responders")
        return ApiError(status, f"JetStream refuses: {status} {text}")
    found = acks.refusal(0, acks.parse(frame.payload))
    if found is None:
        return ProtocolError(f"JetStream answered {frame.payload[:80]!r} to a publish.")
    return ApiError(found.code, f"JetStream refuses: {found.text} (error {found.code})")
