"""How far a query is behind: records, bytes, and the age of the oldest unread record. Asks a Source for one record;
knows no Spark.
"""

import time
from contextlib import suppress

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.kit.contract import Holding, Source, Sparse
from penstock.planning.positions import Bounds, Offsets, Range

# A look for the oldest record costs a request for each shard: once a second, in the shards with the most to read.
AGE_EVERY = 1.0
SHARDS = 4
# How far behind a position its next record is searched. Deleted records leave gaps, and filters leave records out.
REACH = 16


class Behind:
    """What one run of a query has still to read. Remembers the age for a second."""

    def __init__(self, source: Source):
        self.source = source
        self._look_at = float("-inf")
        self._age: int | None = None

    def figures(self, at: Offsets, bounds: Bounds) -> dict[str, int]:
        """`lag` in records (positions of deleted records count as well), `lagBytes` where the server tells sizes, and
        `lagMs`, the age of the oldest unread record, where one was found. Kinesis has only the last.
        """
        if isinstance(self.source, Sparse):
            return {"lagMs": self.source.behind(at)}
        ahead = {s: max(0, b.next - at[s].next) if s in at else b.next - b.first for s, b in bounds.items()}
        total = sum(ahead.values())
        figures = {"lag": total}
        if total and all(bounds[shard].row_bytes for shard, count in ahead.items() if count):
            figures["lagBytes"] = round(sum(count * bounds[shard].row_bytes for shard, count in ahead.items()))
        age = self._oldest(at, bounds, ahead) if total else 0
        return figures if age is None else figures | {"lagMs": age}

    def _oldest(self, at: Offsets, bounds: Bounds, ahead: dict[str, int]) -> int | None:
        if time.monotonic() >= self._look_at:
            largest = sorted((shard for shard, count in ahead.items() if count and shard in at), key=ahead.__getitem__)
            ages = [self._age_of(shard, at, bounds) for shard in largest[-SHARDS:]]
            self._age = max((age for age in ages if age is not None), default=None)
            self._look_at = time.monotonic() + AGE_EVERY
        return self._age

    def _age_of(self, shard: str, at: Offsets, bounds: Bounds) -> int | None:
        """The age of the first record of a shard that is not read; None where there is none near, or it has no time.
        An error here is none of the query's: its next batch will say what is wrong.
        """
        start, bound = max(at[shard].next, bounds[shard].first), bounds[shard]
        with suppress(PenstockError):
            for reach in (1, REACH):  # a record may be large: the next ones are read only where it is gone
                for batch in self._read(Range(shard, start, min(bound.next, start + reach), bound.epoch)):
                    if len(batch) and "timestamp" in batch.schema.names:
                        stored = batch.column("timestamp").cast("int64")[0].as_py()  # microseconds
                        return int(max(0, time.time_ns() // 1_000_000 - stored // 1000))
        return None

    def _read(self, span: Range) -> list[pa.RecordBatch]:
        return self.source.ship(span) if isinstance(self.source, Holding) else list(self.source.read(span))
