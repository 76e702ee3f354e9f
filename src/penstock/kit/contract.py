"""What a connector must offer, and the options that all sources or all sinks share. Knows no Spark and no server."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from penstock.errors import ConnectError, PenstockError, ProtocolError
from penstock.planning.positions import Bounds, Offsets, Range


class Guarantee(StrEnum):
    """How far a promise goes. One that holds for one attempt at a time may be broken where Spark runs two attempts of a
    task at once.
    """

    NO = "no"
    ONE_ATTEMPT = "one attempt at a time"
    YES = "yes"


class Source(Protocol):
    """One log, or several, read by position. Opened after the fork, used by one thread, never pickled.

    What the driver asks may raise Disconnected: the planner asks again for as long as the options allow. `read` goes on
    by itself behind the last row that it gave.
    """

    def check(self) -> None:
        """Refuse what is not there or cannot be read, without taking anything: the user waits for `.load()`. Driver."""

    def bounds(self) -> Bounds:
        """Both ends of every shard, in one look. Driver."""

    def find(self, shard: str, timestamp: int) -> int:
        """The position of the first record not older than `timestamp` (microseconds), or the head. Driver."""

    def count(self, shard: str, positions: Sequence[int]) -> Sequence[int] | None:
        """How many rows lie at or after each position; None where positions count well enough. Driver."""

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        """The rows of a range, the same ones each time; returns only when all of them were seen. Executor."""

    def progress(self, at: Offsets) -> None:
        """The query stands at `at`: show it where the system's own tools look, which is never fatal, and make sure that
        what is behind it is kept for the query, which may be. Driver, before each batch.
        """

    def commit(self, end: Offsets) -> None:
        """Spark will never ask for rows before `end` again. Housekeeping: may come late, or never. Driver."""

    def close(self) -> None:
        """Let go of connections."""


# Spark names queries by UUIDs, which do not begin so.
_SINGLE = "write-"


class Origin(NamedTuple):
    """Who writes: equal in every retry and every replay of the same task, and in no other."""

    query: str
    batch: int
    partition: int

    @classmethod
    def single(cls) -> str:
        """A new name in place of a query's, for one `df.write`."""
        return f"{_SINGLE}{uuid.uuid4()}"

    @property
    def is_single(self) -> bool:
        """Whether this is of one `df.write`: nobody asks for it again once that is over."""
        return self.query.startswith(_SINGLE)

    @property
    def may_be_first(self) -> bool:
        """Whether nothing may have been written before it: a source of ours begins a query with an empty batch."""
        return self.batch <= 1

    def __str__(self) -> str:
        return f"partition {self.partition} of batch {self.batch}"

    @property
    def id(self) -> str:
        """The first part of every row's own name; the number of the row follows."""
        return f"{self.query}/{self.batch}/{self.partition}/"

    def differs(self, how: str, otherwise: str = "") -> ProtocolError:
        """The error for a replay with other rows than the first time."""
        return ProtocolError(
            f"{self} was written before with other rows: {how}. A query must give the same rows for the same input to "
            "be written exactly once: take out what differs from run to run (rand, now, unordered limits), or "
            f"{otherwise}set delivery=at_least_once."
        )

    def overtaken(self, batch: int) -> ConnectError:
        """The error for an attempt that is long over: a later batch of its query is there."""
        return ConnectError(
            f"{self} is being written, but there are rows of batch {batch} already: another run of this query has "
            "overtaken it. Stop one of the two."
        )


class Spans(dict[str, tuple[int, int]]):
    """Where rows were written: of each stream the first and the last position, inclusive."""

    def widen(self, stream: str, first: int, last: int) -> None:
        """Rows were written there, too."""
        low, high = self.get(stream, (first, last))
        self[stream] = (min(low, first), max(high, last))

    def explain(self, error: PenstockError, *, known_again: bool) -> None:
        """Say in an error what was written before it."""
        if self:
            places = ", ".join(f"'{stream}' up to {last}" for stream, (_, last) in sorted(self.items()))
            known = "; they are known again when it is retried" if known_again else ""
            error.add(f"Before that, rows of this task were written to {places}{known}.")


@dataclass(frozen=True)
class Receipt:
    """What a task wrote, or found written: rows, their bytes, and where in which stream (first and last, inclusive)."""

    origin: Origin
    rows: int
    size: int = 0
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    known: int = 0  # of these rows, how many were there already
    packed: bytes | None = field(default=None, repr=False)  # rows that the driver is to write

    def __str__(self) -> str:
        places = ", ".join(f"{stream} {first} to {last}" for stream, (first, last) in sorted(self.spans.items()))
        known = f", {self.known:,} of them there already" if self.known else ""
        return f"{self.origin} wrote {self.rows:,} rows{known}" + (f" ({places})" if places else "")


class Sink(Protocol):
    """Where rows go. Opened after the fork, used by one thread, never pickled."""

    def check(self) -> None:
        """Reach the server, without waiting for one that is away."""

    def write(self, batches: Iterator[pa.RecordBatch], origin: Origin) -> Receipt:
        """Write rows that the same origin may have written before, in part or whole. Executor."""

    def commit(self, receipts: Sequence[Receipt], batch: int | None) -> None:
        """All tasks of a batch are done. `batch` is None for `df.write`, which is never replayed.

        May come twice for one batch, also after a Disconnected. Driver, in another process than `write`.
        """

    def close(self) -> None:
        """Let go of connections."""


@runtime_checkable
class Marking(Protocol):
    """A source whose numbers may begin anew within one life of a shard: a purge that counts from the start again, a
    server that lost what it had in memory. What tells one record from another is kept beside each position.
    """

    def marks(self, at: Offsets) -> Mapping[str, str]:
        """A mark of the record before each position, such as its time; none where that record is gone. If a
        position has a mark and the source knows that it still holds, it may return it without a question. Driver.
        """


@runtime_checkable
class Emptying(Protocol):
    """A source with logs that are emptied as they are read. Once all before a position is deleted, one where no record
    is would look as if those behind it had been deleted unread.
    """

    def skip_gaps(self, at: Offsets) -> Offsets:
        """Positions before the end of their shards, each moved to the next record or the end. Driver, after a look."""


@runtime_checkable
class Beginning(Protocol):
    """A sink that looks for rows of earlier attempts. Each `df.write` has a new name, so that all of its rows lie after
    the place where a log ended when the write began: only what is behind that is looked through.
    """

    def ends(self) -> Offsets:
        """Where each log that is written to ends now; one that is not there yet is left out. Driver, at planning."""

    def begin(self, ends: Offsets) -> None:
        """The `ends` of the write whose rows come now, or are committed. Before `write` and `commit`."""


@runtime_checkable
class Weighing(Protocol):
    """A source whose system tells no sizes of records: it must look at some of them, where the query stands."""

    def weigh(self, at: Offsets, bounds: Bounds, limit: int) -> Bounds:
        """The bounds with the average size of the records from `at` on that make about `limit` bytes. Driver."""


@runtime_checkable
class Resuming(Protocol):
    """A source that treats a new query otherwise than one that goes on."""

    def begin(self) -> None:
        """A new query or a batch read: refuse what makes no sense for one. Driver, after a look."""

    def resume(self, at: Offsets, notes: Mapping[str, str]) -> None:
        """A run goes on at `at`, from a checkpoint with these notes. Driver; there may have been a look before."""

    def notes(self) -> Mapping[str, str]:
        """What the next run must know of a shard besides its position. Driver, after `progress`."""


@runtime_checkable
class Gathering(Protocol):
    """A source that reads several short ranges better together than one after the other."""

    def read_many(self, spans: Sequence[Range]) -> Iterator[pa.RecordBatch]:
        """The rows of the ranges, the same ones each time. Executor."""


@runtime_checkable
class Holding(Protocol):
    """A source that cannot be asked twice, and holds rows itself from their arrival until Spark has committed them.

    Its rows travel inside the partitions. A batch that fails is served again as long as the query runs.
    """

    def ship(self, span: Range) -> list[pa.RecordBatch]:
        """The rows of a range, as far as they are held. Driver."""


class Predicate(NamedTuple):
    """A condition on a column that Spark will check again by itself: a source may use it to read less."""

    column: str
    test: Literal["=", "<", "<=", ">", ">=", "in", "startswith"]
    value: Any
