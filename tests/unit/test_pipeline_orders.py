"""What others tell pipelines to do while they run, with queries that are made up. No Spark, no servers."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.dead_letters import letters
from penstock.errors import ConnectError, OptionError
from penstock.monitor.pipelines import RunningPipelines
from penstock.pipelines import orders
from penstock.pipelines.orders import Orders
from penstock.pipelines.runner import Runner, State
from spark.jobs import wait
from unit.test_pipeline_runner import Query, nothing, pipelines, starting

__all__ = ["starting"]


@contextmanager
def running(runner: Runner) -> Iterator[Orders]:
    """A runner in a thread of its own, which must end by itself or when it is asked to."""
    thread = threading.Thread(target=runner.run)
    thread.start()
    try:
        wait(lambda: all(each.query is not None for each in runner.running))
        yield Orders(runner)
    finally:
        runner.stopping.set()
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture
def made(folder: Path, starting: Callable[[Any], None]) -> tuple[Runner, list[Query]]:
    """A runner of two pipelines, and the queries that it starts."""
    queries: list[Query] = []

    def start(key: str) -> Query:
        queries.append(Query())
        return queries[-1]

    starting(start)
    return Runner(None, pipelines(folder, "a", "b"), lambda text: None), queries  # type: ignore[arg-type]


def test_a_pipeline_stops_after_the_batch_in_hand_and_the_others_go_on(made: tuple[Runner, list[Query]]) -> None:
    runner, queries = made
    with running(runner) as told:
        first, second = queries
        first.is_busy = True
        first.finish(6)
        first.looks = [nothing, nothing, lambda: first.finish(7)]
        assert told.stop("a") == "a is stopped"
        assert (first.stopped_after, runner.running[0].state) == (7, State.STOPPED)
        assert (second.isActive, runner.running[1].state) == (True, State.RUNNING)
        assert "does not run" in told.stop("a")


def test_a_program_whose_only_pipeline_was_stopped_waits_for_the_next_order(
    folder: Path, starting: Callable[[Any], None]
) -> None:
    queries: list[Query] = []
    starting(lambda key: queries.append(Query()) or queries[-1])
    runner = Runner(None, pipelines(folder, "a"), lambda text: None)  # type: ignore[arg-type]
    with running(runner) as told:
        told.stop("a")
        assert told.start("a") == "a starts"
        wait(lambda: len(queries) == 2)
        assert "runs already" in told.start("a")
        assert told.restart("a") == "a starts again"
        wait(lambda: len(queries) == 3)
        assert [query.isActive for query in queries] == [False, False, True]
    assert runner.running[0].state is State.STOPPED
    assert runner.running[0].lease is None


def test_one_that_has_failed_for_good_can_be_started_and_its_failures_are_forgotten(
    made: tuple[Runner, list[Query]],
) -> None:
    runner, queries = made
    with running(runner) as told:
        each = runner.running[0]
        each.failures = 100
        queries[0].end(ConnectError("the server is gone"))
        wait(lambda: each.state is State.FAILED)
        assert RunningPipelines(runner, letters).all()[0].error == "the server is gone"
        told.start("a")
        wait(lambda: each.state is State.RUNNING)
        assert (each.failures, RunningPipelines(runner, letters).all()[0].error) == (0, "")


def test_one_that_waits_to_start_again_can_be_stopped(made: tuple[Runner, list[Query]]) -> None:
    runner, queries = made
    with running(runner) as told:
        queries[0].end(ConnectError("the server is gone"))
        wait(lambda: runner.running[0].state is State.WAITING)
        assert told.stop("a") == "a is stopped"
        assert len(queries) == 2, "it did not start again"


def test_one_that_is_just_being_started_is_stopped_as_soon_as_it_runs(
    folder: Path, starting: Callable[[Any], None]
) -> None:
    is_starting, may_start = threading.Event(), threading.Event()
    queries: list[Query] = []

    def start(key: str) -> Query:
        is_starting.set()
        assert may_start.wait(10)
        queries.append(Query())
        return queries[-1]

    starting(start)
    runner = Runner(None, pipelines(folder, "a"), lambda text: None)  # type: ignore[arg-type]
    thread = threading.Thread(target=runner.run)
    thread.start()
    try:
        assert is_starting.wait(10)
        threading.Timer(0.1, may_start.set).start()
        assert Orders(runner).stop("a") == "a is stopped"
        assert [query.isActive for query in queries] == [False]
    finally:
        runner.stopping.set()
        thread.join(20)


def test_a_rewind_that_is_refused_leaves_the_pipeline_running(
    made: tuple[Runner, list[Query]], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, queries = made

    def refuse(*given: Any, **named: Any) -> None:
        raise OptionError("batch 3 is not known any more.")

    with running(runner) as told:
        with pytest.raises(OptionError, match="no query has begun there"):
            told.rewind("a", batch=3)
        assert [query.isActive for query in queries] == [True, True], "it was not even stopped"
        monkeypatch.setattr(orders, "Log", str)  # as if it could be told only then
        monkeypatch.setattr(orders, "plan", lambda *given: None)
        monkeypatch.setattr(orders, "rewind", refuse)
        with pytest.raises(OptionError, match="not known any more"):
            told.rewind("a", batch=3)
        wait(lambda: len(queries) == 3 and runner.running[0].state is State.RUNNING)


def test_an_order_that_comes_as_the_program_ends_leaves_no_lease(made: tuple[Runner, list[Query]]) -> None:
    runner, _ = made
    with running(runner) as told:
        each = runner.running[0]
        told.stop("a")
        begin, told.runner.begin_again = runner.begin_again, lambda each: (begin(each), runner.stopping.set())  # type: ignore[method-assign,assign]
        with pytest.raises(OptionError, match="about to end"):
            told.start("a")
    assert (each.state, each.lease) == (State.STOPPED, None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "one of 'batch', 'time' and 'positions'"),
        ({"batch": 1, "time": "2026-11-17T06:00:00Z"}, "one of"),
        ({"batch": "3"}, "must be a whole number"),
        ({"batch": True}, "must be a whole number"),
        ({"time": "yesterday"}, "is not a time such as"),
        ({"time": "2026-11-17T06:00:00"}, "has no zone"),
        ({"positions": [1]}, "must be an object"),
    ],
)
def test_where_to_is_said_before_anything_is_stopped(
    made: tuple[Runner, list[Query]], given: dict[str, Any], said: str
) -> None:
    runner, queries = made
    with running(runner) as told:
        with pytest.raises(OptionError, match=said):
            told.rewind("a", **given)
        assert queries[0].isActive


def test_an_order_to_nobody_and_one_too_late_are_refused(made: tuple[Runner, list[Query]]) -> None:
    runner, _ = made
    with running(runner) as told:
        with pytest.raises(OptionError, match="no pipeline 'c' that runs here"):
            told.stop("c")
        runner.stopping.set()
        with pytest.raises(OptionError, match="about to end"):
            told.stop("a")
