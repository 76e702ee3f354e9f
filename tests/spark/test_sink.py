"""The JetStream sink under Spark: kill it in the middle, start it again, read the stream raw."""

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from nats_servers import Admin
from penstock.connectors.jetstream import JetStream
from penstock.planning.positions import Range
from penstock.testing.nats_server import NatsServer, free_port
from spark.driver import start
from spark.jobs import Job, kill, kill_application, task_workers, wait

ROWS = 40_000
WINDOW = 100_000_000  # nanoseconds: over before a query can be started again


def numbers(url: str, stream: str) -> list[int]:
    source: Any = JetStream.open_source(JetStream.parse({"servers": url, "stream": stream}))
    bound = source.bounds()[stream]
    span = Range(stream, bound.first, bound.next, bound.epoch)
    found = [int(value) for batch in source.read(span) for value in batch["value"].to_pylist()]
    source.close()
    return found


@pytest.fixture
def copying(nats: NatsServer, admin: Admin, stream: str, tmp_path: Path) -> Job:
    """A job that copies one stream to another, whose duplicate window is over in no time."""
    admin.create(stream, storage="memory")
    admin.create(f"{stream}OUT", storage="memory", duplicate_window=WINDOW)
    admin.numbers(stream, ROWS)
    options = {"servers": nats.url, "stream": stream, "startingOffsets": "earliest"}
    limits = {"maxRecordsPerTrigger": "8000", "minPartitions": "2"}
    return Job(
        tmp_path,
        options | limits,
        sink={"servers": nats.url, "subject": f"{stream}OUT.x", "ledger": f"{stream}LEDGER"},
        master="local[2,20]",
    )


def in_order_of_partitions(found: list[int]) -> bool:
    """Each task wrote its half of a batch in order, whatever came in between."""
    halves = [[n for n in found if n // 4000 == half] for half in range(ROWS // 4000)]
    return all(half == sorted(half) for half in halves)


def test_a_driver_killed_in_mid_batch_leaves_every_row_once(
    spark: SparkSession, copying: Job, nats: NatsServer, admin: Admin, stream: str
) -> None:
    out = f"{stream}OUT"
    with copying.running() as process:
        # In the middle of a batch with rows: some of it is there, and the batch is not done.
        wait(lambda: copying.batch_done(2) and admin.calls.stream(out).last % 8000 > 500, process)
        kill_application(process)
    before = len(numbers(nats.url, out))
    assert 0 < before < ROWS, "it was killed too early or too late to prove anything"
    copying.go_on(spark)
    found = numbers(nats.url, out)
    assert sorted(found) == list(range(ROWS))
    assert in_order_of_partitions(found)


def test_python_workers_killed_in_mid_batch_are_replaced_and_no_row_lost_or_doubled(
    copying: Job, nats: NatsServer, admin: Admin, stream: str
) -> None:
    out = f"{stream}OUT"

    def one_has_crashed() -> bool:
        """Whether Spark lost a worker in the middle of a task. One that is killed just behind it proves nothing."""
        if admin.calls.stream(out).last % 8000 > 500:
            for pid in task_workers(process):
                kill(pid)
        return "crashed" in copying.log.read_text()

    with copying.running() as process:
        wait(one_has_crashed, process)
        assert process.wait(120) == 0, copying.log.read_text()[-3000:]
    assert sorted(numbers(nats.url, out)) == list(range(ROWS))


def test_a_server_killed_in_mid_batch_costs_no_row(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    with NatsServer(folder) as running:
        admin = Admin(running.url)
        admin.create("IN")
        admin.create("OUT", duplicate_window=WINDOW)
        admin.numbers("IN", ROWS)
        options = {
            "servers": running.url,
            "stream": "IN",
            "startingOffsets": "earliest",
            "maxRecordsPerTrigger": "8000",
        }
        job = Job(tmp_path, options, sink={"servers": running.url, "subject": "OUT.x"})
        query = start(spark, job.told)
        wait(lambda: admin.calls.stream("OUT").last > 9000)
        admin.close()
        running.kill()
        time.sleep(0.5)
        running.start()
        query.awaitTermination()
        assert sorted(numbers(running.url, "OUT")) == list(range(ROWS))


def test_a_write_a_table_and_an_insert(spark: SparkSession, nats: NatsServer, admin: Admin, stream: str) -> None:
    admin.create(stream)
    rows = spark.range(100, numPartitions=3).selectExpr("string(id) AS value", "id % 2 AS side")
    writer = rows.write.format("jetstream").option("servers", nats.url).option("subject", f"{stream}.{{side}}")
    writer.mode("append").save()
    assert sorted(numbers(nats.url, stream)) == list(range(100))
    options = f"servers '{nats.url}', stream '{stream}', subject '{stream}.sql'"
    spark.sql(f"CREATE TABLE {stream} USING jetstream OPTIONS ({options}) COMMENT 'both ways'")
    try:
        spark.sql(f"INSERT INTO {stream} (value) VALUES (binary('100')), (binary('101'))")
        spark.sql(f"INSERT INTO {stream} (value, subject) VALUES (binary('102'), '{stream}.own')")
        found = spark.sql(f"SELECT int(string(value)) AS n, subject FROM {stream} WHERE sequence > 100 ORDER BY n")
        assert [tuple(row) for row in found.collect()] == [
            (100, f"{stream}.sql"),
            (101, f"{stream}.sql"),
            (102, f"{stream}.own"),
        ]
    finally:
        spark.sql(f"DROP TABLE {stream}")


def test_what_cannot_be_written_is_said_in_a_sentence(
    spark: SparkSession, nats: NatsServer, admin: Admin, stream: str
) -> None:
    admin.create(stream)
    where = {"servers": nats.url, "subject": f"{stream}.x"}
    rows = spark.range(3, numPartitions=1).selectExpr("string(id) AS value", "id AS extra")
    with pytest.raises(PySparkException, match="jetstream cannot write the column 'extra'"):
        rows.write.format("jetstream").options(**where).mode("append").save()
    odd = rows.selectExpr("value", "INTERVAL '1' YEAR AS age", "array() AS none", "array(null) AS nulls", "extra")
    with pytest.raises(PySparkException, match="cannot write the columns 'age', 'none', 'nulls', 'extra'"):
        odd.write.format("jetstream").options(**where).mode("append").save()
    with pytest.raises(PySparkException, match="jetstream only appends"):
        rows.drop("extra").write.format("jetstream").options(**where).mode("overwrite").save()
    subject = f"if(extra = 2, '{stream} x', '{stream}.x') AS subject"
    with pytest.raises(PySparkException, match=r"row 2 of partition 0 of batch 0 has the subject .*which has a space"):
        rows.selectExpr("value", subject).write.format("jetstream").options(**where).mode("append").save()


def test_a_wrong_port_is_told_long_before_reconnect_timeout(spark: SparkSession, tmp_path: Path) -> None:
    where = {"servers": f"nats://127.0.0.1:{free_port()}", "subject": "a", "reconnectTimeout": "10m"}
    words = r"no NATS server answers .*Connection refused.*option 'servers'"
    once = spark.range(3).selectExpr("string(id) AS value").write.format("jetstream").options(**where).mode("append")
    with pytest.raises(PySparkException, match=words):
        once.save()
    rows = spark.readStream.format("rate").load().selectExpr("string(value) AS value")
    query = rows.writeStream.format("jetstream").options(**where).option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(PySparkException, match=words):
        query.awaitTermination(300)
