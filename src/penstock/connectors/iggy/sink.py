"""Rows into an Iggy topic, each once as far as Iggy shows what it stored.

The id of a message names its query, batch, task and row. A task reads back the messages that an earlier attempt sent,
and sends only the rest. Knows no Spark.
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
        # A column `id` rules it out: rows are known again by our ids. Where the user asked for it, the column must be
        # null in every row.
        is_wanted = bool({"delivery", "txn_app_id"} & options.model_fields_set) or not self.own_ids
        self.exactly_once = options.delivery == "exactly_once" and is_wanted
        self.client = Client(options)
        self.before: Offsets | None = None

    def write(self, batches: Iterator[pa.RecordBatch], origin: Origin) -> Receipt:
        """Send the rows that are not stored yet. Small tasks are handed to the driver, which writes task after task."""
        if not self.exactly_once or self.own_ids:
            return self._send(batches, origin)
        return via_driver.write(batches, origin, self.options.driver_bytes, self._send)

    def commit(self, receipts: Sequence[Receipt], batch: int | None) -> None:
        """Write the rows that tasks handed to the driver, in the order of the tasks. An error where the server has lost
        messages of this batch, or of the one before.
        """
        with_rows = [receipt for receipt in receipts if receipt.rows]
        if not with_rows:
            return
        query, before = with_rows[0].origin.query, self.before
        written = kept.check_last(self.client, self.options, query) if self.exactly_once and batch is not None else None
        if written is not None and batch is not None and written.batch < batch:
            before = written.ends  # this batch began after the one before was done
        tasks = {receipt.origin.partition for receipt in with_rows}
        seen, last = Seen(self.options, with_rows[0].origin, before, tasks), kept.Last()
        for receipt in via_driver.commit(with_rows, partial(self._send, seen=seen)):
            log.info("%s", receipt)
            for shard, (_, high) in receipt.spans.items():
                last[shard] = max(last.get(shard, (-1, receipt.origin)), (high, receipt.origin))
        if self.exactly_once:
            ends = kept.check(self.client, self.options, last)
            if batch is not None:
                kept.remember(self.options, query, kept.Written(batch, (written.last if written else {}) | last, ends))

    def check(self) -> None:
        """Reach the server. An error where the topic is missing, unless it is to be made."""
        self.client.reach()
        if not self.options.create_topic and self.partitions() is None:
            raise self.missing()

    def ends(self) -> Offsets:
        """Where each partition ends. Empty where nothing will be searched for."""
        partitions = self.partitions() if self.exactly_once else None
        return {str(self.where(info.id)): Position(info.next, info.created) for info in partitions or ()}

    def begin(self, ends: Offsets) -> None:
        """The rows to come are those of a `df.write`, before which partitions ended at `ends`."""
        self.before = ends

    def close(self) -> None:
        """Nothing to close: the process keeps its client."""

    def partitions(self) -> list[PartitionInfo] | None:
        """The partitions of the topic; None where it does not exist."""
        return self.client.topic(self.options.stream, self.options.target)

    def where(self, partition: int) -> Where:
        """The address of a partition of the topic."""
        return Where(self.options.stream, self.options.target, partition)

    def missing(self) -> OptionError:
        """The error for a topic that does not exist."""
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
                task.spans.explain(error, known_again=self.exactly_once)
            raise


class _Task:
    """One attempt to write one of Spark's partitions."""

    def __init__(self, sink: IggySink, origin: Origin, seen: Seen):
        self.sink, self.origin, self.seen = sink, origin, seen
        self.options, self.client, self.exactly_once = sink.options, sink.client, sink.exactly_once
        self.rows = self.size = self.known = 0
        self.spans = Spans()
        self.partitions = 0  # of the topic; 0 before the first row
        self.stored: tuple[Ints, Ints] = (np.empty(0, np.int64), np.empty(0, np.int64))  # rows and their checksums
        self.sending: tuple[Sending, Where, Rows, Ints] | None = None  # the request without an answer yet
        self.is_repeat = False  # whether `sending` has rows that were sent before, without an answer
        self.resent: list[tuple[Where, Ints, int]] = []  # rows that were sent again, and the offset of the first
        self.retry = self.options.retry(f"writing {origin}")

    def put(self, batch: pa.RecordBatch) -> None:
        """Send the rows that are not stored yet."""
        if not self.partitions:
            self.retry.run(self._begin)
        ready = rows.prepare(self.options, self.origin, batch, self.rows, self.partitions)
        if ready.ids is not None and self.exactly_once:
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
        """Wait for the last answer. An error where an earlier attempt stored more rows than there are now."""
        self._receive()
        if len(self.stored[0]) and self.stored[0][-1] >= self.rows:
            raise self.origin.differs(
                f"it had at least {int(self.stored[0][-1]) + 1:,} rows then, and has {self.rows:,} now"
            )
        for where, _, _, offset in self.seen.messages(self.origin):
            self.spans.widen(str(where), int(offset[0]), int(offset[-1]))
        if self.resent:
            self.retry.run(self._warn_of_doubles)
        return Receipt(self.origin, self.rows, self.size, self.spans, self.known)

    def _begin(self) -> None:
        """Find the topic, or make it, and search it for rows of an earlier attempt."""
        partitions = self.sink.partitions()
        if partitions is None and self.options.create_topic:
            self.client.make(
                self.options.stream,
                self.options.target,
                self.options.topic_partitions,
                expiry=self.options.message_expiry,
                max_size=self.options.max_topic_size,
                durability=self.options.durability,
            )
            partitions = self.sink.partitions()
        if partitions is None:
            raise self.sink.missing()
        if not partitions:
            raise OptionError(f"topic '{self.options.target}' has no partitions.")
        if self.exactly_once:
            self.seen.look(self.client, partitions)
            self.stored = self.seen.rows(self.origin)
            self.known = len(self.stored[0])
        self.partitions = len(partitions)

    def abandon(self) -> None:
        """The task has failed: wait for the last request, so that it is stored before another attempt searches."""
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
            chosen, mine = mine[:count], mine[count:]
            messages = self._messages(ready, chosen)  # made while the request before is under way
            self._receive()
            self.sending = (self._send(where, messages), where, ready, chosen)

    def _send(self, where: Where, messages: list[Any]) -> Sending:
        return self.retry.run(lambda: self.client.send(where, messages))

    def _receive(self) -> None:
        """Wait for the answer to the request under way. Without one, the topic is searched for its rows, and those that
        are missing are sent again.
        """
        while self.sending is not None:
            sending, where, ready, chosen = self.sending
            self.sending = None
            try:
                first = sending.wait()
            except Disconnected as error:
                self.retry.after(error)
                if self.exactly_once:
                    self.retry.run(partial(self._look_again, where.partition))
                missing = self._missing(ready, chosen)
                if len(missing):
                    self.is_repeat = True
                    self.sending = (self._send(where, self._messages(ready, missing)), where, ready, missing)
                continue
            self.retry.progress()
            was_repeat, self.is_repeat = self.is_repeat, False
            if first is not None:
                self.spans.widen(str(where), first, first + len(chosen) - 1)
                if self.exactly_once and was_repeat:
                    self.resent.append((where, ready.number[chosen], first))
                if self.exactly_once and self.seen.ends[where.partition] == first:
                    self.seen.ends[where.partition] = first + len(chosen)

    def _look_again(self, partition: int) -> None:
        """Search a partition after a request without an answer. A server that hung may still store that request after
        it answers again, and gets `settleTime` for that.
        """
        self.sink.partitions()
        time.sleep(self.options.settle_time)
        self._catch_up(partition)
        self.stored = self.seen.rows(self.origin)

    def _catch_up(self, partition: int) -> None:
        partitions = {info.id: info for info in self.sink.partitions() or []}
        if partition not in partitions:
            raise ConnectError(f"partition {partition} of topic '{self.options.target}' is gone.")
        self.seen.catch_up(self.client, partitions[partition])

    def _warn_of_doubles(self) -> None:
        """Log rows that are stored twice, because a request without an answer was stored after all."""
        for where, number, first in self.resent:
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
        """The rows that are not stored yet. An error where a stored row had another value."""
        number, crc = self.stored
        if not self.exactly_once or not len(number):
            return mine
        at = np.searchsorted(number, ready.number[mine])
        is_stored = (at < len(number)) & (number[np.minimum(at, len(number) - 1)] == ready.number[mine])
        for row, place in zip(mine[is_stored].tolist(), at[is_stored].tolist(), strict=True):
            if zlib.crc32(ready.crc_of[row].as_py()) != crc[place]:
                raise self.origin.differs(f"row {int(ready.number[row])} is {ready.crc_of[row].as_py()[:40]!r} now")
        missing: Ints = mine[~is_stored]
        return missing

    def _messages(self, ready: Rows, chosen: Ints) -> list[Any]:
        """The chosen rows as messages of the SDK. At least once has our ids too, as a later run may search for them."""
        values = [ready.value[i] for i in chosen.tolist()]
        headers = None if ready.headers is None else [ready.headers[i] for i in chosen.tolist()]
        if ready.ids is not None:
            return messages(values, [ready.ids[i] for i in chosen.tolist()], headers)
        task = rows.name(self.origin)
        base = task.high << 64 | task.low
        return messages(values, [base + number for number in ready.number[chosen].tolist()], headers)
