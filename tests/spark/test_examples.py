"""The pipelines in examples/: each is run, and what its first lines say is seen."""

import contextlib
import importlib.util
import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

from iggy_servers import IggyAdmin
from penstock.cli.peek import newest
from penstock.connectors import connector
from penstock.pipelines.load import load
from penstock.testing.iggy_double import IggyDouble
from penstock.testing.kafka import KafkaBroker
from penstock.testing.nats_server import NatsServer
from penstock.testing.s2_lite import S2Lite
from s2_servers import S2Admin
from spark.jobs import wait
from spark.pipeline_runs import Command, bodies, done

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted(file.name for file in EXAMPLES.glob("*.toml"))
IDS = [1, 2, 3, 4, 6, 7, 8, 9]


def example(folder: Path, name: str) -> Path:
    """An example in a folder of its own, where it may write."""
    shutil.copytree(EXAMPLES, folder / "examples", ignore=shutil.ignore_patterns("out", ".penstock"))
    return folder / "examples" / f"{name}.toml"


@pytest.fixture(scope="module")
def servers() -> ModuleType:
    """What fills servers for users, to fill those of the tests."""
    spec = importlib.util.spec_from_file_location("servers", EXAMPLES / "servers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def nats_with_orders(servers: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats")) as running:
        servers.nats(running.url)
        yield running


def test_every_example_begins_with_two_lines_that_say_what_it_does_and_is_tested_here(folder: Path) -> None:
    text = Path(__file__).read_text()
    for name in FILES:
        lines = (EXAMPLES / name).read_text().splitlines()
        assert [line.startswith("# ") for line in lines[:3]] == [True, True, False], name
        assert "penstock run" in lines[1], name
        assert f'"{name.removesuffix(".toml")}"' in text, f"{name} is not tested"
    assert len(load([EXAMPLES])) == len(FILES) == 6


def test_rows_are_printed(folder: Path) -> None:
    command = Command(folder, example(folder, "rate-to-console"))
    with command.running() as process:
        wait(lambda: command.said().count("parity") >= 2, process)
        process.terminate()
        assert process.wait(60) == 0, command.said()
    said = command.said().replace(" ", "")
    assert "|value|parity|" in said
    assert "|0|even|" in said
    assert "|1|odd|" in said


def test_lines_become_parquet(spark: SparkSession, folder: Path) -> None:
    file = example(folder, "files-to-parquet")
    went = done(spark, file)
    assert (went.rows, went.errors) == (8, 1)
    rows = spark.read.parquet(str(file.parent / "out" / "orders")).collect()
    assert sorted((row.id, row.region, row.amount) for row in rows)[:2] == [(1, "eu", 12.5), (2, "us", 8.0)]
    assert sorted(row.id for row in rows) == [1, 2, 3, 4, 6, 7, 8]
    (letter,) = spark.read.parquet(str(file.parent / "out" / "bad-lines")).collect()
    assert bytes(letter.value).startswith(b"five,")
    (file.parent / "data" / "more.csv").write_text("id,at,region,amount\n10,2026-11-16T14:00:00Z,eu,1.0\n")
    assert done(spark, file).rows == 1, "a file that was added is read, and no other"


def test_lines_go_to_s2(
    spark: SparkSession, s2: S2Lite, servers: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with S2Lite(basin="examples") as running:
        servers.s2(running.url, "examples")
        monkeypatch.setenv("S2_ENDPOINT", running.url)
        file = example(folder, "files-to-s2")
        assert [done(spark, file).rows for _ in range(2)] == [8, 0]
        records = [record for record in S2Admin(running).read("orders") if record.body]
    assert sorted(json.loads(record.body)["id"] for record in records) == IDS
    assert all(dict(record.headers)[b"partition"].endswith(b"/data/orders.json") for record in records)


def test_orders_are_summed_by_minute(
    spark: SparkSession, nats_with_orders: NatsServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NATS_URL", nats_with_orders.url)
    done(spark, example(folder, "jetstream-windows"))
    rows = newest(connector("jetstream"), {"servers": nats_with_orders.url, "stream": "SUMS"}, 100)
    sums = {}
    for row in rows:
        found = json.loads(row["value"])
        assert row["subject"] == f"sums.{found['region']}"
        minute = datetime.fromisoformat(found["minute"]).astimezone(UTC)
        sums[f"{minute:%H:%M}", found["region"]] = (found["orders"], found["amount"])
    assert sums == {
        ("12:00", "eu"): (1, 12.5), ("12:00", "us"): (1, 8.0), ("12:01", "eu"): (2, 38.0), ("12:01", "ap"): (1, 5.0),
        ("12:02", "us"): (2, 21.5),
    }  # fmt: skip
    assert len(rows) == 5


def test_large_orders_are_copied_and_what_is_no_json_is_a_dead_letter(
    spark: SparkSession, nats_with_orders: NatsServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NATS_URL", nats_with_orders.url)
    done(spark, example(folder, "jetstream-to-jetstream-with-dead-letters"))
    found = [json.loads(body) for body in bodies(nats_with_orders, "LARGE")]
    assert sorted((each["id"], each["region"], each["amount"], each["checked"]) for each in found) == [
        (1, "eu", 12.5, True), (3, "eu", 30.25, True), (7, "us", 19.0, True),
    ]  # fmt: skip
    (letter,) = newest(connector("jetstream"), {"servers": nats_with_orders.url, "stream": "DEAD"}, 10)
    headers = {header["key"]: header["value"].decode() for header in letter["headers"]}
    assert letter["value"] == b"{not json"
    assert headers["penstock-error"].startswith("a record at 5 of 'ORDERS' is not JSON")


def test_json_of_kafka_goes_to_iggy(
    spark: SparkSession, kafka: KafkaBroker, servers: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.ExitStack() as stack:
        iggy = stack.enter_context(IggyDouble())
        servers.iggy(iggy.address)
        servers.kafka(kafka.bootstrap)
        monkeypatch.setenv("IGGY_ADDRESS", iggy.address)
        monkeypatch.setenv("KAFKA_BROKERS", kafka.bootstrap)
        assert done(spark, example(folder, "kafka-to-iggy")).rows == 8
        messages = IggyAdmin(iggy).read("shop", "orders")
    orders = [json.loads(message.payload()) for message in messages]
    assert sorted(order["id"] for order in orders) == IDS
    assert set(orders[0]) == {"id", "at", "region", "amount"}
    for order, message in zip(orders, messages, strict=True):
        number = IDS.index(order["id"])
        assert message.user_headers().to_scalar_dict() == {
            "source": "kafka", "partition": number % 2, "offset": number // 2,
        }  # fmt: skip
    partitions = {(order["region"], message.partition_id()) for order, message in zip(orders, messages, strict=True)}
    assert len(partitions) == 3, "all orders of a region are in one partition"
