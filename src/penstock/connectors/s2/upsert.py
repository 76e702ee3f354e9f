"""Changes to a table as records, and back: key and action in headers, the other columns as JSON in the body. Pure."""

import base64
import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from penstock import jsontext
from penstock.columns import Ints
from penstock.connectors.s2.wire import Records
from penstock.errors import OptionError, ProtocolError

KEY, ACTION = b"@key", b"@action"
# The column that says what a row does to the table: ours, or the one of Delta's change feed.
ACTIONS = ("_action", "_change_type")
UPDATES = ("u", "update", "insert", "upsert", "update_postimage")
DELETES = ("d", "delete")
BEFORE = ("update_preimage", "update_before")  # how a row was before: says nothing that the next does not


def accept(columns: pa.Schema, keys: Sequence[str]) -> None:
    """Refuse columns that make no table."""
    for name in keys:
        if name not in columns.names:
            raise OptionError(
                f"keyColumns has '{name}', but there is no such column. There are: {', '.join(columns.names)}."
            )
    actions = [name for name in ACTIONS if name in columns.names]
    if len(actions) > 1:
        raise OptionError(f"there are both {' and '.join(actions)}: leave one of them out.")
    for name in actions:
        if columns.field(name).type != pa.string():
            raise OptionError(f"column '{name}' must be STRING, but is {columns.field(name).type}. Cast it.")
    if not [name for name in columns.names if name not in (*keys, *ACTIONS)]:
        raise OptionError("all columns are key columns: there must be one that is not.")


def encode(batch: pa.RecordBatch, keys: Sequence[str]) -> tuple[npt.NDArray[np.bool_], pa.Array, pa.Array, pa.Array]:
    """Which rows are written, and of these the key, the action and the body. A row that cannot be is a ValueError with
    its number and why.
    """
    names = batch.schema.names
    for name in keys:
        column = batch.column(name)
        if column.null_count:
            row = pc.index(pc.is_null(column), True).as_py()
            raise RowError(row, f"has no '{name}' (null), which is part of its key")
    action = next((batch.column(name) for name in ACTIONS if name in names), None)
    if action is None:
        deletes, written = np.zeros(len(batch), bool), np.ones(len(batch), bool)
    else:
        lower = pc.fill_null(pc.utf8_lower(action), "")
        deletes, before, updates = (
            np.asarray(pc.is_in(lower, pa.array(some, pa.string()))) for some in (DELETES, BEFORE, UPDATES)
        )
        known = deletes | before | updates
        if not known.all():
            row = int(np.argmin(known))
            what = f"the action {action[row].as_py()!r}"
            raise RowError(row, f"has {what}; there are: {', '.join((*UPDATES, *DELETES, *BEFORE))}")
        written = ~before
        if not written.all():
            batch, deletes = batch.filter(pa.array(written)), deletes[written]
    key = jsontext.objects(batch.select(list(keys)))
    body = jsontext.objects(batch.select([name for name in names if name not in (*keys, *ACTIONS)]))
    gone = pa.array(deletes)
    return written, key, pc.if_else(gone, b"d", b"u"), pc.if_else(gone, b"", body)


class RowError(ValueError):
    """A row that cannot be written."""

    def __init__(self, row: int, why: str):
        self.row, self.why = row, why
        super().__init__(why)


def parts(records: Records) -> tuple[Ints, pa.Array, npt.NDArray[np.bool_]]:
    """Which records are changes to a table, their keys, and which of them delete."""
    found = {}
    for name in (KEY, ACTION):
        at = np.asarray(pc.equal(records.header_name, name)) if len(records.header_row) else np.zeros(0, bool)
        place = np.full(len(records), -1)
        place[records.header_row[at]] = np.flatnonzero(at)
        found[name] = place
    rows = np.flatnonzero((found[KEY] >= 0) & (found[ACTION] >= 0))
    action = records.header_value.take(pa.array(found[ACTION][rows]))
    known = np.asarray(pc.is_in(action, pa.array([b"u", b"d"]))) if len(rows) else np.zeros(0, bool)
    rows = rows[known]
    deletes = np.asarray(pc.equal(action.filter(pa.array(known)), b"d")) if len(rows) else np.zeros(0, bool)
    return rows, records.header_value.take(pa.array(found[KEY][rows])), deletes


def decode(texts: pa.Array, schema: pa.Schema, what: str, sequence: Ints) -> dict[str, pa.Array]:
    """JSON objects as the columns of a schema, all null where a text is empty. `what` they are is for errors."""
    if not len(schema):
        return {}
    full = np.asarray(pc.greater(pc.binary_length(texts), 0))
    there = texts.filter(pa.array(full))
    # JSON has text for these: they are read as such first.
    plain = pa.schema([pa.field(f.name, pa.string() if _is_text_in_json(f.type) else f.type) for f in schema])
    made = _all_at_once(there, plain)
    if made is None:  # one by one, to say which
        made = _one_by_one(there, plain, what, sequence[full])
    try:
        typed = {field.name: _typed(_flat(made[field.name]), field.type) for field in schema}
    except (pa.ArrowInvalid, ValueError) as error:
        raise ProtocolError(
            f"{what} does not fit the schema, at record {sequence[full][0]} or later: {error}."
        ) from None
    take = pa.array(np.where(full, np.cumsum(full) - 1, 0), mask=~full)
    return {name: column.take(take) for name, column in typed.items()}


def _is_text_in_json(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _typed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_binary(kind):
        decoded = [None if text is None else base64.b64decode(text, validate=True) for text in column.to_pylist()]
        return pa.array(decoded, kind)
    return column.cast(kind)


def _flat(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _all_at_once(texts: pa.Array, schema: pa.Schema) -> pa.Table | None:
    """The objects as a table; None where one of them is odd."""
    if not len(texts) or pc.any(pc.match_substring(texts, b"\n")).as_py():
        return None
    lines = io.BytesIO(b"\n".join(texts.to_pylist()))
    wanted = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    size = pyarrow.json.ReadOptions(block_size=max(1 << 16, 2 * texts.nbytes))
    try:
        made = pyarrow.json.read_json(lines, size, wanted).select(schema.names)
    except pa.ArrowInvalid:
        return None
    return made if len(made) == len(texts) else None


def _one_by_one(texts: pa.Array, schema: pa.Schema, what: str, sequence: Ints) -> pa.Table:
    found: list[pa.Table] = []
    for text, position in zip(texts.to_pylist(), sequence.tolist(), strict=True):
        line = text.replace(b"\r", b" ").replace(b"\n", b" ")  # between its parts; inside text they are escaped
        row = _all_at_once(pa.array([line], pa.binary()), schema)
        if row is None:
            raise ProtocolError(f"record {position} has {text[:60]!r} as {what}, which does not fit the schema.")
        found.append(row)
    return pa.concat_tables(found) if found else schema.empty_table()


def latest(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Of rows in order, the last of each key."""
    numbered = table.append_column("@row", pa.array(np.arange(len(table))))
    last = numbered.group_by(list(keys)).aggregate([("@row", "max")])["@row_max"]
    return table.take(pa.array(np.sort(last.to_numpy())))
