"""What comes into a source, as it comes, without Spark. Knows the contract of sources; knows no server, no terminal.

Nothing is acknowledged, released or left on a server: `progress` and `commit` are called only where they concern what
this process itself holds.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from penstock.errors import Disconnected
from penstock.kit.contract import Branching, Holding, Prefetching, Source
from penstock.planning.positions import Bound, Bounds, Loss, Offsets, Position, Range, lost

# Seconds between two questions for what is new: where nothing came, and where something did.
QUIET, BUSY = 0.25, 0.05


class Following:
    """A source that is read on from where it stands. `tell` gets a sentence where something happens to its streams."""

    def __init__(self, source: Source, options: Any, at: Bounds, tell: Callable[[str], None]):
        self.source, self.tell = source, tell
        self.at: Offsets = {shard: Position(bound.next, bound.epoch) for shard, bound in at.items()}
        self._seen = dict(at)
        self._gone: set[str] = set()
        self._retry = options.retry("following")

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The records that come, for ever. A server that is away is waited for as long as the options say."""
        while True:
            came = False
            for batch in self.step():
                came = came or len(batch) > 0
                yield batch
            time.sleep(BUSY if came or isinstance(self.source, Holding) else QUIET)

    def step(self) -> Iterator[pa.RecordBatch]:
        """What has come since the last time. A stream that is new is read from its beginning."""
        bounds = self._ask()
        self._settle(bounds)
        if isinstance(self.source, Branching):
            bounds = self.source.in_order(self.at, bounds)
        for shard, bound in bounds.items():
            at = self.at[shard]
            if at.next < bound.next:
                yield from self._read(Range(shard, at.next, bound.next, bound.epoch))
                self.at[shard] = Position(bound.next, bound.epoch)
        if isinstance(self.source, Holding | Prefetching):
            self.source.progress(self.at)
            self.source.commit(self.at)

    def _read(self, span: Range) -> Iterator[pa.RecordBatch]:
        if isinstance(self.source, Holding):
            yield from self.source.ship(span)
            return
        fetched = self.source.fetched(span) if isinstance(self.source, Prefetching) else None
        yield from self.source.read(span) if fetched is None else fetched

    def _ask(self) -> Bounds:
        was_away = False
        while True:
            try:
                bounds = self.source.bounds()
            except Disconnected as error:
                self._retry.after(error)
                was_away = True
                continue
            self._retry.progress()
            if was_away:
                self.tell("the server answers again")
            return bounds

    def _settle(self, bounds: Bounds) -> None:
        """Move to where reading can go on, and tell what was deleted in between."""
        for loss in lost(self.at, bounds):
            if loss.shard not in self._gone:
                self.tell(_told(loss))
            if loss.bound is None:
                self._gone.add(loss.shard)
            else:
                self.at[loss.shard] = Position(loss.bound.first, loss.bound.epoch)
        for shard, bound in bounds.items():
            if shard in self._gone:
                self._gone.discard(shard)
                self.tell(f"'{shard}' is there again")
            elif shard in self.at and _was_emptied(self._seen.get(shard), bound):
                self.tell(f"'{shard}' has no records any more, as after a purge. It is followed from {bound.next} on")
            position = self.at.setdefault(shard, Position(bound.first, bound.epoch))
            if position.next < bound.first:  # records that vanish by design, which is no loss
                self.at[shard] = Position(bound.first, bound.epoch)
        self._seen = dict(bounds)


def _was_emptied(before: Bound | None, now: Bound) -> bool:
    if before is None or now.transient or now.queue or before.epoch != now.epoch:
        return False
    return before.first < before.next <= now.next == now.first


def _told(loss: Loss) -> str:
    """What happened to a stream that is followed."""
    name, bound = loss.shard, loss.bound
    if bound is None:
        return f"'{name}' is gone. It is followed again if it is made again"
    if loss.kind == "recreated":
        return f"'{name}' was deleted and made again. It is shown from its first record on"
    if loss.kind == "backwards":
        return (
            f"'{name}' counts anew, as after a purge: {bound.next} comes next, and it was {loss.at}. It is shown from "
            "its first record on"
        )
    return (
        f"{loss.records:,} records of '{name}' were deleted before they could be shown. It goes on with {bound.first}"
    )
