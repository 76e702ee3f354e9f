"""How far a query is and what it did, as its user can ask for it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import penstock
from penstock.connectors import FORMATS, connector
from penstock.testing import JournalLog


@pytest.fixture
def log(tmp_path: Path) -> JournalLog:
    log = JournalLog(tmp_path / "log")
    log.make("a")
    log.make("b")
    log.append("a", [f"v{i}" for i in range(50)])
    log.append("b", ["x"])
    return log


@pytest.fixture
def prepared(spark: SparkSession) -> Iterator[SparkSession]:
    """A session where tasks report, of its own: no other test should see that."""
    session = spark.newSession()
    penstock.register(session)
    yield session
    cloudpickle.unregister_pickle_by_value(penstock)
    for name in FORMATS:
        connector(name).accumulator = None


def copied(spark: SparkSession, log: JournalLog, folder: Path, **options: Any) -> Any:
    """A query that copies what is there from a journal to another."""
    rows = spark.readStream.format("journal").options(**log.options(), startingOffsets="earliest", **options).load()
    query = (
        rows.select("value")
        .writeStream.format("journal")
        .option("directory", str(folder / "copy"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def test_lag_is_what_lies_ahead_of_each_stream(spark: SparkSession, log: JournalLog, tmp_path: Path) -> None:
    query = copied(spark, log, tmp_path)
    assert penstock.lag(query) == [{"a": 0, "b": 0}]
    log.append("a", ["late"] * 7)
    events = [(json.loads(p.sources[0].endOffset), json.loads(p.sources[0].latestOffset)) for p in query.recentProgress]
    assert events[-1][1]["metrics"]["lag"] == 0
    assert events[-1][1]["format"] == "journal"
    assert all("format" not in end for end, _ in events), "it is in no checkpoint"


def test_lag_of_a_query_behind_its_stream_counts_what_is_left(
    spark: SparkSession, log: JournalLog, tmp_path: Path
) -> None:
    seen: list[Any] = []
    rows = spark.readStream.format("journal").options(**log.options(), startingOffsets="earliest")
    query = (
        rows.option("maxRecordsPerTrigger", 20)
        .load()
        .writeStream.foreachBatch(lambda frame, batch: seen.append(frame.count()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    lags = [json.loads(p.sources[0].latestOffset)["metrics"]["lag"] for p in query.recentProgress if p.numInputRows]
    assert lags == [31, 11, 0]


def test_a_source_that_is_not_ours_has_no_lag(spark: SparkSession, tmp_path: Path) -> None:
    rate = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
    query = rate.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        query.processAllAvailable()
        assert penstock.lag(query) in ([], [{}])
    finally:
        query.stop()


def test_figures_of_tasks_reach_the_driver_of_a_prepared_session(
    prepared: SparkSession, log: JournalLog, tmp_path: Path
) -> None:
    query = copied(prepared, log, tmp_path, maxRecordsPerTrigger=30)
    figures = penstock.figures(query)
    assert figures["read"]["rows"] == figures["write"]["rows"] == 51
    assert figures["write"]["bytes"] >= sum(len(f"v{i}") for i in range(50)) + 1
    assert figures["driver"] == {}
    assert "alreadyThere" not in figures["write"]


def test_rows_that_were_there_already_are_counted(prepared: SparkSession, log: JournalLog, tmp_path: Path) -> None:
    copied(prepared, log, tmp_path)
    commits = tmp_path / "checkpoint" / "commits"
    last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
    for file in (commits / str(last), commits / f".{last}.crc"):
        file.unlink(missing_ok=True)
    query = copied(prepared, log, tmp_path)
    assert penstock.figures(query)["write"]["alreadyThere"] == 51
    assert penstock.figures(query)["write"]["rows"] == 102, "of all runs in this session: the query is the same"


def test_without_register_the_tasks_are_not_counted(spark: SparkSession, log: JournalLog, tmp_path: Path) -> None:
    query = copied(spark, log, tmp_path)
    assert penstock.figures(query) == {"driver": {}, "read": {}, "write": {}}


def test_lag_is_still_known_after_a_batch_that_was_run_again(
    spark: SparkSession, log: JournalLog, tmp_path: Path
) -> None:
    """Spark does not ask for the head where it only runs the last batch again."""
    copied(spark, log, tmp_path)
    commits = tmp_path / "checkpoint" / "commits"
    last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
    for file in (commits / str(last), commits / f".{last}.crc"):
        file.unlink(missing_ok=True)
    log.append("a", ["late"])
    assert penstock.lag(copied(spark, log, tmp_path)) == [{"a": 0, "b": 0}]


def test_a_write_inside_of_foreach_batch_is_written_again_with_its_batch(
    spark: SparkSession, log: JournalLog, tmp_path: Path
) -> None:
    """Each `df.write` has an identity of its own: only retries inside of it are known again."""
    target = {"directory": str(tmp_path / "copy")}
    fails = [True]

    def write(frame: Any, batch: int) -> None:
        frame.select("value").write.format("journal").options(**target).mode("append").save()
        if frame.count() and fails:
            fails.pop()
            raise RuntimeError("after the write")

    rows = spark.readStream.format("journal").options(**log.options(), startingOffsets="earliest").load()
    writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(PySparkException, match="after the write"):
        writer.trigger(availableNow=True).start().awaitTermination()
    writer.trigger(availableNow=True).start().awaitTermination()
    assert spark.read.format("journal").options(**target).load().count() == 102
