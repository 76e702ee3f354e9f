"""Polls with reliable answers. Knows messages and partitions; no rows and no Spark.

A server that cannot read for a moment answers a poll without messages, or leaves some out. So an empty answer before
the end of a partition is a failure, which is retried. After a recovery offsets may have gaps: a gap counts if two polls
show it, and only where a later message follows.
"""

import time
from collections.abc import Iterator

import numpy as np

from penstock.clients.iggy import wire
from penstock.clients.iggy.client import Client, PartitionInfo
from penstock.clients.iggy.wire import Messages, Where
from penstock.errors import Disconnected
from penstock.kit import retry

# Messages of one poll.
BLOCK = 5000


def begin(client: Client, where: Where, info: PartitionInfo) -> int:
    """The offset of the first message; the next offset where there is none."""
    if not info.messages:
        return info.next
    offsets: list[int] = []
    while len(offsets) < 2 and 0 not in offsets:
        first = client.poll(where, wire.FIRST, 0, 1)
        if not len(first):
            raise _unread(where, 0, info)
        offsets.append(int(first.offset[0]))
    return min(offsets)


def after(client: Client, where: Where, at: int, count: int, info: PartitionInfo) -> Messages:
    """Messages from `at` on, which must be below the end: at least one, about `count`, with no gap between them."""
    messages = client.poll(where, wire.OFFSET, at, count)
    while not len(messages) and count < info.next - at:  # all `count` offsets may be in a gap
        count = min(2 * count, info.next - at)
        messages = client.poll(where, wire.OFFSET, at, count)
    if not len(messages):
        raise _unread(where, at, info)
    while messages.offset[0] > at:
        # Messages that the server could not read before may be readable now.
        time.sleep(client.options.retry_delay or retry.FIRST_WAIT)
        again = client.poll(where, wire.OFFSET, at, int(messages.offset[0]) - at + 1)
        if not len(again):
            raise _unread(where, at, info)
        if again.offset[0] >= messages.offset[0]:
            break
        messages = again
    gaps = np.flatnonzero(np.diff(messages.offset) != 1)
    return messages.part(0, int(gaps[0]) + 1) if len(gaps) else messages


def between(client: Client, where: Where, low: int, high: int, info: PartitionInfo) -> Iterator[Messages]:
    """All messages in [low, high), a block at a time. `high` is at most the end."""
    while low < high and info.messages:
        messages = after(client, where, low, min(BLOCK, high - low), info)
        yield messages.before(high)
        low = int(messages.offset[-1]) + 1


def _unread(where: Where, at: int, info: PartitionInfo) -> Disconnected:
    return Disconnected(
        f"Iggy gives no message of '{where}' from {at} on, though it says that there are {info.messages:,} up to "
        f"{info.next - 1}: it cannot read them now, as its log will say. After a recovery the last offsets may be "
        "unused; then this ends with the next message that is sent to the partition"
    )
