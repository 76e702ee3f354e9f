"""Rows as records of S2, by stream; and which records are changes to a table. Refuses rows that S2 would not take.
Pure: knows no sockets and no Spark.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.buffers import Ints
from penstock.clients.s2.appends import MOST_BYTES, Encoded, encode, encode_headers
from penstock.clients.s2.records import Records
from penstock.connectors.s2.chain import ROOM
from penstock.connectors.s2.options import S2SinkOptions
from penstock.errors import OptionError, nearest
from penstock.kit import templates
from penstock.kit.contract import Origin
from penstock.kit.rows import BYTES, NAMED_VALUES, TEXT, Kind
from penstock.tables import changes

WRITER = b"@writer"
# Headers of a change to a table: its key, and whether it updates or deletes.
KEY, ACTION = b"@key", b"@action"


def is_moment(kind: pa.DataType) -> bool:
    """Whether a column is a timestamp."""
    return bool(pa.types.is_timestamp(kind))


TAKES = {"value": BYTES, "headers": NAMED_VALUES, "timestamp": Kind(is_moment, "TIMESTAMP"), "stream": TEXT}


def accept(options: S2SinkOptions, columns: pa.Schema) -> None:
    """Refuse columns that are missing, have the wrong type, or would be dropped."""
    template = _template(options, 0)
    if options.mode == "upsert":
        if template is None:
            raise OptionError("mode=upsert needs the option 'stream': all columns are of the table.")
        templates.check("stream", template, columns.names)
        changes.accept(columns, options.key_columns, written=True)
        if options.version_column is not None:
            _accept_version(columns, options.version_column)
        return
    templates.accept("s2", columns, template, TAKES, "stream")


def _accept_version(columns: pa.Schema, name: str) -> None:
    if name not in columns.names:
        raise OptionError(f"versionColumn is '{name}', but there is no such column. {nearest(name, columns.names)}")
    kind = columns.field(name).type
    if pa.types.is_nested(kind) or pa.types.is_boolean(kind):
        raise OptionError(f"versionColumn is '{name}', which has no order: it is {kind}.")


def ascending(
    options: S2SinkOptions, origin: Origin, batch: pa.RecordBatch, first: int, before: pa.Array | None
) -> pa.Array:
    """The version of the last row. An error where a row has an older version than the row before it.

    Rows are numbered from `first`. `before` is the version of the row before the first one.
    """
    name, column = options.version_column, batch.column(options.version_column)
    if column.null_count:
        raise origin.cannot_write(
            first + pc.index(pc.is_null(column), True).as_py(), f"has no '{name}' (versionColumn)"
        )
    both = column if before is None else pa.concat_arrays([before, column])
    rises = pc.greater_equal(both[1:], both[:-1])
    if not pc.all(rises, min_count=0).as_py():
        keys = ", ".join(map(repr, options.key_columns))
        raise origin.cannot_write(
            first + pc.index(rises, False).as_py() + (before is None),
            f"has an older '{name}' (versionColumn) than the row before it: a key might end with an old value. Put "
            f".repartition(n, {keys}).sortWithinPartitions({name!r}, {keys}) just before the write, for n tasks",
        )
    return column[-1:]


def records(options: S2SinkOptions, origin: Origin, batch: pa.RecordBatch, first: int) -> Iterator[tuple[str, Encoded]]:
    """The records of each stream, in the order of the rows. Rows are numbered from `first`."""
    names = batch.schema.names
    number = np.arange(first, first + len(batch))
    moment = None
    if options.mode == "upsert":
        streams = templates.fill(_template(options, origin.partition) or "", batch)
        try:
            written, key, action, value = changes.encode(batch, options.key_columns)
        except changes.RowError as error:
            raise origin.cannot_write(first + error.row, error.why) from None
        streams, number = streams.filter(pa.array(written)), number[written]
        row = np.repeat(np.arange(len(value)), 2)
        header = _interleaved(pa.repeat(KEY, len(value)), pa.repeat(ACTION, len(value)))
        content = _interleaved(key, action)
    else:
        streams = templates.names(_template(options, origin.partition), batch, "stream")
        value = batch.column("value").cast(pa.binary())
        if value.null_count:
            at = pc.index(pc.is_null(value), True).as_py()
            raise origin.cannot_write(first + at, "has no value (null). Write coalesce(value, '') for an empty body")
        row, header, content = _headers(origin, first, batch)
        if "timestamp" in names:
            moment = pc.fill_null(batch.column("timestamp").cast(pa.timestamp("ms"), safe=False).cast(pa.int64()), -1)
            moment = np.asarray(moment)
            early = (moment < 0) & np.asarray(batch.column("timestamp").is_valid())
            if early.any():
                raise origin.cannot_write(
                    first + int(np.argmax(early)), "has a timestamp before 1970, which S2 has not"
                )
    if streams.null_count:
        row_at = int(number[pc.index(pc.is_null(streams), True).as_py()])
        why = templates.missing(_template(options, origin.partition), batch, row_at - first, "stream")
        raise origin.cannot_write(row_at, why)
    _check_names(origin, number, streams)
    if options.writer_headers:
        row, header, content = _signed(origin, len(value), row, header, content)
    headers = encode_headers(len(value), row, header, content) if len(row) else None
    encoded = encode(value, headers, moment)
    most = MOST_BYTES - ROOM
    if len(encoded) and encoded.metered.max() > most:
        at = int(np.argmax(encoded.metered > most))
        raise origin.cannot_write(
            int(number[at]),
            f"has {int(encoded.metered[at]):,} bytes for stream '{streams[at].as_py()}', headers included, "
            f"and S2 takes {most:,} of a record",
        )
    yield from _by_stream(streams, encoded)


def _by_stream(streams: pa.Array, encoded: Encoded) -> Iterator[tuple[str, Encoded]]:
    names = pc.unique(streams)
    if len(names) == 1:
        yield names[0].as_py(), encoded
        return
    place = np.asarray(pc.index_in(streams, names))
    order = np.argsort(place, kind="stable")
    edges = np.searchsorted(place[order], np.arange(len(names) + 1))
    for i, name in enumerate(names.to_pylist()):
        rows = order[edges[i] : edges[i + 1]]
        yield name, Encoded(encoded.data.take(pa.array(rows)), encoded.metered[rows])


def _template(options: S2SinkOptions, partition: int) -> str | None:
    return None if options.target is None else options.target.replace("{partition}", str(partition))


def _headers(origin: Origin, first: int, batch: pa.RecordBatch) -> tuple[Ints, pa.Array, pa.Array]:
    """The headers of all rows: which row each belongs to, its name and its value."""
    nothing = pa.array([], pa.binary())
    if "headers" not in batch.schema.names or batch.column("headers").null_count == len(batch):
        return np.empty(0, np.int64), nothing, nothing
    column = batch.column("headers")
    column = column.take(pa.array(np.arange(len(column))))  # a null list may hide values, which a copy has not
    structs, row = column.flatten(), np.asarray(pc.list_parent_indices(column)).astype(np.int64)
    name = pc.fill_null(structs.field(0).cast(pa.binary()), b"")
    empty = np.asarray(pc.equal(pc.binary_length(name), 0))
    if len(empty) and empty.any():
        at = int(row[np.argmax(empty)])
        raise origin.cannot_write(first + at, "has a header without a name, which S2 keeps for its commands")
    return row, name, pc.fill_null(structs.field(1).cast(pa.binary()), b"")


def _signed(origin: Origin, rows: int, row: Ints, name: pa.Array, value: pa.Array) -> tuple[Ints, pa.Array, pa.Array]:
    """The headers, with one more at the end of each row: who wrote it."""
    writer = f"{origin.query}/{origin.partition}".encode()
    row_of_each = np.concatenate([row, np.arange(rows)])
    order = np.argsort(row_of_each, kind="stable")
    take = pa.array(order)
    names = pa.concat_arrays([name, pa.repeat(pa.scalar(WRITER, pa.binary()), rows)])
    values = pa.concat_arrays([value, pa.repeat(pa.scalar(writer, pa.binary()), rows)])
    return row_of_each[order], names.take(take), values.take(take)


def _interleaved(a: pa.Array, b: pa.Array) -> pa.Array:
    """The first of `a`, the first of `b`, the second of `a`, and so on."""
    order = np.arange(2 * len(a)).reshape(2, -1).T.reshape(-1)
    return pa.concat_arrays([a.cast(pa.binary()), b.cast(pa.binary())]).take(pa.array(order))


def _check_names(origin: Origin, number: Ints, streams: pa.Array) -> None:
    for name in pc.unique(streams).to_pylist():
        if not 0 < len(name.encode()) <= 512 or "\0" in name:
            at = pc.index(streams, name).as_py()
            why = f"has the stream {name[:60]!r}: a name has 1 to 512 bytes, and none of them is NUL"
            raise origin.cannot_write(int(number[at]), why)


def parts(records: Records) -> tuple[Ints, pa.Array, npt.NDArray[np.bool_]]:
    """Which records are changes to a table, their keys, and which of them delete."""
    key_at, action_at = _places(records, KEY), _places(records, ACTION)
    rows = np.flatnonzero((key_at >= 0) & (action_at >= 0))
    action = records.header_value.take(pa.array(action_at[rows]))
    known = np.asarray(pc.is_in(action, pa.array([b"u", b"d"]))) if len(rows) else np.zeros(0, bool)
    rows = rows[known]
    deletes = np.asarray(pc.equal(action.filter(pa.array(known)), b"d")) if len(rows) else np.zeros(0, bool)
    return rows, records.header_value.take(pa.array(key_at[rows])), deletes


def _places(records: Records, name: bytes) -> Ints:
    """For each record, the place of its last header of that name among all headers; -1 where it has none."""
    places = np.full(len(records), -1)
    if len(records.header_row):
        is_named = np.asarray(pc.equal(records.header_name, name))
        places[records.header_row[is_named]] = np.flatnonzero(is_named)
    return places
