"""Spark's readers: they ask the planner for batches, and sources for rows. Knows no server.

Spark pickles readers and makes new ones often: they only keep options, and open a Source when it is first needed.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql import datasource as spark
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.arrow.buffers import cuts, sizes
from penstock.arrow.ipc import pack, unpack
from penstock.errors import OptionError
from penstock.kit.contract import CLOCK_SLACK, Gathering, Holding, Predicate, Prefetching, Source
from penstock.kit.figures import count, so_far
from penstock.options import ReadOptions
from penstock.planning.checkpoint import Checkpoint
from penstock.planning.planner import Planner
from penstock.planning.positions import Bound, Range
from penstock.spark.border import Border
from penstock.spark.process import settle_in
from penstock.spark.progress import report
from penstock.spark.schema import arrow_schema

if TYPE_CHECKING:
    from penstock.spark.connector import Connector

# Bytes of rows inside a partition. They are part of the message that starts a task, and Spark refuses one of 128 MB.
PIECE = 8 << 20
# Bytes of rows that a batch takes along, where tasks could read them as well.
SHIPPED = 64 << 20


class Partition(spark.InputPartition):
    """What a task reads: ranges. `rows` has the rows themselves, as Arrow's IPC stream, if the source is Holding."""

    def __init__(self, ranges: tuple[Range, ...], rows: bytes | None = None):
        self.ranges, self.rows = ranges, rows

    def __repr__(self) -> str:
        return f"Partition({', '.join(f'{r.shard}[{r.start}:{r.end})' for r in self.ranges)})"


Read = TypeVar("Read", bound=ReadOptions)


class _Reading(Border, Generic[Read]):
    """What both kinds of reader share: options, which are pickled, and a source, which is not."""

    default_start: ClassVar[str]

    def __init__(self, connector: "type[Connector[Read, Any]]", options: Read, schema: StructType):
        self.connector, self.options = connector, options
        self.wanted = _chosen(schema, connector.columns(options), connector.format)
        self._planner: Planner | None = None

    @property
    def planner(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self.connector.open_source(self.options), self.options, self.default_start)
        return self._planner

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_planner": None}

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The rows of a partition. Spark passes None where a batch read has no partitions."""
        if not isinstance(partition, Partition):
            return
        settle_in()
        before = so_far()
        with closing(self._rows(partition)) as batches:
            for batch in batches:
                count(rows=len(batch), bytes=batch.nbytes)
                yield batch.select(self.wanted) if self.wanted else batch
        report(self.connector.accumulator, "read", (so_far() - before).as_json())

    def _rows(self, partition: Partition) -> Generator[pa.RecordBatch, None, None]:
        if partition.rows is not None:
            yield from unpack(partition.rows)
            return
        source = self.connector.open_source(self.options)
        try:
            yield from _rows(source, partition.ranges)
        finally:
            source.close()


class StreamReader(_Reading[Read], spark.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a streaming query."""

    default_start = "latest"

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """The limit of rows. Spark passes only one limit, so the planner applies the others."""
        rows = self.options.max_records_per_trigger
        return ReadMaxRows(rows) if rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Stop at the records stored now. An error for a Holding source, which has no rows before it listens."""
        if isinstance(self.planner.source, Holding):
            raise OptionError(
                "trigger(availableNow=True) stops at what is there when the query starts, and this source has nothing "
                "before it listens. Use a trigger that goes on; or leave 'ack' at none for JetStream, and set "
                "capture=true for Core NATS."
            )
        self.planner.freeze()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a new query starts. Marked as fresh, as it is not in Spark's log yet."""
        return self.planner.initial()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The end of the next micro-batch."""
        return self.planner.next(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where streams end, the figures of this process, and the format, which Spark tells nowhere. It is only shown
        in progress events, and is in no checkpoint.
        """
        figures = {**self.planner.lag(), **so_far().as_json()}
        return self.planner.head() | {"format": self.connector.format, "metrics": figures}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Partition]:
        """The tasks between two checkpoints. Always the same for the same two."""
        tasks = self.planner.tasks(start, end)
        source = self.planner.source
        if isinstance(source, Prefetching):
            return list(_prefetched(source, tasks))
        if not isinstance(source, Holding):
            return [Partition(ranges) for ranges in tasks]
        schema = self.connector.columns(self.options)
        return [Partition(ranges, rows) for ranges in tasks for rows in _packed(schema, source, ranges)]

    def commit(self, end: dict[str, Any]) -> None:
        """Spark will never read rows before `end` again."""
        self.planner.source.commit(Checkpoint.decode(end).positions)

    def stop(self) -> None:
        """Close the source. Spark seldom calls this: it ends the process instead."""
        if self._planner is not None:
            self._planner.source.close()


class BatchReader(_Reading[Read], spark.DataSourceReader):
    """A batch read, from the start to the end that the options say."""

    default_start = "earliest"

    def __init__(self, connector: "type[Connector[Read, Any]]", options: Read, schema: StructType):
        super().__init__(connector, options, schema)
        self.predicates: list[Predicate] = []

    def partitions(self) -> Sequence[Partition]:
        """The tasks of the read, without ranges that the predicates rule out."""
        # maxRecords counts rows before they are filtered.
        if self.options.max_records is not None or not self.connector.pushes(self.options):
            self.predicates = []
        narrowed = self.connector.narrow(self.options, self.predicates)
        if narrowed is None:
            return []
        self.options = narrowed
        return [Partition(ranges) for ranges in self.planner.once(self._window)]

    def _window(self, shard: str, bound: Bound) -> tuple[int, int]:
        """The first position of a shard to read, and the end, by the predicates."""
        low, high = bound.first, bound.next
        for column, test, value in self.predicates:
            if column == "sequence":
                values = list(value) if test == "in" else [value]
                if test in ("=", ">", ">=", "in"):
                    low = max(low, min(values) + (test == ">"))
                if test in ("=", "<", "<=", "in"):
                    high = min(high, max(values) + (test != "<"))
            elif column == "timestamp" and test != "in":
                if test in ("=", ">", ">="):
                    low = max(low, self.planner.find(shard, _micros(value) - CLOCK_SLACK))
                if test in ("=", "<", "<="):
                    high = min(high, self.planner.find(shard, _micros(value) + CLOCK_SLACK))
        return low, high


class PushingReader(BatchReader[Read]):
    """A batch reader with `pushFilters`, where the session has spark.sql.python.filterPushdown.enabled."""

    def pushFilters(self, filters: list[spark.Filter]) -> Iterable[spark.Filter]:  # noqa: N802 - Spark's name
        """Keep the filters that can narrow the read. Returns all of them, so that Spark checks them again."""
        self.predicates = [p for p in map(_predicate, filters) if p is not None]
        return filters


def _rows(source: Source, ranges: Sequence[Range]) -> Iterator[pa.RecordBatch]:
    if isinstance(source, Gathering) and len(ranges) > 1:
        yield from source.read_many(ranges)
        return
    for span in ranges:
        yield from source.read(span)


def _prefetched(source: Prefetching, tasks: Sequence[tuple[Range, ...]]) -> Iterator[Partition]:
    """Partitions, with the rows that the driver has, as long as there is room for them."""
    room = SHIPPED
    for ranges in tasks:
        rows = _fetched(source, ranges) if room > 0 else None
        room -= len(rows or b"")
        yield Partition(ranges, rows)


def _fetched(source: Prefetching, ranges: Sequence[Range]) -> bytes | None:
    """The rows of a task that the driver has, as one piece; None where its task must read them."""
    batches: list[pa.RecordBatch] = []
    for span in ranges:
        rows = source.fetched(span)
        if rows is None:
            return None
        batches += rows
    if sum(batch.nbytes for batch in batches) > PIECE:
        return None
    return pack(batches, compressed=False)


def _packed(schema: pa.Schema, source: Holding, ranges: Sequence[Range]) -> Iterator[bytes]:
    """The rows of the ranges, in pieces small enough for a partition. The same pieces for the same rows."""
    batches = [batch for span in ranges for batch in source.ship(span)]
    if not batches:
        return
    rows = pa.Table.from_batches(batches, schema)
    size = np.concatenate([sizes(batch.to_struct_array()) for batch in batches])
    for low, high in cuts(size, PIECE):
        piece = pack(rows.slice(low, high - low).to_batches(), compressed=False)
        if piece is not None:
            yield piece


_TESTS: dict[type[spark.Filter], Any] = {
    spark.EqualTo: "=",
    spark.LessThan: "<",
    spark.LessThanOrEqual: "<=",
    spark.GreaterThan: ">",
    spark.GreaterThanOrEqual: ">=",
    spark.In: "in",
    spark.StringStartsWith: "startswith",
}


def _predicate(filter: Any) -> Predicate | None:
    """A filter of Spark as a predicate; None where it cannot narrow a read."""
    test = _TESTS.get(type(filter))
    value = getattr(filter, "value", None)
    if test is None or value is None or len(filter.attribute) != 1:
        return None
    if test == "in":
        value = tuple(item for item in value if item is not None)
        if not value:
            return None
    return Predicate(filter.attribute[0], test, value)


def _micros(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000)


def _chosen(asked: StructType, own: pa.Schema, format: str) -> list[str] | None:
    """The columns to keep; None for all. `.schema()` may name some of our columns, and no others."""
    arrow = arrow_schema(asked)
    for field in arrow:
        if field.name not in own.names:
            raise OptionError(f"{format} has no column '{field.name}'. It has: {', '.join(own.names)}.")
        if field.type != own.field(field.name).type:
            raise OptionError(
                f"column '{field.name}' of {format} is {own.field(field.name).type}, not {field.type}: leave out "
                "schema() and cast after load()."
            )
    return None if arrow.names == own.names else arrow.names
