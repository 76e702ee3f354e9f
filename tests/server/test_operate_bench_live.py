"""`penstock jetstream bench` on real servers: what is published is stored and consumed, and nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nats_servers import Admin, server, server_binary
from penstock.cli import app
from penstock.clients.nats.options import NatsOptions
from penstock.errors import PenstockError
from penstock.operate.bench import streams
from penstock.operate.bench.machine import by_pids
from penstock.operate.bench.matrix import Scenario
from penstock.operate.bench.processes import Processes
from penstock.operate.bench.run import Round, Server, Settings, run
from penstock.operate.bench.soak import soak
from penstock.testing import NatsCluster, NatsServer

TINY = Settings(seconds=0.1, rounds=1, rate=300, most_bytes=2 << 20)


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with Processes() as started:
        yield started


@pytest.fixture(autouse=True)
def shared(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    """All runs in this process use the same processes: each takes a second to start."""
    for module in ("run", "soak"):
        monkeypatch.setattr(f"penstock.operate.bench.{module}.Processes", lambda: nullcontext(processes))


def options(url: str, **more: str) -> NatsOptions:
    return NatsOptions.parse("jetstream", {"servers": url, "requestTimeout": "5s", **more})


def quiet(phase: str, rate: float) -> None:
    pass


def names(admin: Admin) -> list[str]:
    return [name for name in admin.calls.names() if name.startswith("PENSTOCK_BENCH")]


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"streams": "per-app", "storage": "memory", "publishers": "4", "consumers": "4"},
        {"publish": "one-by-one", "ack": "all", "streams": "per-app"},
        {"publish": "atomic", "ack": "all"},
        {"publish": "fast", "ack": "none", "streams": "per-app"},
        {"consume": "push", "streams": "per-app"},
        {"consume": "push", "ack": "none", "size": "16384"},
        {"consume": "push", "ack": "all", "size": "16"},
    ],
    ids=lambda changed: " ".join(changed.values()) or "baseline",
)
def test_what_is_published_is_stored_and_consumed(
    changed: dict[str, str], nats: NatsServer, admin: Admin, processes: Processes
) -> None:
    scenario = Scenario.of(changed)
    assert nats.process is not None
    pid = nats.process.pid
    look = Server(options(nats.url), by_pids(lambda: [pid]), (nats.folder / "data",))
    told = Round(scenario, Settings(0.1, 1, 300, 2 << 20), "tiny", look, processes, quiet, 10).measured()
    checked, figures = told["checked"], told["figures"]
    assert checked["acked"] == checked["stored"] > 0
    assert checked["unknown"] == 0
    assert told["remarks"] in ([], ["latency is measured with single messages only, not with batches"])
    assert checked["consumed"] == checked["stored"] * scenario.consumers
    assert figures["stored_bytes"] > scenario.size
    if scenario.storage == "file":
        assert figures["disk_bytes"] >= figures["stored_bytes"] * 0.99
    assert figures["server_mb"] > 1
    assert ("delivered_p50" in figures) == (scenario.publish in ("pipelined", "one-by-one"))
    assert names(admin) == []


def test_a_soak_has_figures_over_time(nats: NatsServer, admin: Admin) -> None:
    assert nats.process is not None
    pid = nats.process.pid
    at = Server(options(nats.url), by_pids(lambda: [pid]), (nats.folder / "data",))
    told = soak(Scenario.of({}), TINY, "soaked", at, 2.0, quiet)
    assert told["published"] == told["delivered"] == 600
    assert {"memory_mb", "stored_mb", "disk_mb", "ack_p99", "delivered_p99", "pending"} <= told["samples"].keys()
    assert names(admin) == []


def kill_when_used(running: NatsServer, stream: str) -> None:
    admin = Admin(running.url)
    until(lambda: any(info is not None and info.last for info in admin.calls.streams([stream]).values()))
    running.kill()
    admin.close()


def test_a_dead_server_fails_its_scenario_and_no_other(tmp_path: Path) -> None:
    opened: list[str] = []

    @contextmanager
    def open_server(scenario: Scenario) -> Iterator[Server]:
        with NatsServer(tmp_path / f"n{len(opened)}") as running:
            opened.append(scenario.name)
            if len(opened) == 1:
                threading.Thread(target=kill_when_used, args=(running, "PENSTOCK_BENCH_dying")).start()
            yield Server(options(running.url, reconnectTimeout="500ms"))

    scenarios = [Scenario.of({}), Scenario.of({"storage": "memory"})]
    settings = Settings(seconds=0.5, rounds=1, rate=300, most_bytes=64 << 20)
    first, second = run(scenarios, settings, "dying", open_server, lambda at: None, 5)
    assert opened == ["baseline", "storage=memory"]
    assert len(first.failed) == 1
    assert "127.0.0.1" in first.failed[0]
    assert first.as_json()["figures"] == {}
    assert second.failed == []
    assert second.rounds[0]["checked"]["stored"] > 0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with NatsCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def test_a_change_of_leader_is_survived(cluster: NatsCluster, processes: Processes) -> None:
    scenario = Scenario.of({"replicas": "3"})
    settings = Settings(seconds=1.5, rounds=1, rate=300, most_bytes=512 << 20)
    killed: list[str] = []

    def kill() -> None:
        admin = Admin(cluster.url)
        until(lambda: admin.calls.stream("PENSTOCK_BENCH_moved").last > 0)
        killed.append(admin.calls.stream("PENSTOCK_BENCH_moved").leader)
        admin.close()
        cluster.named(killed[0]).kill()

    at = Server(options(cluster.url, requestTimeout="1s"))
    measured = Round(scenario, settings, "moved", at, processes, quiet, 30)
    with measured.streams():
        killing = threading.Thread(target=kill)
        killing.start()
        stored = measured.publish()
        killing.join()
        measured.consume(stored)
    assert measured.checked["acked"] <= sum(stored) <= measured.checked["acked"] + measured.checked["unknown"]
    assert measured.checked["acked"] > 0
    assert any("connections were lost" in text for text in measured.remarks)
    cluster.named(killed[0]).start()


def test_leftovers_are_removed_and_what_is_not_marked_is_not(nats: NatsServer, admin: Admin) -> None:
    dead = streams.mark("old", 0) | {streams.PROCESS: "999999999"}
    elsewhere = streams.mark("other", 0) | {streams.HOST: "far-away"}
    admin.create("PENSTOCK_BENCH_old", "old.>", metadata=dead)
    admin.create("PENSTOCK_BENCH_busy", "busy.>", metadata=elsewhere)
    admin.create("PENSTOCK_BENCH_mine", "mine.>")
    admin.create("ORDERS_LEFT", "left.>", metadata=dead)
    try:
        ran = CliRunner().invoke(
            app,
            [
                "jetstream",
                "bench",
                f"servers={nats.url}",
                "--quick",
                "--seconds",
                "0.1",
                "--only",
                "^storage",
                "--json",
            ],
        )
        assert ran.exit_code == 0, ran.output
        told = json.loads(ran.stdout)
        assert [each["name"] for each in told["scenarios"]] == ["storage=memory"]
        assert told["server"] == {"kind": "given", "servers": 1, "version": told["server"]["version"]}
        assert any("deleted the stream 'PENSTOCK_BENCH_old'" in text for text in told["remarks"])
        assert any("left alone the stream 'PENSTOCK_BENCH_busy'" in text for text in told["remarks"])
        assert set(names(admin)) == {"PENSTOCK_BENCH_busy", "PENSTOCK_BENCH_mine"}
        assert admin.calls.streams(["ORDERS_LEFT"])["ORDERS_LEFT"] is not None
    finally:
        for name in ("PENSTOCK_BENCH_busy", "PENSTOCK_BENCH_mine", "ORDERS_LEFT"):
            admin.delete(name)


def test_ctrl_c_leaves_no_stream_and_no_process(nats: NatsServer, admin: Admin) -> None:
    command = [sys.executable, "-m", "penstock.cli", "jetstream", "bench", f"servers={nats.url}", "--seconds", "30"]
    bench = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    try:
        until(lambda: names(admin) != [] and children(bench.pid) != [])
        workers = children(bench.pid)
        os.killpg(bench.pid, signal.SIGINT)
        _, said = bench.communicate(timeout=20)
    finally:
        bench.kill()
    assert bench.returncode == 130, said
    assert b"penstock: stopped" in said
    assert b"Traceback" not in said
    assert names(admin) == []
    until(lambda: not [pid for pid in workers if Path(f"/proc/{pid}").exists()])


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(each) for each in found]


def until(done: Any) -> None:
    deadline = time.monotonic() + 20
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_account_without_room_is_told_before_anything_is_written(tmp_path: Path) -> None:
    config = f"""
    jetstream {{ store_dir: "{tmp_path / "data"}" }}
    accounts {{ A {{ jetstream {{ max_file: 20mb, max_mem: 5mb }}, users: [ {{ user: a, password: s3cret }} ] }} }}
    """
    with NatsServer(tmp_path, config=config) as running:
        words = [f"servers={running.url}", "user=a", "password=s3cret"]
        ran = CliRunner().invoke(app, ["jetstream", "bench", *words, "--only", "^baseline$"])
        assert ran.exit_code == 1
        said = " ".join(ran.stderr.split())
        assert "may store 20 MB more in file, and this benchmark may need 256 MB there" in said
        assert "--most" in said
        assert "s3cret" not in ran.output
        quick = ["--only", "^baseline$", "--quick", "--seconds", "0.1", "--most", "4mb", "--json"]
        fits = CliRunner().invoke(app, ["jetstream", "bench", *words, *quick])
        assert fits.exit_code == 0, fits.output


def test_an_old_server_runs_what_it_has(tmp_path: Path, processes: Processes) -> None:
    with server(tmp_path, executable=server_binary("2.10.26")) as (running, admin):
        quick = ["--quick", "--seconds", "0.1", "--json", "--only", "^(baseline|publish=(atomic|fast)|replicas=3)$"]
        ran = CliRunner().invoke(app, ["jetstream", "bench", f"servers={running.url}", *quick])
        told = json.loads(ran.stdout)
        assert ran.exit_code == 0, ran.output
        assert [each["name"] for each in told["scenarios"]] == ["baseline"]
        assert told["left_out"].keys() == {"publish=atomic", "publish=fast", "replicas=3"}
        assert names(admin) == []


def test_a_failed_scenario_is_exit_code_1_and_in_the_report(nats: NatsServer, tmp_path: Path) -> None:
    at = ["jetstream", "bench", "--quick", "--seconds", "0.1", "--only", "^baseline$"]
    good = CliRunner().invoke(app, [*at, "--out", str(tmp_path / "a")])
    assert good.exit_code == 0, good.output
    written = tmp_path / "a" / "jetstream-bench.json"
    assert {each.suffix for each in written.parent.iterdir()} == {".json", ".md", ".html"}
    other = json.loads(written.read_text())
    other["server"]["version"] = "1.0.0"
    written.write_text(json.dumps(other))
    again = CliRunner().invoke(app, [*at, f"servers={nats.url}", "--against", str(written), "--json"])
    assert again.exit_code == 0, again.output
    against = json.loads(again.stdout)["against"]
    assert any("server: version" in text for text in against["differences"])
    assert against["figures"]
    away = CliRunner().invoke(app, [*at, "servers=nats://127.0.0.1:1"])
    assert away.exit_code == 1
    assert "no NATS server answers" in away.stderr


def test_a_denied_api_is_a_sentence(tmp_path: Path) -> None:
    config = f"""
    jetstream {{ store_dir: "{tmp_path / "data"}" }}
    authorization {{ users: [
      {{ user: a, password: b, permissions: {{ publish: {{ deny: "$JS.API.STREAM.CREATE.>" }} }} }}
    ] }}
    """
    with NatsServer(tmp_path, config=config) as running:
        words = [f"servers={running.url}", "user=a", "password=b", "requestTimeout=2s"]
        quick = ["--quick", "--seconds", "0.1", "--only", "^baseline$"]
        ran = CliRunner().invoke(app, ["jetstream", "bench", *words, *quick])
        assert ran.exit_code == 1
        assert not isinstance(ran.exception, PenstockError)
        assert "baseline: failed" in ran.stdout
        assert "refuses" in " ".join(ran.stdout.split())
