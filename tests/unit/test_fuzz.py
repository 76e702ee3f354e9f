"""Every codec against bytes that lie: what it makes of them is valid, or it raises ProtocolError. Nothing else.

Valid answers are changed at random: bytes flipped, lengths made wrong, parts left out, doubled and mixed. The same ones
on every run: SEED=7 tries others, and FUZZ=100 a hundred times as many.
"""

import base64
import json
import os
import random
import re
import struct
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from s2_sdk._generated.s2.v1 import s2_pb2 as pb

from penstock.clients.iggy import wire as iggy
from penstock.clients.jetstream import acks, api, engines
from penstock.clients.jetstream.calls import Calls
from penstock.clients.nats import headers, wire
from penstock.clients.s2 import calls as s2_calls
from penstock.clients.s2.appends import append_ack
from penstock.clients.s2.frames import Deframer, failure, to_frame
from penstock.clients.s2.http import Connection, Request
from penstock.clients.s2.records import read_batch
from penstock.clients.s2.varints import varint
from penstock.connectors.jetstream.options import JetStreamOptions
from penstock.connectors.s2.options import S2Options
from penstock.errors import Disconnected, OptionError, PenstockError, ProtocolError
from penstock.testing.iggy_double import Message, _batch

SEED, TIMES = int(os.environ.get("SEED", "1")), int(os.environ.get("FUZZ", "1"))
SID, NS = 7, 1_763_208_000_123_456_789
Rng = random.Random


class Codec(NamedTuple):
    """Valid inputs, what reads them, how many changed ones it gets, and what it may raise."""

    valid: list[bytes]
    read: Callable[[bytes, Rng], object]
    inputs: int
    raises: tuple[type[PenstockError], ...] = (ProtocolError,)


# Changing bytes

NUMBERS = [0, 1, 2, 9, 127, 128, 255, 256, 65_535, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]
DIGITS = [b"", b"-1", b"+1", b"1_0", b"0x10", b" 1", b"1e3", b"00", b"9" * 9, b"9" * 10, b"9" * 30, "²".encode()]
WORDS = [b"\r", b"\n", b"\r\n", b"\r\n\r\n", b" ", b".", b":", b"\0", b"\xff", b"{", b"]", b'"', b"null", b"-", b"0"]


def _flip(rng: Rng, data: bytes, other: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes([rng.choice((rng.randrange(256), data[at] ^ 1 << rng.randrange(8)))]) + data[at + 1 :]


def _lie_in_digits(rng: Rng, data: bytes, other: bytes) -> bytes:
    places = [match.span() for match in re.finditer(rb"\d+", data)]
    if not places:
        return _lie_in_bytes(rng, data, other)
    low, high = rng.choice(places)
    near = b"%d" % max(0, int(data[low : min(high, low + 20)]) + rng.choice((-2, -1, 1, 2, 10, 1000)))
    return data[:low] + rng.choice((near, near, b"%d" % rng.choice(NUMBERS), rng.choice(DIGITS))) + data[high:]


def _lie_in_bytes(rng: Rng, data: bytes, other: bytes) -> bytes:
    at, width = rng.randrange(len(data)), rng.choice((1, 2, 3, 4, 8))
    number = rng.choice((rng.choice(NUMBERS), len(data), len(data) - at, rng.randrange(1 << 20)))
    lie = (number % (1 << 8 * width)).to_bytes(width, rng.choice(("little", "big")))
    return data[:at] + lie + data[at + width :]


def _lie_in_varint(rng: Rng, data: bytes, other: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + varint(rng.choice((rng.choice(NUMBERS), rng.randrange(1 << 20)))) + data[at + 1 :]


def _word(rng: Rng, data: bytes, other: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + rng.choice(WORDS) + data[at + rng.choice((0, 1)) :]


def _cut(rng: Rng, data: bytes, other: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


def _span(rng: Rng, data: bytes) -> tuple[int, int]:
    low = rng.randrange(len(data))
    return low, min(len(data), low + rng.choice((1, 2, 5, 20, 200)))


def _leave_out(rng: Rng, data: bytes, other: bytes) -> bytes:
    low, high = _span(rng, data)
    return data[:low] + data[high:]


def _double(rng: Rng, data: bytes, other: bytes) -> bytes:
    low, high = _span(rng, data)
    return data[:high] + data[low:high] + data[high:]


def _mix(rng: Rng, data: bytes, other: bytes) -> bytes:
    return data[: rng.randrange(len(data))] + other[rng.randrange(len(other) + 1) :]


CHANGES = [
    _flip, _flip, _lie_in_digits, _lie_in_digits, _lie_in_bytes, _lie_in_varint, _word, _cut, _leave_out, _double, _mix,
]  # fmt: skip


def changed(rng: Rng, valid: list[bytes]) -> bytes:
    data = rng.choice(valid)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if data:
            data = rng.choice(CHANGES)(rng, data, rng.choice(valid))
    return data


def check(*arrays: pa.Array) -> None:
    """No value lies outside of its buffer. Text is looked at as bytes: names are taken as they come, UTF-8 or not."""
    for array in arrays:
        array.view(_as_bytes(array.type)).validate(full=True)


def _as_bytes(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_as_bytes(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_bytes(field.type)) for field in kind])
    return kind


# NATS


def _block(*lines: bytes, status: bytes = b"") -> bytes:
    return b"NATS/1.0" + status + b"\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def _message(subject: bytes, reply: bytes, body: bytes, block: bytes = b"", sid: int = SID) -> bytes:
    words = [b"HMSG" if block else b"MSG", subject, b"%d" % sid, *([reply] if reply else [])]
    words += [b"%d" % len(block), b"%d" % (len(block) + len(body))] if block else [b"%d" % len(body)]
    return b" ".join(words) + b"\r\n" + block + body + b"\r\n"


BLOCKS = [
    _block(),
    _block(b"A: 1"),
    _block(b"A: 1", b"A:  2", b"Empty:", b"no colon", b": no key", b"C: a: b \xff"),
    _block(status=b" 404 No Messages"),
    _block(b"Nats-Pending-Messages: 5", status=b" 408 Request Timeout"),
    b"NATS/1.0\r\nA: 1",
]
ACK = b"$JS.ACK.ORDERS.c0nsumer.1.%d.77.%d.10"
DELIVERIES = [
    b"".join(_message(b"orders.%d" % i, ACK % (i + 1, NS + i), b"x" * i) for i in range(6)),
    b"".join(_message(b"o", ACK % (i + 9, NS), b"hi", BLOCKS[i % 6]) for i in range(6)),
    b"".join(_message(b"o", b"$JS.ACK.hub.hash." + ACK[8:] % (i + 1, NS), b"", BLOCKS[i % 2]) for i in range(4)),
    _message(b"o", ACK % (5, NS), b"x") + _message(b"_INBOX.a.7.1", b"", b"", BLOCKS[3]) + b"PING\r\n",
    _message(b"o", ACK % (5, NS), b"\r\nMSG a 7 b 3\r\nabc\r\n") + _message(b"o", ACK % (6, NS), b"y", sid=17),
]
FRAMES = [
    *DELIVERIES,
    b'INFO {"version":"2.15.1"}\r\n' + _message(b"a", b"", b"hello") + b"PONG\r\n+OK\r\n-ERR 'x'\r\n",
    b"MSG a 7  2\r\nhi\r\n"
    + _message(b"a.b", b"", b"hi", sid=1)
    + _message(b"a", b"r.1", b"hi", BLOCKS[1])
    + _message(b"a", b"", b""),
]


def _read_frames(data: bytes, rng: Rng) -> None:
    kinds: list[wire.Kind] = ["delivery", "direct", "reply", "any"]
    kind, vectors = rng.choice(kinds), rng.random() < 0.7
    buffer = bytearray(data + b"\r\nMSG old 7 old.reply 3\r\nold\r\n")  # longer than what came, as the client has it
    try:
        expected, used = wire._frames(data, len(data))
    except ProtocolError:
        expected, used = None, 0
    found = wire.scan(buffer, len(data), sid=rng.choice((SID, SID, SID, 0)), kind=kind, vectors=vectors)
    rows = 0
    if found.messages is not None:
        rows = len(found.messages)
        check(found.messages.values, *([] if found.messages.blocks is None else [found.messages.blocks]))
        check(headers.headers_column(found.messages.blocks, rows))
    if expected is not None:
        assert (rows + len(found.others), found.used) == (len(expected), used), "the exact parser finds others"


def _read_blocks(data: bytes, rng: Rng) -> None:
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 1, 3))))
    blocks = [data[low:high] for low, high in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    if rng.random() < 0.5:
        blocks = [changed(rng, BLOCKS) for _ in range(3)]
    column = headers.headers_column(pa.array(blocks, pa.binary()), len(blocks))
    check(column)
    for row, block in zip(column, blocks, strict=True):
        values = [] if not row.is_valid else [field["value"].as_py() for field in row.values]
        assert values == [value for _, value in headers.fields(block)[2]], block


INFO = [
    b'{"server_id":"N","version":"2.15.1","max_payload":1048576,"nonce":"abc","headers":true,"connect_urls":["a:1"]}',
    b'{"version":"2.12.0-dev","tls_required":true}',
]


# JetStream


def _read_deliveries(data: bytes, rng: Rng) -> None:
    found = wire.scan(data, len(data), sid=SID, vectors=rng.random() < 0.7).messages
    if found is not None:
        rows = engines.consumer_rows(found)
        check(*rows[:4], rows.headers())


def _direct(sequence: int, own: bytes, stream: bytes = b"ORDERS") -> bytes:
    fields = b"Nats-Stream: %s\r\nNats-Subject: orders.%d\r\nNats-Sequence: %d\r\n" % (stream, sequence, sequence)
    fields += b"Nats-Time-Stamp: 2025-11-15T12:00:00.123456789Z\r\nNats-Num-Pending: 5\r\nNats-Last-Sequence: 0\r\n\r\n"
    return _message(b"_INBOX.a.7.1", b"", b"body", own[:-2] + fields)


EOB = _message(b"_INBOX.a.7.1", b"", b"", _block(b"Nats-Num-Pending: 0", b"Nats-Last-Sequence: 3", status=b" 204 EOB"))
DIRECT = [
    b"".join(_direct(i + 1, BLOCKS[0]) for i in range(4)) + EOB,
    b"".join(_direct(i + 1, BLOCKS[i]) for i in range(6)),
    _direct(1, BLOCKS[1]) + _direct(2, BLOCKS[5]) + _direct(3, BLOCKS[1], b"MIRROR") + EOB,
    EOB,
]


def _read_direct(data: bytes, rng: Rng) -> None:
    found = wire.scan(data, len(data), sid=SID, kind="direct", vectors=rng.random() < 0.7).messages
    if found is None:
        return
    rows, _, end = engines.direct_rows(found, "ORDERS")
    if end is not None:
        headers.fields(end)
    if rows is not None:
        check(*rows[:4], rows.headers())


def _answers(*bodies: bytes) -> bytes:
    return b"".join(_message(b"_INBOX.a.7.%d" % i, b"", body) for i, body in enumerate(bodies))


PUBACKS = [
    _answers(*(b'{"stream":"ORDERS", "seq":%d}' % i for i in range(10, 16))),
    _answers(b'{"stream":"S","seq":1}', b'{"stream":"S","seq":1,"duplicate":true}', b'{"stream":"T","seq":4}'),
    _answers(
        b'{"stream":"S","seq":1}', b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 5"}}'
    ),
]


def _read_acks(data: bytes, rng: Rng) -> None:
    numbers = np.arange(100, 120)
    acks.in_a_row(data, b"_INBOX.a.7.", numbers)
    found = wire.scan(data, len(data), sid=SID, kind="reply", vectors=rng.random() < 0.7)
    if found.messages is not None:
        assert set(acks.read(found.messages, numbers).rows.tolist()) <= set(numbers.tolist())
    for frame in found.others:
        if frame.subject.startswith(b"_INBOX.a.7."):
            acks.place(frame.subject, b"_INBOX.a.7.", 20)


STREAM = {
    "config": {"name": "ORDERS", "subjects": ["orders.>"], "retention": "limits", "max_msgs_per_subject": -1,
               "duplicate_window": 120_000_000_000, "num_replicas": 1, "storage": "file"},
    "created": "2026-11-15T12:00:00.123456789Z",
    "state": {"messages": 90, "bytes": 9000, "first_seq": 11, "last_seq": 110, "last_ts": "2026-11-15T12:34:56.789Z"},
}  # fmt: skip
STORED = {"seq": 5, "time": "2026-11-15T12:34:56.789Z", "data": base64.b64encode(b"body").decode()}
JSON = [
    json.dumps(answer).encode()
    for answer in (
        STREAM, {"message": STORED}, {"streams": ["A", "B"], "total": 2}, {"name": "c", "num_pending": 7, "config": {}},
        {"error": {"code": 404, "err_code": 10059, "description": "stream not found"}}, {"stream": "S", "seq": 5},
        {"consumers": [{"name": "d", "config": {"durable_name": "d"}}], "total": 1},
    )
]  # fmt: skip
DIRECT_ANSWERS = [wire.parse(frame, 0, len(frame))[0] for frame in (_direct(1, BLOCKS[1]), EOB)]


class Answering:
    """A connection that gives the same answer to every question."""

    def __init__(self, answer: wire.Frame):
        self.answer = answer

    def request(self, subject: str, body: bytes = b"") -> wire.Frame:
        return self.answer

    def requests(self, asked: Iterable[tuple[str, bytes]]) -> list[wire.Frame]:
        return [self.answer for _ in asked]

    def version(self) -> tuple[int, int]:
        return 2, 15

    def ask(self, subject: str) -> None:
        pass


JETSTREAM = JetStreamOptions.parse("jetstream", {"stream": "ORDERS"})
ASK: list[Callable[[Calls], object]] = [
    lambda calls: calls.streams(["ORDERS"]),
    lambda calls: calls.first_from("ORDERS", 1, ("a", "b")),
    lambda calls: calls.last_of("ORDERS", "a"),
    lambda calls: calls.names(),
    lambda calls: calls.consumers("ORDERS"),
    lambda calls: calls.create("ORDERS", b""),
    lambda calls: calls.counts("ORDERS", [b"", b""]),
    lambda calls: calls.publish("a", b""),
    lambda calls: calls.times({"ORDERS": 5}),
    lambda calls: api.PullLimits.of(calls.create("ORDERS", b"")["config"], 100, 1 << 20, 1.0),
]


def _ask_jetstream(data: bytes, rng: Rng) -> None:
    connection: Any = Answering(wire.Frame(b"MSG", payload=data))
    rng.choice(ASK)(Calls(connection, JETSTREAM))


def _ask_direct(data: bytes, rng: Rng) -> None:
    connection: Any = Answering(wire.Frame(b"HMSG", headers=data))
    if rng.random() < 0.5:
        Calls(connection, JETSTREAM).direct_counts("ORDERS", ">", [1])
    else:
        engines.pull_ended(connection.answer, 5)


# S2


def _batch_of(count: int, named: int, tail: int = 0) -> bytes:
    batch = pb.ReadBatch(tail=pb.StreamPosition(seq_num=tail, timestamp=5) if tail else None)
    for i in range(count):
        record = batch.records.add(seq_num=1000 + i, timestamp=1_763_208_000_123 + i, body=b"b" * (i * 60))
        for k in range(named):
            record.headers.add(name=b"name" * k, value=b"value%d" % i)
    return bytes(batch.SerializeToString())


RECORDS = [_batch_of(4, 0), _batch_of(5, 2), _batch_of(3, 1, 1003), _batch_of(1, 3), _batch_of(0, 0, 9)]
APPEND_ACK = pb.AppendAck(
    start=pb.StreamPosition(seq_num=300, timestamp=5),
    end=pb.StreamPosition(seq_num=305, timestamp=6),
    tail=pb.StreamPosition(seq_num=305, timestamp=6),
).SerializeToString()
FAILURE = b"\x01\x9c" + b'{"code":"stream_not_found","message":"no"}'
SESSIONS = [
    b"".join(to_frame(batch) for batch in RECORDS),
    to_frame(_batch_of(30, 1), "gzip") + to_frame(_batch_of(30, 1), "zstd"),
    to_frame(RECORDS[1]) + (len(FAILURE) + 1).to_bytes(3, "big") + b"\x80" + FAILURE,
]


def _read_session(data: bytes, rng: Rng) -> None:
    frames, at = Deframer(), 0
    while at < len(data):
        size = rng.choice((1, 5, 1000))
        for frame in frames.feed(data[at : at + size]):
            if frame.terminal:
                assert isinstance(failure(frame).answer, dict)
            else:
                check(read_batch(frame.body).value)
        at += size


def _read_records(data: bytes, rng: Rng) -> None:
    found = read_batch(data)
    check(found.value, found.header_name, found.header_value, found.headers())
    assert (found.sequence >= 0).all()
    assert (found.timestamp * 1000 >= 0).all()
    found.where(~found.commands()).without(b"name")


def _read_append_ack(data: bytes, rng: Rng) -> None:
    first, end = append_ack(data)
    assert 0 <= first <= end < 2**63


def _http(body: bytes, *lines: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 " + status + b"\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body


CHUNKED = b"transfer-encoding: chunked"
HTTP = [
    _http(b"hello", b"content-length: 5", b"content-type: text/plain"),
    _http(b"5;x=y\r\nhello\r\n10\r\n0123456789abcdef\r\n0\r\nTrailer: z\r\n\r\n", CHUNKED),
    _http(b"", status=b"204 No Content"),
    _http(b"", b"link: x", status=b"103 Early Hints") * 3 + _http(b"until the end"),
    _http(b'{"code":"x"}', b"content-length: 12", b"connection: close", status=b"404 Not Found"),
]


class Said:
    """A socket on which a server has said something, in pieces, and hung up."""

    def __init__(self, data: bytes, rng: Rng):
        self.data, self.rng = data, rng

    def recv(self, size: int, flags: int = 0) -> bytes:
        size = min(size, self.rng.choice((1, 7, 1 << 16)))
        piece, self.data = self.data[:size], self.data[size:]
        return piece

    def settimeout(self, seconds: float) -> None: ...
    def setsockopt(self, *what: int) -> None: ...
    def sendall(self, data: bytes) -> None: ...
    def close(self) -> None: ...


class Told(Connection):
    """A connection over such a socket."""

    def __init__(self, data: bytes, rng: Rng):
        self._said = Said(data, rng)
        super().__init__("http://127.0.0.1", {}, 1, 1)

    def _dial(self, *how: object) -> Any:
        return self._said


def _read_http(data: bytes, rng: Rng) -> None:
    connection = Told(data, rng)
    if rng.random() < 0.5:
        connection.ask([Request("GET", "/")] * rng.choice((1, 2)))
    else:
        response, body = connection.stream(Request("GET", "/"))
        assert response.status == 200 or next(body, None) is None
        for _ in body:
            pass
    connection.alive()


def _json_answer(answer: object) -> bytes:
    body = json.dumps(answer).encode()
    return _http(body, b"content-length: %d" % len(body))


S2_ANSWERS = [
    _json_answer({"streams": [{"name": "s", "created_at": "2026-11-15T12:00:00Z"}], "has_more": False}) * 2,
    _json_answer({"tail": {"seq_num": 5, "timestamp": 7}}) * 2,
    _json_answer({"tail": {"seq_num": 5, "timestamp": 7}}) + _http(RECORDS[0], b"content-length: %d" % len(RECORDS[0])),
    _http(SESSIONS[0], b"content-length: %d" % len(SESSIONS[0])),
]
S2_OPTIONS = S2Options.parse("s2", {"basin": "some-basin", "endpoint": "http://127.0.0.1"})
ASK_S2: list[Callable[[s2_calls.Calls], object]] = [
    lambda calls: calls.streams(""),
    lambda calls: calls.named(["s"]),
    lambda calls: calls.tails(["s"]),
    lambda calls: calls.last(["s"]),
    lambda calls: list(calls.read("s", 0, 10)),
    lambda calls: calls.firsts({"s": 5}),
    lambda calls: calls.sizes([("s", 0)], 3),
]


class Asking(s2_calls.Calls):
    """Questions over one connection, and no other."""

    def __init__(self, connection: Connection):
        super().__init__(S2_OPTIONS)
        self._connection = connection

    def open(self) -> Connection:
        if self._connection is None:
            raise Disconnected("this was the only one")
        return self._connection

    def _no_basin(self) -> OptionError:
        return OptionError("asks elsewhere")


def _ask_s2(data: bytes, rng: Rng) -> None:
    rng.choice(ASK_S2)(Asking(Told(data, rng)))


# Iggy


def _tlv(*pairs: tuple[bytes, int, bytes]) -> bytes:
    return b"".join(struct.pack("<BI", 2, len(k)) + k + struct.pack("<BI", n, len(v)) + v for k, n, v in pairs)


TLVS = [_tlv((b"key", 2, b"value")), _tlv((b"a", 1, b"x"), (b"b", 12, b"12345678")), b""]


def _poll(count: int, *sizes: int) -> bytes:
    made = [Message(i + 1, b"p" * (i + 1), TLVS[i % 3], 1000 + i, i, 5000) for i in range(count)]
    out, at = struct.pack("<IQI", 0, 9, count), 0
    for size in sizes:
        out += _batch(0, made[at : at + size])
        at += size
    return out


POLLS = [_poll(0), _poll(1, 1), _poll(7, 3, 4), _poll(6, 1, 1, 4)]


def _read_poll(data: bytes, rng: Rng) -> None:
    found = iggy.read_poll(data)
    check(found.value, found.headers, iggy.identities(found.high, found.low))
    check(iggy.headers(found.headers, typed=rng.random() < 0.5))
    assert (found.offset >= 0).all()
    assert (found.origin >= 0).all()


def _read_tlvs(data: bytes, rng: Rng) -> None:
    rows = [TLVS[0], data, TLVS[1], changed(rng, TLVS), TLVS[0]]
    found = iggy.headers(pa.array(rows, pa.binary()), typed=True)
    check(found)
    assert [len(found[i].values) for i in (0, 2, 4)] == [1, 2, 1], "others keep theirs"


CODECS = {
    "nats frames": Codec(FRAMES, _read_frames, 12_000),
    "nats headers": Codec(BLOCKS, _read_blocks, 8_000),
    "nats info": Codec(INFO, lambda data, rng: wire.info(data), 6_000),
    "jetstream deliveries": Codec(DELIVERIES, _read_deliveries, 5_000),
    "jetstream direct": Codec(DIRECT, _read_direct, 4_000),
    "jetstream acks": Codec(PUBACKS, _read_acks, 5_000),
    "jetstream answers": Codec(JSON, _ask_jetstream, 10_000, (PenstockError,)),
    "jetstream counts": Codec([f.headers for f in DIRECT_ANSWERS if f], _ask_direct, 6_000, (PenstockError,)),
    "s2 session": Codec(SESSIONS, _read_session, 2_000),
    "s2 records": Codec(RECORDS, _read_records, 8_000),
    "s2 append acks": Codec([APPEND_ACK], _read_append_ack, 8_000),
    "http": Codec(HTTP, _read_http, 14_000, (Disconnected,)),
    "s2 answers": Codec(S2_ANSWERS, _ask_s2, 4_000, (PenstockError,)),
    "iggy polls": Codec(POLLS, _read_poll, 5_000),
    "iggy headers": Codec(TLVS[:2], _read_tlvs, 4_000),
}


def test_there_are_a_hundred_thousand_inputs_and_all_are_valid_before_they_are_changed() -> None:
    assert sum(codec.inputs for codec in CODECS.values()) >= 100_000
    for codec in CODECS.values():
        for data in codec.valid:
            # Which question an answer is for goes by chance, and it may fit none.
            with suppress(PenstockError) if codec.raises == (PenstockError,) else nullcontext():
                codec.read(data, Rng(SEED))


@pytest.mark.parametrize("name", CODECS)
def test_bytes_that_lie_are_refused_or_read_and_nothing_else_happens(name: str) -> None:
    codec = CODECS[name]
    refused = 0
    for number in range(codec.inputs * TIMES):
        rng = Rng(f"{SEED} {name} {number}")
        data = changed(rng, codec.valid)
        try:
            codec.read(data, rng)
        except codec.raises:
            refused += 1
        except Exception as error:
            error.add_note(f"SEED={SEED}, input {number} of {name}: {data!r}")
            raise
    assert refused < codec.inputs * TIMES, "nothing was read at all"
