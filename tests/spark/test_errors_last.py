"""Of an error of ours, what a user sees is the line of their program that failed, and at the end the sentence, once: in
classic sessions and with Spark Connect, in batches and in streams. A bug is shown with all that Spark says of it.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import penstock
from spark.jobs import descendants, kill
from spark.pipeline_runs import ONCE, Command, written

PROGRAM = Path(__file__).with_name("errors_program.py")
LEAN = Path(penstock.__file__).parent / "spark" / "lean"  # only lets Spark's Python processes start sooner
# Each way to fail, and how the sentence begins.
OURS = {
    "schema": "OptionError: unknown option 'startingofsets' for jetstream. Did you mean 'startingOffsets'?",
    "batch_read": "DataLossError: stream 'shard' starts at 2, but the query is at 0: 2 messages were deleted unread.",
    "batch_write": "OptionError: '{folder}/target/out' cannot be a log: there is a file in its place.",
    "stream_schema": "OptionError: unknown option 'startingofsets' for jetstream. Did you mean 'startingOffsets'?",
    "stream_latest_offset": "ConnectError: listening (what is published until then is not received) failed ",
    "stream_read": "DataLossError: stream 'shard' starts at 2, but the query is at 0: 2 messages were deleted unread.",
    "stream_write": "OptionError: '{folder}/stream-target/out' cannot be a log: there is a file in its place.",
}
# Bugs, and what must be seen of them. They come after errors of ours, in the same session.
BUGS = {"bug_of_a_user": ["in divided", "ZeroDivisionError"], "bug_of_a_source": ["in read", "KeyError: 'a bug'"]}


@dataclass
class Ran:
    """The program, after its end."""

    folder: Path
    code: int
    cases: dict[str, dict[str, str]]  # what was shown of each case
    terminal: str


@pytest.fixture(scope="module", params=[None, "local[2]"], ids=["classic", "connect"])
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """All cases in one session: most of the time is Spark's start."""
    folder = tmp_path_factory.mktemp("errors")
    job = {"folder": str(folder), "cases": [*OURS, *BUGS], "uncaught": "batch_read", "remote": request.param}
    path = os.pathsep.join([str(LEAN), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": path}
    command = [sys.executable, str(PROGRAM), json.dumps(job)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    try:
        out, terminal = process.communicate(timeout=400)
    finally:
        for pid in [*descendants(process.pid), process.pid]:
            kill(pid)
    cases = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return Ran(folder, process.returncode, {each["case"]: each for each in cases}, terminal)


@pytest.mark.parametrize("case", OURS)
def test_the_sentence_comes_last_and_once(ran: Ran, case: str) -> None:
    assert case in ran.cases, ran.terminal[-3000:]
    shown, sentence = ran.cases[case]["shown"], OURS[case].format(folder=ran.folder)
    assert shown.splitlines()[-1].startswith(sentence), shown
    assert shown.splitlines()[-2] == ""
    assert shown.count(sentence) == 1
    assert f"in {case}\n" in shown, "the line of the program"
    assert "pyspark" not in shown


@pytest.mark.parametrize("case", OURS)
def test_spark_is_given_no_traceback_of_an_error_of_ours(ran: Ran, case: str) -> None:
    """Also where nobody has prepared the session: what Spark says itself is the shorter by that."""
    assert "Traceback" not in ran.cases[case]["text"]
    assert f"penstock.{OURS[case].format(folder=ran.folder)}" in ran.cases[case]["text"]


@pytest.mark.parametrize("case", BUGS)
def test_a_bug_is_shown_with_its_traceback(ran: Ran, case: str) -> None:
    shown = ran.cases[case]["shown"]
    assert shown == ran.cases[case]["plain"]
    assert "Traceback" in ran.cases[case]["text"]
    for part in BUGS[case]:
        assert part in shown


def test_a_program_ends_with_the_sentence(ran: Ran) -> None:
    assert ran.code == 1
    lines = ran.terminal.strip().splitlines()
    assert lines[-1].startswith(OURS["batch_read"]), ran.terminal[-3000:]


def test_a_pipeline_on_spark_connect_ends_with_the_sentence(tmp_path: Path) -> None:
    """In a classic session: test_pipeline_faults.py."""
    source = '[source]\ntype = "jetstream"\nidentifier = "S"\n[jetstream]\nservers = "nats://127.0.0.1:1"\n'
    file = written(tmp_path, "dead", f'{source}[[sinks]]\ntype = "noop"\n{ONCE}')
    command = Command(tmp_path, file, more=("--remote", "local[2]"))
    assert command.run(PYSPARK_PYTHON=sys.executable, SPARK_TESTING="1") == 1, command.said()
    said = command.said()
    assert said.strip().splitlines()[-1].partition(" ")[2].startswith("dead: no NATS server answers (127.0.0.1:1")
    assert said.count("no NATS server answers") == 1
    assert "\tat org.apache.spark" not in said
