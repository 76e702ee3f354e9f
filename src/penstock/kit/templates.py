"""Text with columns in it, such as `orders.{region}`, filled for all rows at once. Knows Arrow; no server, no Spark."""

import re
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import OptionError
from penstock.kit.rows import Kind, as_text, listed, other_case
from penstock.kit.rows import accept as accept_columns

_PIECE = re.compile(r"\{([^{}]*)\}")


def columns(template: str) -> list[str]:
    """The columns that a template names."""
    return _PIECE.findall(template)


def check(option: str, template: str, names: Sequence[str]) -> None:
    """Refuse a template that names columns which do not exist."""
    if re.search(r"[{}]", _PIECE.sub("", template)):
        raise OptionError(f"option '{option}' is '{template}': braces must come in pairs, around the name of a column.")
    for name in columns(template):
        if name not in names:
            raise OptionError(
                f"option '{option}' is '{template}', but there is no column '{name}'. There are: {', '.join(names)}."
                + other_case(name, names)
            )


def accept(
    format: str,
    schema: pa.Schema,
    template: str | None,
    takes: Mapping[str, Kind],
    name: str = "subject",
) -> None:
    """Refuse columns that a sink lacks or would drop. The option or the column `name` says where rows go."""
    if template is not None:
        check(name, template, schema.names)
        for column in columns(template):
            kind = schema.field(column).type
            if pa.types.is_nested(kind) or pa.types.is_binary(kind):
                raise OptionError(
                    f"column '{column}' in the option '{name}' is {kind}, which is no text. Cast it, in SQL or "
                    f"selectExpr: {as_text(column, kind)}."
                )
    elif name not in schema.names:
        raise OptionError(
            f"rows have no {name}: set the option '{name}', or add a column '{name}'." + other_case(name, schema.names)
        )
    accept_columns(format, schema, takes, columns(template or ""))


def names(template: str | None, batch: pa.RecordBatch, name: str = "subject") -> pa.Array:
    """Where each row goes: its column `name`, or the template where that is null or missing.

    A template that itself uses the column `name` always wins.
    """
    own = batch.column(name) if name in batch.schema.names else None
    if template is None:
        return own
    filled = fill(template, batch)
    return filled if own is None or name in columns(template) else pc.coalesce(own, filled)


def missing(template: str | None, batch: pa.RecordBatch, row: int, name: str = "subject") -> str:
    """The error text for a row where `names` is null."""
    used = list(dict.fromkeys(columns(template or "")))
    null = [column for column in used if not batch.column(column)[row].is_valid]
    if not null:
        return f"has no {name} (null). Leave such rows out, or set the option '{name}', which such rows then take"
    are = "are" if len(null) > 1 else "is"
    return (
        f"has no {name} (null): {listed(null)} of the option '{name}' ('{template}') {are} null there. Leave such rows "
        f"out, or fill the column: coalesce(`{null[0]}`, 'none') AS `{null[0]}`"
    )


def fill(template: str, batch: pa.RecordBatch) -> pa.Array:
    """The text of each row, null where one of its columns is null."""
    texts = _PIECE.split(template)
    pieces = [
        pc.cast(batch.column(text), pa.string()) if i % 2 else pa.scalar(text, pa.string())
        for i, text in enumerate(texts)
    ]
    if len(pieces) == 1:
        return pa.repeat(pieces[0], len(batch))
    return pc.binary_join_element_wise(*pieces, pa.scalar("", pa.string()))
