"""Iggy under Spark: kill, stop or fail a query in the middle, start it again, count every row."""

import itertools
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from iggy_servers import IggyAdmin, Server, options
from penstock.testing.iggy_double import IggyDouble
from spark.jobs import Job, kill_application, wait

_names = itertools.count(1)
ROWS = 40_000


def test_a_driver_killed_in_mid_batch_leaves_every_row_once(
    spark: SparkSession, iggy: Server, iggy_admin: IggyAdmin, tmp_path: Path
) -> None:
    stream = f"spark{time.time_ns()}-{next(_names)}"
    iggy_admin.make(stream, "in", 2)
    iggy_admin.make(stream, "out", 3)
    for partition in range(2):
        half = range(partition * ROWS // 2, (partition + 1) * ROWS // 2)
        iggy_admin.send(stream, "in", [b"%d" % i for i in half], partition)
    limits = {"startingOffsets": "earliest", "maxRecordsPerTrigger": "8000", "minPartitions": "2"}
    reach = options(iggy) | {"stream": stream}
    job = Job(
        tmp_path,
        {**reach, "topic": "in", **limits},
        sink={**reach, "topic": "out", "driverBytes": "1", "batchLength": "200"},
        master="local[2,4]",
        format="iggy",
    )
    with job.running() as process:
        wait(lambda: job.in_batch(3), process)
        time.sleep(0.05)
        kill_application(process)
    before = len(iggy_admin.payloads(stream, "out"))
    assert 0 < before < ROWS, "it was killed too early or too late to prove anything"
    job.go_on(spark)
    found = [int(value) for value in iggy_admin.payloads(stream, "out")]
    assert sorted(found) == list(range(ROWS))


@pytest.fixture
def stream() -> str:
    return f"spark{time.time_ns()}-{next(_names)}"


def fill(admin: IggyAdmin, stream: str, rows: int, size: int = 10) -> None:
    admin.make(stream, "in", 2)
    admin.make(stream, "out", 3)
    for partition in range(2):
        half = range(partition * rows // 2, (partition + 1) * rows // 2)
        admin.send(stream, "in", [b"%-*d" % (size, i) for i in half], partition)


def copying(spark: SparkSession, server: Server, stream: str, checkpoint: Path, value: str = "value") -> Any:
    """A query from one topic to another, one large batch, written by its tasks in many small requests."""
    reach = {**options(server), "stream": stream}
    rows = spark.readStream.format("iggy").options(**reach, topic="in", startingOffsets="earliest").load()
    sink = {**reach, "topic": "out", "driverBytes": "1", "batchLength": "20", "settleTime": "100ms"}
    writer = rows.selectExpr(f"{value} AS value").writeStream.format("iggy").options(**sink)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)


def rows_of(admin: IggyAdmin, stream: str) -> list[int]:
    return sorted(int(value) for value in admin.payloads(stream, "out"))


def no_task_runs(spark: SparkSession) -> bool:
    """A task of a query that was stopped or failed ends some time later."""
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(True)
    return all(executors.apply(i).activeTasks() == 0 for i in range(executors.size()))


def test_a_query_stopped_in_mid_batch_goes_on_and_leaves_every_row_once(
    spark: SparkSession, stream: str, tmp_path: Path
) -> None:
    rows = 20_000
    with IggyDouble() as server:
        admin = IggyAdmin(server)
        fill(admin, stream, rows, size=1000)  # more than sockets hold: Spark still has most of them
        server.pace = 0.005
        before_query = server.senders
        query = copying(spark, server, stream, tmp_path).start()
        admin.wait(lambda: admin.count(stream, "out") > 100, seconds=120)
        query.stop()
        # Spark says that no task runs while Python still sends what it was given, and ends at its next batch.
        wait(lambda: no_task_runs(spark) and server.senders <= before_query)
        before = rows_of(admin, stream)
        assert 0 < len(before) < rows, "it was stopped too early or too late to prove anything"
        server.pace = 0
        copying(spark, server, stream, tmp_path).start().awaitTermination()
        assert rows_of(admin, stream) == list(range(rows))


def test_rows_that_fail_upstream_in_mid_batch_cost_and_double_none(
    spark: SparkSession, iggy: Server, iggy_admin: IggyAdmin, stream: str, tmp_path: Path
) -> None:
    fill(iggy_admin, stream, 10_000)
    failing = "if(sequence = 4000, raise_error('upstream fails'), value)"
    with pytest.raises(PySparkException, match="upstream fails"):
        copying(spark, iggy, stream, tmp_path, failing).start().awaitTermination()
    wait(lambda: no_task_runs(spark))
    assert len(rows_of(iggy_admin, stream)) < 10_000
    copying(spark, iggy, stream, tmp_path).start().awaitTermination()
    assert rows_of(iggy_admin, stream) == list(range(10_000))


def test_a_single_write_reads_no_other_messages(
    spark: SparkSession, iggy: Server, iggy_admin: IggyAdmin, stream: str
) -> None:
    if not isinstance(iggy, IggyDouble):
        pytest.skip("a real server does not count what it gives")
    fill(iggy_admin, stream, ROWS)
    before = iggy.polled
    rows = spark.range(1).selectExpr("'99999' AS value")
    rows.write.format("iggy").options(**options(iggy), stream=stream, topics="in").mode("append").save()
    assert iggy.polled - before <= 1
    assert sum(value == b"99999" for value in iggy_admin.payloads(stream, "in")) == 1


def test_a_purge_while_the_query_was_down_stops_it(
    spark: SparkSession, iggy: Server, iggy_admin: IggyAdmin, stream: str, tmp_path: Path
) -> None:
    fill(iggy_admin, stream, 100)
    copying(spark, iggy, stream, tmp_path).start().awaitTermination()
    iggy_admin.purge(stream, "in")
    for partition in range(2):
        iggy_admin.send(stream, "in", [b"%d" % i for i in range(200, 300)], partition)
    with pytest.raises(PySparkException, match=r"counts anew \(now 0 to 99\): its record 49 is not the one"):
        copying(spark, iggy, stream, tmp_path).start().awaitTermination()
    assert rows_of(iggy_admin, stream) == list(range(100))


def test_a_wrong_port_is_told_at_once_when_writing(spark: SparkSession, tmp_path: Path) -> None:
    where = {"address": "127.0.0.1:1", "password": "iggy", "stream": "s", "topic": "t", "reconnectTimeout": "10m"}
    said = r"no Iggy server answers at 127.0.0.1:1 \(Connection refused\). Check 'address' and that the server runs"
    with pytest.raises(PySparkException, match=said):
        spark.range(1).selectExpr("string(id) AS value").write.format("iggy").options(**where).mode("append").save()
    with pytest.raises(PySparkException, match=said):
        spark.read.format("iggy").options(**where).load()
    rows = spark.readStream.format("rate").load().selectExpr("string(value) AS value")
    query = rows.writeStream.format("iggy").options(**where).option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(PySparkException, match=said):
        query.awaitTermination(60)


def test_no_password_is_said_before_anything_runs(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match=r"no password is given for user 'iggy'. Set 'password', 'passwordFile'"):
        spark.read.format("iggy").options(stream="s", topic="t").load()
