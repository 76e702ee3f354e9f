"""The files that `penstock jetstream migrate --from-kafka` writes, run for real: killed in the middle, and proven."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from kafka_servers import KafkaAdmin
from nats_servers import Admin
from penstock.cli import app
from penstock.testing.kafka import KafkaBroker, spark_kafka_jars
from penstock.testing.nats_server import NatsServer
from spark.jobs import wait
from spark.pipeline_runs import ONCE, Command

ROWS = 3000
ODD = [("trace", b"a b"), ("raw", b"\xff\r\n"), ("Nats-Rollup", b"all"), ("kafka-offset", b"7"), ("empty", b"")]


def rows(start: int, end: int) -> list[Any]:
    """Numbers, some with odd headers, keys that are no text, or no key."""
    keys = (b"%d", b"key %d", b"\x00\xff%d", b" %d ")
    return [
        (None if n % 7 == 0 else keys[n % 4] % n, b"" if n % 11 == 0 else b"%d" % n, ODD if n % 5 == 0 else [])
        for n in range(start, end)
    ]


def test_a_topic_is_copied_by_the_written_files_also_when_the_copy_is_killed(
    kafka: KafkaBroker, kafka_admin: KafkaAdmin, nats: NatsServer, admin: Admin, tmp_path: Path
) -> None:
    kafka_admin.create("migrated.orders", 3)
    kafka_admin.produce("migrated.orders", rows(0, ROWS))
    words = ["--from-kafka", "migrated.orders", f"brokers={kafka.bootstrap}", f"servers={nats.url}"]
    ran = CliRunner().invoke(app, ["jetstream", "migrate", *words, "--out", str(tmp_path), "--apply"])
    assert ran.exit_code == 0, ran.output
    file = tmp_path / "pipelines" / "migrated.orders.toml"
    jars = ",".join(map(str, spark_kafka_jars()))
    limits = f'\n[spark.conf]\n"spark.jars" = "{jars}"\n'
    file.write_text(file.read_text().replace("[source]\n", "[source]\nbatch_size = 500\n") + limits + ONCE)

    def stored() -> int:
        return admin.calls.stream("migrated_orders").last

    command = Command(tmp_path, file)
    with command.running() as process:
        wait(lambda: stored() > 300 or process.poll() is not None, seconds=240)
        command.kill(process)
    assert 300 < stored() < ROWS, command.said()
    kafka_admin.produce("migrated.orders", rows(ROWS, ROWS + 100))
    assert command.run() == 0, command.said()
    ran = CliRunner().invoke(app, ["jetstream", "migrate", *words, "--prove", "10ms", "--json"])
    assert ran.exit_code == 0, ran.output
    proof = json.loads(ran.stdout)["proof"]
    assert sum(part["in_stream"] for part in proof) == sum(part["in_kafka"] for part in proof) == ROWS + 100
    assert all(part["in_kafka"] for part in proof)
    assert stored() == ROWS + 100, "a record is in the stream twice"
