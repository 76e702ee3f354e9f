"""SQL column lists, such as `id STRING, amount DECIMAL(10,2)`, as Arrow schemas, and Arrow types as SQL.
Knows no Spark.
"""

import re

import pyarrow as pa

from penstock.arrow.types import TIMESTAMP
from penstock.errors import OptionError

_TYPES = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
}
_COLUMN = re.compile(r"\s*(?:`([^`]+)`|(\w+))\s*:?\s+([a-zA-Z]+)\s*(?:\(\s*(\d+)\s*,\s*(\d+)\s*\))?\s*")


def columns(text: str) -> pa.Schema:
    """The schema of a column list. Arrays, maps, structs and unknown types are an OptionError."""
    fields: list[pa.Field] = []
    at = 0
    while at <= len(text):
        match = _COLUMN.match(text, at)
        if match is None or (match.end() < len(text) and text[match.end()] != ","):
            raise OptionError(f"'{text}' is no list of columns such as 'id STRING, amount INT': look at '{text[at:]}'.")
        name, kind = match[1] or match[2], match[3].lower()
        if kind == "decimal":
            data_type = pa.decimal128(int(match[4] or 10), int(match[5] or 0))
        elif kind in _TYPES and match[4] is None:
            data_type = _TYPES[kind]
        else:
            raise OptionError(
                f"column '{name}' is {match[3]}, which cannot be named here: {', '.join(_TYPES)}, decimal."
            )
        fields.append(pa.field(name, data_type))
        at = match.end() + 1
    return pa.schema(fields)


def sql(kind: pa.DataType) -> str:
    """A type in SQL; Arrow's own name where SQL has none."""
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"ARRAY<{sql(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"MAP<{sql(kind.key_type)}, {sql(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{field.name}: {sql(field.type)}' for field in kind)}>"
    if pa.types.is_timestamp(kind) and kind.tz is None:
        return "TIMESTAMP_NTZ"
    return next((name.upper() for name, known in _TYPES.items() if known == kind), str(kind))
