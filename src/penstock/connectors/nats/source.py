"""Core NATS as a log that forgets: a thread listens and holds what arrives until Spark has committed it.

Positions are numbers of arrival. What was not committed when a run ends is gone: Core NATS delivers at most once.
"""

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from penstock.arrow.buffers import segments, text
from penstock.arrow.types import TIMESTAMP
from penstock.clients.nats import headers, wire
from penstock.clients.nats.client import OWN, Connection
from penstock.clients.nats.pool import connect, keep
from penstock.connectors.nats.options import CoreOptions
from penstock.errors import Disconnected
from penstock.kit.buffer import Held
from penstock.planning.positions import Bound, Bounds, Offsets, Range

log = logging.getLogger("penstock")
SHARD = "subjects"


class CoreSource:
    """Listens from its first use until it is closed."""

    def __init__(self, options: CoreOptions, columns: pa.Schema):
        self.options, self.columns = options, columns
        self.held = Held(options.max_buffer_bytes)
        self._connection: Connection | None = None
        self._failed: Exception | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def check(self) -> None:
        """Reach the server, without listening: a message that came in a queue group now would be lost."""
        keep(connect(self.options))

    def begin(self) -> None:
        """Nothing to refuse."""

    def resume(self, at: Offsets, notes: Mapping[str, str]) -> None:
        """New numbers lie behind those of the last run."""
        if SHARD in at:
            self.held.follow(at[SHARD].next)

    def notes(self) -> Mapping[str, str]:
        """None."""
        return {}

    def bounds(self) -> Bounds:
        """What is held, and what comes next; starts to listen."""
        if self._thread is None:
            self._connection = self._listen()
            self._thread = threading.Thread(target=self._receive, name="penstock-nats", daemon=True)
            self._thread.start()
        if self._failed is not None:
            raise self._failed
        return {SHARD: Bound(self.held.first, self.held.next, row_bytes=self.held.row_bytes, transient=True)}

    def find(self, shard: str, timestamp: int) -> int:
        """Nothing is kept that could be found."""
        return self.held.next

    def count(self, shard: str, positions: Sequence[int]) -> Sequence[int] | None:
        """Positions count well enough."""
        return None

    def ship(self, span: Range) -> list[pa.RecordBatch]:
        """The rows of a range; those of an earlier run are gone."""
        return self.held.rows(span.start, span.end)

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        """Only here, where they were received."""
        yield from self.ship(span)

    def progress(self, at: Offsets) -> None:
        """Nobody to tell."""

    def commit(self, end: Offsets) -> None:
        """Forget what Spark has."""
        if SHARD in end:
            self.held.release(end[SHARD].next)

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        if self._connection is not None:
            self._connection.close()

    def _listen(self) -> Connection:
        """A connection with the subscriptions confirmed: what is published from now on arrives."""
        connection = Connection(self.options)
        queue = f" {self.options.queue}" if self.options.queue else ""
        subscriptions = "".join(f"SUB {s}{queue} {OWN + 1 + i}\r\n" for i, s in enumerate(self.options.subjects))
        connection.send(subscriptions.encode())
        connection.flush(keep=self._add)
        return connection

    def _receive(self) -> None:
        """The thread: everything that arrives, until the source is closed."""
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
        except Exception as error:  # whatever it is, the query must not go on without a listener
            self._failed = error

    def _add(self, scan: wire.Scan) -> None:
        if scan.messages is None:
            return
        first = not self.held.dropped
        if not self.held.add(self._batch(scan.messages)) and first:
            log.warning(
                "messages are dropped: %d bytes wait for Spark (maxBufferBytes). They count in the lag; raise the "
                "limit, trigger more often, or set capture=true",
                self.held.most,
            )

    def _batch(self, messages: wire.Messages) -> pa.RecordBatch:
        rows = len(messages)
        reply = segments(messages.lines, np.minimum(messages.sid_end + 1, messages.reply_end), messages.reply_end)
        none = pa.array(messages.reply_end <= messages.sid_end)
        made = {
            "value": lambda: messages.values,
            "headers": lambda: headers.headers_column(messages.blocks, rows),
            "timestamp": lambda: pa.array(np.full(rows, time.time_ns() // 1000)).view(TIMESTAMP),
            "subject": lambda: text(segments(messages.lines, messages.subject_start, messages.subject_end)),
            "reply": lambda: pa.compute.if_else(none, pa.scalar(None, pa.string()), text(reply)),
        }
        return pa.RecordBatch.from_arrays([made[field.name]() for field in self.columns], schema=self.columns)
