"""Messages of Protocol Buffers as columns: the next field of all messages at once, in place of a message at a time.
Knows the encoding; no registry, no Spark.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codecs.cursors import Cursors, Ints, together, utf8
from penstock.codecs.protobuf_types import TIMESTAMP, Field, Message

Read = Callable[[Cursors], pa.Array]
Parts = list[tuple[Ints, pa.Array]]
VARINT, EIGHT, SIZED, FOUR = 0, 1, 2, 5


def read(message: Message, values: pa.Array) -> tuple[pa.RecordBatch, dict[int, str]]:
    """The columns, and why a message could not be read, by its number. Its columns are then of no meaning."""
    cursors = Cursors.over(values)
    arrays = _fields(message, cursors)
    return pa.record_batch(arrays, schema=message.arrow()), dict(cursors.finish())


def _fields(message: Message, cursors: Cursors) -> list[pa.Array]:
    """Every field, read to the end of each message."""
    by_number = {field.number: (field, _reader(field)) for field in message.fields}
    parts: dict[int, Parts] = {number: [] for number in by_number}
    active = np.flatnonzero(cursors.at < cursors.end)
    while len(active):
        part = cursors.part(active)
        tag = part.varint()
        for each in np.unique(tag).tolist():
            places = np.flatnonzero(tag == each)
            some = part.part(places)
            number, wire = int(each) >> 3, int(each) & 7
            if number in by_number:
                field, reader = by_number[number]
                found = _read_field(field, reader, wire, some)
                parts[number] += [(active[places][rows], array) for rows, array in found]
            elif number == 0:
                some.fail(np.ones(len(some), np.bool_), "has a field of the number 0")
            else:
                _skip(wire, some)
            part.join(some, places)
        cursors.join(part, active)
        active = active[cursors.at[active] < cursors.end[active]]
    return [_column(field, parts[field.number], len(cursors)) for field in message.fields]


def _read_field(field: Field, read: Read, wire: int, some: Cursors) -> Parts:
    """The values of one field in some messages, with their places: one each, or several where they are packed."""
    everything = np.arange(len(some))
    if wire == _wire(field):
        return [(everything, read(some))]
    if wire != SIZED or not field.is_repeated or _wire(field) == SIZED:
        some.fail(np.ones(len(some), np.bool_), f"has a field '{field.name}' of another type than its message says")
        return []
    inner = _inside(some)
    parts: Parts = []
    live = np.flatnonzero(inner.at < inner.end)
    while len(live):
        part = inner.part(live)
        parts.append((live, read(part)))
        inner.join(part, live)
        live = live[inner.at[live] < inner.end[live]]
    return parts


def _inside(cursors: Cursors) -> Cursors:
    """Cursors over what has its length in front; the others go on behind it."""
    length = cursors.varint().astype(np.int64)
    negative = length < 0
    if negative.any():
        cursors.fail(negative, "has a length below zero")
    start = cursors.at.copy()
    cursors.skip(np.where(negative, 0, length))
    start = np.where(cursors.at - start == length, start, cursors.at)
    return Cursors(cursors.data, start, cursors.at.copy(), cursors.rows, cursors.errors)


def _wire(field: Field) -> int:
    if field.kind in ("double", "fixed64", "sfixed64"):
        return EIGHT
    if field.kind in ("float", "fixed32", "sfixed32"):
        return FOUR
    return SIZED if field.kind in ("string", "bytes", "message") else VARINT


def _skip(wire: int, cursors: Cursors) -> None:
    """Pass over a field that the message does not know."""
    if wire == VARINT:
        cursors.varint()
    elif wire == EIGHT:
        cursors.skip(8)
    elif wire == FOUR:
        cursors.skip(4)
    elif wire == SIZED:
        _inside(cursors)
    else:
        cursors.fail(np.ones(len(cursors), np.bool_), "has a field of a type that there is not")


def _reader(field: Field) -> Read:
    """A function for one value of a field."""
    kind = field.kind
    if kind == "message":
        return _message_reader(field)
    if kind in ("string", "bytes"):
        return lambda cursors: _bytes(cursors, field)
    if kind in ("double", "float", "fixed64", "fixed32", "sfixed64", "sfixed32"):
        form = {
            "double": "<f8",
            "float": "<f4",
            "fixed64": "<u8",
            "fixed32": "<u4",
            "sfixed64": "<i8",
            "sfixed32": "<i4",
        }
        dtype = np.dtype(form[kind])
        return lambda cursors: _number(np.ascontiguousarray(cursors.fixed(dtype.itemsize)).view(dtype)[:, 0], field)
    if kind in ("sint32", "sint64"):
        return lambda cursors: _number(cursors.zigzag(), field)
    if kind == "bool":
        return lambda cursors: pa.array(cursors.varint() != 0)
    if kind == "enum":
        return lambda cursors: _symbols(cursors, field)
    if kind == "uint64":
        return lambda cursors: _number(cursors.varint(), field)
    return lambda cursors: _number(cursors.varint().astype(np.int64), field)


def _number(values: "np.ndarray", field: Field) -> pa.Array:
    if field.kind in ("int32", "sint32", "sfixed32"):
        return pa.array(values.astype(np.int32))
    if field.kind in ("uint32", "fixed32"):
        return pa.array(values.astype(np.int64) & 0xFFFFFFFF)
    if field.kind in ("uint64", "fixed64"):
        wide = np.zeros((len(values), 2), np.uint64)
        wide[:, 0] = values
        return pa.Array.from_buffers(field.type, len(values), [None, pa.py_buffer(wide)])
    return pa.array(values)


def _bytes(cursors: Cursors, field: Field) -> pa.Array:
    values = cursors.slices(cursors.varint().astype(np.int64))
    if field.kind == "bytes":
        return values
    return utf8(cursors, values)


def _symbols(cursors: Cursors, field: Field) -> pa.Array:
    """Names of an enum. A number that it does not have stays a number, as text: newer writers have more."""
    numbers = pa.array(cursors.varint().astype(np.int64))
    known = pa.array([number for number, _ in field.symbols], pa.int64())
    names = pa.array([name for _, name in field.symbols], pa.string())
    found = names.take(pc.index_in(numbers, known))
    return found if not found.null_count else pc.coalesce(found, numbers.cast(pa.string()))


def _message_reader(field: Field) -> Read:
    inner = field.message
    assert inner is not None

    def whole(cursors: Cursors) -> pa.Array:
        arrays = _fields(inner, _inside(cursors))
        if inner.name == TIMESTAMP:
            seconds, nanos = (array.to_numpy().astype(np.int64) for array in arrays)
            return pa.array(seconds * 1_000_000 + nanos // 1000).cast(field.type)
        kind = pa.struct([(each.name, each.column) for each in inner.fields])
        return pa.StructArray.from_arrays(arrays, fields=list(kind))

    return whole


def _column(field: Field, parts: Parts, count: int) -> pa.Array:
    if not field.is_repeated:
        # Where a field comes twice, the last one counts.
        array = together(parts, count, field.type)
        if field.has_presence or field.kind == "message" or not array.null_count:
            return array
        return pc.coalesce(array, pa.scalar(field.default, field.type))
    counts = np.zeros(count, np.int64)
    for places, _ in parts:
        counts[places] += 1
    starts = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    if parts:
        order = np.argsort(np.concatenate([places for places, _ in parts]), kind="stable")
        values = pa.concat_arrays([array for _, array in parts]).take(pa.array(order))
    else:
        values = pa.array([], field.type)
    if field.is_map:
        column = field.column
        return pa.MapArray.from_arrays(starts, values.field(0), values.field(1), type=column)
    return pa.ListArray.from_arrays(starts, values, type=field.column)
