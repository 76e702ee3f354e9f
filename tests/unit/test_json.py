"""Columns as JSON and back: whatever is taken comes back as it was."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.arrow import json as jsontext

INTS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
NAMES = st.text(min_size=1, max_size=5)

PLAIN = st.one_of(
    st.sampled_from([pa.bool_(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32(), *INTS]),
    st.sampled_from([pa.timestamp("us"), pa.timestamp("us", "UTC")]),
    st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: pa.decimal128(p, s))),
)
KINDS = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        inner.map(lambda kind: pa.list_(pa.field("element", kind))),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
        st.dictionaries(NAMES, inner, min_size=1, max_size=3).map(lambda fields: pa.struct(list(fields.items()))),
    ),
    max_leaves=5,
)


def some(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a type, as Python has them, null among them."""
    return st.none() | _some(kind)


def _some(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_list(kind):
        return st.lists(some(kind.value_type), max_size=3)
    if pa.types.is_map(kind):
        return st.dictionaries(st.text(max_size=5), some(kind.item_type), max_size=3).map(lambda d: list(d.items()))
    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({field.name: some(field.type) for field in kind})
    if kind in INTS:
        return st.integers(-(2 ** (INTS[kind] - 1)), 2 ** (INTS[kind] - 1) - 1)
    if pa.types.is_floating(kind):
        return st.floats(width=kind.bit_width)
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        return st.integers(-most, most).map(lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -kind.scale)))
    if pa.types.is_date(kind):
        return st.dates(date(1, 1, 1), date(9999, 12, 31))
    if pa.types.is_timestamp(kind):
        return st.datetimes().map(lambda moment: moment.replace(tzinfo=UTC if kind.tz else None))
    return {pa.bool_(): st.booleans(), pa.string(): st.text(), pa.binary(): st.binary()}[kind]


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    schema = pa.schema(list(draw(st.dictionaries(NAMES, KINDS, min_size=1, max_size=4)).items()))
    rows = draw(st.lists(st.tuples(*(some(field.type) for field in schema)), max_size=5))
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def shown(batch: pa.RecordBatch) -> list[str]:
    """Rows so that they can be compared: nan is nan, and 0.0 is not -0.0."""
    return [repr(row) for row in batch.to_pylist()]


@settings(max_examples=150)
@given(batches(), st.integers(0, 3))
def test_every_type_that_is_taken_comes_back_as_it_was(batch: pa.RecordBatch, first: int) -> None:
    assert all(jsontext.fits(field.type) for field in batch.schema)
    batch = batch.slice(min(first, len(batch)))
    assert all(jsontext.outside(column) is None for column in batch.columns)
    texts = jsontext.objects(batch)
    for text in texts.to_pylist():
        assert list(json.loads(text)) == batch.schema.names
        assert b"\n" not in text
    for read in (jsontext.columns, jsontext._read_row_by_row):
        back = read(texts, batch.schema)
        columns = [back[name] for name in batch.schema.names]
        assert shown(pa.RecordBatch.from_arrays(columns, schema=batch.schema)) == shown(batch)


def test_values_are_written_as_others_write_them() -> None:
    batch = pa.record_batch(
        {
            "d": pa.array([Decimal("12345678901234567890.12")], pa.decimal128(30, 2)),
            "t": pa.array([datetime(2026, 11, 15, 12, 0, 0, 500_000, UTC)], pa.timestamp("us", "UTC")),
            "full": pa.array([datetime(26, 11, 15, 12, tzinfo=UTC)], pa.timestamp("us")),
            "day": pa.array([date(2026, 11, 15)]),
            "b": pa.array([b"\x00\xff"]),
            "l": pa.array([[Decimal("1.10"), None]], pa.list_(pa.decimal128(5, 2))),
            "s": pa.array([{"a": 1.5, "b": [b"\x01"]}]),
            "m": pa.array([[('x"', date(2026, 11, 15)), ("y", None)]], pa.map_(pa.string(), pa.date32())),
            "n": pa.array([float("-inf")]),
        }
    )
    texts = jsontext.objects(batch)
    assert texts[0].as_py() == (
        b'{"d":12345678901234567890.12,"t":"2026-11-15 12:00:00.5Z","full":"0026-11-15 12:00:00","day":"2026-11-15",'
        b'"b":"AP8=","l":[1.10,null],"s":{"a":1.5,"b":["AQ=="]},"m":{"x\\"":"2026-11-15","y":null},"n":"-Infinity"}'
    )
    for read in (jsontext.columns, jsontext._read_row_by_row):
        assert {name: column.to_pylist() for name, column in read(texts, batch.schema).items()} == batch.to_pydict()


@pytest.mark.parametrize(
    "kind",
    [
        pa.duration("us"),
        pa.time64("ns"),
        pa.null(),
        pa.map_(pa.int32(), pa.string()),
        pa.list_(pa.map_(pa.date32(), pa.string())),
        pa.struct([]),
        pa.struct([("a", pa.int8()), ("a", pa.int8())]),
        pa.struct([("a", pa.list_(pa.duration("us")))]),
        pa.timestamp("ns"),
        pa.uint64(),
    ],
    ids=str,
)
def test_a_type_that_would_not_come_back_does_not_fit(kind: pa.DataType) -> None:
    assert not jsontext.fits(kind)


@pytest.mark.parametrize("bad", [-719_163, 2_932_897, -100_000_000, 100_000_000])
def test_a_day_that_has_not_four_digits_is_found_wherever_it_is(bad: int) -> None:
    numbers = [0, None, 2_932_896, -719_162, bad, 5, bad]
    days = pa.array(numbers, pa.int32()).view(pa.date32())
    moments = pa.array([None if day is None else day * 86_400_000_000 for day in numbers]).view(pa.timestamp("us"))
    for column in (days, moments):
        assert jsontext.outside(column) == 4
        assert jsontext.outside(column[:4]) is None
        assert jsontext.outside(column[5:]) == 1
        lists = pa.ListArray.from_arrays([0, 2, 2, 4, 5, 7], column)
        assert jsontext.outside(lists) == 3
        assert jsontext.outside(pa.StructArray.from_arrays([lists], ["a"])) == 3
        assert jsontext.outside(lists[:3]) is None
    assert jsontext.outside(pa.array([253_402_300_799_999_999], pa.timestamp("us"))) is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b'{"a":1}', pa.string()),
        (b'{"a":"1"}', pa.int64()),
        (b'{"a":128}', pa.int8()),
        (b'{"a":1.5}', pa.int8()),
        (b'{"a":true}', pa.int8()),
        (b'{"a":"many"}', pa.float64()),
        (b'{"a":1.234}', pa.decimal128(10, 2)),
        (b'{"a":"1,2"}', pa.decimal128(10, 2)),
        (b'{"a":true}', pa.decimal128(10, 2)),
        (b'{"a":123}', pa.decimal128(2, 0)),
        (b'{"a":"no base64"}', pa.binary()),
        (b'{"a":"2026-13-01"}', pa.date32()),
        (b'{"a":"2026-11-15 12:00:00"}', pa.timestamp("us", "UTC")),
        (b'{"a":"2026-11-15 12:00:00Z"}', pa.timestamp("us")),
        (b'{"a":[1]}', pa.map_(pa.string(), pa.int32())),
        (b'{"a":{"x":"y"}}', pa.map_(pa.string(), pa.int32())),
        (b'{"a":{}}', pa.list_(pa.int32())),
        (b'{"a":[]}', pa.struct([("b", pa.int32())])),
        (b"[1]", pa.int32()),
        (b"{", pa.int32()),
        (b"\xff", pa.int32()),
        (b"[" * 100_000, pa.int32()),
    ],
    ids=str,
)
def test_a_text_that_is_something_else_is_told_with_its_row(text: bytes, kind: pa.DataType) -> None:
    texts = pa.array([b'{"a":null}', text], pa.binary())
    with pytest.raises(jsontext.UnfitError) as told:
        jsontext.columns(texts, pa.schema([("a", kind)]))
    assert told.value.row == 1
    assert str(told.value)


def test_no_columns_are_an_empty_object() -> None:
    assert jsontext.objects(pa.record_batch({"a": [1, 2]}).select([])).to_pylist() == [b"{}", b"{}"]
