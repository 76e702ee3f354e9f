"""`penstock lag`: how far a query that is not running is behind, by its checkpoint and its server.

The checkpoints are written as a query writes them, by the planner that queries have; no Spark runs.
"""

import json
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import iggy_servers
import kinesis_servers
import s2_servers
from checkpoint_files import batch, put
from kafka_servers import KafkaAdmin
from nats_servers import Admin
from penstock.cli import app
from penstock.connectors import connector
from penstock.planning.planner import Planner
from penstock.testing.kafka import KafkaBroker
from penstock.testing.nats_server import NatsServer
from penstock.testing.s2_lite import S2Lite

QUERY = "4949678e-5a8b-467a-a0e9-ba0697f6c0f2"


def stopped(folder: Path, format: str, given: Mapping[str, str], rows: int | None = None) -> Path:
    """The checkpoint of a query that has read `rows` records, or all, and was stopped."""
    put(folder, "metadata", json.dumps({"id": QUERY}))
    options = connector(format).parse({**given, "startingOffsets": "earliest"})
    planner = Planner(connector(format).open_source(options), options, "earliest")
    start = planner.next(planner.initial(), None)
    batch(folder, 0, [json.dumps(start)])
    batch(folder, 1, [json.dumps(planner.next(start, rows))])
    planner.source.close()
    return folder


def lag(where: Path, format: str, given: Mapping[str, str], *words: str) -> dict[str, Any]:
    said = run(where, format, *(f"{key}={value}" for key, value in given.items()), "--json", *words)
    found: dict[str, Any] = json.loads(said)
    return found


def run(where: Path, *words: str, code: int = 0) -> str:
    ran = CliRunner().invoke(app, ["lag", str(where), *words])
    assert ran.exit_code == code, (ran.output, ran.exception)
    return ran.output


def numbers(report: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {each["shard"]: (each["position"], each["end"], each["records"]) for each in report["shards"]}


def test_lag_of_jetstream_counts_what_is_unread_and_how_old_that_is(
    nats: NatsServer, admin: Admin, stream: str, tmp_path: Path
) -> None:
    given = {"servers": nats.url, "stream": stream}
    admin.create(stream)
    admin.numbers(stream, 30)
    where = stopped(tmp_path, "jetstream", given, 20)
    report = lag(where, "jetstream", given)
    assert numbers(report) == {stream: (21, 31, 10)}
    assert (report["query"], report["batch"], report["records"], report["lost"]) == (QUERY, 1, 10, 0)
    assert 0 < report["seconds"] < 600
    run(where, "jetstream", *words(given), "--max-records", "10")
    assert "10 records behind, which is more than 9" in run(
        where, "jetstream", *words(given), "--max-records", "9", code=1
    )
    assert not admin.calls.call(f"CONSUMER.NAMES.{stream}")["consumers"], "nothing is left on the server"


def words(given: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in given.items()]


def test_lag_of_filtered_subjects_counts_only_what_the_query_would_read(
    nats: NatsServer, admin: Admin, stream: str, tmp_path: Path
) -> None:
    given = {"servers": nats.url, "stream": stream, "subjects": f"{stream}.eu"}
    admin.create(stream)
    admin.publish([(f"{stream}.eu", b"x")] * 5)
    where = stopped(tmp_path, "jetstream", given)
    admin.publish([(f"{stream}.us", b"x")] * 50 + [(f"{stream}.eu", b"x")] * 3)
    assert numbers(lag(where, "jetstream", given)) == {stream: (6, 59, 3)}


def test_lag_after_a_purge_tells_how_much_was_lost(nats: NatsServer, admin: Admin, stream: str, tmp_path: Path) -> None:
    given = {"servers": nats.url, "stream": stream}
    admin.create(stream)
    admin.numbers(stream, 30)
    where = stopped(tmp_path, "jetstream", given, 10)
    admin.purge(stream, keep=5)
    report = lag(where, "jetstream", given)
    assert numbers(report) == {stream: (11, 31, 5)}
    assert report["lost"] == 15
    said = run(where, "jetstream", *words(given), "--max-records", "100", code=1)
    assert f"'{stream}' starts at 26, but the query is at 11: 15 messages were deleted unread" in said


def test_lag_tells_a_stream_that_is_gone_and_one_that_was_made_anew(
    nats: NatsServer, admin: Admin, stream: str, tmp_path: Path
) -> None:
    given = {"servers": nats.url, "stream": stream}
    admin.create(stream)
    admin.numbers(stream, 10)
    where = stopped(tmp_path, "jetstream", given)
    admin.delete(stream)
    report = lag(where, "jetstream", given)
    assert numbers(report) == {stream: (11, None, None)}
    assert f"'{stream}' is gone" in report["shards"][0]["problem"]
    admin.create(stream)
    admin.numbers(stream, 4)
    report = lag(where, "jetstream", given)
    assert numbers(report) == {stream: (11, 5, 4)}
    assert "was deleted and made again" in report["shards"][0]["problem"]


def test_lag_of_core_nats_says_that_nothing_is_kept_and_a_wrong_address_is_a_sentence(
    nats: NatsServer, tmp_path: Path
) -> None:
    put(tmp_path, "metadata", json.dumps({"id": QUERY}))
    said = run(tmp_path, "nats", f"servers={nats.url}", "subjects=x", code=1)
    assert "Core NATS keeps no message" in said
    batch(tmp_path, 0, [json.dumps({"epochs": {}, "next": {"X": 1}, "version": 1})])
    said = run(tmp_path, "jetstream", "servers=nats://127.0.0.1:1", "stream=X", code=1)
    assert "127.0.0.1:1" in said
    assert "Traceback" not in said


def test_lag_of_s2_tells_records_and_losses(
    s2: "S2Lite | s2_servers.Cloud", s2_admin: s2_servers.S2Admin, stream: str, tmp_path: Path
) -> None:
    one, other = (f"lag-{stream.lower()}-{name}" for name in "ab")
    given = {**s2.options(), "streams": f"{one},{other}"}
    for name in (one, other):
        s2_admin.make(name)
        s2_admin.append(name, [b"x"] * 10)
    where = stopped(tmp_path, "s2", given)
    s2_admin.append(one, [b"y"] * 7)
    report = lag(where, "s2", given)
    assert numbers(report) == {one: (10, 17, 7), other: (10, 10, 0)}
    assert 0 <= report["seconds"] < 600
    s2_admin.delete(other)
    report = lag(where, "s2", given)
    assert numbers(report) == {one: (10, 17, 7), other: (10, None, None)}, "the one that is left is still compared"


def test_lag_of_iggy_tells_each_partition(
    iggy: iggy_servers.Server, iggy_admin: iggy_servers.IggyAdmin, stream: str, tmp_path: Path
) -> None:
    topic = f"lag-{stream}"
    given = {**iggy_servers.options(iggy), "stream": topic, "topic": "orders"}
    iggy_admin.make(topic, "orders", 2)
    for partition in range(2):
        iggy_admin.send(topic, "orders", [b"x"] * 10, partition)
    where = stopped(tmp_path, "iggy", given)
    iggy_admin.send(topic, "orders", [b"y"] * 3, 1)
    report = lag(where, "iggy", given)
    assert numbers(report) == {f"{topic}/orders/0": (10, 10, 0), f"{topic}/orders/1": (10, 13, 3)}
    iggy_admin.purge(topic, "orders")
    iggy_admin.send(topic, "orders", [b"z"] * 20, 0)
    report = lag(where, "iggy", given)
    assert "counts anew" in report["shards"][0]["problem"], "another message has the offset of the last one"
    iggy_admin.delete(topic, "orders")
    said = run(where, "iggy", *words(given))
    assert said.count("has no topic 'orders'") == 1


def test_lag_of_kinesis_is_told_in_seconds_alone(
    kinesis: "kinesis_servers.Kinesis", stream: str, tmp_path: Path
) -> None:
    name = f"lag-{stream}"
    given = kinesis.options(name)
    kinesis.make(name, 2)
    kinesis.put(name, [b"x"] * 5, "shardId-000000000000")
    where = stopped(tmp_path, "kinesis", given)
    report = lag(where, "kinesis", given)
    assert (report["records"], report["seconds"]) == (None, 0)
    kinesis.put(name, [b"y"] * 5, "shardId-000000000001")
    kinesis.age(name, timedelta(minutes=5))
    report = lag(where, "kinesis", given)
    assert [each["records"] for each in report["shards"]] == [None, None]
    assert 290 < report["seconds"] < 900
    said = run(where, "kinesis", *words(given), "--max-seconds", "60", code=1)
    assert "the oldest unread record is 3" in said
    assert "ask by --max-seconds" in run(where, "kinesis", *words(given), "--max-records", "5", code=1)
    end = json.loads((where / "offsets" / "1").read_text().splitlines()[-1])
    batch(where, 2, [json.dumps({**end, "notes": {}})])  # nobody knows when it has last looked
    kinesis.trim(name, "shardId-000000000000", 5)
    report = lag(where, "kinesis", given)
    assert "was deleted unread" in report["shards"][0]["problem"]
    kinesis.delete(name)
    assert "does not exist" in run(where, "kinesis", *words(given))


def test_lag_of_a_work_queue_counts_what_its_query_has_not_read(
    nats: NatsServer, admin: Admin, stream: str, tmp_path: Path
) -> None:
    given = {"servers": nats.url, "stream": stream}
    admin.create(stream, retention="workqueue", allow_direct=True)
    admin.numbers(stream, 10)
    where = stopped(tmp_path, "jetstream", given)
    admin.numbers(stream, 5)
    assert numbers(lag(where, "jetstream", given)) == {stream: (11, 16, 5)}


def test_lag_of_kafka_is_asked_of_its_brokers(kafka: KafkaBroker, kafka_admin: KafkaAdmin, tmp_path: Path) -> None:
    kafka_admin.create("lagging", 2)
    kafka_admin.produce("lagging", [(None, b"x")] * 10, partition=0)
    put(tmp_path, "metadata", json.dumps({"id": QUERY}))
    batch(tmp_path, 0, ['{"lagging":{"0":4,"1":0}}'])
    given = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": "lagging"}
    report = lag(tmp_path, "kafka", given)
    assert numbers(report) == {"lagging-0": (4, 10, 6), "lagging-1": (0, 0, 0)}
    assert 0 < report["seconds"] < 600
    batch(tmp_path, 1, ['{"gone":{"0":4}}'])
    report = lag(tmp_path, "kafka", given)
    assert numbers(report) == {"gone-0": (4, None, None)}
    said = run(tmp_path, "kafka", "kafka.bootstrap.servers=127.0.0.1:1", code=1)
    assert "the brokers at 127.0.0.1:1 do not tell where topics end" in said


def test_without_a_client_of_kafka_lag_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kafka", None)
    put(tmp_path, "metadata", json.dumps({"id": QUERY}))
    batch(tmp_path, 0, ['{"orders":{"0":4}}'])
    said = run(tmp_path, "kafka", "kafka.bootstrap.servers=127.0.0.1:1", code=1)
    assert "pip install 'penstock[kafka]'" in said


def test_several_sources_are_told_apart_by_the_shape_of_positions_and_the_names_of_streams(
    nats: NatsServer, admin: Admin, stream: str, tmp_path: Path
) -> None:
    given = {"servers": nats.url, "stream": stream}
    admin.create(stream)
    admin.numbers(stream, 10)
    mine = (stopped(tmp_path, "jetstream", given) / "offsets" / "1").read_text().splitlines()[-1]
    other = json.dumps({"epochs": {}, "next": {"elsewhere": 3}, "version": 1})
    batch(tmp_path, 2, ['{"orders":{"0":4}}', mine, other, "7", "-"])
    report = lag(tmp_path, "jetstream", given)
    assert [(each["source"], each["shard"]) for each in report["shards"]] == [("1", stream)]
    assert [text.partition(":")[0] for text in report["remarks"]] == [
        "source 0 was not compared",
        "source 3 was not compared",
        "source 4 was not compared, as it had not begun to read.",
        "source 2 was not compared",
    ]


def test_a_pipeline_file_says_what_to_compare(nats: NatsServer, admin: Admin, stream: str, tmp_path: Path) -> None:
    admin.create(stream)
    admin.numbers(stream, 10)
    given = {"servers": nats.url, "stream": stream}
    stopped(tmp_path / "checkpoint", "jetstream", given, 4)
    file = tmp_path / "orders.toml"
    file.write_text(
        f'[source]\ntype = "jetstream"\nstream = "{stream}"\n[source.properties]\n'
        f'servers = "{nats.url}"\n[[sinks]]\ntype = "noop"\n[checkpoint]\nlocation = "{tmp_path}/checkpoint"\n'
    )
    said = run(file)
    assert f"query {QUERY}, at the end of batch 1" in said
    assert "│ 5        │ 11  │ 6 " in said
    assert "leave out 'jetstream'" in run(file, "jetstream", code=1)
