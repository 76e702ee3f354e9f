"""Polls whose answers can be believed. Knows messages and partitions; knows no rows and no Spark.

A server that cannot read for a moment answers a poll without any messages, or leaves some out. So an empty answer
below the end of a partition is a failure, to be asked again, and a jump is believed when it is there twice. Offsets may
have gaps, after a recovery, but only a later message proves one.
"""

import time
from collections.abc import Iterator

import numpy as np

from penstock.clients.iggy import wire
from penstock.clients.iggy.client import Client, PartitionInfo
from penstock.clients.iggy.wire import Messages, Where
from penstock.errors import Disconnected
from penstock.kit import retry

# So many messages are looked through at once.
BLOCK = 5000


def begin(client: Client, where: Where, info: PartitionInfo) -> int:
    """The offset of the first message; the end where there is none."""
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
    """At least one message, from `at` on, which must lie below the end: about `count` of them, without a gap inside."""
    found = client.poll(where, wire.OFFSET, at, count)
    while not len(found) and count < info.next - at:  # a server may look at `count` offsets, and all may be in a gap
        count = min(2 * count, info.next - at)
        found = client.poll(where, wire.OFFSET, at, count)
    if not len(found):
        raise _unread(where, at, info)
    while found.offset[0] > at:
        # What could not be read a moment ago may be there now.
        time.sleep(client.options.retry_delay or retry.FIRST_WAIT)
        again = client.poll(where, wire.OFFSET, at, int(found.offset[0]) - at + 1)
        if not len(again):
            raise _unread(where, at, info)
        if again.offset[0] >= found.offset[0]:
            break
        found = again
    gaps = np.flatnonzero(np.diff(found.offset) != 1)
    return found.part(0, int(gaps[0]) + 1) if len(gaps) else found


def between(client: Client, where: Where, low: int, high: int, info: PartitionInfo) -> Iterator[Messages]:
    """All messages from `low` on and below `high`, which is at most the end, some at a time."""
    while low < high and info.messages:
        found = after(client, where, low, min(BLOCK, high - low), info)
        yield found.before(high)
        low = int(found.offset[-1]) + 1


def _unread(where: Where, at: int, info: PartitionInfo) -> Disconnected:
    return Disconnected(
        f"Iggy gives no message of '{where}' from {at} on, though it says that there are {info.messages:,} up to "
        f"{info.next - 1}: it cannot read them now, as its log will say. After a recovery the last offsets may be "
        "unused; then this ends with the next message that is sent to the partition"
    )
