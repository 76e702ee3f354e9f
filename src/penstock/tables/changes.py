"""Changes to a table as a key, an action and a body, and back. The key and the body are JSON. Pure: knows no server,
no Spark.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow import ddl, json
from penstock.arrow.buffers import Ints
from penstock.errors import OptionError, ProtocolError
from penstock.kit.rows import as_text

# The column that says what a row does to the table: ours, or the one of Delta's change feed.
ACTIONS = ("_action", "_change_type")
UPDATES = ("u", "update", "insert", "upsert", "update_postimage")
DELETES = ("d", "delete")
BEFORE = ("update_preimage", "update_before")  # the row before an update: not written

# Columns that a record has when it is read, beside those of its table.
OF_RECORD = ("_stream", "_sequence", "_timestamp")


def accept(columns: pa.Schema, keys: Sequence[str], *, written: bool) -> None:
    """Refuse columns that are not a table with these keys, or that would not be read as they were written.

    `written`: the columns are those of a sink. Names all columns that cannot be written in one error.
    """
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
            kind = columns.field(name).type
            raise OptionError(
                f"column '{name}' must be STRING, but is {kind}. Cast it, in SQL or selectExpr: {as_text(name, kind)}."
            )
    if written and not set(columns.names) - {*keys, *ACTIONS}:
        raise OptionError("all columns are key columns: there must be one that is not.")
    bad = [field for field in columns if not _comes_back(field, keys, written)]
    if not bad:
        return
    why = {field.name: f"{field.type} as a key" if field.name in keys else str(field.type) for field in bad}
    why |= {name: "each record has one of its own" for name in OF_RECORD if name in why}
    what = ", ".join(f"'{name}' ({reason})" for name, reason in why.items())
    how = "No upsert sink writes such columns: name the types that were written."
    if written:
        without = ", ".join(f"`{field.name}`" for field in bad)
        paste = [f"* EXCEPT ({without})", *(_instead(field, columns, keys) for field in bad)]
        how = "Write them otherwise: .selectExpr(" + ", ".join(f'"{text}"' for text in paste) + ")"
    raise OptionError(f"a table of changes cannot give these columns back as they were: {what}. {how}")


def _comes_back(field: pa.Field, keys: Sequence[str], written: bool) -> bool:
    """Whether a column is read as it was written. Keys must not be nested, and OF_RECORD are not written."""
    if field.name in ACTIONS:
        return True
    if field.name in OF_RECORD:
        return not written
    return json.fits(field.type) and not (field.name in keys and pa.types.is_nested(field.type))


def _instead(field: pa.Field, columns: pa.Schema, keys: Sequence[str]) -> str:
    """SQL for a column that can be written in place of one that cannot."""
    name, kind = f"`{field.name}`", field.type
    if field.name in OF_RECORD:
        free = field.name.strip("_")
        while free in columns.names:
            free += "_"
        return f"{name} AS {free}"
    if not pa.types.is_nested(kind):
        return f"string({name}) AS {name}"
    if field.name not in keys and pa.types.is_map(kind) and json.fits(kind.key_type) and json.fits(kind.item_type):
        return f"map_entries({name}) AS {name}"
    return f"to_json({name}) AS {name}"


def encode(batch: pa.RecordBatch, keys: Sequence[str]) -> tuple[npt.NDArray[np.bool_], pa.Array, pa.Array, pa.Array]:
    """Which rows are written, and the keys, actions and bodies of these. A RowError where a row cannot be written."""
    names = batch.schema.names
    for name in keys:
        column = batch.column(name)
        if column.null_count:
            row = pc.index(pc.is_null(column), True).as_py()
            raise RowError(row, f"has no '{name}' (null), which is part of its key")
    for name in names:
        early = json.outside(batch.column(name))
        if early is not None:
            why = f"has a day outside of the years 1 to 9999 in '{name}'. Leave the row out, or write string({name})"
            raise RowError(early, why)
    action = next((batch.column(name) for name in ACTIONS if name in names), None)
    if action is None:
        deletes, written = np.zeros(len(batch), bool), np.ones(len(batch), bool)
    else:
        lower = pc.fill_null(pc.utf8_lower(action), "")
        deletes, before, updates = (
            np.asarray(pc.is_in(lower, pa.array(names_of_action, pa.string())))
            for names_of_action in (DELETES, BEFORE, UPDATES)
        )
        known = deletes | before | updates
        if not known.all():
            row = int(np.argmin(known))
            what = f"the action {action[row].as_py()!r}"
            raise RowError(row, f"has {what}; there are: {', '.join((*UPDATES, *DELETES, *BEFORE))}")
        written = ~before
        if not written.all():
            batch, deletes = batch.filter(pa.array(written)), deletes[written]
    key = json.objects(batch.select(list(keys)))
    body = json.objects(batch.select([name for name in names if name not in (*keys, *ACTIONS)]))
    is_delete = pa.array(deletes)
    return written, key, pc.if_else(is_delete, b"d", b"u"), pc.if_else(is_delete, b"", body)


class RowError(ValueError):
    """A row that cannot be written: its number in the batch, and why."""

    def __init__(self, row: int, why: str):
        self.row, self.why = row, why
        super().__init__(why)


def decode(texts: pa.Array, schema: pa.Schema, what: str, sequence: Ints) -> dict[str, pa.Array]:
    """JSON objects as the columns of a schema, null where a text is empty.

    Errors name a text as `what` of the record with its number in `sequence`.
    """
    if not len(schema):
        return {}
    full = np.asarray(pc.greater(pc.binary_length(texts), 0))
    objects = texts.filter(pa.array(full))
    try:
        columns = json.columns(objects, schema)
    except json.UnfitError as error:
        record = f"record {sequence[full][error.row]}"
        if error.column is None:
            raise ProtocolError(
                f"{record} has {objects[error.row].as_py()[:60]!r} as {what}, which is no JSON object: {error}."
            ) from None
        raise OptionError(
            f"column '{error.column}' is {ddl.sql(schema.field(error.column).type)} in the schema of this read, but "
            f"{record} has {error.shown} there ({error}), in its {what}. Give the column the type that was written, "
            "in .schema(...) or in the option 'columns'."
        ) from None
    take = pa.array(np.where(full, np.cumsum(full) - 1, 0), mask=~full)
    return {name: column.take(take) for name, column in columns.items()}


def latest(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The last row of each key, in the order of the rows."""
    numbered = table.append_column("@row", pa.array(np.arange(len(table))))
    last = numbered.group_by(list(keys)).aggregate([("@row", "max")])["@row_max"]
    return table.take(pa.array(np.sort(last.to_numpy())))
