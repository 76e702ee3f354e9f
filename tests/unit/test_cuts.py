"""Rows are cut into tasks of about equal rows, and each count that it takes is worth it."""

import random
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.planning.cuts import EXACT_CUTS, Tally, cut
from penstock.planning.positions import Range


def tally_of(rows: list[int], span: Range, calls: list[int]) -> Tally:
    def count(positions: Sequence[int]) -> Sequence[int]:
        calls.append(len(positions))
        return [len(rows) - bisect_left(rows, p) for p in positions]

    between = bisect_left(rows, span.end) - bisect_left(rows, span.start)
    return Tally(count, span, between)


@given(
    st.sets(st.integers(0, 300), max_size=80),
    st.integers(0, 200),
    st.integers(0, 120),
    st.lists(st.integers(0, 90), max_size=6).map(sorted),
    st.integers(0, 5),
    st.integers(0, 9),
)
def test_a_position_has_the_rows_before_it_that_were_asked_for(
    rows: set[int], start: int, length: int, targets: list[int], slack: int, worst: int
) -> None:
    span, calls = Range("s", start, start + length), list[int]()
    tally = tally_of(sorted(rows), span, calls)
    found = tally.locate(targets, slack, worst)
    assert found == sorted(found)
    for target, position in zip(targets, found, strict=True):
        assert span.start <= position <= span.end
        before = sum(start <= row < position for row in rows)
        assert abs(before - min(target, tally.rows)) <= (max(slack, worst) if slack else 0)
    assert len(calls) <= 3 * length.bit_length()
    calls.clear()
    tally.locate(targets, max(slack, worst))
    assert not slack or calls == [], "what was counted is known"


@pytest.mark.parametrize(
    ("rows", "most"),
    [
        pytest.param(list(range(0, 1_000_000, 10)), 8, id="even"),
        pytest.param(sorted(random.Random(7).sample(range(1_000_000), 100_000)), 10, id="random"),
        pytest.param([*range(0, 50_000), *range(50_000, 1_000_000, 19)], 30, id="dense at first"),
        pytest.param([n for n in range(1_000_000) if n // 10_000 % 10 == 0], 60, id="in clumps"),
        pytest.param(list(range(900_000, 1_000_000)), 40, id="at the end"),
    ],
)
def test_cuts_that_only_balance_are_found_with_few_counts(rows: list[int], most: int) -> None:
    calls: list[int] = []
    tally = tally_of(rows, Range("s", 0, 1_000_000), calls)
    part = len(rows) // 8
    cuts = tally.locate([part * k for k in range(1, 8)], part // 10, part * 2 // 5)
    sizes = [bisect_left(rows, b) - bisect_left(rows, a) for a, b in pairwise([0, *cuts, 1_000_000])]
    assert all(0.2 * part <= size <= 1.8 * part for size in sizes)
    assert sum(calls) <= most, "bisection takes 160"


def test_a_tally_whose_counts_contradict_each_other_comes_to_an_end() -> None:
    """Replicas lag behind each other, and messages are deleted meanwhile."""
    chance = random.Random(5)
    tally = Tally(lambda at: [chance.randrange(200) for _ in at], Range("s", 0, 10_000), 150)
    for slack in (0, 3):
        found = tally.locate([10, 50, 51, 140], slack)
        assert found == sorted(found)
        assert found[0] >= 0
        assert found[-1] <= 10_000


def test_many_cuts_are_counted_at_few_places() -> None:
    asked: list[int] = []

    def count(positions: Sequence[int]) -> Sequence[int]:
        asked.append(len(positions))
        return [(100_000 - p) // 10 for p in positions]

    cuts = cut(Tally(count, Range("s", 0, 100_000), 10_000), 100_000, 10_000, 10, 11)
    assert len(cuts) == 999
    assert cuts == sorted(cuts)
    assert max(asked) <= EXACT_CUTS + 1
    assert max(b - a for a, b in pairwise([0, *cuts, 100_000])) <= 2 * 100


@pytest.mark.parametrize(
    ("rows", "per_task", "most"), [(3000, 1000, 1000), (50_000, 1000, 1000), (60_000, 1500, 100_000)]
)
def test_no_task_gets_more_than_it_may(rows: int, per_task: int, most: int) -> None:
    """Also where the rows would just fill the tasks: then there are some more of them."""
    calls: list[int] = []
    there = sorted(random.Random(rows).sample(range(rows * 5), rows))
    cuts = cut(tally_of(there, Range("s", 0, rows * 5), calls), rows * 5, rows, per_task, most)
    sizes = [bisect_left(there, b) - bisect_left(there, a) for a, b in pairwise([0, *cuts, rows * 5])]
    assert max(sizes) <= min(most, 1.5 * per_task)
    assert min(sizes) >= 0.5 * rows / len(sizes)
    assert sum(sizes) == rows
    assert rows / per_task <= len(sizes) <= 1.4 * rows / per_task
    assert sum(calls) < 6 * len(sizes)
