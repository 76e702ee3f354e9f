"""Columns as messages of Protocol Buffers: each column of all rows at once, then joined row by row. Knows the encoding
and Arrow; no registry, no Spark.

What writes a field gives a null where a message does not have it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codecs.protobuf_read import FORMS, SIZED, wire_of
from penstock.codecs.protobuf_types import EARLIEST, LATEST, TIMESTAMP, Field, Message
from penstock.codecs.row_bytes import counts, fixed, grouped, joined, listed, sized, spread, varints, zigzag
from penstock.errors import OptionError

Write = Callable[[pa.Array], pa.Array]
_RANGES = {"uint32": (0, 2**32 - 1), "fixed32": (0, 2**32 - 1), "uint64": (0, None), "fixed64": (0, None)}


class Writer:
    """Writes rows as one message. An OptionError where its fields and the columns do not fit."""

    def __init__(self, message: Message, columns: pa.Schema):
        self._write = _message(message, list(columns), "")

    def write(self, rows: pa.RecordBatch) -> pa.Array:
        """The bytes of each row. A value that the message has no room for is an OptionError, with its column."""
        return self._write(rows.columns, len(rows))


def _message(message: Message, columns: Sequence[pa.Field], path: str) -> Callable[[Sequence[pa.Array], int], pa.Array]:
    """A function for the fields of a message, from the columns in their order."""
    by_name = {field.name: field for field in message.fields}
    for column in columns:
        if column.name not in by_name:
            raise OptionError(
                f"the message '{message.name}' has no field '{path}{column.name}', which is a column."
                f" It has: {', '.join(by_name) or 'none'}."
            )
    names = [column.name for column in columns]
    for field in message.fields:
        if field.is_required and field.name not in names:
            raise OptionError(f"the message '{message.name}' needs '{path}{field.name}', and there is no such column.")
    # Fields of one oneof are checked together; their places in the message are those of their numbers.
    steps = sorted(
        (by_name[column.name].number, at, _column(by_name[column.name], column.type, f"{path}{column.name}"))
        for at, column in enumerate(columns)
    )
    oneofs: dict[str, list[int]] = {}
    for at, column in enumerate(columns):
        if by_name[column.name].oneof:
            oneofs.setdefault(by_name[column.name].oneof, []).append(at)

    def write(arrays: Sequence[pa.Array], rows: int) -> pa.Array:
        for oneof, places in oneofs.items():
            _at_most_one(oneof, [f"{path}{names[at]}" for at in places], [arrays[at] for at in places])
        return joined([step(arrays[at]) for _, at, step in steps], rows)

    return write


def _at_most_one(oneof: str, names: list[str], arrays: list[pa.Array]) -> None:
    is_set = np.stack([array.is_valid().to_numpy(zero_copy_only=False) for array in arrays])
    several = np.flatnonzero(is_set.sum(axis=0) > 1)
    if len(several):
        given = ", ".join(f"'{name}'" for name, here in zip(names, is_set[:, several[0]], strict=True) if here)
        raise OptionError(
            f"a row has values in the columns {given}, and a message has one of them at most (oneof {oneof})."
            " Make the others null."
        )


def _column(field: Field, type: pa.DataType, path: str) -> Write:
    """A function for a whole field, with its number in front."""
    if field.is_repeated:
        return _repeated(field, type, path)
    write, mark = _one(field, type, path), _mark(field, wire_of(field))

    def single(array: pa.Array) -> pa.Array:
        if field.is_required and array.null_count:
            raise OptionError(f"the column '{path}' has a null, and its message needs it.")
        present = array.is_valid()
        if not field.has_presence and field.kind != "message":
            present = pc.and_(present, _differs(array, field))
        chosen = np.flatnonzero(present.to_numpy(zero_copy_only=False))
        if len(chosen) == len(array):
            return joined([mark, write(array)], len(array))
        return spread(joined([mark, write(array.take(pa.array(chosen)))], len(chosen)), chosen, len(array))

    return single


def _repeated(field: Field, type: pa.DataType, path: str) -> Write:
    """Each item with the number of the field in front, or, where they are packed, all of them behind one."""
    if field.is_map != pa.types.is_map(type) or not (pa.types.is_map(type) or pa.types.is_list(type)):
        raise _unfit(field, type, path)
    item = _entries(field, type, path) if field.is_map else _one(field, type.value_type, f"{path}[]")
    mark = _mark(field, SIZED if field.is_packed else wire_of(field))

    def many(array: pa.Array) -> pa.Array:
        lists = listed(array)
        items, numbers = lists.flatten(), counts(lists)
        if items.null_count:
            raise OptionError(f"the column '{path}' has a null among its items, and Protobuf has none there.")
        if not field.is_packed:
            return grouped(joined([mark, item(items)], len(items)), numbers)
        some = np.flatnonzero(numbers)
        packed = sized(grouped(item(items), numbers[some]))
        return spread(joined([mark, packed], len(some)), some, len(array))

    return many


def _entries(field: Field, type: pa.DataType, path: str) -> Write:
    """A message of each key and value. Both are always there."""
    assert field.message is not None
    key, value = field.message.fields
    parts = [
        (_mark(part, wire_of(part)), _one(part, kind, f"{path}[{part.name}]"))
        for part, kind in ((key, type.key_type), (value, type.item_type))
    ]

    def write(entries: pa.Array) -> pa.Array:
        if entries.field(1).null_count:
            raise OptionError(f"the column '{path}' has a null among its values, and Protobuf has none there.")
        pieces: list[Any] = []
        for number, (mark, one) in enumerate(parts):
            pieces += [mark, one(entries.field(number))]
        return sized(joined(pieces, len(entries)))

    return write


def _mark(field: Field, wire: int) -> pa.Scalar:
    return varints(np.array([field.number << 3 | wire], np.uint64))[0]


def _differs(array: pa.Array, field: Field) -> pa.Array:
    """Whether values are others than the default, which is not written. Minus zero is another."""
    if pa.types.is_floating(array.type):
        bits = array.fill_null(0).to_numpy()
        return pa.array((bits != 0) | np.signbit(bits))
    if field.kind in ("string", "bytes"):
        return pc.greater(pc.fill_null(pc.binary_length(array), 0), 0)
    if field.kind == "bool":
        return array.fill_null(False)
    default = field.default if field.kind == "enum" else 0
    return pc.fill_null(pc.not_equal(array, pa.scalar(default, array.type)), False)


def _unfit(field: Field, type: pa.DataType, path: str) -> OptionError:
    kind = f"message {field.message.name}" if field.message is not None else field.kind
    kind = "map" if field.is_map else f"repeated {kind}" if field.is_repeated else kind
    return OptionError(f"the column '{path}' is {type}, and its field in the message is {kind}.")


def _one(field: Field, type: pa.DataType, path: str) -> Write:
    """A function for values that are there, without the number of the field."""
    if field.kind == "message":
        return _inner(field, type, path)
    is_text = pa.types.is_string(type)
    if (field.kind == "string" and is_text) or (field.kind == "bytes" and (is_text or pa.types.is_binary(type))):
        return lambda array: sized(array.cast(pa.binary()))
    if field.kind == "enum" and is_text:
        return lambda array: varints(_enum_numbers(array, field, path))
    if field.kind == "bool" and pa.types.is_boolean(type):
        return lambda array: varints(array.cast(pa.uint8()).to_numpy().astype(np.uint64))
    if field.kind in ("double", "float") and _is_number_of(field.kind, type):
        form = np.dtype(FORMS[field.kind])
        return lambda array: _as_bytes(array.to_numpy().astype(form))
    if field.kind in _WHOLE and _is_whole_of(field.kind, type):
        return _whole(field.kind, type, path)
    raise _unfit(field, type, path)


_WHOLE = {
    "int32": 32, "sint32": 32, "sfixed32": 32, "int64": 64, "sint64": 64, "sfixed64": 64,
    "uint32": 64, "fixed32": 64, "uint64": 64, "fixed64": 64,
}  # fmt: skip


def _is_number_of(kind: str, type: pa.DataType) -> bool:
    small = (pa.float32(), pa.int8(), pa.int16())
    return type in small or (kind == "double" and type in (pa.float64(), pa.int32()))


def _is_whole_of(kind: str, type: pa.DataType) -> bool:
    """Whether a column has no larger numbers than the field, but for unsigned ones, whose values are looked at."""
    if pa.types.is_decimal(type):
        return kind in ("uint64", "fixed64") and type.scale == 0 and type.precision <= 20
    return bool(pa.types.is_signed_integer(type) and type.bit_width <= _WHOLE[kind])


def _whole(kind: str, type: pa.DataType, path: str) -> Write:
    low, high = _RANGES.get(kind, (None, None))

    def numbers(array: pa.Array) -> npt.NDArray[np.uint64]:
        if pa.types.is_decimal(type):
            whole = pa.concat_arrays([array])
            halves = np.frombuffer(whole.buffers()[1], np.uint64, len(whole) * 2).reshape(-1, 2)
            values, is_outside = halves[:, 0], halves[:, 1] != 0
        else:
            signed = array.to_numpy().astype(np.int64)
            is_outside = np.zeros(len(signed), np.bool_)
            if low is not None:
                is_outside = (signed < low) | (signed > high if high is not None else False)
            values = (zigzag(signed) if kind.startswith("sint") else signed.astype(np.uint64)).astype(np.uint64)
        if is_outside.any():
            value = array[int(np.argmax(is_outside))]
            raise OptionError(f"the column '{path}' has {value}, and its field in the message is {kind}.")
        return values

    if kind in FORMS:
        form = np.dtype(FORMS[kind])
        return lambda array: _as_bytes(numbers(array).astype(form))
    return lambda array: varints(numbers(array))


def _as_bytes(values: "np.ndarray[Any, Any]") -> pa.Array:
    return fixed(np.ascontiguousarray(values).view(np.uint8).reshape(-1, values.dtype.itemsize))


def _enum_numbers(array: pa.Array, field: Field, path: str) -> npt.NDArray[np.uint64]:
    """Numbers of names. A name that is a number is that one, as it is read where the enum does not have it."""
    known = pa.array([number for number, _ in field.symbols], pa.int64())
    places = pc.index_in(array, pa.array([name for _, name in field.symbols], pa.string()))
    numbers = known.take(places)
    if numbers.null_count:
        unknown = array.filter(places.is_null())
        try:
            others = unknown.cast(pa.int32()).cast(pa.int64())
        except pa.ArrowInvalid:
            names = [name for name in unknown.to_pylist() if not name.lstrip("-").isdigit()] or unknown.to_pylist()
            raise OptionError(
                f"the column '{path}' has '{names[0]}', and its enum has: "
                f"{', '.join(name for _, name in field.symbols)}."
            ) from None
        numbers = pc.replace_with_mask(numbers, places.is_null(), others)
    result: npt.NDArray[np.uint64] = numbers.to_numpy().astype(np.uint64)
    return result


def _inner(field: Field, type: pa.DataType, path: str) -> Write:
    """A message inside of another one, with its length in front."""
    message = field.message
    assert message is not None
    if message.name == TIMESTAMP and pa.types.is_timestamp(type) and type.tz is not None:
        seconds, nanos = message.fields
        names = [pa.field(seconds.name, pa.int64()), pa.field(nanos.name, pa.int32())]
        pair = _message(message, names, f"{path}.")
        return lambda array: sized(pair(_seconds_and_nanos(array, path), len(array)))
    if message.name == TIMESTAMP or not pa.types.is_struct(type):
        raise _unfit(field, type, path)
    whole = _message(message, list(type), f"{path}.")

    def write(array: pa.Array) -> pa.Array:
        return sized(whole([array.field(n) for n in range(type.num_fields)], len(array)))

    return write


def _seconds_and_nanos(array: pa.Array, path: str) -> list[pa.Array]:
    micros = array.cast(pa.timestamp("us", "UTC"), safe=False).cast(pa.int64()).to_numpy()
    seconds = micros // 1_000_000
    if ((seconds < EARLIEST) | (seconds > LATEST)).any():
        raise OptionError(f"the column '{path}' has a time that is not in the years 1 to 9999, as Timestamp wants it.")
    return [pa.array(seconds), pa.array((micros % 1_000_000 * 1000).astype(np.int32))]
