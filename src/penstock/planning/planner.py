"""Where a batch starts and ends, and what its tasks read. Asks a Source; knows no Spark.

Whatever is decided here travels in the end position of the batch, so that a replay decides nothing anew.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from penstock.errors import OptionError
from penstock.kit.contract import Branching, Emptying, Marking, Resuming, Source, Sparse, Weighing
from penstock.kit.loss import LossReport
from penstock.options import ReadOptions
from penstock.planning.behind import Behind
from penstock.planning.checkpoint import Checkpoint
from penstock.planning.cuts import Tally, cut, rows_per_task
from penstock.planning.positions import (
    Bound,
    Bounds,
    Loss,
    Offsets,
    Position,
    Range,
    advance,
    lost,
    settle,
    share,
)

T = TypeVar("T")

# Spark asks for the latest offset every 12 ms while idle. A look is a request to the server for each shard: at most 20
# looks a second, and a twentieth of the time, but at least one every two seconds, or new records would wait.
LOOK_EVERY = 0.05
LOOK_SHARE = 20
LOOK_AT_LEAST = 2.0


class Planner:
    """Plans the batches of one run of a query. Owns no position: positions are arguments, or come from the source."""

    def __init__(
        self, source: Source, options: ReadOptions, default_start: str, clock: Callable[[], float] = time.monotonic
    ):
        self.source, self.options, self.default_start, self.clock = source, options, default_start, clock
        self.losses = LossReport(options)
        self._bounds: Bounds = {}  # of the last look
        self._target: Bounds | None = None  # where AvailableNow stops
        self._look_at = float("-inf")  # when the next look is due
        self._initial: Offsets | None = None
        self._resumed = False
        self._goes_on = True  # this run goes on from a checkpoint, as far as is known, and has planned nothing yet
        self._shown: Offsets | None = None  # the last positions that the source was told of
        self._planned: Offsets = {}  # the end of the last batch
        self._behind = Behind(source)
        self._counted: tuple[Bounds, Offsets, int] | None = None  # rows between positions and bounds
        self._waiting: float | None = None  # since when a batch waits for minRecordsPerTrigger
        self._compared: tuple[Bounds, Offsets, list[str]] | None = None  # shards whose marks have changed

    def look(self, now: bool = False) -> Bounds:
        """Both ends of every shard: as they are `now`, or as they were at the last look, up to two seconds ago."""
        if now or self.clock() >= self._look_at:
            self._bounds = self._ask(self._look)
        return self._bounds

    def _look(self) -> Bounds:
        began = self.clock()  # here, so that waiting for a server that is away does not count as looking
        bounds = self.source.bounds()
        took = self.clock() - began
        self._look_at = began + took + min(LOOK_AT_LEAST, max(LOOK_EVERY, took * LOOK_SHARE))
        return bounds

    def _ask(self, question: Callable[[], T]) -> T:
        """The answer of the source. Asked again while its servers are away, for as long as the options allow."""
        return self.options.retry("planning").run(question)

    def freeze(self) -> None:
        """Plan nothing behind where shards end now: AvailableNow reads what is stored at its start."""
        self._target = self.look(now=True)

    def initial(self) -> dict[str, Any]:
        """Where a new query starts. The same answer each time: Spark asks twice, and would skip rows in between."""
        if self._initial is None:
            bounds = self.look(now=True)
            self._initial = self._past_gaps(self._marked(self._start(bounds)), bounds)
            self._goes_on = False
        return Checkpoint(self._initial, fresh=True).encode()

    def next(self, start: Mapping[str, Any], max_rows: int | None) -> dict[str, Any]:
        """The end of the next micro-batch; `start` itself where there is nothing to do."""
        before = Checkpoint.decode(start)
        end = self._next(before, max_rows)
        if isinstance(self.source, Marking) and not end.fresh and _lacks_marks(before, end):
            # A record has vanished since the last look. Perhaps all of them have: a new look shows that.
            self.look(now=True)
            end = self._next(before, max_rows, may_hold=False)
        self._planned = end.positions
        return dict(start) if end is before else end.encode()

    def _next(self, start: Checkpoint, max_rows: int | None, *, may_hold: bool = True) -> Checkpoint:
        at = start.positions
        bounds = self._resume(start)
        if at != self._shown:
            self._ask(lambda: self.source.progress(at))
            self._shown = at
            self._release(at)
        if start.fresh:
            if any(bound.queue for bound in bounds.values()):
                # Records of a queue that others took before the query held it were never meant for the query.
                queues = {shard: bound for shard, bound in self.look(now=True).items() if bound.queue}
                at = at | settle({shard: at[shard] for shard in queues if shard in at}, queues)
            # An empty first batch writes the start into Spark's log. Without it, a query that crashes before its first
            # commit would start at 'latest' once more, behind rows that it never read.
            return Checkpoint(at, notes=self._notes(at))
        settled = self._settle(at, bounds)
        if self._target is not None:
            bounds = {
                s: b._replace(next=min(b.next, self._target[s].next)) for s, b in bounds.items() if s in self._target
            }
        elif may_hold and self._hold(settled, bounds):
            return start
        if isinstance(self.source, Branching):
            bounds = self.source.in_order(settled, bounds)
        end = self._plan(settled, bounds, max_rows, self.options.max_bytes_per_trigger)
        positions = self._past_gaps(self._marked(end.positions), bounds)
        notes = self._notes(positions)
        if positions == at and not self._must_note(start.notes, notes):
            return start
        moved = {s: p.next for s, p in settled.items() if p.next != at[s].next or _new_life(at[s], p)}
        return replace(end, positions=positions, begins=moved, notes=notes)

    def _resume(self, start: Checkpoint) -> Bounds:
        """Both ends of every shard. At first, a Resuming source is told where this run goes on."""
        source = self.source
        if self._resumed or start.fresh or not isinstance(source, Resuming):
            self._resumed = True
            return self.look()
        self._ask(lambda: source.resume(start.positions, start.notes))
        self._resumed = True
        bounds = self.look(now=True)
        if self._target is not None:
            self._target = {shard: bounds[shard] for shard in start.positions if shard in bounds} | self._target
        return bounds

    def _release(self, at: Offsets) -> None:
        """Release the last batch of the run before. Spark commits a batch only when it plans the next one, so a queue
        that is quiet would keep that batch.

        A batch that this run replays is left to Spark's own commit: with asynchronous progress tracking, it may not be
        in Spark's log yet.
        """
        if self._goes_on and isinstance(self.source, Emptying):
            self.source.commit(at)
        self._goes_on = False

    def _must_note(self, notes: Mapping[str, str], new: Mapping[str, str]) -> bool:
        """Whether a batch without rows is due, to note how far the query has read though nothing has come."""
        return isinstance(self.source, Sparse) and self.source.is_outdated(notes, new)

    def _notes(self, at: Offsets) -> Mapping[str, str]:
        return self.source.notes(at) if isinstance(self.source, Resuming) else {}

    def head(self) -> dict[str, Any]:
        """Where all shards end, for Spark's progress events; nothing where the distance tells nothing."""
        if isinstance(self.source, Sparse):
            return Checkpoint({}).encode()
        return Checkpoint({shard: Position(bound.next, bound.epoch) for shard, bound in self.look().items()}).encode()

    def lag(self) -> dict[str, int]:
        """How far the end of the last planned batch is behind, over all shards: see `Behind`."""
        return self._behind.figures(self._planned, {} if isinstance(self.source, Sparse) else self.look())

    def tasks(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[tuple[Range, ...]]:
        """What each task reads between two checkpoints. Asks no server."""
        self._goes_on = False
        stop = Checkpoint.decode(end)
        self._planned = stop.positions
        return Checkpoint.decode(start).tasks_until(stop)

    def once(self, window: Callable[[str, Bound], tuple[int, int]]) -> list[tuple[Range, ...]]:
        """The tasks of a batch read. Of each shard, only what lies in its `window`."""
        bounds = self.look(now=True)
        start, end = self._settle(self._start(bounds), bounds), self._end(bounds)
        windows = {shard: window(shard, bound) for shard, bound in bounds.items()}
        start = {s: Position(max(p.next, windows[s][0]), p.epoch) for s, p in start.items()}
        end = {s: b._replace(next=min(b.next, windows[s][1])) for s, b in end.items()}
        planned = Checkpoint(start).tasks_until(self._plan(start, end, self.options.max_records))
        return [tuple(replace(span, marked=0) for span in spans) for spans in planned]

    def _start(self, bounds: Bounds) -> Offsets:
        source = self.source
        if isinstance(source, Resuming):
            self._ask(source.begin)
        at = self.options.starting_timestamp
        if at is not None:
            return {s: Position(min(self.find(s, at), b.next), b.epoch) for s, b in bounds.items()}
        offsets = self.options.starting_offsets
        if isinstance(offsets, dict):
            _check_named(offsets, bounds, "startingOffsets")
            return {s: Position(offsets.get(s, b.first), b.epoch) for s, b in bounds.items()}
        starts = {s: offsets or ("earliest" if b.queue else self.default_start) for s, b in bounds.items()}
        return {s: Position(b.first if starts[s] == "earliest" else b.next, b.epoch) for s, b in bounds.items()}

    def _end(self, bounds: Bounds) -> Bounds:
        at, end = self.options.ending_timestamp, self.options.ending_offsets
        stops: Mapping[str, int] = {}
        if at is not None:
            stops = {shard: self.find(shard, at) for shard in bounds}
        elif isinstance(end, dict):
            _check_named(end, bounds, "endingOffsets")
            stops = end
        return {s: b._replace(next=min(b.next, stops.get(s, b.next))) for s, b in bounds.items()}

    def find(self, shard: str, timestamp: int) -> int:
        """The position of the first record not older than `timestamp`."""
        return self._ask(lambda: self.source.find(shard, timestamp))

    def _past_gaps(self, at: Offsets, bounds: Bounds) -> Offsets:
        """The positions. Those in queues are moved out of gaps, to the next record or the end."""
        inside = {s: p for s, p in at.items() if s in bounds and bounds[s].queue and p.next < bounds[s].next}
        source = self.source
        if not inside or not isinstance(source, Emptying):
            return at
        return at | self._ask(lambda: source.skip_gaps(inside))

    def _marked(self, at: Offsets) -> Offsets:
        """The positions with their marks, where the source has any."""
        bare = {shard: position for shard, position in at.items() if not position.mark}
        source = self.source
        if not isinstance(source, Marking) or not bare:
            return at
        marks = self._ask(lambda: source.marks(bare))
        return at | {shard: position._replace(mark=marks.get(shard, "")) for shard, position in bare.items()}

    def _renumbered(self, at: Offsets, bounds: Bounds) -> list[str]:
        """The shards with new records where another record has the number of the last one that was read."""
        source = self.source
        marked = {
            shard: position
            for shard, position in at.items()
            if position.mark and shard in bounds and bounds[shard].first < position.next < bounds[shard].next
        }
        if not isinstance(source, Marking) or not marked:
            return []
        if self._compared is None or self._compared[0] is not bounds or self._compared[1] != at:
            now = self._ask(lambda: source.marks(marked))
            changed = [shard for shard in sorted(marked) if now.get(shard, marked[shard].mark) != marked[shard].mark]
            self._compared = (bounds, at, changed)
        return self._compared[2]

    def missing(self, at: Offsets, bounds: Bounds) -> list[Loss]:
        """What can no longer be read from `at` on, without reporting it."""
        losses = lost(at, bounds)
        recreated = {loss.shard for loss in losses}
        renumbered = [shard for shard in self._renumbered(at, bounds) if shard not in recreated]
        return losses + [Loss(shard, at[shard].next, bounds[shard], "renumbered") for shard in renumbered]

    def _settle(self, at: Offsets, bounds: Bounds) -> Offsets:
        """Report what is lost, and move positions to where reading can go on."""
        losses = self.missing(at, bounds)
        self.losses.lost(losses)
        return settle(at, bounds, [loss.shard for loss in losses if loss.kind == "renumbered"])

    def _hold(self, at: Offsets, bounds: Bounds) -> bool:
        """Whether the batch waits for `minRecordsPerTrigger` rows, which takes at most `maxTriggerDelay`."""
        wanted = self.options.min_records_per_trigger
        if wanted is None:
            return False
        spans = [Range(s, at[s].next, b.next) for s, b in bounds.items() if s in at]
        ahead = sum(span.length for span in spans)
        if ahead >= wanted:
            if self._counted is None or self._counted[0] is not bounds or self._counted[1] != at:
                self._counted = (bounds, at, sum(self._rows(span) for span in spans))
            ahead = self._counted[2]
        since = self.clock() if self._waiting is None else self._waiting
        if not ahead or ahead >= wanted or self.clock() - since >= self.options.max_trigger_delay:
            self._waiting = None
            return False
        self._waiting = since
        return True

    def _rows(self, span: Range) -> int:
        counted = self._counts(span.shard, [span.start, span.end]) if span.length else None
        return counted[0] - counted[1] if counted else span.length

    def _counts(self, shard: str, positions: Sequence[int]) -> Sequence[int] | None:
        return self._ask(lambda: self.source.count(shard, positions))

    def _plan(
        self, start: Offsets, bounds: Bounds, max_rows: int | None, max_bytes: int | None = None, counting: bool = True
    ) -> Checkpoint:
        """The end of a batch, and how it is cut into tasks: by rows if the source can count them, or by positions."""
        source = self.source
        if isinstance(source, Sparse):
            held = self._ask(partial(source.limit, start, bounds, max_rows, max_bytes))
            end = advance(start, held)
            return Checkpoint(end, per_task=1, cuts={s: [] for s in start if s in end and end[s].next > start[s].next})
        end = advance(start, bounds)
        spans = {s: Range(s, start[s].next, end[s].next) for s in start if end[s].next > start[s].next}
        if max_bytes is not None and spans and isinstance(source, Weighing):
            bounds = self._ask(partial(source.weigh, start, bounds, max_bytes))
        limit = _rows_allowed(max_bytes, bounds, max_rows)
        most, at_least = self.options.max_records_per_partition, self.options.min_partitions or 1
        ahead = sum(span.length for span in spans.values())
        counting = counting and (ahead > most or at_least > 1 or (limit is not None and ahead > limit))
        counted = {s: self._counts(s, [span.start, span.end]) if counting else None for s, span in spans.items()}
        rows = {s: c[0] - c[1] if (c := counted[s]) else span.length for s, span in spans.items()}
        tallies = {s: Tally(partial(self._count, s), spans[s], rows[s]) for s in sorted(spans) if counted[s]}
        try:
            if limit is not None and sum(rows.values()) > limit:
                shares = share(rows, limit)
                lengths = {s: span.length if shares[s] == rows[s] else shares[s] for s, span in spans.items()}
                for shard, tally in tallies.items():
                    if shares[shard] < rows[shard]:
                        lengths[shard] = tally.locate([shares[shard]])[0] - spans[shard].start
                end, rows = advance(start, bounds, lengths), shares
            size = rows_per_task(rows, most, at_least)
            cuts = {shard: cut(tally, end[shard].next, rows[shard], size, most) for shard, tally in tallies.items()}
        except _UncountableError:
            return self._plan(start, bounds, max_rows, max_bytes, counting=False)
        return Checkpoint(end, per_task=size, cuts=cuts)

    def _count(self, shard: str, positions: Sequence[int]) -> Sequence[int]:
        counted = self._counts(shard, positions)
        if counted is None:
            raise _UncountableError
        return counted


class _UncountableError(Exception):
    """A source that could count rows a moment ago no longer can: the batch is cut by positions."""


def _lacks_marks(before: Checkpoint, end: Checkpoint) -> bool:
    """Whether a position has moved and has no mark: the record before it is gone."""
    at = before.positions
    return any(not p.mark and s in at and p.next != at[s].next for s, p in end.positions.items())


def _new_life(before: Position, after: Position) -> bool:
    """Whether the shard was deleted and made again in between."""
    return bool(before.epoch) and before.epoch != after.epoch


def _rows_allowed(max_bytes: int | None, bounds: Bounds, max_rows: int | None) -> int | None:
    """The most rows of a batch; None without a limit. Bytes count as rows of the largest average size."""
    limits = [max_rows] if max_rows is not None else []
    if max_bytes is not None:
        largest = max((b.row_bytes for b in bounds.values()), default=0.0)
        limits.append(max(1, int(max_bytes / max(largest, 1.0))))
    return min(limits, default=None)


def _check_named(offsets: Mapping[str, int], bounds: Mapping[str, Bound], name: str) -> None:
    """Refuse offsets of shards that are not read, and starts behind the end of a shard."""
    for shard, position in sorted(offsets.items()):
        if shard not in bounds:
            raise OptionError(f"{name} names '{shard}', which is not read here. It reads: {', '.join(sorted(bounds))}.")
        if name == "startingOffsets" and position > bounds[shard].next:
            raise OptionError(f"{name} puts '{shard}' at {position}, but its next record will be {bounds[shard].next}.")
