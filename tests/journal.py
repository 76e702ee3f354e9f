"""A log in a folder, as a connector: proves the adapter without any server, and is the one to copy.

A shard is a sub-folder with the files `epoch`, `first` (a number) and `rows` (a line a row: microseconds,
a tab, the value). Everything a query does to it is noted in the file `calls`.
"""

import fcntl
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from penstock.contract import Origin, ReadOptions, Receipt, Sink, Source, WriteOptions
from penstock.errors import OptionError
from penstock.offsets import Bound, Bounds, Offsets, Range
from penstock.options import option
from penstock.record import HEADERS, accept, columns, is_bytes
from penstock.spark import Connector


class JournalOptions(ReadOptions):
    directory: Path = option(doc="Folder of the log.")


class JournalSource:
    def __init__(self, options: JournalOptions, columns: pa.Schema):
        self.folder, self.columns = options.directory, columns

    def check(self) -> None:
        self.bounds()

    def bounds(self) -> Bounds:
        if not self.folder.is_dir():
            raise OptionError(f"folder '{self.folder}' does not exist.")
        found = {}
        for shard in sorted(p for p in self.folder.iterdir() if p.is_dir()):
            first, count = int((shard / "first").read_text()), (shard / "rows").read_bytes().count(b"\n")
            found[shard.name] = Bound(first, count, (shard / "epoch").read_text(), 10.0)
        return found

    def find(self, shard: str, timestamp: int) -> int:
        rows = self._rows(shard)
        return next((i for i, (at, _) in enumerate(rows) if at >= timestamp), len(rows))

    def count(self, shard: str, positions: Sequence[int]) -> Sequence[int] | None:
        return None

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        self._note(f"read {span.shard} {span.start} {span.end}")
        rows = self._rows(span.shard)
        first = int((self.folder / span.shard / "first").read_text())
        at = list(range(max(span.start, first), span.end))
        for low in range(0, len(at), 100):
            part = at[low : low + 100]
            made = {
                "value": pa.array([rows[i][1] for i in part], pa.binary()),
                "headers": pa.nulls(len(part), HEADERS),
                "timestamp": pa.array([rows[i][0] for i in part], pa.int64()).view(pa.timestamp("us", "UTC")),
                "stream": pa.array([span.shard] * len(part), pa.string()),
                "sequence": pa.array(part, pa.int64()),
            }
            yield pa.RecordBatch.from_arrays([made[f.name] for f in self.columns], schema=self.columns)

    def progress(self, at: Offsets) -> None:
        self._note(f"progress {sorted((s, p.next) for s, p in at.items())}")

    def commit(self, end: Offsets) -> None:
        self._note(f"commit {sorted((s, p.next) for s, p in end.items())}")

    def close(self) -> None:
        pass

    def _rows(self, shard: str) -> list[tuple[int, bytes]]:
        lines = (self.folder / shard / "rows").read_bytes().splitlines()
        return [(int(at), value) for at, _, value in (line.partition(b"\t") for line in lines)]

    def _note(self, call: str) -> None:
        with (self.folder / "calls").open("a") as file:
            file.write(call + "\n")


class JournalSinkOptions(WriteOptions):
    directory: Path = option(doc="Folder of the log.")
    shard: str = option("out", doc="Shard to write to.")


class JournalSink:
    """Appends to a shard. The names of the rows that are there lie beside them, which is how it knows them again."""

    def __init__(self, options: JournalSinkOptions, columns: pa.Schema):
        accept("journal", columns, {"value": is_bytes})
        self.folder, self.once = options.directory / options.shard, options.delivery == "exactly_once"

    def write(self, batches: Iterator[pa.RecordBatch], origin: Origin) -> Receipt:
        rows = known = 0
        with (self.folder / "rows").open("rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            names = (self.folder / "names").read_text().splitlines() if (self.folder / "names").exists() else []
            there = set(names) if self.once else set()
            file.seek(0, 2)
            for batch in batches:
                for value in batch.column("value").cast(pa.binary()).to_pylist():
                    name, rows = f"{origin.id}{rows}", rows + 1
                    if name in there:
                        known += 1
                        continue
                    file.write(b"%d\t%s\n" % (1_800_000_000_000_000, value))
                    with (self.folder / "names").open("a") as listed:
                        listed.write(name + "\n")
        return Receipt(origin, rows, known=known)

    def commit(self, receipts: Sequence[Receipt], batch: int | None) -> None:
        pass

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass


class Journal(Connector):
    """A folder of files."""

    format = "journal"
    options_type = JournalOptions
    sink_options_type = JournalSinkOptions
    replayable = True
    exactly_once = True

    @classmethod
    def columns(cls, options: JournalOptions) -> pa.Schema:
        return columns(headers=options.include_headers)

    @classmethod
    def open_source(cls, options: JournalOptions) -> Source:
        return JournalSource(options, cls.columns(options))

    @classmethod
    def open_sink(cls, options: JournalSinkOptions, columns: pa.Schema) -> Sink:
        return JournalSink(options, columns)


class JournalLog:
    """The writer's side: what a test does to the log."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._life = 0

    def make(self, shard: str) -> None:
        self._life += 1
        (self.folder / shard).mkdir()
        (self.folder / shard / "epoch").write_text(f"life-{self._life}")
        (self.folder / shard / "first").write_text("0")
        (self.folder / shard / "rows").write_text("")

    def append(self, shard: str, values: Sequence[str]) -> None:
        with (self.folder / shard / "rows").open("a") as file:
            count = (self.folder / shard / "rows").read_bytes().count(b"\n")
            file.writelines(f"{1_700_000_000_000_000 + 1000 * (count + i)}\t{v}\n" for i, v in enumerate(values))

    def trim(self, shard: str, count: int) -> None:
        first = int((self.folder / shard / "first").read_text())
        (self.folder / shard / "first").write_text(str(first + count))

    def delete(self, shard: str) -> None:
        for file in (self.folder / shard).iterdir():
            file.unlink()
        (self.folder / shard).rmdir()

    def options(self) -> dict[str, str]:
        return {"directory": str(self.folder)}

    def target(self) -> dict[str, str]:
        """The options to write to a shard of its own."""
        if not (self.folder / "out").exists():
            self.make("out")
        return {"directory": str(self.folder), "shard": "out"}

    def written(self) -> list[str]:
        """The values that are there, in order."""
        return [line.partition("\t")[2] for line in (self.folder / "out" / "rows").read_text().splitlines()]

    def calls(self) -> list[str]:
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []
