"""Rows once, in order, whatever happens: the chain against a stream that does what S2 does."""

import random
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from s2_sdk._generated.s2.v1 import s2_pb2 as pb

from penstock.clients.s2.appends import MOST_BYTES, MOST_RECORDS, Encoded, append_input, encode
from penstock.connectors.s2 import chain
from penstock.connectors.s2.chain import Batch, Chain, Stamp
from penstock.errors import ConnectError, ProtocolError
from penstock.kit.contract import Origin

ME = Origin("query-1", 5, 0)


@dataclass
class Stream:
    """What is stored, and the stamps by position. Refuses a batch that is not for its end."""

    bodies: list[bytes] = field(default_factory=list)
    stamps: dict[int, Stamp] = field(default_factory=dict)

    def append(self, message: bytes) -> bool:
        given = pb.AppendInput.FromString(message)
        if given.HasField("match_seq_num") and given.match_seq_num != len(self.bodies):
            return False
        for record in given.records:
            for header in record.headers:
                if header.name == chain.HEADER:
                    stamp = Stamp.decode(header.value)
                    assert stamp is not None
                    self.stamps[len(self.bodies)] = stamp
            self.bodies.append(record.body)
        return True

    def since(self, start: int) -> list[Stamp]:
        return [self.stamps[at] for at in sorted(self.stamps) if at >= start]


def _rows(low: int, high: int, size: int = 0) -> Encoded:
    return encode(pa.array([b"%d" % i + b"x" * size for i in range(low, high)], pa.binary()))


class Attempt:
    """One attempt of the task: it sends in order, loses answers, and looks again when it must."""

    def __init__(self, stream: Stream, total: int, piece: int):
        self.stream, self.total, self.piece = stream, total, piece
        self.chain = Chain(ME, len(stream.bodies))
        self.chain.adopt(chain.mine(stream.since(0), ME), len(stream.bodies))
        self.waiting: list[tuple[Batch, bool]] = []
        self.broken = self.done = False

    def step(self, chance: random.Random) -> None:
        if self.broken:
            self.chain.adopt(chain.mine(self.stream.since(self.chain.base), ME), len(self.stream.bodies))
            self.waiting, self.broken = [], False
        if self.chain.rows < self.total:
            self.chain.add(_rows(self.chain.rows, min(self.total, self.chain.rows + self.piece)))
        for _ in range(chance.randint(1, 4)):
            batch = self.chain.next(last=self.chain.rows == self.total)
            if batch is None:
                break
            # Once one was lost or refused, the session is over and none behind it arrives.
            lost = self.broken or chance.random() < 0.1
            stored = not lost and self.stream.append(batch.message)
            self.broken |= not stored
            self.waiting.append((batch, stored))
        while self.waiting and chance.random() < 0.8:
            batch, stored = self.waiting.pop(0)
            if not stored or chance.random() < 0.1:  # the answer is lost, or it is a refusal
                self.broken = True
                break
            self.chain.acked(batch)
        if self.chain.rows == self.total and self.chain.stored >= self.total:
            self.chain.end()
            self.done = True


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 6000), st.integers(1, 4))
def test_many_attempts_leave_every_row_once_and_in_order(seed: int, total: int, twins: int) -> None:
    chance = random.Random(seed)
    stream = Stream()
    stream.append(append_input(bytes(_rows(0, chance.randint(0, 3)).joined()) or b"", None))
    others = len(stream.bodies)
    attempts: list[Attempt] = []
    for _ in range(2000):
        if len(attempts) < twins and chance.random() < 0.3:
            attempts.append(Attempt(stream, total, chance.choice([500, 1000, 1700, 10_000])))
        if attempts:
            attempt = chance.choice(attempts)
            attempt.step(chance)
            if attempt.done:
                break
            if chance.random() < 0.05:
                attempts.remove(attempt)  # it dies, with what is on its way
        if chance.random() < 0.05:
            stream.append(append_input(bytes(encode(pa.array([b"other"])).joined()), None))
            others += 1
    else:
        last = Attempt(stream, total, 1000)
        while not last.done:
            last.step(random.Random(1))
    mine = [body for body in stream.bodies if body != b"other"][others - stream.bodies.count(b"other") :]
    assert mine == [b"%d" % i for i in range(total)], f"seed {seed}"
    for attempt in attempts:  # the others find that all is done, whenever they come to it
        for _ in range(100):
            attempt.step(random.Random(2))
    assert len(stream.bodies) == total + others


def _write(stream: Stream, rows: Encoded, origin: Origin = ME) -> Chain:
    made = Chain(origin, len(stream.bodies))
    made.adopt(chain.mine(stream.since(0), origin), len(stream.bodies))
    made.add(rows)
    while (batch := made.next(last=True)) is not None:
        assert stream.append(batch.message)
        made.acked(batch)
    made.end()
    return made


def test_without_the_condition_a_twin_doubles_rows() -> None:
    """The mechanism taken out."""
    stream = Stream()
    for _ in range(2):
        made = Chain(ME, 0, conditional=False)
        made.add(_rows(0, 10))
        batch = made.next(last=True)
        assert batch is not None
        stream.append(batch.message)
    assert len(stream.bodies) == 20


def test_a_replay_writes_nothing_and_knows_its_rows() -> None:
    stream = Stream()
    _write(stream, _rows(0, 2500))
    again = _write(stream, _rows(0, 2500))
    assert len(stream.bodies) == 2500
    assert again.known == 2500


@pytest.mark.parametrize(
    ("then", "now", "how"),
    [
        ((0, 2500), (0, 2400), "2,400 now"),
        ((0, 2500), (1, 2501), "another checksum"),
        ((0, 1000), (1, 1001), "another checksum"),
    ],
)
def test_a_replay_with_other_rows_is_refused(then: Any, now: Any, how: str) -> None:
    stream = Stream()
    _write(stream, _rows(*then))
    with pytest.raises(ProtocolError, match=how):
        _write(stream, _rows(*now))


def test_a_replay_goes_on_behind_a_first_attempt_that_took_a_part_for_the_whole() -> None:
    stream = Stream()
    _write(stream, _rows(0, 1500))  # as an attempt leaves it whose input was cut off unseen
    again = _write(stream, _rows(0, 2600))
    assert len(stream.bodies) == 2600
    assert again.known == 1500


def test_a_replay_that_ends_where_the_first_attempt_was_cut_off_is_refused() -> None:
    stream = Stream()
    made = Chain(ME, 0)
    made.add(_rows(0, 1500))
    batch = made.next(last=False)
    assert batch is not None
    stream.append(batch.message)
    with pytest.raises(ProtocolError, match="more than 1,000 rows then"):
        _write(stream, _rows(0, 1000))


def test_a_later_batch_of_the_query_ends_an_attempt() -> None:
    stream = Stream()
    _write(stream, _rows(0, 10), ME._replace(batch=6))
    with pytest.raises(ConnectError, match="there are rows of batch 6 already"):
        _write(stream, _rows(0, 10))


def test_tasks_that_share_a_stream_do_not_take_each_others_rows_for_their_own() -> None:
    stream = Stream()
    for partition in range(3):
        _write(stream, _rows(0, 1200), ME._replace(partition=partition))
    _write(stream, _rows(0, 1200), ME._replace(query="another"))
    assert len(stream.bodies) == 4800


def test_batches_keep_to_the_limits_of_s2_stamps_included() -> None:
    made = Chain(Origin("q" * 36, 10**9, 10**6), 0)
    made.add(_rows(0, 40, size=100_000))
    made.add(_rows(40, 3000))
    seen = 0
    while (batch := made.next(last=True)) is not None:
        given = pb.AppendInput.FromString(batch.message)
        metered = sum(8 + len(r.body) + sum(2 + len(h.name) + len(h.value) for h in r.headers) for r in given.records)
        assert metered <= MOST_BYTES
        assert len(given.records) == batch.records <= MOST_RECORDS
        assert batch.at == seen
        seen += batch.records
    assert seen == 3000


def test_the_last_batch_waits_until_it_is_known_to_be_the_last() -> None:
    made = Chain(ME, 0)
    made.add(_rows(0, 1000))
    assert made.next(last=False) is None
    made.add(_rows(1000, 1001))
    assert made.next(last=False) is not None
    assert made.next(last=False) is None
    batch = made.next(last=True)
    assert batch is not None
    stamp = Stamp.decode(pb.AppendInput.FromString(batch.message).records[-1].headers[-1].value)
    assert stamp is not None
    assert stamp.final
    assert stamp.rows == 1001


def test_stored_rows_are_let_go_of() -> None:
    stream, made = Stream(), Chain(ME, 0)
    for low in range(0, 50_000, 1000):
        made.add(_rows(low, low + 1000))
        while (batch := made.next(last=False)) is not None:
            stream.append(batch.message)
            made.acked(batch)
        assert len(made._pieces) <= 2


@pytest.mark.parametrize("value", [b"", b"1;q", b"2;q;1;2;3;0;f", b"1;q;x;2;3;0;f", b"\xff\xfe", b"1;q;1;2;3;zz;"])
def test_what_is_no_stamp_is_not_taken_for_one(value: bytes) -> None:
    assert Stamp.decode(value) is None


@given(st.text(alphabet="abcdef-0123456789", min_size=1), st.integers(0), st.integers(0), st.integers(0), st.booleans())
def test_a_stamp_is_read_as_it_was_written(query: str, batch: int, partition: int, rows: int, final: bool) -> None:
    stamp = Stamp(Origin(query, batch, partition), rows, 0xDEADBEEF, final)
    assert Stamp.decode(stamp.encode()) == stamp
