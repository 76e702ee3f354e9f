"""Our codec against the one that s2-sdk generates from S2's own definitions."""

import gzip
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from s2_sdk._generated.s2.v1 import s2_pb2 as pb

from penstock.clients.s2.appends import append_ack, append_input, encode, encode_headers, with_header
from penstock.clients.s2.frames import Deframer, Frame, failure, to_frame
from penstock.clients.s2.records import _LAST, Records, read_batch
from penstock.clients.s2.varints import varint
from penstock.errors import ProtocolError

NUMBERS = st.one_of(st.integers(0, 300), st.integers(0, _LAST))
HEADERS = st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=200)), max_size=4)
RECORDS = st.lists(st.tuples(NUMBERS, NUMBERS, HEADERS, st.binary(max_size=300)), max_size=30)


def _read_batch(records: list[tuple[int, int, list[tuple[bytes, bytes]], bytes]], tail: int = 0) -> bytes:
    made = pb.ReadBatch(tail=pb.StreamPosition(seq_num=tail) if tail else None)
    for sequence, timestamp, headers, body in records:
        record = made.records.add(seq_num=sequence, timestamp=timestamp, body=body)
        for name, value in headers:
            record.headers.add(name=name, value=value)
    return bytes(made.SerializeToString())


def _plain(records: Records) -> list[Any]:
    headers: list[list[tuple[bytes, bytes]]] = [[] for _ in range(len(records))]
    names, values = records.header_name.to_pylist(), records.header_value.to_pylist()
    for row, name, value in zip(records.header_row.tolist(), names, values, strict=True):
        headers[row].append((name, value))
    columns = records.sequence.tolist(), records.timestamp.tolist(), headers, records.value.to_pylist()
    return list(zip(*columns, strict=True))


@given(RECORDS, st.integers(0, 1000))
def test_any_batch_is_read_as_the_sdk_wrote_it(records: Any, tail: int) -> None:
    assert _plain(read_batch(_read_batch(records, tail))) == records


@given(RECORDS, RECORDS)
def test_batches_one_behind_the_other_are_read_together(first: Any, second: Any) -> None:
    assert _plain(read_batch(_read_batch(first, 7) + _read_batch(second))) == first + second


@given(RECORDS, st.lists(st.booleans(), min_size=30, max_size=30))
def test_some_records_keep_their_headers(records: Any, wanted: list[bool]) -> None:
    chosen = np.array(wanted[: len(records)], bool)
    left = read_batch(_read_batch(records)).where(chosen)
    assert _plain(left) == [r for r, keep in zip(records, wanted, strict=False) if keep]


@given(RECORDS)
def test_any_records_are_written_as_the_sdk_would(records: Any) -> None:
    row = np.array([i for i, (_, _, headers, _) in enumerate(records) for _ in headers], np.int64)
    names = pa.array([n for _, _, headers, _ in records for n, _ in headers], pa.binary())
    values = pa.array([v for _, _, headers, _ in records for _, v in headers], pa.binary())
    headers = encode_headers(len(records), row, names, values)
    stamps = np.array([t if i % 2 else -1 for i, (_, t, _, _) in enumerate(records)], np.int64)
    made = encode(pa.array([b for *_, b in records], pa.binary()), headers, stamps)
    read = pb.AppendInput.FromString(append_input(bytes(made.joined()), 42, b"tok"))
    assert read.match_seq_num == 42
    assert read.fencing_token == "tok"
    for i, (record, (_, timestamp, pairs, body)) in enumerate(zip(read.records, records, strict=True)):
        assert record.body == body
        assert [(h.name, h.value) for h in record.headers] == pairs
        assert record.HasField("timestamp") == bool(i % 2)
        assert record.timestamp == (timestamp if i % 2 else 0)
        assert made.metered[i] == 8 + 2 * len(pairs) + sum(len(n) + len(v) for n, v in pairs) + len(body)


@given(HEADERS, st.binary(max_size=300), st.booleans())
def test_a_header_can_be_added_behind_the_others(pairs: Any, body: bytes, timed: bool) -> None:
    row, names = np.zeros(len(pairs), np.int64), pa.array([n for n, _ in pairs], pa.binary())
    headers = encode_headers(1, row, names, pa.array([v for _, v in pairs], pa.binary()))
    made = encode(pa.array([body], pa.binary()), headers, np.array([5]) if timed else None)
    read = pb.AppendInput.FromString(with_header(bytes(made.joined()), b"@x", b"y")).records[0]
    assert [(h.name, h.value) for h in read.headers] == [*pairs, (b"@x", b"y")]
    assert read.body == body


def test_parts_of_records_are_the_same_bytes() -> None:
    made = encode(pa.array([b"%d" % i for i in range(100)], pa.binary()))
    whole = bytes(made.joined())
    assert bytes(made.part(0, 40).joined()) + bytes(made.part(40, 100).joined()) == whole
    assert bytes(made.part(10, 60).part(20, 30).joined()) == bytes(made.part(30, 40).joined())


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_frames_come_back_whole_in_any_pieces(compression: str) -> None:
    bodies = [b"", b"short", b"long" * 1000, b"x" * 100_000]
    data = b"".join(to_frame(body, compression) for body in bodies)
    for size in (1, 3, 4, 5, 1000, len(data)):
        deframer, found = Deframer(), []
        for low in range(0, len(data), size):
            found += [frame.body for frame in deframer.feed(data[low : low + size])]
        assert found == bodies
        assert deframer.complete


def test_the_last_frame_of_a_failed_session_says_why() -> None:
    body = (412).to_bytes(2, "big") + b'{"seq_num_mismatch": 7}'
    frame = next(Deframer().feed((len(body) + 1).to_bytes(3, "big") + b"\x80" + body))
    assert frame.terminal
    assert failure(frame) == (412, {"seq_num_mismatch": 7})
    broken = Frame((500).to_bytes(2, "big") + b"<html>", True)
    assert failure(broken).answer == {"message": "<html>"}


def test_an_ack_tells_both_ends_also_from_the_start_of_a_stream() -> None:
    for first, end in ((0, 4), (5, 1005), (2**40, 2**40 + 1)):
        position = pb.StreamPosition
        ack = pb.AppendAck(
            start=position(seq_num=first, timestamp=9), end=position(seq_num=end), tail=position(seq_num=end)
        )
        assert append_ack(ack.SerializeToString()) == (first, end)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x0a", "cut off"),
        (b"\x0a\x05abc", "cut off"),
        (b"\x1a\x01x", "field 26"),
        (_read_batch([(1, 2, [], b"x")])[:-3] + b"\x2a\x01x", "does not know"),
        (b"\x0a\x0b\x08" + b"\xff" * 10, "64 bits"),
    ],
)
def test_what_is_no_batch_of_records_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        read_batch(data)


def _record(*fields: bytes) -> bytes:
    """One record of a batch, from the bytes of its fields."""
    body = b"".join(fields)
    return b"\x0a" + varint(len(body)) + body


def _header(name: bytes, value: bytes, size: int | None = None) -> bytes:
    inner = b"\x0a" + varint(len(name)) + name + b"\x12" + varint(len(value)) + value
    return b"\x1a" + varint(len(inner) if size is None else size) + inner


ONE = b"\x08\x01"
LIES = {
    "a header that is longer than its record": _record(ONE, _header(b"n", b"v", 100_000), b"\x22\x01x"),
    "a header that is shorter than its fields": _record(ONE, _header(b"n", b"v", 4), b"\x22\x01x"),
    "a header that takes the body for its own": _record(ONE, _header(b"n", b"v", 9), b"\x22\x01x"),
    "a name that is longer than its header": _record(ONE, b"\x1a\x06\x0a" + varint(100_000) + b"n"),
    "a value that is longer than its header": _record(ONE, b"\x1a\x07\x0a\x01n\x12" + varint(100_000)),
    "a value of nearly 64 bits": _record(ONE, b"\x1a\x0d\x0a\x01n\x12" + varint(2**62 - 5)),
    "a value of 64 bits": _record(ONE, b"\x1a\x0e\x0a\x01n\x12" + varint(2**64 - 3)),
    "a header of 64 bits, which leads backwards": _record(ONE, b"\x1a" + varint(2**64 - 11)),
    "a body that is longer than its record": _record(ONE, b"\x22" + varint(100_000) + b"x"),
    "a body of 64 bits": _record(ONE, b"\x22" + varint(2**64 - 12)),
    "a number that goes on behind its record": _record(b"\x08\xff"),
    "a position of 64 bits": _record(b"\x08" + varint(2**63), b"\x22\x01x"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_length_that_does_not_fit_its_frame_is_refused(lie: str) -> None:
    good = _record(ONE, _header(b"n", b"v"), b"\x22\x01x")
    for data in (LIES[lie], good + LIES[lie], LIES[lie] + good * 20, good + LIES[lie] + b"\x12\x02\x08\x05"):
        with pytest.raises(ProtocolError, match=r"S2 sent|lengths do not fit"):
            read_batch(data)


def test_a_moment_that_has_no_place_in_a_column_is_the_last_one_that_has() -> None:
    moments = [5, _LAST, _LAST + 1, 2**63 - 1, 2**63, 2**64 - 1]
    found = read_batch(_read_batch([(i, moment, [], b"x") for i, moment in enumerate(moments)]))
    assert found.timestamp.tolist() == [5] + [_LAST] * 5
    assert (found.timestamp * 1000 > 0).all()


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\0\0\0\0\0",  # no flags
        b"\xff\xff\xff\0" + b"x" * 100,
        b"\0\0\x06\x40abcde",
        b"\0\0\x06\x20abcde",
        b"\0\0\x15\x40" + gzip.compress(b"short", mtime=0)[:20],
    ],
)
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="S2 sent"):
        list(Deframer().feed(data))


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_a_frame_that_would_fill_the_memory_is_refused(compression: str) -> None:
    with pytest.raises(ProtocolError, match=r"S2 sent .* bytes that are no"):
        list(Deframer().feed(to_frame(bytes(64 << 20), compression)))


@pytest.mark.parametrize(
    "data",
    [b"\x0a", b"\x0a\x05\x08", b"\x0a\x02\x08\xff\x01", b"\x08\x05", b"\xff" * 40, b"\x0a\x02\x08\x05\x12\x02\x08\x04"],
)
def test_what_is_no_ack_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"S2 answered an append with|S2 says that"):
        append_ack(data)


def test_commands_and_stamps_are_told_apart_from_rows() -> None:
    records = read_batch(
        _read_batch([(0, 1, [(b"", b"fence")], b"t"), (1, 1, [(b"a", b"b"), (b"@p", b"s")], b"x"), (2, 1, [], b"y")])
    )
    assert records.commands().tolist() == [True, False, False]
    left = records.where(~records.commands()).without(b"@p")
    assert left.headers().to_pylist() == [[{"key": "a", "value": b"b"}], None]
    assert left.without(b"a").headers().to_pylist() == [None, None]
