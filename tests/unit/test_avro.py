"""Avro by columns, beside fastavro, record by record: any schema, any rows, and bytes that are damaged."""

import io
import itertools
import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.codecs import avro_read
from penstock.codecs.avro import Decoder, Encoder, decoder, encoder
from penstock.codecs.avro_types import Avro, of_columns
from penstock.errors import OptionError

_names = itertools.count(1)
Pair = tuple[Any, st.SearchStrategy[Any]]  # a schema, and values of it


def record(*fields: tuple[str, Any], name: str = "Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": each, "type": kind} for each, kind in fields]}


def written(schema: Any, rows: list[Any]) -> list[bytes]:
    parsed, all_bytes = parse_schema(schema), []
    for row in rows:
        out = io.BytesIO()
        schemaless_writer(out, parsed, row)
        all_bytes.append(out.getvalue())
    return all_bytes


def read_by(schema: Any, values: list[bytes]) -> list[Any]:
    parsed = parse_schema(schema)
    return [schemaless_reader(io.BytesIO(value), parsed, None) for value in values]


def decoded(schema: Any, values: list[bytes], reader: Any = None) -> list[dict[str, Any]]:
    text = json.dumps(schema)
    work = Decoder((json.dumps(reader), ()) if reader else (text, ()), writer=(text, ()))
    rows = work(pa.array(values, pa.binary()))
    rows.validate(full=True)
    return [plain(row) for row in rows.to_pylist()]


def plain(value: Any) -> Any:
    """As fastavro gives it: a map is a dictionary."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return {key: plain(each) for key, each in value}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value


def same(one: Any, other: Any) -> bool:
    """Equal, with NaN like itself, and an empty map like an empty list: Arrow gives both as a list."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if not one and not other and isinstance(one, dict | list) and isinstance(other, dict | list):
        return True
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def _decimals() -> Pair:
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 3}
    return schema, st.integers(-(10**20) + 1, 10**20 - 1).map(lambda number: Decimal(number).scaleb(-3))


def _times(unit: str) -> Pair:
    width = 1000 if unit == "millis" else 1
    values = st.integers(0, 4_000_000_000_000_000 // width).map(
        lambda number: datetime.fromtimestamp(number * width // 1_000_000, UTC).replace(
            microsecond=number * width % 1_000_000
        )
    )
    return {"type": "long", "logicalType": f"timestamp-{unit}"}, values


PLAIN: list[Pair] = [
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.integers(-(2**63), 2**63 - 1)),
    ("float", st.floats(width=32)),
    ("double", st.floats()),
    ("bytes", st.binary(max_size=40)),
    ("string", st.text(max_size=40)),
    ({"type": "int", "logicalType": "date"}, st.dates(date(1900, 1, 1), date(2200, 1, 1))),
    _times("millis"),
    _times("micros"),
    _decimals(),
]


@st.composite
def pairs(draw: st.DrawFn, depth: int = 2) -> Pair:
    """A schema, and a strategy for values of it."""
    kinds = ["plain", "plain", "plain", "fixed", "enum"] + (["optional", "array", "map", "record"] if depth else [])
    kind = draw(st.sampled_from(kinds))
    if kind == "plain":
        return draw(st.sampled_from(PLAIN))
    if kind == "fixed":
        size = draw(st.integers(0, 20))
        return {"type": "fixed", "name": f"F{next(_names)}", "size": size}, st.binary(min_size=size, max_size=size)
    if kind == "enum":
        symbols = ["A", "B", "C"][: draw(st.integers(1, 3))]
        return {"type": "enum", "name": f"E{next(_names)}", "symbols": symbols}, st.sampled_from(symbols)
    if kind == "record":
        fields = [draw(pairs(depth - 1)) for _ in range(draw(st.integers(1, 3)))]
        schema = record(*((f"f{n}", inner) for n, (inner, _) in enumerate(fields)), name=f"R{next(_names)}")
        return schema, st.fixed_dictionaries({f"f{n}": values for n, (_, values) in enumerate(fields)})
    inner, values = draw(pairs(depth - 1))
    if kind == "array":
        return {"type": "array", "items": inner}, st.lists(values, max_size=4)
    if kind == "map":
        return {"type": "map", "values": inner}, st.dictionaries(st.text(max_size=5), values, max_size=3)
    if isinstance(inner, list):
        return inner, values
    return draw(st.sampled_from([["null", inner], [inner, "null"]])), st.none() | values


@st.composite
def tables(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A schema of a record, and rows of it."""
    fields = [draw(pairs()) for _ in range(draw(st.integers(1, 4)))]
    schema = record(*((f"c{n}", inner) for n, (inner, _) in enumerate(fields)), name=f"T{next(_names)}")
    row = st.fixed_dictionaries({f"c{n}": values for n, (_, values) in enumerate(fields)})
    return schema, draw(st.lists(row, max_size=6))


MANY = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))


@MANY
@given(tables())
def test_what_fastavro_writes_is_read_as_fastavro_reads_it(table: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    schema, rows = table
    values = written(schema, rows)
    expected = [{**row, "_error": None} for row in read_by(schema, values)]
    assert same(decoded(schema, values), expected)


@MANY
@given(tables())
def test_what_is_written_is_read_by_fastavro(table: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    schema, rows = table
    text = json.dumps(schema)
    structs = Decoder((text, ()))(pa.array(written(schema, rows), pa.binary()))
    columns = pa.StructArray.from_arrays(structs.flatten()[:-1], fields=list(structs.type)[:-1])
    values = Encoder((text, ()))(columns)
    assert same(read_by(schema, values.to_pylist()), read_by(schema, written(schema, rows)))


@MANY
@given(tables())
def test_rows_come_back_by_a_schema_that_is_made_of_their_columns(
    table: tuple[dict[str, Any], list[dict[str, Any]]],
) -> None:
    schema, rows = table
    structs = Decoder((json.dumps(schema), ()))(pa.array(written(schema, rows), pa.binary()))
    columns = pa.StructArray.from_arrays(structs.flatten()[:-1], fields=list(structs.type)[:-1])
    made = of_columns(pa.schema(list(columns.type)), "Made")
    back = Decoder((made, ()))(Encoder((made, ()))(columns))
    assert same([plain(row) for row in back.to_pylist()], [plain(row) for row in structs.to_pylist()])


@MANY
@given(tables(), st.randoms(use_true_random=False))
def test_damaged_bytes_are_errors_of_their_record_and_of_no_other(
    table: tuple[dict[str, Any], list[dict[str, Any]]], chosen: Any
) -> None:
    schema, rows = table
    values = written(schema, rows)
    damaged = list(values)
    for number in range(0, len(values), 2):
        value = bytearray(values[number])
        if value and chosen.random() < 0.5:
            value[chosen.randrange(len(value))] = chosen.randrange(256)
        else:
            value = value[: chosen.randrange(len(value) + 1)] + bytes(chosen.randrange(3))
        damaged[number] = bytes(value)
    found, expected = decoded(schema, damaged), decoded(schema, values)
    for number in range(1, len(values), 2):
        assert same(found[number], expected[number])


def test_a_record_that_is_cut_or_too_long_says_so_and_has_no_columns() -> None:
    schema = record(("id", "long"), ("name", "string"))
    whole = written(schema, [{"id": 300, "name": "ann"}])[0]
    found = decoded(schema, [whole, whole[:-1], whole + b"x", b"", b"\xff" * 12])
    reasons = ["breaks off", "goes on behind its last field", "breaks off", "has a number of more than ten bytes"]
    assert [row["_error"] for row in found] == [None, *(f"is not Avro of the schema: it {why}" for why in reasons)]
    assert [row["id"] for row in found] == [300, None, None, None, None]


def test_null_values_are_nulls_without_an_error() -> None:
    rows = Decoder((json.dumps(record(("id", "long"))), ()))(pa.array([None, b"\x02", None], pa.binary()))
    assert rows.to_pylist() == [{"id": None, "_error": None}, {"id": 1, "_error": None}, {"id": None, "_error": None}]


def test_fields_that_are_new_are_null_or_have_their_default_and_removed_ones_are_passed_over() -> None:
    old = record(("id", "int"), ("gone", {"type": "array", "items": "string"}), ("name", "string"))
    new = record(("name", ["null", "string"]), ("id", "double"), ("added", ["null", "long"]))
    new["fields"].append({"name": "kind", "type": "string", "default": "plain"})
    new["fields"].append({"name": "tags", "type": {"type": "map", "values": "int"}, "default": {"a": 1}})
    values = written(old, [{"id": 7, "gone": ["x", "y"], "name": "ann"}])
    expected = {"name": "ann", "id": 7.0, "added": None, "kind": "plain", "tags": {"a": 1}, "_error": None}
    assert decoded(old, values, new) == [expected]


def test_a_field_under_an_alias_is_found() -> None:
    new = record(("number", "long"))
    new["fields"][0]["aliases"] = ["id"]
    assert decoded(record(("id", "int")), [b"\x0e"], new) == [{"number": 7, "_error": None}]


def test_what_cannot_be_read_as_another_type_is_refused_with_its_field() -> None:
    reader = json.dumps(record(("id", "int")))
    work = Decoder((reader, ()), writer=(json.dumps(record(("id", "string"))), ()))
    with pytest.raises(OptionError, match="the field 'id' was written as string, and cannot be read as int"):
        work(pa.array([b"\x00"], pa.binary()))


def test_a_union_of_several_types_is_a_struct_as_spark_has_it() -> None:
    schema = record(("u", ["null", "int", "string"]), ("wide", ["int", "long"]))
    rows = [{"u": 7, "wide": 1}, {"u": "x", "wide": 2**40}, {"u": None, "wide": 3}]
    found = decoded(schema, written(schema, rows))
    assert [row["u"] for row in found] == [
        {"member0": 7, "member1": None}, {"member0": None, "member1": "x"}, None,
    ]  # fmt: skip
    assert [row["wide"] for row in found] == [1, 2**40, 3]


def test_a_schema_that_has_itself_inside_is_refused() -> None:
    node = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    with pytest.raises(OptionError, match="the record 'Node' of Avro has itself inside"):
        Avro.parse(json.dumps(node)).arrow()


def test_a_very_long_array_is_read_and_so_are_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_read, "MOST_STEPS", 10)
    schema = record(("a", {"type": "array", "items": "int"}))
    rows = [{"a": [1]}, {"a": list(range(50))}, {"a": []}]
    assert [row["a"] for row in decoded(schema, written(schema, rows))] == [row["a"] for row in rows]


def test_an_array_that_claims_to_be_endless_is_an_error() -> None:
    schema = record(("a", {"type": "array", "items": "null"}))
    (row,) = decoded(schema, [b"\xfe\xff\xff\xff\xff\xff\x01"])
    assert row["_error"].endswith("has an array of more items than it has bytes")


def test_columns_that_do_not_fit_are_refused_by_name_before_a_row_is_written() -> None:
    schema = json.dumps(record(("id", "int"), ("kind", {"type": "enum", "name": "K", "symbols": ["a"]})))
    good = pa.schema([("id", pa.int32()), ("kind", pa.string())])
    assert encoder(good, schema, None, None).id is None
    for columns, said in (
        (
            [("id", pa.int64()), ("kind", pa.string())],
            "column 'id' is int64, and its field in the schema of Avro is int",
        ),
        ([("id", pa.int32())], "has a field 'kind', and there is no such column"),
        ([*good, ("more", pa.int32())], "has no field 'more', which is a column"),
    ):
        with pytest.raises(OptionError, match=said):
            encoder(pa.schema(columns), schema, None, None)
    with pytest.raises(OptionError, match=r"no type for 'a' \(duration\[us\]\), 'b\[\]' \(month_day_nano_interval\)"):
        of_columns(pa.schema([("a", pa.duration("us")), ("b", pa.list_(pa.month_day_nano_interval()))]), "Row")


def test_values_that_do_not_fit_are_refused_with_their_column() -> None:
    schema = json.dumps(record(("kind", {"type": "enum", "name": "K", "symbols": ["a"]})))
    with pytest.raises(OptionError, match="the column 'kind' has 'b', and its enum in the schema of Avro does not"):
        Encoder((schema, ()))(pa.array([{"kind": "b"}]))
    with pytest.raises(OptionError, match="the column 'kind' has a null"):
        Encoder((schema, ()))(pa.array([{"kind": None}], pa.struct([("kind", pa.string())])))


def test_a_decoder_needs_to_know_its_schema() -> None:
    with pytest.raises(OptionError, match="avro needs a schema, or a registry"):
        decoder(None, None, None, None, None)
    with pytest.raises(OptionError, match="this is no schema of Avro"):
        decoder('{"type": "nonesuch"}', None, None, None, None)


def test_numbers_of_all_lengths_are_written_as_avro_has_them() -> None:
    numbers = [0, -1, 1, 63, -64, 64, 2**31, -(2**31), 2**63 - 1, -(2**63), *(1 << n for n in range(63))]
    schema = record(("n", "long"))
    rows = pa.StructArray.from_arrays([pa.array(np.array(numbers, np.int64))], names=["n"])
    assert Encoder((json.dumps(schema), ()))(rows).to_pylist() == written(schema, [{"n": n} for n in numbers])
