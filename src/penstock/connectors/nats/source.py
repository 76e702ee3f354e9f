"""Core NATS as a source: a thread subscribes, and holds what arrives until Spark has committed it.

A position is the number of a message in the order of arrival. What is not committed when a run ends is gone: Core NATS
delivers at most once. Knows one connection; must not know streams or Spark.
"""

import logging
import threading
import time

import numpy as np
import pyarrow as pa

from penstock.arrow.buffers import segments, text
from penstock.arrow.types import TIMESTAMP
from penstock.clients.nats import headers, wire
from penstock.clients.nats.client import OWN, Connection
from penstock.clients.nats.pool import connect, keep
from penstock.connectors.nats.options import CoreOptions
from penstock.errors import Disconnected
from penstock.kit.buffer import Buffer, BufferedSource
from penstock.planning.positions import Bounds, Offsets

log = logging.getLogger("penstock")
# The name of the only shard: all subjects together.
SHARD = "subjects"


class CoreSource(BufferedSource):
    """Listens from its first use until it is closed."""

    def __init__(self, options: CoreOptions, columns: pa.Schema):
        super().__init__(SHARD, Buffer(options.max_buffer_bytes))
        self.options, self.columns = options, columns
        self._connection: Connection | None = None
        self._failed: Exception | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def check(self) -> None:
        """Reach the server, without subscribing: messages of a queue group that come now would be lost."""
        keep(connect(self.options))

    def bounds(self) -> Bounds:
        """The numbers of the messages that are held, and of the next one. Starts to listen."""
        if self._thread is None:
            self._connection = self._listen()
            self._thread = threading.Thread(target=self._receive, name="penstock-nats", daemon=True)
            self._thread.start()
        if self._failed is not None:
            raise self._failed
        return {SHARD: self.bound()}

    def progress(self, at: Offsets) -> None:
        """Does nothing: Core NATS shows no position."""

    def commit(self, end: Offsets) -> None:
        """Drop what Spark has committed."""
        if SHARD in end:
            self.held.release(end[SHARD].next)

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        if self._connection is not None:
            self._connection.close()

    def _listen(self) -> Connection:
        """A connection whose subscriptions the server has confirmed: what is published from now on arrives."""
        connection = Connection(self.options)
        queue = f" {self.options.queue}" if self.options.queue else ""
        subscriptions = "".join(f"SUB {s}{queue} {OWN + 1 + i}\r\n" for i, s in enumerate(self.options.subjects))
        connection.send(subscriptions.encode())
        connection.flush(keep=self._add)
        return connection

    def _receive(self) -> None:
        """Hold everything that arrives, until the source is closed. Runs in the thread."""
        retry = self.options.retry("listening (what is published until then is not received)")
        try:
            while not self._closed:
                try:
                    if self._connection is None:
                        self._connection = self._listen()
                        retry.progress()
                    self._add(self._connection.listen())
                except Disconnected as error:
                    self._connection = None
                    if not self._closed:
                        retry.after(error)
        except Exception as error:  # any error: the query must not go on while nothing listens
            self._failed = error

    def _add(self, scan: wire.Scan) -> None:
        """Hold messages, as far as there is room. Warns at the first one that is dropped."""
        if scan.messages is None:
            return
        is_first_drop = not self.held.dropped
        if not self.held.add(self._batch(scan.messages)) and is_first_drop:
            log.warning(
                "messages are dropped: %d bytes wait for Spark (maxBufferBytes). They count in the lag; raise the "
                "limit, trigger more often, or set capture=true",
                self.held.most,
            )

    def _batch(self, messages: wire.Messages) -> pa.RecordBatch:
        columns = [_column(messages, name) for name in self.columns.names]
        return pa.RecordBatch.from_arrays(columns, schema=self.columns)


def _column(messages: wire.Messages, name: str) -> pa.Array:
    if name == "headers":
        return headers.headers_column(messages.blocks, len(messages))
    if name == "timestamp":
        return pa.array(np.full(len(messages), time.time_ns() // 1000)).view(TIMESTAMP)
    if name == "subject":
        return text(segments(messages.lines, messages.subject_start, messages.subject_end))
    if name == "reply":
        start = np.minimum(messages.sid_end + 1, messages.reply_end)
        reply = text(segments(messages.lines, start, messages.reply_end))
        has_none = pa.array(messages.reply_end <= messages.sid_end)
        return pa.compute.if_else(has_none, pa.scalar(None, pa.string()), reply)
    return messages.values
