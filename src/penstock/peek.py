"""The newest records of a source, without Spark."""

from typing import Any

import pyarrow as pa

from penstock.errors import OptionError
from penstock.offsets import Range
from penstock.options import alias


def newest(connector: Any, given: dict[str, str], count: int) -> list[dict[str, Any]]:
    """The last `count` records over all shards, oldest first. Reads back further while filters or gaps hide them."""
    options = connector.parse(given)
    for name in ("starting_offsets", "starting_timestamp", "ending_offsets", "ending_timestamp", "max_records"):
        if getattr(options, name) is not None:
            raise OptionError(f"peek shows the newest records, and '{alias(name)}' does not change that. Leave it out.")
    source = connector.open_source(options)
    found: list[pa.Table] = []
    try:
        for shard, bound in source.bounds().items():
            reach = count
            while True:
                span = Range(shard, max(bound.first, bound.next - reach), bound.next, bound.epoch)
                batches = list(source.read(span)) if len(span) else []
                rows = pa.Table.from_batches(batches, schema=connector.columns(options))
                if len(rows) >= count or span.start == bound.first or not len(span):
                    break
                reach *= 8
            found.append(rows)
    finally:
        source.close()
    if not found:
        return []
    everything = pa.concat_tables(found).sort_by([("timestamp", "ascending"), ("sequence", "ascending")])
    shown: list[dict[str, Any]] = everything.slice(max(0, len(everything) - count)).to_pylist()
    return shown
