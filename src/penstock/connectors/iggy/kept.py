"""Whether a server has kept the messages that it confirmed. Knows ids and offsets; sends nothing.

A server that confirms from memory loses the end of a partition when it crashes, and a purge takes all of it. So where
the last message of a task is still stored, all before it are stored too.
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

# By partition: the offset of the last message, and which task wrote it.
Last = dict[str, tuple[int, Origin]]


class Written(NamedTuple):
    """The last messages of a query after a batch, and where partitions ended then. Later batches are behind `ends`."""

    batch: int
    last: Last
    ends: Offsets


def check(client: Client, options: IggySinkOptions, last: Last) -> Offsets:
    """Where partitions end. An error where one of these messages is missing and has not expired."""
    infos = client.topic(options.stream, options.target) or []
    partitions = {str(Where(options.stream, options.target, info.id)): info for info in infos}
    for shard, (at, origin) in sorted(last.items()):
        where, info = Where.of(shard), partitions.get(shard)
        if info is None:
            raise lost(where, "it is gone")
        if info.next <= at:
            raise lost(where, f"{origin} wrote up to {at}, and it ends at {info.next - 1}")
        if not info.messages:  # all of them have expired
            continue
        message = polls.after(client, where, at, 1, info).part(0, 1)
        mine, _ = rows.rows_of(rows.name(origin), message.high, message.low)
        if not mine.any() and polls.begin(client, where, info) <= at:
            raise lost(where, f"its message {at} is no longer the one that {origin} wrote")
    return {shard: Position(info.next, info.created) for shard, info in partitions.items()}


def lost(where: Where, why: str) -> ConnectError:
    """The error for messages that a server confirmed and then lost."""
    return ConnectError(
        f"'{where}' has lost what was written to it: {why}. The topic was purged or made again, or its server lost "
        "what it had confirmed. What is missing of this batch is written again when it is retried; what went with it "
        "of earlier ones is gone. Make topics with durability=persisted."
    )


def check_last(client: Client, options: IggySinkOptions, query: str) -> Written | None:
    """What this process remembers of a query. An error where the topic has lost it, and only once: who starts the query
    again after that error wants it to go on.
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
    """Keep what was written, for the next batch of the query in this process."""
    _memory()[_key(options, query)] = written


def _key(options: IggySinkOptions, query: str) -> tuple[str, ...]:
    return options.address, options.stream, options.target, query


def _memory() -> dict[tuple[str, ...], Written]:
    memory: dict[tuple[str, ...], Written] = shared("iggy_written", dict)
    return memory
