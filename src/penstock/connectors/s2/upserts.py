"""Records of an upsert sink, read as changes to a table, or as the table itself (`snapshot`). Knows no Spark."""

import json
import logging
from collections.abc import Iterator, Sequence

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

# Changes that a snapshot gathers before it looks for the latest of each key.
COMPACT = 100_000


class ChangesSource(S2Source):
    """The streams and positions of S2Source, with the columns of a table as rows."""

    def __init__(self, options: S2SourceOptions, columns: pa.Schema):
        super().__init__(options, columns)
        own = [field for field in columns if field.name not in (*changes.ACTIONS, *changes.OF_RECORD)]
        self.keys = pa.schema([field for field in own if field.name in options.key_columns])
        self.values = pa.schema([field for field in own if field.name not in options.key_columns])

    def read_many(self, spans: Sequence[Range]) -> Iterator[pa.RecordBatch]:
        """The rows of several ranges, one at a time: each stream has keys of its own."""
        for span in self.planned(spans):
            yield from self._read(span)

    def _read(self, span: Range) -> Iterator[pa.RecordBatch]:
        """The changes of a range. With `snapshot`, the last change of each key, without deletions."""
        tables: list[pa.Table] = []
        kept = skipped = 0
        absent = _AbsentColumns(self.values.names)
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
            batch = self._changes(span.shard, written, keys, deletes)
            absent.look(batch, written.value.filter(pa.array(~deletes)))
            if not self.options.snapshot:
                yield batch
                continue
            tables.append(pa.Table.from_batches([batch]).append_column("@gone", pa.array(deletes)))
            if sum(map(len, tables)) > 2 * kept + COMPACT:  # rarely, as `latest` goes through all rows
                tables = [changes.latest(pa.concat_tables(tables), self.keys.names)]
                kept = len(tables[0])
        if skipped:
            log.warning("stream '%s': skipped %d records that are no changes to a table", span.shard, skipped)
        absent.warn(span.shard)
        if tables:
            table = changes.latest(pa.concat_tables(tables), self.keys.names)
            table = table.filter(pc.invert(table["@gone"])).drop_columns(["@gone"])
            yield from table.combine_chunks().to_batches()

    def _changes(self, stream: str, records: Records, keys: pa.Array, deletes: Flags) -> pa.RecordBatch:
        """Records as rows. An error where a key lacks a column."""
        decoded = changes.decode(keys, self.keys, f"@key in stream '{stream}'", records.sequence)
        for name, column in decoded.items():
            if column.null_count:
                at = pc.index(pc.is_null(column), True).as_py()
                raise OptionError(
                    f"record {int(records.sequence[at])} of stream '{stream}' has {keys[at].as_py()[:60]!r} as @key, "
                    f"in which there is no '{name}'. Set keyColumns to the columns that the sink had as its key."
                )
        decoded |= changes.decode(records.value, self.values, f"body in stream '{stream}'", records.sequence)
        columns = [
            _column_of_record(field.name, stream, records, pa.array(deletes))
            if field.name in (*changes.ACTIONS, *changes.OF_RECORD)
            else decoded[field.name]
            for field in self.columns
        ]
        return pa.RecordBatch.from_arrays(
            [column.cast(field.type) for column, field in zip(columns, self.columns, strict=True)], schema=self.columns
        )


def _column_of_record(name: str, stream: str, records: Records, deletes: pa.Array) -> pa.Array:
    """A column that tells of the record, not of the table."""
    match name:
        case "_action":
            return pc.if_else(deletes, "d", "u")
        case "_change_type":
            return pc.if_else(deletes, "delete", "update_postimage")
        case "_stream":
            return pa.repeat(pa.scalar(stream, pa.string()), len(records))
        case "_sequence":
            return pa.array(records.sequence)
        case _:
            return pa.array(records.timestamp * 1000).view(TIMESTAMP)


class _AbsentColumns:
    """The columns that no change of a range has, so that they are null in every row: misspelt, or newer than the
    changes.
    """

    def __init__(self, names: Sequence[str]):
        self.names, self.updates, self.last = list(names), 0, b"{}"

    def look(self, rows: pa.RecordBatch, bodies: pa.Array) -> None:
        """Look at more rows, and at the bodies of those that are not deletions."""
        if not len(bodies):
            return
        self.updates, self.last = self.updates + len(bodies), bodies[-1].as_py()
        self.names = [
            name
            for name in self.names
            if rows.column(name).null_count == len(rows)
            and not pc.any(pc.match_substring(bodies, json.dumps(name, ensure_ascii=False).encode())).as_py()
        ]

    def warn(self, stream: str) -> None:
        """Log them. Once in a process, as a streaming query would log them in every batch."""
        if not self.updates:
            return
        warned: set[tuple[str, str]] = shared("s2_missing_columns", set)
        for name in self.names:
            if (stream, name) not in warned:
                warned.add((stream, name))
                log.warning(
                    "stream '%s': the schema has a column '%s', but none of %d changes that were read has it: it is "
                    "null in all of their rows. %s",
                    stream,
                    name,
                    self.updates,
                    nearest(name, names(self.last)),
                )
