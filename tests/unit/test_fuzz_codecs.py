"""Avro and Protobuf against bytes that lie: each record has its own error, and its neighbours are unharmed."""

import json
import resource
import time
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from test_avro import written
from test_fuzz import SEED, TIMES, Rng, changed
from test_protobuf import SET
from test_protobuf_written import columns, declared

from penstock.codecs import avro, protobuf
from penstock.codecs.avro_types import Avro
from penstock.codecs.row_bytes import varints

SCHEMA = {
    "type": "record", "name": "R", "fields": [
        {"name": "id", "type": "long"}, {"name": "s", "type": ["null", "string"]}, {"name": "f", "type": "float"},
        {"name": "b", "type": "bytes"}, {"name": "list", "type": {"type": "array", "items": ["null", "int", "string"]}},
        {"name": "map", "type": {"type": "map", "values": {"type": "array", "items": "boolean"}}},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        {"name": "x", "type": {"type": "fixed", "name": "F", "size": 3}},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "empty", "type": {"type": "array", "items": "null"}},
    ],
}  # fmt: skip


def avro_records() -> tuple[Any, list[bytes]]:
    rows: list[dict[str, Any]] = [
        {"id": 2**n, "s": "é" * (n % 3) or None, "f": 1.5, "b": b"x" * n, "list": [None, n, "x"][: n % 4],
         "map": {"k" * n: [True] * (n % 3)}, "e": "A", "x": b"abc", "d": Decimal("1.25"), "t": n * 1000,
         "empty": [None] * (n % 2)}
        for n in range(12)
    ]  # fmt: skip
    return avro.decoder(json.dumps(SCHEMA), None, None, None, None), written(SCHEMA, rows)


def protobuf_records() -> tuple[Any, list[bytes]]:
    rows = [
        {"one_int64": n, "many_int32": [n] * n, "many_string": ["x"] * n, "one_double": 1.5, "by_name": {"k": n},
         "lines": [{"name": "é" * n, "counts": [n]}] * (n % 3), "kind": "LARGE", "one_uint64": 2**n}
        for n in range(12)
    ]  # fmt: skip
    values = protobuf.Encoder(SET, "shop.Order")(columns(SET, "shop.Order", rows)).to_pylist()
    return protobuf.Decoder(SET, "shop.Order"), values


@pytest.mark.parametrize("records", [avro_records, protobuf_records])
def test_bytes_that_lie_harm_no_neighbour(records: Any) -> None:
    work, valid = records()
    good = work(pa.array(valid, pa.binary())).to_pylist()
    assert not [row["_error"] for row in good if row["_error"]]
    refused = 0
    for number in range(120 * TIMES):
        rng = Rng(f"{SEED} {records.__name__} {number}")
        lies = [changed(rng, valid) for _ in range(rng.choice((1, 12)))]
        mixed = [part for pair in zip(valid, lies, strict=False) for part in pair]
        try:
            rows = work(pa.array(mixed, pa.binary()))
            rows.validate(full=True)
            found = rows.to_pylist()
        except Exception as error:
            error.add_note(f"SEED={SEED}, input {number}: {lies!r}")
            raise
        assert found[::2] == good[: len(lies)], number
        refused += sum(row["_error"] is not None for row in found[1::2])
    assert refused > 50


def varint(number: int) -> bytes:
    value: bytes = varints(np.array([number], np.uint64))[0].as_py()
    return value


HUGE = [2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 2]


@pytest.mark.parametrize("kind", ['"string"', '"bytes"', '{"type": "array", "items": "long"}',
                                  '{"type": "map", "values": "long"}', '{"type": "array", "items": "null"}',
                                  '{"type": "array", "items": {"type": "array", "items": "null"}}'])  # fmt: skip
def test_lengths_that_are_claimed_take_neither_memory_nor_time(kind: str) -> None:
    schema = f'{{"type": "record", "name": "R", "fields": [{{"name": "a", "type": {kind}}}]}}'
    work = avro.decoder(schema, None, None, None, None)
    assert Avro.parse(schema).arrow()
    lies = [varint(number) for number in HUGE]
    lies += [varint(2 * 10_000) * 10_000, (varint(2 * 9_000) + varint(2 * 9_000)) * 5_000]  # of items without bytes
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    rows = work(pa.array([b"\0", *lies, b"\0"], pa.binary())).to_pylist()
    assert [row["_error"] is None for row in rows] == [True, *[False] * len(lies), True]
    assert time.process_time() - began < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kB


@pytest.mark.parametrize("fields", ["optional string a", "optional bytes a", "repeated int64 a", "repeated double a"])
def test_lengths_that_messages_claim_are_not_believed(fields: str) -> None:
    work = protobuf.Decoder(declared(fields), "M")
    rows = work(pa.array([b"", *(b"\x0a" + varint(number) + b"x" for number in HUGE), b""], pa.binary())).to_pylist()
    assert [row["_error"] for row in rows] == [None, *["is no message 'M': it breaks off"] * len(HUGE), None]


def test_large_messages_are_read_beside_small_ones() -> None:
    """Of 900 kB each: one text, one list of single values, one that is packed."""
    text = protobuf.Decoder(declared("optional string a, repeated int64 b"), "M")
    values = [
        b"\x0a" + varint(900_000) + b"x" * 900_000,
        b"\x10\x07" * 450_000,
        b"\x12" + varint(900_000) + b"\7" * 900_000,
    ]
    began = time.process_time()
    rows = text(pa.array([b"\x10\x01", *values, b"\x10\x02"], pa.binary())).to_pylist()
    assert time.process_time() - began < 20
    assert [len(row["a"] or "") for row in rows] == [0, 900_000, 0, 0, 0]
    assert [len(row["b"]) for row in rows] == [1, 0, 450_000, 900_000, 1]


def test_decimals_and_times_that_have_no_room_are_errors() -> None:
    schema = {**SCHEMA, "fields": SCHEMA["fields"][8:10]}
    work = avro.decoder(json.dumps(schema), None, None, None, None)
    rows = work(
        pa.array([b"\x04\x00\x7d\x00", b"\x08\x7f\xff\xff\xff\x00", b"\x02\x00" + varint(2**64 - 2)], pa.binary())
    ).to_pylist()
    assert [row["_error"] for row in rows] == [
        None,
        "is not Avro of the schema: it has a decimal of more than 6 digits",
        "is not Avro of the schema: it has a time that is too far away",
    ]
