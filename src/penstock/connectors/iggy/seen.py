"""What of a batch is in a topic already, told by the ids of its messages. Knows polls and ids; sends nothing."""

import logging
import zlib
from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa

from penstock.arrow.buffers import Ints
from penstock.clients.iggy import polls
from penstock.clients.iggy.client import Client, PartitionInfo
from penstock.clients.iggy.wire import Messages, Where, Words
from penstock.connectors.iggy import rows
from penstock.connectors.iggy.kept import lost
from penstock.connectors.iggy.options import IggySinkOptions
from penstock.errors import ConnectError
from penstock.kit.contract import Origin
from penstock.kit.lookback import Block, Outcome, cannot_tell, look_back
from penstock.planning.positions import Offsets

log = logging.getLogger("penstock")


class Seen:
    """The messages of one batch of a query that are in a topic, and up to where every partition is known."""

    def __init__(self, options: IggySinkOptions, origin: Origin, before: Offsets | None = None):
        self.options, self.origin, self.before = options, origin, before
        self.ends: dict[int, int] = {}
        self.created: dict[int, str] = {}
        self.unsure: dict[int, ConnectError] = {}  # partitions where it cannot be told
        self._ours = False  # whether a message of this query was seen, of whatever batch
        self._found: list[tuple[Where, Words, Words, Ints, Ints]] = []  # this batch's messages: ids, checksums, offsets

    def look(self, client: Client, partitions: list[PartitionInfo]) -> None:
        """Look through the end of each partition, once."""
        for info in [info for info in partitions if info.id not in self.ends]:
            where = Where(self.options.stream, self.options.target, info.id)
            if self.before is None:
                self._look_back(client, where, info)
            else:
                self._look_behind(client, where, info, self.before)
            self.ends[info.id], self.created[info.id] = info.next, info.created
        if self.before is None and not self.origin.may_be_first and not self._ours and not self.unsure:
            self._ours = True  # said once
            log.warning(
                "%s is written as new: topic '%s' has nothing of this query. If the query has written to it before, "
                "the topic was purged, or its server lost what it had confirmed",
                self.origin, self.options.target,
            )  # fmt: skip

    def catch_up(self, client: Client, info: PartitionInfo) -> None:
        """Look at what came since."""
        where, seen = Where(self.options.stream, self.options.target, info.id), self.ends[info.id]
        if info.next < seen or info.created != self.created[info.id]:
            raise lost(where, f"it ends at {info.next}, but {self.origin} has seen it up to {seen}")
        for block in polls.between(client, where, seen, info.next, info):
            self._keep(where, block)
        self.ends[info.id] = info.next

    def rows(self, origin: Origin) -> tuple[Ints, Ints]:
        """The rows of a task that are there, in order, and a checksum of each."""
        found = list(self.messages(origin))
        none = np.empty(0, np.int64)
        number, at = np.unique(np.concatenate([none, *(number for _, number, _, _ in found)]), return_index=True)
        return number, np.concatenate([none, *(crc for _, _, crc, _ in found)])[at]

    def messages(self, origin: Origin) -> Iterator[tuple[Where, Ints, Ints, Ints]]:
        """The messages of a task, some at a time: the row of each, its checksum and its offset."""
        task = rows.name(origin)
        for where, high, low, crc, offset in self._found:
            mine, number = rows.rows_of(task, high, low)
            if len(number):
                yield where, number, crc[mine], offset[mine]

    def _look_behind(self, client: Client, where: Where, info: PartitionInfo, before: Offsets) -> None:
        """A batch that began when the partition ended somewhere: its rows lie behind."""
        at = before.get(str(where))
        known = at is not None and at.epoch == info.created and at.next <= info.next
        for block in polls.between(client, where, at.next if at and known else 0, info.next, info):
            self._keep(where, block)

    def _look_back(self, client: Client, where: Where, info: PartitionInfo) -> None:
        """A batch that may have begun at any time: from the end back to where it is clear that no older one matters."""

        def look(low: int, high: int) -> Block:
            batches = self._keep(where, Messages.joined(list(polls.between(client, where, low, high, info))))
            return Block(bool(len(batches)), bool((batches < self.origin.batch).any()))

        outcome = Outcome(info.next, info.next == 0, True)
        if info.messages:
            first = partial(polls.begin, client, where, info)
            outcome = look_back(info.next, first, look, limit=self.options.look_back, block=polls.BLOCK)
        if not outcome.settled and outcome.at > 0 and not self.origin.may_be_first:
            why = (
                f"what could tell has been deleted, or lies behind {self.options.look_back:,} messages of others "
                "(lookBack)"
            )
            remedy = "Let the topic keep messages for longer than the query may be stopped."
            self.unsure[where.partition] = cannot_tell(self.origin, f"'{where}'", why, remedy)

    def _keep(self, where: Where, block: Messages) -> Ints:
        """Of this batch's messages, what tells them apart; not what they hold. The batches of all that are ours."""
        task = rows.name(self.origin)
        batches = rows.batches_of(task, block.high, block.low)
        if (batches > self.origin.batch).any():
            raise self.origin.overtaken(int(batches.max()))
        self._ours |= bool(len(batches))
        mine = rows.of_batch(task, block.high, block.low)
        if mine.any():
            values = block.value.filter(pa.array(mine)).to_pylist()
            sums = np.array([zlib.crc32(value) for value in values], np.int64)
            self._found.append((where, block.high[mine], block.low[mine], sums, block.offset[mine]))
        return batches
