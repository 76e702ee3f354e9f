"""A durable consumer that others share, as a source: messages are held from their delivery until Spark has committed
them, and then acknowledged. At least once: what is not acknowledged when a run ends is delivered again.

A thread pulls while there is room. It also tells the server that messages of long batches are still in progress, and
acknowledges what could not be acknowledged at the commit. Knows the consumer; must not know Spark or other streams.
"""

import logging
import threading
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.buffers import join, numbers, offsets, segments
from penstock.clients.answers import field
from penstock.clients.jetstream import api, engines
from penstock.clients.jetstream.calls import ApiError, Calls
from penstock.clients.nats import wire
from penstock.clients.nats.client import Connection
from penstock.clients.nats.frames import frames
from penstock.clients.nats.pool import connect, keep
from penstock.connectors.jetstream.floor import ACK, Deliveries, Floats, safe, with_acks
from penstock.connectors.jetstream.options import JetStreamOptions
from penstock.errors import Disconnected, OptionError, PenstockError
from penstock.kit import figures
from penstock.kit.buffer import Buffer, BufferedSource
from penstock.kit.retry import Retry
from penstock.planning.positions import Bounds, Offsets, Range

log = logging.getLogger("penstock")

PULL, PULL_BYTES, PULL_SECONDS = 5000, 8 << 20, 2.0
# Pull again when so many bytes are free, or a quarter of a small buffer.
ENOUGH = 2 << 20
# How many acknowledgements are sent and confirmed together.
ACKS = 1000
# Warn when acknowledgements have waited for so many times the consumer's `ack_wait`.
LONG = 3
# After so many seconds without a message, let Spark commit the last batch.
QUIET = 0.2
# How many seconds ack=all waits for other clients before it asks the server again.
AGAIN = 0.5
# The end of the reply subject of a first delivery: number of deliveries, two sequences, time, and pending messages.
FIRST_DELIVERY = r"\.1\.\d+\.\d+\.\d+\.\d+$"


class DurableSource(BufferedSource):
    """Pulls from its first use until it is closed."""

    def __init__(self, options: JetStreamOptions, columns: pa.Schema):
        super().__init__(
            options.stream[0], Buffer(options.max_buffer_bytes, "and are delivered again under new numbers")
        )
        self.options, self.columns = options, columns
        self.stream, self.consumer = options.stream[0], options.consumer
        self._thread: threading.Thread | None = None
        self._failed: Exception | None = None
        self._closed = False
        self._ack_wait = 30.0
        self._acking = threading.Lock()
        self._owed = Deliveries.of([])  # committed by Spark, but not acknowledged yet
        self._owed_since: float | None = None
        self._next_ack = 0.0  # when the thread tries to acknowledge again
        self._warned = False
        self._position = 0  # of the query
        self._position_since = 0.0

    def bounds(self) -> Bounds:
        """The numbers of the messages that are held, and of the next one. Starts to pull."""
        if self._thread is None:
            self.check()
            self._thread = threading.Thread(target=self._work, name="penstock-durable", daemon=True)
            self._thread.start()
        if self._failed is not None:
            raise self._failed
        held = self.held
        # Spark commits a batch only when it begins the next one, and without new messages there is none. The server may
        # send nothing more before the last batch is acknowledged: then a number without a row makes an empty batch.
        quiet = time.monotonic() - self._position_since > QUIET
        if held.next == self._position and quiet and held.waiting():
            held.skip()
        return {self.stream: self.bound()}

    def ship(self, span: Range) -> list[pa.RecordBatch]:
        """The rows of a range that are held. Those of an earlier run are delivered again, with new numbers."""
        return [batch.select(self.columns.names) for batch in self.held.rows(span.start, span.end)]

    def progress(self, at: Offsets) -> None:
        """Remember the position. Nothing is shown on the server: the consumer itself has its state."""
        if self.stream in at:
            self._position, self._position_since = at[self.stream].next, time.monotonic()

    def commit(self, end: Offsets) -> None:
        """Acknowledge what Spark has committed. Where that fails, the thread does it later."""
        if self.stream not in end:
            return
        committed = Deliveries.of(self.held.release(end[self.stream].next))
        with self._acking:
            self._owed += committed
        try:
            connection = connect(self.options)
            self._acknowledge(Calls(connection, self.options))
            keep(connection)
        except PenstockError as error:
            log.info("%d messages are to be acknowledged later: %s", self._owed.size(), error)

    def close(self) -> None:
        """Stop pulling."""
        self._closed = True

    def check(self) -> None:
        """Refuse a consumer that does not exist or does not fit the options. Takes no message."""
        connection = connect(self.options)
        calls = Calls(connection, self.options)
        calls.stream(self.stream)
        self._pull_limits(calls)
        keep(connection)

    def _pull_limits(self, calls: Calls) -> api.PullLimits:
        """The limits of a pull; an OptionError where the consumer does not exist or does not fit the options."""
        try:
            config = field(self._info(calls), "config", dict)
        except ApiError as error:
            if error.code != api.NO_CONSUMER:
                raise
            names = [config.get("durable_name") or config.get("name") for config in calls.consumers(self.stream)]
            listed = f"It has: {', '.join(map(str, names))}." if names else "It has none."
            raise OptionError(f"stream '{self.stream}' has no consumer '{self.consumer}'. {listed}") from None
        if config.get("deliver_subject"):
            raise OptionError(f"consumer '{self.consumer}' pushes messages; make one that is pulled from.")
        if config.get("ack_policy") != self.options.ack:
            raise OptionError(
                f"ack={self.options.ack}, but consumer '{self.consumer}' has the ack policy {config.get('ack_policy')}."
            )
        self._ack_wait = field(config, "ack_wait", int, 30_000_000_000) / 1e9
        return api.PullLimits.of(config, PULL, PULL_BYTES, self._pull_timeout())

    def _pull_timeout(self) -> float:
        """How many seconds a pull may wait, so that acknowledgements and errors are in time."""
        return min(PULL_SECONDS, self._ack_wait / 6, self.options.request_timeout / 2)

    def _info(self, calls: Calls) -> dict[str, Any]:
        return calls.call(f"CONSUMER.INFO.{self.stream}.{self.consumer}")

    def _work(self) -> None:
        """Pull until the source is closed. Runs in the thread."""
        retry = self.options.retry(f"pulling from '{self.consumer}'")
        try:
            while not self._closed:
                try:
                    self._pull(retry)
                except Disconnected as error:
                    retry.after(error)
        except Exception as error:  # any error: the query must not go on while nothing is pulled
            self._failed = error

    def _pull(self, retry: Retry) -> None:
        """Pull on one connection, until it breaks or the source is closed."""
        connection = connect(self.options)
        calls = Calls(connection, self.options)
        limits = self._pull_limits(calls)
        sid, inbox = connection.subscribe()
        subject = f"{calls.prefix}.CONSUMER.MSG.NEXT.{self.stream}.{self.consumer}"
        in_progress = time.monotonic() + self._ack_wait / 3
        pulls, large = 0, False
        while not self._closed:
            if time.monotonic() >= in_progress:
                self._send_in_progress(connection)
                in_progress = time.monotonic() + self._ack_wait / 3
            # Between two pulls no message is on its way: each pending one is held here, or is another client's.
            if time.monotonic() >= self._next_ack:
                self._acknowledge(calls)
            room, empty = self.held.room(), self.held.first == self.held.next
            if not empty and room < min(ENOUGH, self.held.most // 4):
                time.sleep(0.05)
                continue
            pulls += 1
            reply, batch = f"{inbox}.{pulls}", 1 if large else limits.batch
            # A message that is larger than the limit is pulled alone, without a limit.
            max_bytes = None if large else max(1, min(limits.max_bytes, room // 2))
            connection.publish(subject, api.pull(batch, max_bytes, limits.expires), reply)
            end = self._receive(connection, sid, reply.encode(), 1 if large else None)
            retry.progress()
            large = end.too_large and (empty or room > connection.max_payload)
            if end.too_large and not large:
                time.sleep(0.05)  # Spark must commit first
        connection.close()

    def _receive(self, connection: Connection, sid: int, reply: bytes, expected: int | None) -> engines.PullEnd:
        """Hold the messages of a pull until its end: its status, or the `expected` number of messages."""
        while True:
            scan = connection.receive(sid, linger=False)
            if scan.messages is not None:
                self.held.add(self._batch(scan.messages), whole=True)
                if expected is not None:
                    return engines.PullEnd(0)
            for frame in scan.others:
                if frame.subject == reply:
                    return engines.pull_ended(frame, 0)  # raises where the consumer was deleted

    def _acknowledge(self, calls: Calls) -> None:
        """Acknowledge what Spark has committed. With ack=all, only up to the first message of another client."""
        with self._acking:
            if not self._owed.size():
                return
            if self.options.ack == "all":
                self._acknowledge_all(calls)
                return
            while self._owed.size():
                _confirm(calls.connection, self._owed.reply[:ACKS])
                _count_acks(self._owed.came[:ACKS])
                self._owed = self._owed.rest(ACKS)

    def _acknowledge_all(self, calls: Calls) -> None:
        """Acknowledge with ack=all, as far as it is safe. Warns where that waits for long."""
        held = Deliveries.of(self.held.waiting())  # before the server is asked
        info = self._info(calls)
        ack_floor = field(info, "ack_floor", dict)
        floor = field(ack_floor, "stream_seq", int), field(ack_floor, "consumer_seq", int)
        self._owed = self._owed.after(floor[0])
        row, foreign = safe(self._owed, held, floor, field(info, "num_ack_pending", int))
        if row is not None:
            last = int(self._owed.sequence[row])
            _confirm(calls.connection, self._owed.reply[row : row + 1])
            _count_acks(self._owed.came[self._owed.sequence <= last])
            self._owed = self._owed.after(last)
            self._owed_since = None
        now = time.monotonic()
        self._next_ack = now + AGAIN
        if not self._owed.size() or self._owed_since is None:
            self._owed_since, self._warned = now, False
        if now - self._owed_since < LONG * self._ack_wait:
            return
        if foreign > 0 and not self._warned:
            self._warned = True
            log.warning(
                "%d messages of consumer '%s' are not acknowledged, though Spark has them: %d others were delivered to "
                "somebody who has not acknowledged them, and ack=all would acknowledge those too. Find out who else "
                "pulls from it, or make a consumer with explicit acks",
                *(self._owed.size(), self.consumer, foreign),
            )
        elif foreign <= 0 and not held.size():
            log.warning("%d messages cannot be acknowledged any more, and come again", self._owed.size())
            self._owed = Deliveries.of([])

    def _send_in_progress(self, connection: Connection) -> None:
        """Tell the server that messages are still in progress. Otherwise it would deliver them to others."""
        for replies in (*(batch.column(ACK) for batch in self.held.waiting()), self._owed.reply):
            if len(replies):
                _publish(connection, replies, None, b"+WPI")

    def _batch(self, messages: wire.Messages) -> pa.RecordBatch:
        """The messages as rows that can be acknowledged. Counts those that were delivered before."""
        batch = engines.as_batch(engines.consumer_rows(messages), self.stream, self.columns)
        replies = segments(messages.lines, messages.sid_end + 1, messages.reply_end).cast(pa.string())
        first = pc.match_substring_regex(replies, FIRST_DELIVERY)
        figures.count(redelivered=len(replies) - (pc.sum(first).as_py() or 0))
        return with_acks(batch, replies, time.monotonic())


def _count_acks(came: Floats) -> None:
    """Count messages that are acknowledged now, and how long they waited for it."""
    figures.count(acks=len(came), ack_delay=float((time.monotonic() - came).sum()))


def _confirm(connection: Connection, replies: pa.Array) -> None:
    """Acknowledge messages together, and wait until the server has confirmed each."""
    sid, inbox = connection.subscribe()
    answers = join(inbox.encode() + b".", numbers(np.arange(len(replies))))
    _publish(connection, replies, answers, b"+ACK")
    left = len(replies)
    while left:
        scan = connection.receive(sid, linger=False, kind="reply")
        left -= len(scan.messages) if scan.messages is not None else 0
        if any(frame.subject.startswith(inbox.encode()) for frame in scan.others):
            raise Disconnected("nobody takes acknowledgements any more: the consumer is gone")
    connection.unsubscribe(sid)


def _publish(connection: Connection, subjects: pa.Array, replies: pa.Array | None, body: bytes) -> None:
    """Publish the same body on each subject, in one write."""
    bodies = pa.repeat(pa.scalar(body, pa.binary()), len(subjects))
    out = frames(subjects.cast(pa.binary()), replies, None, bodies)
    connection.send(memoryview(out.buffers()[2])[: int(offsets(out)[-1])])
