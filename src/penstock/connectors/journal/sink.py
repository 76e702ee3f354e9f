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
            written = {row.name: row.value for row in self.log.rows()} if self.exactly_once else {}
            for batch in batches:
                values = batch.column("value").cast(pa.binary()).fill_null(b"").to_pylist()
                named = [(f"{origin.id}{rows + number}", value) for number, value in enumerate(values)]
                if changed := [name for name, value in named if written.get(name, value) != value]:
                    raise origin.differs(f"{changed[0]} was {written[changed[0]][:40]!r} then")
                new = [(name, value) for name, value in named if name not in written]
                file.write(lines(new))
                rows, known, size = rows + len(named), known + len(named) - len(new), size + sum(map(len, values))
        return Receipt(origin, rows, size, known=known)

    def commit(self, receipts: Sequence[Receipt], batch: int | None) -> None:
        """Every row is written by its task. An error where rows of this batch are there that are not in it now."""
        now = {f"{receipt.origin.id}{row}" for receipt in receipts for row in range(receipt.rows)}
        if now and self.exactly_once:
            origin = receipts[0].origin
            written = [row.name for row in self.log.rows() if row.name.startswith(f"{origin.query}/{origin.batch}/")]
            if gone := [name for name in written if name not in now]:
                raise origin.differs(f"{gone[0]} was there then. Its row came in another task, and may be there twice")

    def close(self) -> None:
        """Does nothing: no file stays open."""
