"""Messages of Protocol Buffers as columns: the next field of all messages at once, in place of a message at a time.
Knows the encoding; no registry, no Spark.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.buffers import offsets, segments
from penstock.codecs.cursors import Cursors, Ints, map_of, together, utf8
from penstock.codecs.protobuf_types import EARLIEST, LATEST, TIMESTAMP, Field, Message

Read = Callable[[Cursors], pa.Array]
VARINT, EIGHT, SIZED, FOUR = 0, 1, 2, 5
WIDTHS = {EIGHT: 8, FOUR: 4}
# How numbers of a fixed width lie in a message.
FORMS = {"double": "<f8", "float": "<f4", "fixed64": "<u8", "fixed32": "<u4", "sfixed64": "<i8", "sfixed32": "<i4"}
# A step for all messages costs as much as this many messages one by one. So the last ones that have still more fields,
# such as one with a very long list, are gone through by themselves.
FEW = 40


class Values(NamedTuple):
    """Values of one field. `at`: their places in the bytes, which ascend from message to message."""

    messages: Ints
    at: Ints
    array: pa.Array | None  # None where it is bytes that are looked at later, all at once
    end: Ints


def read(message: Message, values: pa.Array) -> tuple[pa.RecordBatch, dict[int, str]]:
    """The columns, and why a message could not be read, by its number. Its columns are then of no meaning."""
    cursors = Cursors.over(values)
    arrays = _fields(message, cursors)
    return pa.record_batch(arrays, schema=message.arrow()), dict(cursors.finish())


def wire_of(field: Field) -> int:
    """How the encoding has a single value of a field."""
    if field.kind in FORMS:
        return EIGHT if FORMS[field.kind].endswith("8") else FOUR
    return SIZED if field.kind in ("string", "bytes", "message") else VARINT


def _fields(message: Message, cursors: Cursors) -> list[pa.Array]:
    """Every field, read to the end of each message."""
    by_number = {field.number: field for field in message.fields}
    values: dict[int, list[Values]] = {number: [] for number in by_number}

    def take(tag: int, messages: Ints, some: Cursors) -> None:
        """The values of one field in some messages."""
        number, wire = tag >> 3, tag & 7
        if number in by_number:
            values[number] += _values(by_number[number], wire, messages, some)
        elif number == 0:
            some.fail(np.ones(len(some), np.bool_), "has a field of the number 0")
        else:
            _skip(wire, some)

    active = np.flatnonzero(cursors.at < cursors.end)
    while len(active) > FEW:
        part = cursors.part(active)
        tag = part.varint()
        for each in np.unique(tag).tolist():
            places = np.flatnonzero(tag == each)
            some = part.part(places)
            take(each, active[places], some)
            part.join(some, places)
        cursors.join(part, active)
        active = active[cursors.at[active] < cursors.end[active]]
    for tag_of, (messages, at, end) in _one_by_one(cursors, active).items():
        take(tag_of, messages, Cursors(cursors.data, at, end, cursors.rows[messages], cursors.errors))
    for field in message.fields:
        if field.is_required:
            is_missing = np.ones(len(cursors), np.bool_)
            for each in values[field.number]:
                is_missing[each.messages] = False
            cursors.fail(is_missing, f"lacks '{field.name}', which it must have")
    _keep_the_last_of_each_oneof(message, values, len(cursors))
    return [_column(field, values[field.number], cursors) for field in message.fields]


class _BrokenError(Exception):
    """A message cannot be read on."""


def _one_by_one(cursors: Cursors, messages: Ints) -> dict[int, tuple[Ints, Ints, Ints]]:
    """What is left of some messages, by the tag of a field: in which message, and where its values begin and end."""
    octets = memoryview(cursors.data).cast("B")  # Arrow says that its bytes have a sign
    places: dict[int, list[tuple[int, int, int]]] = {}
    for number in messages.tolist():
        at, end = int(cursors.at[number]), int(cursors.end[number])
        try:
            while at < end:
                tag, start, at = _next(octets, at, end)
                places.setdefault(tag, []).append((number, start, at))
        except _BrokenError as error:
            cursors.fail(np.array([number]), str(error))
        cursors.at[number] = end
    return {tag: tuple(np.array(each, np.int64).T) for tag, each in places.items()}


def _next(octets: memoryview, at: int, end: int) -> tuple[int, int, int]:
    """The tag of the next field, and where its value begins and ends."""
    tag, start = _number(octets, at, end)
    wire = tag & 7
    if wire == VARINT:
        return tag, start, _number(octets, start, end)[1]
    if wire == SIZED:
        size, after = _number(octets, start, end)
        stop = after + size
    elif wire in WIDTHS:
        stop = start + WIDTHS[wire]
    else:
        raise _BrokenError(_NO_TYPE)
    if stop > end:
        raise _BrokenError("breaks off")
    return tag, start, stop


def _number(octets: memoryview, at: int, end: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            raise _BrokenError("breaks off")
        byte = octets[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise _BrokenError("has a number of more than ten bytes")


_NO_TYPE = "has a group, or a field of a type that there is not"


def _skip(wire: int, cursors: Cursors) -> None:
    """Pass over a field that the message does not know."""
    if wire == VARINT:
        cursors.varint()
    elif wire in WIDTHS:
        cursors.skip(WIDTHS[wire])
    elif wire == SIZED:
        _inside(cursors)
    else:
        cursors.fail(np.ones(len(cursors), np.bool_), _NO_TYPE)


def _values(field: Field, wire: int, messages: Ints, some: Cursors) -> list[Values]:
    """The values of one field in some messages: one each, or several where they are packed."""
    at = some.at
    if wire == SIZED and wire_of(field) == SIZED:
        inner = _inside(some)
        return [Values(messages, inner.at, None, inner.end)]
    if wire == wire_of(field):
        array = _read_one(field)(some)
        return [Values(messages, at, array, some.at)]
    if wire != SIZED or not field.is_repeated:
        some.fail(np.ones(len(some), np.bool_), f"has a field '{field.name}' of another type than its message says")
        return []
    inner = _inside(some)
    which, items, places = _packed(inner, WIDTHS.get(wire_of(field)))
    return [Values(messages[which], places, _read_one(field)(items), places)]


def _packed(inner: Cursors, width: int | None) -> tuple[Ints, Cursors, Ints]:
    """Items that lie side by side: of which list each is, a cursor at each, and their places."""
    size = inner.end - inner.at
    if width is not None:
        is_odd = size % width != 0
        counts = np.where(is_odd, 0, size // width)
    else:
        is_odd = (size > 0) & (inner.bytes[np.maximum(inner.end - 1, 0)] >= 128)
    start = np.where(is_odd, inner.end, inner.at)
    if is_odd.any():
        inner.fail(is_odd, "breaks off")
    if width is not None:
        which = np.repeat(np.arange(len(inner)), counts)
        first = np.cumsum(counts) - counts
        at = start[which] + (np.arange(len(which)) - first[which]) * width
        return which, Cursors(inner.data, at, at + width, inner.rows[which], inner.errors), at
    lists = segments(inner.data, start, inner.end)
    bounds = offsets(lists) if len(lists) else np.zeros(1, np.int64)
    data = lists.buffers()[2] if bounds[-1] else pa.py_buffer(b"")
    end = np.flatnonzero(np.frombuffer(data, np.uint8, bounds[-1]) < 128) + 1
    at = np.concatenate([[0], end[:-1]]).astype(np.int64) if len(end) else end
    which = np.searchsorted(bounds[1:], at, side="right")
    return which, Cursors(data, at, end, inner.rows[which], inner.errors), start[which] + at - bounds[which]


def _inside(cursors: Cursors) -> Cursors:
    """Cursors over what has its length in front; the others go on behind it."""
    length = cursors.varint().astype(np.int64)
    length = np.where(length < 0, np.iinfo(np.int64).max, length)
    start = cursors.at.copy()
    cursors.skip(length)
    start = np.where(cursors.at - start == length, start, cursors.at)
    return Cursors(cursors.data, start, cursors.at.copy(), cursors.rows, cursors.errors)


def _keep_the_last_of_each_oneof(message: Message, values: dict[int, list[Values]], count: int) -> None:
    """A message has one field of a oneof: the last one that is in its bytes."""
    oneofs: dict[str, list[int]] = {}
    for field in message.fields:
        if field.oneof and values[field.number]:
            oneofs.setdefault(field.oneof, []).append(field.number)
    for numbers in oneofs.values():
        last = np.full(count, -1, np.int64)
        for number in numbers:
            for each in values[number]:
                np.maximum.at(last, each.messages, each.at)
        for number in numbers if len(numbers) > 1 else ():
            values[number] = [_some(each, each.at == last[each.messages]) for each in values[number]]


def _some(values: Values, chosen: "np.ndarray") -> Values:
    """A part of values, by a mask or by numbers."""
    places = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
    array = values.array.take(pa.array(places)) if values.array is not None else None
    return Values(values.messages[places], values.at[places], array, values.end[places])


def _column(field: Field, values: list[Values], cursors: Cursors) -> pa.Array:
    whole = _in_order(values)
    if whole is None:
        whole = Values(*(np.zeros(0, np.int64),) * 2, None, np.zeros(0, np.int64))
    if field.is_repeated:
        return _lists(field, whole, cursors)
    if field.kind == "message":
        return _single_message(field, whole, cursors)
    is_last = np.append(whole.messages[1:] != whole.messages[:-1], True)[: len(whole.messages)]
    if not is_last.all():  # where a field comes twice, the last one counts
        whole = _some(whole, is_last)
    array = together([(whole.messages, _array(field, whole, cursors))], len(cursors), field.type)
    if field.has_presence or not array.null_count:
        return array
    return pc.coalesce(array, pa.scalar(field.default, field.type))


def _in_order(values: list[Values]) -> Values | None:
    """All values of a field, message by message, in the order of their bytes."""
    if len(values) < 2:
        return values[0] if values else None
    arrays = [each.array for each in values]
    whole = Values(
        np.concatenate([each.messages for each in values]),
        np.concatenate([each.at for each in values]),
        None if arrays[0] is None else pa.concat_arrays(arrays),
        np.concatenate([each.end for each in values]),
    )
    return _some(whole, np.lexsort((whole.at, whole.messages)))


def _array(field: Field, values: Values, cursors: Cursors) -> pa.Array:
    """The values of a field that is no message."""
    if values.array is not None:
        return values.array
    if wire_of(field) != SIZED:
        return pa.array([], field.type)
    pieces = segments(cursors.data, values.at, values.end)
    return pieces if field.kind == "bytes" else utf8(cursors.part(values.messages), pieces)


def _lists(field: Field, values: Values, cursors: Cursors) -> pa.Array:
    counts = np.bincount(values.messages, minlength=len(cursors)).astype(np.int64)
    if field.kind == "message":
        items = _messages(
            field, Cursors(cursors.data, values.at, values.end, cursors.rows[values.messages], cursors.errors)
        )
    else:
        items = _array(field, values, cursors)
    if field.is_map:
        return map_of(counts, items.field(0), items.field(1), field.column)
    starts = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    return pa.ListArray.from_arrays(starts, items, type=field.column)


def _single_message(field: Field, values: Values, cursors: Cursors) -> pa.Array:
    """Where a message comes several times, they are one: its fields are those of all, one behind the other."""
    messages, at, end, data = values.messages, values.at, values.end, cursors.data
    is_first = np.append(True, messages[1:] != messages[:-1])[: len(messages)]
    if not is_first.all():
        pieces = segments(data, at, end)
        bounds = np.append(offsets(pieces)[:-1][is_first], offsets(pieces)[-1])
        messages, at, end, data = messages[is_first], bounds[:-1], bounds[1:], pieces.buffers()[2]
    array = _messages(field, Cursors(data, at.copy(), end.copy(), cursors.rows[messages], cursors.errors))
    if field.has_presence or len(messages) == len(cursors):
        return together([(messages, array)], len(cursors), field.type)
    # The value of a map is always there.
    others = np.setdiff1d(np.arange(len(cursors)), messages)
    nothing = np.zeros(len(others), np.int64)
    empty = _messages(field, Cursors(data, nothing, nothing.copy(), cursors.rows[others], cursors.errors))
    return together([(messages, array), (others, empty)], len(cursors), field.type)


def _messages(field: Field, inner: Cursors) -> pa.Array:
    message = field.message
    assert message is not None
    arrays = _fields(message, inner)
    if message.name != TIMESTAMP:
        return pa.StructArray.from_arrays(arrays, fields=list(field.type))
    seconds, nanos = (array.to_numpy().astype(np.int64) for array in arrays)
    is_outside = (seconds < EARLIEST) | (seconds > LATEST) | (nanos < 0) | (nanos >= 1_000_000_000)
    if is_outside.any():
        inner.fail(is_outside, f"has a time in '{field.name}' that is not in the years 1 to 9999")
        seconds = np.where(is_outside, 0, seconds)
    return pa.array(seconds * 1_000_000 + nanos // 1000).cast(field.type)


def _read_one(field: Field) -> Read:
    """A function for one number of a field."""
    kind = field.kind
    if kind in FORMS:
        form = np.dtype(FORMS[kind])
        return lambda cursors: _numbers(np.ascontiguousarray(cursors.fixed(form.itemsize)).view(form)[:, 0], field)
    if kind in ("sint32", "sint64"):
        return lambda cursors: _numbers(cursors.zigzag(), field)
    if kind == "bool":
        return lambda cursors: pa.array(cursors.varint() != 0)
    if kind == "enum":
        return lambda cursors: _symbols(cursors, field)
    if kind == "uint64":
        return lambda cursors: _numbers(cursors.varint(), field)
    return lambda cursors: _numbers(cursors.varint().astype(np.int64), field)


def _numbers(values: "np.ndarray", field: Field) -> pa.Array:
    if field.kind in ("int32", "sint32", "sfixed32"):
        return pa.array(values.astype(np.int32))
    if field.kind in ("uint32", "fixed32"):
        return pa.array(values.astype(np.int64) & 0xFFFFFFFF)
    if field.kind in ("uint64", "fixed64"):
        wide = np.zeros((len(values), 2), np.uint64)
        wide[:, 0] = values
        return pa.Array.from_buffers(field.type, len(values), [None, pa.py_buffer(wide)])
    return pa.array(values)


def _symbols(cursors: Cursors, field: Field) -> pa.Array:
    """Names of an enum. A number that it does not have stays a number, as text: newer writers have more."""
    numbers = pa.array(cursors.varint().astype(np.int32).astype(np.int64))
    known = pa.array([number for number, _ in field.symbols], pa.int64())
    names = pa.array([name for _, name in field.symbols], pa.string())
    symbols = names.take(pc.index_in(numbers, known))
    return symbols if not symbols.null_count else pc.coalesce(symbols, numbers.cast(pa.string()))
