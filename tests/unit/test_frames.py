import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.arrow.buffers import join, numbers, offsets
from penstock.arrow.types import HEADERS
from penstock.clients.nats.frames import Fault, bad_header, bad_subject, frames, header_lines, size_of
from penstock.clients.nats.headers import fields
from penstock.clients.nats.subjects import problem
from penstock.clients.nats.wire import scan

SID = 7
Header = tuple[str | None, bytes | None]
Headers = list[Header] | None


def sliced(values: Sequence[object], kind: pa.DataType, before: int = 0, junk: object = None) -> pa.Array:
    """The values as Spark may give them: a piece of a longer array."""
    around = [junk] * before
    return pa.array([*around, *values, *around], kind)[before : before + len(values)]


# Frames

TOKENS = st.sampled_from([b"a", b"foo", b"PUB", b"H", b"7", b"$JS", b"\xc3\xa9", b"a*", b"\xff"])
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=4).map(b".".join)
VALUES = st.binary(max_size=40) | st.sampled_from([b"", b"\r\n", b"\r\nPUB a 0\r\n\r\n", b"\0" * 1200, b"x" * 12345])
KEYS = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":"), min_size=1, max_size=8)
LINE_VALUES = st.binary(max_size=12).map(lambda value: value.replace(b"\r", b"").replace(b"\n", b""))
BLOCKS = st.lists(st.tuples(KEYS.map(str.encode), LINE_VALUES), max_size=3).map(
    lambda lines: b"".join(b"%s: %s\r\n" % line for line in lines)
)
Row = tuple[bytes, bytes, bytes, bytes]  # subject, reply, block, value
ROWS = st.lists(st.tuples(SUBJECTS, SUBJECTS, BLOCKS, VALUES), max_size=12)
both_ways = pytest.mark.parametrize("with_reply", [True, False])
all_ways = pytest.mark.parametrize("with_block", [True, False])


def slow_frame(row: Row, *, with_reply: bool, with_block: bool) -> bytes:
    """One frame, by the words of the protocol."""
    subject, reply, block, value = row
    words = [subject, *([reply] if with_reply else [])]
    if not with_block:
        return b" ".join([b"PUB", *words, b"%d" % len(value)]) + b"\r\n" + value + b"\r\n"
    head = b"NATS/1.0\r\n" + block + b"\r\n"
    sizes = [b"%d" % len(head), b"%d" % (len(head) + len(value))]
    return b" ".join([b"HPUB", *words, *sizes]) + b"\r\n" + head + value + b"\r\n"


def columns(rows: list[Row], before: int) -> list[pa.Array]:
    return [sliced([row[i] for row in rows], pa.binary(), before, b"junk") for i in range(4)]


@both_ways
@all_ways
@given(ROWS, st.integers(0, 3))
@example([], 0)
@example([], 2)
@example([(b"a", b"b", b"", b"")], 0)
def test_frames_are_those_built_row_by_row(with_reply: bool, with_block: bool, rows: list[Row], before: int) -> None:
    subject, reply, block, value = columns(rows, before)
    made = frames(subject, reply if with_reply else None, block if with_block else None, value)
    expected = [slow_frame(row, with_reply=with_reply, with_block=with_block) for row in rows]
    assert made.type == pa.binary()
    assert made.to_pylist() == expected
    if rows:
        at, data = offsets(made), made.buffers()[2].to_pybytes()
        assert at[0] == 0, "what goes to the socket starts where the buffer does"
        assert data[: at[-1]] == b"".join(expected)


@both_ways
@all_ways
@given(ROWS, st.integers(0, 3))
def test_what_the_server_passes_on_is_what_was_sent(
    with_reply: bool, with_block: bool, rows: list[Row], before: int
) -> None:
    subject, reply, block, value = columns(rows, before)
    # A server's frame is the client's, with another word before it and the subscription behind the subject.
    made = frames(join(subject, b" %d" % SID), reply if with_reply else None, block if with_block else None, value)
    buffer = b"".join(
        b"HMSG" + frame[4:] if frame.startswith(b"HPUB") else b"MSG" + frame[3:] for frame in made.to_pylist()
    )
    seen = scan(buffer, len(buffer))
    assert seen.used == len(buffer)
    head = (lambda lines: b"NATS/1.0\r\n" + lines + b"\r\n") if with_block else (lambda lines: b"")
    assert [(f.subject, f.reply, f.headers, f.payload) for f in seen.others] == [
        (subject, reply if with_reply else b"", head(block), value) for subject, reply, block, value in rows
    ]
    if rows and with_reply:
        fast = scan(buffer, len(buffer), sid=SID).messages
        assert fast is not None
        assert fast.values.to_pylist() == [row[3] for row in rows]


@all_ways
@given(ROWS, st.integers(0, 3))
def test_a_size_is_the_number_that_the_server_reads(with_block: bool, rows: list[Row], before: int) -> None:
    _, _, block, value = columns(rows, before)
    expected = [
        int(slow_frame(row, with_reply=True, with_block=with_block).split(b"\r\n", 1)[0].split()[-1]) for row in rows
    ]
    assert size_of(block if with_block else None, value).tolist() == expected


@given(st.lists(st.lists(st.binary(max_size=5) | st.none(), min_size=2, max_size=2), max_size=6), st.integers(0, 2))
def test_pieces_join_into_what_they_are_together_and_null_where_one_is(
    rows: list[list[bytes | None]], before: int
) -> None:
    left, right = (sliced([row[i] for row in rows], pa.binary(), before) for i in range(2))
    expected = [None if a is None or b is None else b"<" + a + b"," + b + b">" for a, b in rows]
    assert join(b"<", left, b",", right, b">").to_pylist() == expected


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8))
def test_numbers_are_written_as_they_are_read(values: list[int]) -> None:
    assert numbers(np.array(values, np.int64)).to_pylist() == [b"%d" % value for value in values]


# Headers

LEGAL_ROWS = st.lists(st.none() | st.lists(st.tuples(KEYS, LINE_VALUES | st.none()), max_size=4), max_size=8)
TEXT_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.string())]))


WITHOUT = r"^Nats-(Msg-Id$|Expected-)"
NATS_KEYS = st.sampled_from(
    ["Nats-Msg-Id", "nats-msg-ID", "Nats-Msg-Id2", "Nats-Expected-X", "X-Nats-Msg-Id", "Nats-TTL"]
)
STEERED_ROWS = st.lists(
    st.none() | st.lists(st.tuples(KEYS | NATS_KEYS, LINE_VALUES | st.none()), max_size=4), max_size=8
)


@given(STEERED_ROWS, st.integers(0, 3), st.sampled_from(["", WITHOUT, "."]))
@example([None, None], 0, WITHOUT)
@example([[], None, [("a", None)]], 1, "")
def test_header_lines_are_those_written_row_by_row(rows: list[Headers], before: int, without: str) -> None:
    column = sliced(rows, HEADERS, before, [("junk", b"junk"), ("Nats-Msg-Id", b"junk")])
    made = header_lines(column, without)
    assert made.null_count == 0
    assert made.to_pylist() == [
        b"".join(
            b"%s: %s\r\n" % (str(key).encode(), value or b"")
            for key, value in row or []
            if not (without and re.search(without, str(key), re.IGNORECASE))
        )
        for row in rows
    ]


@given(LEGAL_ROWS)
def test_header_lines_are_read_as_the_headers_that_they_were(rows: list[Headers]) -> None:
    for row, lines in zip(rows, header_lines(pa.array(rows, HEADERS)).to_pylist(), strict=True):
        status, _, found = fields(b"NATS/1.0\r\n" + lines + b"\r\n")
        assert status == 0
        assert found == [(key, (value or b"").lstrip(b" \t")) for key, value in row or []]


def test_header_values_may_be_text() -> None:
    column = pa.array([[("a", "é"), ("b", None)], None], TEXT_HEADERS)
    assert header_lines(column).to_pylist() == ["a: é\r\nb: \r\n".encode(), b""]
    assert bad_header(column) is None
    assert bad_header(pa.array([None, [("a", "1\r\nb: 2")]], TEXT_HEADERS)) == Fault(
        1, "has a line break in the header 'a'"
    )


ODD_KEYS = st.sampled_from(
    ["", " ", "a b", "a:b", ":", "a\n", "\na", "a\r\nb", "é", "\x7f", "\0", "~!", "Nats-Expected-é", None]
)
ODD_VALUES = st.sampled_from([b"", b"\r", b"\n", b"a\r\nb", b"\xff", b"\xff\n", b"\0", b" \t", None])
ODD_ROWS = st.lists(
    st.none() | st.lists(st.none() | st.tuples(KEYS | ODD_KEYS, LINE_VALUES | ODD_VALUES), max_size=3), max_size=6
)


def slow_bad_header(rows: Sequence[Sequence[Header | None] | None]) -> tuple[int, str] | None:
    for i, row in enumerate(rows):
        for entry in row or []:
            key, value = entry or (None, None)
            if key is None or not re.fullmatch(r"[!-9;-~]+", key):
                return i, "which is no name"
            if value and (b"\r" in value or b"\n" in value):
                return i, "has a line break"
    return None


@given(ODD_ROWS, st.integers(0, 3))
def test_the_first_bad_header_is_the_one_found_row_by_row(rows: list[list[Header | None] | None], before: int) -> None:
    fault = bad_header(sliced(rows, HEADERS, before, [("bad header", b"\n")]))
    expected = slow_bad_header(rows)
    if expected is None or fault is None:
        assert fault == expected
    else:
        assert fault.row == expected[0]
        assert expected[1] in fault.why


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (("a b", b""), "has a header named b'a b', which is no name: it must be printable, without ':' or space"),
        (("", b""), "has a header named b'', which is no name: it must be printable, without ':' or space"),
        ((None, b""), "has a header named None, which is no name: it must be printable, without ':' or space"),
        (("a\n", b""), r"has a header named b'a\n', which is no name: it must be printable, without ':' or space"),
        (("k", b"1\r\nNats-Rollup: all"), "has a line break in the header 'k'"),
        (("k", b"1\n"), "has a line break in the header 'k'"),
        (("k", None), None),
        (("k", b"\xff\xfe"), None),
    ],
)
def test_a_bad_header_is_said(header: Header, why: str | None) -> None:
    column = pa.array([None, [("fine", b"v")], [("fine", b"v"), header]], HEADERS)
    assert bad_header(column) == (None if why is None else Fault(2, why))


def test_columns_without_a_header_have_no_bad_one() -> None:
    for column in (pa.nulls(3, HEADERS), pa.array([], HEADERS), pa.array([[], None], HEADERS)):
        assert bad_header(column) is None
        assert header_lines(column).to_pylist() == [b""] * len(column)


def under_nulls() -> pa.Array:
    """Three rows, the second null over a header that is still in the buffers, as Arrow allows."""
    structs = pa.StructArray.from_arrays(
        [pa.array(["a", "hidden\n", "c:"]), pa.array([b"1", b"2", b"3"])], fields=list(HEADERS.value_type)
    )
    at = pa.array([0, 1, 2, 3], pa.int32())
    return pa.ListArray.from_arrays(at, structs, type=HEADERS, mask=pa.array([False, True, False]))


def test_what_lies_under_a_null_is_no_header() -> None:
    assert header_lines(under_nulls(), "^c$").to_pylist() == [b"a: 1\r\n", b"", b"c:: 3\r\n"]


def test_a_row_is_named_rightly_behind_a_null_with_something_under_it() -> None:
    fault = bad_header(under_nulls())
    assert fault is not None
    assert "'c:'" in fault.why
    assert fault.row == 2


# Subjects

LETTERS = st.text(st.sampled_from("ab.*> \t\r\n\0\f\vé\x7f\xa0"), max_size=6)


def slow_bad_subject(subjects: Sequence[str | None]) -> Fault | None:
    for row, subject in enumerate(subjects):
        if subject is None:
            return Fault(row, "has no subject (null)")
    for row, subject in enumerate(subjects):
        why = problem(subject or "", wildcards=False)
        if why:
            return Fault(row, f"has the subject '{subject}', which {why}")
    return None


@given(st.lists(LETTERS | st.sampled_from(["a.b", "orders.eu", "$KV.b.k"]), max_size=6), st.integers(0, 2))
def test_the_first_bad_subject_is_the_one_found_row_by_row(subjects: list[str], before: int) -> None:
    expected = slow_bad_subject(subjects)
    assert bad_subject(sliced([s.encode() for s in subjects], pa.binary(), before, b"a b")) == expected
    assert bad_subject(sliced(subjects, pa.string(), before, "a b")) == expected


@given(st.lists(st.none() | st.sampled_from(["a.b", "a b", "é"]), max_size=6), st.integers(0, 2))
def test_a_missing_subject_is_found_before_a_bad_one(subjects: list[str | None], before: int) -> None:
    encoded = [None if s is None else s.encode() for s in subjects]
    assert bad_subject(sliced(encoded, pa.binary(), before)) == slow_bad_subject(subjects)


@pytest.mark.parametrize(
    ("subject", "why"),
    [
        (b"", "has the subject '', which has an empty token"),
        (b"a..b", "has the subject 'a..b', which has an empty token"),
        (b"a.", "has the subject 'a.', which has an empty token"),
        (b"a b", "has the subject 'a b', which has a space or control character"),
        (b"a\n", "has the subject 'a\n', which has a space or control character"),
        (b"a\0", "has the subject 'a\0', which has a space or control character"),
        (b"\xff b", "has the subject '\ufffd b', which has a space or control character"),
        (b"a.*", "has the subject 'a.*', which has a wildcard"),
        (b"a.>", "has the subject 'a.>', which has a wildcard"),
        (b"a" * 90 + b" ", f"has the subject '{'a' * 80}', which has a space or control character"),
        (b"a*.b>", None),
        (b"a\xff.b", None),
        ("é.ü".encode(), None),
    ],
)
def test_a_bad_subject_is_said(subject: bytes, why: str | None) -> None:
    column = pa.array([b"fine", b"fi*ne", subject, b""][: 4 if why else 3], pa.binary())
    assert bad_subject(column) == (None if why is None else Fault(2, why))
