"""The proof of a copy from Kafka, on a real broker: the stream is filled by our own client, as the pipeline would."""

import json
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer, TopicPartition
from typer.testing import CliRunner

from kafka_servers import KafkaAdmin
from nats_servers import Admin
from penstock.cli import app
from penstock.operate.migrate.kafka_copy import Record, copies, headers, subject
from penstock.pipelines.load import load
from penstock.testing.kafka import KafkaBroker
from penstock.testing.nats_server import NatsServer

Message = tuple[str, bytes, list[tuple[str, str]]]
ODD = [("trace", b"a b"), ("raw", b"\xff\r\n"), ("Nats-Rollup", b"all")]


def messages(kafka_admin: KafkaAdmin, topic: str) -> list[Message]:
    """Every record of a topic as the pipeline copies it."""
    (copy,) = copies([topic])
    found = []
    for each in kafka_admin.read(topic):
        record = Record(each.key, each.value, each.headers, each.timestamp)
        pairs = [("Nats-Msg-Id", f"{topic}/{each.partition}/{each.offset}"),
                 *((name, value.decode()) for name, value in
                   headers(topic, each.partition, each.offset, each.timestamp, record))]  # fmt: skip
        found.append((subject(copy, each.partition, each.key), each.value or b"", pairs))
    return found


def prove(topic: str, kafka: KafkaBroker, nats: NatsServer, *more: str, code: int = 0) -> Any:
    words = ["--from-kafka", topic, f"brokers={kafka.bootstrap}", f"servers={nats.url}", *more]
    ran = CliRunner().invoke(app, ["jetstream", "migrate", *words, "--prove", "10ms", "--json"])
    assert ran.exit_code == code, ran.output
    return json.loads(ran.stdout)["proof"]


def test_a_copy_is_proven_and_each_kind_of_fault_is_told_by_its_offset(
    kafka: KafkaBroker, kafka_admin: KafkaAdmin, nats: NatsServer, admin: Admin, tmp_path: Path
) -> None:
    kafka_admin.create("proof.orders", 3)
    rows: list[Any] = [(b"%d" % n, b"%d" % n, ODD if n % 10 == 0 else []) for n in range(100)]
    kafka_admin.produce("proof.orders", [*rows, (b"\x00key", b"x"), (None, b"y")])
    words = ["--from-kafka", "proof.orders", f"brokers={kafka.bootstrap}", f"servers={nats.url}"]
    ran = CliRunner().invoke(app, ["jetstream", "migrate", *words, "--out", str(tmp_path), "--apply"])
    assert ran.exit_code == 0, ran.output
    (pipeline,) = load([tmp_path / "pipelines"])
    assert pipeline.guarantee() == "exactly once"
    assert admin.calls.stream("proof_orders").subjects == ("proof.orders.*",)

    empty = prove("proof.orders", kafka, nats, code=3)
    assert sum(part["missing"] for part in empty) == 102
    copied = messages(kafka_admin, "proof.orders")
    admin.publish(copied)
    whole = prove("proof.orders", kafka, nats)
    assert [part["partition"] for part in whole] == [0, 1, 2]
    assert sum(part["in_stream"] for part in whole) == sum(part["in_kafka"] for part in whole) == 102

    # Somebody deletes one, changes one, and stores one again.
    gone, changed, again = (_with_place(copied, partition) for partition in (0, 1, 2))
    for sequence, (subject_, _, pairs) in ((1 + copied.index(each), each) for each in (gone, changed)):
        admin.delete_message("proof_orders", sequence)
        if (subject_, pairs) == (changed[0], changed[2]):
            admin.publish([(subject_, b"other", [pair for pair in pairs if pair[0] != "Nats-Msg-Id"])])
    admin.publish([(again[0], again[1], [pair for pair in again[2] if pair[0] != "Nats-Msg-Id"])])
    first, second, third = prove("proof.orders", kafka, nats, code=3)
    assert (first["missing_offsets"], first["twice"], first["different"]) == ([_offset(gone)], 0, 0)
    assert (second["different_offsets"], second["missing"], second["in_order"]) == ([_offset(changed)], 0, False)
    assert (third["twice_offsets"], third["missing"]) == ([_offset(again)], 0)


def _with_place(found: list[Message], partition: int) -> Message:
    return next(each for each in found if ("kafka-partition", str(partition)) in each[2] and len(each[1]) == 2)


def _offset(message: Message) -> int:
    return int(dict(message[2])["kafka-offset"])


def test_transactions_tombstones_and_deleted_records_leave_gaps_that_are_no_alarm(
    kafka: KafkaBroker, kafka_admin: KafkaAdmin, nats: NatsServer, admin: Admin
) -> None:
    kafka_admin.create("gaps", 1, cleanup_policy="compact,delete")
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id="t")
    producer.init_transactions()
    for number in range(6):
        producer.begin_transaction()
        producer.send("gaps", key=b"%d" % number, value=None if number == 3 else b"%d" % number)
        producer.flush()
        if number % 2:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close()
    kept = [message for message in messages(kafka_admin, "gaps") if dict(message[2])["kafka-key"] in "135"]
    assert len(kept) == 3
    assert [_offset(each) for each in kept] != [0, 1, 2]
    admin.create("gaps", "gaps.*")
    admin.publish(kept)
    (part,) = prove("gaps", kafka, nats)
    assert (part["in_kafka"], part["in_stream"], part["missing"], part["end"]) == (3, 3, 0, 12)
    kafka_admin.client.delete_records({TopicPartition("gaps", 0): 4})
    (part,) = prove("gaps", kafka, nats)
    assert (part["in_kafka"], part["no_longer_in_kafka"], part["missing"]) == (2, 1, 0)
    admin.publish([("gaps.0", b"of somebody else")])
    assert prove("gaps", kafka, nats)[0]["holds"]


def test_a_topic_that_is_not_there_and_brokers_that_are_away_are_told(
    kafka: KafkaBroker, kafka_admin: KafkaAdmin, nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.operate.migrate.kafka_reading.TIMEOUT", 0.5)
    kafka_admin.create("payments")
    for topic, brokers, says in (
        ("payment", kafka.bootstrap, "Kafka has no topic 'payment'. Did you mean 'payments'?"),
        ("payments", "127.0.0.1:1", "the brokers at 127.0.0.1:1 do not answer"),
        ("payments", kafka.bootstrap, "stream 'payments' does not exist"),
    ):
        words = ["--from-kafka", topic, f"brokers={brokers}", f"servers={nats.url}", "--prove"]
        ran = CliRunner().invoke(app, ["jetstream", "migrate", *words])
        assert ran.exit_code == 1, ran.output
        assert says in " ".join(ran.output.split())


def test_files_that_say_something_else_are_not_overwritten(nats: NatsServer, tmp_path: Path) -> None:
    words = ["jetstream", "migrate", "--from-kafka", "orders", f"servers={nats.url}", "--out", str(tmp_path)]
    for brokers, code in (("a:9092", 0), ("a:9092", 0), ("b:9092", 1)):
        ran = CliRunner().invoke(app, [*words, f"brokers={brokers}"])
        assert ran.exit_code == code, ran.output
    assert "says something else" in " ".join(ran.output.split())
    assert "a:9092" in (tmp_path / "pipelines" / "orders.toml").read_text()
