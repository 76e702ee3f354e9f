import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import penstock
from penstock.arrow.buffers import decimals, offsets, segments
from penstock.arrow.types import HEADERS
from penstock.clients.nats.headers import all_fields, fields, headers_column
from penstock.clients.nats.wire import LARGE, LINE, Frame, Kind, Messages, Scan, info, parse, scan
from penstock.errors import ProtocolError

SID = 7
NO_MESSAGES = b"NATS/1.0 404 No Messages\r\n\r\n"

both_ways = pytest.mark.parametrize("vectors", [True, False])


def block(*lines: tuple[bytes, bytes], status: bytes = b"") -> bytes:
    return b"NATS/1.0" + status + b"\r\n" + b"".join(b"%s:%s\r\n" % line for line in lines) + b"\r\n"


def msg(payload: bytes, subject: bytes = b"a.b", sid: int = SID, reply: bytes = b"") -> bytes:
    words = [b"MSG", subject, b"%d" % sid, *([reply] if reply else []), b"%d" % len(payload)]
    return b" ".join(words) + b"\r\n" + payload + b"\r\n"


def hmsg(headers: bytes, payload: bytes = b"", subject: bytes = b"a.b", sid: int = SID, reply: bytes = b"") -> bytes:
    sizes = [b"%d" % len(headers), b"%d" % (len(headers) + len(payload))]
    words = [b"HMSG", subject, b"%d" % sid, *([reply] if reply else []), *sizes]
    return b" ".join(words) + b"\r\n" + headers + payload + b"\r\n"


# Random traffic, as a server may send it

PAYLOADS = st.binary(max_size=60) | st.lists(
    st.sampled_from(
        [
            b"\r\nMSG ", b"\r\nHMSG a 1 b 3 5\r\n", b"\nMSG a 7 b 0\r\n\r\n", b"MSG a 7 b 2\r\nhi\r\n", b"\n", b"\r\n",
            b"\r", b"PING\r\n", b"\r\nPING\r\n", b"-ERR 'x'\r\n", b"12", b" ", b"MSG ", b"HMSG", b"H", b"M", b"\0\xff",
        ]
    ),
    max_size=6,
).map(b"".join)  # fmt: skip
TOKENS = st.sampled_from([b"a", b"foo", b"MSG", b"H", b"7", b"x1", b"$JS", b"\xc3\xa9"])
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=4).map(b".".join)
SIDS = st.sampled_from([SID, SID, SID, 1, 77, 123456789])
KEYS = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":"), min_size=1, max_size=8)
VALUES = st.sampled_from(
    [b"", b" ", b"v", b"  two spaces", b"\ttab", b"a:b", b":", b"a b ", b"\xff\xfe", b"MSG a 7 b 0"]
)
LINES = st.tuples(KEYS.map(str.encode), VALUES | VALUES.map(lambda v: b" " + v))
BLOCKS = st.lists(LINES, max_size=5).map(lambda lines: block(*lines))
STATUSES = st.sampled_from(
    [
        NO_MESSAGES,
        block(status=b" 100 Idle Heartbeat"),
        block((b"Nats-Pending-Messages", b" 0"), status=b" 408 Timeout: 5s"),
    ]
)
REPLIES = SUBJECTS.map(lambda s: b"$JS.ACK." + s)
FRAMES = st.one_of(
    st.builds(lambda p, s, i, r: msg(p, s, i, r), PAYLOADS, SUBJECTS, SIDS, REPLIES),
    st.builds(lambda p, s, i: msg(p, s, i), PAYLOADS, SUBJECTS, SIDS),
    st.builds(lambda h, p, s, i, r: hmsg(h, p, s, i, r), BLOCKS, PAYLOADS, SUBJECTS, SIDS, REPLIES),
    st.builds(lambda h, p, s, i: hmsg(h, p, s, i), BLOCKS, PAYLOADS, SUBJECTS, SIDS),
    st.builds(lambda h, s, i: hmsg(h, b"", s, i), STATUSES, SUBJECTS, SIDS),
    st.sampled_from(
        [b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'Slow Consumer'\r\n", b'INFO {"version":"2.14.1"}\r\n']
    ),
)
TRAFFIC = st.lists(FRAMES, max_size=12)
# What the fast path was made for: nothing but rows. Mixed traffic hardly ever takes it.
PLAIN = st.lists(
    st.builds(lambda p, s, r: msg(p, s, SID, r), st.binary(max_size=30), SUBJECTS, REPLIES)
    | st.builds(lambda h, p, s, r: hmsg(h, p, s, SID, r), BLOCKS, st.binary(max_size=30), SUBJECTS, REPLIES),
    max_size=12,
)


# Rows with something else before and after them: the fast path must notice where it ends.
MIXED = st.tuples(st.lists(FRAMES, max_size=2), PLAIN, st.lists(FRAMES, max_size=2)).map(
    lambda parts: parts[0] + parts[1] + parts[2]
)
ANYTHING = TRAFFIC | PLAIN | MIXED


class Row(NamedTuple):
    subject: bytes
    last_word: bytes  # the reply subject, or where there is none, the subscription
    headers: bytes
    payload: bytes


class Found(NamedTuple):
    """What came out, comparable: rows in their order, and the rest in its order, messages apart from the others."""

    rows: list[Row]
    messages: list[Frame]
    control: list[Frame]

    def __add__(self, other: "Found") -> "Found":  # type: ignore[override]
        return Found(*(a + b for a, b in zip(self, other, strict=True)))


WANTED: dict[Kind, Callable[[Frame], bool]] = {
    "delivery": lambda frame: bool(frame.reply),
    "direct": lambda frame: frame.kind == b"HMSG" and not frame.reply,
    "reply": lambda frame: frame.kind == b"MSG" and not frame.reply,
    "any": lambda frame: True,
}


def exactly(buffer: bytes, *, sid: int = SID, kind: Kind = "delivery") -> tuple[Found, int]:
    """The truth, frame by frame."""
    found, at = Found([], [], []), 0
    while True:
        frame, after = parse(buffer, at, len(buffer))
        if frame is None:
            return found, at
        at = after
        if frame.kind not in (b"MSG", b"HMSG"):
            found.control.append(frame)
        elif (frame.sid == b"%d" % sid) != (kind == "any") and WANTED[kind](frame):
            last_word = frame.reply or frame.sid
            found.rows.append(Row(frame.subject, last_word, frame.headers, frame.payload))
        else:
            found.messages.append(frame)


def rows_of(messages: Messages | None) -> list[Row]:
    if messages is None:
        return []
    lines = messages.lines.to_pybytes()
    blocks = messages.blocks.to_pylist() if messages.blocks is not None else [b""] * len(messages)
    return [
        Row(lines[a:b], lines[:c].rsplit(b" ", 1)[1], headers, payload)
        for a, b, c, headers, payload in zip(
            messages.subject_start.tolist(),
            messages.subject_end.tolist(),
            messages.reply_end.tolist(),
            blocks,
            messages.values.to_pylist(),
            strict=True,
        )
    ]


def found_of(result: Scan) -> Found:
    is_message = [f.kind in (b"MSG", b"HMSG") for f in result.others]
    return Found(
        rows_of(result.messages),
        [f for f, yes in zip(result.others, is_message, strict=True) if yes],
        [f for f, yes in zip(result.others, is_message, strict=True) if not yes],
    )


def dirty(buffer: bytes) -> bytearray:
    """A buffer as the client has it: longer than what was received, with old frames behind."""
    return bytearray(buffer + b"\r\nMSG old 7 old.reply 3\r\nold\r\nPING\r\n\r\n")


def scanned(buffer: bytes, *, vectors: bool, kind: Kind = "delivery", sid: int = SID) -> tuple[Found, int]:
    result = scan(dirty(buffer), len(buffer), sid=sid, kind=kind, vectors=vectors)
    return found_of(result), result.used


MODES: list[tuple[bool, Kind]] = [(vectors, kind) for vectors in (True, False) for kind in WANTED]


@given(ANYTHING)
@example([])
@example([msg(b"hi", reply=b"r.1")])
def test_a_scan_finds_what_the_exact_parser_finds(frames: list[bytes]) -> None:
    buffer = b"".join(frames)
    for vectors, kind in MODES:
        found, used = scanned(buffer, vectors=vectors, kind=kind)
        assert found == exactly(buffer, kind=kind)[0], f"{vectors=} {kind=}"
        assert used == len(buffer), f"{vectors=} {kind=}"


@given(ANYTHING, st.data())
def test_traffic_in_two_parts_gives_the_same(frames: list[bytes], data: st.DataObject) -> None:
    buffer = b"".join(frames)
    cut = data.draw(st.integers(0, len(buffer)))
    for vectors, kind in MODES:
        first, used = scanned(buffer[:cut], vectors=vectors, kind=kind)
        second, used_then = scanned(buffer[used:], vectors=vectors, kind=kind)
        assert used <= cut
        assert first + second == exactly(buffer, kind=kind)[0], f"{vectors=} {kind=}"
        assert used + used_then == len(buffer), f"{vectors=} {kind=}"


TOUR = [
    b"INFO {}\r\n",
    msg(b"first", reply=b"$JS.ACK.S.c"),
    msg(b"", reply=b"r"),
    hmsg(block((b"k", b" v"), (b"k", b""), (b"e", b": :")), b"body\r\nMSG a 7 b 0\r\n\r\n", reply=b"r.2"),
    b"PING\r\n",
    hmsg(block(status=b" 404 x")),
    msg(b"\r\nHMSG a 1 b 3 5\r\n", reply=b"r.3"),
    msg(b"other", sid=77, reply=b"r.4"),
    hmsg(block((b"N", b" 3")), b"direct"),
    b"+OK\r\n",
    msg(b"plain"),
    hmsg(block(), b"x", reply=b"r.5"),
    b"-ERR 'x'\r\n",
    b"MSG a.b 7  4\r\ntwo \r\n",  # as servers answer CONSUMER.RESET: the reply subject is there and empty
    b"HMSG a.b 7  12 14\r\nNATS/1.0\r\n\r\nhi\r\n",
    b"PONG\r\n",
]


# Nothing but rows, for the fast path.
ROWS_ONLY = [TOUR[1], TOUR[2], TOUR[6], hmsg(block((b"k", b" v")), b"x", reply=b"r.5")]


@both_ways
@pytest.mark.parametrize(
    ("frames", "kind", "rows"),
    [
        (TOUR, "delivery", 5),
        (TOUR, "direct", 3),
        (TOUR, "reply", 2),
        (TOUR, "any", 1),
        (ROWS_ONLY, "delivery", 4),
        ([TOUR[8]] * 3, "direct", 3),
        ([TOUR[10]] * 3, "reply", 3),
    ],
)
def test_a_cut_at_any_byte_changes_nothing(frames: list[bytes], kind: Kind, rows: int, vectors: bool) -> None:
    buffer = b"".join(frames)
    ends = [0, *np.cumsum([len(frame) for frame in frames]).tolist()]
    expected, _ = exactly(buffer, kind=kind)
    assert len(expected.rows) == rows
    for cut in range(len(buffer) + 1):
        first, used = scanned(buffer[:cut], vectors=vectors, kind=kind)
        second, rest = scanned(buffer[used:], vectors=vectors, kind=kind)
        assert first + second == expected, f"cut at {cut}: {buffer[:cut]!r}"
        # What is not used is looked at only when more arrives: an -ERR left in the buffer is never seen.
        assert (used, used + rest) == (max(e for e in ends if e <= cut), len(buffer)), f"cut at {cut}: {buffer[:cut]!r}"


@both_ways
@pytest.mark.parametrize("last", [b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'x'\r\n", b"INFO {}\r\n"])
def test_a_frame_after_the_last_message_is_seen(last: bytes, vectors: bool) -> None:
    buffer = msg(b"hi", reply=b"r.1") + last
    found, used = scanned(buffer, vectors=vectors)
    assert found == exactly(buffer)[0]
    assert used == len(buffer)


@both_ways
def test_only_messages_of_the_subscription_become_rows(vectors: bool) -> None:
    buffer = b"".join(msg(b"%d" % sid, sid=sid, reply=b"r.%d" % sid) for sid in (1, 7, 17, 70, 77, 7, 123456789))
    for sid in (1, 7, 17, 70, 77, 123456789, 99):
        found, _ = scanned(buffer, vectors=vectors, sid=sid)
        assert {row.payload for row in found.rows} == ({b"%d" % sid} - {b"99"})
        assert {frame.payload for frame in found.messages} == {b"1", b"7", b"17", b"70", b"77", b"123456789"} - {
            b"%d" % sid
        }


@both_ways
def test_direct_takes_answers_and_the_status_behind_them(vectors: bool) -> None:
    answer = block((b"Nats-Stream", b" S"), (b"Nats-Subject", b" s.1"))
    buffer = hmsg(answer, b"one") + hmsg(answer, b"two") + hmsg(block(status=b" 204 EOB"))
    result = scan(buffer, len(buffer), sid=SID, kind="direct", vectors=vectors)
    assert result.messages is not None
    assert result.messages.values.to_pylist() == [b"one", b"two", b""]
    assert result.messages.blocks.to_pylist()[-1] == b"NATS/1.0 204 EOB\r\n\r\n"
    assert result.used == len(buffer)


@both_ways
def test_rows_do_not_change_when_the_buffer_is_filled_again(vectors: bool) -> None:
    # The client reads into the same bytes while Spark still holds the columns.
    buffer = bytearray(b"".join(TOUR))
    result = scan(buffer, len(buffer), sid=SID, vectors=vectors)
    before = rows_of(result.messages)
    buffer[:] = b"\xee" * len(buffer)
    assert rows_of(result.messages) == before
    assert before == exactly(b"".join(TOUR))[0].rows


@both_ways
@pytest.mark.parametrize("size", [LARGE - 1, LARGE, 100_000, 1_000_000])
def test_large_frames(size: int, vectors: bool) -> None:
    # Binary, with newlines, carriage returns and M's wherever they fall.
    payload = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    frames = [
        msg(payload, reply=b"r.1"),
        hmsg(block((b"k", b" v")), payload[::-1], reply=b"r.2"),
        msg(b"small", reply=b"r.3"),
        msg(b"\nMSG a 7 b 3\r\n" * (size // 14), reply=b"r.4"),
    ]
    buffer = b"".join(frames)
    found, used = scanned(buffer, vectors=vectors)
    assert used == len(buffer)
    assert found == exactly(buffer)[0]
    assert [len(row.payload) for row in found.rows] == [size, size, 5, size // 14 * 14]
    # All but the last byte: the last frame waits.
    found, used = scanned(buffer[:-1], vectors=vectors)
    assert len(found.rows) == 3
    assert used == sum(map(len, frames[:3]))


@both_ways
@pytest.mark.parametrize("size", [0, 1, 9, 10, 99, 100, 999, 1000, 9_999, 10_000, 99_999])
def test_sizes_of_any_number_of_digits(size: int, vectors: bool) -> None:
    buffer = msg(b"x" * size, reply=b"r.1") + hmsg(block(), b"y" * size, reply=b"r.2") + msg(b"z", reply=b"r.3")
    found, used = scanned(buffer, vectors=vectors)
    assert [row.payload for row in found.rows] == [b"x" * size, b"y" * size, b"z"]
    assert used == len(buffer)


@both_ways
def test_a_size_of_nine_digits_is_waited_for(vectors: bool) -> None:
    buffer = msg(b"z", reply=b"r.3") + b"MSG a 7 r.4 999999999\r\n" + b"x" * 100
    found, used = scanned(buffer, vectors=vectors)
    assert len(found.rows) == 1
    assert used == len(msg(b"z", reply=b"r.3"))


# Broken traffic

BROKEN = [
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"GARBAGE\r\n",
    b"\r\n",
    b"MSG\r\n\r\n",
    b"MSG 5\r\nhello\r\n",
    b"MSG a 5\r\nhello\r\n",
    b"MSG a 7 r.1 x\r\n\r\n",
    b"MSG a 7 r.1 5x\r\nhello\r\n",
    b"HMSG a 7 5\r\nhello\r\n",
    b"MSGS a 7 r.1 2\r\nhi\r\n",
    b"HMSG a 7 r.1 x 5\r\nhello\r\n",
    b"MSG a 7 r.1 more 5\r\nhello\r\n",
    b"HMSG a 7 r.1 more 5 5\r\nhello\r\n",
    b"MSG\ta\t7\t5\r\nhello\r\n",
    b"MSG a 7 r.1 10000000005\r\nhello\r\n",
    b"HMSG a 7 r.1 10000000005 5\r\nhello\r\n",
    b"MSG a 7 r.1 5\nhello\r\n",
]


@pytest.mark.parametrize("buffer", BROKEN)
def test_the_exact_parser_refuses_a_broken_frame(buffer: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse(buffer, 0, len(buffer))


@both_ways
@pytest.mark.parametrize("before", [b"", msg(b"hi", reply=b"r.0")])
@pytest.mark.parametrize("buffer", BROKEN)
def test_a_scan_refuses_a_broken_frame(buffer: bytes, before: bytes, vectors: bool) -> None:
    with pytest.raises(ProtocolError):
        scanned(before + buffer, vectors=vectors)


CORRUPTING = [
    b"HMSG a 7 r.1 20 5\r\nhello\r\n",  # headers longer than the whole
    b"MSG a 7 r.1 -1\r\n\r\n",
]


def test_lengths_below_zero_are_refused() -> None:
    # In a process of its own: a value of negative length makes Arrow read and write outside of its memory.
    check = f"""
from penstock.clients.nats.wire import parse, scan
from penstock.errors import ProtocolError
good = b"MSG a 7 r.2 2\\r\\nhi\\r\\n"
for broken in {CORRUPTING!r}:
    for buffer in (broken + good, good + broken + good):
        for read in (
            lambda: parse(broken, 0, len(broken)),
            lambda: scan(buffer, len(buffer), sid=7, vectors=True),
            lambda: scan(buffer, len(buffer), sid=7, vectors=False),
        ):
            try:
                read()
            except ProtocolError:
                print("refused")
"""
    env = {**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, env=env, timeout=60)
    assert (done.stdout.split(), done.returncode) == (["refused"] * 6 * len(CORRUPTING), 0), done.stderr


@both_ways
@pytest.mark.parametrize("payload", [b"hel", b"hell", b"helloo", b"hello world"])
def test_a_message_of_another_size_than_it_says_is_refused(payload: bytes, vectors: bool) -> None:
    good = msg(b"hi", reply=b"r.1")
    buffer = good + b"MSG a 7 r.2 5\r\n" + payload + b"\r\n" + good + good
    with pytest.raises(ProtocolError):
        scanned(buffer, vectors=vectors)


@both_ways
@pytest.mark.parametrize("after", [b"", msg(b"hi", reply=b"r.1")])
@pytest.mark.parametrize("end", [b"\n\n", b"\rx", b"xx", b"x\n"])
def test_a_message_without_its_line_end_is_refused(end: bytes, after: bytes, vectors: bool) -> None:
    broken = b"MSG a 7 r.2 5\r\nhello" + end
    with pytest.raises(ProtocolError):
        scanned(broken + after, vectors=vectors)
    with pytest.raises(ProtocolError):
        parse(broken + after, 0, len(broken + after))


@both_ways
@pytest.mark.parametrize("line", [b"x" * (LINE + 1), b"MSG a 7 " + b"x" * LINE, b"INFO " + b"x" * LINE])
def test_a_line_without_end_is_not_waited_for_for_ever(line: bytes, vectors: bool) -> None:
    with pytest.raises(ProtocolError, match=r"which is no line of NATS"):
        scanned(line, vectors=vectors)
    with pytest.raises(ProtocolError, match=r"which is no line of NATS"):
        parse(line, 0, len(line))
    assert scanned(line[:LINE], vectors=vectors)[1] == 0


@pytest.mark.parametrize(
    "payload",
    [b"", b"[]", b"null", b"{", b"[" * 100_000, b'{"version": 5}', b'{"version": "two"}', b'{"max_payload": "1"}'],
)
def test_a_server_that_says_nothing_of_itself_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        info(payload)


def test_an_error_shows_the_beginning_of_what_came_but_not_all_of_it() -> None:
    with pytest.raises(ProtocolError, match=r"HTTP/1\.1 400") as caught:
        parse(b"HTTP/1.1 400 " + b"x" * 5000 + b"\r\n", 0, 5015)
    assert len(str(caught.value)) < 200


# The exact parser


@pytest.mark.parametrize(
    ("buffer", "frame"),
    [
        (b"PING\r\n", Frame(b"PING")),
        (b"+OK\r\n", Frame(b"+OK")),
        (b"-ERR 'Authorization Violation'\r\n", Frame(b"-ERR", payload=b"'Authorization Violation'")),
        (b'INFO {"a": 1}\r\n', Frame(b"INFO", payload=b'{"a": 1}')),
        (b"MSG a.b 7 2\r\nhi\r\n", Frame(b"MSG", b"a.b", b"7", payload=b"hi")),
        (b"MSG a.b 7 0\r\n\r\n", Frame(b"MSG", b"a.b", b"7")),
        (b"MSG a.b 7 r.s 4\r\n\r\nhi\r\n", Frame(b"MSG", b"a.b", b"7", b"r.s", payload=b"\r\nhi")),
        (b"HMSG a 7 12 14\r\nNATS/1.0\r\n\r\nhi\r\n", Frame(b"HMSG", b"a", b"7", b"", b"NATS/1.0\r\n\r\n", b"hi")),
        (b"HMSG a 7 r 12 12\r\nNATS/1.0\r\n\r\n\r\n", Frame(b"HMSG", b"a", b"7", b"r", b"NATS/1.0\r\n\r\n", b"")),
    ],
)
def test_one_frame(buffer: bytes, frame: Frame) -> None:
    assert parse(buffer, 0, len(buffer)) == (frame, len(buffer))
    assert parse(b"PING\r\n" + buffer + b"more", 6, 6 + len(buffer)) == (frame, 6 + len(buffer))
    for size in range(len(buffer)):
        assert parse(buffer, 0, size) == (None, 0), f"{buffer[:size]!r} is not all of it"


# Numbers


@pytest.mark.parametrize("before", [b" ", b"a", b".", b"/", b":", b"\0", b"\xff"])
def test_decimals_of_up_to_nine_digits(before: bytes) -> None:
    numbers = [0, 5, 10, 99, 123, 1000, 99_999, 100_000, 1_234_567, 99_999_999, 100_000_000, 999_999_998, 999_999_999]
    text = b"".join(before + b"%d" % n for n in numbers)
    ends = np.cumsum([1 + len(b"%d" % n) for n in numbers])
    assert decimals(np.frombuffer(text, np.uint8), ends).tolist() == numbers


def test_decimals_of_no_digits_and_of_leading_zeros() -> None:
    text = np.frombuffer(b"MSG 42 x 007", np.uint8)
    assert decimals(text, np.array([6, 7, 8, 12])).tolist() == [42, 0, 0, 7]


@given(st.lists(st.integers(0, 999_999_999), min_size=1, max_size=20))
def test_decimals_of_any_numbers(numbers: list[int]) -> None:
    text = b"".join(b" %d" % n for n in numbers)
    ends = np.cumsum([1 + len(b"%d" % n) for n in numbers])
    assert decimals(np.frombuffer(text, np.uint8), ends).tolist() == numbers


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=20))
def test_segments_are_copied_together(parts: list[tuple[int, int]]) -> None:
    at, bounds = 0, []
    for gap, length in parts:
        bounds.append((at + gap, at + gap + length))
        at += gap + length
    data = bytes(range(256)) * 2
    start, end = (np.array(side, np.int64) for side in zip(*bounds, strict=True))
    made = segments(pa.py_buffer(data), start, end)
    assert made.to_pylist() == [data[a:b] for a, b in bounds]
    assert offsets(made).tolist() == [0, *np.cumsum([b - a for a, b in bounds]).tolist()]


@pytest.mark.parametrize(
    ("bounds", "why"),
    [
        ([(0, 5), (4, 6)], "behind byte 5 comes byte 4, in part 1 of 2"),
        ([(0, 2), (5, 4)], "behind byte 5 comes byte 4, in part 1 of 2"),
        ([(0, 2), (5, 100_000)], "behind byte 100,000 comes byte 10, in part 1 of 2"),
        ([(-1, 2)], "behind byte 0 comes byte -1, in part 0 of 1"),
        ([(2**32, 2**32 + 5)], "behind byte 4,294,967,301 comes byte 10, in part 0 of 1"),
        ([(0, 2**32 + 5), (1, 3)], "behind byte 4,294,967,301 comes byte 1"),
    ],
)
def test_segments_outside_of_their_buffer_are_refused(bounds: list[tuple[int, int]], why: str) -> None:
    start, end = (np.array(side, np.int64) for side in zip(*bounds, strict=True))
    with pytest.raises(ProtocolError, match=f"10 bytes whose lengths do not fit: {why}"):
        segments(pa.py_buffer(b"0123456789"), start, end)


def test_a_number_of_more_than_nine_digits_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"more than nine digits: .*1234567890'"):
        decimals(np.frombuffer(b"MSG 5 MSG 1234567890", np.uint8), np.array([5, 20]))


# Headers


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"NATS/1.0\r\n\r\n", (0, "", [])),
        (b"NATS/1.0 404 No Messages\r\n\r\n", (404, "No Messages", [])),
        (b"NATS/1.0 503\r\n\r\n", (503, "", [])),
        (b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n", (0, "", [("A", b"1"), ("A", b"2")])),
        (b"NATS/1.0\r\nA:\r\nB: \r\n\r\n", (0, "", [("A", b""), ("B", b"")])),
        (b"NATS/1.0\r\nA:  x: y \r\n\r\n", (0, "", [("A", b"x: y ")])),
        (b"NATS/1.0 408 Request Timeout\r\nN: 5\r\n\r\n", (408, "Request Timeout", [("N", b"5")])),
        (b"NATS/1.0\r\nno colon\r\n: no key\r\nA:1\r\n\r\n", (0, "", [("A", b"1")])),
        (b"", (0, "", [])),
    ],
)
def test_the_fields_of_a_header_block(raw: bytes, expected: tuple[int, str, list[tuple[str, bytes]]]) -> None:
    assert fields(raw) == expected


MANY_BLOCKS = st.lists(BLOCKS | STATUSES | st.just(b"") | st.just(block((b"", b"no key"), (b"A", b"1"))), min_size=1)


@given(MANY_BLOCKS)
@example([b""])
@example([b"", block((b"a", b"1")), b"", b""])
@example([block()])
def test_all_fields_are_the_fields_of_each_block(blocks: list[bytes]) -> None:
    made = all_fields(pa.array(blocks, pa.binary()))
    expected = [fields(one)[2] for one in blocks]
    assert made.counts.tolist() == [len(found) for found in expected]
    assert made.keys.to_pylist() == [key.encode() for found in expected for key, _ in found]
    assert made.values.to_pylist() == [value for found in expected for _, value in found]


def as_rows(found: Sequence[tuple[str, bytes]]) -> list[dict[str, object]] | None:
    return [{"key": key, "value": value} for key, value in found] or None


# Blocks that a server takes, stores and delivers all the same.
UNENDED = [
    b"NATS/1.0\r\nA: 1\r\n", b"NATS/1.0\r\nA: 1", b"NATS/1.0\r\n", b"NATS/1.0", b"garbage", b"x", b"\r\n", b"\n",
    b"NATS/1.0\r\nA: 1\r\nB", b"NATS/1.0\r\nA: 1\r\nB:", b"NATS/1.0\r\nA: 1\r\nB: 2", b"NATS/1.0\nA: 1\n\n",
    b"NATS/1.0\r\nA: 1\r\n: 2", b"NATS/1.0\r\nA: 1\r\r\n", b"\0" * 20,
]  # fmt: skip


@given(st.lists(BLOCKS | st.sampled_from(UNENDED), min_size=1))
@example(UNENDED)
def test_a_block_without_its_end_costs_only_itself(blocks: list[bytes]) -> None:
    column = headers_column(pa.array(blocks, pa.binary()), len(blocks))
    column.validate(full=True)
    assert column.type == HEADERS
    assert column.to_pylist() == [as_rows(fields(one)[2]) for one in blocks]


@pytest.mark.parametrize("block", UNENDED)
def test_of_a_block_without_its_end_whole_lines_are_read(block: bytes) -> None:
    # The last two bytes are where the empty line would be, and a server puts its own fields in their place.
    assert fields(block)[2] == ([("A", b"1")] if b"A: 1\r\n" in block[:-2] else [])


def test_blanks_before_a_value_are_skipped_however_many() -> None:
    blocks = [block((b"k", b" " * 100_000 + b"v")), block((b"k", b"\t \t")), block((b"k", b" v"))]
    made = all_fields(pa.array(blocks, pa.binary()))
    assert made.values.to_pylist() == [b"v", b"", b"v"]


@given(PLAIN.filter(len))
def test_the_headers_column_has_the_fields_of_each_message(frames: list[bytes]) -> None:
    buffer = b"".join(frames)
    messages = scan(buffer, len(buffer), sid=SID).messages
    assert messages is not None
    column = headers_column(messages.blocks, len(messages))
    column.validate(full=True)
    assert column.type == HEADERS
    assert column.to_pylist() == [as_rows(fields(row.headers)[2]) for row in exactly(buffer)[0].rows]


def test_messages_without_headers_have_a_column_of_nulls() -> None:
    buffer = msg(b"one", reply=b"r.1") + msg(b"two", reply=b"r.2")
    messages = scan(buffer, len(buffer), sid=SID).messages
    assert messages is not None
    assert messages.blocks is None
    assert headers_column(messages.blocks, len(messages)).to_pylist() == [None, None]
    assert headers_column(messages.blocks, len(messages)).type == HEADERS
