"""The columns that all sources share, and checks of the columns that a sink takes. Knows Arrow; no server, no Spark."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from penstock.arrow.types import HEADERS, TIMESTAMP
from penstock.errors import OptionError


def columns(*own: pa.Field, headers: bool = True) -> pa.Schema:
    """The shared columns in their order, then those of one system."""
    shared = [
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
        pa.field("timestamp", TIMESTAMP),
        pa.field("stream", pa.string()),
        pa.field("sequence", pa.int64()),
    ]
    return pa.schema([field for field in shared if headers or field.name != "headers"] + list(own))


def is_headers(kind: pa.DataType) -> bool:
    """Whether a column can be `headers`: a list of keys and values, the values text or bytes."""
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type) or kind.value_type.num_fields != 2:
        return False
    key, value = (kind.value_type.field(i).type for i in range(2))
    return bool(key == pa.string() and value in (pa.string(), pa.binary()))


def is_text(kind: pa.DataType) -> bool:
    """Whether a column is text."""
    return bool(kind == pa.string())


def is_bytes(kind: pa.DataType) -> bool:
    """Whether a column is text or bytes."""
    return bool(kind in (pa.string(), pa.binary()))


def is_count(kind: pa.DataType) -> bool:
    """Whether a column is whole numbers."""
    return bool(pa.types.is_integer(kind))


class Kind(NamedTuple):
    """The types that a sink takes in one of its columns: which they are, and how SQL names them."""

    fits: Callable[[pa.DataType], bool]
    in_sql: str


TEXT = Kind(is_text, "STRING")
BYTES = Kind(is_bytes, "STRING or BINARY")
WHOLE_NUMBER = Kind(is_count, "BIGINT")
NAMED_VALUES = Kind(is_headers, "ARRAY<STRUCT<key STRING, value BINARY>>")


def listed(names: Sequence[str]) -> str:
    """Columns as a sentence names them."""
    return f"the column{'s' if len(names) > 1 else ''} {', '.join(map(repr, names))}"


def other_case(name: str, names: Sequence[str]) -> str:
    """A hint to add to an error where a column exists in other letters, such as `Value`; else empty."""
    similar = [other for other in names if other != name and other.lower() == name.lower()]
    if not similar or name in names:
        return ""
    return (
        f" Names of columns are told apart by case: rename it with withColumnRenamed('{similar[0]}', '{name}'), or in "
        f"SQL `{similar[0]}` AS `{name}`."
    )


def as_text(name: str, kind: pa.DataType) -> str:
    """SQL that makes text of a column, under the same name."""
    return f"{'to_json' if pa.types.is_nested(kind) else 'string'}(`{name}`) AS `{name}`"


def _remedy(field: pa.Field, wanted: str) -> str:
    """What to do with a column of the wrong type: SQL for a type that a sink takes, where there is any."""
    name, kind = field.name, field.type
    if wanted.startswith("ARRAY"):
        headers = _as_headers(name, kind)
        if not headers:
            return "Make it one of names and values."
        cast = f"{headers} AS `{name}`"
    elif wanted.startswith("STRING"):
        cast = as_text(name, kind)
    else:
        cast = f"CAST(`{name}` AS {wanted}) AS `{name}`"
    return f"Cast it, in SQL or selectExpr: {cast}."


def _as_headers(name: str, kind: pa.DataType) -> str:
    """SQL that makes headers of a column; empty where its type has no keys."""
    if pa.types.is_map(kind):
        parts, entries = [("key", kind.key_type), ("value", kind.item_type)], f"map_entries(`{name}`)"
        if kind.key_type == pa.string() and is_bytes(kind.item_type):
            return entries
    elif pa.types.is_list(kind) and pa.types.is_struct(kind.value_type) and kind.value_type.num_fields > 1:
        fields, entries = [(field.name, field.type) for field in kind.value_type], f"`{name}`"
        named = [dict(fields).get(part) for part in ("key", "value")]
        parts = fields[:2] if None in named else list(zip(("key", "value"), named, strict=True))
    else:
        return ""
    (key, of_key), (value, of_value) = parts
    key_in_sql = f"e.`{key}`" if of_key == pa.string() else f"string(e.`{key}`)"
    value_in_sql = f"e.`{value}`" if is_bytes(of_value) else f"string(e.`{value}`)"
    return f"transform({entries}, e -> struct({key_in_sql} AS key, {value_in_sql} AS value))"


def _kind(kind: pa.DataType) -> str:
    """The name of a type in errors. Arrow's general interval stands for types that Spark cannot hand over."""
    return str(kind).replace(str(pa.month_day_nano_interval()), "interval")


def accept(format: str, schema: pa.Schema, takes: Mapping[str, Kind], used: Sequence[str] = ()) -> None:
    """Refuse columns that a sink would drop or that have the wrong type, all in one error. `value` is required.

    `used`: columns of a template. They are not dropped, whatever their type.
    """
    if "value" not in schema.names:
        raise OptionError(
            f"there is no column 'value' to write. There are: {', '.join(schema.names)}."
            + other_case("value", schema.names)
        )
    others = [field for field in schema if field.name not in used]
    surplus = [field.name for field in others if field.name not in takes]
    wrong = [field for field in others if field.name in takes and not takes[field.name].fits(field.type)]
    problems = []
    if surplus:
        them = "them" if len(surplus) > 1 else "it"
        problems.append(
            f"{format} cannot write {listed(surplus)}: it writes {', '.join(takes)}. Leave {them} out with "
            f"drop({', '.join(map(repr, surplus))}), or put what you need of {them} into `value` or `headers`."
            + "".join(other_case(name, surplus) for name in takes if name not in schema.names)
        )
    problems += [
        f"column '{field.name}' must be {takes[field.name].in_sql}, but is {_kind(field.type)}. "
        + _remedy(field, takes[field.name].in_sql)
        for field in wrong
    ]
    if problems:
        raise OptionError(" ".join([problems[0], *(text[0].upper() + text[1:] for text in problems[1:])]))
