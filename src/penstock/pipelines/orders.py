"""What others tell a running pipeline to do: stop, start, restart, go back. Any thread may ask; what is asked of one
pipeline is done one after the other. Knows the runner; no HTTP.
"""

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.checkpoints.log import Log
from penstock.checkpoints.plan import moment_of, plan
from penstock.checkpoints.rewind import Target, rewind
from penstock.errors import OptionError
from penstock.pipelines.restore import memories
from penstock.pipelines.runner import STOP_EVERY, STOP_WITHIN, Runner, Running, State, batch_in_hand

DONE_WITHIN = 90.0
ENDS = "the program is about to end."


class Orders:
    """Orders to the pipelines of one runner."""

    def __init__(self, runner: Runner):
        self.runner = runner
        self._locks = {each.pipeline.key: threading.Lock() for each in runner.running}

    def stop(self, key: str) -> str:
        """Stop a pipeline after the batch in hand. Its place is kept."""
        with self._alone(key) as each:
            if each.is_over:
                return f"{key} does not run: it is {each.state}"
            self._stop(each)
            return f"{key} is stopped"

    def start(self, key: str) -> str:
        """Start a pipeline that is stopped, done or has failed. Failures before do not count any more."""
        with self._alone(key) as each:
            if not each.is_over:
                return f"{key} runs already: it is {each.state}"
            self._start(each)
            return f"{key} starts"

    def restart(self, key: str) -> str:
        """Stop a pipeline after the batch in hand, and start it again."""
        with self._alone(key) as each:
            if not each.is_over:
                self._stop(each)
            self._start(each)
            return f"{key} starts again"

    def rewind(
        self, key: str, batch: int | None = None, time: str | None = None,
        positions: Mapping[str, Any] | None = None, new_query: bool = False,
    ) -> str:  # fmt: skip
        """Set a pipeline back to a batch, a time or positions, as `penstock checkpoints rewind` does. It is stopped for
        that, and runs again afterwards if it did before. An OptionError where that is refused: it goes on as it was,
        and is not even stopped where that can be told before.
        """
        to, anew = _target(batch, time, positions), bool(new_query)
        with self._alone(key) as each:
            was_running, location, sinks = not each.is_over, each.pipeline.location, memories(each.pipeline)
            with _in_words_of_http():
                plan(Log(location), to, None, sinks, anew)
            if was_running:
                self._stop(each)
            try:
                with _in_words_of_http():
                    went = rewind(location, to, sinks=sinks, new_query=anew)
            finally:
                if was_running:
                    self._start(each)
            if went.copy is None:
                return f"nothing to do: {key} stands at the end of batch {went.kept}"
            return f"{key} is set back: its next batch is {went.next_batch}. What was before is in {went.copy}"

    def _alone(self, key: str) -> "_Alone":
        each = next((each for each in self.runner.running if each.pipeline.key == key), None)
        if each is None:
            raise OptionError(f"there is no pipeline '{key}' that runs here.")
        if self.runner.stopping.is_set():
            raise OptionError(ENDS)
        return _Alone(each, self._locks[key])

    def _stop(self, each: Running) -> None:
        each.is_parked = True  # the program does not end for it
        deadline = time.monotonic() + DONE_WITHIN
        while not each.is_over:
            query = each.query  # there may be none yet: it is just being started
            if query is not None and query.isActive:
                _stop_after_its_batch(query)
            if time.monotonic() > deadline:
                raise OptionError(f"{each.pipeline.key} did not stop within {DONE_WITHIN:g} s.")
            time.sleep(STOP_EVERY)

    def _start(self, each: Running) -> None:
        self.runner.begin_again(each)
        if each.state is State.FAILED:  # its checkpoint was not to be had
            raise OptionError(each.error)
        if self.runner.stopping.is_set():
            self.runner.let_go(each)
            raise OptionError(ENDS)


class _Alone:
    """A pipeline, while nobody else tells it what to do. An OptionError where somebody does."""

    def __init__(self, each: Running, lock: threading.Lock):
        self.each, self.lock = each, lock

    def __enter__(self) -> Running:
        if not self.lock.acquire(timeout=1.0):
            raise OptionError(f"somebody else has just told {self.each.pipeline.key} to do something.")
        return self.each

    def __exit__(self, *what: object) -> None:
        self.lock.release()


@contextlib.contextmanager
def _in_words_of_http() -> Iterator[None]:
    """Errors that speak of the command line, as those who ask by HTTP know it."""
    try:
        yield
    except OptionError as error:
        words = str(error).replace("--new-query", '"new_query": true')
        raise OptionError(words.replace("a new checkpointLocation", "another location in [checkpoint]")) from None


def _stop_after_its_batch(query: Any) -> None:
    in_hand, deadline = batch_in_hand(query), time.monotonic() + STOP_WITHIN
    while in_hand is not None and query.isActive and batch_in_hand(query) == in_hand and time.monotonic() < deadline:
        time.sleep(STOP_EVERY)
    query.stop()


def _target(batch: Any, time: Any, positions: Any) -> Target:
    given = [each for each in (batch, time, positions) if each is not None]
    if len(given) != 1:
        raise OptionError("say where to: one of 'batch', 'time' and 'positions'.")
    if batch is not None:
        if type(batch) is not int:
            raise OptionError(f"'batch' must be a whole number, but is {str(batch)[:80]!r}.")
        return batch
    if positions is not None:
        if not isinstance(positions, dict):
            raise OptionError("'positions' must be an object, such as {\"ORDERS\": 17}.")
        return positions
    return moment_of(str(time))
