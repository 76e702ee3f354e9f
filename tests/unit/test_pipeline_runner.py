"""How pipelines are started, restarted and stopped, with queries that are made up. No Spark, no servers."""

import contextlib
import functools
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from penstock.checkpoints.lease import Lease
from penstock.errors import ConnectError, OptionError
from penstock.kit.contract import Origin, Transaction
from penstock.pipelines import job, runner
from penstock.pipelines.failures import in_its_words, is_of_the_file, sentence
from penstock.pipelines.load import load
from penstock.pipelines.pipeline import Pipeline
from penstock.pipelines.runner import Runner, State

IDLE, BUSY = {"isTriggerActive": False, "isDataAvailable": False}, {"isTriggerActive": True, "isDataAvailable": True}


class Query:
    """As Spark's, as far as a runner looks."""

    def __init__(self) -> None:
        self.isActive, self.is_busy = True, False
        self.looks: list[Callable[[], Any]] = []  # what happens at each look at its status, the first one first
        self.lastProgress: Any = None
        self.runId = "run"
        self.problem: Exception | None = None
        self.stopped_after: int | None = None

    @property
    def status(self) -> dict[str, bool]:
        answer = BUSY if self.is_busy else IDLE
        if self.looks:
            self.looks.pop(0)()
        return answer

    def exception(self) -> Exception | None:
        return self.problem

    def finish(self, batch: int) -> None:
        self.lastProgress = SimpleNamespace(batchId=batch, timestamp=f"t{batch}")

    def end(self, problem: Exception | None = None) -> None:
        self.problem, self.isActive = problem, False

    def stop(self) -> None:
        if self.isActive:
            self.stopped_after = self.lastProgress.batchId if self.lastProgress else -1
        self.isActive = False


def pipelines(folder: Path, *names: str, more: str = "") -> list[Pipeline]:
    for name in names:
        (folder / f"{name}.toml").write_text(f'[source]\ntype = "rate"\n[[sinks]]\ntype = "noop"\n{more}')
    return load([folder])


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], Query]], None]:
    """Let starts of queries be made by a function of the pipeline's key."""

    def use(start: Callable[[str], Query]) -> None:
        monkeypatch.setattr(job, "start", lambda spark, pipeline: start(pipeline.key))

    monkeypatch.setattr(runner, "Lease", functools.partial(Lease, settle=0.01))
    monkeypatch.setattr(runner, "LOOK_EVERY", 0.005)
    monkeypatch.setattr(runner, "TOLD_WITHIN", 0.0)
    monkeypatch.setattr(runner, "watching", lambda spark, store: contextlib.nullcontext())
    return use


def started(query: Query, then: Callable[[], Any]) -> Callable[[str], Query]:
    """A start after which something happens at once."""

    def start(key: str) -> Query:
        then()
        return query

    return start


def nothing() -> None:
    pass


def test_a_query_that_waits_for_data_is_stopped_at_once(folder: Path, starting: Any) -> None:
    query, runs = Query(), Runner(None, pipelines(folder, "a"), lambda text: None)  # type: ignore[arg-type]
    starting(started(query, runs.stopping.set))
    (went,) = runs.run()
    assert went.state is State.STOPPED
    assert query.stopped_after == -1


def test_a_query_in_a_batch_is_stopped_after_it(folder: Path, starting: Any) -> None:
    query, runs = Query(), Runner(None, pipelines(folder, "a"), lambda text: None)  # type: ignore[arg-type]
    starting(started(query, runs.stopping.set))
    query.is_busy = True
    query.finish(6)
    query.looks = [nothing, nothing, lambda: query.finish(7)]
    (went,) = runs.run()
    assert went.state is State.STOPPED
    assert query.stopped_after == 7


def test_a_query_that_fails_while_it_is_being_stopped_has_failed(folder: Path, starting: Any) -> None:
    query, runs = Query(), Runner(None, pipelines(folder, "a"), lambda text: None)  # type: ignore[arg-type]
    starting(started(query, runs.stopping.set))
    query.is_busy = True
    query.looks = [nothing, nothing, lambda: query.end(ConnectError("the server is gone"))]
    (went,) = runs.run()
    assert (went.state, went.error) == (State.FAILED, "the server is gone")


def test_a_signal_that_ends_spark_as_well_ends_in_a_sentence(
    folder: Path, starting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a service manager sends it, to all processes of a service."""
    said: list[str] = []
    monkeypatch.setattr(runner, "hush", lambda spark: None)
    query, runs = Query(), Runner(None, pipelines(folder, "a"), said.append)  # type: ignore[arg-type]
    starting(started(query, runs.stopping.set))

    def stop() -> None:
        raise Py4JError("the JVM is gone")

    query.stop = stop  # type: ignore[method-assign]
    (went,) = runs.run()
    assert (went.state, went.lease) == (State.STOPPED, None)
    assert said[-1] == "a: stopped, 0 records"


def test_asking_twice_stops_at_once_and_spark_says_nothing_more(
    folder: Path, starting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    was_active: list[bool] = []
    monkeypatch.setattr(runner, "hush", lambda spark: was_active.append(query.isActive))
    query, runs = Query(), Runner(None, pipelines(folder, "a"), lambda text: None)  # type: ignore[arg-type]

    def ask() -> None:
        signal.raise_signal(signal.SIGTERM)

    starting(started(query, ask))
    query.is_busy = True  # and it stays so
    query.looks = [nothing, nothing, ask]
    with pytest.raises(KeyboardInterrupt):
        runs.run()
    assert was_active == [True]
    assert not query.isActive
    assert runs.running[0].state is State.STOPPED


def test_what_fails_is_started_again_and_the_others_go_on(folder: Path, starting: Any) -> None:
    said: list[str] = []
    runs = Runner(
        None, pipelines(folder, "a", "b", more="[restart]\nmax_restarts = 2\nbackoff = '10ms'\n"), said.append
    )  # type: ignore[arg-type]
    starts: list[str] = []
    other = Query()

    def start(key: str) -> Query:
        starts.append(key)
        if key == "b":
            return other
        query = Query()
        query.end(ConnectError(f"down {starts.count('a')}"))
        if starts.count("a") == 3:
            other.end()
        return query

    starting(start)
    a, b = runs.run()
    assert starts.count("a") == 3
    assert (a.state, a.error, a.restarts) == (State.FAILED, "down 3", 2)
    assert (b.state, starts.count("b")) == (State.DONE, 1)
    told = "\n".join(said)
    assert "a: down 1\na: starts again in 0.01 s (1 more after that)" in told
    assert "a: stays down, after 3 failures\na: down 3" in told
    assert [line for _, line in a.log][-2:] == ["stays down, after 3 failures", "down 3"]


def test_a_mistake_in_the_file_is_not_tried_again(folder: Path, starting: Any) -> None:
    def start(key: str) -> Query:
        raise OptionError("a.toml:7: no such column")

    starting(start)
    (went,) = Runner(None, pipelines(folder, "a"), lambda text: None).run()  # type: ignore[arg-type]
    assert (went.state, went.failures) == (State.FAILED, 1)


def test_a_pipeline_whose_checkpoint_another_run_took_has_failed(folder: Path, starting: Any) -> None:
    query, runs = Query(), Runner(None, pipelines(folder, "a"), lambda text: None)  # type: ignore[arg-type]
    starting(started(query, lambda: runs._lost(runs.running[0])))
    (went,) = runs.run()
    assert (went.state, went.error) == (State.FAILED, "another run has taken over its checkpoint")


def test_a_pipeline_whose_checkpoint_another_run_took_is_not_started_again(folder: Path, starting: Any) -> None:
    runs = Runner(None, pipelines(folder, "a", more="[restart]\nbackoff = '1ms'\n"), lambda text: None)  # type: ignore[arg-type]
    starts: list[str] = []

    def start(key: str) -> Query:
        starts.append(key)
        runs._lost(runs.running[0])
        raise ConnectError("the storage is gone")

    starting(start)
    (went,) = runs.run()
    assert (went.state, went.error) == (State.FAILED, "another run has taken over its checkpoint")
    assert starts == ["a"]


OURS = """[STREAM_FAILED] Query [id = x] terminated with exception: Job aborted
  File "/x/source.py", line 3, in read
penstock.errors.ConnectError: nats://h: refused.
Is it running? SQLSTATE: 38000
=== Streaming Query ===
"""
OTHERS = """[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred: Traceback (most recent call last):
  File "/x/job.py", line 75, in __call__
    write(part)
  File "/x/captured.py", line 262, in deco
    raise converted from None
pyspark.errors.captured.AnalysisException: [KAFKA_DATA_SOURCE_NOT_ENABLED] Failed to find data. SQLSTATE: 42K02
 SQLSTATE: 39000
\tat org.apache.spark.Some(Some.scala:1)
"""

OF_JAVA = """[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred: Traceback (most recent call last):
  File "/x/protocol.py", line 327, in get_return_value
    raise Py4JJavaError(
py4j.protocol.Py4JJavaError: An error occurred while calling o302.save.
: org.apache.hadoop.fs.ParentNotDirectoryException: Parent path is not a directory: file:/x
\tat org.apache.hadoop.fs.RawLocalFileSystem.mkdirs(RawLocalFileSystem.java:705)
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (OURS, "nats://h: refused.\nIs it running?"),
        (OF_JAVA, "ParentNotDirectoryException: Parent path is not a directory: file:/x"),
        (OTHERS, "[KAFKA_DATA_SOURCE_NOT_ENABLED] Failed to find data."),
        ("x\n[USER_RAISED_EXCEPTION] a record is not JSON. SQLSTATE: P0001\n\tat x", "a record is not JSON."),
        ("one\ntwo", "one"),
    ],
)
def test_of_an_error_one_sentence_is_told(text: str, said: str) -> None:
    assert sentence(RuntimeError(text)) == said


class AnalysisException(Exception):  # noqa: N818 - Spark's name
    """As Spark's: also what a data source of ours refuses when a query is made."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[UNRESOLVED_COLUMN] no such column", True),
        ("[PYTHON_DATA_SOURCE_ERROR] Failed\npenstock.errors.OptionError: unknown option", True),
        ("[PYTHON_DATA_SOURCE_ERROR] Failed\npenstock.errors.ConnectError: no permission", False),
        ("[PYTHON_DATA_SOURCE_ERROR] Failed\npenstock.errors.Disconnected: refused", False),
    ],
)
def test_a_server_that_does_not_answer_is_no_mistake_in_the_file(text: str, expected: bool) -> None:
    assert is_of_the_file(AnalysisException(text)) is expected


WRITTEN = Transaction("0b9e4a2c-0000-4000-8000-000000000000-{}", 4, 0).differs("there were 3 and now there are 2")


@pytest.mark.parametrize(
    ("name", "batch", "sink"), [("large", 4, "large"), ("large-13", 17, "large"), ("no-1", 4, "no-1")]
)
def test_a_half_done_batch_with_other_rows_is_told_without_words_of_foreachbatch(
    folder: Path, name: str, batch: int, sink: str
) -> None:
    (pipeline,) = pipelines(folder, "a", more='name = "large"\n[[sinks]]\ntype = "noop"\nname = "no-1"\n')
    said = in_its_words(str(WRITTEN).format(name), pipeline)
    assert said.startswith(
        f"batch {batch} is half done: the sink '{sink}' has rows of it, and now they are others (there were 3 and now "
        "there are 2). Was the file changed since"
    )
    assert f"run the pipeline until batch {batch} is done, and then change it" in said
    assert "txn" not in said
    assert "foreachBatch" not in said


def test_a_lone_sink_says_the_same(folder: Path) -> None:
    (pipeline,) = pipelines(folder, "a")
    said = in_its_words(str(Origin("q", 3, 0).differs("it had more than 5 rows then")), pipeline)
    assert said.startswith("batch 3 is half done: the sink 'noop' has rows of it")


def test_other_errors_of_a_sink_lose_only_the_words_of_foreachbatch(folder: Path) -> None:
    (pipeline,) = pipelines(folder, "a", more='name = "large"\n[[sinks]]\ntype = "noop"\n')
    origin = Transaction("0b9e4a2c-0000-4000-8000-000000000000-large-2", 4, 0)
    assert in_its_words(str(origin.overtaken(5)), pipeline) == (
        "the sink 'large', which counts from batch 2: partition 0 of batch 4 is being written, but there are rows of "
        "batch 5 already: another run of this query has overtaken it. Stop one of the two."
    )
    assert in_its_words("the server is gone", pipeline) == "the server is gone"
