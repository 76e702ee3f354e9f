"""Columns as Avro's bytes: each column of all rows at once, then joined row by row. Knows Avro's encoding and Arrow; no
registry, no Spark.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.buffers import join, lengths
from penstock.codecs import row_bytes
from penstock.codecs.avro_types import Avro, Schema, decimal_of, kind, logical
from penstock.codecs.row_bytes import EMPTY, counts, fixed, grouped, joined, listed, varints, zigzag
from penstock.errors import OptionError

Write = Callable[[pa.Array], pa.Array]
_END = pa.scalar(b"\0", pa.binary())
_NUMBERS = {"int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64()}


class Writer:
    """Writes rows by a schema. An OptionError where its fields and the columns do not fit."""

    def __init__(self, avro: Avro, columns: pa.Schema):
        self.avro = avro
        fields = avro.fields()
        if kind(avro.at(avro.schema)) != "record":
            self._write = [("value", self._any(avro.schema, columns.field("value").type, "value"))]
            return
        names = [field["name"] for field in fields]
        if unknown := [name for name in columns.names if name not in names]:
            raise OptionError(
                f"the schema of Avro has no field '{unknown[0]}', which is a column. It has: {', '.join(names)}."
            )
        self._write = []
        for field in fields:
            if field["name"] not in columns.names:
                raise OptionError(f"the schema of Avro has a field '{field['name']}', and there is no such column.")
            type = columns.field(field["name"]).type
            self._write.append((field["name"], self._any(field["type"], type, field["name"])))

    def write(self, rows: pa.RecordBatch) -> pa.Array:
        """The bytes of each row. A value that the schema has no room for is an OptionError, with its column."""
        return joined([write(rows.column(name)) for name, write in self._write], len(rows))

    def _any(self, schema: Schema, type: pa.DataType, path: str) -> Write:
        schema = self.avro.at(schema)
        what = kind(schema)
        if what == "union":
            return self._union(schema, type, path)
        return _without_nulls(self._one(schema, type, path), path)

    def _one(self, schema: Schema, type: pa.DataType, path: str) -> Write:
        what = kind(schema)
        if what == "record" and pa.types.is_struct(type):
            return self._record(schema, type, path)
        if what == "array" and _is_list(type):
            item = self._any(schema["items"], type.value_type, f"{path}[]")
            return lambda array: _blocks(array, item(array.flatten()))
        if what == "map" and pa.types.is_map(type):
            return self._map(self._any(schema["values"], type.item_type, f"{path}[]"))
        if (places := decimal_of(schema)) is not None and pa.types.is_decimal(type):
            return _decimals(schema, places, path)
        plain = _plain(schema, type, path)
        if plain is None:
            raise OptionError(
                f"the column '{path}' is {type}, and its field in the schema of Avro is {_shown(schema)}."
            )
        return plain

    def _map(self, value: Write) -> Write:
        def write(array: pa.Array) -> pa.Array:
            entries = listed(array).flatten()
            return _blocks(listed(array), joined([_text(entries.field(0)), value(entries.field(1))], len(entries)))

        return write

    def _record(self, schema: Schema, type: pa.DataType, path: str) -> Write:
        own = {type.field(n).name: n for n in range(type.num_fields)}
        steps = []
        for field in schema["fields"]:
            place = f"{path}.{field['name']}"
            if field["name"] not in own:
                raise OptionError(f"the schema of Avro has a field '{place}', and there is no such column.")
            at = own[field["name"]]
            steps.append((at, self._any(field["type"], type.field(at).type, place)))
        return lambda array: joined([write(array.field(at)) for at, write in steps], len(array))

    def _union(self, schema: Schema, type: pa.DataType, path: str) -> Write:
        """A null has its own branch; everything else is of the first branch that takes the column."""
        branches = [self.avro.at(each) for each in schema]
        null = next((n for n, each in enumerate(branches) if kind(each) == "null"), None)
        refused = ""
        for number, branch in enumerate(branches):
            if number == null:
                continue
            try:
                write = self._one(branch, type, path)
            except OptionError as error:
                refused = refused or str(error)
                continue
            return _nullable(write, number, null, path)
        if pa.types.is_null(type) and null is not None:
            return lambda array: pa.repeat(pa.scalar(_one_varint(null), pa.binary()), len(array))
        raise OptionError(refused or f"the field '{path}' of Avro is always null, and the column is {type}.")


def _plain(schema: Schema, type: pa.DataType, path: str) -> Write | None:
    """What is no other thing's part; None where the column does not fit."""
    what, name = kind(schema), logical(schema) or ""
    if what == "boolean" and pa.types.is_boolean(type):
        return lambda array: fixed(array.cast(pa.uint8()).to_numpy().astype(np.uint8)[:, None])
    if what in ("int", "long") and pa.types.is_date(type) and (what == "long" or name == "date"):
        return lambda array: _longs(array.cast(pa.date32()).cast(pa.int32()).to_numpy().astype(np.int64))
    if what == "long" and pa.types.is_timestamp(type):
        unit = {"timestamp-millis": "ms", "local-timestamp-millis": "ms", "timestamp-nanos": "ns"}.get(name, "us")
        return lambda array: _longs(array.cast(pa.timestamp(unit, type.tz), safe=False).cast(pa.int64()).to_numpy())
    if what in ("int", "long") and pa.types.is_integer(type):
        if what == "int" and type.bit_width > 32:
            return None
        return lambda array: _longs(array.to_numpy().astype(np.int64))
    if what in ("float", "double") and (pa.types.is_floating(type) or pa.types.is_integer(type)):
        if what == "float" and type not in (pa.float32(), pa.float16(), pa.int8(), pa.int16()):
            return None
        form, width = ("<f4", 4) if what == "float" else ("<f8", 8)
        return lambda array: fixed(array.to_numpy().astype(form).view(np.uint8).reshape(-1, width))
    if what == "string" and _is_text(type):
        return _text
    if what == "bytes" and (_is_bytes(type) or _is_text(type)):
        return _text
    if what == "fixed" and _is_bytes(type):
        return lambda array: _sized(array, schema["size"], path)
    if what == "enum" and _is_text(type):
        return lambda array: _symbols(array, schema["symbols"], path)
    return None


def _shown(schema: Schema) -> str:
    name = logical(schema)
    return f"{kind(schema)} ({name})" if name else kind(schema)


def _is_text(type: pa.DataType) -> bool:
    return bool(pa.types.is_string(type) or pa.types.is_large_string(type))


def _is_bytes(type: pa.DataType) -> bool:
    return bool(pa.types.is_binary(type) or pa.types.is_large_binary(type) or pa.types.is_fixed_size_binary(type))


def _is_list(type: pa.DataType) -> bool:
    return bool(pa.types.is_list(type) or pa.types.is_large_list(type))


def _without_nulls(write: Write, path: str) -> Write:
    def checked(array: pa.Array) -> pa.Array:
        if array.null_count:
            raise OptionError(f"the column '{path}' has a null, and its field in the schema of Avro takes none.")
        return write(array)

    return checked


def _nullable(write: Write, number: int, null: int | None, path: str) -> Write:
    mark = pa.scalar(_one_varint(number), pa.binary())

    def marked(array: pa.Array) -> pa.Array:
        if not array.null_count:
            return joined([pa.repeat(mark, len(array)), write(array)], len(array))
        if null is None:
            raise OptionError(f"the column '{path}' has a null, and its union in the schema of Avro has none.")
        valid = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
        values = write(array.take(pa.array(valid)))
        order = np.full(len(array), len(valid), np.int64)
        order[valid] = np.arange(len(valid))
        whole = joined([pa.repeat(mark, len(values)), values], len(values))
        absent = pa.array([_one_varint(null)], pa.binary())
        return pa.concat_arrays([whole, absent]).take(pa.array(order))

    return marked


def _longs(values: npt.NDArray[np.int64]) -> pa.Array:
    return varints(zigzag(values))


def _one_varint(number: int) -> bytes:
    value: bytes = _longs(np.array([number], np.int64))[0].as_py()
    return value


def _text(array: pa.Array) -> pa.Array:
    data = array.cast(pa.binary())
    return join(_longs(lengths(data)), data)


def _sized(array: pa.Array, size: int, path: str) -> pa.Array:
    data = array.cast(pa.binary())
    widths = lengths(data)
    if (widths != size).any():
        wrong = int(widths[widths != size][0])
        raise OptionError(f"the column '{path}' has {wrong} bytes, and its field in the schema of Avro has {size}.")
    return data


def _symbols(array: pa.Array, symbols: list[str], path: str) -> pa.Array:
    places = pc.index_in(array.cast(pa.string()), pa.array(symbols))
    if places.null_count:
        value = array.filter(places.is_null())[0].as_py()
        raise OptionError(f"the column '{path}' has '{value}', and its enum in the schema of Avro does not.")
    return _longs(places.to_numpy().astype(np.int64))


def _decimals(schema: Schema, places: tuple[int, int], path: str) -> Write:
    """Numbers of two's complement, the highest byte first, no longer than they must be."""

    def write(array: pa.Array) -> pa.Array:
        try:
            exact = array.cast(pa.decimal128(*places))
        except pa.ArrowInvalid as error:
            raise OptionError(f"the column '{path}' does not fit into decimal{places} of Avro: {error}.") from None
        exact = pa.concat_arrays([exact])
        lowest_first = np.frombuffer(exact.buffers()[1], np.uint8, len(exact) * 16).reshape(-1, 16)
        digits = lowest_first[:, ::-1]
        if kind(schema) == "fixed":
            size = min(schema["size"], 16)
            sign = np.where(digits[:, :1] >= 128, 255, 0).astype(np.uint8)
            padding = np.repeat(sign, max(0, schema["size"] - 16), axis=1)
            return fixed(np.concatenate([padding, digits[:, 16 - size :]], axis=1))
        is_negative = digits[:, :1] >= 128
        filler = np.where(is_negative, 255, 0)
        # A byte may go where it only repeats the sign, and the next one has that sign too.
        spare = (digits[:, :-1] == filler) & ((digits[:, 1:] >= 128) == is_negative)
        dropped = np.cumprod(spare, axis=1).sum(axis=1)
        widths = (16 - dropped).astype(np.int64)
        kept = digits[np.arange(16) >= dropped[:, None]]
        return join(_longs(widths), row_bytes.array(kept, widths))

    return write


def _blocks(lists: pa.Array, items: pa.Array) -> pa.Array:
    """Items as Avro's block of each row: how many, the items, and the end."""
    numbers = counts(lists)
    ends = pc.if_else(pa.array(numbers > 0), _END, EMPTY)
    return joined([_longs(numbers), grouped(items, numbers), ends], len(lists))
