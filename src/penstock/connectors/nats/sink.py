"""Rows to Core NATS: published, then a PING that the server answers after them. Only current subscribers get them.
Knows one connection; must not know streams or ids.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.buffers import Ints, lengths, offsets
from penstock.clients.nats.client import Connection, LineTooLong
from penstock.clients.nats.commands import COMMANDS
from penstock.clients.nats.frames import bad_body, bad_header, bad_subject, frames, header_lines, longest_line
from penstock.clients.nats.pool import connect, keep
from penstock.connectors.nats.options import CoreSinkOptions
from penstock.errors import Disconnected
from penstock.kit import templates
from penstock.kit.contract import Origin, Receipt
from penstock.kit.rows import BYTES, NAMED_VALUES, TEXT

TAKES = {"value": BYTES, "subject": TEXT, "headers": NAMED_VALUES, "reply": TEXT}
# Rows of one write to the socket.
STEP = 1000


class CoreSink:
    """A sink on one connection, opened for the first row."""

    def __init__(self, options: CoreSinkOptions, columns: pa.Schema):
        templates.accept("nats", columns, options.subject, TAKES)
        self.options = options
        self._connection: Connection | None = None

    def write(self, batches: Iterator[pa.RecordBatch], origin: Origin) -> Receipt:
        """Publish the rows. Returns when the server has taken all of them; raises its error where it has not."""
        rows = size = 0
        for batch in batches:
            if not len(batch):
                continue
            self.options.retry(f"writing {origin}").run(partial(self._send, batch, origin, rows))
            rows += len(batch)
            size += int(lengths(batch.column("value")).sum())
        return Receipt(origin, rows, size)

    def commit(self, receipts: Sequence[Receipt], batch: int | None) -> None:
        """Does nothing: the rows are published."""

    def check(self) -> None:
        """Reach the server."""
        keep(connect(self.options))

    def most_bytes(self) -> int:
        """What the server takes."""
        if self._connection is None:
            self._connection = connect(self.options)
        return self._connection.max_payload or 1 << 20

    def close(self) -> None:
        """Give the connection back."""
        if self._connection is not None:
            keep(self._connection)
            self._connection = None

    def _send(self, batch: pa.RecordBatch, origin: Origin, first: int) -> None:
        """Publish a batch, and wait for the server. Where the connection breaks, the next call takes a new one."""
        if self._connection is None:
            self._connection = connect(self.options)
        data, starts = self._frames(batch, origin, first, self._connection.max_payload or 1 << 20)
        try:
            for low in range(0, len(batch), STEP):
                self._connection.send(data[starts[low] : starts[min(len(batch), low + STEP)]])
            # The answer to the PING comes after errors of the server, such as a missing permission.
            self._connection.flush()
        except Disconnected:
            self._connection.close()
            self._connection = None
            raise
        except LineTooLong:
            fault = longest_line(templates.names(self.options.subject, batch))
            raise origin.cannot_write(first + fault.row, fault.why) from None

    def _frames(self, batch: pa.RecordBatch, origin: Origin, first: int, limit: int) -> tuple[memoryview, Ints]:
        """The bytes to send, and where each row starts in them. An OptionError for the first row that is not valid."""
        names = batch.schema.names
        value = batch.column("value").cast(pa.binary())
        subject = templates.names(self.options.subject, batch).cast(pa.binary())
        fault = bad_subject(subject, partial(templates.missing, self.options.subject, batch))
        block = reply = None
        if "headers" in names and batch.column("headers").null_count < len(batch):
            fault = fault or bad_header(batch.column("headers"))
            block = header_lines(batch.column("headers"), without="" if self.options.command_headers else COMMANDS)
        if "reply" in names and batch.column("reply").null_count < len(batch):
            reply = pc.fill_null(batch.column("reply").cast(pa.binary()), b"")
            fault = fault or bad_subject(reply.filter(pc.not_equal(reply, b"")))
        fault = fault or bad_body(block, value, limit)
        if fault is not None:
            raise origin.cannot_write(first + fault.row, fault.why)
        out = frames(subject, reply, block, value)
        return memoryview(out.buffers()[2]), offsets(out)
