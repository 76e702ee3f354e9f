"""One acknowledgement for many: it covers nothing that somebody else was given, and nothing that Spark has not."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.jetstream.floor import Deliveries, Safe, safe, with_acks

NONE = Deliveries.of([])


def given_to_us(*pairs: tuple[int, int], start: str = "$JS.ACK.S.d.1") -> Deliveries:
    replies = [f"{start}.{sequence}.{number}.1794828136459189000.5" for sequence, number in pairs]
    rows = pa.record_batch({"sequence": pa.array([sequence for sequence, _ in pairs], pa.int64())})
    return Deliveries.of([with_acks(rows, pa.array(replies, pa.string()))])


def acked(owed: Deliveries, held: Deliveries, floor: tuple[int, int], pending: int) -> int | None:
    """The sequence that would be acknowledged."""
    row = safe(owed, held, floor, pending).row
    return None if row is None else int(owed.sequence[row])


@pytest.mark.parametrize("start", ["$JS.ACK.S.d.1", "$JS.ACK.hub.hash.S.d.2"])
def test_numbers_are_read_from_both_kinds_of_reply(start: str) -> None:
    made = given_to_us((7, 3), (81, 40), start=start)
    assert (made.sequence.tolist(), made.delivery.tolist()) == ([7, 81], [3, 40])
    assert made.reply.to_pylist()[1] == f"{start}.81.40.1794828136459189000.5"
    assert Deliveries.of([]).size() == 0


@pytest.mark.parametrize(
    ("owed", "held", "floor", "pending", "expected"),
    [
        pytest.param([(1, 1), (2, 2), (3, 3)], [], (0, 0), 3, 3, id="all of it"),
        pytest.param([(1, 1), (2, 2)], [(3, 3)], (0, 0), 3, 2, id="as far as Spark has it"),
        pytest.param([(1, 1), (3, 3)], [(2, 2)], (0, 0), 3, 1, id="not past what Spark has not"),
        pytest.param([(2, 2), (3, 3)], [], (0, 0), 3, None, id="somebody has 1"),
        pytest.param([(1, 1), (2, 2)], [], (0, 0), 5, None, id="somebody has some"),
        pytest.param([(4, 4), (6, 5), (9, 6)], [], (3, 3), 3, 9, id="gaps in the stream are nobody's"),
        pytest.param([(1, 1), (2, 2)], [], (2, 2), 0, None, id="somebody acknowledged all"),
        pytest.param([(1, 1), (2, 2), (3, 3)], [], (2, 2), 1, 3, id="somebody acknowledged some"),
        pytest.param([(1, 3), (2, 4)], [], (0, 0), 2, 2, id="delivered again to us"),
        pytest.param([(1, 1), (1, 3), (2, 2)], [], (0, 0), 2, 2, id="twice to us"),
        pytest.param([(1, 3)], [(2, 2)], (0, 0), 2, None, id="would make 2 impossible to acknowledge"),
        pytest.param([(1, 3), (2, 2)], [(3, 4)], (0, 0), 3, 2, id="and 2 covers 1"),
        pytest.param([(2, 2)], [], (1, 3), 1, None, id="somebody made it impossible"),
        pytest.param([], [(1, 1)], (0, 0), 1, None, id="nothing to do"),
    ],
)
def test_what_may_be_acknowledged(
    owed: list[tuple[int, int]],
    held: list[tuple[int, int]],
    floor: tuple[int, int],
    pending: int,
    expected: int | None,
) -> None:
    assert acked(given_to_us(*owed), given_to_us(*held), floor, pending) == expected


def test_the_last_reply_of_a_message_that_came_twice_is_used() -> None:
    owed = given_to_us((1, 1), (1, 5), (2, 4), (2, 6))
    row = safe(owed, NONE, (0, 0), 2).row
    assert row is not None
    assert (owed.sequence[row], owed.delivery[row]) == (2, 6)


def test_how_many_others_have_is_told() -> None:
    assert safe(given_to_us((5, 5)), NONE, (0, 0), 4) == Safe(None, 3)


@given(st.data())
def test_a_consumer_that_is_shared_loses_nothing(data: st.DataObject) -> None:
    """A server with the rules of ack=all, a client that dies, and us: whatever is acknowledged, Spark has it."""
    stream = data.draw(st.integers(1, 12))
    floor, next_delivery, at = (0, 0), 1, 1
    pending: dict[int, str] = {}
    owed, held, committed = NONE, NONE, set[int]()
    for _ in range(data.draw(st.integers(1, 40))):
        step = data.draw(st.sampled_from(["new", "new", "again", "commit", "ack"]))
        if step in ("new", "again"):
            who = data.draw(st.sampled_from(["us", "us", "other"]))
            if step == "new" and at <= stream:
                sequence, at = at, at + 1
            elif step == "again" and pending:
                sequence = data.draw(st.sampled_from(sorted(pending)))
            else:
                continue
            if not (step == "again" and pending[sequence] == "us" and who == "other"):
                pending[sequence] = who if pending.get(sequence) != "us" else "us"
            if who == "us":
                held = held + given_to_us((sequence, next_delivery))
            next_delivery += 1
        elif step == "commit" and held.size():
            count = data.draw(st.integers(1, held.size()))
            parts = [Deliveries(*(column[:count] for column in held)), Deliveries(*(column[count:] for column in held))]
            owed, held = owed + parts[0], parts[1]
            committed |= set(parts[0].sequence.tolist())
        elif step == "ack":
            row = safe(owed, held, floor, len(pending)).row
            if row is None:
                continue
            sequence, delivery = int(owed.sequence[row]), int(owed.delivery[row])
            assert delivery > floor[1], "the server would ignore it"
            assert {s for s in pending if s <= sequence} <= committed
            pending = {s: who for s, who in pending.items() if s > sequence}
            floor = (sequence, delivery)
            owed = owed.after(sequence)
    # Once everything was given to us and committed, everything can be acknowledged.
    for sequence in sorted(s for s, who in pending.items() if who == "other"):
        held = held + given_to_us((sequence, next_delivery))
        next_delivery += 1
    row = safe(owed + held, NONE, floor, len(pending)).row
    assert (row is not None) == bool(pending)
    if row is not None:
        assert (owed + held).sequence[row] == max(pending)


def test_deliveries_behind_a_sequence() -> None:
    rest = given_to_us((1, 1), (5, 2), (3, 3)).after(2)
    assert np.array_equal(rest.sequence, [5, 3])
    assert rest.reply.to_pylist()[1].startswith("$JS.ACK.S.d.1.3.3.")
