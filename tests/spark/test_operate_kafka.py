"""The files that `penstock jetstream migrate --from-kafka` writes, run for real, and proven."""

import json
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from typer.testing import CliRunner

from kafka_servers import KafkaAdmin
from nats_servers import Admin
from penstock.cli import app
from penstock.pipelines.load import load
from penstock.testing.kafka import KafkaBroker
from penstock.testing.nats_server import NatsServer
from spark.pipeline_runs import ONCE, batches, done

ROWS = 3000
ODD = [("trace", b"a b"), ("raw", b"\xff\r\n"), ("Nats-Rollup", b"all"), ("kafka-offset", b"7"), ("empty", b"")]


def rows(start: int, end: int) -> list[Any]:
    """Numbers, some with odd headers, keys that are no text, or no key."""
    keys = (b"%d", b"key %d", b"\x00\xff%d", b" %d ")
    return [
        (None if n % 7 == 0 else keys[n % 4] % n, b"" if n % 11 == 0 else b"%d" % n, ODD if n % 5 == 0 else [])
        for n in range(start, end)
    ]


def test_a_topic_is_copied_by_the_written_files_also_when_a_batch_is_run_again(
    spark: SparkSession, kafka: KafkaBroker, kafka_admin: KafkaAdmin, nats: NatsServer, admin: Admin, tmp_path: Path
) -> None:
    """A command that is killed is tested with other pipelines. Here a batch is written, and not noted as done."""
    kafka_admin.create("migrated.orders", 3)
    kafka_admin.produce("migrated.orders", rows(0, ROWS))
    words = ["--from-kafka", "migrated.orders", f"brokers={kafka.bootstrap}", f"servers={nats.url}"]
    ran = CliRunner().invoke(app, ["jetstream", "migrate", *words, "--out", str(tmp_path), "--apply"])
    assert ran.exit_code == 0, ran.output
    file = tmp_path / "pipelines" / "migrated.orders.toml"
    file.write_text(file.read_text().replace("[source]\n", "[source]\nbatch_size = 1000\n") + ONCE)
    (pipeline,) = load([file])
    done(spark, file)
    location = Path(pipeline.location)
    for commit in (location / "commits").glob(f"*{batches(location)[1]}*"):
        commit.unlink()
    kafka_admin.produce("migrated.orders", rows(ROWS, ROWS + 100))
    done(spark, file)
    ran = CliRunner().invoke(app, ["jetstream", "migrate", *words, "--prove", "10ms", "--json"])
    assert ran.exit_code == 0, ran.output
    proof = json.loads(ran.stdout)["proof"]
    assert sum(part["in_stream"] for part in proof) == sum(part["in_kafka"] for part in proof) == ROWS + 100
    assert all(part["in_kafka"] for part in proof)
    assert admin.calls.stream("migrated_orders").last == ROWS + 100, "a record is in the stream twice"
