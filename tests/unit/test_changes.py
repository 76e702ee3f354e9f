"""Changes to a table as records and back, byte for byte as flink-connector-s2 writes them."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_json import KINDS, NAMES, PLAIN, shown, some

from penstock.arrow import ddl
from penstock.clients.s2.records import Records
from penstock.connectors.s2.rows import ACTION, KEY, parts
from penstock.errors import OptionError, ProtocolError
from penstock.tables import changes


def test_a_change_is_written_as_the_seed_shows_it() -> None:
    batch = pa.record_batch({"content": pa.array([4], pa.int32()), "index": ["265"]})
    _, key, action, body = changes.encode(batch, ["index"])
    assert (key[0].as_py(), action[0].as_py(), body[0].as_py()) == (b'{"index":"265"}', b"u", b'{"content":4}')


def test_a_deletion_has_no_body_and_rows_as_they_were_before_are_left_out() -> None:
    actions = ["insert", "update_preimage", "update_postimage", "delete", "u", "d", "UPDATE"]
    batch = pa.record_batch({"id": range(7), "v": range(7), "_change_type": actions})
    written, key, action, body = changes.encode(batch, ["id"])
    assert written.tolist() == [True, False, True, True, True, True, True]
    assert [json.loads(k)["id"] for k in key.to_pylist()] == [0, 2, 3, 4, 5, 6]
    assert action.to_pylist() == [b"u", b"u", b"d", b"u", b"d", b"u"]
    assert [bool(b) for b in body.to_pylist()] == [True, True, False, True, False, True]


@pytest.mark.parametrize(
    ("batch", "row", "why"),
    [
        ({"id": [1, None], "v": [1, 2]}, 1, "has no 'id'"),
        ({"id": [1, 2], "v": [1, 2], "_action": ["u", "merge"]}, 1, "has the action 'merge'; there are: u, "),
        ({"id": [1, 2], "v": [1, 2], "_action": [None, "u"]}, 0, "has the action None"),
    ],
)
def test_a_row_that_is_no_change_is_refused_with_its_number(batch: Any, row: int, why: str) -> None:
    with pytest.raises(changes.RowError, match=why) as refused:
        changes.encode(pa.record_batch(batch), ["id"])
    assert refused.value.row == row


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"v": [1]}, "keyColumns has 'id', but there is no such column. There are: v"),
        ({"id": [1]}, "all columns are key columns"),
        ({"id": [1], "_action": ["u"]}, "all columns are key columns"),
        ({"id": [1], "v": [1], "_action": [1]}, "column '_action' must be STRING"),
        ({"id": [1], "v": [1], "_action": ["u"], "_change_type": ["u"]}, "both _action and _change_type"),
    ],
)
def test_columns_that_make_no_table_are_refused(columns: Any, why: str) -> None:
    with pytest.raises(OptionError, match=why):
        changes.accept(pa.record_batch(columns).schema, ["id"], written=True)


SCHEMA = pa.schema([("text", pa.string()), ("whole", pa.int64()), ("real", pa.float64()), ("flag", pa.bool_())])


@given(st.data())
def test_a_table_of_any_types_comes_back(data: st.DataObject) -> None:
    """As records: the key in a header, the other columns in the body."""
    keys = data.draw(st.dictionaries(NAMES, PLAIN, min_size=1, max_size=2), "keys")
    others = data.draw(st.dictionaries(NAMES.filter(lambda name: name not in keys), KINDS, min_size=1, max_size=3))
    schema = pa.schema([*keys.items(), *others.items()])
    changes.accept(schema, list(keys), written=True)
    made = [some(kind).filter(lambda value: value is not None) for kind in keys.values()]
    rows = data.draw(st.lists(st.tuples(*made, *(some(kind) for kind in others.values())), max_size=4), "rows")
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    _, key, action, body = changes.encode(batch, list(keys))
    headers = [[(KEY, k), (ACTION, a)] for k, a in zip(key.to_pylist(), action.to_pylist(), strict=True)]
    records = _records(list(zip(headers, body.to_pylist(), strict=True)))
    _, found, _ = parts(records)
    at = np.arange(len(rows))
    back = changes.decode(found, pa.schema(list(keys.items())), "@key", at)
    back |= changes.decode(records.value, pa.schema(list(others.items())), "body", at)
    assert shown(pa.RecordBatch.from_arrays([back[name] for name in schema.names], schema=schema)) == shown(batch)


def test_all_columns_that_would_not_come_back_are_refused_at_once_with_what_to_paste() -> None:
    schema = pa.schema(
        [
            ("id", pa.list_(pa.int32())),
            ("span", pa.duration("us")),
            ("codes", pa.map_(pa.int32(), pa.string())),
            ("deep", pa.list_(pa.map_(pa.int32(), pa.string()))),
            ("good", pa.map_(pa.string(), pa.list_(pa.date32()))),
            ("timestamp", pa.timestamp("us", "UTC")),
            ("_timestamp", pa.timestamp("us", "UTC")),
            ("_action", pa.string()),
        ]
    )
    with pytest.raises(OptionError) as refused:
        changes.accept(schema, ["id"], written=True)
    assert str(refused.value) == (
        "a table of changes cannot give these columns back as they were: 'id' (list<item: int32> as a key), 'span' "
        "(duration[us]), 'codes' (map<int32, string>), 'deep' (list<item: map<int32, string>>), '_timestamp' "
        "(each record has one of its own). Write them otherwise: "
        '.selectExpr("* EXCEPT (`id`, `span`, `codes`, `deep`, `_timestamp`)", "to_json(`id`) AS `id`", '
        '"string(`span`) AS `span`", "map_entries(`codes`) AS `codes`", "to_json(`deep`) AS `deep`", '
        '"`_timestamp` AS timestamp_")'
    )
    with pytest.raises(OptionError, match=r"'span' \(duration\[us\]\).*name the types that were written"):
        changes.accept(schema, ["id"], written=False)
    changes.accept(pa.schema([("id", pa.int32()), ("_sequence", pa.int64())]), ["id"], written=False)


@pytest.mark.parametrize("name", ["id", "v"])
def test_a_year_that_text_has_no_room_for_is_refused_with_its_row(name: str) -> None:
    days = pa.array([0, 5, 2_932_897], pa.int32()).view(pa.date32())
    batch = pa.record_batch({"id": range(3), "v": range(3)} | {name: days})
    with pytest.raises(changes.RowError, match=f"a day outside of the years 1 to 9999 in '{name}'") as refused:
        changes.encode(batch, ["id"])
    assert refused.value.row == 2


def _records(rows: list[tuple[list[tuple[bytes, bytes]], bytes]]) -> Records:
    none = pa.array([n for headers, _ in rows for n, _ in headers], pa.binary())
    value = pa.array([v for headers, _ in rows for _, v in headers], pa.binary())
    row = np.array([i for i, (headers, _) in enumerate(rows) for _ in headers], np.int64)
    at = np.arange(len(rows))
    return Records(at, at, pa.array([b for _, b in rows], pa.binary()), row, none, value)


def test_only_records_with_key_and_a_known_action_are_changes() -> None:
    rows, keys, deletes = parts(
        _records(
            [
                ([(b"@key", b"1"), (b"@action", b"u")], b"x"),
                ([], b"x"),
                ([(b"@action", b"d"), (b"other", b""), (b"@key", b"2")], b""),
                ([(b"@key", b"3")], b"x"),
                ([(b"@key", b"4"), (b"@action", b"z")], b"x"),
            ]
        )
    )
    assert rows.tolist() == [0, 2]
    assert keys.to_pylist() == [b"1", b"2"]
    assert deletes.tolist() == [False, True]


@pytest.mark.parametrize("text", [b"{", b"[1]"])
def test_a_text_that_is_no_object_is_named_with_its_place(text: bytes) -> None:
    texts = pa.array([b'{"whole":1}', text], pa.binary())
    with pytest.raises(ProtocolError, match=r"record 18 has .* as body, which is no JSON object"):
        changes.decode(texts, SCHEMA, "body", np.array([17, 18]))


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        (
            pa.date32(),
            b"1",
            "is DATE in the schema of this read, but record 18 has the number 1 there ('1' is no text)",
        ),
        (pa.int32(), b'"x"', "is INT in the schema of this read, but record 18 has the text \"x\" there ('x' is no"),
        (pa.string(), b"1\n", "is STRING in the schema of this read, but record 18 has the number 1 there"),
        (pa.string(), b"1.50", "has the number 1.50 there"),
        (pa.bool_(), b"[1, 2]", "is BOOLEAN in the schema of this read, but record 18 has an array there ('[1, 2]'"),
        (pa.timestamp("us"), b'{"a": 1}', "is TIMESTAMP_NTZ in the schema of this read, but record 18 has an object"),
        (pa.decimal128(4, 2), b"true", "is DECIMAL(4,2) in the schema of this read, but record 18 has the word true"),
        (pa.list_(pa.int64()), b"7", "is ARRAY<BIGINT> in the schema of this read, but record 18 has the number 7"),
    ],
    ids=str,
)
def test_a_value_of_another_type_names_the_column_and_the_type_of_the_schema(
    kind: pa.DataType, text: bytes, told: str
) -> None:
    texts = pa.array([b"{}", b'{"amount": %s}' % text], pa.binary())
    with pytest.raises(OptionError, match=r"^column 'amount' is ") as caught:
        changes.decode(texts, pa.schema([("amount", kind)]), "body in stream 's'", np.array([17, 18]))
    assert told in str(caught.value)
    assert "in its body in stream 's'. Give the column the type that was written, in .schema" in str(caught.value)


def test_json_over_several_lines_is_read_too_and_unknown_fields_are_left_out() -> None:
    texts = pa.array([b'{\n "whole": 1,\n "more": 2\n}', b"", b'{"text":"a"}'], pa.binary())
    back = changes.decode(texts, SCHEMA, "body", np.arange(3))
    assert back["whole"].to_pylist() == [1, None, None]
    assert back["text"].to_pylist() == [None, None, "a"]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 99)), max_size=40))
def test_the_latest_of_each_key_is_kept_in_order(rows: list[tuple[int, int]]) -> None:
    table = pa.table({"k": pa.array([k for k, _ in rows], pa.int64()), "v": pa.array([v for _, v in rows], pa.int64())})
    last = {k: i for i, (k, _) in enumerate(rows)}
    assert changes.latest(table, ["k"])["v"].to_pylist() == [rows[i][1] for i in sorted(last.values())]


def test_columns_are_read_from_sql() -> None:
    found = ddl.columns("id STRING, `odd name` INT,amount decimal(10, 2) , at TIMESTAMP, flag boolean")
    assert found.names == ["id", "odd name", "amount", "at", "flag"]
    assert found.field("amount").type == pa.decimal128(10, 2)
    assert found.field("odd name").type == pa.int32()


@pytest.mark.parametrize("text", ["", "id", "id STRING,", "id STRING amount INT", "id MAP<STRING,INT>", "id INT(3,2)"])
def test_what_is_no_list_of_columns_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"no list of columns|cannot be named here"):
        ddl.columns(text)
