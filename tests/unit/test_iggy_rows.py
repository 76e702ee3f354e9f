"""Iggy's bytes and rows, without a server: the double's own encoder on one side, our codec on the other."""

import struct
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clients.iggy import wire
from penstock.connectors.iggy import Iggy, rows
from penstock.errors import OptionError, ProtocolError
from penstock.kit.contract import Origin
from penstock.testing.iggy_double import Message, _batch

ME = Origin("3f0c8a52-0000-4000-8000-000000000001", 3, 2)
PAIRS = st.lists(
    st.tuples(st.text(min_size=1, max_size=20), st.integers(1, 15), st.binary(min_size=1, max_size=40)), max_size=3
)
MESSAGES = st.lists(st.tuples(st.integers(0, 2**128 - 1), st.binary(min_size=1, max_size=80), PAIRS), max_size=30)


def _tlv(pairs: list[tuple[str, int, bytes]]) -> bytes:
    out = b""
    for key, kind, value in pairs:
        name = key.encode()
        out += struct.pack("<BI", 2, len(name)) + name + struct.pack("<BI", kind, len(value)) + value
    return out


def _answer(messages: list[Message], sizes: list[int]) -> bytes:
    out, at = struct.pack("<IQI", 0, 9, len(messages)), 0
    for size in [*sizes, len(messages)]:
        if messages[at : at + size]:
            out += _batch(0, messages[at : at + size])
        at += size
    return out


@given(MESSAGES, st.lists(st.integers(1, 10), max_size=5), st.integers(0, 2**40))
def test_any_answer_to_a_poll_is_read(sent: Any, sizes: list[int], first: int) -> None:
    made = [
        Message(number, payload, _tlv(pairs), 1000 + i, first + i, 5000)
        for i, (number, payload, pairs) in enumerate(sent)
    ]
    found = wire.read_poll(_answer(made, sizes))
    assert found.offset.tolist() == [first + i for i in range(len(made))]
    assert found.origin.tolist() == [1000 + i for i in range(len(made))]
    assert found.value.to_pylist() == [payload for _, payload, _ in sent]
    assert wire.identities(found.high, found.low).to_pylist() == [str(number) for number, _, _ in sent]
    typed = wire.headers(found.headers, typed=True).to_pylist()
    for headers, (_, _, pairs) in zip(typed, sent, strict=True):
        expected = [{"key": k, "value": v, "kind": wire.KINDS[kind - 1]} for k, kind, v in pairs]
        assert headers == (expected or None)


def test_parts_of_an_answer_keep_their_headers() -> None:
    made = [Message(i, b"x", _tlv([("k", 1, b"%d" % i)]) if i % 2 else b"", 0, i) for i in range(10)]
    found = wire.read_poll(_answer(made, [4])).before(7)
    shown = wire.headers(found.part(2, 6).headers, typed=False).to_pylist()
    assert shown == [None, [{"key": "k", "value": b"3"}], None, [{"key": "k", "value": b"5"}]]
    both = wire.Messages.joined([found.part(0, 2), found.part(5, 7)])
    assert both.offset.tolist() == [0, 1, 5, 6]
    assert len(wire.Messages.joined([])) == 0


@pytest.mark.parametrize("cut", [3, 15, 30, 280, -1])
def test_an_answer_that_is_cut_off_is_refused(cut: int) -> None:
    whole = _answer([Message(1, b"payload", b"", 0, 0)], [])
    with pytest.raises(ProtocolError, match="Iggy"):
        wire.read_poll(whole[:cut])


@pytest.mark.parametrize(
    ("at", "kind", "number"),
    [
        (12, "<I", 3),
        (16 + 8, "<Q", 2**63),
        (16 + 32, "<Q", 2**63),
        (16 + 32, "<Q", 255),
        (16 + 48, "<I", 2**32 - 1),
        (16 + 256 + 32, "<I", 2**32 - 1),
        (16 + 256 + 36, "<I", 100_000),
        (16 + 256 + 36, "<I", 0),
    ],
)
def test_a_poll_whose_lengths_lie_is_refused(at: int, kind: str, number: int) -> None:
    data = bytearray(_answer([Message(1, b"payload", b"", 0, 0), Message(2, b"payload", b"", 0, 1)], []))
    struct.pack_into(kind, data, at, number)
    with pytest.raises(ProtocolError, match="Iggy"):
        wire.read_poll(bytes(data))


def test_times_that_have_no_place_in_a_column_are_no_reason_to_stop() -> None:
    data = bytearray(_answer([Message(1, b"payload", b"", 0, 0), Message(2, b"payload", b"", 9, 1)], []))
    struct.pack_into("<QQ", data, 16 + 16, 2**64 - 1, 2**64 - 1)
    found = wire.read_poll(bytes(data))
    assert (found.origin > 2**62).all()
    assert (found.time > 2**62).all()


@pytest.mark.parametrize(
    "bad",
    [
        b"\x02", b"\x02\x03\0\0\0", b"\x02\xff\xff\xff\xffkey\x02\x01\0\0\0v", b"\x02\x01\0\0\0k\x02\xff\xff\xff\xffv",
        b"\x02\x01\0\0\0k\x02\x02\0\0\0v", b"\x02\x01\0\0\0k\x02", b"\0" * 9,
    ],
)  # fmt: skip
def test_bad_headers_of_a_message_cost_only_those(bad: bytes) -> None:
    good = _tlv([("k", 2, b"v")])
    shown = wire.headers(pa.array([good, bad, good, good + bad, good], pa.binary()), typed=False).to_pylist()
    assert shown == [[{"key": "k", "value": b"v"}], None] + [[{"key": "k", "value": b"v"}]] * 3


def test_ids_tell_task_and_row_and_no_other() -> None:
    tasks = [
        ME,
        ME._replace(batch=2),
        ME._replace(partition=1),
        ME._replace(query="another"),
        ME._replace(batch=70_000),
    ]
    ids = [(rows.name(task).high << 64 | rows.name(task).low) + row for task in tasks for row in (0, 7, 2**28 - 1)]
    assert len(set(ids)) == 15
    assert all(0 < number < 2**128 for number in ids)
    high, low = (np.array([f(n) for n in ids], np.uint64) for f in (lambda n: n >> 64, lambda n: n & (2**64 - 1)))
    mine, numbers = rows.rows_of(rows.name(ME), high, low)
    assert mine.tolist() == [True] * 3 + [False] * 12
    assert numbers.tolist() == [0, 7, 2**28 - 1]
    assert sorted(set(rows.batches_of(rows.name(ME), high, low).tolist())) == [2, 3, 70_000]


def _made(batch: dict[str, Any], **options: Any) -> rows.Rows:
    parsed = Iggy.parse_sink({"stream": "s", "topic": "t", "password": "x", **options})
    whole = pa.record_batch(batch)
    rows.check(parsed, whole.schema)
    return rows.prepare(parsed, ME, whole, 0, 4)


def test_rows_go_where_their_key_or_number_says_or_by_turns() -> None:
    # The hash of Iggy's own clients: XxHash32 of the key with the seed 0.
    keyed = _made({"value": ["a", "b", "c"], "key": ["user-1", "user-2", "user-1"]})
    assert keyed.partition[0] == keyed.partition[2]
    assert _made({"value": ["a"], "key": ["abc"]}).partition[0] == 0x32D153FF % 4
    assert _made({"value": ["a", "b"], "partition": [3, 0]}).partition.tolist() == [3, 0]
    assert _made({"value": list("abcde")}, batchLength="2").partition.tolist() == [2, 2, 3, 3, 0]


def test_a_row_without_a_number_goes_by_turns_unless_numbers_were_asked_for() -> None:
    rows_given = {"value": list("abc"), "partition": pa.array([None, 1, None], pa.int32())}
    assert _made(rows_given).partition.tolist() == [2, 1, 2]
    with pytest.raises(OptionError, match=r"row 0 .* has no partition \(null\)"):
        _made(rows_given, partitioning="partition")


def test_text_goes_as_text_and_bytes_as_bytes() -> None:
    assert _made({"value": pa.array([b"text"])}).value == ["text"]
    assert _made({"value": pa.array([b"\xff\xfe"])}).value == [b"\xff\xfe"]


def test_ids_are_numbers_uuids_or_sixteen_bytes() -> None:
    number = uuid.UUID("3f0c8a52-0000-4000-8000-000000000001")
    for ids in (
        ["340282366920938463463374607431768211455", str(number)],
        [number.bytes, b"\0" * 15 + b"\x07"],
        [1, 2],
    ):
        found = _made({"value": ["a", "b"], "id": ids}).ids
        assert found is not None
        assert len(set(found)) == 2
    assert _made({"value": ["a"], "id": [str(number)]}).ids == [number.int]


@pytest.mark.parametrize(
    ("batch", "options", "why"),
    [
        ({"value": ["a", None]}, {}, r"row 1 of partition 2 of batch 3 has no value \(null\)"),
        ({"value": ["a", ""]}, {}, "row 1 .* has an empty value"),
        ({"value": ["a"], "partition": [4]}, {}, "row 0 .* has partition 4, and the topic has 0 to 3"),
        ({"value": ["a"], "partition": [-1]}, {}, "has partition -1"),
        ({"value": ["a"], "key": [None]}, {"partitioning": "key"}, "column 'key' must be STRING or BINARY"),
        ({"value": ["a"], "key": [""]}, {}, "has a key of 0 bytes"),
        ({"value": ["a"], "key": ["x" * 256]}, {}, "has a key of 256 bytes"),
        ({"value": ["a"], "id": ["nonsense"]}, {}, "has the id 'nonsense', which is no number"),
        ({"value": ["a"], "id": [str(2**128)]}, {}, "which is no number from 1 to"),
        ({"value": ["a"], "id": ["0"]}, {}, "which is no number from 1 to"),
        ({"value": ["a"]}, {"partitioning": "key"}, "partitioning=key needs a column 'key'"),
        ({"value": ["a"], "more": [1]}, {}, "iggy cannot write the column 'more'"),
        ({"value": ["a"], "sequence": [1]}, {}, "iggy cannot write the column 'sequence'"),
    ],
)
def test_a_row_that_cannot_be_sent_is_refused(batch: Any, options: Any, why: str) -> None:
    with pytest.raises(OptionError, match=why):
        _made(batch, **options)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"key": "k", "value": b"x" * 256}, "a header 'k' of 256 bytes"),
        ({"key": "k", "value": b""}, "a header 'k' of 0 bytes"),
        ({"key": "", "value": b"x"}, "a header named ''"),
    ],
)
def test_a_header_that_cannot_be_sent_is_refused(header: Any, why: str) -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    with pytest.raises(OptionError, match=f"row 0 .*{why}"):
        _made({"value": ["a"], "headers": pa.array([[header]], kind)})


def test_headers_whose_parts_are_never_null_keep_their_kinds() -> None:
    """As SQL makes them of constants: named_struct('key', 'n', 'value', ..., 'kind', 'uint32')."""
    names = (("key", pa.string(), False), ("value", pa.binary(), True), ("kind", pa.string(), False))
    struct_type = pa.struct([pa.field(name, kind, nullable) for name, kind, nullable in names])
    header = {"key": "n", "value": (7).to_bytes(4, "little"), "kind": "uint32"}
    kind = pa.list_(pa.field("element", struct_type, nullable=False))
    made = _made({"value": ["a"], "headers": pa.array([[header]], kind)})
    assert made.headers == [[("n", "uint32", header["value"])]]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"stream": "123"}, "'123' is all digits"),
        ({"topic": ""}, "1 to 255 bytes"),
        ({"address": "localhost"}, "address must be host:port"),
        ({"maxBatchBytes": "1gb"}, "maxBatchBytes must be at most"),
        ({"tpoic": "x"}, "unknown option 'tpoic' for iggy. Did you mean 'topic'"),
    ],
)
def test_a_wrong_option_is_refused(options: Any, why: str) -> None:
    with pytest.raises(OptionError, match=why):
        Iggy.parse_sink({"stream": "s", "topic": "t", "password": "x", **options})


def test_the_name_of_a_shard_leads_back_to_its_place() -> None:
    where = wire.Where("a/b", "topic", 12)
    assert wire.Where.of(str(where)) == where
