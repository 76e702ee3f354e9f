"""The adapter between Spark's Python data sources and our contract: the only user of pyspark.sql.datasource.

Spark creates readers all the time and in several processes, so constructors only keep options; a
Source is opened when first needed and never travels. Only ranges do.
"""

import gc
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import datasource as spark
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructField, StructType

from penstock.contract import Predicate, ReadOptions, Source
from penstock.errors import OptionError
from penstock.offsets import Bound, Range, decode
from penstock.options import Options, alias, secrets
from penstock.plan import Planner

# What Spark itself puts among a user's options, and no connector means anything by.
SPARKS_OWN = ("checkpointLocation", "queryName")
TABLE_OPTIONS = "penstock.options"
# Filters may be pushed by wall-clock time, but servers' clocks differ a little after a change of leader.
CLOCK_SLACK = 60_000_000


class Connector(spark.DataSource):
    """One format. A subclass names it, its options and its guarantees, and opens sources and sinks."""

    format: ClassVar[str]
    options_type: ClassVar[type[ReadOptions]]
    can_read: ClassVar[bool] = True
    can_write: ClassVar[bool] = False
    replayable: ClassVar[bool]  # a range that is read again gives the same rows
    exactly_once: ClassVar[bool]  # a retried or replayed task leaves no duplicate

    @classmethod
    def columns(cls, options: Any) -> pa.Schema:
        """The columns of a row, given the options."""
        raise NotImplementedError

    @classmethod
    def open_source(cls, options: Any) -> Source:
        """A source; connects at its first use, in the process that uses it."""
        raise NotImplementedError

    @classmethod
    def narrow(cls, options: Any, predicates: Sequence[Predicate]) -> Any:
        """`options` that read less but every row that can satisfy all `predicates`; None where none can."""
        return options

    @classmethod
    def name(cls) -> str:
        """The word in `format(...)`."""
        return cls.format

    def schema(self) -> StructType:
        """The columns. Spark calls this in `.load()`, so whatever is wrong should be found here, not in a task."""
        given = dict(self.options)
        creating = given.pop("provider", None) is not None
        if creating:  # CREATE TABLE sends every option twice, and its own
            given = {k: v for k, v in given.items() if not k.startswith("option.") and k != "owner"}
        options = self.parse(given)
        source = self.open_source(options)
        try:
            source.bounds()
        finally:
            source.close()
        schema: StructType = from_arrow_schema(self.columns(options))
        return _remember(schema, self.format, options) if creating else schema

    def reader(self, schema: StructType) -> "BatchReader":
        """A reader for `spark.read`. Spark refuses one that can push filters while the session does not."""
        options = self.parse(_recall(schema) | dict(self.options))
        # Spark plans with filters in a worker of its own, which is running only where the session allows it.
        pushes = "pyspark.sql.worker.data_source_pushdown_filters" in sys.modules
        return (PushingReader if pushes else BatchReader)(type(self), options, schema)

    def streamReader(self, schema: StructType) -> "StreamReader":  # noqa: N802 - Spark's name
        """A reader for `spark.readStream`."""
        options = self.parse(_recall(schema) | dict(self.options))
        for name in ("ending_offsets", "ending_timestamp", "max_records"):
            if getattr(options, name) is not None:
                raise OptionError(
                    f"option '{alias(name)}' is for batch reads. In a streaming query use maxRecordsPerTrigger, and "
                    "trigger(availableNow=True) to stop at what is there."
                )
        return StreamReader(type(self), options, schema)

    @classmethod
    def parse(cls, given: dict[str, str]) -> Any:
        """The options, or an OptionError."""
        if "path" in given:
            raise OptionError(f"{cls.format} takes no path in load() or save(): give it as an option.")
        return cls.options_type.parse(cls.format, given, ignore=SPARKS_OWN)


class Partition(spark.InputPartition):
    """What travels to a task: ranges, and nothing else."""

    def __init__(self, ranges: tuple[Range, ...]):
        self.ranges = ranges

    def __repr__(self) -> str:
        return f"Partition({', '.join(f'{r.shard}[{r.start}:{r.end})' for r in self.ranges)})"


class _Reading:
    """What both kinds of reader share: options that travel, a source that does not."""

    default_start: ClassVar[str]

    def __init__(self, connector: type[Connector], options: Any, schema: StructType):
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
        """The rows of a partition. Spark hands None to a batch read that has none."""
        if not isinstance(partition, Partition):
            return
        settle_in()
        source = self.connector.open_source(self.options)
        try:
            for span in partition.ranges:
                for batch in source.read(span):
                    yield batch.select(self.wanted) if self.wanted else batch
        finally:
            source.close()


class StreamReader(_Reading, spark.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Structured Streaming's questions, handed to the planner."""

    default_start = "latest"

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """The row limit; the others are kept inside `latestOffset`, as Spark passes only one."""
        rows = self.options.max_records_per_trigger
        return ReadMaxRows(rows) if rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Stop at what is there now."""
        self.planner.freeze()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a new query starts, marked as not yet in the log."""
        return self.planner.initial()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The end of the next micro-batch."""
        return self.planner.next(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The head, for lag."""
        return self.planner.head()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Partition]:
        """The tasks between two positions; the same for ever."""
        return [Partition(ranges) for ranges in self.planner.tasks(start, end)]

    def commit(self, end: dict[str, Any]) -> None:
        """Spark has the rows before `end` for good."""
        self.planner.source.commit(decode(end))

    def stop(self) -> None:
        """Close what was opened. Spark seldom calls this: it ends the process instead."""
        if self._planner is not None:
            self._planner.source.close()


class BatchReader(_Reading, spark.DataSourceReader):
    """A bounded read: one batch from the start that the options ask for to the end."""

    default_start = "earliest"

    def __init__(self, connector: type[Connector], options: Any, schema: StructType):
        super().__init__(connector, options, schema)
        self.predicates: list[Predicate] = []

    def partitions(self) -> Sequence[Partition]:
        """The tasks of the read, without what the predicates rule out."""
        narrowed = self.connector.narrow(self.options, self.predicates)
        if narrowed is None:
            return []
        self.options = narrowed
        return [Partition(ranges) for ranges in self.planner.once(self._window)]

    def _window(self, shard: str, bound: Bound) -> tuple[int, int]:
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
                    low = max(low, self.planner.source.find(shard, _micros(value) - CLOCK_SLACK))
                if test in ("=", "<", "<="):
                    high = min(high, self.planner.source.find(shard, _micros(value) + CLOCK_SLACK))
        return low, high


class PushingReader(BatchReader):
    """A batch reader where the session has spark.sql.python.filterPushdown.enabled."""

    def pushFilters(self, filters: list[spark.Filter]) -> Iterable[spark.Filter]:  # noqa: N802 - Spark's name
        """Note what can narrow the read, and hand every filter back: Spark checks them all again."""
        self.predicates = [p for p in map(_predicate, filters) if p is not None]
        return filters


def settle_in() -> None:
    """Once in a process of Spark's: take what is imported out of the garbage collector's sight.

    Spark's workers collect garbage after every task, and look at every object of every module for it: 57 ms
    of a core, where the reading of a small batch takes 4.
    """
    if "_penstock_settled" not in sys.__dict__:  # not a global: a module pickled by value has new ones in each task
        sys.__dict__["_penstock_settled"] = True
        gc.freeze()


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
    """The columns to keep: None for all. A user may name some of ours in `.schema()`, not others."""
    arrow = to_arrow_schema(asked, timezone="UTC")
    for field in arrow:
        if field.name not in own.names:
            raise OptionError(f"{format} has no column '{field.name}'. It has: {', '.join(own.names)}.")
        if field.type != own.field(field.name).type:
            raise OptionError(
                f"column '{field.name}' of {format} is {own.field(field.name).type}, not {field.type}: leave out "
                "schema() and cast after load()."
            )
    return None if arrow.names == own.names else arrow.names


def _remember(schema: StructType, format: str, options: Options) -> StructType:
    """`schema` with the options in its first field: Spark forgets those of CREATE TABLE, but keeps metadata."""
    hidden = secrets(type(options)) & options.model_fields_set
    if hidden:
        name = alias(sorted(hidden)[0])
        raise OptionError(
            f"option '{name}' is a secret, and CREATE TABLE would write it into the catalog. Give '{name}File' "
            f"instead, or the option with each query: SELECT ... FROM t WITH ('{name}' = ...)."
        )
    given = {alias(n): v for n, v in options.model_dump(mode="json", include=options.model_fields_set).items()}
    text = {
        k: ",".join(v) if isinstance(v, list) else json.dumps(v) if isinstance(v, dict) else v for k, v in given.items()
    }
    first = schema.fields[0]
    marked = StructField(first.name, first.dataType, first.nullable, {TABLE_OPTIONS: json.dumps(text, sort_keys=True)})
    return StructType([marked, *schema.fields[1:]])


def _recall(schema: StructType) -> dict[str, Any]:
    """The options that `_remember` left, with lower-case keys as Spark's own."""
    metadata = schema.fields[0].metadata if schema.fields else {}
    return {k.lower(): v for k, v in json.loads((metadata or {}).get(TABLE_OPTIONS, "{}")).items()}
