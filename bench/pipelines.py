"""A pipeline from a file beside the same query by hand, in one Spark session, by turns: what does the file cost?

JetStream to JetStream, and Kafka to a sink that throws rows away. What is timed is the batches, as Spark tells it; what
comes before the first one and after the last is told apart, as a query that runs for days pays it once.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from kafka_servers import KafkaAdmin
from measure import cpu_seconds, median, processes, save
from nats_servers import Admin
from penstock.pipelines import job
from penstock.pipelines.load import load
from penstock.session import local_session
from penstock.testing.kafka import KafkaBroker, spark_kafka_jars
from penstock.testing.nats_server import NatsServer
from spark.jobs import descendants

SIZE, ROUNDS = 200, 7
ENDS = """
[source]
type = "{source}"
{reads}

[[sinks]]
type = "{sink}"
{writes}

[trigger]
available_now = true

[checkpoint]
location = "{checkpoint}"
"""


def by_file(spark: Any, folder: Path, **ends: str) -> Any:
    """The query of a pipeline file, without the runner's second of taking its checkpoint."""
    file = folder / "pipeline.toml"
    file.write_text(ENDS.format(checkpoint=folder / "checkpoint", **ends))
    return job.start(spark, load([file])[0])


def by_hand(rows: Any, folder: Path, format: str, **options: str) -> Any:
    """The same, as a Python program says it."""
    writer = rows.writeStream.format(format).options(checkpointLocation=str(folder / "checkpoint"), **options)
    return writer.trigger(availableNow=True).start()


def spark_seconds() -> float:
    """CPU time of this program, its Spark and its Python workers."""
    ours = set(processes("pyspark")) | set(processes("penstock.spark.warm"))
    return cpu_seconds([os.getpid(), *ours & set(descendants(os.getpid()))])


def compare(ways: dict[str, Callable[[Path], Any]]) -> dict[str, Any]:
    """Seconds of each way, by turns, and how the file stands beside the program."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    around: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(ROUNDS + 1):
        for name, way in ways.items():
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                cpu_before, began = spark_seconds(), time.monotonic()
                query = way(Path(folder))
                query.awaitTermination()
                if turn:  # the first is for warming up
                    cpu[name].append(spark_seconds() - cpu_before)
                    took = sum(each.durationMs["triggerExecution"] for each in query.recentProgress) / 1000
                    seconds[name].append(took)
                    around[name].append(time.monotonic() - began - took)
    middle = {name: median(each) for name, each in seconds.items()}
    used = {name: median(each) for name, each in cpu.items()}
    return {
        "seconds": {name: round(each, 3) for name, each in middle.items()},
        "seconds before and after": {name: round(median(each), 3) for name, each in around.items()},
        "cpu seconds": {name: round(each, 3) for name, each in used.items()},
        "file to hand, throughput": round(middle["by hand"] / middle["by file"], 3),
        "file to hand, rows a second of CPU": round(used["by hand"] / used["by file"], 3),
        "rounds": {name: [round(value, 2) for value in each] for name, each in seconds.items()},
    }


def jetstream(spark: Any, rows: int) -> dict[str, Any]:
    with NatsServer() as server:
        admin = Admin(server.url)
        admin.create("IN", storage="memory")
        admin.create("OUT", storage="memory", max_msgs=1000)
        admin.publish(("IN.x", b"x" * SIZE) for _ in range(rows))
        reads = {"servers": server.url, "stream": "IN", "startingOffsets": "earliest"}
        writes = {"servers": server.url, "subject": "OUT.x"}

        def hand(folder: Path) -> Any:
            frame = spark.readStream.format("jetstream").options(**reads).load().select("value", "headers")
            return by_hand(frame, folder, "jetstream", **writes)

        return compare(
            {
                "by hand": hand,
                "by file": lambda folder: by_file(
                    spark, folder, source="jetstream", sink="jetstream",
                    reads=f'servers = "{server.url}"\nidentifier = "IN"',
                    writes=f'servers = "{server.url}"\nidentifier = "OUT.x"',
                ),
            }
        )  # fmt: skip


def kafka(spark: Any, rows: int) -> dict[str, Any]:
    with KafkaBroker() as broker:
        admin = KafkaAdmin(broker)
        admin.create("bench", 4)
        for partition in range(4):
            admin.produce("bench", [(None, b"x" * SIZE)] * (rows // 4), partition)
        reads = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "bench", "startingOffsets": "earliest"}

        def hand(folder: Path) -> Any:
            frame = spark.readStream.format("kafka").options(**reads, includeHeaders="true").load()
            return by_hand(frame, folder, "noop")

        return compare(
            {
                "by hand": hand,
                "by file": lambda folder: by_file(
                    spark, folder, source="kafka", sink="noop", writes="",
                    reads=f'bootstrap_servers = "{broker.bootstrap}"\nidentifier = "bench"',
                ),
            }
        )  # fmt: skip


def main() -> dict[str, Any]:
    rows = int(os.environ.get("COUNT", 400_000))
    jars = ",".join(map(str, spark_kafka_jars()))
    spark = local_session("bench", "local[2]", quiet=True, conf={"spark.jars": jars})
    try:
        return {"rows": rows, "jetstream to jetstream": jetstream(spark, rows), "kafka to noop": kafka(spark, 3 * rows)}
    finally:
        spark.stop()


if __name__ == "__main__":
    save("pipelines", main())
