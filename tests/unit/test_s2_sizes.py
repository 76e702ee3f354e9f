"""Sizes of records from a few of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.s2 import sizes


@given(st.integers(1, 10**12))
def test_places_are_few_and_all_ahead(ahead: int) -> None:
    places = sizes.places(ahead)
    assert places[0] == 0
    assert places == sorted(set(places))
    assert places[-1] < ahead
    assert len(places) <= 16


@given(st.integers(1, 10**7), st.integers(1, 10**6), st.integers(1, 10**9))
def test_records_of_one_size_have_that_size(ahead: int, size: int, limit: int) -> None:
    average = sizes.average([float(size)] * len(sizes.places(ahead)), ahead, limit)
    assert average == pytest.approx(size if size <= limit else limit)


def test_what_lies_behind_the_limit_does_not_count() -> None:
    places = sizes.places(1_000_000)
    small_first = [10.0 if place < 5000 else 1e6 for place in places]
    assert sizes.average(small_first, 1_000_000, 5000) == pytest.approx(10)
    # With a limit that reaches the large ones, they do: 64 mb are a few hundred records behind the small ones.
    rows = (64 << 20) / sizes.average(small_first, 1_000_000, 64 << 20)
    assert 500 < rows < 6000
    large_first = [1e6 if place < 5 else 10.0 for place in places]
    assert (64 << 20) / sizes.average(large_first, 1_000_000, 64 << 20) > 100_000


def test_nothing_to_look_at_after_all_is_no_size() -> None:
    assert sizes.average([0.0] * 3, 20, 1000) == 0
