"""What must be there in the end: which records were published, which were taken away by whom before they were read, and
what the options promise. Pure: knows no server and no Spark.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import DataLossError, PenstockError

Headers = tuple[tuple[str, bytes], ...]


@dataclass
class Record:
    """Something that was published, and where it stood."""

    number: int
    key: str
    body: bytes
    headers: Headers
    shard: str = ""
    life: int = 0  # which life of its shard
    position: int = 0
    asked: bool = True  # whether the query's options cover it
    gone: str = ""  # what took it away before the query had to have it
    silent: bool = False  # whether it may be left out without a word, as the documentation says
    excuse: str = ""  # why it may be left out where failOnDataLoss=false, though it is there


@dataclass(frozen=True)
class Row:
    """Something that the query wrote, as the target has it."""

    number: int
    key: str
    body: bytes
    headers: Headers | None = None  # None: the target keeps none
    place: str = ""  # within one place rows have an order
    life: int = 0  # of the target: what was written to one that is no more does not count for the next


@dataclass
class Cause:
    """An event of a round that may stop the query: with which errors, and whether it can go on when that is mended."""

    name: str
    fits: Sequence[tuple[type[PenstockError], str]]
    final: bool = True
    mend: Callable[[], None] | None = None

    def explains(self, error: PenstockError) -> bool:
        # Loss is explained by what takes records away, and by nothing that only sounds like it.
        fits = [fit for fit in self.fits if not isinstance(error, DataLossError) or fit[0] is DataLossError]
        return any(isinstance(error, kind) and re.search(text, str(error), re.I | re.S) for kind, text in fits)


@dataclass
class Promise:
    """What a pair of connectors promises for each row."""

    all: bool = True  # none is lost
    once: bool = True  # none is there twice
    ordered: bool = True  # those of one task are in order


@dataclass
class Model:
    """Everything that happened so far, as far as it matters for what must be there."""

    fail_on_loss: bool = True
    records: dict[int, Record] = field(default_factory=dict)
    causes: list[Cause] = field(default_factory=list)
    epochs: dict[str, list[str]] = field(default_factory=dict)  # the lives of each shard, by the name that it has
    start: dict[str, Any] | None = None  # where the query began: the first position in its log
    from_earliest: bool = True
    tasks: dict[tuple[int, int], list[int]] = field(default_factory=dict)  # the rows of each task, in order
    may_repeat: set[int] = field(default_factory=set)  # rows of batches 0 and 1 whose traces were deleted

    def live(self, shard: str) -> list[Record]:
        """What a shard holds now."""
        return [r for r in self.records.values() if r.shard == shard and not r.gone]

    def born(self, shard: str, epoch: str) -> None:
        """A shard was made, or made again: whatever it had is no more."""
        self.epochs.setdefault(shard, []).append(epoch)

    def take(self, records: Iterable[Record], why: str, *, silent: bool = False) -> list[Record]:
        """An operator removes records. If the query has read them before, they are in its output all the same."""
        taken = [record for record in records if not record.gone]
        for record in taken:
            # What is taken away before the query has begun was never its to read.
            record.gone, record.silent = why, record.silent or silent or self.start is None
        return taken

    def unread(self, records: Iterable[Record], at: Mapping[str, Any] | None) -> list[Record]:
        """Those that a query which stands `at` has not behind it."""
        return [record for record in records if not self._behind(record, at)]

    def explain(self, error: PenstockError) -> Cause | None:
        """The event of this round that the error is about."""
        if isinstance(error, DataLossError) and not self.fail_on_loss:
            return None
        return next((cause for cause in reversed(self.causes) if cause.explains(error)), None)

    def judge(self, rows: Sequence[Row], promise: Promise, at: Mapping[str, Any] | None, *, well: bool) -> list[str]:
        """What is wrong with the output of a query that stands `at`, and came to its end or was stopped by an error."""
        found = Counter(row.number for row in rows)
        wrong = [self._strange(row) for row in rows]
        complaints = [text for text in wrong if text][:3]
        twice = sorted({n for (n, _), count in Counter((row.number, row.life) for row in rows).items() if count > 1})
        twice = [number for number in twice if number not in self.may_repeat]
        if promise.once and twice:
            complaints.append(f"{len(twice)} rows are there more than once: {_some(twice)}")
        needed = [r for r in self.records.values() if r.asked and self.begun(r) and not found[r.number]]
        if promise.all:
            missing = [r for r in needed if well or self._behind(r, at)]
            lost = [r.number for r in missing if not r.gone and not r.silent and (self.fail_on_loss or not r.excuse)]
            if lost:
                complaints.append(f"{len(lost)} rows are missing, and nobody took them away: {_some(lost)}")
            if self.fail_on_loss:
                quiet = [f"{r.number} ({r.gone})" for r in missing if r.gone and not r.silent]
                if quiet:
                    complaints.append(f"{len(quiet)} rows were lost without a word: {_some(quiet)}")
        if promise.ordered:
            complaints += self._disorder(rows)
        return complaints

    def _strange(self, row: Row) -> str | None:
        record = self.records.get(row.number)
        if record is None or not record.asked:
            return f"row {row.number} ({row.body[:40]!r} at {row.key!r}) is nothing that the query was to read"
        headers = record.headers if row.headers is None else row.headers
        if (row.key, row.body, headers) != (record.key, record.body, record.headers):
            was, now = (record.key, record.body[:60], record.headers), (row.key, row.body[:60], headers)
            return f"row {row.number} was {was}, and is {now}"
        return None

    def begun(self, record: Record) -> bool:
        """Whether the query, which has begun at a place that its log knows, has this record before it."""
        if self.start is None:
            return False
        if (self.from_earliest and not record.gone) or record.shard not in self.start["next"]:
            return True
        life = self._life(record.shard, self.start)
        return record.life > life or (record.life == life and record.position >= self.start["next"][record.shard])

    def _behind(self, record: Record, at: Mapping[str, Any] | None) -> bool:
        if at is None or record.shard not in at["next"]:
            return False
        life = self._life(record.shard, at)
        return record.life < life or (record.life == life and record.position < at["next"][record.shard])

    def _life(self, shard: str, at: Mapping[str, Any]) -> int:
        """Which life of a shard a position is in. Where epochs do not tell, the first that it can be."""
        epoch, lives = at["epochs"].get(shard), self.epochs[shard]
        return 0 if epoch is None else lives.index(epoch)

    def _disorder(self, rows: Sequence[Row]) -> list[str]:
        rows = [row for row in rows if row.place]  # of what was lost nobody knows where it stood
        order: dict[tuple[str, int], int] = {}
        for i, row in enumerate(rows):
            order.setdefault((row.place, row.number), i)
        places = {row.place for row in rows}
        complaints = []
        for task, numbers in self.tasks.items():
            for place in places:
                seen = [order[place, number] for number in numbers if (place, number) in order]
                if seen != sorted(seen):
                    complaints.append(f"the rows of partition {task[1]} of batch {task[0]} are out of order in {place}")
        return complaints


def _some(things: Sequence[Any]) -> str:
    listed = ", ".join(map(str, things[:8]))
    return f"{listed}, ..." if len(things) > 8 else listed
