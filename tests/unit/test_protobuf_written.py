"""Columns as messages of Protocol Buffers, beside the package protobuf: any message, any rows, in both directions."""

import itertools
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_avro import plain, same
from test_protobuf import SCALARS, SET

from penstock.codecs import protobuf_read
from penstock.codecs.protobuf import Decoder, Encoder, encoder
from penstock.codecs.protobuf_types import message
from penstock.errors import OptionError

F = descriptor_pb2.FieldDescriptorProto
MANY = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
PACKABLE = set(SCALARS) - {"string", "bytes"} | {"enum"}
KEYS = ["int32", "int64", "uint32", "uint64", "sint64", "fixed32", "sfixed64", "bool", "string"]
NAMES = ["PLAIN", "LARGE", "HUGE"]
_numbers = itertools.count(1)


class Drawn:
    """A file with a message that Hypothesis made up, and rows of it. What a row leaves out is null."""

    def __init__(self, draw: st.DrawFn):
        self.draw = draw
        self.syntax = draw(st.sampled_from(["proto2", "proto3"]))
        self.package = f"p{next(_numbers)}"
        self.file = descriptor_pb2.FileDescriptorProto(
            name=f"{self.package}.proto",
            package=self.package,
            syntax=self.syntax,
            dependency=["google/protobuf/timestamp.proto"],
        )
        kind = self.file.enum_type.add(name="Kind")
        for number, name in zip((0, -5, 70_000), NAMES, strict=True):
            kind.value.add(name=name, number=number)
        self.row = self.message("Top", 2)

    def message(self, name: str, depth: int) -> st.SearchStrategy[Any]:
        made = self.file.message_type.add(name=name)
        always: dict[str, Any] = {}
        sometimes: dict[str, Any] = {}
        oneof: dict[str, Any] = {}
        numbers = self.draw(st.lists(st.integers(1, 3000), min_size=1, max_size=5, unique=True))
        for number in numbers:
            kinds = ["one", "one", "maybe", "many", "map", "oneof"] + (["inner", "inners"] if depth else [])
            way = self.draw(st.sampled_from(kinds))
            field = made.field.add(name=f"f{number}", number=number, label=3 if way in ("many", "map", "inners") else 1)
            if way in ("inner", "inners"):
                inner = f"{name}_{number}"
                field.type, field.type_name = F.TYPE_MESSAGE, f".{self.package}.{inner}"
                values = self.message(inner, depth - 1)
                if way == "inner":
                    sometimes[field.name] = values
                else:
                    always[field.name] = st.lists(values, max_size=3)
                continue
            if way == "map":
                always[field.name] = self.map(made, field)
                continue
            values = self.scalar(field)
            if way == "many":
                if self.draw(st.booleans()) and self.kind_of(field) in PACKABLE:
                    field.options.packed = self.draw(st.booleans())
                always[field.name] = st.lists(values, max_size=4)
            elif way == "oneof":
                oneof[field.name] = values
                field.oneof_index = 0
            elif self.syntax == "proto2":
                if way == "one":
                    field.label, always[field.name] = 2, values
                else:
                    sometimes[field.name] = values
            elif way == "one" and field.type != F.TYPE_MESSAGE:
                always[field.name] = values
            else:
                sometimes[field.name] = values
                if field.type != F.TYPE_MESSAGE:
                    field.proto3_optional = True
        if oneof:
            made.oneof_decl.add(name="choice")
        for field in made.field:
            if field.proto3_optional:
                field.oneof_index = len(made.oneof_decl)
                made.oneof_decl.add(name=f"_{field.name}")
        rows = st.fixed_dictionaries(always, optional=sometimes)
        if not oneof:
            return rows
        chosen = st.none() | st.one_of([st.tuples(st.just(key), values) for key, values in oneof.items()])
        return st.tuples(rows, chosen).map(lambda pair: pair[0] | (dict([pair[1]]) if pair[1] else {}))

    def kind_of(self, field: Any) -> str:
        return str(F.Type.Name(field.type)).removeprefix("TYPE_").lower()

    def scalar(self, field: Any) -> st.SearchStrategy[Any]:
        kind = self.draw(st.sampled_from([*SCALARS, "enum", "time"]))
        if kind == "time":
            field.type, field.type_name = F.TYPE_MESSAGE, ".google.protobuf.Timestamp"
            return st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)).map(lambda time: time.replace(tzinfo=UTC))  # noqa: DTZ001 - it gets its zone
        if kind == "enum":
            field.type, field.type_name = F.TYPE_ENUM, f".{self.package}.Kind"
            return st.sampled_from(NAMES)
        field.type = getattr(F, f"TYPE_{kind.upper()}")
        return SCALARS[kind]

    def map(self, made: Any, field: Any) -> st.SearchStrategy[Any]:
        name = f"F{field.number}Entry"
        field.type, field.type_name = F.TYPE_MESSAGE, f".{self.package}.{made.name}.{name}"
        entry = made.nested_type.add(name=name)
        entry.options.map_entry = True
        kind = self.draw(st.sampled_from(KEYS))
        entry.field.add(name="key", number=1, type=getattr(F, f"TYPE_{kind.upper()}"), label=1)
        values = self.scalar(entry.field.add(name="value", number=2, label=1))
        return st.dictionaries(SCALARS[kind], values, max_size=3)

    def descriptors(self) -> bytes:
        times = descriptor_pb2.FileDescriptorProto()
        timestamp_pb2.DESCRIPTOR.CopyToProto(times)
        return bytes(descriptor_pb2.FileDescriptorSet(file=[times, self.file]).SerializeToString())


@st.composite
def tables(draw: st.DrawFn) -> tuple[bytes, str, list[dict[str, Any]]]:
    drawn = Drawn(draw)
    return drawn.descriptors(), f"{drawn.package}.Top", draw(st.lists(drawn.row, max_size=5))


def message_class(descriptors: bytes, name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def fill(into: Any, row: dict[str, Any]) -> Any:
    """A message of protobuf, from a row."""
    for key, value in row.items():
        if isinstance(value, datetime):
            getattr(into, key).FromDatetime(value)
        elif isinstance(value, dict) and into.DESCRIPTOR.fields_by_name[key].message_type.GetOptions().map_entry:
            for name, each in value.items():
                if isinstance(each, datetime):
                    getattr(into, key)[name].FromDatetime(each)
                elif isinstance(each, str) and into.DESCRIPTOR.fields_by_name[key].message_type.fields[1].enum_type:
                    getattr(into, key)[name] = number_of(
                        into.DESCRIPTOR.fields_by_name[key].message_type.fields[1], each
                    )
                else:
                    getattr(into, key)[name] = each
        elif isinstance(value, dict):
            getattr(into, key).SetInParent()
            fill(getattr(into, key), value)
        elif isinstance(value, list):
            for each in value:
                if isinstance(each, dict):
                    fill(getattr(into, key).add(), each)
                elif isinstance(each, datetime):
                    getattr(into, key).add().FromDatetime(each)
                else:
                    getattr(into, key).append(number_of(into.DESCRIPTOR.fields_by_name[key], each))
        else:
            setattr(into, key, number_of(into.DESCRIPTOR.fields_by_name[key], value))
    return into


def number_of(field: Any, value: Any) -> Any:
    return field.enum_type.values_by_name[value].number if field.enum_type else value


def columns(descriptors: bytes, name: str, rows: list[dict[str, Any]]) -> pa.Array:
    """Rows as Arrow has them: with nulls for what they leave out."""
    schema = message(descriptors, name).arrow()
    return pa.array([arrow_value(row, pa.struct(list(schema))) for row in rows], pa.struct(list(schema)))


def arrow_value(value: Any, type: pa.DataType) -> Any:
    if pa.types.is_struct(type):
        return {each.name: arrow_value(value[each.name], each.type) for each in type if each.name in value}
    if pa.types.is_map(type):
        return [(arrow_value(k, type.key_type), arrow_value(v, type.item_type)) for k, v in value.items()]
    if pa.types.is_list(type):
        return [arrow_value(each, type.value_type) for each in value]
    if pa.types.is_decimal(type):
        return Decimal(value)
    return value


@MANY
@given(tables())
def test_what_is_written_is_what_protobuf_writes_and_reads(table: tuple[bytes, str, list[dict[str, Any]]]) -> None:
    descriptors, name, rows = table
    kind = message_class(descriptors, name)
    values = Encoder(descriptors, name)(columns(descriptors, name, rows)).to_pylist()
    for value, row in zip(values, rows, strict=True):
        expected = fill(kind(), row)
        assert kind.FromString(value).SerializeToString(deterministic=True) == expected.SerializeToString(
            deterministic=True
        )
        assert len(value) == expected.ByteSize()


@MANY
@given(tables(), st.sampled_from([0, 40]))
def test_rows_come_back(table: tuple[bytes, str, list[dict[str, Any]]], few: int) -> None:
    descriptors, name, rows = table
    given = columns(descriptors, name, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protobuf_read, "FEW", few)
        back = Decoder(descriptors, name)(Encoder(descriptors, name)(given))
    back.validate(full=True)
    expected = [{**row, "_error": None} for row in given.to_pylist()]
    assert same(plain(back.to_pylist()), plain(expected))


@MANY
@given(tables(), st.sampled_from([0, 40]), st.randoms(use_true_random=False))
def test_messages_one_behind_the_other_are_one_as_protobuf_has_it(
    table: tuple[bytes, str, list[dict[str, Any]]], few: int, chosen: Any
) -> None:
    """The last value counts, also of a oneof; lists and messages inside are put together."""
    descriptors, name, rows = table
    kind = message_class(descriptors, name)
    values = [fill(kind(), row).SerializeToString() for row in rows]
    doubled = [value + chosen.choice(values) + chosen.choice(values) for value in values]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protobuf_read, "FEW", few)
        structs = Decoder(descriptors, name)(pa.array(doubled, pa.binary()))
    assert structs.field("_error").null_count == len(doubled)
    back = Encoder(descriptors, name)(
        pa.StructArray.from_arrays(structs.flatten()[:-1], fields=list(structs.type)[:-1])
    )
    for found, value in zip(back.to_pylist(), doubled, strict=True):
        assert kind.FromString(found).SerializeToString(deterministic=True) == kind.FromString(value).SerializeToString(
            deterministic=True
        )


def declared(text: str) -> bytes:
    """A set with one message M, whose fields are written as `label type name`, in proto2."""
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", syntax="proto2")
    file.enum_type.add(name="Kind").value.add(name="PLAIN", number=0)
    made = file.message_type.add(name="M")
    for number, line in enumerate(text.split(", "), 1):
        label, kind, name = line.split()
        field = made.field.add(name=name, number=number, label=getattr(F, f"LABEL_{label.upper()}", 1))
        if kind == "Kind":
            field.type, field.type_name = F.TYPE_ENUM, ".Kind"
        else:
            field.type = getattr(F, f"TYPE_{kind.upper()}")
        if label == "oneof":
            field.oneof_index = 0
    if "oneof" in text:
        made.oneof_decl.add(name="choice")
    return bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())


@pytest.mark.parametrize(
    ("fields", "columns", "said"),
    [
        ("optional int32 a", [("a", pa.int64())], "the column 'a' is int64, and its field in the message is int32."),
        ("optional int32 a", [("b", pa.int32())], "the message 'M' has no field 'b', which is a column. It has: a."),
        ("required int32 a", [], "the message 'M' needs 'a', and there is no such column."),
        ("repeated int32 a", [("a", pa.int32())], "the column 'a' is int32, and its field in the message is repeated"),
        ("optional int32 a", [("a", pa.list_(pa.int32()))], "the column 'a' is list<.*>, and its field"),
        ("optional float a", [("a", pa.float64())], "the column 'a' is double, and its field in the message is float."),
        ("optional uint64 a", [("a", pa.decimal128(38, 0))], "the column 'a' is decimal128"),
        ("optional string a", [("a", pa.binary())], "the column 'a' is binary, and its field in the message is string"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name_before_a_row_is_written(
    fields: str, columns: Any, said: str
) -> None:
    with pytest.raises(OptionError, match=said):
        encoder(pa.schema(columns), declared(fields), "M")


@pytest.mark.parametrize(
    ("fields", "row", "said"),
    [
        ("optional uint32 a", {"a": 2**32}, "the column 'a' has 4294967296, and its field in the message is uint32"),
        ("optional fixed64 a", {"a": -1}, "the column 'a' has -1, and its field in the message is fixed64"),
        ("optional Kind a", {"a": "LARGE"}, "the column 'a' has 'LARGE', and its enum has: PLAIN"),
        ("required int64 a", {"a": None}, "the column 'a' has a null, and its message needs it"),
        ("repeated int64 a", {"a": [1, None]}, "the column 'a' has a null among its items"),
        (
            "oneof int64 a, oneof string b",
            {"a": 0, "b": ""},
            r"a row has values in the columns 'a', 'b', and a message has one of them at most \(oneof choice\)",
        ),
    ],
)
def test_values_that_do_not_fit_are_refused_with_their_column(fields: str, row: dict[str, Any], said: str) -> None:
    kinds = {"a": pa.list_(pa.int64()) if "repeated" in fields else pa.string() if "Kind" in fields else pa.int64()}
    columns = pa.struct([(key, kinds.get(key, pa.string())) for key in row])
    with pytest.raises(OptionError, match=said):
        Encoder(declared(fields), "M")(pa.array([row], columns))


def test_columns_may_be_missing_where_the_message_does_not_need_them() -> None:
    work = encoder(pa.schema([("b", pa.string())]), declared("optional int32 a, optional string b"), "M")
    assert work(pa.array([{"b": "x"}, {"b": None}])).to_pylist() == [b"\x12\x01x", b""]


@pytest.mark.parametrize("few", [0, 40])
def test_of_a_oneof_the_last_field_counts(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_read, "FEW", few)
    work = Decoder(declared("oneof int64 a, oneof string b"), "M")
    rows = work(pa.array([b"\x08\x01\x12\x01x", b"\x12\x01x\x08\x01"], pa.binary())).to_pylist()
    assert [(row["a"], row["b"]) for row in rows] == [(None, "x"), (1, None)]


def test_a_key_that_comes_twice_has_its_last_value() -> None:
    entries = b"".join(b"\x0a\x01k\x10" + bytes([number]) for number in (2, 4))
    field = message(SET, "shop.Order").fields
    number = next(each.number for each in field if each.name == "by_name")
    mark = bytes([(number << 3 | 2) & 127 | 128, (number << 3 | 2) >> 7])
    value = b"".join(mark + bytes([5]) + entries[at : at + 5] for at in (0, 5))
    (row,) = Decoder(SET, "shop.Order")(pa.array([value], pa.binary())).to_pylist()
    assert (row["by_name"], row["_error"]) == ([("k", 2)], None)


def test_an_enums_number_without_a_name_comes_back() -> None:
    descriptors = declared("optional Kind a")
    (row,) = Decoder(descriptors, "M")(pa.array([b"\x08\x07"], pa.binary())).to_pylist()
    assert row == {"a": "7", "_error": None}
    assert Encoder(descriptors, "M")(pa.array([{"a": "7"}])).to_pylist() == [b"\x08\x07"]


def test_a_message_without_what_it_must_have_is_an_error() -> None:
    work = Decoder(declared("required int64 a, optional string b"), "M")
    rows = work(pa.array([b"\x08\x01", b"\x12\x01x"], pa.binary())).to_pylist()
    assert [row["_error"] for row in rows] == [None, "is no message 'M': it lacks 'a', which it must have"]


def test_a_slice_of_columns_is_written_like_a_whole() -> None:
    rows = columns(
        SET, "shop.Order", [{"one_int64": n, "by_name": {"k": n}, "many_string": ["x"] * n} for n in range(9)]
    )
    work = Encoder(SET, "shop.Order")
    assert work(rows[3:6]).to_pylist() == work(rows).to_pylist()[3:6]
