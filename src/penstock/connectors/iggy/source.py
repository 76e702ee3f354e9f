"""Iggy topics read by offset: any range, as often as wanted. No consumer group, and nothing is committed by reading."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from penstock.arrow.types import TIMESTAMP
from penstock.clients.iggy import polls, wire
from penstock.clients.iggy.client import Client, PartitionInfo
from penstock.clients.iggy.wire import Messages, Where
from penstock.connectors.iggy.options import IggySourceOptions
from penstock.errors import Disconnected, OptionError, PenstockError
from penstock.kit.loss import LossReport
from penstock.planning.positions import Bound, Bounds, Loss, Offsets, Range

log = logging.getLogger("penstock")


class IggySource:
    """A source that connects at its first question."""

    def __init__(self, options: IggySourceOptions, columns: pa.Schema):
        self.options, self.columns, self.losses = options, columns, LossReport(options)
        self._client = Client(options)
        self._first: dict[tuple[str, str], int] = {}  # by partition, and when it was made
        self._next: dict[str, int] = {}
        self._until = float("-inf")  # when the cached starts of partitions expire
        self._known: set[str] = set()
        self._warned = False

    def check(self) -> None:
        """Refuse topics that are not there."""
        self._client.reach()
        self.bounds()

    def bounds(self) -> Bounds:
        """Both ends of every partition. Where they begin is looked up now and then, and checked by whoever reads."""
        found: Bounds = {}
        missing: list[str] = []
        again = time.monotonic() >= self._until
        for topic in self.options.names():
            partitions = self._partitions(topic)
            if partitions is None:
                if topic not in self._known:
                    missing.append(topic)
                continue
            self._known.add(topic)
            for where, info in self._wanted(topic, partitions).items():
                shard = str(where)
                life = (shard, info.created)
                # After a purge a partition begins at 0 again, which shows in nothing else: look with every change.
                changed = bool(self._first.get(life)) and info.next != self._next.get(shard)
                if again or changed or life not in self._first:
                    self._first[life] = polls.begin(self._client, where, info)
                size = info.size / max(1, info.messages)
                found[shard] = Bound(min(self._first[life], info.next), info.next, info.created, size)
                self._next[shard] = info.next
        for topic in missing:
            error = partial(self._client.missing, self.options.stream, topic)
            self.losses.missing(topic, error, nothing_left=not found)
            self._known.add(topic)
        if again:
            self._until = time.monotonic() + self.options.discovery_interval
        return found

    def find(self, shard: str, timestamp: int) -> int:
        """The first message that the server stored not earlier than a moment."""
        where = Where.of(shard)
        info = self._partition(where)
        if info is None or not info.messages:
            return info.next if info else 0
        found = self._client.poll(where, wire.TIME, max(0, timestamp), 1)
        if len(found):
            return int(found.offset[0])
        last = polls.after(self._client, where, info.next - 1, 1, info)
        if last.time[0] >= timestamp:
            raise Disconnected(
                f"Iggy finds no message of '{shard}' from a moment on, but its message {info.next - 1} is younger: it "
                "cannot read some of them now, as its log will say."
            )
        return info.next

    def marks(self, at: Offsets) -> Mapping[str, str]:
        """What tells the message before each position: after a purge its offset has another one."""
        topics = {Where.of(shard).topic for shard in at}
        partitions = {where: info for topic in topics for where, info in (self._partitions(topic) or {}).items()}
        marks = {}
        for shard, position in at.items():
            where = Where.of(shard)
            info = partitions.get(where)
            if info is not None and (mark := self._mark(where, position.next, info)):
                marks[shard] = mark
        return marks

    def count(self, shard: str, positions: Sequence[int]) -> Sequence[int] | None:
        """Offsets have few gaps."""
        return None

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        """The rows of a range. Gaps are legal; what lies before the first message that is left was deleted."""
        where, at, end = Where.of(span.shard), span.start, span.end
        retry = self.options.retry(f"reading '{span.shard}'")
        info: PartitionInfo | None = None
        while at < end:
            try:
                if info is None:  # at first, and whenever something was wrong: it may have been deleted meanwhile
                    info = self._planned(where, span)
                    if info is None or not self._holds_some(info, span, at):
                        return
                    end = min(end, info.next)
                    continue
                found = polls.after(self._client, where, at, min(self.options.poll_count, end - at), info)
                if found.offset[0] > at:
                    self._check_gap(where, span, at)
            except Disconnected as error:
                retry.after(error)
                info = None
                continue
            retry.progress()
            rows = found.before(end)
            if len(rows):
                yield self._rows(where, rows)
            at = int(found.offset[-1]) + 1
        if end == span.end:  # was it there to the end?
            retry.run(lambda: self._planned(where, span))

    def progress(self, at: Offsets) -> None:
        """Show where the query stands, as the offset of a consumer."""
        name = self.options.progress_consumer
        if name is None:
            return
        try:
            for shard, position in at.items():
                if position.next:
                    self._client.store_offset(Where.of(shard), name, position.next - 1)
            self._warned = False
        except PenstockError as error:  # no row depends on it
            if not self._warned:
                self._warned = True
                log.warning("the progress consumer could not be moved, no row is affected: %s", error)

    def commit(self, end: Offsets) -> None:
        """Messages stay until they expire."""

    def close(self) -> None:
        """The client stays with the process, for the next task."""

    def _partitions(self, topic: str) -> dict[Where, PartitionInfo] | None:
        """The partitions of a topic; None where it is not there."""
        found = self._client.topic(self.options.stream, topic)
        return None if found is None else {Where(self.options.stream, topic, info.id): info for info in found}

    def _partition(self, where: Where) -> PartitionInfo | None:
        return (self._partitions(where.topic) or {}).get(where)

    def _wanted(self, topic: str, partitions: dict[Where, PartitionInfo]) -> dict[Where, PartitionInfo]:
        asked = self.options.partitions
        for number in asked:
            where, last = Where(self.options.stream, topic, number), len(partitions) - 1
            if where not in partitions and str(where) not in self._next:
                raise OptionError(f"topic '{topic}' has no partition {number}: its last one is {last}.")
        return {where: info for where, info in partitions.items() if not asked or where.partition in asked}

    def _planned(self, where: Where, span: Range) -> PartitionInfo | None:
        """The partition as it is, if it is the one that was planned for. What is wrong with it is an error, or logged:
        it is gone, was made again, or was purged and is shorter now or has other messages.
        """
        info = self._partition(where)
        if info is None:
            self.losses.lost([Loss(span.shard, span.start, None, "gone")])
            return None
        bound = Bound(0, info.next, info.created)
        if span.epoch and info.created != span.epoch:
            self.losses.lost([Loss(span.shard, span.start, bound, "recreated")])
            return None
        planned = max(span.end, span.marked)
        if info.next < planned:
            self.losses.lost([Loss(span.shard, planned, bound, "backwards")])
        elif span.mark and self._mark(where, span.marked, info) not in ("", span.mark):
            self.losses.lost([Loss(span.shard, span.marked, bound, "renumbered")])
            return None
        return info

    def _mark(self, where: Where, position: int, info: PartitionInfo) -> str:
        """When the message before a position was stored, and its id; nothing where it is gone or never was, which
        the bounds tell.
        """
        first = self._first.get((str(where), info.created), 0)
        if not info.messages or not first < position <= info.next:
            return ""
        found = polls.after(self._client, where, position - 1, 1, info)
        if found.offset[0] != position - 1:
            return ""
        return f"{int(found.time[0])} {int(found.high[0]) << 64 | int(found.low[0])}"

    def _holds_some(self, info: PartitionInfo, span: Range, at: int) -> bool:
        if not info.messages and at < info.next:
            self.losses.lost([Loss(span.shard, at, Bound(span.end, span.end), "trimmed")])
        return bool(info.messages)

    def _check_gap(self, where: Where, span: Range, at: int) -> None:
        """A jump is a gap, unless the partition now begins behind it."""
        info = self._planned(where, span)
        begins = span.end if info is None else polls.begin(self._client, where, info)
        if begins > at:
            self.losses.lost([Loss(span.shard, at, Bound(min(begins, span.end), span.end), "trimmed")])

    def _rows(self, where: Where, found: Messages) -> pa.RecordBatch:
        count = len(found)
        made: dict[str, Callable[[], Any]] = {
            "value": lambda: found.value,
            "headers": lambda: wire.headers(found.headers, typed=self.options.typed_headers),
            "timestamp": lambda: pa.array(found.time).view(TIMESTAMP),
            "stream": lambda: pa.repeat(pa.scalar(where.stream, pa.string()), count),
            "sequence": lambda: pa.array(found.offset),
            "topic": lambda: pa.repeat(pa.scalar(where.topic, pa.string()), count),
            "partition": lambda: pa.repeat(pa.scalar(where.partition, pa.int32()), count),
            "id": lambda: wire.identities(found.high, found.low),
            "originTimestamp": lambda: pa.array(found.origin).view(TIMESTAMP),
        }
        return pa.RecordBatch.from_arrays([made[field.name]() for field in self.columns], schema=self.columns)
