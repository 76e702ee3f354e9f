"""Queries and pipelines that are watched, and told what to do, on real Spark and a real server."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

import penstock
from nats_servers import Admin
from penstock.cli.dead_letters import letters
from penstock.monitor.observer import Observer, observe
from penstock.monitor.pipelines import RunningPipelines
from penstock.monitor.server import Address
from penstock.pipelines.load import load
from penstock.pipelines.runner import Runner, State
from penstock.testing.nats_server import NatsServer
from spark.jobs import wait
from spark.pipeline_runs import bodies, written

KEY = "swordfish"


def ask(observer: Observer, path: str, order: dict[str, Any] | None = None) -> Any:
    body = None if order is None else json.dumps(order).encode()
    request = urllib.request.Request(f"{observer.url}{path}", body, {"api-key": KEY})
    with urllib.request.urlopen(request, timeout=120) as answer:
        content = answer.read()
    return json.loads(content) if path != "/metrics" else content.decode()


def samples(observer: Observer) -> dict[str, float]:
    """Every sample of one pipeline, by its name; with several labels, the last one."""
    text = ask(observer, "/metrics")
    return {each.name: each.value for family in text_string_to_metric_families(text) for each in family.samples}


def test_a_query_of_a_program_is_seen_with_its_lag_and_what_its_tasks_did(
    spark: SparkSession, nats: NatsServer, admin: Admin, stream: str, tmp_path: Path
) -> None:
    admin.create(stream)
    admin.numbers(stream, 3000)
    session = spark.newSession()
    with penstock.observe(session) as observer:
        rows = session.readStream.format("jetstream").options(servers=nats.url, stream=stream)
        rows = rows.options(startingOffsets="earliest", maxRecordsPerTrigger="1000").load()
        writer = rows.writeStream.format("noop").queryName(stream).option("checkpointLocation", str(tmp_path))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        wait(lambda: ask(observer, f"/pipelines/{stream}")["state"] != "running")
        shown = ask(observer, f"/pipelines/{stream}")
        assert (shown["state"], shown["messages_read"], shown["batches_processed"]) == ("stopped", 3000, 3)
        assert (shown["lag"], shown["sources"][0]["shards"]) == (0, [[stream, 3001, 0]])
        lags = [point["ends"][0][stream] for point in reversed(shown["batches"])]
        assert lags[-3:] == [1001, 2001, 3001]
        found = samples(observer)
        assert (found["penstock_records_read_total"], found["penstock_lag_records"]) == (3000, 0)
        assert found["penstock_bytes_read_total"] > 3000 * 4, "tasks report to the driver"
        assert found["penstock_batch_duration_seconds_count"] >= 3
        failing = rows.selectExpr("raise_error('upstream fails') AS value").writeStream.format("noop")
        broken = failing.queryName(f"{stream}B").option("checkpointLocation", str(tmp_path / "b")).start()
        wait(lambda: not broken.isActive)
        wait(lambda: ask(observer, f"/pipelines/{stream}B")["state"] == "failed")
        assert "upstream fails" in ask(observer, f"/pipelines/{stream}B")["error"]
        assert [each["key"] for each in ask(observer, "/pipelines")] == [f"{stream}B", stream]


def while_running(runner: Runner, work: Callable[[], None]) -> None:
    """Run pipelines, and do something meanwhile, after which they stop. Spark knows its session in this thread only."""
    with ThreadPoolExecutor(1) as pool:
        doing = pool.submit(work)
        doing.add_done_callback(lambda done: runner.stopping.set())
        runner.run()
        doing.result()


def test_a_pipeline_is_stopped_started_and_set_back_and_each_row_is_there_as_often_as_was_asked_for(
    spark: SparkSession, nats: NatsServer, admin: Admin, stream: str, folder: Path
) -> None:
    admin.create(stream)
    admin.create(f"{stream}OUT")
    text = f"""
[jetstream]
servers = "{nats.url}"

[source]
type = "jetstream"
identifier = "{stream}"
input_schema = {{ type = "json", schema = "id BIGINT" }}

[[transforms]]
sql = "SELECT id FROM input"

[[sinks]]
type = "jetstream"
subject = "{stream}OUT.x"
"""
    runner = Runner(spark, load([written(folder, "orders", text)]), lambda text: None)
    with observe(spark, Address(key=KEY), pipelines=RunningPipelines(runner, letters)) as observer:
        while_running(runner, lambda: give_orders(observer, runner, nats, admin, stream))


def give_orders(observer: Observer, runner: Runner, nats: NatsServer, admin: Admin, stream: str) -> None:
    def publish(first: int) -> None:
        admin.publish([(f"{stream}.n", b'{"id": %d}' % i) for i in range(first, first + 10)])

    def ids() -> list[int]:
        return [json.loads(body)["id"] for body in bodies(nats, f"{stream}OUT")]

    publish(0)
    wait(lambda: ids() == list(range(10)))
    wait(lambda: ask(observer, "/pipelines/orders")["messages_read"] == 10)
    shown = ask(observer, "/pipelines/orders")
    assert [part["part"] for part in shown["flow"]] == ["source", "transform", "sink"]
    assert shown["guarantee"] == "exactly once"
    assert ask(observer, "/pipelines/orders/stop", {}) == {"done": "orders is stopped"}
    publish(10)
    assert runner.running[0].state is State.STOPPED
    assert ask(observer, "/pipelines/orders")["state"] == "stopped"
    ask(observer, "/pipelines/orders/start", {})
    wait(lambda: ids() == list(range(20)))
    ask(observer, "/pipelines/orders/restart", {})
    publish(20)
    wait(lambda: ids() == list(range(30)))
    batches = ask(observer, "/pipelines/orders/checkpoints")
    first = min(batch["batch"] for batch in batches if batch["records"] == 10 and batch["committed"])
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(observer, "/pipelines/orders/rewind", {"batch": first})
    assert "new_query" in (said := refused.value.read().decode()) or "--new-query" in said
    ask(observer, "/pipelines/orders/rewind", {"batch": first, "new_query": True})
    wait(lambda: ids() == [*range(30), *range(10, 30)])
    assert samples(observer)["penstock_restarts_total"] == 0
