"""Queries found from outside, by answers and files that a real Spark 4.3 gave; they are in tests/observed."""

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from checkpoint_files import batch, checkpoint
from penstock.checkpoints.entries import Offset
from penstock.checkpoints.lease import FILE, Lease
from penstock.cli import app
from penstock.clients import pages
from penstock.errors import OptionError
from penstock.jobs import spark_ui
from penstock.jobs.event_logs import EventLogs
from penstock.jobs.events import Events, of_progress, type_of
from penstock.jobs.lag import Report, Standing, chosen, stand
from penstock.jobs.places import Places
from penstock.jobs.rows import Job, Wanted, merged
from penstock.kit.masking import harmless
from penstock.monitor.app import Access, Api
from penstock.monitor.metrics import Metrics
from penstock.monitor.server import Address, Server
from penstock.planning.positions import END, Bound, Position, lost
from penstock.testing import JournalLog
from penstock.watch.progress import Batch, Shard, SourceProgress
from penstock.watch.store import Store

OBSERVED = Path(__file__).parent.parent / "observed"
EVENTS = OBSERVED / "events_1_local-1794935825892"
APPLICATION = spark_ui.Application("local-1794935825892", "penstock-record", "", True)
ORDERS, RATE, BROKEN = (
    "552a49fc-c1be-4e48-af4b-3152a2a0a4b4",
    "368482fb-2807-4f29-b4d7-dab596857486",
    "6ee8dceb-d14e-48a3-a34f-e888ec30bf2f",
)
NOW = datetime(2026, 11, 17, 17, 18, 12, tzinfo=UTC)


def recorded(name: str) -> Any:
    text = (OBSERVED / name).read_text()
    return json.loads(text) if name.endswith(".json") else text


class Web:
    """A web server that gives the answers that it is told."""

    def __init__(self, answers: dict[str, bytes]):
        double = self
        self.answers, self.asked = answers, list[tuple[str, str | None]]()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                double.asked.append((self.path, self.headers.get("Authorization")))
                body = double.answers.get(self.path.partition("?")[0])
                self.send_response(404 if body is None else 200)
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, *given: Any) -> None:
                """Says nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def web() -> Iterator[Web]:
    """A Spark UI."""
    api = "/api/v1/applications"
    double = Web(
        {
            api: (OBSERVED / "applications.json").read_bytes(),
            f"{api}/local-1794935825892/jobs": (OBSERVED / "jobs.json").read_bytes(),
            "/StreamingQuery/": (OBSERVED / "streaming_query.html").read_bytes(),
        }
    )
    yield double
    double.server.shutdown()
    double.server.server_close()


def run(*words: str, code: int = 0) -> tuple[Any, str]:
    """The rows, and what was complained of."""
    ran = CliRunner().invoke(app, ["jobs", *words, "--json"])
    assert ran.exit_code == code, (ran.output, ran.exception)
    return json.loads(ran.stdout), " ".join(ran.stderr.split())


def test_events_tell_states_lag_rates_sources_and_the_last_error() -> None:
    lines = EVENTS.read_text().splitlines()
    found = {job.id: job for job in Events("here").take(lines).jobs(running=False)}
    orders, rate, broken = (found[id] for id in (ORDERS, RATE, BROKEN))
    assert (orders.name, orders.application, orders.state) == ("orders", "penstock-record", "finished")
    assert (orders.batch, orders.lag, orders.sources, orders.error) == (6, 40, ("journal",), "")
    assert (rate.name, rate.state, rate.lag, rate.sources) == ("", "finished", None, ("rate",))
    assert (broken.state, broken.error) == ("failed", "boom password=***")


def test_events_of_an_application_that_runs_end_anywhere() -> None:
    text = EVENTS.read_text()
    for cut in range(0, len(text), 997):
        events = Events("here").take(text[:cut].splitlines())
        assert events.wrong <= 1
        assert all(job.state in ("running", "failed", "finished") for job in events.jobs(running=True))
    started = [line for line in text.splitlines() if "QueryTerminated" not in line and "ApplicationEnd" not in line]
    found = {job.id: job for job in Events("here").take(started).jobs(running=True)}
    assert {job.state for job in found.values()} == {"running"}
    assert 10 < (found[ORDERS].rate or 0) < 100


def test_a_query_that_was_started_again_runs_and_its_old_error_is_gone() -> None:
    lines = [line for line in EVENTS.read_text().splitlines() if "ApplicationEnd" not in line]
    again = next(line for line in lines if "QueryStartedEvent" in line and BROKEN in line)
    again = again.replace("7820d517", "99999999").replace("17:17:36", "18:00:00")
    first_end = next(line for line in lines if "QueryTerminatedEvent" in line and BROKEN in line)
    found = {job.id: job for job in Events("here").take([*lines, again, first_end]).jobs(running=True)}
    assert (found[BROKEN].state, found[BROKEN].error) == ("running", "")


def test_progress_of_kafka_and_of_kinesis_tells_lag_in_its_own_way() -> None:
    base = {"id": ORDERS, "timestamp": "2026-11-17T17:18:01.220Z", "batchId": 3}
    kafka = {
        "description": "KafkaV2[Subscribe[orders]]",
        "endOffset": {"orders": {"0": 10, "1": 5}},
        "latestOffset": {"orders": {"0": 17, "1": 5, "2": 9}},
    }
    kinesis = {
        "endOffset": {"epochs": {}, "next": {"shardId-0": 7}, "version": 1},
        "latestOffset": {"epochs": {}, "next": {}, "version": 1, "format": "kinesis", "metrics": {"lagMs": 61_000}},
    }
    job = of_progress({**base, "sources": [kafka]})
    assert (job.sources, job.lag, job.lag_seconds) == (("kafka",), 7, None)
    job = of_progress({**base, "sources": [kinesis]})
    assert (job.sources, job.lag, job.lag_seconds) == (("kinesis",), None, 61)
    assert type_of({"logOffset": 3}) == "files"
    assert type_of("7") == ""


def test_the_ui_tells_states_and_errors_by_its_page_and_times_by_its_jobs() -> None:
    told = spark_ui.of_page(recorded("streaming_query.html"), APPLICATION, "ui", NOW)
    jobs = spark_ui.of_jobs(recorded("jobs.json"), APPLICATION, "ui")
    found = {job.id: job for job in spark_ui.joined(told, jobs)}
    orders, rate, broken = (found[id] for id in (ORDERS, RATE, BROKEN))
    assert (orders.name, orders.state, orders.batch, orders.rate) == ("orders", "running", 8, 13.88)
    assert orders.seen == datetime(2026, 11, 17, 17, 18, 5, 607_000, tzinfo=UTC)
    assert (rate.name, rate.state) == ("", "running")
    assert (broken.state, broken.error, broken.rate) == ("failed", "boom password=***", None)


def test_a_query_that_ended_and_runs_again_runs_in_whichever_zone_the_page_is_written() -> None:
    page = recorded("streaming_query.html")
    again = page.replace(BROKEN, ORDERS).replace("2026/11/17 17:17:36", "2026/11/18 07:17:36")
    (orders,) = [job for job in spark_ui.of_page(again, APPLICATION, "ui", NOW) if job.id == ORDERS]
    assert (orders.state, orders.name, orders.error) == ("running", "orders", "")


@pytest.mark.parametrize("page", ["", "<tr><td>", "<tr>" + "<td>x</td>" * 20, "\0\xff<td></td></tr></td>"])
def test_a_page_of_something_else_has_no_queries(page: str) -> None:
    assert spark_ui.of_page(page, APPLICATION, "ui", NOW) == []


def test_what_several_places_tell_of_a_query_is_one_row() -> None:
    checkpoint = Job(ORDERS, "c1", state="not running", batch=7, sources=("penstock",), places=("/c",))
    events = Job(ORDERS, "orders", "app", "running", 8, NOW, 5.0, 40, None, ("journal",), "", ("/e",), told=NOW)
    ui = replace(events, lag=None, sources=(), places=("ui",), batch=9, told=NOW + timedelta(seconds=1))
    (job,) = merged([ui, checkpoint, events])
    assert (job.name, job.state, job.batch, job.lag) == ("orders", "running", 9, 40)
    assert (job.sources, job.places) == (("journal",), ("/c", "/e", "ui"))


def test_queries_are_chosen_by_id_name_and_source() -> None:
    jobs = [
        Job("aa1", "orders-eu", sources=("jetstream",)),
        Job("aa2", "bills", sources=("kafka",)),
        Job("b", "orders"),
    ]
    assert [job.id for job in Wanted(id="aa").select(jobs)[0]] == ["aa1", "aa2"]
    assert [job.id for job in Wanted(name="^orders").select(jobs)[0]] == ["aa1", "b"]
    found, unclear = Wanted(source="jetstream").select(jobs)
    assert [job.id for job in found] == ["aa1"]
    assert unclear.startswith("1 query does not tell")
    with pytest.raises(OptionError, match="is no regular expression"):
        Wanted(name="(")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("nats://me:secret@host:4222 refuses", "nats://host:4222 refuses"),
        ('{"password": "hunter2", "x": 1}', '{"password": ***, "x": 1}'),
        ("token=abc; sasl.password = x", "token=***; sasl.password = ***"),
        ("Authorization: Bearer abcdefgh.ijkl", "Authorization: Bearer ***"),
        ("a\n\x1b[2Jb", "a [2Jb"),
        (None, ""),
    ],
)
def test_text_of_others_shows_no_secrets_and_commands_no_terminal(text: str | None, shown: str) -> None:
    assert harmless(text) == shown


def test_jobs_asks_a_ui_and_sends_a_password_but_never_shows_it(web: Web) -> None:
    rows, said = run("--spark", web.url.replace("://", "://me:hunter2@"))
    assert {row["id"]: row["state"] for row in rows} == {ORDERS: "running", RATE: "running", BROKEN: "failed"}
    assert said == ""
    assert {login for _, login in web.asked} == {"Basic bWU6aHVudGVyMg=="}
    assert "hunter2" not in json.dumps(rows)
    rows, said = run("--spark", web.url, "--name", "^ord", "--id", "552a")
    assert [row["id"] for row in rows] == [ORDERS]


def test_a_history_server_has_the_page_of_each_application_elsewhere(web: Web) -> None:
    web.answers["/history/local-1794935825892/StreamingQuery/"] = web.answers.pop("/StreamingQuery/")
    over = web.answers["/api/v1/applications"].replace(b'"completed": false', b'"completed": true')
    web.answers["/api/v1/applications"] = over
    rows, _ = run("--spark", web.url)
    assert {row["id"]: row["state"] for row in rows} == {ORDERS: "finished", RATE: "finished", BROKEN: "failed"}


def test_a_standalone_master_leads_to_the_uis_of_its_applications(web: Web) -> None:
    web.answers["/json/"] = (OBSERVED / "master.json").read_bytes()
    web.answers["/"] = (OBSERVED / "master.html").read_bytes().replace(b"http://127.0.0.1:14048", web.url.encode())
    rows, said = run("--master", f"{web.url}/json/")
    assert len(rows) == 3, said
    web.answers["/"] = (OBSERVED / "master.html").read_bytes().replace(b"127.0.0.1:14048", b"127.0.0.1:1")
    rows, said = run("--master", web.url, code=1)
    assert "application 'penstock-on-master' of" in said


@pytest.mark.parametrize("answer", [b"", b"<html>Welcome to nginx!", b"{}", b"[1]", b'[{"id": 1}]', b"[" * 100_000])
def test_garbage_is_a_sentence_that_names_the_address(web: Web, answer: bytes) -> None:
    web.answers["/api/v1/applications"] = web.answers["/json/"] = web.answers["/pipelines"] = answer
    for option in ("--spark", "--master", "--api"):
        ran = CliRunner().invoke(app, ["jobs", option, web.url])
        assert ran.exit_code == 1, ran.output
        assert web.url in ran.output.replace("\n", "")
        assert "Traceback" not in ran.output


def test_an_answer_that_is_too_long_is_not_read_to_its_end(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST", 1000)
    _, said = run("--spark", web.url, code=1)
    assert "its answer is longer than" in said


def test_a_place_that_does_not_answer_does_not_hide_the_others(web: Web) -> None:
    rows, said = run("--spark", "http://127.0.0.1:1", "--spark", web.url, code=1)
    assert len(rows) == 3
    assert "http://127.0.0.1:1/api/v1/applications?limit=50 does not answer" in said
    _, said = run("--spark", "ftp://x", code=1)
    assert "'ftp://x' is no address of a web server" in said


def logs(folder: Path, *, running: bool) -> Path:
    """The event log of an application, in two files and with zstd, as Spark writes it: a frame for each flush."""
    inside = folder / "eventlog_v2_local-1"
    inside.mkdir(parents=True)
    (inside / ("appstatus_local-1" + (".inprogress" if running else ""))).touch()
    lines = EVENTS.read_text().splitlines(keepends=True)
    codec = pa.Codec("zstd")
    for number, some in enumerate((lines[:9], lines[9:]), 1):
        frames = [codec.compress("".join(part).encode(), asbytes=True) for part in (some[:4], some[4:])]
        (inside / f"events_{number}_local-1.zstd").write_bytes(b"".join(frames))
    return folder


def test_event_logs_are_read_over_files_and_frames(tmp_path: Path) -> None:
    rows, _ = run("--events", str(logs(tmp_path, running=False)))
    assert {row["id"]: (row["state"], row["lag"]) for row in rows} == {
        ORDERS: ("finished", 40), RATE: ("finished", None), BROKEN: ("failed", 50)
    }  # fmt: skip
    assert {row["application"] for row in rows} == {"penstock-record"}
    rows, _ = run("--events", str(tmp_path), "--source", "journal", "--name", "orders")
    assert [row["id"] for row in rows] == [ORDERS]


def test_a_failure_is_told_also_where_it_is_alone_in_the_last_file(tmp_path: Path) -> None:
    inside = tmp_path / "eventlog_v2_local-1"
    inside.mkdir()
    (inside / "appstatus_local-1.inprogress").touch()
    lines = [line for line in EVENTS.read_text().splitlines(keepends=True) if "ApplicationEnd" not in line]
    end = next(line for line in lines if "QueryTerminatedEvent" in line and BROKEN in line)
    before = [line for line in lines if "QueryTerminatedEvent" not in line]
    (inside / "events_1_local-1").write_text("".join(before))
    (inside / "events_2_local-1").write_text(end)
    rows, _ = run("--events", str(tmp_path))
    states = {row["id"]: (row["state"], row["error"]) for row in rows}
    assert states[BROKEN] == ("failed", "boom password=***")
    assert states[ORDERS][0] == "running"


def test_an_event_log_that_is_being_written_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    folder = logs(tmp_path, running=True)
    last = folder / "eventlog_v2_local-1" / "events_2_local-1.zstd"
    whole = last.read_bytes()
    last.write_bytes(whole[:-20])
    watched = EventLogs(str(folder))
    jobs, problems = watched.jobs()
    assert problems == []
    assert {job.state for job in jobs} <= {"running", "failed"}
    last.write_bytes(whole)
    assert {job.state for job in watched.jobs()[0]} == {"finished", "failed"}, "what has grown is read again"


def test_event_logs_that_cannot_be_read_are_told_beside_those_that_can(tmp_path: Path) -> None:
    (tmp_path / "local-1").write_text(EVENTS.read_text())
    (tmp_path / "local-2.lz4").write_bytes(b"x")
    (tmp_path / "local-3.zstd").write_bytes(b"no zstd")
    rows, said = run("--events", str(tmp_path), code=1)
    assert len(rows) == 3
    assert "local-2.lz4' cannot be read: it is compressed as lz4" in said
    assert "local-3.zstd' cannot be read" in said
    _, said = run("--events", str(tmp_path / "none"), code=1)
    assert "there is no folder" in said


def test_checkpoints_are_found_at_any_depth_and_run_where_somebody_holds_them(tmp_path: Path) -> None:
    checkpoint(tmp_path / "a" / "orders")
    (tmp_path / "a" / "orders" / "metadata").write_text(json.dumps({"id": ORDERS}))
    checkpoint(tmp_path / "bills")
    checkpoint(tmp_path / "damaged")
    (tmp_path / "damaged" / "metadata").write_text("{")
    (tmp_path / "empty").mkdir()
    with Lease(str(tmp_path / "a" / "orders"), settle=0.01):
        rows, said = run("--checkpoints", str(tmp_path), code=1)
    assert {row["name"]: (row["state"], row["batch"]) for row in rows} == {
        "a/orders": ("running", 3), "bills": ("not running", 3)
    }  # fmt: skip
    assert "damaged" in said
    (tmp_path / "bills" / FILE).write_text("half written")
    rows, _ = run("--checkpoints", str(tmp_path), "--events", str(OBSERVED.parent / "observed"), code=1)
    assert next(row for row in rows if row["id"] == ORDERS)["places"][0] == f"{tmp_path}/a/orders"


def test_without_a_place_the_ports_of_this_machine_are_probed(monkeypatch: pytest.MonkeyPatch, web: Web) -> None:
    port = web.server.server_port
    monkeypatch.setattr("penstock.jobs.places.PORTS", range(port, port + 1))
    assert len(run()[0]) == 3
    monkeypatch.setattr("penstock.jobs.places.PORTS", range(1, 3))
    _, said = run(code=1)
    assert "no Spark UI answers on this machine, at ports 1 to 2" in said


def test_pipelines_of_a_runner_are_rows_whatever_they_leave_out(web: Web) -> None:
    web.answers["/pipelines"] = (
        b'[{"key": "orders", "state": "running", "batch": 3, "lag": 7, "rate": 1.5}, {"key": 7}]'
    )
    rows, _ = run("--api", web.url)
    assert [(row["name"], row["state"], row["batch"], row["lag"]) for row in rows] == [
        ("7", None, None, None), ("orders", "running", 3, 7)
    ]  # fmt: skip


def test_the_api_of_our_own_tells_ids_times_lag_and_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    store.started(ORDERS, "run", "orders")
    source = SourceProgress("jetstream", 5, (Shard("ORDERS", 17, 3),), 3, None, 61.5)
    store.progressed(Batch(ORDERS, "run", "orders", 7, 1_790_000_000.0, 5, {}, (source,), 5))
    monkeypatch.setenv("PENSTOCK_API_KEY", "swordfish")
    access = Access("0.0.0.0", "swordfish")  # as if others could reach it: even a look needs the key
    server = Server(Api(store, None, Metrics(store), access).app(), Address()).start()
    try:
        ((row,), _) = run("--api", server.url)
        assert (row["id"], row["name"], row["state"], row["sources"]) == (ORDERS, "orders", "running", ["jetstream"])
        assert (row["batch"], row["lag"], row["lag_seconds"]) == (7, 3, 61.5)
        assert row["seen"].startswith("2026-09-21T")
        monkeypatch.setenv("PENSTOCK_API_KEY", "wrong")
        rows, said = run("--api", server.url, code=1)
        assert (rows, "403" in said, "wrong" in said) == ([], True, False)
    finally:
        server.stop()


def test_watching_ends_with_ctrl_c_and_shows_problems_below(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.cli.jobs.time.sleep", stop)
    places = ["--spark", web.url, "--spark", "http://127.0.0.1:1"]
    ran = CliRunner().invoke(app, ["jobs", "--watch", *places])
    assert ran.exit_code == 0, ran.exception
    assert "orders" in ran.output
    assert "does not answer" in ran.output
    ran = CliRunner().invoke(app, ["jobs", "--watch", "--json", *places])
    assert [json.loads(line)["id"] for line in ran.stdout.splitlines()] == [BROKEN, ORDERS, RATE]
    assert Places().spark == ()


def test_where_a_query_stands_follows_from_positions_and_ends() -> None:
    at = {"a": Position(5, "e"), "b": Position(5, "old"), "c": Position(9), "d": Position(1), "z": Position(END)}
    bounds = {"a": Bound(8, 10, "e"), "b": Bound(1, 3, "new"), "c": Bound(0, 4), "new": Bound(2, 6)}
    found = {each.shard: each for each in stand("0", "x", at, bounds, lost(at, bounds))}
    assert {shard: (each.records, each.lost, each.resumes) for shard, each in found.items()} == {
        "a": (2, 3, 8), "b": (2, 0, 1), "c": (0, 0, 4), "d": (None, 0, 1), "new": (4, 0, 2)
    }  # fmt: skip
    assert [bool(found[shard].problem) for shard in "abcd"] == [True] * 4


def test_a_limit_is_exceeded_also_by_what_is_lost_or_not_known() -> None:
    here = Standing("0", "x", "a", 1, 11, 10, 3.0)
    report = Report("c", "q", 3, [here])
    assert report.exceeds(None, None) == report.exceeds(10, 3) == []
    assert len(report.exceeds(9, 2)) == 2
    assert Report("c", "q", 3, [replace(here, records=0, seconds=0.0, lost=2, problem="gone")]).exceeds(10, None)
    assert Report("c", "q", None).exceeds(None, 5) == ["how far the query is behind is not known"]
    assert Report("c", "q", 3, [replace(here, seconds=None)]).exceeds(None, 5)
    unclear = Report("c", "q", 3, [replace(here, records=1), replace(here, shard="b", records=None)])
    assert "behind in 'b' is not known" in unclear.exceeds(10, None)[0]


def test_sources_of_a_query_are_matched_by_shape_and_names() -> None:
    ours = {name: Offset.parse(json.dumps({"epochs": {}, "next": {name: 1}, "version": 1})) for name in ("a", "b")}
    offsets = {"0": ours["a"], "1": Offset.parse('{"orders":{"0":1}}'), "2": ours["b"], "3": None}
    mine, remarks = chosen(offsets, "jetstream", {"b"})
    assert list(mine) == ["2"]
    assert len(remarks) == 3
    assert list(chosen(offsets, "kafka", ())[0]) == ["1"]
    both = chosen(offsets, "s2", {"a", "b"})
    assert list(both[0]) == ["0", "2"]
    assert "are all compared" in both[1][-1]


PAGE = (Path(__file__).parents[2] / "docs" / "jobs.md").read_text()


def cells(text: str, without: str) -> list[list[str]]:
    """The rows of a table, without a column that differs from run to run, and all other lines."""
    rows = [
        [cell.strip() for cell in re.split("[│┃]", line)] for line in text.strip().splitlines() if line[0] not in "┏┡└"
    ]
    at = next(row.index(without) for row in rows if without in row)
    return [[cell for number, cell in enumerate(row) if number != at] for row in rows]


def test_the_page_shows_what_lag_says(tmp_path: Path) -> None:
    log = JournalLog(tmp_path / "log")
    log.make("orders")
    log.append("orders", ["x"] * 50)
    epoch = (tmp_path / "log" / "orders" / "epoch").read_text()
    checkpoint(tmp_path / "c", (), first=0)
    for number, end in enumerate((0, 20)):
        batch(
            tmp_path / "c", number, [json.dumps({"epochs": {"orders": epoch}, "next": {"orders": end}, "version": 1})]
        )
    log.trim("orders", 30)
    log.make("bills")
    log.append("bills", ["y"] * 3)
    ran = CliRunner().invoke(app, ["lag", str(tmp_path / "c"), "journal", f"directory={tmp_path}/log"])
    said = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)[0]
    assert cells(ran.output, "seconds behind") == cells(said, "seconds behind")


def test_the_page_shows_what_jobs_says(tmp_path: Path) -> None:
    inside = tmp_path / "eventlog_v2_local-1"
    inside.mkdir()
    (inside / "appstatus_local-1.inprogress").touch()
    lines = EVENTS.read_text().splitlines(keepends=True)
    runs = [line for line in lines if "ApplicationEnd" not in line and '"exception":null' not in line]
    (inside / "events_1_local-1").write_text("".join(runs))
    ran = CliRunner().invoke(app, ["jobs", "--events", str(tmp_path)])
    said = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)[1]
    assert cells(ran.output, "when") == cells(said, "when")
