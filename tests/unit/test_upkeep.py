"""What the durable of a query keeps, and what stands in the checkpoint about it."""

import pytest

from penstock.connectors.jetstream.ownership import Durable, Note

NOTE = Note("query", "a.>,b", "2026-11-16T12:00:00Z")


def test_a_note_comes_back_from_the_checkpoint() -> None:
    assert Note.of(" ".join(NOTE)) == NOTE


@pytest.mark.parametrize("text", ["", ">", "2026-11-16T12:00:00Z", "a b", "a b c d"])
def test_a_note_that_says_something_else_is_none(text: str) -> None:
    assert Note.of(text) is None


@pytest.mark.parametrize(
    ("floor", "first", "filtered", "expected"),
    [
        (49, 50, False, False),  # it keeps all from the position on
        (0, 1, False, False),
        (50, 51, False, True),  # nobody else can have moved it
        (60, 40, False, True),
        (99, 100, True, False),  # others' messages before the first one are gone: the server moved it
        (99, 60, True, True),  # it keeps nothing up to 99, and messages are there
    ],
)
def test_a_durable_that_is_ahead_of_the_query_has_released(
    floor: int, first: int, filtered: bool, expected: bool
) -> None:
    assert Durable(NOTE, False, floor).has_released(50, first, filtered) is expected
