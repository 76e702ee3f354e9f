"""A durable consumer that others share, as a source: messages are held from their delivery until Spark has committed
them, and acknowledged then. At least once: what is not acknowledged when a run ends is delivered again.

A thread pulls while there is room, and tells the server of long batches that they are still being worked on.
"""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.columns import join, numbers, offsets, segments
from penstock.connectors.jetstream import api, engines
from penstock.connectors.jetstream.calls import ApiError, Calls
from penstock.connectors.jetstream.options import JetStreamOptions
from penstock.connectors.nats import wire
from penstock.connectors.nats.client import Connection
from penstock.connectors.nats.frames import frames
from penstock.connectors.nats.pool import connect, keep
from penstock.errors import Disconnected, OptionError, PenstockError
from penstock.held import Held
from penstock.offsets import Bound, Bounds, Offsets, Range
from penstock.retry import Retry

log = logging.getLogger("penstock")

PULL, PULL_BYTES, PULL_SECONDS = 5000, 8 << 20, 2.0
# Acknowledgements that are sent and confirmed in one go.
ACKS = 1000
# The subject of a message's acknowledgement, which travels with it as far as this file.
ACK = "ack"


class DurableSource:
    """Pulls from its first use until it is closed."""

    def __init__(self, options: JetStreamOptions, columns: pa.Schema):
        self.options, self.columns = options, columns
        self.stream, self.consumer = options.stream[0], options.consumer
        self.held = Held(options.max_buffer_bytes)
        self._thread: threading.Thread | None = None
        self._failed: Exception | None = None
        self._closed = False
        self._ack_wait = 30.0

    def bounds(self) -> Bounds:
        """What is held, and what comes next; starts to pull."""
        if self._thread is None:
            self.check()
            self._thread = threading.Thread(target=self._work, name="penstock-durable", daemon=True)
            self._thread.start()
        if self._failed is not None:
            raise self._failed
        held = self.held
        return {self.stream: Bound(held.first, held.next, row_bytes=held.row_bytes, transient=True)}

    def find(self, shard: str, timestamp: int) -> int:
        """The consumer says what comes."""
        return self.held.next

    def count(self, shard: str, positions: Sequence[int]) -> Sequence[int] | None:
        """Positions count well enough."""
        return None

    def ship(self, span: Range) -> list[pa.RecordBatch]:
        """The rows of a range. Those of an earlier run are delivered again, under new numbers."""
        return [batch.select(self.columns.names) for batch in self.held.rows(span.start, span.end)]

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        """Only here, where they were received."""
        yield from self.ship(span)

    def progress(self, at: Offsets) -> None:
        """The consumer itself shows it."""

    def commit(self, end: Offsets) -> None:
        """Acknowledge what Spark has. Where that fails, messages come again: a warning, no error."""
        if self.stream not in end:
            return
        gone = [batch.column(ACK) for batch in self.held.release(end[self.stream].next)]
        replies = pa.chunked_array(gone, pa.string()).combine_chunks().cast(pa.binary())
        if self.options.ack == "all":
            replies = replies[-1:]
        for attempt in (1, 2):
            try:
                connection = connect(self.options)
                while len(replies):
                    _confirmed(connection, replies[:ACKS])
                    replies = replies[ACKS:]
                keep(connection)
                return
            except PenstockError as error:
                if attempt == 2:
                    log.warning("%d messages were not acknowledged and will come again: %s", len(replies), error)

    def close(self) -> None:
        """Stop pulling."""
        self._closed = True

    def check(self) -> None:
        """Refuse a consumer that is not what the options say. Takes no message."""
        connection = connect(self.options)
        calls = Calls(connection, self.options)
        calls.stream(self.stream)
        try:
            config: dict[str, Any] = calls.call(f"CONSUMER.INFO.{self.stream}.{self.consumer}")["config"]
        except ApiError as error:
            if error.code != api.NO_CONSUMER:
                raise
            there = [c.get("durable_name") or c.get("name") for c in calls.consumers(self.stream)]
            listed = f"It has: {', '.join(map(str, there))}." if there else "It has none."
            raise OptionError(f"stream '{self.stream}' has no consumer '{self.consumer}'. {listed}") from None
        if config.get("deliver_subject"):
            raise OptionError(f"consumer '{self.consumer}' pushes messages; make one that is pulled from.")
        if config.get("ack_policy") != self.options.ack:
            raise OptionError(
                f"ack={self.options.ack}, but consumer '{self.consumer}' has the ack policy {config.get('ack_policy')}."
            )
        self._ack_wait = config.get("ack_wait", 30_000_000_000) / 1e9
        keep(connection)

    def _work(self) -> None:
        """The thread."""
        retry = self.options.retry(f"pulling from '{self.consumer}'")
        try:
            while not self._closed:
                try:
                    self._pull(retry)
                except Disconnected as error:
                    retry.after(error)
        except Exception as error:  # whatever it is, the query must not go on without anybody who pulls
            self._failed = error

    def _pull(self, retry: Retry) -> None:
        """One connection's life: a pull after the other, until it breaks or the source is closed."""
        connection = connect(self.options)
        calls = Calls(connection, self.options)
        sid, inbox = connection.subscribe()
        subject = f"{calls.prefix}.CONSUMER.MSG.NEXT.{self.stream}.{self.consumer}"
        in_progress = time.monotonic() + self._ack_wait / 3
        pulls = 0
        while not self._closed:
            if time.monotonic() >= in_progress:
                self._still_at_work(connection)
                in_progress = time.monotonic() + self._ack_wait / 3
            most = min(PULL_BYTES, self.held.room() // 2)
            if most < 1 << 20:
                time.sleep(0.05)
                continue
            pulls += 1
            expires = min(PULL_SECONDS, self._ack_wait / 6)
            connection.publish(subject, api.pull(PULL, most, expires), f"{inbox}.{pulls}")
            ended = False
            while not ended:
                scan = connection.receive(sid, linger=False)
                if scan.messages is not None:
                    self.held.add(self._batch(scan.messages))
                for frame in scan.others:
                    if frame.subject == f"{inbox}.{pulls}".encode():
                        engines.pull_ended(frame, PULL)  # raises where the consumer is gone
                        ended = True
                        retry.progress()
        connection.close()

    def _still_at_work(self, connection: Connection) -> None:
        """Tell the server that what is held is being worked on, or it would deliver it to others."""
        for batch in self.held.waiting():
            replies = batch.column(ACK).cast(pa.binary())
            out = frames(replies, None, None, pa.repeat(pa.scalar(b"+WPI", pa.binary()), len(batch)))
            connection.send(memoryview(out.buffers()[2])[: int(offsets(out)[-1])])

    def _batch(self, messages: wire.Messages) -> pa.RecordBatch:
        batch = engines.as_batch(engines.consumer_rows(messages), self.stream, self.columns)
        replies = segments(messages.lines, messages.sid_end + 1, messages.reply_end).cast(pa.string())
        return batch.append_column(ACK, replies)


def _confirmed(connection: Connection, replies: pa.Array) -> None:
    """Acknowledge messages, all at once, and wait until the server has said so of each."""
    sid, inbox = connection.subscribe()
    answers = join(inbox.encode() + b".", numbers(np.arange(len(replies))))
    out = frames(replies, answers, None, pa.repeat(pa.scalar(b"+ACK", pa.binary()), len(replies)))
    connection.send(memoryview(out.buffers()[2])[: int(offsets(out)[-1])])
    left = len(replies)
    while left:
        scan = connection.receive(sid, linger=False, kind="reply")
        left -= len(scan.messages) if scan.messages is not None else 0
        if any(frame.subject.startswith(inbox.encode()) for frame in scan.others):
            raise Disconnected("nobody takes acknowledgements any more: the consumer is gone")
    connection.unsubscribe(sid)
