"""The contract for a journal: a shard is a log, a position the number of a row."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from penstock.arrow.types import HEADERS, TIMESTAMP
from penstock.connectors.journal.log import Log
from penstock.connectors.journal.options import JournalOptions
from penstock.errors import OptionError
from penstock.kit.loss import LossReport
from penstock.planning.positions import Bound, Bounds, Offsets, Position, Range, lost

BATCH = 1000


class JournalSource:
    """All logs of a folder."""

    def __init__(self, options: JournalOptions, columns: pa.Schema):
        self.folder, self.columns, self.losses = options.directory, columns, LossReport(options)

    def check(self) -> None:
        """Refuse a folder that is not there."""
        if not self.folder.is_dir():
            raise OptionError(f"folder '{self.folder}' does not exist. Check the option 'directory'.")

    def bounds(self) -> Bounds:
        """Both ends of every log."""
        self.check()
        logs = [Log(epoch.parent) for epoch in sorted(self.folder.glob("*/epoch"))]
        return {log.folder.name: self._bound(log) for log in logs}

    def _bound(self, log: Log) -> Bound:
        count = log.count()
        return Bound(log.first, count, log.epoch, (log.folder / "rows").stat().st_size / max(1, count))

    def find(self, shard: str, timestamp: int) -> int:
        """The first row that is not older."""
        log = Log(self.folder / shard)
        rows = log.rows()
        return next((number for number in range(log.first, len(rows)) if rows[number].time >= timestamp), len(rows))

    def count(self, shard: str, positions: Sequence[int]) -> Sequence[int] | None:
        """None: positions are consecutive."""
        return None

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        """The rows of a range. What was deleted since it was planned is reported."""
        bounds = self.bounds()
        losses = lost({span.shard: Position(span.start, span.epoch)}, bounds)
        self.losses.lost(losses, span.end)
        if any(loss.kind != "trimmed" for loss in losses):
            return
        rows = Log(self.folder / span.shard).rows()
        for low in range(max(span.start, bounds[span.shard].first), span.end, BATCH):
            some = rows[low : min(low + BATCH, span.end)]
            arrays = {
                "value": pa.array([row.value for row in some], pa.binary()),
                "headers": pa.nulls(len(some), HEADERS),
                "timestamp": pa.array([row.time for row in some], pa.int64()).view(TIMESTAMP),
                "stream": pa.repeat(span.shard, len(some)),
                "sequence": pa.array(range(low, low + len(some)), pa.int64()),
            }
            yield pa.RecordBatch.from_arrays([arrays[field.name] for field in self.columns], schema=self.columns)

    def progress(self, at: Offsets) -> None:
        """Does nothing: a folder shows no position."""

    def commit(self, end: Offsets) -> None:
        """Does nothing: rows stay."""

    def close(self) -> None:
        """Does nothing: no file stays open."""
