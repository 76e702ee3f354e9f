"""Avro's bytes as columns: a field of all records at once, in place of a record at a time. Knows Avro's encoding, and
the rules by which a record of one schema is read by another; no registry, no Spark.
"""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.buffers import lengths as byte_lengths
from penstock.codecs.avro_types import PRIMITIVES, Avro, Schema, decimal_of, kind, logical, union_type
from penstock.codecs.cursors import Cursors, Ints, map_of, together, utf8
from penstock.errors import OptionError

Read = Callable[[Cursors], pa.Array]
# Items of one array are read one after the other, those of all records at once: a step for each.
MOST_STEPS = 5_000
_PROMOTED = {
    "int": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",), "string": ("bytes",),
    "bytes": ("string",),
}  # fmt: skip


class TooLongError(Exception):
    """An array has so many items that steps would take too long."""


class Reader:
    """Reads records that were written by one schema as columns of another, which may be the same."""

    def __init__(self, writer: Avro, reader: Avro):
        self.columns = reader.arrow()
        self._resolve = _Resolve(writer, reader)
        top, wanted = writer.at(writer.schema), reader.at(reader.schema)
        if kind(wanted) == "record" and kind(top) == "record":
            self._read = self._resolve.record(top, wanted, self.columns, "")
        elif kind(wanted) == "record":
            raise OptionError(f"records were written as {kind(top)}, and are to be read as a record.")
        else:
            value = self._resolve.any(top, wanted, "value")
            self._read = lambda cursors: [value(cursors)]

    def read(self, values: pa.Array) -> tuple[pa.RecordBatch, dict[int, str]]:
        """The columns, and why a record could not be read, by its number. Its columns are then of no meaning."""
        cursors = Cursors.over(values)
        arrays = self._read(cursors)
        return pa.record_batch(arrays, schema=self.columns), dict(cursors.finish())


class _Resolve:
    """Makes functions that read, one inside of the other, from a pair of schemas."""

    def __init__(self, writer: Avro, reader: Avro):
        self.writer, self.reader = writer, reader

    def record(self, written: Schema, wanted: Schema, columns: Any, path: str) -> Callable[[Cursors], list[pa.Array]]:
        """A function for the fields of a record, in the order in which they are wanted."""
        by_name = {name: at for at, field in enumerate(wanted["fields"]) for name in _names(field)}
        steps: list[tuple[int | None, Read]] = []
        for field in written["fields"]:
            at = by_name.pop(field["name"], None)
            place = f"{path}{field['name']}"
            if at is None:
                steps.append((None, self.skipped(field["type"], place)))
            else:
                steps.append((at, self.any(field["type"], wanted["fields"][at]["type"], place)))
        given = {at for at, _ in steps}
        missing = [at for at in range(len(wanted["fields"])) if at not in given]
        defaults = {at: self._default(wanted["fields"][at], columns[at].type, f"{path}") for at in missing}

        def read(cursors: Cursors) -> list[pa.Array]:
            arrays: dict[int, pa.Array] = {}
            for at, step in steps:
                array = step(cursors)
                if at is not None:
                    arrays[at] = array
            for at, value in defaults.items():
                arrays[at] = pa.repeat(value, len(cursors)) if value.is_valid else pa.nulls(len(cursors), value.type)
            return [arrays[at] for at in range(len(wanted["fields"]))]

        return read

    def _default(self, field: dict[str, Any], type: pa.DataType, path: str) -> pa.Scalar:
        if "default" not in field:
            # As Spark has it: a column that is new is null in what was written before.
            return pa.scalar(None, type)
        return pa.scalar(_default_value(self.reader, field["type"], field["default"]), type)

    def skipped(self, written: Schema, path: str) -> Read:
        """A function that reads a field which nobody wants."""
        return _Resolve(self.writer, self.writer).any(written, written, path)

    def any(self, written: Schema, wanted: Schema, path: str) -> Read:
        """A function that reads one schema as another."""
        written, wanted = self.writer.at(written), self.reader.at(wanted)
        if kind(written) == "union":
            return self._union(written, wanted, path)
        if kind(wanted) == "union":
            return self._into_union(written, wanted, path)
        what, to = kind(written), kind(wanted)
        if what != to and to not in _PROMOTED.get(what, ()):
            raise OptionError(f"the field '{path}' was written as {what}, and cannot be read as {to}.")
        if what == "record":
            type = self.reader.arrow_type(wanted)
            fields = self.record(written, wanted, list(type), f"{path}.")
            return lambda cursors: pa.StructArray.from_arrays(fields(cursors), fields=list(type))
        if what == "array":
            return _list(self.any(written["items"], wanted["items"], path), self.reader.arrow_type(wanted))
        if what == "map":
            return _map(self.any(written["values"], wanted["values"], path), self.reader.arrow_type(wanted))
        if what == "enum":
            return _enum(written["symbols"], wanted, path)
        read = _plain(written)
        if what != to or (what == "bytes" and self.reader.arrow_type(wanted) == pa.string()):
            target = self.reader.arrow_type(wanted)
            return _text(lambda cursors: _bytes(cursors, written)) if target == pa.string() else _cast(read, target)
        return _typed(read, written, wanted, self.reader.arrow_type(wanted))

    def _union(self, written: Schema, wanted: Schema, path: str) -> Read:
        """Every branch that records have, each read by its own function."""
        type = self.reader.arrow_type(wanted)
        branches: list[Read | str] = []
        for branch in written:
            try:
                branches.append(
                    _null(type) if kind(self.writer.at(branch)) == "null" else self.any(branch, wanted, path)
                )
            except OptionError as error:
                branches.append(str(error))  # of interest only where a record has it

        def read(cursors: Cursors) -> pa.Array:
            index = cursors.zigzag()
            unknown = (index < 0) | (index >= len(branches))
            if unknown.any():
                cursors.fail(unknown, f"has a type in '{path}' that its schema does not have")
                index = np.where(unknown, -1, index)
            parts = []
            for number, branch in enumerate(branches):
                places = np.flatnonzero(index == number)
                if not len(places):
                    continue
                part = cursors.part(places)
                if isinstance(branch, str):
                    part.fail(np.ones(len(part), np.bool_), branch.rstrip("."))
                else:
                    parts.append((places, branch(part)))
                cursors.join(part, places)
            return together(parts, len(cursors), type)

        return read

    def _into_union(self, written: Schema, wanted: Schema, path: str) -> Read:
        """A single type as one of several: the first that is the same, or else the first that it can be read as."""
        others = [each for each in wanted if kind(self.reader.at(each)) != "null"]
        types = [self.reader.arrow_type(each) for each in others]
        same = [n for n, each in enumerate(others) if kind(self.reader.at(each)) == kind(written)]
        for number in (*same, *(n for n in range(len(others)) if n not in same)):
            try:
                read = self.any(written, others[number], path)
            except OptionError:
                continue
            return _member(read, number, types)
        raise OptionError(
            f"the field '{path}' was written as {kind(written)}, and is to be read as a union without it."
        )


def _names(field: dict[str, Any]) -> list[str]:
    return [field["name"], *field.get("aliases", [])]


def _default_value(avro: Avro, schema: Schema, value: Any) -> Any:
    """A default of a schema as Arrow takes it: bytes are written as text there."""
    schema = avro.at(schema)
    if kind(schema) == "union":
        schema = avro.at(schema[0])
    if value is None:
        return None
    if kind(schema) == "record":
        return {
            field["name"]: _default_value(avro, field["type"], value.get(field["name"], field.get("default")))
            for field in schema["fields"]
        }
    if kind(schema) == "array":
        return [_default_value(avro, schema["items"], each) for each in value]
    if kind(schema) == "map":
        return [(key, _default_value(avro, schema["values"], each)) for key, each in value.items()]
    if kind(schema) in ("bytes", "fixed") and isinstance(value, str):
        return value.encode("latin-1")
    return value


def _plain(schema: Schema) -> Read:
    """A function for what is no other thing's part, as its bytes say it."""
    what = kind(schema)
    if what == "null":
        return lambda cursors: pa.nulls(len(cursors))
    if what == "boolean":
        return lambda cursors: pa.array(cursors.fixed(1)[:, 0] != 0)
    if what == "int":
        return lambda cursors: pa.array(_narrow(cursors))
    if what == "long":
        return lambda cursors: pa.array(cursors.zigzag())
    if what == "float":
        return lambda cursors: pa.array(np.ascontiguousarray(cursors.fixed(4)).view("<f4")[:, 0])
    if what == "double":
        return lambda cursors: pa.array(np.ascontiguousarray(cursors.fixed(8)).view("<f8")[:, 0])
    if what == "string":
        return _text(lambda cursors: cursors.slices(cursors.zigzag()))
    return lambda cursors: _bytes(cursors, schema)


def _bytes(cursors: Cursors, schema: Schema) -> pa.Array:
    if kind(schema) == "fixed":
        return cursors.slices(np.full(len(cursors), schema["size"], np.int64))
    return cursors.slices(cursors.zigzag())


def _narrow(cursors: Cursors) -> Any:
    value = cursors.zigzag()
    wide = (value < -(2**31)) | (value >= 2**31)
    if wide.any():
        cursors.fail(wide, "has a number of more than 32 bits for an int")
    return value.astype(np.int32)


def _text(read: Read) -> Read:
    return lambda cursors: utf8(cursors, read(cursors))


def _typed(read: Read, written: Schema, wanted: Schema, type: pa.DataType) -> Read:
    """A function for values of a logical type: that of the schema by which they are read."""
    if (places := decimal_of(wanted)) is not None:
        return lambda cursors: _decimal(cursors, read(cursors), type, places)
    name = logical(wanted) or ""
    if name in ("timestamp-nanos", "local-timestamp-nanos"):
        return lambda cursors: pa.array(read(cursors).to_numpy() // 1000).cast(type)
    if pa.types.is_timestamp(type):
        if (logical(written) or name).endswith("millis"):
            return lambda cursors: _micros(cursors, read(cursors).to_numpy()).cast(type)
        return lambda cursors: read(cursors).cast(type)
    return _cast(read, type) if type != PRIMITIVES.get(kind(written)) else read


def _micros(cursors: Cursors, millis: Ints) -> pa.Array:
    is_far = np.abs(millis) > np.iinfo(np.int64).max // 1000
    if is_far.any():
        cursors.fail(is_far, "has a time that is too far away")
        millis = np.where(is_far, 0, millis)
    return pa.array(millis * 1000)


def _cast(read: Read, type: pa.DataType) -> Read:
    return lambda cursors: read(cursors).cast(type, safe=False)


def _decimal(cursors: Cursors, values: pa.Array, type: pa.DataType, places: tuple[int, int]) -> pa.Array:
    """Numbers of two's complement, the highest byte first, as those of 16 bytes, the lowest first."""
    lengths = byte_lengths(values)
    if (long := lengths > 16).any():
        cursors.fail(long, "has a decimal of more than 16 bytes")
    data = np.frombuffer(values.buffers()[2], np.uint8) if lengths.sum() else np.zeros(1, np.uint8)
    end = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1)[1:].astype(np.int64)
    steps = np.arange(16)
    bytes_ = data[np.clip(end[:, None] - 1 - steps, 0, len(data) - 1)]
    first = data[np.clip(end - lengths, 0, len(data) - 1)]
    sign = np.where((first >= 128) & (lengths > 0), 255, 0).astype(np.uint8)
    filled = np.where(steps < lengths[:, None], bytes_, sign[:, None])
    numbers = pa.Array.from_buffers(type, len(values), [None, pa.py_buffer(np.ascontiguousarray(filled))])
    largest = pa.scalar(Decimal((0, (9,) * places[0], -places[1])), type)
    is_wide = pc.greater(pc.abs(numbers), largest).to_numpy(zero_copy_only=False)
    if is_wide.any():
        cursors.fail(is_wide, f"has a decimal of more than {places[0]} digits")
        return pc.if_else(pa.array(is_wide), pa.scalar(None, type), numbers)
    return numbers


def _null(type: pa.DataType) -> Read:
    return lambda cursors: pa.nulls(len(cursors), type)


def _enum(symbols: list[str], wanted: Schema, path: str) -> Read:
    known = set(wanted["symbols"])
    default = wanted.get("default")
    names = pa.array([name if name in known else default for name in symbols], pa.string())

    def read(cursors: Cursors) -> pa.Array:
        index = cursors.zigzag()
        unknown = (index < 0) | (index >= len(symbols))
        if unknown.any():
            cursors.fail(unknown, f"has a value in '{path}' that its enum does not have")
            index = np.where(unknown, 0, index)
        values = names.take(pa.array(index))
        if values.null_count:
            cursors.fail(values.is_null().to_numpy(zero_copy_only=False), f"has a value in '{path}' that is not wanted")
        return values

    return read


def _member(read: Read, number: int, types: list[pa.DataType]) -> Read:
    """Values as one member of a union, as Spark has it."""
    target = union_type(types)
    if not pa.types.is_struct(target) or len(types) == 1:
        return _cast(read, target) if types[number] != target else read

    def member(cursors: Cursors) -> pa.Array:
        own = read(cursors)
        arrays = [own if n == number else pa.nulls(len(cursors), each) for n, each in enumerate(types)]
        return pa.StructArray.from_arrays(arrays, fields=list(target))

    return member


def _items(cursors: Cursors, read: Callable[[Cursors], list[pa.Array]]) -> tuple[Ints, list[pa.Array]]:
    """The items of an array in each record: how many there are, and all of them, record by record."""
    counts, left = np.zeros(len(cursors), np.int64), np.zeros(len(cursors), np.int64)
    rows: list[Ints] = []
    pieces: list[list[pa.Array]] = []
    beginning = np.arange(len(cursors))
    while len(beginning):
        part = cursors.part(beginning)
        block = part.zigzag()
        sized = np.flatnonzero(block < 0)  # the block says how many bytes it has, so that one can leave it out
        if len(sized):
            inner = part.part(sized)
            inner.zigzag()
            part.join(inner, sized)
        left[beginning] = np.where(part.claim(np.abs(block)), 0, np.abs(block))
        cursors.join(part, beginning)
        live = beginning[left[beginning] > 0]
        if len(cursors) > 1 and len(live) and counts[live].max() + left[live].max() > MOST_STEPS:
            raise TooLongError
        begun = live
        while len(live):
            part = cursors.part(live)
            pieces.append(read(part))
            rows.append(live)
            cursors.join(part, live)
            counts[live] += 1
            left[live] -= 1
            live = live[(left[live] > 0) & ~part.failed()]
        beginning = begun[~cursors.part(begun).failed()]
    if not rows:
        return counts, []
    order = pa.array(np.argsort(np.concatenate(rows), kind="stable"))
    return counts, [pa.concat_arrays(list(each)).take(order) for each in zip(*pieces, strict=True)]


def _starts(counts: Ints) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))


def _list(read: Read, type: pa.DataType) -> Read:
    def lists(cursors: Cursors) -> pa.Array:
        counts, arrays = _items(cursors, lambda part: [read(part)])
        values = arrays[0] if arrays else pa.array([], type.value_type)
        return pa.ListArray.from_arrays(_starts(counts), values, type=type)

    return lists


def _map(read: Read, type: pa.DataType) -> Read:
    key = _plain("string")

    def maps(cursors: Cursors) -> pa.Array:
        counts, arrays = _items(cursors, lambda part: [key(part), read(part)])
        keys, values = arrays or [pa.array([], pa.string()), pa.array([], type.item_type)]
        return map_of(counts, keys, values, type)

    return maps
