"""Messages of Protocol Buffers, as types of Arrow. Knows descriptors, which the package protobuf reads; no bytes of
records.
"""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.errors import OptionError

# What Spark has for each type of a field. An unsigned number needs a wider one.
SCALARS = {
    "double": pa.float64(), "float": pa.float32(), "int64": pa.int64(), "uint64": pa.decimal128(20, 0),
    "int32": pa.int32(), "fixed64": pa.decimal128(20, 0), "fixed32": pa.int64(), "bool": pa.bool_(),
    "string": pa.string(), "bytes": pa.binary(), "uint32": pa.int64(), "sfixed32": pa.int32(),
    "sfixed64": pa.int64(), "sint32": pa.int32(), "sint64": pa.int64(), "enum": pa.string(),
}  # fmt: skip
_NAMES = (
    "", "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group", "message",
    "bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64",
)  # fmt: skip
TIMESTAMP = "google.protobuf.Timestamp"
EARLIEST, LATEST = -62_135_596_800, 253_402_300_799  # its seconds, from the year 1 to the end of 9999


@dataclass(frozen=True)
class Field:
    """A field of a message. `has_presence`: whether it may be missing, and is null then. `oneof`: the name that it
    shares with other fields, of which a message has one at most.
    """

    number: int
    name: str
    kind: str  # a name of SCALARS, or message
    type: pa.DataType  # of one value
    is_repeated: bool
    has_presence: bool
    default: Any = None
    symbols: tuple[tuple[int, str], ...] = ()
    message: "Message | None" = None
    is_map: bool = False
    is_packed: bool = False
    is_required: bool = False
    oneof: str = ""

    @property
    def column(self) -> pa.DataType:
        """The type of the whole field."""
        if self.is_map and self.message is not None:
            key, value = self.message.fields
            return pa.map_(key.type, value.column)
        return pa.list_(self.type) if self.is_repeated else self.type


@dataclass(frozen=True)
class Message:
    """A message, with its fields in the order of its declaration."""

    name: str
    fields: tuple[Field, ...]

    def arrow(self) -> pa.Schema:
        """Its columns."""
        return pa.schema([(field.name, field.column) for field in self.fields])


def message(descriptors: bytes, name: str) -> Message:
    """A message of a descriptor set. An OptionError where it is not there, or Spark has no columns for it."""
    # The package ships no types.
    from google.protobuf import descriptor_pb2, descriptor_pool  # type: ignore[import-untyped]
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
    except DecodeError:
        raise OptionError("this is no descriptor set. Make one: protoc --include_imports -o FILE ...") from None
    pool = descriptor_pool.DescriptorPool()
    names = []
    try:
        for file in files.file:
            pool.Add(file)
            names += [f"{file.package}.{each.name}".lstrip(".") for each in file.message_type]
        return _message(pool.FindMessageTypeByName(name), ())
    except KeyError:
        listed = ", ".join(sorted(names)) or "none"
        raise OptionError(f"the descriptor set has no message '{name}'. It has: {listed}.") from None
    except TypeError as error:
        raise OptionError(f"the descriptor set is not whole: {error}. Make it with protoc --include_imports.") from None


def message_names(descriptors: bytes) -> dict[tuple[int, ...], str]:
    """The messages of the last file of a set, also those inside of others, by their numbers."""
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file[-1]
    names: dict[tuple[int, ...], str] = {}

    def add(kinds: Any, around: tuple[int, ...], prefix: str) -> None:
        for number, kind in enumerate(kinds):
            if not kind.options.map_entry:
                names[*around, number] = f"{prefix}{kind.name}"
            add(kind.nested_type, (*around, number), f"{prefix}{kind.name}.")

    add(file.message_type, (), f"{file.package}." if file.package else "")
    return names


# As which other types a field can be read without a change of its values.
_READABLE = {
    "int32": {"int64", "enum"}, "uint32": {"uint64", "int64"}, "bool": {"int32", "int64", "uint32", "uint64"},
    "enum": {"int32", "int64"}, "sint32": {"sint64"}, "string": {"bytes"}, "bytes": {"string"},
}  # fmt: skip


def unreadable(written: Message, wanted: Message, path: str = "") -> str:
    """Why messages of one kind cannot be read as those of another, or nothing. Fields are the same by their numbers;
    one that only one of them has is no reason.
    """
    by_number = {field.number: field for field in written.fields}
    for field in wanted.fields:
        other = by_number.get(field.number)
        if other is None:
            continue
        place = f"{path}{field.name}"
        if field.message is not None and other.message is not None:
            if why := unreadable(other.message, field.message, f"{place}."):
                return why
        elif field.kind != other.kind and field.kind not in _READABLE.get(other.kind, set()):
            return f"the field '{place}' was written as {other.kind}, and cannot be read as {field.kind}."
        if other.is_repeated and not field.is_repeated:
            return f"the field '{place}' was written as repeated, and cannot be read as a single one."
    return ""


def _message(descriptor: Any, inside: tuple[str, ...]) -> Message:
    if descriptor.full_name in inside:
        raise OptionError(f"the message '{descriptor.full_name}' has itself inside, and Spark has no such columns.")
    if not descriptor.fields:
        raise OptionError(f"the message '{descriptor.full_name}' has no fields, and Spark has no such columns.")
    return Message(
        descriptor.full_name, tuple(_field(each, (*inside, descriptor.full_name)) for each in descriptor.fields)
    )


def _field(field: Any, inside: tuple[str, ...]) -> Field:
    kind = _NAMES[field.type]
    if kind == "group":
        raise OptionError(f"the field '{field.full_name}' is a group, which cannot be read.")
    inner = symbols = None
    if kind == "message":
        inner = _message(field.message_type, inside)
        if inner.name == TIMESTAMP:
            type = pa.timestamp("us", "UTC")
        else:
            type = pa.struct([(each.name, each.column) for each in inner.fields])
    else:
        type = SCALARS[kind]
    if kind == "enum":
        symbols = tuple((value.number, value.name) for value in field.enum_type.values)
    is_map = kind == "message" and field.message_type.GetOptions().map_entry
    is_repeated = bool(field.is_repeated)
    has_presence = bool(field.has_presence) and not field.containing_type.GetOptions().map_entry
    default = None
    if kind != "message" and not is_repeated:
        default = field.default_value
        if kind == "enum":
            default = field.enum_type.values_by_number[default].name
    return Field(
        field.number, field.name, kind, type, is_repeated, has_presence, default,
        symbols or (), inner, bool(is_map), bool(field.is_packed), bool(field.is_required), _oneof(field),
    )  # fmt: skip


def _oneof(field: Any) -> str:
    """An optional field of proto3 is in one by itself, which has no meaning."""
    group = field.containing_oneof
    return str(group.name) if group is not None and len(group.fields) > 1 else ""
