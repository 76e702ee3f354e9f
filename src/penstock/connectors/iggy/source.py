"""Iggy topics read by offset: any range, as often as wanted. No consumer group, and nothing is committed by reading."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from penstock.connectors.iggy import wire
from penstock.connectors.iggy.client import Client, PartitionInfo
from penstock.connectors.iggy.options import IggySourceOptions
from penstock.connectors.iggy.wire import Messages, Where
from penstock.errors import DataLossError, Disconnected, OptionError, PenstockError
from penstock.offsets import Bound, Bounds, Loss, Offsets, Range
from penstock.record import TIMESTAMP

log = logging.getLogger("penstock")


class IggySource:
    """A source that connects at its first question."""

    def __init__(self, options: IggySourceOptions, columns: pa.Schema):
        self.options, self.columns = options, columns
        self._client = Client(options)
        self._first: dict[tuple[str, str], int] = {}  # by partition, and when it was made
        self._next: dict[str, int] = {}
        self._until = float("-inf")  # where partitions begin is good so long
        self._known: set[str] = set()
        self._warned = False

    def check(self) -> None:
        """Refuse topics that are not there."""
        self._client.reach()
        self.bounds()

    def bounds(self) -> Bounds:
        """Both ends of every partition. Where they begin is looked up now and then, and checked by whoever reads."""
        return self._bounds()

    def find(self, shard: str, timestamp: int) -> int:
        """The first message that the server stored not earlier than a moment."""
        where = Where.of(shard)
        found = self._client.poll(where, wire.TIME, max(0, timestamp), 1)
        return int(found.offset[0]) if len(found) else self._next.get(shard, 0)

    def count(self, shard: str, positions: Sequence[int]) -> Sequence[int] | None:
        """Offsets have few gaps."""
        return None

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        """The rows of a range. Gaps are legal; what lies before the first message that is left was deleted."""
        where, at = Where.of(span.shard), span.start
        retry = self.options.retry(f"reading '{span.shard}'")
        while at < span.end:
            try:
                if at == span.start and not self._is_there(where, span):
                    return
                found = self._client.poll(where, wire.OFFSET, at, min(self.options.poll_count, span.end - at))
                if not len(found) or found.offset[0] != at:
                    if not self._is_there(where, span):
                        return
                    self._check(where, span, at)
            except Disconnected as error:
                retry.after(error)
                continue
            retry.progress()
            rows = found.before(span.end)
            if len(rows):
                yield self._rows(where, rows)
            at = int(found.offset[-1]) + 1 if len(found) else span.end

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

    def _bounds(self) -> Bounds:
        found: Bounds = {}
        again = time.monotonic() >= self._until
        for topic in self.options.names():
            partitions = self._client.topic(self.options.stream, topic)
            if partitions is None:
                if topic not in self._known:
                    raise self._client.missing(self.options.stream, topic)
                continue
            self._known.add(topic)
            for info in self._wanted(topic, partitions):
                where = Where(self.options.stream, topic, info.id)
                shard = str(where)
                life = (shard, info.created)
                if again or life not in self._first:
                    first = self._client.poll(where, wire.FIRST, 0, 1) if info.messages else None
                    self._first[life] = info.next if first is None or not len(first) else int(first.offset[0])
                size = info.size / max(1, info.messages)
                found[shard] = Bound(min(self._first[life], info.next), info.next, info.created, size)
                self._next[shard] = info.next
        if again:
            self._until = time.monotonic() + self.options.discovery_interval
        return found

    def _wanted(self, topic: str, partitions: Sequence[PartitionInfo]) -> list[PartitionInfo]:
        asked = self.options.partitions
        for number in asked:
            shard, last = str(Where(self.options.stream, topic, number)), len(partitions) - 1
            if number not in [info.id for info in partitions] and shard not in self._next:
                raise OptionError(f"topic '{topic}' has no partition {number}: its last one is {last}.")
        return [info for info in partitions if not asked or info.id in asked]

    def _is_there(self, where: Where, span: Range) -> bool:
        """Whether the partition is the one that was planned for. What is wrong with it is an error, or logged."""
        partitions = {info.id: info for info in self._client.topic(where.stream, where.topic) or []}
        info = partitions.get(where.partition)
        if info is None:
            self._report(Loss(span.shard, span.start, None, "gone"))
            return False
        bound = Bound(0, info.next, info.created)
        if span.epoch and info.created != span.epoch:
            self._report(Loss(span.shard, span.start, bound, "recreated"))
            return False
        if info.next < span.end:
            self._report(Loss(span.shard, span.end, bound, "backwards"))
        return True

    def _check(self, where: Where, span: Range, at: int) -> None:
        """A jump is a gap, unless the partition now begins behind it."""
        first = self._client.poll(where, wire.FIRST, 0, 1)
        begins = int(first.offset[0]) if len(first) else span.end
        if begins > at:
            self._report(Loss(span.shard, at, Bound(min(begins, span.end), span.end), "trimmed"))

    def _report(self, loss: Loss) -> None:
        if self.options.fail_on_data_loss:
            raise DataLossError(f"stream {loss}. {loss.remedy}")
        log.warning("failOnDataLoss=false, going on: stream %s", loss)

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
