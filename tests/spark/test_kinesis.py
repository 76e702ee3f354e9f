"""Kinesis under Spark: shards that split and merge while a query runs, is killed and started again."""

import time
from pathlib import Path

from pyspark.sql import SparkSession

from kinesis_servers import Kinesis as KinesisServer
from spark.jobs import Job, kill_application, wait

SHARD = "shardId-{:012}".format


def numbered(low: int, high: int) -> list[bytes]:
    return [b"%d" % number for number in range(low, high)]


def test_a_driver_killed_while_shards_split_and_merge_leaves_every_row_once(
    spark: SparkSession, kinesis: KinesisServer, tmp_path: Path
) -> None:
    name = f"killed{time.time_ns()}"
    kinesis.make(name, 2)
    kinesis.put(name, numbered(0, 400), SHARD(0))
    kinesis.put(name, numbered(400, 800), SHARD(1))
    options = {**kinesis.options(name), "pollInterval": "50ms", "startingOffsets": "earliest"}
    job = Job(tmp_path, options | {"maxRecordsPerTrigger": "100"}, format="kinesis", available_now=False)
    with job.running() as process:
        wait(lambda: job.in_batch(3), process)
        kinesis.split(name, SHARD(0))
        kinesis.put(name, numbered(800, 900), SHARD(2))
        kinesis.put(name, numbered(900, 1000), SHARD(3))
        wait(lambda: job.in_batch(6), process)
        kill_application(process)
    kinesis.merge(name, SHARD(2), SHARD(3))
    kinesis.put(name, numbered(1000, 1200), SHARD(4))
    job.go_on(spark)
    rows = spark.read.parquet(str(job.out)).selectExpr("int(string(value)) AS number", "shard").collect()
    assert sorted(row.number for row in rows) == list(range(1200))
    assert {row.shard for row in rows} == {SHARD(number) for number in range(5)}
