"""A real Kafka beside JetStream: Spark's own connector on one side of a query, ours on the other."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import spark_partition_id

from kafka_servers import KafkaAdmin
from nats_servers import Admin
from penstock.connectors.jetstream import JetStream
from penstock.testing.kafka import KafkaBroker
from penstock.testing.nats_server import NatsServer

ROWS = 2000
PARTITIONS = 6
TRACE = [("trace", b"a b"), ("trace", b"c")]
Message = tuple[bytes, bytes, list[tuple[str, bytes]]]  # key, value, headers


@pytest.fixture
def topic(spark: SparkSession, kafka_admin: KafkaAdmin, stream: str) -> str:
    """A topic with the name of the stream."""
    spark.dataSource.register(JetStream)
    kafka_admin.create(stream, PARTITIONS)
    return stream


def numbers(start: int, end: int) -> list[Message]:
    """Numbers with their last digit as the key."""
    return [(b"%d" % (i % 10), b"%d" % i, TRACE) for i in range(start, end)]


def reach(kafka: KafkaBroker, topic: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}


def in_kafka(admin: KafkaAdmin, topic: str) -> list[Message]:
    return sorted((message.key, message.value, message.headers) for message in admin.read(topic))


def in_jetstream(spark: SparkSession, nats: NatsServer, stream: str) -> list[Message]:
    rows = spark.read.format("jetstream").options(servers=nats.url, stream=stream).load().collect()
    return sorted((row.subject.split(".")[1].encode(), bytes(row.value), traces(row)) for row in rows)


def traces(row: Any) -> list[tuple[str, bytes]]:
    """The headers that were sent; the sink has added an id."""
    return [(header.key, bytes(header.value)) for header in row.headers if header.key == "trace"]


def run(rows: DataFrame, format: str, folder: Path, **options: Any) -> list[int]:
    """One AvailableNow run; how many rows each batch had."""
    writer = rows.writeStream.format(format).options(**options).option("checkpointLocation", str(folder))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def forget_the_last_commit(checkpoint: Path) -> None:
    """As if Spark had died after the sink was done and before it noted so."""
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    for file in (last, last.with_name(f".{last.name}.crc")):
        file.unlink(missing_ok=True)


def test_a_batch_of_spark_reads_what_was_produced(
    spark: SparkSession, kafka: KafkaBroker, kafka_admin: KafkaAdmin, topic: str
) -> None:
    kafka_admin.produce(topic, numbers(0, ROWS))
    rows = spark.read.format("kafka").options(**reach(kafka, topic), includeHeaders=True).load().cache()
    counts = {row.partition: row["count"] for row in rows.groupBy("partition").count().collect()}
    assert len(counts) > 1, "all keys fell into one partition"
    assert counts == {partition: count for partition, count in kafka_admin.counts(topic).items() if count}
    assert sorted((row.key, row.value, traces(row)) for row in rows.collect()) == sorted(numbers(0, ROWS))
    rows.unpersist()


def test_a_stream_is_copied_to_a_topic(
    spark: SparkSession,
    kafka: KafkaBroker, kafka_admin: KafkaAdmin, nats: NatsServer, admin: Admin, topic: str, tmp_path: Path,
) -> None:  # fmt: skip
    stream = topic
    admin.create(stream, storage="memory")
    limits = {"startingOffsets": "earliest", "maxRecordsPerTrigger": 700}
    rows = spark.readStream.format("jetstream").options(servers=nats.url, stream=stream, **limits).load()
    messages = rows.selectExpr("split(subject, '[.]')[1] AS key", "value", "headers")
    target = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": topic}
    for end in (ROWS, 2 * ROWS):  # a restart adds what is new, and no row twice
        texts = [(name, value.decode()) for name, value in TRACE]
        admin.publish((f"{stream}.{key.decode()}", body, texts) for key, body, _ in numbers(end - ROWS, end))
        assert run(messages, "kafka", tmp_path, **target) == [700, 700, 600]
        assert in_kafka(kafka_admin, topic) == sorted(numbers(0, end))


def test_a_topic_is_copied_to_a_stream_also_when_a_batch_is_run_again(
    spark: SparkSession,
    kafka: KafkaBroker, kafka_admin: KafkaAdmin, nats: NatsServer, admin: Admin, topic: str, tmp_path: Path,
) -> None:  # fmt: skip
    stream = topic
    admin.create(stream, storage="memory", duplicate_window=100_000_000)  # ns: over before the batch is run again
    limits = {"includeHeaders": True, "maxOffsetsPerTrigger": 1500}
    rows = spark.readStream.format("kafka").options(**reach(kafka, topic), **limits).load()
    messages = rows.selectExpr("string(key) AS key", "value", "headers")
    target = {"servers": nats.url, "subject": f"{stream}.{{key}}", "ledger": f"{stream}LEDGER"}
    for end in (ROWS, 2 * ROWS):  # a restart adds what is new, and no row twice
        kafka_admin.produce(topic, numbers(end - ROWS, end))
        batches = run(messages, "jetstream", tmp_path, **target)
        assert len(batches) > 1
        assert in_jetstream(spark, nats, stream) == sorted(numbers(0, end))
    forget_the_last_commit(tmp_path)
    assert run(messages, "jetstream", tmp_path, **target) == batches[-1:], "not that batch was run again"
    assert in_jetstream(spark, nats, stream) == sorted(numbers(0, 2 * ROWS))


def test_spark_gives_partitions_to_other_tasks_when_it_runs_a_batch_of_a_small_topic_again(
    spark: SparkSession, kafka: KafkaBroker, kafka_admin: KafkaAdmin, tmp_path: Path
) -> None:
    """A fact about Spark's source, of up to four partitions: in the same task are not the same rows. Sinks that know a
    row by its task refuse it. When this fails, Spark has mended it, and what we say about such topics can go.
    """

    def tasks(topic: str) -> list[int]:
        """The partition that each task has."""
        found: list[int] = []

        def look(frame: DataFrame, batch: int) -> None:
            pairs = frame.select(spark_partition_id().alias("task"), "partition").distinct().collect()
            found.extend(pair.partition for pair in sorted(pairs))

        rows = spark.readStream.format("kafka").options(**reach(kafka, topic)).load()
        writer = rows.writeStream.foreachBatch(look).option("checkpointLocation", str(tmp_path / topic))
        writer.trigger(availableNow=True).start().awaitTermination()
        return found

    for topic, partitions, moves in (("task-order-4", 4, True), ("task-order-5", 5, False)):
        kafka_admin.create(topic, partitions)
        for partition in range(partitions):
            kafka_admin.produce(topic, [(None, b"x")], partition)
        before = tasks(topic)
        forget_the_last_commit(tmp_path / topic)
        after = tasks(topic)
        assert sorted(before) == sorted(after) == list(range(partitions))
        assert (before != after) == moves, f"{topic}: {before}, then {after}"
