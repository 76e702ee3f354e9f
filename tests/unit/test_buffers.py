"""Rows by their sizes."""

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.arrow.buffers import cuts, sizes
from penstock.arrow.types import HEADERS, TIMESTAMP
from penstock.planning.positions import Range
from penstock.spark.reading import _packed

SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("timestamp", TIMESTAMP),
        ("subject", pa.string()),
        ("n", pa.int32()),
    ]
)
HEADER = st.fixed_dictionaries({"key": st.text(max_size=5), "value": st.none() | st.binary(max_size=40)})
ROW = st.fixed_dictionaries(
    {
        "value": st.none() | st.binary(max_size=100),
        "headers": st.none() | st.lists(HEADER, max_size=3),
        "subject": st.none() | st.text(max_size=9),
    }
)


def size(row: dict[str, Any]) -> int:
    """Row by row: text and bytes with four bytes each for where they end, a list too."""
    pairs = row["headers"] or []
    headers = 4 + sum(8 + len(pair["key"].encode()) + len(pair["value"] or b"") for pair in pairs)
    return 4 + len(row["value"] or b"") + headers + 8 + 4 + len((row["subject"] or "").encode()) + 4


@given(st.lists(ROW, max_size=8), st.integers(0, 8))
def test_the_size_of_a_row_does_not_depend_on_where_its_batch_was_cut(rows: list[dict[str, Any]], at: int) -> None:
    batch = pa.RecordBatch.from_pylist([{"timestamp": None, "n": None, **row} for row in rows], schema=SCHEMA)
    expected = [size(row) for row in rows]
    assert sizes(batch.to_struct_array()).tolist() == expected
    parts = [batch.slice(0, at), batch.slice(at)]
    assert np.concatenate([sizes(part.to_struct_array()) for part in parts]).tolist() == expected


@given(st.lists(st.integers(0, 30), max_size=40), st.integers(1, 40))
def test_pieces_hold_every_row_once_and_as_many_as_fit(size: list[int], most: int) -> None:
    found = cuts(np.array(size, np.int64), most)
    assert [i for low, high in found for i in range(low, high)] == list(range(len(size)))
    for low, high in found:
        assert high == low + 1 or sum(size[low:high]) <= most
        assert high == len(size) or sum(size[low : high + 1]) > most


class Held:
    """Rows as they arrived."""

    def __init__(self, batches: list[pa.RecordBatch]):
        self.batches = batches

    def ship(self, span: Range) -> list[pa.RecordBatch]:
        return self.batches


def test_rows_travel_in_pieces_that_do_not_depend_on_how_they_arrived() -> None:
    size = [3 << 20, 3 << 20, 3 << 20, 1, 20 << 20, 1, 5 << 20, 2 << 20]
    schema = pa.schema([("value", pa.binary()), ("n", pa.int64())])
    whole = pa.record_batch({"value": [b"x" * length for length in size], "n": range(len(size))}, schema=schema)
    spans = (Range("subjects", 1, 9),)
    pieces = list(_packed(schema, Held([whole]), spans))
    rows = [pa.ipc.open_stream(piece).read_all()["n"].to_pylist() for piece in pieces]
    assert rows == [[0, 1], [2, 3], [4], [5, 6, 7]]
    assert list(_packed(schema, Held([]), spans)) == []
    parts = [whole.slice(0, 1), whole.slice(1, 5), whole.slice(6)]
    again = [pa.ipc.open_stream(piece).read_all()["n"].to_pylist() for piece in _packed(schema, Held(parts), spans)]
    assert again == rows
