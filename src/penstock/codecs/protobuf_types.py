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


@dataclass(frozen=True)
class Field:
    """A field of a message. `has_presence`: whether it may be missing, and is null then."""

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


def _message(descriptor: Any, inside: tuple[str, ...]) -> Message:
    if descriptor.full_name in inside:
        raise OptionError(f"the message '{descriptor.full_name}' has itself inside, and Spark has no such columns.")
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
    default = None
    if kind != "message" and not is_repeated:
        default = field.default_value
        if kind == "enum":
            default = field.enum_type.values_by_number[default].name
    return Field(
        field.number, field.name, kind, type, is_repeated,
        bool(field.has_presence), default, symbols or (), inner, bool(is_map),
    )  # fmt: skip
