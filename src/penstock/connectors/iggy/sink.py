"""Rows into an Iggy topic, each once as far as Iggy lets one know. Each message has an id that says whose row it is: a
task that may have been tried before reads back what is there, and sends only the rest.
"""

import contextlib
import logging
import time
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.arrow.buffers import Ints
from penstock.clients.iggy.client import Client, PartitionInfo, Sending, messages
from penstock.clients.iggy.wire import Where
from penstock.connectors.iggy import kept, rows
from penstock.connectors.iggy.options import IggySinkOptions
from penstock.connectors.iggy.rows import Rows
from penstock.connectors.iggy.seen import Seen
from penstock.errors import ConnectError, Disconnected, OptionError, PenstockError
from penstock.kit import via_driver
from penstock.kit.contract import Origin, Receipt, Spans
from penstock.planning.positions import Offsets, Position

log = logging.getLogger("penstock")


class IggySink:
    """A sink that connects when the first row comes."""

    def __init__(self, options: IggySinkOptions, columns: pa.Schema):
        rows.check(options, columns)
        self.options = options
        self.own_ids = "id" in columns.names
        # With ids of the user's own it cannot hold, unless they are all null and it was asked for.
        asked = "delivery" in options.model_fields_set or not self.own_ids
        self.once = options.delivery == "exactly_once" and asked
        self.client = Client(options)
        self.before: Offsets | None = None

    def write(self, batches: Iterator[pa.RecordBatch], origin: Origin) -> Receipt:
        """Send the rows that are not there yet, or hand them to the driver, which writes task after task."""
        if not self.once or self.own_ids:
            return self._send(batches, origin)
        return via_driver.write(batches, origin, self.options.driver_bytes, self._send)

    def commit(self, receipts: Sequence[Receipt], batch: int | None) -> None:
        """Write what the tasks handed over, in the order of the tasks; then all of the batch must still be there."""
        wrote = [receipt for receipt in receipts if receipt.rows]
        if not wrote:
            return
        query, before = wrote[0].origin.query, self.before
        written = kept.check_last(self.client, self.options, query) if self.once and batch is not None else None
        if written is not None and batch is not None and written.batch < batch:
            before = written.ends  # nobody has begun with this batch before the last one was done
        seen, last = Seen(self.options, wrote[0].origin, before), kept.Last()
        for receipt in via_driver.commit(wrote, partial(self._send, seen=seen)):
            log.info("%s", receipt)
            for shard, (_, high) in receipt.spans.items():
                last[shard] = max(last.get(shard, (-1, receipt.origin)), (high, receipt.origin))
        if self.once:
            ends = kept.check(self.client, self.options, last)
            if batch is not None:
                kept.remember(self.options, query, kept.Written(batch, (written.last if written else {}) | last, ends))

    def check(self) -> None:
        """Reach the server, and find the topic there unless it is to be made."""
        self.client.reach()
        if not self.options.create_topic and self.partitions() is None:
            raise self.missing()

    def ends(self) -> Offsets:
        """Where each partition ends."""
        found = self.partitions() if self.once else None
        return {str(self.where(info.id)): Position(info.next, info.created) for info in found or ()}

    def begin(self, ends: Offsets) -> None:
        """The rows to come lie behind."""
        self.before = ends

    def close(self) -> None:
        """The client stays with the process."""

    def partitions(self) -> list[PartitionInfo] | None:
        """Those of the topic; None where it is not there."""
        return self.client.topic(self.options.stream, self.options.target)

    def where(self, partition: int) -> Where:
        """One of them."""
        return Where(self.options.stream, self.options.target, partition)

    def missing(self) -> OptionError:
        """The error for a topic that is not there."""
        missing = self.client.missing(self.options.stream, self.options.target)
        return OptionError(f"{missing} Or set createTopic=true to make it.")

    def _send(self, batches: Iterator[pa.RecordBatch], origin: Origin, seen: Seen | None = None) -> Receipt:
        task = _Task(self, origin, seen or Seen(self.options, origin, self.before))
        try:
            for batch in batches:
                if len(batch):
                    task.put(batch)
            return task.finish()
        except BaseException as error:
            task.abandon()
            if isinstance(error, PenstockError):
                task.spans.explain(error, known_again=self.once)
            raise


class _Task:
    """One attempt to write one partition of Spark's."""

    def __init__(self, sink: IggySink, origin: Origin, seen: Seen):
        self.sink, self.origin, self.seen = sink, origin, seen
        self.options, self.client, self.once = sink.options, sink.client, sink.once
        self.rows = self.size = self.known = 0
        self.spans = Spans()
        self.count = 0
        self.there: tuple[Ints, Ints] = (np.empty(0, np.int64), np.empty(0, np.int64))
        self.sending: tuple[Sending, Where, Rows, Ints] | None = None
        self.doubt = False  # whether what is on its way was sent before, without an answer
        self.again: list[tuple[Where, Ints, int]] = []  # rows that were sent again, and where they are
        self.retry = self.options.retry(f"writing {origin}")

    def put(self, batch: pa.RecordBatch) -> None:
        """Send the rows that are not there."""
        if not self.count:
            self.retry.run(self._begin)
        ready = rows.made(self.options, self.origin, batch, self.rows, self.count)
        if ready.ids is not None and self.once:
            raise OptionError(
                f"{self.origin} has rows with an `id` of their own, and delivery=exactly_once tells rows by its "
                "own ids: leave out the column, or set delivery=at_least_once."
            )
        self.rows += len(batch)
        self.size += int(ready.size.sum())
        for partition in np.unique(ready.partition):
            mine = np.flatnonzero(ready.partition == partition)
            self._store(self.sink.where(int(partition)), ready, mine)

    def finish(self) -> Receipt:
        """Wait for the last answer."""
        self._answer()
        if len(self.there[0]) and self.there[0][-1] >= self.rows:
            raise self.origin.differs(
                f"it had at least {int(self.there[0][-1]) + 1:,} rows then, and has {self.rows:,} now"
            )
        for where, _, _, offset in self.seen.messages(self.origin):
            self.spans.widen(str(where), int(offset[0]), int(offset[-1]))
        if self.again:
            self.retry.run(self._warn_of_doubles)
        return Receipt(self.origin, self.rows, self.size, self.spans, self.known)

    def _begin(self) -> None:
        found = self.sink.partitions()
        if found is None and self.options.create_topic:
            self.client.make(
                self.options.stream,
                self.options.target,
                self.options.topic_partitions,
                expiry=self.options.message_expiry,
                max_size=self.options.max_topic_size,
                durability=self.options.durability,
            )
            found = self.sink.partitions()
        if found is None:
            raise self.sink.missing()
        if not found:
            raise OptionError(f"topic '{self.options.target}' has no partitions.")
        if self.once:
            self.seen.look(self.client, found)
            self.there = self.seen.rows(self.origin)
            self.known = len(self.there[0])
        self.count = len(found)

    def abandon(self) -> None:
        """The task has failed: wait for what is on its way, lest it arrive after another attempt has looked."""
        if self.sending is not None:
            with contextlib.suppress(PenstockError):
                self.sending[0].wait()
            self.sending = None

    def _store(self, where: Where, ready: Rows, mine: Ints) -> None:
        """Send rows of one partition, in order, in requests of a reasonable size."""
        mine = self._missing(ready, mine)
        if len(mine) and where.partition in self.seen.unsure:
            raise self.seen.unsure[where.partition]
        while len(mine):
            size = np.cumsum(ready.size[mine[: self.options.batch_length]] + 48)
            count = max(1, int(np.searchsorted(size, self.options.max_batch_bytes, side="right")))
            some, mine = mine[:count], mine[count:]
            messages = self._messages(ready, some)  # made while the ones before are on their way
            self._answer()
            self.sending = (self._send(where, messages), where, ready, some)

    def _send(self, where: Where, messages: list[Any]) -> Sending:
        return self.retry.run(lambda: self.client.send(where, messages))

    def _answer(self) -> None:
        """Wait for what is on its way. What was not answered is looked for, and sent again if it is not there."""
        while self.sending is not None:
            sending, where, ready, some = self.sending
            self.sending = None
            try:
                first = sending.wait()
            except Disconnected as error:
                self.retry.after(error)
                if self.once:
                    self.retry.run(lambda partition=where.partition: self._look_again(partition))  # type: ignore[misc]
                left = self._missing(ready, some)
                if len(left):
                    self.doubt = True
                    self.sending = (self._send(where, self._messages(ready, left)), where, ready, left)
                continue
            self.retry.progress()
            doubt, self.doubt = self.doubt, False
            if first is not None:
                self.spans.widen(str(where), first, first + len(some) - 1)
                if self.once and doubt:
                    self.again.append((where, ready.number[some], first))
                if self.once and self.seen.ends[where.partition] == first:
                    self.seen.ends[where.partition] = first + len(some)

    def _look_again(self, partition: int) -> None:
        """After a request without an answer. A server that hung stores what it still has when it answers again, and
        gets time for that.
        """
        self.sink.partitions()
        time.sleep(self.options.settle_time)
        self._catch_up(partition)
        self.there = self.seen.rows(self.origin)

    def _catch_up(self, partition: int) -> None:
        found = {info.id: info for info in self.sink.partitions() or []}
        if partition not in found:
            raise ConnectError(f"partition {partition} of topic '{self.options.target}' is gone.")
        self.seen.catch_up(self.client, found[partition])

    def _warn_of_doubles(self) -> None:
        """Say so where a request that was given up was stored after all: nothing can take it back."""
        for where, number, first in self.again:
            self._catch_up(where.partition)
            for at, row, _, offset in self.seen.messages(self.origin):
                twice = (offset < first) | (offset >= first + len(number))
                if at == where and (count := np.isin(row[twice], number).sum()):
                    log.warning(
                        "%s rows of %s are in '%s' twice: a request without an answer was stored later than settleTime "
                        "(%gs) after the server answered again. Readers can tell them by their `id`; raise settleTime",
                        count, self.origin, where, self.options.settle_time,
                    )  # fmt: skip

    def _missing(self, ready: Rows, mine: Ints) -> Ints:
        """The rows that are not there yet; those that are must be the same."""
        number, crc = self.there
        if not self.once or not len(number):
            return mine
        at = np.searchsorted(number, ready.number[mine])
        there = (at < len(number)) & (number[np.minimum(at, len(number) - 1)] == ready.number[mine])
        for row, place in zip(mine[there].tolist(), at[there].tolist(), strict=True):
            if zlib.crc32(ready.crc_of[row].as_py()) != crc[place]:
                raise self.origin.differs(f"row {int(ready.number[row])} is {ready.crc_of[row].as_py()[:40]!r} now")
        left: Ints = mine[~there]
        return left

    def _messages(self, ready: Rows, some: Ints) -> list[Any]:
        values = [ready.value[i] for i in some.tolist()]
        headers = None if ready.headers is None else [ready.headers[i] for i in some.tolist()]
        if ready.ids is not None:
            return messages(values, [ready.ids[i] for i in some.tolist()], headers)
        task = rows.name(self.origin)  # also where nobody looks for ids now: a later run may
        base = task.high << 64 | task.low
        return messages(values, [base + number for number in ready.number[some].tolist()], headers)
