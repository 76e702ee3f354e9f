"""Two suites, for connectors that can be read and that can be written: subclass, name the connector, give a `log`.

A log has make(shard), append(shard, values), trim(shard, count), delete(shard) and options(), which
must read every shard whose name begins with 'shard'. To be written, it has target(), the options of a place to
write to, and written(), the values that are there.
"""

import json
import uuid
from collections.abc import Callable, Iterator
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit

from penstock.connectors.journal import Journal
from penstock.kit.contract import Guarantee
from penstock.options import ReadOptions, WriteOptions, table
from penstock.spark.connector import Connector
from penstock.testing.journal import JournalLog


def texts(frame: DataFrame) -> list[str]:
    return [row.value.decode() for row in frame.select("value").collect()]


class Conformance:
    connector: ClassVar[type[Connector[Any, Any]]]
    store: Any

    @pytest.fixture
    def log(self) -> Any:
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _prepare(self, spark: SparkSession, tmp_path: Path, log: Any) -> None:
        spark.dataSource.register(self.connector)
        self.spark, self.folder, self.store = spark, tmp_path, log
        log.make("shard")

    def shard_of(self, row: Any) -> str:
        """What positions call the shard of a row."""
        return str(row.stream)

    def batch(self, **options: Any) -> DataFrame:
        return self.spark.read.format(self.connector.format).options(**self.store.options(), **options).load()

    def stream(self, checkpoint: str = "checkpoint", **options: Any) -> list[Any]:
        """One AvailableNow run into a folder of parquet; its progress events."""
        source = self.spark.readStream.format(self.connector.format).options(**self.store.options(), **options).load()
        query = (
            source.writeStream.format("parquet")
            .option("path", str(self.folder / f"{checkpoint}-rows"))
            .option("checkpointLocation", str(self.folder / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [p for p in query.recentProgress if p.numInputRows]

    def rows(self, checkpoint: str = "checkpoint") -> DataFrame:
        return self.spark.read.parquet(str(self.folder / f"{checkpoint}-rows"))

    def test_a_batch_read_gives_every_row_with_its_position(self) -> None:
        self.store.append("shard", [f"v{i}" for i in range(250)])
        rows = self.batch().orderBy("sequence").collect()
        assert [r.value.decode() for r in rows] == [f"v{i}" for i in range(250)]
        assert len({r.sequence for r in rows}) == 250
        assert len({r.stream for r in rows}) == 1
        assert all(a.timestamp <= b.timestamp for a, b in pairwise(rows))

    def test_start_and_end_are_exact(self) -> None:
        self.store.append("shard", [f"v{i}" for i in range(30)])
        rows = self.batch().orderBy("sequence").collect()
        name, (low, high) = self.shard_of(rows[0]), (int(rows[place].sequence) for place in (10, 13))
        some = self.batch(startingOffsets=f'{{"{name}": {low}}}', endingOffsets=f'{{"{name}": {high}}}')
        assert sorted(texts(some)) == ["v10", "v11", "v12"]
        assert len(texts(self.batch(maxRecords=7))) == 7
        moment = int(rows[20].timestamp.timestamp() * 1_000_000) // 1000
        after = {r.value.decode() for r in rows if r.timestamp.timestamp() * 1000 >= moment}
        assert set(texts(self.batch(startingTimestamp=moment))) == after

    def test_a_stream_is_read_once_and_a_restart_reads_no_row_twice(self) -> None:
        self.store.append("shard", [f"a{i}" for i in range(100)])
        self.stream(startingOffsets="earliest")
        self.store.append("shard", [f"b{i}" for i in range(50)])
        self.stream(startingOffsets="earliest", maxRecordsPerTrigger=20)
        self.stream(startingOffsets="earliest")
        assert sorted(texts(self.rows())) == sorted([f"a{i}" for i in range(100)] + [f"b{i}" for i in range(50)])

    def test_a_new_query_starts_at_latest_and_keeps_that_start(self) -> None:
        self.store.append("shard", ["old"])
        assert not self.stream()
        self.store.append("shard", ["new"])
        self.stream()
        assert texts(self.rows()) == ["new"]

    def test_a_start_is_kept_when_the_first_rows_fail(self) -> None:
        """Spark asks for the start again while the first batch is open; 'latest' must not have moved."""
        self.store.append("shard", ["old"])
        source = self.spark.readStream.format(self.connector.format).options(**self.store.options())
        checkpoint = str(self.folder / "checkpoint")
        began: list[bool] = []
        seen: list[str] = []

        def fail_with_rows(frame: DataFrame, batch: int) -> None:
            if not began:
                began.append(True)
                self.store.append("shard", ["one"])
            if frame.count():
                raise RuntimeError("the sink fails")

        writer = source.load().writeStream.option("checkpointLocation", checkpoint)
        failing = writer.foreachBatch(fail_with_rows).start()
        with pytest.raises(PySparkException, match="the sink fails"):
            failing.awaitTermination(60)
        self.store.append("shard", ["two"])
        writer = source.load().writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        writer.foreachBatch(lambda frame, batch: seen.extend(texts(frame))).start().awaitTermination()
        assert sorted(seen) == ["one", "two"]

    def test_available_now_keeps_the_limit_and_reads_all(self) -> None:
        self.store.append("shard", [f"v{i}" for i in range(95)])
        batches = self.stream(startingOffsets="earliest", maxRecordsPerTrigger=40)
        assert [p.numInputRows for p in batches] == [40, 40, 15]
        assert len(set(texts(self.rows()))) == 95

    def test_one_shard_is_read_by_several_tasks(self) -> None:
        self.store.append("shard", [f"v{i}" for i in range(100)])
        frame = self.batch(minPartitions=4)
        assert frame.rdd.getNumPartitions() == 4
        assert sorted(texts(frame)) == sorted(f"v{i}" for i in range(100))
        sizes = frame.rdd.mapPartitions(lambda rows: [sum(1 for _ in rows)]).collect()
        assert sizes == [25, 25, 25, 25]
        assert self.batch(maxRecordsPerPartition=10).rdd.getNumPartitions() == 10

    def test_a_shard_made_later_is_read_from_its_beginning(self) -> None:
        self.store.append("shard", ["a"])
        self.stream(discoveryInterval="1ms") if self.discovers() else self.stream()
        self.store.make("shard2")
        self.store.append("shard2", ["b", "c"])
        self.stream()
        self.store.append("shard", ["d"])
        self.stream()
        assert sorted(texts(self.rows())) == ["b", "c", "d"]

    def discovers(self) -> bool:
        return (
            self.connector.options_type is not None and "discovery_interval" in self.connector.options_type.model_fields
        )

    def test_rows_trimmed_unread_stop_the_query_with_the_numbers(self) -> None:
        self.store.append("shard", [f"v{i}" for i in range(20)])
        self.stream(startingOffsets="earliest", maxRecordsPerTrigger=20)
        self.store.append("shard", [f"w{i}" for i in range(20)])
        self.store.trim("shard", 25)
        with pytest.raises(PySparkException, match=r"5 messages were deleted unread.*failOnDataLoss=false"):
            self.stream()
        self.stream(failOnDataLoss="false")
        assert sorted(texts(self.rows())) == sorted([f"v{i}" for i in range(20)] + [f"w{i}" for i in range(5, 20)])

    def test_a_shard_made_again_stops_the_query_or_is_read_from_its_beginning(self) -> None:
        self.store.append("shard", ["a", "b", "c"])
        self.stream(startingOffsets="earliest")
        self.store.delete("shard")
        self.store.make("shard")
        self.store.append("shard", ["x", "y"])
        with pytest.raises(PySparkException, match="was deleted and made again"):
            self.stream()
        self.stream(failOnDataLoss="false")
        assert sorted(texts(self.rows())) == ["a", "b", "c", "x", "y"]

    def test_the_progress_event_tells_the_lag(self) -> None:
        self.store.append("shard", [f"v{i}" for i in range(30)])
        first = self.stream(startingOffsets="earliest", maxRecordsPerTrigger=10)[0].sources[0]
        end, head = json.loads(first.endOffset)["next"], json.loads(first.latestOffset)["next"]
        assert [head[s] - end[s] for s in end] == [20]

    def test_an_unknown_option_is_refused_at_load_with_the_nearest(self) -> None:
        name = self.connector.format
        expected = f"unknown option 'startingofsets' for {name}. Did you mean 'startingOffsets'\\?"
        with pytest.raises(PySparkException, match=expected):
            self.batch(startingOfsets="earliest")

    def test_a_table_keeps_its_options(self) -> None:
        self.store.append("shard", ["a", "b"])
        table_name = f"t_{uuid.uuid4().hex[:8]}"
        options = ", ".join(f"`{k}` '{v}'" for k, v in self.store.options().items())
        self.spark.sql(f"CREATE TABLE {table_name} USING {self.connector.format} OPTIONS ({options})")
        try:
            assert self.spark.sql(f"SELECT count(*) FROM {table_name}").collect()[0][0] == 2
            query = (
                self.spark.readStream.option("startingOffsets", "earliest")
                .table(table_name)
                .writeStream.format("parquet")
                .option("path", str(self.folder / "t-rows"))
                .option("checkpointLocation", str(self.folder / "t"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            assert sorted(texts(self.rows("t"))) == ["a", "b"]
        finally:
            self.spark.sql(f"DROP TABLE {table_name}")

    def test_a_pushed_filter_never_changes_a_result(self) -> None:
        """All filters in one job, each on a frame of its own, and once more on rows that Spark has already."""
        self.store.append("shard", [f"v{i}" for i in range(40)])
        read = self.batch().localCheckpoint()
        rows = read.orderBy("sequence").collect()
        a, b, moment, stream = rows[5].sequence, rows[30].sequence, rows[20].timestamp, rows[0].stream
        filters = (
            f"sequence > {b}",
            f"sequence = {b}",
            f"sequence in ({a}, {b})",
            f"sequence < {a} or sequence >= {b}",
            "sequence < 0",
            f"timestamp >= '{moment}'",
            f"timestamp < '{moment}'",
            f"stream = '{stream}' and sequence <= {a}",
            "stream like 'no%'",
        )

        def kept(frame: Callable[[], DataFrame]) -> list[tuple[str, str]]:
            each = [frame().where(text).select(lit(text).alias("filter"), "value") for text in filters]
            return sorted((row.filter, row.value.decode()) for row in reduce(DataFrame.union, each).collect())

        assert kept(lambda: self.batch(pushFilters="true")) == kept(lambda: read)

    def test_a_filter_on_one_use_of_rows_does_not_narrow_another(self) -> None:
        """Spark hands the filters of one use to all that follow, if they are pushed: so they are not, by default."""
        self.store.append("shard", [f"v{i}" for i in range(40)])
        frame = self.batch()
        some = [row.sequence for row in frame.orderBy("sequence").collect()]
        low, high = frame.where(col("sequence") < some[10]), frame.where(col("sequence") >= some[30])
        assert [low.count(), high.count(), low.union(high).count(), frame.count()] == [10, 10, 20, 40]

    def test_a_schema_may_name_some_of_the_columns(self) -> None:
        self.store.append("shard", ["a"])
        reader = self.spark.read.format(self.connector.format).options(**self.store.options())
        assert reader.schema("sequence BIGINT, value BINARY").load().columns == ["sequence", "value"]
        assert reader.schema("sequence BIGINT, value BINARY").load().collect()[0].value == b"a"
        with pytest.raises(PySparkException, match="has no column 'colour'"):
            reader.schema("colour STRING").load().collect()
        with pytest.raises(PySparkException, match="column 'sequence'"):
            reader.schema("sequence INT").load().collect()

    def test_ends_are_refused_in_a_streaming_query(self) -> None:
        with pytest.raises(PySparkException, match="option 'maxRecords' is for batch reads"):
            self.stream(maxRecords=5)

    def test_the_shared_options_and_guarantees_are_declared(self) -> None:
        assert self.connector.options_type is not None
        own = {name: doc for name, _, doc in table(self.connector.options_type)}
        assert {name for name, _, _ in table(ReadOptions)} <= own.keys()
        assert all(own.values())
        assert self.connector.replayable is Guarantee.YES


class WriteConformance:
    connector: ClassVar[type[Connector[Any, Any]]]
    store: Any

    @pytest.fixture
    def log(self) -> Any:
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _prepare_to_write(self, spark: SparkSession, tmp_path: Path, log: Any) -> None:
        spark.dataSource.register(self.connector)
        spark.dataSource.register(Journal)
        self.spark, self.folder, self.store = spark, tmp_path, log
        self.source = JournalLog(tmp_path / "source")
        self.source.make("shard")

    def run(self, **options: Any) -> list[Any]:
        """One AvailableNow run from a journal into the connector; its batches with rows."""
        rows = self.spark.readStream.format("journal").options(
            **self.source.options(), startingOffsets="earliest", maxRecordsPerTrigger=100, minPartitions=3
        )
        query = (
            rows.load()
            .select("value")
            .writeStream.format(self.connector.format)
            .options(**self.store.target(), **options)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [p for p in query.recentProgress if p.numInputRows]

    def forget_the_last_commit(self) -> None:
        """As if Spark had died after the sink was done and before it noted so."""
        commits = self.folder / "checkpoint" / "commits"
        last = max(int(p.name) for p in commits.iterdir() if p.name.isdigit())
        for file in (commits / str(last), commits / f".{last}.crc"):
            file.unlink(missing_ok=True)

    def test_every_row_is_written_and_a_restart_adds_only_what_is_new(self) -> None:
        self.source.append("shard", [f"v{i}" for i in range(250)])
        assert len(self.run()) == 3
        assert sorted(self.store.written()) == sorted(f"v{i}" for i in range(250))
        self.source.append("shard", [f"v{i}" for i in range(250, 300)])
        self.run()
        assert sorted(self.store.written()) == sorted(f"v{i}" for i in range(300))

    def test_a_replayed_batch_leaves_rows_twice_only_where_nothing_else_is_promised(self) -> None:
        self.source.append("shard", [f"v{i}" for i in range(250)])
        self.run()
        for _ in range(2):
            self.forget_the_last_commit()
            self.run()
        assert set(self.store.written()) == {f"v{i}" for i in range(250)}
        twice = len(self.store.written()) - 250
        assert twice == 0 if self.connector.exactly_once is not Guarantee.NO else twice == 100

    def test_a_single_write_appends(self) -> None:
        rows = self.spark.range(50, numPartitions=3).selectExpr("concat('w', id) AS value")
        for _ in range(2):
            rows.write.format(self.connector.format).options(**self.store.target()).mode("append").save()
        assert sorted(self.store.written()) == sorted([f"w{i}" for i in range(50)] * 2)

    def must_know_writes_again(self) -> None:
        """Skip a sink that does not promise so, or has options of its own for it."""
        model = self.connector.sink_options_type
        if self.connector.exactly_once is Guarantee.NO or model is None or not issubclass(model, WriteOptions):
            pytest.skip("it does not know a write again, or not by txnAppId")

    def write_as(self, rows: DataFrame, name: str, version: int) -> None:
        """A single write that is known again."""
        self.must_know_writes_again()
        writer = rows.write.format(self.connector.format).options(**self.store.target())
        writer.options(txnAppId=name, txnVersion=version).mode("append").save()

    def test_a_write_with_the_same_name_and_version_is_written_once(self) -> None:
        name, rows = self.folder.name, self.spark.range(50, numPartitions=3).selectExpr("concat('w', id) AS value")
        for version, copies in ((0, 1), (0, 1), (1, 2), (1, 2), (2, 3)):
            self.write_as(rows, name, version)
            assert sorted(self.store.written()) == sorted([f"w{i}" for i in range(50)] * copies)
        self.write_as(rows, f"{name}-other", 0)
        assert sorted(self.store.written()) == sorted([f"w{i}" for i in range(50)] * 4)
        with pytest.raises(PySparkException, match=rf"written before with other rows.*Here .* txnAppId '{name}'"):
            self.write_as(self.spark.range(50, numPartitions=2).selectExpr("concat('w', id) AS value"), name, 2)
        with pytest.raises(PySparkException, match=rf"written before with other rows.*Here .* txnAppId '{name}'"):
            self.write_as(rows.selectExpr("concat('x', value) AS value"), name, 2)

    def test_a_write_that_failed_half_way_is_completed_by_the_next_with_its_name(self) -> None:
        repaired = self.folder / "repaired"

        def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from batches
            task = TaskContext.get()
            if task is not None and task.partitionId() == 3 and not repaired.exists():
                raise RuntimeError("the last task fails")

        rows = self.spark.range(50, numPartitions=4).selectExpr("concat('w', id) AS value")
        with pytest.raises(PySparkException, match="the last task fails"):
            self.write_as(rows.mapInArrow(fail, "value STRING"), self.folder.name, 0)
        repaired.touch()
        self.write_as(rows.mapInArrow(fail, "value STRING"), self.folder.name, 0)
        assert sorted(self.store.written()) == sorted(f"w{i}" for i in range(50))

    def test_the_name_of_a_write_is_refused_where_it_has_no_meaning(self) -> None:
        self.must_know_writes_again()
        with pytest.raises(
            PySparkException, match=r"'txnAppId' and 'txnVersion' are for df\.write, such as one inside"
        ):
            self.run(txnAppId="a", txnVersion=0)
        rows = self.spark.range(5).selectExpr("string(id) AS value")
        writer = rows.write.format(self.connector.format).options(**self.store.target(), txnVersion=0).mode("append")
        with pytest.raises(PySparkException, match="'txnVersion' needs 'txnAppId' beside it"):
            writer.save()

    def test_a_column_that_would_be_dropped_and_an_unknown_option_are_refused(self) -> None:
        rows = self.spark.range(5).selectExpr("string(id) AS value", "id AS surplus")
        writer = rows.write.format(self.connector.format).options(**self.store.target()).mode("append")
        with pytest.raises(PySparkException, match="cannot write the column 'surplus'"):
            writer.save()
        with pytest.raises(PySparkException, match="unknown option 'xyzzy' for"):
            rows.drop("surplus").write.format(self.connector.format).options(**self.store.target(), xyzzy=1).mode(
                "append"
            ).save()
        with pytest.raises(PySparkException, match="only appends"):
            rows.drop("surplus").write.format(self.connector.format).options(**self.store.target()).mode(
                "overwrite"
            ).save()
