"""What Spark does with a streaming query, without Spark: its logs, its order of steps, its tasks and their attempts.

Each step is announced before it is taken, so that anything may happen there. Knows Spark's side of the adapter and
no connector. The steps and their order are those of Spark 4.3's MicroBatchExecution.
"""

import json
import pickle
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from operators.process import Process
from penstock.errors import PenstockError
from penstock.kit.contract import Holding
from penstock.planning.planner import Planner
from penstock.spark.connector import Connector

# A task that takes longer than this hangs.
LONGEST_STEP = 20.0
_tasks = threading.local()


class Crash(Exception):  # noqa: N818 - what happens, not what is wrong
    """The driver is gone. What Spark wrote into its logs is there, and nothing else."""


class Stop(Exception):  # noqa: N818 - likewise
    """Somebody called query.stop()."""


class UserError(Exception):
    """A function of the user's raised it."""


class Hang(AssertionError):  # noqa: N818 - likewise
    """Something takes for ever."""


@dataclass
class Checkpoint:
    """Spark's logs of one query. Positions are text, as they are on disk."""

    query: str
    offsets: dict[int, str] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)

    @property
    def open(self) -> bool:
        """Whether a batch is planned and not done."""
        return bool(self.offsets) and max(self.offsets) not in self.commits

    @property
    def committed(self) -> dict[str, Any] | None:
        """The end of the last batch that is done."""
        done = [batch for batch in self.offsets if batch in self.commits]
        return json.loads(self.offsets[max(done)]) if done else None


@dataclass
class Job:
    """What the user wrote: from where, what becomes of a row, and to where."""

    source: type[Connector]
    sink: type[Connector]
    read: dict[str, str]
    write: dict[str, str]
    columns: pa.Schema  # of the rows that are written
    transform: Callable[[pa.RecordBatch], pa.RecordBatch]
    clock: Callable[[], float]

    def load(self) -> None:
        """What `.load()` does."""
        self.source(dict(self.read)).schema()

    def reader(self) -> Any:
        """The reader that Spark makes in its planner process."""
        connector: Any = self.source(dict(self.read))
        reader = connector.streamReader(schema=from_arrow_schema(self.source.columns(self.source.parse(self.read))))
        opened = self.source.open_source(reader.options)
        reader._planner = Planner(opened, reader.options, reader.default_start, self.clock)
        return reader

    def writer(self) -> Any:
        """The writer, which Spark makes anew for each batch and for each commit."""
        connector: Any = self.sink(dict(self.write))
        return connector.streamWriter(schema=from_arrow_schema(self.columns), overwrite=False)


@dataclass
class Fate:
    """What befalls one attempt of a task."""

    size: int = 10_000  # rows of a batch, as the JVM cuts them
    eager: bool = True  # whether all is read before the first row is written, as with few rows it is
    cut: int | None = None  # the input ends before this row, as when the query is stopped or a stage is given up
    udf: int | None = None  # the user's function fails at this row
    fuse: float = float("inf")  # when the process that writes is killed
    read_fuse: float = float("inf")  # and the one that reads

    def __str__(self) -> str:
        told = [f"{name} {value}" for name, value in vars(self).items() if value not in (None, float("inf"))]
        return ", ".join(told)


class _Infile:
    """The socket that a worker reads from. Behind a complete input there is one more word."""

    def __init__(self) -> None:
        self.cut = False

    def peek(self, size: int) -> bytes:
        return b"" if self.cut else b"\xff\xff\xff\xfc"


class TaskContext:
    """Stands in for pyspark's: what a task may know of itself."""

    def __init__(self, query: str, batch: int, partition: int):
        self.properties = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}
        self.partition = partition

    @classmethod
    def get(cls) -> "TaskContext | None":
        return getattr(_tasks, "context", None)

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
        return self.properties.get(name)

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return self.partition


class Attempt(threading.Thread):
    """One attempt at one task: a process that reads, and one that writes what the first hands over."""

    def __init__(self, run: "Run", batch: int, partition: int, part: bytes, writer: bytes, number: int, fate: Fate):
        super().__init__(daemon=True, name=f"task {batch}/{partition}.{number}")
        self.engine, self.job, self.fate, self.part, self.writer = run, run.job, fate, part, writer
        self.context = TaskContext(run.checkpoint.query, batch, partition)
        self.partition = partition
        self.reads = Process(f"{self.name} reads", fate.read_fuse)
        self.writes = Process(f"{self.name} writes", fate.fuse)
        self.upstream: BaseException | None = None  # why there are no more rows: this is what the driver shows
        self.cut = threading.Event()  # Spark has given this attempt up
        self.error: BaseException | None = None
        self.message: bytes | None = None
        self.rows: list[pa.RecordBatch] = []

    def run(self) -> None:
        def main(infile: Any, outfile: Any) -> Any:  # penstock.spark.input looks for these names
            with self.writes:
                return pickle.loads(self.writer).write(self._rows(infile))

        _tasks.context = self.context
        try:
            message = pickle.dumps(main(_Infile(), None))
        except BaseException as error:  # whatever it is: whoever waits for this task judges
            self.error = self.upstream or error
            return
        if self.upstream is not None:
            self.error = self.upstream
        else:
            self.message = message

    def kill(self) -> None:
        """End it as a lost executor would."""
        self.reads.kill()
        self.writes.kill()

    def _rows(self, infile: _Infile) -> Iterator[pa.RecordBatch]:
        """What comes over the socket: rows, and then the end, whatever the reason."""
        at = 0
        try:
            read = self._read()
            for batch in list(read) if self.fate.eager else read:
                for low in range(0, len(batch), self.fate.size):
                    part = batch.slice(low, self.fate.size)
                    if self.fate.cut is not None and at + len(part) > self.fate.cut:
                        self.cut.set()
                    if self.cut.is_set():
                        self.upstream = Stop(f"the input is cut off at row {at}")
                        infile.cut = True
                        return
                    at += len(part)
                    yield part
        except GeneratorExit:
            raise
        except BaseException as error:
            self.upstream, infile.cut = error, True

    def _read(self) -> Iterator[pa.RecordBatch]:
        reader, seen = pickle.loads(self.engine.pickled_reader), 0
        with self.reads:
            given = reader.read(pickle.loads(self.part))
        while True:
            with self.reads:
                batch = next(given, None)
            if batch is None:
                return
            seen += len(batch)
            if self.fate.udf is not None and seen > self.fate.udf:
                raise UserError(f"the function fails at row {self.fate.udf}")
            self.rows.append(batch)
            if len(batch):
                yield self.job.transform(batch)


class Run:
    """One start of the query, from its logs on. `at` is called before each step with its name."""

    def __init__(self, job: Job, checkpoint: Checkpoint, at: Callable[[str], None], dice: random.Random, director: Any):
        self.job, self.checkpoint, self.at, self.dice, self.director = job, checkpoint, at, dice, director
        self.planner, self.committer = Process("planner"), Process("committer")
        self.attempts: list[Attempt] = []  # of which some may be at work still, though nobody waits for them
        self.pickled_reader = b""
        self.batch, self.planned = 0, False
        self.available: str | None = None
        self.done: str | None = None

    def start(self) -> None:
        """What `.load()` and `.start()` do: look at the source, read the logs, make the reader."""
        self.at("load")
        with Process("load"):
            self.job.load()
        with self.planner:
            self.reader = self.job.reader()
            self.pickled_reader = pickle.dumps(self.reader)
        last = max(self.checkpoint.offsets, default=None)
        if last is None:
            return
        self.available = self.checkpoint.offsets[last]
        if last in self.checkpoint.commits:
            self.batch, self.done = last + 1, self.available
        else:
            self.batch, self.planned = last, True
            self.done = self.checkpoint.offsets.get(last - 1)

    def available_now(self) -> bool:
        """Trigger.AvailableNow; False where the source has no such thing."""
        with self.planner:
            if isinstance(self.reader.planner.source, Holding):
                return False
            self.reader.prepareForTriggerAvailableNow()
        return True

    def trigger(self) -> bool:
        """One micro-batch; False where there is nothing to do."""
        if not self.planned and not self._construct():
            return False
        self.planned = True
        self.at("partitions")
        with self.planner:
            start = json.loads(self.done) if self.done is not None else _through_json(self.reader.initialOffset())
            parts = self.reader.partitions(start, json.loads(str(self.available)))
        messages = self._stage([pickle.dumps(part) for part in parts])
        self.at("sink commit")
        with self.committer:
            writer = self.job.writer()
            try:
                writer.commit([pickle.loads(message) for message in messages], self.batch)
            except PenstockError:
                writer.abort([pickle.loads(message) for message in messages], self.batch)
                raise
        self.at("commits log")
        self.checkpoint.commits.add(self.batch)
        self.director.committed(self.batch)
        self.done, self.planned = self.available, False
        self.batch += 1
        return True

    def _construct(self) -> bool:
        self.at("latest offset")
        with self.planner:
            start = json.loads(self.available) if self.available is not None else None
            if start is None:
                start = _through_json(self.reader.initialOffset())
            self.available = json.dumps(self.reader.latestOffset(start, self.reader.getDefaultReadLimit()))
            self.reader.reportLatestOffset()
        if self.available == self.done:
            return False
        self.at("offsets log")
        self.checkpoint.offsets[self.batch] = self.available
        if self.batch:
            self.at("source commit")
            with self.planner:
                self.reader.commit(json.loads(self.checkpoint.offsets[self.batch - 1]))
        return True

    def _stage(self, parts: Sequence[bytes]) -> list[bytes]:
        """The tasks of a batch, in any order, some at a time; the messages of those that came to their end."""
        self.at("tasks")
        with self.committer:
            writer = pickle.dumps(self.job.writer())
        most, width = self.dice.choice([1, 2, 4]), self.dice.choice([1, 2, 3])
        # Spark writes one empty partition where there is none to read.
        left = list(enumerate(parts or [pickle.dumps(None)]))
        self.dice.shuffle(left)
        tried: dict[int, int] = {}
        messages: dict[int, bytes] = {}
        self.director.begins(self.batch, parts)
        while left:
            wave, left = left[:width], left[width:]
            running: list[Attempt] = []
            for partition, part in wave:
                number = tried[partition] = tried.get(partition, 0) + 1
                for fate in self.director.fates(last=number == most):
                    attempt = Attempt(self, self.batch, partition, part, writer, len(self.attempts), fate)
                    self.director.note(f"{attempt.name} begins: {fate}")
                    self.attempts.append(attempt)
                    running.append(attempt)
                    attempt.start()
            self.director.during(running)
            self._wait(running)
            for partition, part in wave:
                mine = [each for each in running if each.partition == partition]
                done = next((each for each in mine if each.message is not None), None)
                if done is not None and done.message is not None:
                    messages[partition] = done.message
                    self.director.wrote(self.batch, partition, done.rows)
                    continue
                error = next(each.error for each in mine if each.error is not None)
                self.director.note(f"{mine[0].name} failed: {type(error).__name__}: {error}")
                if tried[partition] >= most:
                    self.director.abandons(running)
                    with self.committer:
                        self.job.writer().abort([pickle.loads(message) for message in messages.values()], self.batch)
                    raise error if isinstance(error, Exception) else Crash("an executor was lost once too often")
                self.director.retried(error)
                left.append((partition, part))
        return [messages[partition] for partition in sorted(messages)]

    def _wait(self, running: Sequence[Attempt]) -> None:
        """Until each task has an attempt that did it, or none that is at work. A twin that is left over has its input
        cut off, and is at work until it notices.
        """
        deadline = time.monotonic() + LONGEST_STEP
        left = list(running)
        while left:
            if time.monotonic() > deadline:
                raise Hang(f"{left[0].name} is at work for {LONGEST_STEP:g}s")
            left[0].join(0.002)
            done = {each.partition for each in running if each.message is not None}
            for each in left:
                if each.is_alive() and each.partition in done:
                    each.cut.set()
            left = [each for each in left if each.is_alive() and each.partition not in done]

    def end(self, *, kill: bool) -> None:
        """The run is over. What was at work may go on for a while, unless it is killed."""
        if kill:
            for attempt in self.attempts:
                attempt.kill()
        self.planner.kill()
        self.committer.kill()


def _through_json(position: Any) -> Any:
    return json.loads(json.dumps(position))
