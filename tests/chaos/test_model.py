"""The model of the rounds: a judge that lets nothing pass that must not be, and complains of nothing else."""

from typing import Any

import pytest
from operators.model import Cause, Model, Promise, Record, Row

from penstock.errors import ConnectError, DataLossError, PenstockError


def at(position: int, life: str = "one") -> dict[str, Any]:
    return {"next": {"S": position}, "epochs": {"S": life}}


def model(records: int = 5, **given: Any) -> Model:
    """A query that began at the first of some records."""
    made = Model(start=at(1), **given)
    made.born("S", "one")
    for number in range(records):
        made.records[number] = Record(number, "k", b"%d" % number, (), "S", 0, number + 1)
    return made


def rows(*numbers: int) -> list[Row]:
    return [Row(number, "k", b"%d" % number, (), "T") for number in numbers]


def judged(made: Model, written: list[Row], position: int = 6, *, well: bool = True, **promise: bool) -> str:
    return "; ".join(made.judge(written, Promise(**promise), at(position), well=well))


def test_rows_that_are_all_there_once_are_well() -> None:
    assert judged(model(), rows(0, 1, 2, 3, 4)) == ""


def test_a_row_that_is_missing_or_twice_is_wrong_unless_nothing_else_was_promised() -> None:
    assert "1 rows are missing, and nobody took them away: 2" in judged(model(), rows(0, 1, 3, 4))
    assert "1 rows are there more than once: 1" in judged(model(), rows(0, 1, 1, 2, 3, 4))
    assert judged(model(), rows(0, 1, 1, 3, 4), all=False, once=False) == ""


def test_a_row_with_another_body_key_or_header_is_wrong() -> None:
    for other in (Row(2, "k", b"x", ()), Row(2, "j", b"2", ()), Row(2, "k", b"2", (("h", b""),))):
        assert "row 2 was" in judged(model(), [*rows(0, 1, 3, 4), other])
    assert "nothing that the query was to read" in judged(model(), rows(0, 1, 2, 3, 4, 9))


def test_a_record_that_nobody_asked_for_must_not_come() -> None:
    made = model()
    made.records[2].asked = False
    assert judged(made, rows(0, 1, 3, 4)) == ""
    assert "nothing that the query was to read" in judged(made, rows(0, 1, 2, 3, 4))


@pytest.mark.parametrize(
    ("fails", "silent", "wrong"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_what_was_taken_away_unread_must_be_told_unless_the_options_say_otherwise(
    fails: bool, silent: bool, wrong: bool
) -> None:
    made = model(fail_on_loss=fails)
    made.take([made.records[2]], "a purge", silent=silent)
    assert ("lost without a word: 2 (a purge)" in judged(made, rows(0, 1, 3, 4))) is wrong
    assert judged(made, rows(0, 1, 2, 3, 4)) == "", "it was read before"


def test_a_query_that_was_stopped_owes_what_it_has_committed() -> None:
    assert judged(model(), rows(0, 1), 3, well=False) == ""
    assert "missing" in judged(model(), rows(0), 3, well=False)
    made = model()
    made.take([made.records[4]], "a purge")
    assert judged(made, rows(0, 1), 3, well=False) == "", "that is what it stopped for"


def test_records_of_a_life_that_the_query_has_left_are_behind_it() -> None:
    made = model()
    made.take([made.records[4]], "made again")
    made.born("S", "two")
    stopped = made.judge(rows(0, 1, 2, 3), Promise(), at(1, "two"), well=False)
    assert "lost without a word: 4" in "; ".join(stopped)


def test_rows_of_a_task_must_be_in_order() -> None:
    made = model()
    made.tasks[1, 0] = [0, 1, 2, 3, 4]
    assert "out of order" in judged(made, rows(0, 2, 1, 3, 4))
    made.tasks = {(1, 0): [0, 2, 4], (1, 1): [1, 3]}
    assert judged(made, rows(1, 0, 2, 3, 4)) == "", "tasks may come in any order"


def test_rows_of_a_target_that_is_no_more_may_be_written_again() -> None:
    old = [Row(0, "k", b"0", (), "T", life=0)]
    new = [Row(n, "k", b"%d" % n, (), "T", life=1) for n in range(5)]
    assert judged(model(), old + new) == ""


@pytest.mark.parametrize(
    ("error", "explained"),
    [
        (ConnectError("lost the connection"), True),
        (ConnectError("no room"), False),
        (DataLossError("lost the connection to what was there"), False),
        (PenstockError("lost the connection"), False),
    ],
)
def test_an_error_is_explained_by_an_event_that_fits(error: PenstockError, explained: bool) -> None:
    made = model()
    made.causes.append(Cause("a cut", [(ConnectError, "connection"), (PenstockError, "room for")]))
    assert (made.explain(error) is not None) is explained


def test_loss_is_never_explained_where_the_options_allow_it() -> None:
    made = model(fail_on_loss=False)
    made.causes.append(Cause("a purge", [(DataLossError, "")]))
    assert made.explain(DataLossError("gone")) is None
