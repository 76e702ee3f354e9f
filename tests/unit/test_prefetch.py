"""The next item, made early."""

from collections.abc import Iterator

import pytest

from penstock.kit.prefetch import Prefetch


def _numbers(made: list[int], fail_at: int = -1) -> Iterator[int]:
    for i in range(3):
        if i == fail_at:
            raise ValueError(f"item {i} is bad")
        made.append(i)
        yield i


def test_nothing_is_made_before_it_is_asked_for() -> None:
    made: list[int] = []
    ahead = Prefetch(_numbers(made))
    assert made == []
    assert next(ahead) == 0
    assert made == [0]


def test_an_item_made_early_is_neither_lost_nor_made_twice() -> None:
    made: list[int] = []
    ahead, seen = Prefetch(_numbers(made)), []
    for item in ahead:
        ahead.prepare()
        ahead.prepare()
        seen.append(item)
    assert seen == made == [0, 1, 2]


def test_what_goes_wrong_with_an_item_is_raised_when_it_is_asked_for() -> None:
    ahead = Prefetch(_numbers([], fail_at=1))
    assert next(ahead) == 0
    ahead.prepare()
    with pytest.raises(ValueError, match="item 1 is bad"):
        next(ahead)


def test_an_iterator_that_is_empty_ends_at_once() -> None:
    ahead = Prefetch(iter(()))
    ahead.prepare()
    assert list(ahead) == []
