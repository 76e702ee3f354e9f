"""What an upsert sink wrote, read back as the changes to a table, or as the table that they lead to."""

import json
import logging
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.json import names
from penstock.arrow.types import TIMESTAMP
from penstock.clients.s2.records import Records
from penstock.connectors.s2.options import S2SourceOptions
from penstock.connectors.s2.rows import parts
from penstock.connectors.s2.source import S2Source
from penstock.errors import OptionError, ProtocolError, nearest
from penstock.kit import figures
from penstock.kit.process_cache import shared
from penstock.planning.positions import Range
from penstock.tables import changes

log = logging.getLogger("penstock")

Flags = npt.NDArray[np.bool_]

# A snapshot gathers so many changes before it looks for the latest of each key.
COMPACT = 100_000


class ChangesSource(S2Source):
    """The same streams and positions; only the rows are others."""

    def __init__(self, options: S2SourceOptions, columns: pa.Schema):
        super().__init__(options, columns)
        own = [field for field in columns if field.name not in (*changes.ACTIONS, *changes.OF_RECORD)]
        self.keys = pa.schema([field for field in own if field.name in options.key_columns])
        self.values = pa.schema([field for field in own if field.name not in options.key_columns])

    def read_many(self, spans: Sequence[Range]) -> Iterator[pa.RecordBatch]:
        """One range at a time: keys are of a stream."""
        for span in self.planned(spans):
            yield from self._read(span)

    def _read(self, span: Range) -> Iterator[pa.RecordBatch]:
        """The changes of a range, or where a snapshot is wanted, the last of each key that is no deletion."""
        waiting: list[pa.Table] = []
        kept = skipped = 0
        absent = _Absent(self.values.names)
        for records in self.records(span):
            records = records.where(~records.commands())
            rows, keys, deletes = parts(records)
            foreign = len(records) - len(rows)
            if foreign and self.options.strict:
                first = int(np.setdiff1d(np.arange(len(records)), rows)[0])
                raise ProtocolError(
                    f"record {int(records.sequence[first])} of stream '{span.shard}' is no change to a table: it has "
                    "no headers @key and @action. Set strict=false to skip such records."
                )
            skipped += foreign
            figures.count(skipped=foreign)
            if not len(rows):
                continue
            wanted = np.zeros(len(records), bool)
            wanted[rows] = True
            written = records.where(wanted)
            made = self._changes(span.shard, written, keys, deletes)
            absent.look(made, written.value.filter(pa.array(~deletes)))
            if not self.options.snapshot:
                yield made
                continue
            more = pa.Table.from_batches([made]).append_column("@gone", pa.array(deletes))
            waiting.append(more)
            if sum(map(len, waiting)) > 2 * kept + COMPACT:  # not at every turn: each looks at all of them
                waiting = [changes.latest(pa.concat_tables(waiting), self.keys.names)]
                kept = len(waiting[0])
        if skipped:
            log.warning("stream '%s': skipped %d records that are no changes to a table", span.shard, skipped)
        absent.tell(span.shard)
        if waiting:
            table = changes.latest(pa.concat_tables(waiting), self.keys.names)
            left = table.filter(pc.invert(table["@gone"])).drop_columns(["@gone"])
            yield from left.combine_chunks().to_batches()

    def _changes(self, stream: str, records: Records, keys: pa.Array, deletes: Flags) -> pa.RecordBatch:
        made = changes.decode(keys, self.keys, f"@key in stream '{stream}'", records.sequence)
        for name, column in made.items():
            if column.null_count:
                at = pc.index(pc.is_null(column), True).as_py()
                raise OptionError(
                    f"record {int(records.sequence[at])} of stream '{stream}' has {keys[at].as_py()[:60]!r} as @key, "
                    f"in which there is no '{name}'. Set keyColumns to the columns that the sink had as its key."
                )
        made |= changes.decode(records.value, self.values, f"body in stream '{stream}'", records.sequence)
        gone = pa.array(deletes)
        own: dict[str, Callable[[], pa.Array]] = {
            "_action": lambda: pc.if_else(gone, "d", "u"),
            "_change_type": lambda: pc.if_else(gone, "delete", "update_postimage"),
            "_stream": lambda: pa.repeat(pa.scalar(stream, pa.string()), len(records)),
            "_sequence": lambda: pa.array(records.sequence),
            "_timestamp": lambda: pa.array(records.timestamp * 1000).view(TIMESTAMP),
        }
        columns = [own[f.name]() if f.name in own else made[f.name] for f in self.columns]
        return pa.RecordBatch.from_arrays(
            [c.cast(f.type) for c, f in zip(columns, self.columns, strict=True)], schema=self.columns
        )


class _Absent:
    """The columns that no change of a range has: misspelt, or newer than all of them. Both are null in every row."""

    def __init__(self, names: Sequence[str]):
        self.names, self.updates, self.last = list(names), 0, b"{}"

    def look(self, rows: pa.RecordBatch, bodies: pa.Array) -> None:
        """Some more rows, and the bodies of those that are no deletions."""
        if not len(bodies):
            return
        self.updates, self.last = self.updates + len(bodies), bodies[-1].as_py()
        self.names = [
            name
            for name in self.names
            if rows.column(name).null_count == len(rows)
            and not pc.any(pc.match_substring(bodies, json.dumps(name, ensure_ascii=False).encode())).as_py()
        ]

    def tell(self, stream: str) -> None:
        """Warn of them, once in a process: a stream query would say so in every batch."""
        told: set[tuple[str, str]] = shared("s2_missing_columns", set)
        for name in self.names if self.updates else ():
            if (stream, name) not in told:
                told.add((stream, name))
                there = names(self.last)
                log.warning(
                    "stream '%s': the schema has a column '%s', but none of %d changes that were read has it: it is "
                    "null in all of their rows. %s",
                    stream,
                    name,
                    self.updates,
                    nearest(name, there),
                )
