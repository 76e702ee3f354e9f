"""Kill it in the middle, start it again, count every row."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from nats_servers import Admin
from penstock.testing.nats_server import NatsServer
from spark.jobs import Job, kill, kill_jvm, task_workers, wait


@pytest.fixture
def options(nats: NatsServer, admin: Admin, stream: str) -> dict[str, str]:
    admin.create(stream, storage="memory")
    return {"servers": nats.url, "stream": stream}


def test_a_driver_killed_in_a_later_batch_leaves_every_row_once(
    spark: SparkSession, options: dict[str, str], admin: Admin, stream: str, tmp_path: Path
) -> None:
    admin.numbers(stream, 20_000)
    job = Job(tmp_path, options | {"startingOffsets": "earliest", "maxRecordsPerTrigger": "1500"})
    with job.running() as process:
        wait(lambda: job.in_batch(3), process)
        kill_jvm(process)
    before = len(job.values())
    assert before < 20_000, "it was killed too late to prove anything"
    job.go_on(spark)
    assert sorted(job.values()) == list(range(20_000))


def test_a_driver_killed_in_its_first_batch_keeps_the_start_it_had(
    spark: SparkSession, options: dict[str, str], admin: Admin, stream: str, tmp_path: Path
) -> None:
    """A new query starts at latest: rows that came after that start must be read, however often it dies."""
    admin.numbers(stream, 100, start=-100)
    job = Job(tmp_path, options, available_now=False)
    with job.running() as process:
        wait(lambda: job.in_batch(0), process)
        kill_jvm(process)
        assert not job.batch_done(0)
    admin.numbers(stream, 50)
    job.go_on(spark)
    admin.numbers(stream, 50, start=50)
    job.go_on(spark)
    assert sorted(job.values()) == list(range(100))


def test_a_python_worker_killed_in_mid_range_is_replaced_and_no_row_lost_or_doubled(
    options: dict[str, str], admin: Admin, stream: str, tmp_path: Path
) -> None:
    admin.publish((f"{stream}.n", str(i).encode().ljust(400)) for i in range(60_000))
    job = Job(
        tmp_path,
        options | {"startingOffsets": "earliest", "maxRecordsPerPartition": "20000"},
        master="local[2,4]",
    )
    with job.running() as process:
        wait(lambda: job.in_batch(1) and task_workers(process), process)
        for pid in task_workers(process):
            kill(pid)
        assert process.wait(120) == 0, job.log.read_text()[-3000:]
    assert "PythonWorker" in job.log.read_text() or "crashed" in job.log.read_text(), (
        "no task failed: nothing was proven"
    )
    assert sorted(job.values()) == list(range(60_000))


def test_a_restart_may_change_the_limits_and_finds_what_came_since(
    spark: SparkSession, options: dict[str, str], admin: Admin, stream: str, tmp_path: Path
) -> None:
    admin.numbers(stream, 3_000)
    first = Job(tmp_path, options | {"startingOffsets": "earliest", "maxRecordsPerTrigger": "1000"})
    first.go_on(spark)
    admin.numbers(stream, 2_000, start=3_000)
    more = {"minPartitions": "3", "maxBytesPerTrigger": "20kb", "minRecordsPerTrigger": "10"}
    Job(tmp_path, options | {"startingOffsets": "latest"} | more).go_on(spark)
    assert sorted(first.values()) == list(range(5_000))
