"""A journal as tests handle it: written, trimmed and deleted by hand, and with a note of every call of a query."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from penstock.connectors.journal import Journal
from penstock.connectors.journal.log import Log, lines
from penstock.connectors.journal.options import JournalOptions
from penstock.connectors.journal.source import JournalSource
from penstock.kit.contract import Source
from penstock.planning.positions import Offsets, Range

BEGAN = 1_700_000_000_000_000


class JournalLog:
    """A folder of logs."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def make(self, shard: str) -> None:
        """Make a log."""
        Log(self.folder / shard).make()

    def append(self, shard: str, values: Sequence[str]) -> None:
        """More rows, a millisecond apart."""
        log = Log(self.folder / shard)
        with log.locked() as file:
            for number, value in enumerate(values, log.count()):
                file.write(lines([("", value.encode())], BEGAN + 1000 * number))

    def trim(self, shard: str, count: int) -> None:
        """Delete the first rows that are kept."""
        (self.folder / shard / "first").write_text(str(Log(self.folder / shard).first + count))

    def delete(self, shard: str) -> None:
        """Delete a log."""
        shutil.rmtree(self.folder / shard)

    def options(self) -> dict[str, str]:
        """What a query needs to read all logs."""
        return {"directory": str(self.folder)}

    def target(self) -> dict[str, str]:
        """What a query needs to write to a log of its own."""
        self.make("out")
        return {"directory": str(self.folder), "shard": "out"}

    def written(self) -> list[str]:
        """The values in that log, in order."""
        return [row.value.decode() for row in Log(self.folder / "out").rows()]

    def calls(self) -> list[str]:
        """What queries through `NotedJournal` asked for."""
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []


class NotedSource(JournalSource):
    """Notes what a query asks for in the file `calls`."""

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        """The rows of a range."""
        self._note(f"read {span.shard} {span.start} {span.end}")
        return super().read(span)

    def progress(self, at: Offsets) -> None:
        """Where the query stands."""
        self._note(f"progress {sorted((shard, position.next) for shard, position in at.items())}")

    def commit(self, end: Offsets) -> None:
        """How far Spark has committed."""
        self._note(f"commit {sorted((shard, position.next) for shard, position in end.items())}")

    def _note(self, call: str) -> None:
        with (self.folder / "calls").open("a") as file:
            file.write(call + "\n")


class NotedJournal(Journal):
    """A journal whose calls are noted."""

    @classmethod
    def open_source(cls, options: JournalOptions) -> Source:
        """A source that notes its calls."""
        return NotedSource(options, cls.columns(options))
