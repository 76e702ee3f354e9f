"""Arithmetic on positions. Knows shards and whole numbers; knows no server, no Spark, no clock.

A position is the next one to read, so every end is exclusive. A stream that is deleted and made again counts from the
start again, and has another epoch.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

# The position behind the last record of a shard that has ended, and gets no others. No record has so large a number.
END = 10**60


class Position(NamedTuple):
    """Where a query stands in one shard. `mark` identifies the record before it, should another get its number."""

    next: int
    epoch: str = ""
    mark: str = ""


class Bound(NamedTuple):
    """The records of a shard: `first` up to `next`, exclusive. `transient`: records vanish by design, consumed or
    compacted. `queue`: records are deleted once a query has read them, so a new query starts with the first.
    """

    first: int
    next: int
    epoch: str = ""
    row_bytes: float = 0.0
    transient: bool = False
    queue: bool = False


Offsets = dict[str, Position]
Bounds = dict[str, Bound]


@dataclass(frozen=True)
class Range:
    """What a task reads of one shard. `marked` is the position where the batch ends, and `mark` its mark; a batch read
    has neither. `note`: what the source noted of the shard where the batch begins.
    """

    shard: str
    start: int
    end: int
    epoch: str = ""
    marked: int = 0
    mark: str = ""
    note: str = ""

    @property
    def length(self) -> int:
        """The number of positions. No `len`, which large numbers would overflow."""
        return max(0, self.end - self.start)


class Loss(NamedTuple):
    """Records that were deleted before the query read them, and how that shows."""

    shard: str
    at: int
    bound: Bound | None
    kind: str  # gone | recreated | renumbered | backwards | trimmed

    @property
    def records(self) -> int:
        """How many positions were lost; 0 where that is unknown."""
        return max(0, self.bound.first - self.at) if self.kind == "trimmed" and self.bound is not None else 0

    @property
    def remedy(self) -> str:
        """What the user can do about it."""
        go_on = "set failOnDataLoss=false to go on "
        return {
            "gone": f"Make or name it again, name another one with a new checkpointLocation, or {go_on}without it.",
            "recreated": f"Start with a new checkpointLocation, or {go_on}from the beginning of the new one.",
            "renumbered": f"Start with a new checkpointLocation, or {go_on}from the first record of what is there now.",
            "backwards": f"Start with a new checkpointLocation, or {go_on}from its end.",
            "trimmed": f"Raise the stream's limits, or {go_on}from the first one left.",
        }[self.kind]

    def __str__(self) -> str:
        if self.bound is None:
            return f"'{self.shard}' is gone, or the options no longer name it; the query stood at {self.at}"
        first, head = self.bound.first, self.bound.next
        if self.kind == "recreated":
            return (
                f"'{self.shard}' was deleted and made again (now {first} to {head - 1}, since {self.bound.epoch}); "
                f"the query stood at {self.at} of the old one, and what was left there is lost"
            )
        if self.kind == "renumbered":
            return (
                f"'{self.shard}' counts anew (now {first} to {head - 1}): its record {self.at - 1} is not the one that "
                "the query read, as after a purge that resets numbers, or a server that lost what it had in memory. "
                f"What was left of the old records is lost, and the new ones before {self.at} would be skipped"
            )
        if self.kind == "backwards":
            return (
                f"'{self.shard}' ends at {head - 1}, but the query already stands at {self.at}: "
                "its numbers went backwards, as after a restore from a backup"
            )
        return (
            f"'{self.shard}' starts at {first}, but the query is at {self.at}: {first - self.at} messages were "
            "deleted unread"
        )


def lost(start: Offsets, bounds: Bounds) -> list[Loss]:
    """What can no longer be read from `start` on. A gap behind the first record kept is not a loss, and nor is a shard
    that was read to its end.
    """
    losses = []
    for shard, position in start.items():
        bound = bounds.get(shard)
        if bound is None:
            if position.next != END:
                losses.append(Loss(shard, position.next, None, "gone"))
        elif position.epoch and bound.epoch and position.epoch != bound.epoch:
            losses.append(Loss(shard, position.next, bound, "recreated"))
        elif bound.next < position.next:
            losses.append(Loss(shard, position.next, bound, "backwards"))
        elif bound.first > position.next and not bound.transient:
            losses.append(Loss(shard, position.next, bound, "trimmed"))
    return losses


def share(ahead: Mapping[str, int], limit: int) -> dict[str, int]:
    """The rows of each shard in a batch of `limit` rows: all rows of small shards, and equal shares of large ones.

    The sum is exact. Every shard gets a row if the limit allows it.
    """
    shares = {}
    for served, (shard, rows) in enumerate(sorted(ahead.items(), key=lambda item: (item[1], item[0]))):
        shares[shard] = min(rows, limit // (len(ahead) - served))
        limit -= shares[shard]
    return shares


def settle(start: Offsets, bounds: Bounds, renumbered: Collection[str] = ()) -> Offsets:
    """`start` moved to where reading can go on: forward to the first record kept, or back to the end of the shard.

    Shards that were made again, or that were `renumbered`, start at their first record. A shard that is not in `bounds`
    keeps its position: without it, a shard that a server forgot for a moment would be read twice.
    """
    moved = {}
    for shard, position in start.items():
        bound = bounds.get(shard)
        if bound is None:
            moved[shard] = position
        elif shard in renumbered or (position.epoch and bound.epoch and position.epoch != bound.epoch):
            moved[shard] = Position(bound.first, bound.epoch)
        elif bound.next < position.next:
            moved[shard] = Position(bound.next, position.epoch)
        else:
            mark = position.mark if position.next >= bound.first else ""
            moved[shard] = Position(max(position.next, bound.first), bound.epoch or position.epoch, mark)
    return moved


def advance(start: Offsets, bounds: Bounds, rows: Mapping[str, int] | None = None) -> Offsets:
    """The end of the next batch: the end of every shard, or `rows` behind `start`. Never moves backwards.

    A shard that is not in `start` gets its first position and is read from the next batch on. So a batch is planned
    from its start and end alone, also when it is replayed. A shard that is gone and was read to its end is forgotten.
    """
    end = {}
    for shard, position in start.items():
        if position.next == END and shard not in bounds:
            continue
        head = bounds[shard].next if shard in bounds else position.next
        stop = head if rows is None else min(head, position.next + rows.get(shard, 0))
        end[shard] = position if stop <= position.next else Position(stop, position.epoch)
    for shard in bounds.keys() - start.keys():
        end[shard] = Position(bounds[shard].first, bounds[shard].epoch)
    return end


def even(span: Range, parts: int) -> list[int]:
    """The positions that cut `span` into `parts` of equal length, give or take one."""
    return [span.start + span.length * part // parts for part in range(1, parts)]


def tasks(
    start: Offsets,
    end: Offsets,
    per_task: int,
    cuts: Mapping[str, Sequence[int]] | None = None,
    begins: Mapping[str, int] | None = None,
    notes: Mapping[str, str] | None = None,
) -> list[tuple[Range, ...]]:
    """What each task of a batch reads: long ranges are cut, short ones share a task.

    The same arguments must give the same tasks in every version, as a replay must hand the same rows to the same
    partition. A shard that is only in `end` has nothing to read yet. `begins`: where reading begins in shards whose
    records before that are gone. `notes`: what the source noted at `start`.
    """
    packed: list[tuple[Range, ...]] = []
    small: list[Range] = []
    for shard in sorted(end):
        if shard not in start:
            continue
        new_life = start[shard].epoch and end[shard].epoch and start[shard].epoch != end[shard].epoch
        begin = (begins or {}).get(shard, 0 if new_life else start[shard].next)
        stop, epoch, mark = end[shard]
        span = Range(shard, begin, stop, epoch, stop, mark, (notes or {}).get(shard, ""))
        if not span.length:
            continue
        inner = (cuts or {}).get(shard)
        if inner is None:
            inner = even(span, -(-span.length // per_task))
        if inner:
            pieces = pairwise([span.start, *inner, span.end])
            packed.extend((replace(span, start=a, end=b),) for a, b in pieces if b > a)
            continue
        if small and sum(each.length for each in small) + span.length > per_task:
            packed.append(tuple(small))
            small = []
        small.append(span)
    return [*packed, tuple(small)] if small else packed
