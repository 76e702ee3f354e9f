"""Spark's writers: they open sinks and hand rows to them. Knows no server."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource as spark

from penstock.errors import ProtocolError
from penstock.kit.contract import Beginning, Origin, Receipt, Sink, Transaction
from penstock.kit.figures import Figures, count, so_far
from penstock.kit.retry import at_once
from penstock.options import Options, WriteOptions
from penstock.planning.positions import Offsets
from penstock.spark.border import Border
from penstock.spark.input import whole
from penstock.spark.process import settle_in
from penstock.spark.progress import report

if TYPE_CHECKING:
    from penstock.spark.connector import Connector

log = logging.getLogger("penstock")


@dataclass
class Done(spark.WriterCommitMessage):
    """What a task sends to the driver: its receipt, and its counters."""

    receipt: Receipt
    figures: Mapping[str, float] = field(default_factory=dict)


Write = TypeVar("Write", bound=Options)


class _Writing(Border, Generic[Write]):
    """What both kinds of writer share."""

    def __init__(self, connector: "type[Connector[Any, Write]]", options: Write, columns: pa.Schema):
        self.connector, self.options, self.columns = connector, options, columns
        self.ends: Offsets | None = None  # where logs ended before a `df.write`; None for a streaming query

    def check(self) -> None:
        """Reach the server, so that a wrong address is an error at once, not after reconnectTimeout."""
        sink = self._open()
        try:
            at_once(sink.check)
        finally:
            sink.close()

    def _open(self) -> Sink:
        sink = self.connector.open_sink(self.options, self.columns)
        if self.ends is not None and isinstance(sink, Beginning):
            sink.begin(self.ends)
        return sink

    def _write(self, batches: Iterator[pa.RecordBatch], origin: Origin) -> Done:
        settle_in()
        rows, before, began = 0, so_far(), time.monotonic()

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal rows
            for batch in whole(batches):
                rows += len(batch)
                count(bytes=batch.nbytes)
                yield batch

        sink = self._open()
        try:
            receipt = sink.write(counted(), origin)
        finally:
            sink.close()
        if receipt.rows != rows:
            raise ProtocolError(f"{origin} was given {rows:,} rows, but has a receipt for {receipt.rows:,}: {receipt}.")
        spent = time.monotonic() - began
        count(rows=receipt.rows, already_there=receipt.known, writes=1, write_time=spent)
        figures = (so_far() - before).as_json()
        report(self.connector.accumulator, "write", figures)
        return Done(receipt, figures)

    def _commit(self, messages: Sequence[Any], batch: int | None) -> None:
        done: list[Done] = [message for message in messages if message is not None]
        receipts, before = [each.receipt for each in done], so_far()

        def attempt() -> None:
            sink = self._open()
            try:
                sink.commit(receipts, batch)
            finally:
                sink.close()

        self.options.retry("finishing a batch").run(attempt)
        of_tasks = sum((Figures.of_json(each.figures) for each in done), Figures())
        log.info("what was written: %s", (of_tasks + so_far() - before).as_json())

    def _abort(self, messages: Sequence[Any]) -> None:
        """Log what was written, as it is not taken back. A retry of the batch does not write it again.

        Rows inside a receipt are not logged: only a commit writes them.
        """
        for message in messages:
            if message is not None and message.receipt.rows and message.receipt.packed is None:
                log.warning("this write failed, but %s", message.receipt)


class StreamWriter(_Writing[Write], spark.DataSourceStreamArrowWriter):
    """The writer of a streaming query. Tasks keep their names in every run of the query."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Done:
        """Write a partition of a micro-batch. Its origin is the same in every attempt and every replay."""
        task = TaskContext.get()
        assert task is not None
        query = task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
        assert query is not None
        assert batch is not None
        origin = Origin(query, int(batch), task.partitionId())
        if origin.may_be_first:
            self.check()
        return self._write(iterator, origin)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """All tasks are done. Spark writes this to its commit log afterwards."""
        self._commit(messages, batchId)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """A task failed for good."""
        self._abort(messages)


class BatchWriter(_Writing[Write], spark.DataSourceArrowWriter):
    """The writer of one `df.write`. With `txnAppId` its tasks keep their names in every write of the same version, as
    those of a streaming query do. Without it the write has a new name: only retries inside of it are known again.
    """

    def __init__(self, connector: "type[Connector[Any, Write]]", options: Write, columns: pa.Schema):
        super().__init__(connector, options, columns)
        self.name, self.version = Origin.single(), None
        if isinstance(options, WriteOptions) and options.txn_app_id is not None:
            self.name, self.version = options.txn_app_id, options.txn_version

    def check(self) -> None:
        """Reach the server, and note where its logs end where the name is new. Spark sends the writer with this to
        every task.
        """
        super().check()
        if self.version is not None:  # rows of an earlier write may lie before the ends
            return
        sink = self._open()
        try:
            self.ends = at_once(sink.ends) if isinstance(sink, Beginning) else None
        finally:
            sink.close()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Done:
        """Write a partition."""
        task = TaskContext.get()
        assert task is not None
        partition = task.partitionId()
        if self.version is None:
            return self._write(iterator, Origin(self.name, 0, partition))
        return self._write(iterator, Transaction(self.name, self.version, partition))

    def commit(self, messages: Sequence[Any]) -> None:
        """All tasks are done. Only a write with `txnAppId` may be replayed."""
        self._commit(messages, self.version)

    def abort(self, messages: Sequence[Any]) -> None:
        """A task failed for good."""
        self._abort(messages)
