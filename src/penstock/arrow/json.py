"""Columns as JSON text, an object a row, and back: every type that is taken comes back as it was. Knows Arrow only.

Text has no Python statement per row, but for strings that need escapes and for bytes. Reading has none either, unless
there are maps, or bytes inside of something, or numbers that JSON has no word for.
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

# Characters that JSON wants escaped; where none of them is there, text is taken as it is.
_SPECIAL = r'["\\\x00-\x1f]'
# Numbers that JSON has no word for, or that would be read as whole ones: as Arrow, and as Java writes them in JSON.
_WORDS = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"', "-0": "-0.0"}
# The days of the years 1 to 9999: dates have four digits.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_DAY = 86_400_000_000


class UnfitError(ValueError):
    """A row that is no JSON object, or has a value for a column that is not of its type."""

    def __init__(self, row: int, why: object, column: str | None = None, value: Any = None):
        self.row, self.column, self.value = row, column, value
        super().__init__(str(why))

    @property
    def found(self) -> str:
        """The value as users call it, such as: the number 1."""
        if isinstance(self.value, list | dict):
            return "an array" if isinstance(self.value, list) else "an object"
        if isinstance(self.value, str | bool):
            return f"the {'text' if isinstance(self.value, str) else 'word'} {json.dumps(self.value)[:60]}"
        return f"the number {self.value}"[:60]


def fits(kind: pa.DataType) -> bool:
    """Whether values of a type come back from JSON as they were."""
    if pa.types.is_list(kind):
        return fits(kind.value_type)
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        return len(set(names)) == len(names) > 0 and all(fits(field.type) for field in kind)
    if pa.types.is_map(kind):
        return bool(kind.key_type == pa.string()) and fits(kind.item_type)
    plain = (
        pa.types.is_boolean, pa.types.is_signed_integer, pa.types.is_float32, pa.types.is_float64,
        pa.types.is_decimal128, pa.types.is_string, pa.types.is_binary, pa.types.is_date32, _is_moment,
    )  # fmt: skip
    return any(is_one(kind) for is_one in plain)


def _is_moment(kind: pa.DataType) -> bool:
    return bool(kind in (pa.timestamp("us"), pa.timestamp("us", "UTC")))


# Writing


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
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        column = _bare(column)
        inner = (
            values(column.values) if pa.types.is_list(kind) else join(values(column.keys), b":", values(column.items))
        )
        lists = pa.ListArray.from_arrays(column.offsets, inner, mask=column.is_null())
        both = (b"[", b"]") if pa.types.is_list(kind) else (b"{", b"}")
        text = join(both[0], pc.binary_join(lists, b","), both[1])
    elif pa.types.is_struct(kind):
        text = objects(pa.RecordBatch.from_arrays(column.flatten(), names=[field.name for field in kind]))
        text = pc.if_else(column.is_valid(), text, None)
    elif pa.types.is_binary(kind):
        coded = [None if value is None else b'"%b"' % base64.b64encode(value) for value in column.to_pylist()]
        text = pa.array(coded, pa.binary())
    elif pa.types.is_string(kind):
        text = _quoted(column)
    elif pa.types.is_date32(kind):
        text = join(b'"', column.cast(pa.string()).cast(pa.binary()), b'"')
    elif pa.types.is_timestamp(kind):
        digits = column.view(pa.timestamp("us")).cast(pa.string())  # by view: a cast would ask for a table of zones
        short = pc.replace_substring_regex(digits, r"\.?0+$", "")
        text = join(b'"', short.cast(pa.binary()), b'Z"' if kind.tz else b'"')
    elif pa.types.is_floating(kind):
        text = column.cast(pa.string())
        if pc.any(pc.is_in(text, pa.array(list(_WORDS)))).as_py():
            for theirs, ours in _WORDS.items():
                text = pc.if_else(pc.equal(text, theirs), ours, text)
    else:
        text = column.cast(pa.string())
    return pc.fill_null(text.cast(pa.binary()), b"null")


def _quoted(column: pa.Array) -> pa.Array:
    if not pc.any(pc.match_substring_regex(column, _SPECIAL)).as_py():
        return join(b'"', column.cast(pa.binary()), b'"')
    texts = (None if v is None else json.dumps(v, ensure_ascii=False).encode() for v in column.to_pylist())
    return pa.array(list(texts), pa.binary())


def _bare(column: pa.Array) -> pa.Array:
    """Lists or maps with nothing but their own values: no slice of more, nothing hidden under a null."""
    return column.take(pa.array(np.arange(len(column))))


def outside(column: pa.Array) -> int | None:
    """The first row with a date or a time outside of the years 1 to 9999, which text has no room for."""
    if not _is_outside(column):
        return None
    low, high = 0, len(column)  # it is in this part
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _is_outside(column[low:middle]) else (middle, high)
    return low


def _is_outside(column: pa.Array) -> bool:
    kind = column.type
    if pa.types.is_list(kind):
        return _is_outside(_bare(column).values)
    if pa.types.is_map(kind):
        return _is_outside(_bare(column).items)
    if pa.types.is_struct(kind):
        return any(_is_outside(child) for child in column.flatten())
    if not pa.types.is_date32(kind) and not pa.types.is_timestamp(kind):
        return False
    days = pa.types.is_date32(kind)
    bounds = pc.min_max(column.view(pa.int32() if days else pa.int64())).as_py()
    unit = 1 if days else _DAY
    return bounds["min"] is not None and not (
        bounds["min"] >= _FIRST_DAY * unit and bounds["max"] < (_LAST_DAY + 1) * unit
    )


# Reading


def columns(texts: pa.Array, schema: pa.Schema) -> dict[str, pa.Array]:
    """Objects as the columns of a schema, null where an object has no such field; its other fields are left out."""
    easy = pa.schema([field for field in schema if not _is_hard(field.type)])
    made = _all_at_once(texts, easy)
    hard = schema if made is None else [field for field in schema if field.name not in made]
    return (made or {}) | (_one_by_one(texts, hard) if len(hard) else {})


def names(text: bytes) -> list[str]:
    """The names of the fields of an object; none where it is no object."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return list(found) if isinstance(found, dict) else []


def _is_hard(kind: pa.DataType, inside: bool = False) -> bool:
    """Whether Arrow cannot read a type from JSON."""
    if pa.types.is_list(kind):
        return _is_hard(kind.value_type, True)
    if pa.types.is_struct(kind):
        return any(_is_hard(field.type, True) for field in kind)
    return bool(pa.types.is_map(kind) or (inside and pa.types.is_binary(kind)))


def _as_text(kind: pa.DataType) -> pa.DataType:
    """A type with text for all that is text in JSON."""
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_as_text(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_text(field.type)) for field in kind])
    return pa.string() if pa.types.is_binary(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind) else kind


def _all_at_once(texts: pa.Array, schema: pa.Schema) -> dict[str, pa.Array] | None:
    """The columns as Arrow reads them; None where one of the objects is odd."""
    if not len(schema):
        return {}
    if not len(texts) or pc.any(pc.match_substring(texts, b"\n")).as_py():
        return None
    lines = io.BytesIO(b"\n".join(texts.to_pylist()))
    plain = pa.schema([field.with_type(_as_text(field.type)) for field in schema])
    wanted = pyarrow.json.ParseOptions(explicit_schema=plain, unexpected_field_behavior="ignore")
    size = pyarrow.json.ReadOptions(block_size=max(1 << 16, 2 * texts.nbytes))
    try:
        table = pyarrow.json.read_json(lines, size, wanted).select(schema.names)
        if len(table) != len(texts):
            return None
        return {field.name: _typed(table[field.name].combine_chunks(), field.type) for field in schema}
    except (pa.ArrowInvalid, ValueError):
        return None


def _typed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_binary(kind):
        return pa.array([None if text is None else _unpacked(text) for text in column.to_pylist()], kind)
    return column.cast(kind)


def _one_by_one(texts: pa.Array, schema: pa.Schema | Sequence[pa.Field]) -> dict[str, pa.Array]:
    makers = [(field.name, _maker(field.type)) for field in schema]
    rows: list[list[Any]] = []
    for row, text in enumerate(texts.to_pylist()):
        column, found, made = None, {}, []
        try:
            found = json.loads(text, parse_float=Decimal)
            if not isinstance(found, dict):
                raise ValueError("it is no object")
            for column, make in makers:
                made.append(make(found.get(column)))
        except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
            raise UnfitError(row, error, column, None if column is None else found[column]) from None
        rows.append(made)
    return {field.name: pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)}


def _maker(kind: pa.DataType) -> Callable[[Any], Any]:
    """What makes a value of a type from what JSON has for it, or raises a ValueError."""
    make = _maker_of_some(kind)
    return lambda value: None if value is None else make(value)


def _maker_of_some(kind: pa.DataType) -> Callable[[Any], Any]:
    if pa.types.is_list(kind):
        each = _maker(kind.value_type)
        return lambda value: [each(item) for item in _a(list, value)]
    if pa.types.is_struct(kind):
        fields = [(field.name, _maker(field.type)) for field in kind]
        return lambda value: {name: make(_a(dict, value).get(name)) for name, make in fields}
    if pa.types.is_map(kind):
        item = _maker(kind.item_type)
        return lambda value: [(name, item(each)) for name, each in _a(dict, value).items()]
    if pa.types.is_integer(kind):
        return lambda value: _whole(value, 1 << (kind.bit_width - 1))
    if pa.types.is_floating(kind):
        return _real
    if pa.types.is_decimal(kind):
        return lambda value: _exact(value, kind)
    if pa.types.is_boolean(kind):
        return lambda value: _a(bool, value)
    if pa.types.is_binary(kind):
        return lambda value: _unpacked(_a(str, value))
    if pa.types.is_date(kind):
        return lambda value: date.fromisoformat(_a(str, value))
    if pa.types.is_timestamp(kind):
        return lambda value: _moment(_a(str, value), kind.tz is not None)
    return lambda value: _a(str, value)


def _a(wanted: type, value: Any) -> Any:
    if type(value) is not wanted:
        word = {str: "text", list: "array", dict: "object", bool: "true or false"}[wanted]
        raise ValueError(f"{str(value)[:40]!r} is no {word}")
    return value


def _whole(value: Any, limit: int) -> int:
    if type(value) is not int or not -limit <= value < limit:
        raise ValueError(f"{str(value)[:40]!r} is no whole number below {limit}")
    return value


def _real(value: Any) -> float:
    if isinstance(value, bool | str) and f'"{value}"' not in _WORDS.values():
        raise ValueError(f"{str(value)[:40]!r} is no number")
    return float(value)


def _exact(value: Any, kind: pa.DataType) -> Decimal:
    if type(value) not in (int, Decimal, str):
        raise ValueError(f"{str(value)[:40]!r} is no decimal")
    pa.scalar(Decimal(value), kind)  # raises where it has too many digits
    return Decimal(value)


def _moment(text: str, zoned: bool) -> datetime:
    moment = datetime.fromisoformat(text)
    if (moment.tzinfo is not None) != zoned:
        raise ValueError(f"{text!r} has {'no' if zoned else 'a'} zone")
    return moment


def _unpacked(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
