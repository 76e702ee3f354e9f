"""Several sinks of one query, inside of `foreachBatch`: a batch that Spark runs again after a failure between them."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from nats_servers import Admin
from penstock.connectors.jetstream import JetStream
from penstock.planning.positions import Range
from penstock.testing import JournalLog
from penstock.testing.nats_server import NatsServer

WINDOW = 100_000_000  # nanoseconds: over before a query can be started again


def numbers(url: str, stream: str) -> list[int]:
    source: Any = JetStream.open_source(JetStream.parse({"servers": url, "stream": stream}))
    bound = source.bounds()[stream]
    span = Range(stream, bound.first, bound.next, bound.epoch)
    found = [int(value) for batch in source.read(span) for value in batch["value"].to_pylist()]
    source.close()
    return sorted(found)


class Fork:
    """A query that writes each row to two streams of one server, and fails between the two as often as it is told."""

    def __init__(self, spark: SparkSession, url: str, streams: tuple[str, str], folder: Path, named: bool):
        self.spark, self.url, self.streams, self.folder, self.named = spark, url, streams, folder, named
        self.failures = 0
        self.log = JournalLog(folder / "source")
        self.log.make("a")

    def write(self, frame: DataFrame, batch: int) -> None:
        for number, stream in enumerate(self.streams):
            writer = frame.select("value").write.format("jetstream").options(servers=self.url, subject=f"{stream}.x")
            if self.named:
                query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
                assert len(query or "") == 36, "a UUID"
                writer = writer.options(txnAppId=f"{query}-{number}", txnVersion=batch)
            writer.mode("append").save()
            if self.failures and frame.count():
                self.failures -= 1
                raise RuntimeError("between the two sinks")

    def run(self) -> None:
        rows = self.spark.readStream.format("journal").options(**self.log.options(), startingOffsets="earliest")
        query = (
            rows.options(maxRecordsPerTrigger=20, minPartitions=2)
            .load()
            .writeStream.foreachBatch(self.write)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def written(self) -> list[list[int]]:
        return [numbers(self.url, stream) for stream in self.streams]


@pytest.mark.parametrize("named", [True, False], ids=["with txnAppId", "without txnAppId"])
def test_a_batch_that_fails_between_two_sinks_leaves_each_row_once_in_both(
    spark: SparkSession, nats: NatsServer, admin: Admin, stream: str, tmp_path: Path, named: bool
) -> None:
    """Without `txnAppId` the rows of the batch that failed are in the first sink twice: the proof that this proves
    something.
    """
    for name in (stream, f"{stream}B"):
        admin.create(name, duplicate_window=WINDOW)
    fork = Fork(spark, nats.url, (stream, f"{stream}B"), tmp_path, named)
    fork.log.append("a", [str(i) for i in range(30)])
    fork.run()
    fork.log.append("a", [str(i) for i in range(30, 50)])
    for _ in range(2):
        fork.failures = 1
        with pytest.raises(PySparkException, match="between the two sinks"):
            fork.run()
    fork.log.append("a", [str(i) for i in range(50, 70)])
    fork.run()
    again = [] if named else [*range(30, 50)] * 2
    assert fork.written() == [sorted([*range(70), *again]), [*range(70)]]
