"""The contract for a journal: a shard is a log, a position the number of a row."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from penstock.arrow.types import HEADERS, TIMESTAMP
from penstock.connectors.journal.log import Log
from penstock.connectors.journal.options import JournalOptions
from penstock.errors import OptionError
from penstock.planning.positions import Bound, Bounds, Offsets, Range

BATCH = 1000


class JournalSource:
    """All logs of a folder."""

    def __init__(self, options: JournalOptions, columns: pa.Schema):
        self.folder, self.columns = options.directory, columns

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
        rows = Log(self.folder / shard).rows()
        return next((number for number, row in enumerate(rows) if row.time >= timestamp), len(rows))

    def count(self, shard: str, positions: Sequence[int]) -> Sequence[int] | None:
        """Numbers have no gaps: they count well enough."""
        return None

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        """The rows of a range."""
        log = Log(self.folder / span.shard)
        rows, start = log.rows(), max(span.start, log.first)
        for low in range(start, span.end, BATCH):
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
        """No tool of a folder shows readers."""

    def commit(self, end: Offsets) -> None:
        """Rows stay, whoever has read them."""

    def close(self) -> None:
        """No file stays open."""
