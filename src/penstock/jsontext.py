"""Columns as JSON text, an object a row, with no Python statement per row for the usual types. Knows Arrow only."""

import base64
import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.columns import join

# Characters that JSON wants escaped; where none of them is there, text is taken as it is.
_SPECIAL = r'["\\\x00-\x1f]'


def objects(batch: pa.RecordBatch) -> pa.Array:
    """Each row as an object of its columns, nulls included, without spaces."""
    if not batch.num_columns:
        return pa.repeat(pa.scalar(b"{}", pa.binary()), len(batch))
    pieces: list[pa.Array | bytes] = []
    for i, field in enumerate(batch.schema):
        pieces.append((b"," if i else b"{") + json.dumps(field.name, ensure_ascii=False).encode() + b":")
        pieces.append(values(batch.column(i)))
    return join(*pieces, b"}")


def values(column: pa.Array) -> pa.Array:
    """Each value as JSON."""
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        text = column.cast(pa.string())
    elif pa.types.is_floating(kind):
        text = pc.if_else(pc.is_finite(column), column.cast(pa.string()), None)
    elif pa.types.is_string(kind):
        if pc.any(pc.match_substring_regex(column, _SPECIAL)).as_py():
            return _one_by_one(column)
        return pc.fill_null(join(b'"', column.cast(pa.binary()), b'"'), b"null")
    else:
        return _one_by_one(column)
    return pc.fill_null(text, "null").cast(pa.binary())


def _one_by_one(column: pa.Array) -> pa.Array:
    texts = (json.dumps(v, ensure_ascii=False, separators=(",", ":"), default=_plain) for v in column.to_pylist())
    return pa.array([text.encode() for text in texts], pa.binary())


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f").rstrip("0").rstrip(".") + ("Z" if value.tzinfo else "")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):  # inside a list or a struct; a column of its own keeps every digit
        return float(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)
