"""The contract between a connector and the rest: `Source`, `Sink`, and what special ones add. Knows no Spark and no
server.
"""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from penstock.errors import ConnectError, OptionError, PenstockError, ProtocolError
from penstock.planning.positions import Bounds, Offsets, Range

# Servers' clocks differ a little after a change of leader: microseconds to allow for in what is told by time.
CLOCK_SLACK = 60_000_000


class Guarantee(StrEnum):
    """How far a promise goes. ONE_ATTEMPT: it may be broken where Spark runs two attempts of a task at once."""

    NO = "no"
    ONE_ATTEMPT = "one attempt at a time"
    YES = "yes"


class Source(Protocol):
    """One log, or several, read by position. Opened after the fork, used by one thread, never pickled.

    Methods that the driver calls may raise Disconnected: the planner calls them again for as long as the options allow.
    `read` handles a lost connection itself, and goes on behind the last row that it gave.
    """

    def check(self) -> None:
        """Refuse streams that do not exist or cannot be read. Quick and without effects, as `.load()` waits. Driver."""

    def bounds(self) -> Bounds:
        """Both ends of every shard. Driver."""

    def find(self, shard: str, timestamp: int) -> int:
        """The position of the first record not older than `timestamp` (microseconds), or the head. Driver."""

    def count(self, shard: str, positions: Sequence[int]) -> Sequence[int] | None:
        """How many rows lie at or after each position; None where positions have few gaps. Driver."""

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        """The rows of a range, the same ones each time. Ends only after the last of them. Executor."""

    def progress(self, at: Offsets) -> None:
        """The query stands at `at`. Show that in the system's own tools; a failure of this is not an error. Make sure
        that records from `at` on are kept for the query; a failure of this may be one. Driver, before each batch.
        """

    def commit(self, end: Offsets) -> None:
        """Spark will never ask for rows before `end` again. Housekeeping: may come late, or never. Driver."""

    def close(self) -> None:
        """Let go of connections."""


# Begins the name of a `df.write`. Spark names queries by UUIDs, which never begin so.
_SINGLE = "write-"


class Origin(NamedTuple):
    """Which task writes. Equal in every retry and every replay of the task, and in no other task."""

    query: str
    batch: int
    partition: int

    @classmethod
    def single(cls) -> str:
        """A new name for one `df.write`, in place of the id of a query."""
        return f"{_SINGLE}{uuid.uuid4()}"

    @property
    def is_single(self) -> bool:
        """Whether this is a task of a `df.write` without `txnAppId`, which is never replayed."""
        return self.query.startswith(_SINGLE)

    @property
    def may_be_first(self) -> bool:
        """Whether the query may have written nothing before. Batch 1 too, as our sources begin with an empty batch."""
        return self.batch <= 1

    def __str__(self) -> str:
        return f"partition {self.partition} of batch {self.batch}"

    @property
    def id(self) -> str:
        """The id of a row without the number of the row, which follows."""
        return f"{self.query}/{self.batch}/{self.partition}/"

    @property
    def rules(self) -> str:
        """What to add to an error about what was written before; empty for a query, whose batches Spark numbers."""
        return ""

    def differs(self, how: str, otherwise: str = "") -> ProtocolError:
        """The error for a replay with other rows than the first time."""
        return ProtocolError(
            f"{self} was written before with other rows: {how}. A query must give the same rows for the same input to "
            "be written exactly once: take out what differs from run to run (rand, now, unordered limits), or "
            f"{otherwise}set delivery=at_least_once.{self.rules}"
        )

    def moved(self, partitions: Iterable[int], otherwise: str = "") -> ProtocolError:
        """The error for a batch where these partitions had rows before and have none now."""
        how = "it had rows then and has none now. They came in another partition, and may be there twice"
        return self._replace(partition=min(partitions)).differs(how, otherwise)

    def cannot_write(self, row: int, why: str) -> OptionError:
        """The error for a row that cannot be written, by its number in the task."""
        return OptionError(f"row {row} of {self} {why}.")

    def overtaken(self, batch: int) -> ConnectError:
        """The error for an attempt that was replaced long ago: its query has written a later batch."""
        return ConnectError(
            f"{self} is being written, but there are rows of batch {batch} already: another run of this query has "
            f"overtaken it. Stop one of the two.{self.rules}"
        )


class Transaction(Origin):
    """A task of a `df.write` that is known again: `txnAppId` is in place of a query, `txnVersion` of its batch."""

    @property
    def is_single(self) -> bool:
        """False, whatever its name: it may be replayed."""
        return False

    @property
    def rules(self) -> str:
        """What the user's numbers must be like. Spark's are so by themselves."""
        return (
            f" Here the query is txnAppId '{self.query}', and the batch is txnVersion {self.batch}. Each write inside "
            "of foreachBatch needs a txnAppId of its own, and new ones with a new checkpoint. Versions count from 0 "
            "and leave none out: write a batch without rows too."
        )


class Spans(dict[str, tuple[int, int]]):
    """Where rows were written: the first and the last position in each stream, inclusive."""

    def widen(self, stream: str, first: int, last: int) -> None:
        """Add rows that were written."""
        low, high = self.get(stream, (first, last))
        self[stream] = (min(low, first), max(high, last))

    def explain(self, error: PenstockError, *, known_again: bool) -> None:
        """Add to an error what was written before it. `known_again`: a retry will not write these rows twice."""
        if self:
            places = ", ".join(f"'{stream}' up to {last}" for stream, (_, last) in sorted(self.items()))
            known = "; they are known again when it is retried" if known_again else ""
            error.add(f"Before that, rows of this task were written to {places}{known}.")


@dataclass(frozen=True)
class Receipt:
    """What a task wrote, or an earlier attempt of it."""

    origin: Origin
    rows: int
    size: int = 0  # in bytes
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # as in Spans
    known: int = 0  # how many of these rows an earlier attempt had written
    packed: bytes | None = field(default=None, repr=False)  # rows that the driver is to write
    digest: str = ""  # tells other rows from these, where the sink keeps it

    def __str__(self) -> str:
        places = ", ".join(f"{stream} {first} to {last}" for stream, (first, last) in sorted(self.spans.items()))
        known = f", {self.known:,} of them there already" if self.known else ""
        return f"{self.origin} wrote {self.rows:,} rows{known}" + (f" ({places})" if places else "")


class Sink(Protocol):
    """Where rows go. Opened after the fork, used by one thread, never pickled."""

    def check(self) -> None:
        """Reach the server. Does not wait for one that is away."""

    def write(self, batches: Iterator[pa.RecordBatch], origin: Origin) -> Receipt:
        """Write rows. An earlier attempt of the same origin may have written some of them, or all. Executor."""

    def commit(self, receipts: Sequence[Receipt], batch: int | None) -> None:
        """All tasks of a batch are done. `batch` is None for a `df.write` without `txnAppId`, which is never replayed.

        May be called twice for one batch, also after a Disconnected. Driver, in another process than `write`.
        """

    def close(self) -> None:
        """Let go of connections."""


@runtime_checkable
class Bounded(Protocol):
    """A sink whose server takes messages up to a size."""

    def most_bytes(self) -> int:
        """The most bytes that a message may have, with its headers. Asks the server."""


@runtime_checkable
class Marking(Protocol):
    """A source where another record may get the number of an old one, without a new epoch: after a purge that resets
    numbers, or on a server that lost what it had in memory. So the checkpoint has a mark beside each position.
    """

    def marks(self, at: Offsets) -> Mapping[str, str]:
        """A mark of the record before each position, such as its time. Left out where that record is gone. A mark that
        is still valid may be returned without asking the server. Driver.
        """


@runtime_checkable
class Emptying(Protocol):
    """A source that deletes records once they are read. A position in a gap would look later as if the records behind
    it had been deleted unread, so positions must not be in gaps.
    """

    def skip_gaps(self, at: Offsets) -> Offsets:
        """Each position moved to the next record, or to the end of its shard. Driver, after `bounds`."""


@runtime_checkable
class Beginning(Protocol):
    """A sink that searches for rows of earlier attempts. A `df.write` without `txnAppId` has a new name, so all of its
    rows lie behind where logs ended when it began, and only these are searched.
    """

    def ends(self) -> Offsets:
        """Where each log that rows may go to ends now. Logs that do not exist are left out. Driver, at planning."""

    def begin(self, ends: Offsets) -> None:
        """The rows to come belong to a `df.write`, before which logs ended at `ends`. Before `write` and `commit`."""


@runtime_checkable
class Weighing(Protocol):
    """A source whose server reports no sizes of records: it estimates them from some of the next records."""

    def weigh(self, at: Offsets, bounds: Bounds, limit: int) -> Bounds:
        """The bounds, with the average size of the next records from `at` on, about `limit` bytes of them. Driver."""


@runtime_checkable
class Sparse(Protocol):
    """A source whose positions do not tell how many records lie between them, as those of Kinesis. A range is read by
    one task.
    """

    def limit(self, at: Offsets, bounds: Bounds, rows: int | None, size: int | None) -> Bounds:
        """The bounds, with ends moved back: at most `rows` records, and about `size` bytes, lie between `at` and them.
        Driver.
        """

    def is_outdated(self, notes: Mapping[str, str], new: Mapping[str, str]) -> bool:
        """Whether notes of the last batch are so old that `new` ones are due, even if there is nothing to read."""

    def behind(self, at: Offsets) -> int:
        """About how many milliseconds ago the oldest record behind `at` was stored; 0 where there is none. Driver."""


@runtime_checkable
class Branching(Protocol):
    """A source whose shards end, and are followed by others."""

    def in_order(self, at: Offsets, bounds: Bounds) -> Bounds:
        """The bounds, without records of shards that follow others which are not read to their end. Driver."""


@runtime_checkable
class Prefetching(Protocol):
    """A source that has to read records on the driver, to know where they end. What is small travels to its task, so
    that it is not read twice.
    """

    def fetched(self, span: Range) -> list[pa.RecordBatch] | None:
        """The rows of a range, the same as `read` gives; None where the driver does not have all of them. Driver."""


@runtime_checkable
class Resuming(Protocol):
    """A source that treats a new query otherwise than one that goes on from a checkpoint."""

    def begin(self) -> None:
        """A new query or a batch read begins: refuse options that make no sense for it. Driver, after `bounds`."""

    def resume(self, at: Offsets, notes: Mapping[str, str]) -> None:
        """A query goes on at `at`, from a checkpoint with these notes. Driver; perhaps after `bounds`."""

    def notes(self, at: Offsets) -> Mapping[str, str]:
        """What the next run must know of each shard besides its position `at`. Driver, after `progress`."""


@runtime_checkable
class Gathering(Protocol):
    """A source that reads several short ranges faster together than one after the other."""

    def read_many(self, spans: Sequence[Range]) -> Iterator[pa.RecordBatch]:
        """The rows of the ranges, the same ones each time. Executor."""


@runtime_checkable
class Holding(Protocol):
    """A source that cannot read a range twice. The driver keeps its rows from their arrival until Spark has committed
    them, and sends them to tasks inside the partitions.

    A batch that fails can be read again for as long as the query runs.
    """

    def ship(self, span: Range) -> list[pa.RecordBatch]:
        """The rows of a range that the driver has. Driver."""


class Predicate(NamedTuple):
    """A condition on a column. A source may use it to read less; Spark checks it again."""

    column: str
    test: Literal["=", "<", "<=", ">", ">=", "in", "startswith"]
    value: Any
