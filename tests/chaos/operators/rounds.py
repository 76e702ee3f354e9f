"""One round: a query, what befalls it and its servers, and whether what came of it is what the model says.

The seed decides everything but the time that things take.
"""

import json
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import pyarrow as pa

from operators.engine import Attempt, Checkpoint, Crash, Fate, Hang, Job, Run, Stop, UserError
from operators.model import Model, Promise
from operators.process import Killed, Process
from operators.scene import Operator, Scene, Source, Target
from penstock.errors import DataLossError, Interrupted, PenstockError

# So many steps of a query may be disturbed, for so many seconds, and so many times it is started, before all is well.
TROUBLE, TIME, RUNS = 40, 5.0, 40
# Then it has so long to come to its end; and no round takes longer than this, or it hangs.
CALM, LIMIT = 15.0, 60.0


class Failure(AssertionError):  # noqa: N818 - what a round ends with
    """The round shows something that must not be."""


class Mistake(Exception):  # noqa: N818 - of the round, not of what it plays with
    """An operator could not do what he wanted."""


class Clock:
    """The planner's clock, which jumps ahead, as that of a process which was stopped for a while does."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


class Cast(Protocol):
    """Who takes part."""

    source: Source
    target: Target

    def operators(self) -> Sequence[Operator]:
        """What may be done to servers, and to the ways to them."""

    def settle(self) -> None:
        """Mend those ways."""


class Background:
    """Something that happens while the query is at work."""

    def __init__(self, what: Callable[[], None], delay: float):
        self._what, self._delay, self.error = what, delay, None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        time.sleep(self._delay)
        try:
            self._what()
        except BaseException as error:  # whoever waits must see it, whatever it is
            self.error: BaseException | None = error

    def wait(self, seconds: float = 20.0) -> None:
        self._thread.join(seconds)
        if self._thread.is_alive():
            frame = sys._current_frames().get(self._thread.ident or 0)
            where = "".join(traceback.format_stack(frame)[-6:])
            raise Hang(f"something takes longer than {seconds:g}s, here:\n{where}")
        if self.error is not None:
            raise self.error


class Round:
    """Directs the engine: decides at each step what happens there."""

    def __init__(self, scene: Scene, cast: Cast):
        self.scene, self.cast, self.source, self.target = scene, cast, cast.source, cast.target
        source, target = cast.source, cast.target
        self.dice, self.model, self.checkpoint = scene.dice, scene.model, scene.checkpoint
        self.clock = Clock()
        self.job = Job(
            source.connector,
            target.connector,
            source.options,
            target.options,
            target.columns,
            self._transform,
            self.clock,
        )
        self.calm = False
        self.wrong = 0.0
        self.steps, self.events_left, self.records_left = 0, self.dice.randint(1, 5), self.dice.choice([60, 150, 300])
        self.busy = False
        self.backgrounds: list[Background] = []
        self.zombies: list[Attempt] = []
        self.run: Run | None = None
        self.most_at_once = self.dice.choice([10, 40])

    def note(self, event: str) -> None:
        self.scene.note(event)

    def play(self) -> None:
        """Everything, and the verdict, in time."""
        played = Background(self._play, 0)
        played.wait(LIMIT)

    def _play(self) -> None:
        self._publish()
        error = self._runs()
        for attempt in self.zombies:
            attempt.join(20)
            if attempt.is_alive():
                raise Hang(f"{attempt.name} hangs")
        at = self.checkpoint.committed
        self.note(f"the query {'is at its end' if error is None else 'is over'}, at {at}, from {self.model.start}")
        once = self.source.once and self.target.once
        promise = Promise(self.source.all and self.target.all, once, once and self.target.ordered)
        rows = self.target.stored()
        promise.all &= self.target.all  # only now is it known what could be heard
        promise.all &= error is None or self.source.replayable  # else nobody knows what it has had
        wrong = self.model.judge(rows, promise, at, well=error is None)
        wrong += self.source.complaints() + self.target.complaints(well=error is None and self.source.replayable)
        if wrong:
            raise Failure("; ".join(wrong))

    def _runs(self) -> PenstockError | None:
        """Start the query again and again, as its owner would; the error that stopped it for good, if one did."""
        deadline = None
        for number in range(RUNS):
            if number >= RUNS - 10 or self._is_enough():
                self._settle()
            if self.calm and deadline is None:
                deadline = time.monotonic() + CALM
            run = self.run = Run(self.job, self.checkpoint, self.at, self.dice, self)
            run.planner.wrong = self.wrong
            self.note(f"run {number} begins")
            try:
                if self._go(run, deadline):
                    return None
                self.note("the run is over")
            except (Crash, Stop, UserError) as error:
                self.note(f"the run ends: {type(error).__name__} {error}")
            except Killed as error:
                self.note(f"the run ends: {error} was killed")
            except PenstockError as error:
                self.note(f"the query fails: {type(error).__name__}: {error}")
                self._join()
                if self._is_over(error):
                    return error
            finally:
                self._end(run)
        raise Failure(f"the query did not come to its end in {RUNS} runs")

    def _go(self, run: Run, deadline: float | None) -> bool:
        """Trigger after trigger; True where all is read that will ever be there."""
        run.start()
        once = not self.calm and self.scene.chance(0.2) and run.available_now()
        idle = 0
        while True:
            moved = run.trigger()
            if self.model.start is None and 0 in self.checkpoint.offsets:
                self.model.start = json.loads(self.checkpoint.offsets[0])
            self.scene.running = True
            self._join()
            if self.calm and deadline is not None and time.monotonic() > deadline and not self.source.drained():
                return True  # what has not come by now is missing
            if moved:
                idle = 0
                continue
            self.clock.ahead += 2.5  # the planner looks again now, not in a moment
            idle += 1
            if once and idle > 1:
                return False
            if self.calm and idle > 2 and self.source.drained():
                return True
            if not self.calm and idle > 1:
                if self.records_left > 0 and not self._is_enough():
                    self._publish()
                else:
                    self._settle()
                    return False

    def _is_over(self, error: PenstockError) -> bool:
        """Whether the owner gives up after this error, which must be explained."""
        if isinstance(error, Interrupted):
            raise Failure(f"the query shows an Interrupted, which is between us and Spark: {error}")
        cause = self.model.explain(error)
        if cause is None:
            raise Failure(f"nothing that happened explains {type(error).__name__}: {error}")
        self.note(f"that is because {cause.name}")
        if cause.mend is not None:
            with self.scene.lock:
                cause.mend()
            return False
        if not cause.final:
            return False
        if isinstance(error, DataLossError) and self.dice.random() < 0.6:
            self.note("its owner sets failOnDataLoss=false")
            self.model.fail_on_loss = False
            self.job.read["failOnDataLoss"] = "false"
            return False
        return True

    def _end(self, run: Run) -> None:
        """A run is over: of what was at work, some is killed, and some goes on for a while."""
        self._join()
        self.scene.running = False
        kill = self.scene.chance(0.5) or not self.target.twins
        run.end(kill=kill)
        alive = [attempt for attempt in run.attempts if attempt.is_alive()]
        for attempt in alive:
            attempt.cut.set()
            if not self.target.twins:
                attempt.join(20)
        time.sleep(self.target.settles)
        self.zombies += alive
        with self.scene.lock:
            self.source.interrupted()

    def _settle(self) -> None:
        """From now on nothing happens any more, and what can be mended is."""
        if self.calm:
            return
        self.calm = True
        self._join()
        with self.scene.lock:
            self.note("all is well again")
            self.cast.settle()
            self.source.settle()
            self.target.settle()
            self._publish()

    def _is_enough(self) -> bool:
        return self.steps > TROUBLE or time.monotonic() - self.scene.began > TIME

    def at(self, step: str) -> None:
        """A step is about to be taken."""
        self.scene.running = step not in ("load", "latest offset") or self.scene.running
        if self.calm:
            return
        self.steps += 1
        self.busy = any(attempt.is_alive() for attempt in (*self.zombies, *(self.run.attempts if self.run else ())))
        if self._is_enough():
            return
        dice = self.dice
        if self.scene.chance(0.25):
            self._publish()
        if self.events_left and self.scene.chance(0.15):
            self._operate(step)
        if self.scene.chance(0.03):
            raise Crash(f"before {step}")
        if self.scene.chance(0.02):
            raise Stop(f"before {step}")
        if self.scene.chance(0.1):
            self.clock.ahead += dice.choice([0.05, 3.0, 1000.0])
        if self.scene.chance(0.03):
            self.wrong = dice.choice([-3600.0, -5.0, 0.0, 5.0, 3600.0])
            self.note(f"the clock of the driver is {self.wrong:g}s wrong now")
        run = self.run
        if run is not None:
            run.planner.wrong = self.wrong
        if run is not None and self.scene.chance(0.04):
            whom: Process = dice.choice([run.planner, run.committer])
            whom.fuse = dice.randint(0, 12)
            self.note(f"the {whom.name} will be killed within {whom.fuse} steps")
        if self.events_left and self.scene.chance(0.06):
            self._later(lambda: self._operate("during a step", quiet=False))

    def _later(self, what: Callable[[], None]) -> None:
        self.backgrounds.append(Background(what, self.dice.choice([0, 0.002, 0.01, 0.03])))

    def _join(self) -> None:
        waiting, self.backgrounds = self.backgrounds, []
        for background in waiting:
            background.wait()

    def _operate(self, step: str, *, quiet: bool = True) -> None:
        """Somebody does something."""
        with self.scene.lock:
            if self.calm:
                return
            choices = [*self.source.operators(), *self.target.operators(), *self.cast.operators()]
            choices = [each for each in choices if not each.quiet or (quiet and not self.busy)]
            chosen = self.dice.choices(choices, [each.weight for each in choices])[0]
            self.events_left -= 1
            self.note(f"operator, {step}: {chosen.name}")
            try:
                chosen.act()
            except PenstockError as error:
                raise Mistake(f"{chosen.name} failed: {error}") from error
            if self.scene.disturbed:
                self.source.interrupted()
                self.scene.disturbed = False

    def _publish(self) -> None:
        with self.scene.lock:
            count = self.dice.randint(1, self.most_at_once)
            self.records_left -= count
            try:
                self.source.publish(count)
            except PenstockError as error:
                raise Mistake(f"publishing failed: {error}") from error

    def begins(self, batch: int, parts: Sequence[bytes]) -> None:
        """A stage begins."""

    def fates(self, *, last: bool) -> Iterator[Fate]:
        """What befalls the next attempt at a task, and its twin, if it has one."""
        dice = self.dice
        size = dice.choice([1, 3, 10, 100, 10_000]) if not self.calm else 10_000
        if self.calm or self._is_enough():
            yield Fate(size)
            return
        fate = Fate(size, eager=self.scene.chance(0.6))
        kind = dice.choices(["well", "udf", "cut", "killed", "reader killed"], [20, 1, 1, 2, 1])[0]
        if kind == "udf":
            fate.udf = dice.randint(0, 30)
        elif kind == "cut":
            fate.cut = dice.randint(0, 30)
        elif kind == "killed":
            fate.fuse = dice.randint(0, 30)
        elif kind == "reader killed":
            fate.read_fuse = dice.randint(0, 12)
        yield fate
        if self.target.twins and self.scene.chance(0.1):
            twin = Fate(dice.choice([1, 7, 10_000]), eager=self.scene.chance(0.5))
            if self.scene.chance(0.5):
                twin.cut = dice.randint(0, 30)
            yield twin

    def during(self, running: Sequence[Attempt]) -> None:
        """Tasks are at work."""
        if self.calm or self._is_enough():
            return
        self.busy = True
        if self.events_left and self.scene.chance(0.12):
            self._later(lambda: self._operate("during tasks", quiet=False))
        if self.scene.chance(0.1):
            self._later(self._publish)
        if self.scene.chance(0.06):
            time.sleep(self.dice.choice([0, 0.001, 0.005, 0.02]))
            for attempt in running:
                attempt.cut.set()
            raise Stop("while tasks are at work")
        if self.scene.chance(0.04):
            time.sleep(self.dice.choice([0, 0.001, 0.005, 0.02]))
            raise Crash("while tasks are at work")

    def abandons(self, running: Sequence[Attempt]) -> None:
        """The stage has failed: what else is at work is cut off."""
        for attempt in running:
            attempt.cut.set()

    def wrote(self, batch: int, partition: int, rows: Sequence[pa.RecordBatch]) -> None:
        """A task came to its end."""
        self.model.tasks[batch, partition] = [row.number for each in rows for row in self.source.rows(each)]

    def retried(self, error: BaseException) -> None:
        """A task failed, and is tried again."""
        ours = error if isinstance(error, PenstockError) and not isinstance(error, Interrupted) else None
        if ours is not None and self.model.explain(ours) is None:
            raise Failure(f"nothing that happened explains {type(error).__name__} in a task: {error}")
        if isinstance(error, Killed):
            time.sleep(self.target.settles)
        elif not isinstance(error, PenstockError | Stop | UserError):
            raise error

    def committed(self, batch: int) -> None:
        """A batch is in Spark's log of commits."""
        self.scene.read |= {n for (b, _), numbers in self.model.tasks.items() if b == batch for n in numbers}

    def _transform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = self.source.rows(batch)
        self.scene.tried.update(row.number for row in rows)
        return self.target.batch(rows)


@contextmanager
def playing(seed: int) -> Iterator[Scene]:
    """The scene of a round; what goes wrong in it is told with all that happened."""
    dice = random.Random(seed)
    scene = Scene(f"C{seed}", dice, Model(fail_on_loss=dice.random() < 0.6), Checkpoint(f"chaos-{seed}"))
    try:
        yield scene
    except Exception as error:
        again = f"ROUNDS=1 SEED={seed} python -m pytest tests/chaos/test_operators.py"
        events = "\n  ".join(scene.events)
        raise Failure(f"seed {seed}: {type(error).__name__}: {error}\n{again}\n  {events}") from error
