"""Iggy topics read by offset: any range, as often as wanted. Joins no consumer group, and commits nothing by reading.
Knows no Spark.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

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
    """A source that connects with its first request."""

    def __init__(self, options: IggySourceOptions, columns: pa.Schema):
        self.options, self.columns, self.losses = options, columns, LossReport(options)
        self._client = Client(options)
        self._first: dict[tuple[str, str], int] = {}  # by partition and time of creation
        self._next: dict[str, int] = {}
        self._until = float("-inf")  # when `_first` expires
        self._known: set[str] = set()  # topics that existed, or were reported as missing
        self._warned = False

    def check(self) -> None:
        """Refuse topics that do not exist."""
        self._client.reach()
        self.bounds()

    def bounds(self) -> Bounds:
        """Both ends of every partition. Beginnings may be out of date by `discoveryInterval`; `read` checks them."""
        bounds: Bounds = {}
        missing: list[str] = []
        is_due = time.monotonic() >= self._until
        for topic in self.options.names():
            partitions = self._partitions(topic)
            if partitions is None:
                if topic not in self._known:
                    missing.append(topic)
                continue
            self._known.add(topic)
            for where, info in self._wanted(topic, partitions).items():
                shard = str(where)
                key = (shard, info.created)
                # After a purge a partition begins at 0 again, and nothing else shows it: look with every change.
                changed = bool(self._first.get(key)) and info.next != self._next.get(shard)
                if is_due or changed or key not in self._first:
                    self._first[key] = polls.begin(self._client, where, info)
                size = info.size / max(1, info.messages)
                bounds[shard] = Bound(min(self._first[key], info.next), info.next, info.created, size)
                self._next[shard] = info.next
        for topic in missing:
            error = partial(self._client.missing, self.options.stream, topic)
            self.losses.missing(topic, error, nothing_left=not bounds)
            self._known.add(topic)
        if is_due:
            self._until = time.monotonic() + self.options.discovery_interval
        return bounds

    def find(self, shard: str, timestamp: int) -> int:
        """The offset of the first message that the server stored at or after `timestamp`, or the end."""
        where = Where.of(shard)
        info = self._partition(where)
        if info is None or not info.messages:
            return info.next if info else 0
        messages = self._client.poll(where, wire.TIME, max(0, timestamp), 1)
        if len(messages):
            return int(messages.offset[0])
        last = polls.after(self._client, where, info.next - 1, 1, info)
        if last.time[0] >= timestamp:
            raise Disconnected(
                f"Iggy finds no message of '{shard}' from a moment on, but its message {info.next - 1} is younger: it "
                "cannot read some of them now, as its log will say."
            )
        return info.next

    def marks(self, at: Offsets) -> Mapping[str, str]:
        """What identifies the message before each position: after a purge, another message has its offset."""
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
        """None: offsets have few gaps."""
        return None

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        """The rows of a range. A gap between messages is not a loss; one before the first message left is reported."""
        where, at, end = Where.of(span.shard), span.start, span.end
        retry = self.options.retry(f"reading '{span.shard}'")
        info: PartitionInfo | None = None
        while at < end:
            try:
                if info is None:  # first, and after each lost connection: the topic may have been deleted meanwhile
                    info = self._planned(where, span)
                    if info is None or not self._has_messages(info, span, at):
                        return
                    end = min(end, info.next)
                    continue
                messages = polls.after(self._client, where, at, min(self.options.poll_count, end - at), info)
                if messages.offset[0] > at:
                    self._check_gap(where, span, at)
            except Disconnected as error:
                retry.after(error)
                info = None
                continue
            retry.progress()
            wanted = messages.before(end)
            if len(wanted):
                yield self._rows(where, wanted)
            at = int(messages.offset[-1]) + 1
        if end == span.end:  # the topic must not have been replaced while it was read
            retry.run(lambda: self._planned(where, span))

    def progress(self, at: Offsets) -> None:
        """Store the position of the query as the offset of `progressConsumer`. A failure is only logged."""
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
        """Nothing to do: messages stay until they expire."""

    def close(self) -> None:
        """Nothing to close: the process keeps its client for the next task."""

    def _partitions(self, topic: str) -> dict[Where, PartitionInfo] | None:
        """The partitions of a topic; None where it does not exist."""
        infos = self._client.topic(self.options.stream, topic)
        return None if infos is None else {Where(self.options.stream, topic, info.id): info for info in infos}

    def _partition(self, where: Where) -> PartitionInfo | None:
        return (self._partitions(where.topic) or {}).get(where)

    def _wanted(self, topic: str, partitions: dict[Where, PartitionInfo]) -> dict[Where, PartitionInfo]:
        """The partitions that the options name, or all. An error where one of these never existed."""
        numbers = self.options.partitions
        for number in numbers:
            where, last = Where(self.options.stream, topic, number), len(partitions) - 1
            if where not in partitions and str(where) not in self._next:
                raise OptionError(f"topic '{topic}' has no partition {number}: its last one is {last}.")
        return {where: info for where, info in partitions.items() if not numbers or where.partition in numbers}

    def _planned(self, where: Where, span: Range) -> PartitionInfo | None:
        """The partition as it is now; None where it is no longer the one that was planned for.

        Reports a loss where the partition is gone, was made again, or was purged: it is shorter or has other messages.
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
        """When the message before a position was stored, and its id. Empty where there is no such message."""
        first = self._first.get((str(where), info.created), 0)
        if not info.messages or not first < position <= info.next:
            return ""
        message = polls.after(self._client, where, position - 1, 1, info)
        if message.offset[0] != position - 1:
            return ""
        return f"{int(message.time[0])} {int(message.high[0]) << 64 | int(message.low[0])}"

    def _has_messages(self, info: PartitionInfo, span: Range, at: int) -> bool:
        """Whether the partition has messages. Reports a loss where all of them are gone before they were read."""
        if not info.messages and at < info.next:
            self.losses.lost([Loss(span.shard, at, Bound(span.end, span.end), "trimmed")])
        return bool(info.messages)

    def _check_gap(self, where: Where, span: Range, at: int) -> None:
        """Messages are missing at `at`. Reports a loss where the partition now begins behind it."""
        info = self._planned(where, span)
        begins = span.end if info is None else polls.begin(self._client, where, info)
        if begins > at:
            self.losses.lost([Loss(span.shard, at, Bound(min(begins, span.end), span.end), "trimmed")])

    def _rows(self, where: Where, messages: Messages) -> pa.RecordBatch:
        count = len(messages)
        columns = {
            "value": messages.value,
            "timestamp": pa.array(messages.time).view(TIMESTAMP),
            "stream": pa.repeat(pa.scalar(where.stream, pa.string()), count),
            "sequence": pa.array(messages.offset),
            "topic": pa.repeat(pa.scalar(where.topic, pa.string()), count),
            "partition": pa.repeat(pa.scalar(where.partition, pa.int32()), count),
            "id": wire.identities(messages.high, messages.low),
            "originTimestamp": pa.array(messages.origin).view(TIMESTAMP),
        }
        if "headers" in self.columns.names:
            columns["headers"] = wire.headers(messages.headers, typed=self.options.typed_headers)
        return pa.RecordBatch.from_arrays([columns[field.name] for field in self.columns], schema=self.columns)
