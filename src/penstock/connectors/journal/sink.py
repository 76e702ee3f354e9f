"""The contract for writing a journal: each row has its name beside it, by which a later attempt knows it again."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from penstock.connectors.journal.log import Log, lines
from penstock.connectors.journal.options import JournalSinkOptions
from penstock.kit.contract import Origin, Receipt
from penstock.kit.rows import BYTES, accept


class JournalSink:
    """Appends to one log."""

    def __init__(self, options: JournalSinkOptions, columns: pa.Schema):
        accept("journal", columns, {"value": BYTES})
        self.log, self.exactly_once = Log(options.directory / options.shard), options.delivery == "exactly_once"

    def check(self) -> None:
        """Make the log where it is not there."""
        self.log.make()

    def write(self, batches: Iterator[pa.RecordBatch], origin: Origin) -> Receipt:
        """Append the rows that no earlier attempt has written."""
        self.log.make()
        rows = known = size = 0
        with self.log.locked() as file:
            written = {row.name for row in self.log.rows()} if self.exactly_once else set()
            for batch in batches:
                values = batch.column("value").cast(pa.binary()).fill_null(b"").to_pylist()
                named = [(f"{origin.id}{rows + number}", value) for number, value in enumerate(values)]
                new = [(name, value) for name, value in named if name not in written]
                file.write(lines(new))
                rows, known, size = rows + len(named), known + len(named) - len(new), size + sum(map(len, values))
        return Receipt(origin, rows, size, known=known)

    def commit(self, receipts: Sequence[Receipt], batch: int | None) -> None:
        """Does nothing: every row is written by its task."""

    def close(self) -> None:
        """Does nothing: no file stays open."""
