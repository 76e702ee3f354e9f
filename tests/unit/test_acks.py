import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.clients.jetstream import acks
from penstock.clients.jetstream.acks import Acks, Refusal, widen
from penstock.clients.nats.wire import Messages, scan
from penstock.errors import ProtocolError

SID = 7
Answer = dict[str, Any]


# Rows in their own places.
SAME = np.arange(100_000)


def received(answers: Sequence[tuple[int, bytes]], before: int = 0) -> Messages:
    """The answers as the client has them, their bodies perhaps a piece of a longer column."""
    buffer = b"".join(b"MSG _INBOX.x9.%d %d %d\r\n%s\r\n" % (row, SID, len(body), body) for row, body in answers)
    messages = scan(buffer, len(buffer), sid=SID, kind="reply").messages
    assert messages is not None
    if before:
        junk = [b'{"error":{}}'] * before
        bodies = pa.array([*junk, *messages.values.to_pylist(), *junk], pa.binary())
        messages = replace(messages, values=bodies[before : before + len(messages)])
    return messages


def slowly(answers: Sequence[tuple[int, bytes]]) -> Acks:
    """The truth, answer by answer."""
    rows: list[int] = []
    out = Acks(acks.nothing())
    for row, body in answers:
        answer = json.loads(body)
        if "error" in answer:
            error = answer["error"]
            out.refused.append(Refusal(row, error.get("err_code", 0), error.get("description", "")))
            continue
        rows.append(row)
        stream, seq = answer["stream"], answer["seq"]
        low, high = out.spans.get(stream, (seq, seq))
        out.spans[stream] = (min(low, seq), max(high, seq))
        if answer.get("duplicate"):
            out.known.append((row, stream, seq))
    out.rows = np.array(rows, np.int64)
    return out


def comparable(found: Acks) -> tuple[object, ...]:
    return found.rows.tolist(), found.rows.dtype, found.spans, found.known, found.refused


# As the server writes them: a stream gives its sequences in order, and those of duplicates lie before.

STREAMS = st.sampled_from(["S", "ORDERS", "ORDERS_2", "seq", "error", "duplicate", "é"])
DOMAINS = st.sampled_from([None, "hub", "leaf"])
KINDS = st.sampled_from(["stored"] * 6 + ["known", "wrong last sequence: 5", 'no "error" here', "duplicate"])
SEPARATORS = st.sampled_from([(",", ":"), (", ", ":"), (",", ": "), (", ", ": ")])
ROW_NUMBERS = st.integers(0, 99_999)


@st.composite
def answers(draw: st.DrawFn, streams: st.SearchStrategy[str] = STREAMS, plain: bool = False) -> list[tuple[int, bytes]]:
    separators, escape = draw(SEPARATORS), draw(st.booleans())
    last: dict[str, int] = {}
    out = []
    domain = draw(DOMAINS)
    for row in draw(st.lists(ROW_NUMBERS, min_size=1, max_size=12, unique=True)):
        stream = draw(streams)
        kind = "stored" if plain else draw(KINDS)
        domain = domain if plain else draw(st.just(domain) | DOMAINS)
        answer: Answer = {"stream": stream}
        if kind == "stored":
            last[stream] = answer["seq"] = last.get(stream, draw(st.integers(0, 10**10))) + draw(st.integers(1, 3))
        elif kind == "known":
            answer["seq"] = draw(st.integers(1, max(1, last.get(stream, 1))))
        else:
            error = {"code": 400, "err_code": draw(st.integers(10000, 10999)), "description": kind}
            if draw(st.booleans()):
                del error["err_code"]
            answer = {"error": error, **answer, "seq": 0} if draw(st.booleans()) else {"error": error}
        if domain is not None:
            answer["domain"] = domain
            if "seq" in answer and draw(st.booleans()):
                answer["seq"] = answer.pop("seq")  # the domain before the sequence; the stream always is
        if kind == "known":
            answer["duplicate"] = True
        out.append((row, json.dumps(answer, separators=separators, ensure_ascii=escape).encode()))
    return out


@given(answers() | answers(st.just("S")), st.integers(0, 2))
@example([(0, b'{"stream":"S", "seq":1}')], 0)
@example([(1, b'{"error":{"code":503}}'), (2, b'{"stream":"S","seq":1}')], 0)
@example([(1, b'{"stream":"S","seq":1}'), (2, b'{"stream":"S2","seq":1}')], 1)
@example([(1, b'{"stream":"S","seq":1}'), (2, b'{"stream":"S","seq":1,"duplicate":true}')], 0)
@example([(1, b'{"stream":"S","seq":1}'), (2, b'{"error":{"err_code":10071},"stream":"S","seq":0}')], 0)
def test_answers_are_read_as_one_by_one(given_: list[tuple[int, bytes]], before: int) -> None:
    assert comparable(acks.read(received(given_, before), SAME)) == comparable(slowly(given_))


@given(answers(st.just("ORDERS"), plain=True), st.integers(0, 2))
def test_answers_that_are_alike_are_read_as_one_by_one(given_: list[tuple[int, bytes]], before: int) -> None:
    assert comparable(acks.read(received(given_, before), SAME)) == comparable(slowly(given_))


def test_many_answers_that_are_alike_are_not_parsed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [(i, b'{"stream":"S", "seq":%d}' % (i + 5)) for i in range(1000)]
    monkeypatch.setattr(acks, "parse", lambda body: pytest.fail("was parsed"))
    assert comparable(acks.read(received(many), SAME)) == comparable(slowly(many))


@given(answers(), st.data())
def test_answers_in_two_parts_add_up(given_: list[tuple[int, bytes]], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(given_)))
    found = Acks(acks.nothing())
    marked: list[int] = []
    for part in (given_[:cut], given_[cut:]):
        if part:
            found.add(acks.read(received(part), SAME), lambda rows: marked.extend(rows.tolist()))
    expected = slowly(given_)
    assert comparable(found) == comparable(expected)
    assert marked == expected.rows.tolist()


@given(st.lists(st.tuples(st.sampled_from("AB"), st.integers(0, 9), st.integers(0, 9)), max_size=6))
def test_a_span_holds_all_that_was_put_into_it_and_nothing_more(spans: list[tuple[str, int, int]]) -> None:
    found: dict[str, tuple[int, int]] = {}
    for stream, a, b in spans:
        widen(found, stream, min(a, b), max(a, b))
    for stream in "AB":
        inside = [pair for name, *pair in spans if name == stream and min(pair) > 0]
        expected = (min(map(min, inside)), max(map(max, inside))) if inside else None
        assert found.get(stream) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"stream":"S","seq":1}', None),
        (b'{"stream":"S","seq":1,"duplicate":true}', None),
        (
            b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 5"}}',
            (10071, "wrong last sequence: 5"),
        ),
        (b'{"error":{"code":503}}', (0, "")),
    ],
)
def test_a_refusal_is_what_the_server_says(body: bytes, expected: tuple[int, str] | None) -> None:
    assert acks.refusal(3, acks.parse(body)) == (None if expected is None else Refusal(3, *expected))


def test_answers_are_told_apart_by_the_place_of_their_row_whatever_its_number() -> None:
    numbers = np.array([5, 7, 10**12])
    given_ = [(2, b'{"stream":"S","seq":1}'), (0, b'{"error":{"err_code":10071}}'), (1, b'{"stream":"S","seq":2}')]
    found = acks.read(received(given_), numbers)
    assert found.rows.tolist() == [10**12, 7]
    assert found.refused == [Refusal(5, 10071, "")]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"{", b"{}", b'{"stream":"S"}', b'{"seq":5}', b'{"stream":5,"seq":5}',
        b'{"stream":"S","seq":"5"}', b'{"stream":"S","seq":1e3}', b'{"stream":"S","seq":99999999999999999999}',
        b'{"error":"no"}', b'{"error":{"err_code":"1"}}',
    ],
)  # fmt: skip
def test_an_answer_that_says_nothing_is_refused_with_what_it_is(body: bytes) -> None:
    good = b'{"stream":"S","seq":1}'
    for bodies in ([body], [body, body], [good, body], [body, good]):
        with pytest.raises(ProtocolError, match=r"JetStream answered b'|an answer has"):
            acks.read(received(list(enumerate(bodies))), SAME)


@pytest.mark.parametrize("place", [b"3", b"99999", b"x", b"", b"10000000001"])
def test_an_answer_for_a_row_that_was_not_sent_is_refused(place: bytes) -> None:
    buffer = b'MSG _INBOX.x9.%s %d 22\r\n{"stream":"S","seq":1}\r\n' % (place, SID)
    messages = scan(buffer, len(buffer), sid=SID, kind="reply").messages
    assert messages is not None
    with pytest.raises(ProtocolError, match=r"but 3 rows were sent|more than nine digits"):
        acks.read(messages, np.arange(3))
    with pytest.raises(ProtocolError, match="but 3 rows were sent"):
        acks.place(b"_INBOX.x9." + place, b"_INBOX.x9.", 3)
    assert acks.in_a_row(buffer, b"_INBOX.x9.", np.arange(3)) is None


# In a row


def as_bytes(answers: Sequence[tuple[int, bytes]]) -> bytes:
    return b"".join(b"MSG _INBOX.x9.%d %d %d\r\n%s\r\n" % (row, SID, len(body), body) for row, body in answers)


@given(answers(st.just("ORDERS"), plain=True), st.integers(0, 40))
def test_answers_in_a_row_are_counted_or_left_to_be_read(given_: list[tuple[int, bytes]], more: int) -> None:
    """Whatever it takes, it takes as it is; what it does not, `read` does."""
    received_ = as_bytes(given_)
    rest = as_bytes([(given_[-1][0] + 1, b'{"stream":"ORDERS","seq":99999999999}')])[:more]
    found = acks.in_a_row(received_ + rest, b"_INBOX.x9.", SAME)
    in_order = [row for row, _ in given_] == list(range(given_[0][0], given_[0][0] + len(given_)))
    if found is not None:
        assert in_order
        assert comparable(found[0]) == comparable(slowly(given_))
        assert found[1] == len(received_)


@pytest.mark.parametrize("cut", range(60))
def test_rows_that_follow_each_other_are_counted_wherever_the_bytes_end(cut: int) -> None:
    given_ = [(i, b'{"stream":"S", "seq":%d}' % (i + 5)) for i in range(7, 20)]
    whole, last = as_bytes(given_), as_bytes([(20, b'{"stream":"S", "seq":25}')])
    found = acks.in_a_row(whole + last[:cut], b"_INBOX.x9.", SAME)
    assert found is not None
    complete = cut >= len(last)
    assert found[0].rows.tolist() == list(range(7, 21 if complete else 20))
    assert found[0].spans == {"S": (12, 25 if complete else 24)}
    assert found[1] == len(whole) + (len(last) if complete else 0)


@pytest.mark.parametrize(
    "received_",
    [
        b"",
        b"PING\r\n",
        as_bytes([(0, b'{"stream":"S","seq":1}'), (2, b'{"stream":"S","seq":2}')]),
        as_bytes([(0, b'{"stream":"S","seq":1}'), (1, b'{"stream":"T","seq":2}')]),
        as_bytes([(0, b'{"stream":"S","seq":1}'), (1, b'{"stream":"S","seq":2,"duplicate":true}')]),
        as_bytes([(0, b'{"error":{"err_code":1}}'), (1, b'{"error":{"err_code":1}}')]),
        as_bytes([(0, b'{"stream":"S","seq":1}')]) + b"PING\r\n+OK\r\n",
        as_bytes([(0, b'{"stream":"S","seq":1}')]) + b"MSG other 3 2\r\nhi\r\n",
        b"MSG other 3 2\r\nhi\r\n" + as_bytes([(0, b'{"stream":"S","seq":1}')]),
    ],
)
def test_whatever_is_not_in_a_row_is_left_to_be_read(received_: bytes) -> None:
    assert acks.in_a_row(received_, b"_INBOX.x9.", SAME) is None
