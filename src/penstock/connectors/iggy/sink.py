"""Rows into an Iggy topic, each once as far as Iggy lets one know. Each message has an id that says whose row it is: a
task that may have been tried before reads back what is there, and sends only the rest.
"""

import contextlib
import logging
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock import cargo
from penstock.columns import Ints
from penstock.connectors.iggy import rows, wire
from penstock.connectors.iggy.client import Client, PartitionInfo, Sending
from penstock.connectors.iggy.options import IggySinkOptions
from penstock.connectors.iggy.rows import Rows
from penstock.connectors.iggy.wire import Messages, Where, Words
from penstock.contract import Origin, Receipt
from penstock.errors import ConnectError, Disconnected, OptionError, PenstockError

log = logging.getLogger("penstock")
# So many messages are looked through at once.
BLOCK = 5000
# The first rows of a query come in this batch or before: a source of ours begins with an empty one.
FIRST = 1


class IggySink:
    """A sink that connects when the first row comes."""

    def __init__(self, options: IggySinkOptions, columns: pa.Schema):
        rows.check(options, columns)
        self.options = options
        self.own_ids = "id" in columns.names
        # With ids of the user's own it cannot hold, unless they are all null and it was asked for.
        asked = "delivery" in options.model_fields_set or not self.own_ids
        self.once = options.delivery == "exactly_once" and asked

    def write(self, batches: Iterator[pa.RecordBatch], origin: Origin) -> Receipt:
        """Send the rows that are not there yet, or hand them to the driver, which writes task after task."""
        if not self.once or self.own_ids:
            return self._send(batches, origin)
        held, whole = cargo.hold(batches, self.options.driver_bytes)
        if not whole:
            return self._send(cargo.again(held, batches), origin)
        count, size = sum(map(len, held)), sum(batch.nbytes for batch in held)
        return Receipt(origin, count, size, cargo=cargo.pack(held))

    def commit(self, receipts: Sequence[Receipt], batch: int | None) -> None:
        """Write what the tasks handed over, in the order of the tasks."""
        seen: _Seen | None = None
        for receipt in sorted(receipts, key=lambda receipt: receipt.origin.partition):
            if receipt.cargo is not None:
                if seen is None:
                    seen = _Seen(self.options, receipt.origin)
                receipt = self._send(cargo.unpack(receipt.cargo), receipt.origin, seen)
            if receipt.rows:
                log.info("%s", receipt)

    def check(self) -> None:
        """Reach the server, and find the topic there unless it is to be made."""
        client = Client(self.options)
        client.reach()
        if not self.options.create_topic and client.topic(self.options.stream, self.options.target) is None:
            raise _missing(client, self.options)

    def close(self) -> None:
        """The client stays with the process."""

    def _send(self, batches: Iterator[pa.RecordBatch], origin: Origin, seen: "_Seen | None" = None) -> Receipt:
        task = _Task(self.options, origin, seen, once=self.once)
        try:
            for batch in batches:
                if len(batch):
                    task.put(batch)
            return task.finish()
        except BaseException as error:
            task.abandon()
            if isinstance(error, PenstockError) and task.spans:
                places = ", ".join(f"'{name}' up to {last}" for name, (_, last) in sorted(task.spans.items()))
                known = "; they are known again when it is retried" if self.once else ""
                raise type(error)(f"{error} Before that, rows of this task were written to {places}{known}.") from None
            raise


class _Seen:
    """The messages of one batch of a query that are in a topic, and up to where every partition is known."""

    def __init__(self, options: IggySinkOptions, origin: Origin):
        self.options, self.origin = options, origin
        self.ends: dict[int, int] = {}
        self.created: dict[int, str] = {}
        self.unsure: dict[int, str] = {}  # partitions where nobody can tell
        self._found: list[tuple[Words, Words, Ints]] = []  # ids of this batch's messages, and their checksums

    def look(self, client: Client, info: PartitionInfo) -> None:
        """Look through a partition from its end back to where it is clear that nothing older matters."""
        partition, end = info.id, info.next
        if partition in self.ends:
            return
        where, mine = Where(self.options.stream, self.options.target, partition), rows.name(self.origin)
        at, begins, foreign, settled = end, 0, 0, end == 0
        while not settled and at > begins and foreign < self.options.look_back:
            low = max(begins, at - (1 if at == end else min(BLOCK, self.options.look_back - foreign)))
            block = _range(client, where, low, at)
            batches = rows.batches_of(mine, block.high, block.low)
            if (batches > self.origin.batch).any():
                raise self.origin.overtaken(int(batches.max()))
            self._keep(block)
            settled = bool((batches < self.origin.batch).any())
            foreign = 0 if len(batches) else foreign + (at - low)
            if at == end and not settled:
                first = client.poll(where, wire.FIRST, 0, 1)
                begins = int(first.offset[0]) if len(first) else end
            at = low
        settled |= begins == 0 and at == 0
        if not settled and self.origin.batch > FIRST:
            self.unsure[partition] = (
                f"nobody can tell whether {self.origin} was written to '{where}' before: what could tell has been "
                f"deleted, or lies behind {self.options.look_back:,} messages of others (lookBack). If it was not, set "
                "delivery=at_least_once for one run. Let the topic keep messages for longer than the query may rest."
            )
        self.ends[partition], self.created[partition] = end, info.created

    def catch_up(self, client: Client, info: PartitionInfo) -> None:
        """Look at what came since."""
        where = Where(self.options.stream, self.options.target, info.id)
        if info.next < self.ends[info.id] or info.created != self.created[info.id]:
            raise ConnectError(
                f"'{where}' ends at {info.next}, but {self.origin} has seen it up to {self.ends[info.id]}: the topic "
                "was made again, or the server lost what it had confirmed. Make topics with durability=persisted."
            )
        self._keep(_range(client, where, self.ends[info.id], info.next))
        self.ends[info.id] = info.next

    def rows(self, origin: Origin) -> tuple[Ints, Ints]:
        """The rows of a task that are there, in order, and a checksum of each."""
        task = rows.name(origin)
        numbers, sums = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for high, low, crc in self._found:
            mine, number = rows.rows_of(task, high, low)
            numbers.append(number)
            sums.append(crc[mine])
        number, at = np.unique(np.concatenate(numbers), return_index=True)
        return number, np.concatenate(sums)[at]

    def _keep(self, block: Messages) -> None:
        """Of this batch's messages, what tells them apart; not what they hold."""
        mine = rows.of_batch(rows.name(self.origin), block.high, block.low)
        if mine.any():
            values = block.value.filter(pa.array(mine)).to_pylist()
            sums = np.array([zlib.crc32(value) for value in values], np.int64)
            self._found.append((block.high[mine], block.low[mine], sums))


class _Task:
    """One attempt to write one partition of Spark's."""

    def __init__(self, options: IggySinkOptions, origin: Origin, seen: _Seen | None, *, once: bool):
        self.options, self.origin, self.once = options, origin, once
        self.client = Client(options)
        self.seen = seen or _Seen(options, origin)
        self.rows = self.size = self.known = 0
        self.spans: dict[str, tuple[int, int]] = {}
        self.count = 0
        self.there: tuple[Ints, Ints] = (np.empty(0, np.int64), np.empty(0, np.int64))
        self.sending: tuple[Sending, Where, Rows, Ints] | None = None
        self.retry = options.retry(f"writing {origin}")

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
            self._store(Where(self.options.stream, self.options.target, int(partition)), ready, mine)

    def finish(self) -> Receipt:
        """Wait for the last answer."""
        self._answer()
        if len(self.there[0]) and self.there[0][-1] >= self.rows:
            raise self.origin.differs(
                f"it had at least {int(self.there[0][-1]) + 1:,} rows then, and has {self.rows:,} now"
            )
        return Receipt(self.origin, self.rows, self.size, self.spans, self.known)

    def _begin(self) -> None:
        found = self.client.topic(self.options.stream, self.options.target)
        if found is None and self.options.create_topic:
            self.client.make(self.options)
            found = self.client.topic(self.options.stream, self.options.target)
        if found is None:
            raise _missing(self.client, self.options)
        if self.once:
            for info in found:
                self.seen.look(self.client, info)
            self.there = self.seen.rows(self.origin)
            self.known = len(self.there[0])
        if not found:
            raise OptionError(f"topic '{self.options.target}' has no partitions.")
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
            raise ConnectError(self.seen.unsure[where.partition])
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
                    time.sleep(self.options.settle_time)
                    self.retry.run(lambda partition=where.partition: self._look_again(partition))  # type: ignore[misc]
                left = self._missing(ready, some)
                if len(left):
                    self.sending = (self._send(where, self._messages(ready, left)), where, ready, left)
                continue
            self.retry.progress()
            if first is not None:
                low, high = self.spans.get(str(where), (first, first))
                self.spans[str(where)] = (min(low, first), max(high, first + len(some) - 1))
                if self.once and self.seen.ends[where.partition] == first:
                    self.seen.ends[where.partition] = first + len(some)

    def _look_again(self, partition: int) -> None:
        found = {info.id: info for info in self.client.topic(self.options.stream, self.options.target) or []}
        if partition not in found:
            raise ConnectError(f"partition {partition} of topic '{self.options.target}' is gone.")
        self.seen.catch_up(self.client, found[partition])
        self.there = self.seen.rows(self.origin)

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
        from apache_iggy import SendMessage

        values = [ready.value[i] for i in some.tolist()]
        if ready.ids is None:  # also where nobody looks for them now: a later run may
            task = rows.name(self.origin)
            base = task.high << 64 | task.low
            ids = [base + number for number in ready.number[some].tolist()]
        else:
            ids = [ready.ids[i] for i in some.tolist()]
        if ready.headers is None:
            return [SendMessage(value, None, number) for value, number in zip(values, ids, strict=True)]
        sent = [_sdk_headers(ready.headers[i]) for i in some.tolist()]
        return [SendMessage(v, h, number) for v, h, number in zip(values, sent, ids, strict=True)]


def _missing(client: Client, options: IggySinkOptions) -> OptionError:
    return OptionError(f"{client.missing(options.stream, options.target)} Or set createTopic=true to make it.")


def _range(client: Client, where: Where, low: int, high: int) -> Messages:
    """The messages of a range that are there."""
    found: list[Messages] = []
    at = low
    while at < high:
        block = client.poll(where, wire.OFFSET, at, min(BLOCK, high - at))
        some = block.before(high)
        if len(some):
            found.append(some)
        if not len(block) or len(some) < len(block):
            break
        at = int(block.offset[-1]) + 1
    return Messages.joined(found)


def _sdk_headers(pairs: list[tuple[str, str, bytes]]) -> dict[Any, Any] | None:
    """Headers as the SDK takes them."""
    from apache_iggy import HeaderKey, HeaderValue

    return {HeaderKey.String(key): _sdk_value(HeaderValue, kind, value) for key, kind, value in pairs} or None


_FORMATS = {"bool": "?", "int8": "b", "int16": "<h", "int32": "<i", "int64": "<q", "uint8": "B", "uint16": "<H",
            "uint32": "<I", "uint64": "<Q", "float32": "<f", "float64": "<d"}  # fmt: skip


def _sdk_value(kinds: Any, kind: str, value: bytes) -> Any:
    if kind == "raw":
        return kinds.Raw(value)
    if kind == "string":
        return kinds.String(value.decode())
    made = {"int": "Int", "uint": "UnsignedInt", "float": "Float", "bool": "Bool"}
    word = kind.rstrip("0123456789")
    constructor = getattr(kinds, made[word] + kind[len(word) :])
    if kind in ("int128", "uint128"):
        return constructor(int.from_bytes(value, "little", signed=kind == "int128"))
    return constructor(struct.unpack(_FORMATS[kind], value)[0])
