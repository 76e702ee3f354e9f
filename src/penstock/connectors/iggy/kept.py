"""Whether a server has kept what it confirmed. Knows ids and offsets; sends nothing.

A server that confirms from memory loses the end of a partition when it crashes, and a purge takes all of it. So where
the last message of a task still is, all before it are there too.
"""

from typing import NamedTuple

from penstock.clients.iggy import polls
from penstock.clients.iggy.client import Client
from penstock.clients.iggy.wire import Where
from penstock.connectors.iggy import rows
from penstock.connectors.iggy.options import IggySinkOptions
from penstock.errors import ConnectError, Disconnected
from penstock.kit.contract import Origin
from penstock.kit.process_cache import shared
from penstock.planning.positions import Offsets, Position

# By partition: the offset of a message, and who wrote it.
Last = dict[str, tuple[int, Origin]]


class Written(NamedTuple):
    """What a query has written up to a batch, and where the partitions ended then: later batches lie behind."""

    batch: int
    last: Last
    ends: Offsets


def check(client: Client, options: IggySinkOptions, last: Last) -> Offsets:
    """Refuse a topic where one of these messages is not there, unless it has expired. Says where partitions end."""
    found = client.topic(options.stream, options.target) or []
    partitions = {str(Where(options.stream, options.target, info.id)): info for info in found}
    for shard, (at, origin) in sorted(last.items()):
        where, info = Where.of(shard), partitions.get(shard)
        if info is None:
            raise lost(where, "it is gone")
        if info.next <= at:
            raise lost(where, f"{origin} wrote up to {at}, and it ends at {info.next - 1}")
        if not info.messages:  # retention took all of them
            continue
        message = polls.after(client, where, at, 1, info).part(0, 1)
        mine, _ = rows.rows_of(rows.name(origin), message.high, message.low)
        if not mine.any() and polls.begin(client, where, info) <= at:
            raise lost(where, f"its message {at} is no longer the one that {origin} wrote")
    return {shard: Position(info.next, info.created) for shard, info in partitions.items()}


def lost(where: Where, why: str) -> ConnectError:
    """The error for messages that a server had confirmed, and has no more."""
    return ConnectError(
        f"'{where}' has lost what was written to it: {why}. The topic was purged or made again, or its server lost "
        "what it had confirmed. What is missing of this batch is written again when it is retried; what went with it "
        "of earlier ones is gone. Make topics with durability=persisted."
    )


def check_last(client: Client, options: IggySinkOptions, query: str) -> Written | None:
    """What this process has last seen of a query. Refuses a topic that has lost it, once: whoever was told and starts
    the query again wants it to go on.
    """
    written = _memory().get(_key(options, query))
    try:
        if written is not None:
            check(client, options, written.last)
    except Disconnected:
        raise
    except ConnectError:
        del _memory()[_key(options, query)]
        raise
    return written


def remember(options: IggySinkOptions, query: str, written: Written) -> None:
    """For the next batch of a query in this process."""
    _memory()[_key(options, query)] = written


def _key(options: IggySinkOptions, query: str) -> tuple[str, ...]:
    return options.address, options.stream, options.target, query


def _memory() -> dict[tuple[str, ...], Written]:
    memory: dict[tuple[str, ...], Written] = shared("iggy_written", dict)
    return memory
