"""Columns as JSON text, one object per row, and back. A value of a type that `fits` comes back unchanged. Knows Arrow
only.

Writing runs no Python statement per row, except for strings that need escapes and for bytes. Reading runs none either,
except for maps, for bytes inside of another type, and for numbers that JSON cannot write, such as NaN.
"""

import base64
import io
import json
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from penstock.arrow.buffers import join

# Characters that JSON must escape. Text without them is written unchanged.
_SPECIAL = r'["\\\x00-\x1f]'
# Numbers that JSON cannot write, or that would be read as whole ones: in Arrow, and in JSON as Java writes it.
_WORDS = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"', "-0": "-0.0"}
# The days of the years 1 to 9999: dates have four digits.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_DAY = 86_400_000_000


class UnfitError(ValueError):
    """A row is no JSON object, or a value in it is not of its column's type."""

    def __init__(self, row: int, why: object, column: str | None = None, value: Any = None):
        self.row, self.column, self.value = row, column, value
        super().__init__(str(why))

    @property
    def shown(self) -> str:
        """The value in an error text, such as: the number 1."""
        if isinstance(self.value, list | dict):
            return "an array" if isinstance(self.value, list) else "an object"
        if isinstance(self.value, str | bool):
            return f"the {'text' if isinstance(self.value, str) else 'word'} {json.dumps(self.value)[:60]}"
        return f"the number {self.value}"[:60]


def fits(kind: pa.DataType) -> bool:
    """Whether values of a type come back from JSON unchanged."""
    if pa.types.is_list(kind):
        return fits(kind.value_type)
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        return len(set(names)) == len(names) > 0 and all(fits(field.type) for field in kind)
    if pa.types.is_map(kind):
        return bool(kind.key_type == pa.string()) and fits(kind.item_type)
    plain = (
        pa.types.is_boolean, pa.types.is_signed_integer, pa.types.is_float32, pa.types.is_float64,
        pa.types.is_decimal128, pa.types.is_string, pa.types.is_binary, pa.types.is_date32, _is_spark_timestamp,
    )  # fmt: skip
    return any(is_type(kind) for is_type in plain)


def _is_spark_timestamp(kind: pa.DataType) -> bool:
    return bool(kind in (pa.timestamp("us"), pa.timestamp("us", "UTC")))


# Writing


def objects(batch: pa.RecordBatch) -> pa.Array:
    """Each row as a JSON object of all columns, nulls included, without spaces."""
    if not batch.num_columns:
        return pa.repeat(pa.scalar(b"{}", pa.binary()), len(batch))
    pieces: list[pa.Array | bytes] = []
    for i, field in enumerate(batch.schema):
        pieces.append((b"," if i else b"{") + json.dumps(field.name, ensure_ascii=False).encode() + b":")
        pieces.append(values(batch.column(i)))
    return join(*pieces, b"}")


def values(column: pa.Array) -> pa.Array:
    """Each value as JSON; a null is `null`."""
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        column = _compact(column)
        if pa.types.is_list(kind):
            opening, closing = b"[", b"]"
            inner = values(column.values)
        else:
            opening, closing = b"{", b"}"
            inner = join(values(column.keys), b":", values(column.items))
        lists = pa.ListArray.from_arrays(column.offsets, inner, mask=column.is_null())
        text = join(opening, pc.binary_join(lists, b","), closing)
    elif pa.types.is_struct(kind):
        text = objects(pa.RecordBatch.from_arrays(column.flatten(), names=[field.name for field in kind]))
        text = pc.if_else(column.is_valid(), text, None)
    elif pa.types.is_binary(kind):
        encoded = [None if value is None else b'"%b"' % base64.b64encode(value) for value in column.to_pylist()]
        text = pa.array(encoded, pa.binary())
    elif pa.types.is_string(kind):
        text = _quoted(column)
    elif pa.types.is_date32(kind):
        text = join(b'"', column.cast(pa.string()).cast(pa.binary()), b'"')
    elif pa.types.is_timestamp(kind):
        digits = column.view(pa.timestamp("us")).cast(pa.string())  # a cast would need the time zone database
        short = pc.replace_substring_regex(digits, r"\.?0+$", "")
        text = join(b'"', short.cast(pa.binary()), b'Z"' if kind.tz else b'"')
    elif pa.types.is_floating(kind):
        text = column.cast(pa.string())
        if pc.any(pc.is_in(text, pa.array(list(_WORDS)))).as_py():
            for in_arrow, in_json in _WORDS.items():
                text = pc.if_else(pc.equal(text, in_arrow), in_json, text)
    else:
        text = column.cast(pa.string())
    return pc.fill_null(text.cast(pa.binary()), b"null")


def _quoted(column: pa.Array) -> pa.Array:
    if not pc.any(pc.match_substring_regex(column, _SPECIAL)).as_py():
        return join(b'"', column.cast(pa.binary()), b'"')
    texts = (None if v is None else json.dumps(v, ensure_ascii=False).encode() for v in column.to_pylist())
    return pa.array(list(texts), pa.binary())


def _compact(column: pa.Array) -> pa.Array:
    """The same lists or maps; their child array has no values outside of a slice or under a null."""
    return column.take(pa.array(np.arange(len(column))))


def outside(column: pa.Array) -> int | None:
    """The first row with a date or a time outside of the years 1 to 9999, which text cannot hold; None without one."""
    if not _is_outside(column):
        return None
    low, high = 0, len(column)  # the row is in [low, high)
    while high - low > 1:
        middle = (low + high) // 2
        if _is_outside(column[low:middle]):
            high = middle
        else:
            low = middle
    return low


def _is_outside(column: pa.Array) -> bool:
    kind = column.type
    if pa.types.is_list(kind):
        return _is_outside(_compact(column).values)
    if pa.types.is_map(kind):
        return _is_outside(_compact(column).items)
    if pa.types.is_struct(kind):
        return any(_is_outside(child) for child in column.flatten())
    if not pa.types.is_date32(kind) and not pa.types.is_timestamp(kind):
        return False
    days = pa.types.is_date32(kind)
    bounds = pc.min_max(column.view(pa.int32() if days else pa.int64())).as_py()
    unit = 1 if days else _DAY
    if bounds["min"] is None:  # all are null
        return False
    return bool(bounds["min"] < _FIRST_DAY * unit or bounds["max"] >= (_LAST_DAY + 1) * unit)


# Reading


def columns(texts: pa.Array, schema: pa.Schema) -> dict[str, pa.Array]:
    """JSON objects as the columns of a schema. A field that an object lacks is null; fields that the schema lacks are
    left out. The first row that does not fit is an UnfitError.
    """
    by_arrow = _read_by_arrow(texts, pa.schema([field for field in schema if not _needs_python(field.type)])) or {}
    rest = [field for field in schema if field.name not in by_arrow]
    return by_arrow | (_read_row_by_row(texts, rest) if rest else {})


def names(text: bytes) -> list[str]:
    """The field names of a JSON object; none where the text is no object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return list(value) if isinstance(value, dict) else []


def _needs_python(kind: pa.DataType, inside: bool = False) -> bool:
    """Whether Arrow cannot read a type from JSON; `inside` is for the child of a list or a struct."""
    if pa.types.is_list(kind):
        return _needs_python(kind.value_type, True)
    if pa.types.is_struct(kind):
        return any(_needs_python(field.type, True) for field in kind)
    return bool(pa.types.is_map(kind) or (inside and pa.types.is_binary(kind)))


def _as_text(kind: pa.DataType) -> pa.DataType:
    """The type to read first: dates, times and bytes are strings in JSON."""
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_as_text(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_text(field.type)) for field in kind])
    return pa.string() if pa.types.is_binary(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind) else kind


def _read_by_arrow(texts: pa.Array, schema: pa.Schema) -> dict[str, pa.Array] | None:
    """The columns as Arrow's JSON reader makes them; None where it cannot read one of the rows."""
    if not len(schema):
        return {}
    if not len(texts) or pc.any(pc.match_substring(texts, b"\n")).as_py():
        return None
    lines = io.BytesIO(b"\n".join(texts.to_pylist()))
    plain = pa.schema([field.with_type(_as_text(field.type)) for field in schema])
    parsing = pyarrow.json.ParseOptions(explicit_schema=plain, unexpected_field_behavior="ignore")
    reading = pyarrow.json.ReadOptions(block_size=max(1 << 16, 2 * texts.nbytes))
    try:
        table = pyarrow.json.read_json(lines, reading, parsing).select(schema.names)
        if len(table) != len(texts):
            return None
        return {field.name: _typed(table[field.name].combine_chunks(), field.type) for field in schema}
    except (pa.ArrowInvalid, ValueError):
        return None


def _typed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_binary(kind):
        return pa.array([None if text is None else _from_base64(text) for text in column.to_pylist()], kind)
    return column.cast(kind)


def _read_row_by_row(texts: pa.Array, fields: Sequence[pa.Field]) -> dict[str, pa.Array]:
    converters = [(field.name, _converter(field.type)) for field in fields]
    rows: list[list[Any]] = []
    for row, text in enumerate(texts.to_pylist()):
        column, value, converted = None, {}, []
        try:
            value = json.loads(text, parse_float=Decimal)
            if not isinstance(value, dict):
                raise ValueError("it is no object")
            for column, convert in converters:
                converted.append(convert(value.get(column)))
        except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
            raise UnfitError(row, error, column, None if column is None else value[column]) from None
        rows.append(converted)
    return {field.name: pa.array([row[i] for row in rows], field.type) for i, field in enumerate(fields)}


def _converter(kind: pa.DataType) -> Callable[[Any], Any]:
    """A function from a JSON value, or None, to a value of the type. It raises a ValueError where the value is not of
    that type.
    """
    convert = _value_converter(kind)

    def convert_or_none(value: Any) -> Any:
        return None if value is None else convert(value)

    return convert_or_none


def _value_converter(kind: pa.DataType) -> Callable[[Any], Any]:
    if pa.types.is_list(kind):
        convert = _converter(kind.value_type)
        return lambda value: [convert(item) for item in _require(list, value)]
    if pa.types.is_struct(kind):
        converters = [(field.name, _converter(field.type)) for field in kind]
        return lambda value: {name: convert(_require(dict, value).get(name)) for name, convert in converters}
    if pa.types.is_map(kind):
        convert = _converter(kind.item_type)
        return lambda value: [(name, convert(item)) for name, item in _require(dict, value).items()]
    if pa.types.is_integer(kind):
        return lambda value: _integer(value, 1 << (kind.bit_width - 1))
    if pa.types.is_floating(kind):
        return _float
    if pa.types.is_decimal(kind):
        return lambda value: _decimal(value, kind)
    if pa.types.is_boolean(kind):
        return lambda value: _require(bool, value)
    if pa.types.is_binary(kind):
        return lambda value: _from_base64(_require(str, value))
    if pa.types.is_date(kind):
        return lambda value: date.fromisoformat(_require(str, value))
    if pa.types.is_timestamp(kind):
        return lambda value: _timestamp(_require(str, value), kind.tz is not None)
    return lambda value: _require(str, value)


def _require(wanted: type, value: Any) -> Any:
    if type(value) is not wanted:
        word = {str: "text", list: "array", dict: "object", bool: "true or false"}[wanted]
        raise ValueError(f"{str(value)[:40]!r} is no {word}")
    return value


def _integer(value: Any, limit: int) -> int:
    if type(value) is not int or not -limit <= value < limit:
        raise ValueError(f"{str(value)[:40]!r} is no whole number below {limit}")
    return value


def _float(value: Any) -> float:
    if isinstance(value, bool | str) and f'"{value}"' not in _WORDS.values():
        raise ValueError(f"{str(value)[:40]!r} is no number")
    return float(value)


def _decimal(value: Any, kind: pa.DataType) -> Decimal:
    if type(value) not in (int, Decimal, str):
        raise ValueError(f"{str(value)[:40]!r} is no decimal")
    pa.scalar(Decimal(value), kind)  # raises where it has too many digits
    return Decimal(value)


def _timestamp(text: str, zoned: bool) -> datetime:
    moment = datetime.fromisoformat(text)
    if (moment.tzinfo is not None) != zoned:
        raise ValueError(f"{text!r} has {'no' if zoned else 'a'} zone")
    return moment


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
