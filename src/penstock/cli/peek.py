"""The newest records of a source, without Spark. Must not know any server."""

import time
from typing import Any

import pyarrow as pa

from penstock.errors import OptionError
from penstock.kit.contract import Source, Sparse
from penstock.options import alias
from penstock.planning.positions import Bound, Bounds, Range

# Options that say where to begin or end, and so do not go with the newest records.
_PLACES = ("starting_offsets", "starting_timestamp", "ending_offsets", "ending_timestamp", "max_records")


def newest(connector: Any, given: dict[str, str], count: int) -> list[dict[str, Any]]:
    """The last `count` records over all shards, oldest first.

    What can only be listened to, or takes from others what it reads, is refused.
    """
    options = connector.parse(given)
    refuse_unkept(connector, options, "peek")
    refuse_places(options, "peek")
    source = connector.open_source(options)
    try:
        found = last(connector, options, source, source.bounds(), count)
    finally:
        source.close()
    shown: list[dict[str, Any]] = found.to_pylist()
    return shown


def refuse_unkept(connector: Any, options: Any, command: str) -> None:
    """Refuse what can only be listened to, takes from others what it reads, or shows no records."""
    why = connector.only_streams(options) or connector.only_batches(options)
    if why is not None:
        raise OptionError(f"{command} reads the end of what is stored, and cannot do so here: {why}.")


def refuse_places(options: Any, command: str) -> None:
    """Refuse options that say where to begin or end."""
    for name in _PLACES:
        if getattr(options, name) is not None:
            raise OptionError(
                f"{command} shows the newest records, and '{alias(name)}' does not change that. Leave it out."
            )


def last(connector: Any, options: Any, source: Source, bounds: Bounds, count: int) -> pa.Table:
    """The last `count` records before the ends of `bounds`. Reads back further while filters or gaps hide them.

    Shards follow one another where the rows do not say when and where they were stored, as those of a table of
    changes may not.
    """
    tables: list[pa.Table] = [connector.columns(options).empty_table()]
    for shard, bound in bounds.items() if count else ():
        reach = count
        while True:
            span = Range(shard, _start(source, shard, bound, reach), bound.next, bound.epoch)
            batches = list(source.read(span)) if span.length else []
            rows = pa.Table.from_batches(batches, schema=connector.columns(options))
            if len(rows) >= count or span.start == bound.first or not (span.length or isinstance(source, Sparse)):
                break
            reach *= 8
        tables.append(rows)
    everything = pa.concat_tables(tables)
    order = ("timestamp", "sequence") if connector.pushes(options) else ("_timestamp", "_sequence")
    sorting = [(name, "ascending") for name in order if name in everything.column_names]
    if sorting:
        everything = everything.sort_by(sorting)
    return everything.slice(max(0, len(everything) - count))


def _start(source: Source, shard: str, bound: Bound, reach: int) -> int:
    """A position that many records before the end, or seconds where positions do not count records."""
    if not isinstance(source, Sparse):
        return max(bound.first, bound.next - reach)
    seconds = min(reach, 400 * 86_400)  # more than anything is kept for
    if seconds < reach:
        return bound.first
    return source.find(shard, time.time_ns() // 1000 - seconds * 1_000_000)
