"""Messages of Protocol Buffers by columns, beside the package protobuf, message by message."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from test_avro import same

from penstock.codecs.protobuf import Decoder, decoder
from penstock.errors import OptionError

F = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    "double": st.floats(), "float": st.floats(width=32), "int64": st.integers(-(2**63), 2**63 - 1),
    "uint64": st.integers(0, 2**64 - 1), "int32": st.integers(-(2**31), 2**31 - 1),
    "fixed64": st.integers(0, 2**64 - 1), "fixed32": st.integers(0, 2**32 - 1), "bool": st.booleans(),
    "string": st.text(max_size=20), "bytes": st.binary(max_size=20), "uint32": st.integers(0, 2**32 - 1),
    "sfixed32": st.integers(-(2**31), 2**31 - 1), "sfixed64": st.integers(-(2**63), 2**63 - 1),
    "sint32": st.integers(-(2**31), 2**31 - 1), "sint64": st.integers(-(2**63), 2**63 - 1),
}  # fmt: skip


def _set() -> bytes:
    """A message with a field of each type, once, repeated and optional; an enum, a map, a message inside, a time."""
    file = descriptor_pb2.FileDescriptorProto(
        name="shop.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    kind = file.enum_type.add(name="Kind")
    for number, name in enumerate(("PLAIN", "LARGE")):
        kind.value.add(name=name, number=number)
    inner = file.message_type.add(name="Line")
    inner.field.add(name="name", number=1, type=F.TYPE_STRING, label=1)
    inner.field.add(name="counts", number=2, type=F.TYPE_INT32, label=3)
    order = file.message_type.add(name="Order")
    numbers = iter(range(1, 200))

    def add(name: str, type: int, label: int = 1, type_name: str = "") -> Any:
        return order.field.add(name=name, number=next(numbers), type=type, label=label, type_name=type_name or None)

    for name in SCALARS:
        type = getattr(F, f"TYPE_{name.upper()}")
        add(f"one_{name}", type)
        add(f"many_{name}", type, 3)
        optional = add(f"maybe_{name}", type)
        optional.proto3_optional = True
        optional.oneof_index = len(order.oneof_decl)
        order.oneof_decl.add(name=f"_maybe_{name}")
    add("kind", F.TYPE_ENUM, 1, ".shop.Kind")
    add("line", F.TYPE_MESSAGE, 1, ".shop.Line")
    add("lines", F.TYPE_MESSAGE, 3, ".shop.Line")
    add("at", F.TYPE_MESSAGE, 1, ".google.protobuf.Timestamp")
    add("by_name", F.TYPE_MESSAGE, 3, ".shop.Order.ByNameEntry")
    entry = order.nested_type.add(name="ByNameEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=F.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=F.TYPE_SINT64, label=1)
    node = file.message_type.add(name="Node")
    node.field.add(name="next", number=1, type=F.TYPE_MESSAGE, label=1, type_name=".shop.Node")
    times = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(times)
    result: bytes = descriptor_pb2.FileDescriptorSet(file=[times, file]).SerializeToString()
    return result


SET = _set()


@pytest.fixture(scope="module")
def order() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(SET).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


ROWS = st.fixed_dictionaries(
    {
        **{f"one_{name}": values for name, values in SCALARS.items()},
        **{f"many_{name}": st.lists(values, max_size=3) for name, values in SCALARS.items()},
        "lines": st.lists(
            st.fixed_dictionaries({"name": st.text(max_size=5), "counts": st.lists(st.just(7))}), max_size=2
        ),
        "by_name": st.dictionaries(st.text(max_size=4), SCALARS["sint64"], max_size=3),
        "kind": st.sampled_from(["PLAIN", "LARGE"]),
    },
    optional={
        **{f"maybe_{name}": values for name, values in SCALARS.items()},
        "line": st.fixed_dictionaries(
            {"name": st.text(max_size=5), "counts": st.lists(st.integers(-5, 5), max_size=3)}
        ),
        "at": st.integers(0, 4_000_000_000),
    },
)


def bytes_of(order: Any, row: dict[str, Any]) -> bytes:
    given = {key: value for key, value in row.items() if key != "at"}
    message = order(**given)
    if "at" in row:
        message.at.seconds, message.at.nanos = row["at"], 5000
    result: bytes = message.SerializeToString()
    return result


def expected(row: dict[str, Any], names: list[str]) -> dict[str, Any]:
    whole = {name: row.get(name) for name in names}
    if "at" in row:
        whole["at"] = datetime.fromtimestamp(row["at"], UTC).replace(microsecond=5)
    return whole


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(ROWS, max_size=4))
def test_every_type_is_read_as_it_was_written(order: Any, rows: list[dict[str, Any]]) -> None:
    structs = Decoder(SET, "shop.Order")(pa.array([bytes_of(order, row) for row in rows], pa.binary()))
    structs.validate(full=True)
    for found, row in zip(structs.to_pylist(), rows, strict=True):
        assert found.pop("_error") is None
        found["by_name"] = dict(found["by_name"])
        assert same(found, expected(row, list(found)))


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(ROWS, min_size=2, max_size=4), chosen=st.randoms(use_true_random=False))
def test_damaged_messages_are_errors_of_their_own(order: Any, rows: list[dict[str, Any]], chosen: Any) -> None:
    values = [bytes_of(order, row) for row in rows]
    damaged = bytearray(values[0])
    if damaged:
        damaged[chosen.randrange(len(damaged))] = chosen.randrange(256)
    work = Decoder(SET, "shop.Order")
    found = work(pa.array([bytes(damaged)[: chosen.randrange(len(damaged) + 1)], *values[1:]], pa.binary())).to_pylist()
    whole = work(pa.array(values, pa.binary())).to_pylist()
    assert same([[list(row.values()) for row in found[1:]]], [[list(row.values()) for row in whole[1:]]])


def test_fields_that_nobody_knows_are_passed_over_and_others_say_what_is_wrong(order: Any) -> None:
    work = Decoder(SET, "shop.Order")
    unknown = b"\xf8\x3f\x07" + b"\xfa\x3f\x02ab" + b"\xf9\x3f" + bytes(8) + b"\xfd\x3f" + bytes(4)
    good, cut, wrong, text = work(
        pa.array(
            [unknown + order(one_int64=7).SerializeToString(), b"\xff", b"\x0a\x01x", b"\xca\x01\x01\xff"], pa.binary()
        )
    ).to_pylist()
    assert (good["_error"], good["one_int64"]) == (None, 7)
    assert cut["_error"] == "is no message 'shop.Order': it breaks off"
    assert "has a field 'one_double' of another type than its message says" in wrong["_error"]
    assert text["_error"] is not None


def test_a_message_that_is_not_there_or_has_itself_inside_is_refused() -> None:
    with pytest.raises(OptionError, match=r"has no message 'Order'. It has: .*shop.Line, shop.Node, shop.Order"):
        decoder(SET, "Order")
    with pytest.raises(OptionError, match=r"the message 'shop\.Node' has itself inside"):
        decoder(SET, "shop.Node")
    with pytest.raises(OptionError, match="this is no descriptor set"):
        decoder(b"\xff\xff", "shop.Order")
    with pytest.raises(OptionError, match="needs a schema, descriptors or a registry, and the name of a message"):
        decoder(None, None)
