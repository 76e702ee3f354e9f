"""`penstock jobs` and `penstock lag` beside a program with real queries: while it runs, and after it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli import app
from penstock.testing import JournalLog
from spark.jobs import descendants, kill, wait

PROGRAM = Path(__file__).with_name("observed_program.py")


@dataclass
class Program:
    folder: Path
    url: str
    log: JournalLog
    process: "subprocess.Popen[str]"

    def end(self) -> None:
        """As a user ends it: its queries stop."""
        if self.process.poll() is None:
            self.process.communicate(timeout=120)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """One for all tests of this file, which run in their order."""
    folder = tmp_path_factory.mktemp("observed")
    (folder / "events").mkdir()
    log = JournalLog(folder / "log")
    log.make("a")
    log.append("a", ["x"] * 50)
    with (folder / "program.log").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http"), (folder / "program.log").read_text()[-2000:]
        yield Program(folder, url, log, process)
    finally:
        for pid in [*descendants(process.pid), process.pid]:
            kill(pid)
        process.wait()


def run(*words: str) -> Any:
    ran = CliRunner().invoke(app, [*words, "--json"])
    assert ran.exit_code == 0, (ran.output, ran.exception)
    return json.loads(ran.stdout)


def jobs(*words: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in run("jobs", *words)}


def test_the_ui_of_a_program_tells_which_of_its_queries_run(program: Program) -> None:
    rows = jobs("--spark", program.url)
    assert {name: row["state"] for name, row in rows.items()} == {
        "orders": "running",
        "broken": "failed",
        None: "running",
    }
    assert {row["application"] for row in rows.values()} == {"observed"}
    assert rows["orders"]["batch"] >= 3
    assert "no room at postgres://host" in rows["broken"]["error"]


def test_the_event_log_of_a_program_that_runs_tells_lag_sources_and_errors(program: Program) -> None:
    def told() -> Any:
        found = jobs("--events", str(program.folder / "events"))
        return found if found.get("orders", {}).get("lag") == 0 and "broken" in found else None

    rows = wait(told, seconds=60)
    orders, broken = rows["orders"], rows["broken"]
    assert (orders["state"], orders["sources"], orders["batch"]) == ("running", ["journal"], 3)
    assert (broken["state"], broken["error"]) == ("failed", "no room at postgres://host")
    assert rows[None]["sources"] == ["rate"]
    assert list(jobs("--events", str(program.folder / "events"), "--source", "journal", "--name", "^o")) == ["orders"]


def test_checkpoints_add_where_a_query_stands_and_no_second_row(program: Program) -> None:
    folder = str(program.folder / "checkpoints")
    assert {name: row["state"] for name, row in jobs("--checkpoints", folder).items()} == {
        "orders": "not running", "broken": "not running", "deep/rate": "not running"
    }  # fmt: skip
    rows = jobs("--checkpoints", folder, "--spark", program.url, "--events", str(program.folder / "events"))
    assert {name: row["state"] for name, row in rows.items()} == {
        "orders": "running", "broken": "failed", "deep/rate": "running"
    }  # fmt: skip
    assert len(rows["orders"]["places"]) == 3
    assert rows["orders"]["lag"] == 0


def test_after_its_end_the_log_tells_how_it_ended_and_the_checkpoint_how_far_it_came(program: Program) -> None:
    program.end()
    rows = jobs("--events", str(program.folder / "events"))
    assert {name: row["state"] for name, row in rows.items()} == {
        "orders": "finished", "broken": "failed", None: "finished"
    }  # fmt: skip
    program.log.append("a", ["late"] * 7)
    where = str(program.folder / "checkpoints" / "orders")
    report = run("lag", where, "journal", f"directory={program.log.folder}")
    assert (report["query"], report["records"]) == (rows["orders"]["id"], 7)
    program.log.trim("a", 52)
    report = run("lag", where, "journal", f"directory={program.log.folder}")
    assert (report["records"], report["lost"]) == (5, 2)
