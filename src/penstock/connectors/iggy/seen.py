"""Which rows of a batch a topic already has, by the ids of its messages. Knows polls and ids; sends nothing."""

import logging
import zlib
from collections.abc import Collection, Iterator
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
    """The messages that a topic has of one batch of a query. `ends`: every partition was searched up to there.

    `before`: where partitions ended before the batch began. Without it, the end of each partition is searched.
    `tasks`: those of the batch that have rows; None where only the driver knows.
    """

    def __init__(
        self,
        options: IggySinkOptions,
        origin: Origin,
        before: Offsets | None = None,
        tasks: Collection[int] | None = None,
    ):
        self.options, self.origin, self.before, self.tasks = options, origin, before, tasks
        self.ends: dict[int, int] = {}
        self.created: dict[int, str] = {}
        self.unsure: dict[int, ConnectError] = {}  # partitions where nothing shows whether rows were written
        self._ours = False  # whether a message of this query was seen, of any batch
        self._messages: list[tuple[Where, Words, Words, Ints, Ints]] = []  # of this batch: ids, checksums, offsets

    def look(self, client: Client, partitions: list[PartitionInfo]) -> None:
        """Search the end of each partition that was not searched before. An error where a task had rows that has none
        now.
        """
        for info in partitions:
            if info.id in self.ends:
                continue
            where = Where(self.options.stream, self.options.target, info.id)
            if self.before is None:
                self._look_back(client, where, info)
            else:
                self._look_behind(client, where, info, self.before)
            self.ends[info.id], self.created[info.id] = info.next, info.created
        had = set().union(*(rows.tasks_of(low) for _, _, low, _, _ in self._messages))
        if self.tasks is not None and (moved := had.difference(self.tasks)):
            raise self.origin.moved(moved)
        if self.before is None and not self.origin.may_be_first and not self._ours and not self.unsure:
            self._ours = True  # warns only once
            log.warning(
                "%s is written as new: topic '%s' has nothing of this query. If the query has written to it before, "
                "the topic was purged, or its server lost what it had confirmed",
                self.origin, self.options.target,
            )  # fmt: skip

    def catch_up(self, client: Client, info: PartitionInfo) -> None:
        """Search the messages that came since. An error where the partition was made again or lost messages."""
        where, seen = Where(self.options.stream, self.options.target, info.id), self.ends[info.id]
        if info.next < seen or info.created != self.created[info.id]:
            raise lost(where, f"it ends at {info.next}, but {self.origin} has seen it up to {seen}")
        for block in polls.between(client, where, seen, info.next, info):
            self._keep(where, block)
        self.ends[info.id] = info.next

    def rows(self, origin: Origin) -> tuple[Ints, Ints]:
        """The numbers of the rows of a task that the topic has, in order, and the checksum of each."""
        parts = list(self.messages(origin))
        none = np.empty(0, np.int64)
        number, at = np.unique(np.concatenate([none, *(number for _, number, _, _ in parts)]), return_index=True)
        return number, np.concatenate([none, *(crc for _, _, crc, _ in parts)])[at]

    def messages(self, origin: Origin) -> Iterator[tuple[Where, Ints, Ints, Ints]]:
        """The messages of a task, in parts of one partition: numbers of their rows, checksums and offsets."""
        task = rows.name(origin)
        for where, high, low, crc, offset in self._messages:
            mine, number = rows.rows_of(task, high, low)
            if len(number):
                yield where, number, crc[mine], offset[mine]

    def _look_behind(self, client: Client, where: Where, info: PartitionInfo, before: Offsets) -> None:
        """Search behind where the partition ended before the batch began. All of it where it was made again since."""
        at = before.get(str(where))
        known = at is not None and at.epoch == info.created and at.next <= info.next
        for block in polls.between(client, where, at.next if at and known else 0, info.next, info):
            self._keep(where, block)

    def _look_back(self, client: Client, where: Where, info: PartitionInfo) -> None:
        """Search from the end back to where older messages cannot matter."""

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
        """Keep ids and checksums of the messages of this batch. Returns the batches of all messages of this query.

        An error where one of them is later than this batch.
        """
        task = rows.name(self.origin)
        batches = rows.batches_of(task, block.high, block.low)
        if (batches > self.origin.batch).any():
            raise self.origin.overtaken(int(batches.max()))
        self._ours |= bool(len(batches))
        mine = rows.of_batch(task, block.high, block.low)
        if mine.any():
            values = block.value.filter(pa.array(mine)).to_pylist()
            sums = np.array([zlib.crc32(value) for value in values], np.int64)
            self._messages.append((where, block.high[mine], block.low[mine], sums, block.offset[mine]))
        return batches
