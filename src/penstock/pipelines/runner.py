"""Runs pipelines in one Spark application: starts them, restarts what fails, and stops them between two batches. Knows
Spark's queries; no servers, no files.
"""

import contextlib
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from penstock.checkpoints.lease import Lease
from penstock.errors import PenstockError
from penstock.kit.masking import masked
from penstock.pipelines import job
from penstock.pipelines.application import hush
from penstock.pipelines.failures import in_its_words, is_of_the_file, sentence
from penstock.pipelines.pipeline import Pipeline
from penstock.pipelines.restore import restore
from penstock.watch.listener import watching
from penstock.watch.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_EVERY = 0.2
STOP_EVERY = 0.01  # quicker than Spark plans the next batch
STOP_WITHIN = 60.0
TOLD_WITHIN = 5.0  # what a query did is known when Spark's events have come through
LINES = 100  # of what was said of a pipeline
TAKEN_OVER = "another run has taken over its checkpoint"


class State(StrEnum):
    """What a pipeline is doing, in the words of Iggy's runtime."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting to restart"
    STOPPED = "stopped"
    DONE = "done"
    FAILED = "failed"


@dataclass
class Running:
    """A pipeline, and how it goes."""

    pipeline: Pipeline
    say: Callable[[str], None]
    state: State = State.STARTING
    query: "StreamingQuery | None" = None
    lease: Lease | None = None
    is_lost: bool = False  # whether another run has its checkpoint now
    is_parked: bool = False  # whether somebody told it to stop, who may tell it to start again
    error: str = ""
    failures: int = 0
    restarts: int = 0
    rows: int = 0
    errors: int = 0
    due: float = 0.0  # when to start again
    began: float = field(default_factory=time.monotonic)
    log: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=LINES))  # when, and what was said

    def tell(self, text: str) -> None:
        """Say lines about it, and keep them."""
        for line in text.splitlines():
            self.log.append((time.time(), line))
            self.say(f"{self.pipeline.key}: {line}")

    @property
    def is_over(self) -> bool:
        """Whether it will do nothing more."""
        return self.state in (State.STOPPED, State.DONE, State.FAILED)


class Runner:
    """Runs pipelines until all are done or have failed for good, or somebody asks to stop. `store`: what they did."""

    def __init__(
        self,
        spark: "SparkSession",
        pipelines: Sequence[Pipeline],
        say: Callable[[str], None] = print,
        *,
        start: "Callable[[SparkSession, Pipeline], StreamingQuery] | None" = None,
    ):
        self.spark, self.say, self.start = spark, say, start
        self.running = [Running(pipeline, say) for pipeline in pipelines if pipeline.enabled]
        self.stopping, self.at_once = threading.Event(), threading.Event()
        self.store = Store()

    def run(self) -> list[Running]:
        """Run all of them to their end. What failed for good has the state FAILED, with its last error. A
        KeyboardInterrupt where somebody asked twice to stop, after all have.
        """
        from py4j.protocol import Py4JError  # type: ignore[import-untyped] # it ships no types

        with self._signals(), watching(self.spark, self.store):
            try:
                try:
                    self._go_on()
                finally:
                    self._stop_all()
            except (Py4JError, OSError):
                if not self.stopping.is_set():
                    raise
                self._give_up()
        if self.at_once.is_set():
            raise KeyboardInterrupt
        return self.running

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT ask to stop after the batch in hand; a second one stops at once."""

        def ask(number: int, frame: Any) -> None:
            if self.at_once.is_set():
                raise KeyboardInterrupt  # the last resort: it breaks off a talk with Java, and no more can be said
            if self.stopping.is_set():
                self.at_once.set()
                return
            self.stopping.set()  # first: the next signal may come while this is said
            self.say("stopping after the batches in hand; once more stops at once")

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _look_after(self, each: Running) -> None:
        if each.is_over:
            return
        if each.query is None:
            if each.is_parked:
                self._over(each, State.STOPPED)
            elif time.monotonic() >= each.due:
                self._start(each)
            return
        if each.query.isActive:
            each.state = State.RUNNING
            if each.failures and time.monotonic() - each.began > each.pipeline.restart.reset_after:
                each.failures = 0
            return
        problem = each.query.exception()
        self._count(each)
        each.query = None
        if each.is_lost:
            self._failed(each, TAKEN_OVER, for_good=True)
        elif problem is not None:
            self._failed(each, sentence(problem))
        else:
            self._over(each, State.STOPPED if each.is_parked else State.DONE)

    def _take(self, each: Running) -> None:
        """Take the checkpoint, so that no other run uses it. What is to be restored is restored before."""
        pipeline = each.pipeline
        try:
            restored = restore(pipeline)
            if restored:
                each.tell(restored)
            each.lease = Lease(pipeline.location, on_lost=lambda: self._lost(each)).take()
        except PenstockError as problem:
            self._failed(each, str(problem), for_good=True)

    def begin_again(self, each: Running) -> None:
        """Start a pipeline that is over, as if it had never failed. FAILED where its checkpoint is in use."""
        each.is_lost, each.failures, each.error = False, 0, ""
        self._take(each)
        if each.lease is not None:
            each.due, each.is_parked, each.state = 0.0, False, State.STARTING

    def let_go(self, each: Running) -> None:
        """Give up a pipeline that was to begin again, and never will: the program ends."""
        if not each.is_over and each.query is None:
            self._over(each, State.STOPPED)

    def _start(self, each: Running) -> None:
        pipeline = each.pipeline
        if each.is_lost:
            self._failed(each, TAKEN_OVER, for_good=True)
            return
        each.state, each.began = State.STARTING, time.monotonic()
        try:
            each.query = (self.start or job.start)(self.spark, pipeline)
            each.state = State.RUNNING
            if each.is_lost:  # while it started
                each.query.stop()
            each.tell(f"running, {pipeline.guarantee()}")
        except Exception as problem:
            if not isinstance(problem, PenstockError) and not type(problem).__module__.startswith(("pyspark", "py4j")):
                raise
            self._failed(each, sentence(problem), for_good=is_of_the_file(problem))

    def _lost(self, each: Running) -> None:
        """Another run has taken the checkpoint: stop before there is a second batch of the same number."""
        each.is_lost = True
        if each.query is not None:
            each.query.stop()

    def _failed(self, each: Running, why: str, *, for_good: bool = False) -> None:
        """Start again after a while, or stay down: `for_good`, or after too many failures in a row."""
        restart, why = each.pipeline.restart, masked(in_its_words(why, each.pipeline))
        each.error, each.failures = why, each.failures + 1
        if for_good or each.failures > restart.max_restarts or self.stopping.is_set():
            self._over(each, State.FAILED)
            return
        wait = min(restart.max_backoff, restart.backoff * 2 ** (each.failures - 1))
        each.state, each.due, each.restarts = State.WAITING, time.monotonic() + wait, each.restarts + 1
        left = restart.max_restarts - each.failures
        each.tell(f"{why}\nstarts again in {wait:g} s ({left} more after that)")

    def _over(self, each: Running, state: State) -> None:
        each.state = state
        if each.lease is not None:
            each.lease.release()
            each.lease = None
        if state is State.FAILED:
            failures = count_of(each.failures, "failure")
            each.tell(f"stays down, after {failures}\n{each.error}")
        else:
            errors = f", {count_of(each.errors, 'error')}" if each.errors else ""
            each.tell(f"{state}, {count_of(each.rows, 'record')}{errors}")

    def _count(self, each: Running) -> None:
        """Add up what its queries have told. They have ended."""
        assert each.query is not None
        self.store.wait_for_end(str(each.query.runId), TOLD_WITHIN)
        each.rows, each.errors = self.store.totals(each.pipeline.key)

    def _go_on(self) -> None:
        """Start what is to be started, and look after all, until they are over or somebody asks to stop."""
        with ThreadPoolExecutor() as pool:  # each waits a second, to see whether another wants it too
            list(pool.map(self._take, self.running))
        while not self.stopping.is_set() and any(each.is_parked or not each.is_over for each in self.running):
            for each in self.running:
                self._look_after(each)
            self.stopping.wait(LOOK_EVERY)

    def _give_up(self) -> None:
        """Spark's JVM is gone: who stops a service sends the signal to it as well. A batch in hand is cut off, and the
        next run does it again.
        """
        hush(self.spark)
        for each in self.running:
            if not each.is_over:
                each.query = None
                self._over(each, State.STOPPED)

    def _stop_all(self) -> None:
        """Let every query finish the batch that it is in, then stop it."""
        active = [each.query for each in self.running if each.query is not None and each.query.isActive]
        waiting = [(query, batch_in_hand(query)) for query in active]
        deadline = time.monotonic() + STOP_WITHIN
        try:
            while waiting and time.monotonic() < deadline and not self.at_once.is_set():
                for query, in_hand in list(waiting):
                    if in_hand is None or not query.isActive or batch_in_hand(query) != in_hand:
                        waiting.remove((query, in_hand))
                        query.stop()
                time.sleep(STOP_EVERY)
        finally:
            if any(query.isActive for query in active):
                hush(self.spark)
            for each in self.running:
                if not each.is_over:
                    self._stop(each)

    def _stop(self, each: Running) -> None:
        problem = None
        if each.query is not None:
            each.query.stop()
            self._count(each)
            problem = each.query.exception()
        if problem is not None:
            each.error, each.failures = masked(sentence(problem)), each.failures + 1
        self._over(each, State.STOPPED if problem is None else State.FAILED)


def count_of(number: int, what: str) -> str:
    """A number of things in words: 1 record, 2,000 records."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def batch_in_hand(query: Any) -> Any:
    """What the query has reported before the batch that it is in; None where it is in none."""
    status = query.status
    if not status["isTriggerActive"] or not status["isDataAvailable"]:
        return None
    progress = query.lastProgress
    return "nothing" if progress is None else (progress.batchId, progress.timestamp)
