"""Checkpoints of real queries, set back: what Spark makes of them afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from checkpoint_files import content
from nats_servers import Admin
from penstock.checkpoints import storage
from penstock.checkpoints.lease import Lease
from penstock.checkpoints.log import Log
from penstock.checkpoints.rewind import SinkMemory, rewind
from penstock.connectors import connector
from penstock.errors import OptionError
from penstock.testing.journal import JournalLog
from penstock.testing.nats_server import NatsServer

CHECKPOINTING = "org.apache.spark.sql.execution.streaming.checkpointing"
PROVIDERS = "org.apache.spark.sql.execution.streaming.state"


@pytest.fixture
def log(spark: SparkSession, tmp_path: Path) -> JournalLog:
    """Rows 0 to 29."""
    spark.dataSource.register(connector("journal"))
    log = JournalLog(tmp_path / "in")
    log.make("a")
    log.append("a", [str(number) for number in range(30)])
    return log


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


@contextmanager
def settings(spark: SparkSession, **conf: str) -> Iterator[None]:
    named = {f"spark.sql.streaming.{name.replace('__', '.')}": value for name, value in conf.items()}
    before = {name: spark.conf.get(name, None) for name in named}
    for name, value in named.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def rows(spark: SparkSession, log: JournalLog, per_batch: int = 10) -> DataFrame:
    options = {**log.options(), "startingOffsets": "earliest", "maxRecordsPerTrigger": str(per_batch)}
    return spark.readStream.format("journal").options(**options).load().selectExpr("string(value) AS value")


def run(frame: DataFrame, checkpoint: Path, mode: str = "append") -> dict[int, list[Any]]:
    """The rows of each batch, until there is nothing more."""
    found: dict[int, list[Any]] = {}

    def keep(batch: DataFrame, number: int) -> None:
        found[number] = sorted(tuple(row) for row in batch.collect())

    writer = frame.writeStream.foreachBatch(keep).outputMode(mode).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    return found


def numbers(found: dict[int, list[Any]]) -> dict[int, list[int]]:
    return {batch: sorted(int(value) for (value,) in values) for batch, values in found.items() if values}


# Spark's default on a disk does not read checksums and stumbles over one that is left over; the other one reads them.
@pytest.mark.parametrize("manager", ["FileSystemBased", "FileContextBased"])
def test_a_query_reads_again_from_the_batch_or_the_positions_that_it_was_set_back_to(
    spark: SparkSession, log: JournalLog, checkpoint: Path, manager: str
) -> None:
    with settings(spark, checkpointFileManagerClass=f"{CHECKPOINTING}.{manager}CheckpointFileManager"):
        first = [*range(10)], [*range(10, 20)], [*range(20, 30)]
        with Lease(str(checkpoint), settle=0.1):  # a file more in the checkpoint, which Spark leaves alone
            assert numbers(run(rows(spark, log), checkpoint)) == dict(enumerate(first, 1))
        batches = Log(str(checkpoint)).batches()
        assert [(batch.number, batch.committed, batch.size) for batch in batches] == [
            (0, True, 0), (1, True, 10), (2, True, 10), (3, True, 10),
        ]  # fmt: skip
        done = rewind(str(checkpoint), 1)
        assert (done.removed, done.next_batch) == ((2, 3), 2)
        assert numbers(run(rows(spark, log, 15), checkpoint)) == {2: [*range(10, 25)], 3: [*range(25, 30)]}

        third = Log(str(checkpoint)).batches()[3]
        assert third.planned is not None
        assert abs(third.planned - datetime.now(UTC)) < timedelta(minutes=5)
        assert rewind(str(checkpoint), third.planned).removed == (3,)
        assert numbers(run(rows(spark, log), checkpoint)) == {3: [*range(25, 30)]}

        done = rewind(str(checkpoint), {"a": 12})
        assert (done.kept, done.next_batch) == (3, 5)
        assert numbers(run(rows(spark, log, 100), checkpoint)) == {5: [*range(12, 30)]}
        assert run(rows(spark, log), checkpoint) == {}, "nothing is read twice"
        assert Log(str(checkpoint)).query_id == done.query_id


@pytest.mark.parametrize("provider", ["HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider"])
def test_what_was_counted_is_set_back_too(
    spark: SparkSession, log: JournalLog, checkpoint: Path, provider: str
) -> None:
    """Whole states that were left over from the first run would be loaded after the second rewind."""

    def total(per_batch: int) -> dict[int, int]:
        counted = run(rows(spark, log, per_batch).groupBy().count(), checkpoint, "complete")
        return {batch: count for batch, ((count,),) in counted.items()}

    with settings(spark, stateStore__providerClass=f"{PROVIDERS}.{provider}"):
        assert total(5) == {0: 0, 1: 5, 2: 10, 3: 15, 4: 20, 5: 25, 6: 30}
        assert Log(str(checkpoint)).is_stateful
        assert rewind(str(checkpoint), 2).removed == (3, 4, 5, 6)
        assert total(2)[12] == 30
        assert rewind(str(checkpoint), 5).kept == 5
        assert total(7) == {6: 23, 7: 30}


def test_a_new_query_writes_rows_again_to_a_sink_that_remembers(
    spark: SparkSession, log: JournalLog, checkpoint: Path, tmp_path: Path
) -> None:
    out = JournalLog(tmp_path / "out")

    def copy() -> list[int]:
        writer = rows(spark, log).writeStream.format("journal").options(**out.target())
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        return sorted(map(int, out.written()))

    assert copy() == [*range(30)]
    before = content(tmp_path)
    with pytest.raises(OptionError, match="sink 'out' remembers"):
        rewind(str(checkpoint), 2, sinks=[SinkMemory("out", "remembers")])
    assert content(tmp_path) == before

    rewind(str(checkpoint), 2)
    assert copy() == [*range(30)], "it does remember: the rows of batch 3 are there, and are not written again"

    old = Log(str(checkpoint)).query_id
    done = rewind(str(checkpoint), 1, sinks=[SinkMemory("out", "remembers")], new_query=True)
    assert done.query_id != old
    assert copy() == sorted([*range(30), *range(10, 30)])
    assert Log(str(checkpoint)).query_id == done.query_id
    assert [batch.number for batch in Log(str(checkpoint)).batches()] == [0, 1, 2]


def test_what_is_refused_changes_nothing(
    spark: SparkSession, log: JournalLog, checkpoint: Path, tmp_path: Path
) -> None:
    counted = run(rows(spark, log).groupBy("value").count(), checkpoint, "complete")
    assert len(counted[3]) == 30
    refused: list[tuple[Any, dict[str, Any], str]] = [
        (9, {}, "batch 9 is not in the checkpoint"),
        ({"a": 3}, {}, "has state"),
        (2, {"new_query": True}, "has state"),
        (2, {"sinks": [SinkMemory("files", "skips-files")]}, "another path"),
        (2, {}, "state of the query as it was after batch 2 is no longer"),
    ]
    for to, more, why in refused:
        if not more and to == 2:
            for file in [*checkpoint.glob("state/0/*/3.*"), *checkpoint.glob("state/0/*/.3.*")]:
                file.unlink()  # as if it was too long ago
        before = content(tmp_path)
        with pytest.raises(OptionError, match=why):
            rewind(str(checkpoint), to, **more)
        assert content(tmp_path) == before, why


def test_a_stream_of_jetstream_is_read_again_with_its_mark(
    spark: SparkSession, nats: NatsServer, admin: Admin, stream: str, checkpoint: Path
) -> None:
    spark.dataSource.register(connector("jetstream"))
    admin.create(stream, storage="memory")
    admin.numbers(stream, 30)
    options = {"servers": nats.url, "stream": stream, "startingOffsets": "earliest", "maxRecordsPerTrigger": "10"}

    def read() -> dict[int, list[int]]:
        frame = spark.readStream.format("jetstream").options(**options).load().selectExpr("string(value) AS value")
        return numbers(run(frame, checkpoint))

    assert read() == {1: [*range(10)], 2: [*range(10, 20)], 3: [*range(20, 30)]}
    before = Log(str(checkpoint)).batches()[3].sources["0"].end
    assert before is not None
    assert before.positions == {stream: 31}
    rewind(str(checkpoint), 2)
    assert read() == {3: [*range(20, 30)]}
    assert rewind(str(checkpoint), {stream: 16}).next_batch == 5
    assert read() == {5: [*range(15, 25)], 6: [*range(25, 30)]}
    (moved,) = Log(str(checkpoint)).diff(3, 4)
    assert (moved.shard, moved.by) == (stream, -15)


def test_spark_starts_from_a_rewind_that_was_cut_off_in_the_middle(
    spark: SparkSession, log: JournalLog, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each moment the last batch is planned and not committed, or is not planned at all."""
    remove = storage.Folder.remove
    assert len(run(rows(spark, log), checkpoint)) == 4

    def cut(self: storage.Folder, name: str) -> None:
        if name == "offsets/2":
            raise KeyboardInterrupt
        remove(self, name)

    with monkeypatch.context() as patched:
        patched.setattr(storage.Folder, "remove", cut)
        with pytest.raises(KeyboardInterrupt):
            rewind(str(checkpoint), 1)
    assert numbers(run(rows(spark, log), checkpoint)) == {2: [*range(10, 20)], 3: [*range(20, 30)]}
    assert rewind(str(checkpoint), 1).removed == (2, 3)
