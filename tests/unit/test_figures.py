"""What was done is counted once, and reaches whoever asks."""

import pytest

from penstock.errors import ConnectError, Disconnected
from penstock.kit.figures import Figures, count, so_far
from penstock.kit.retry import Retry


def test_what_a_task_did_is_the_difference_between_two_moments() -> None:
    before = so_far()
    count(rows=3, bytes=100)
    count(rows=2, already_there=1)
    done = so_far() - before
    assert done == Figures(rows=5, bytes=100, already_there=1)
    assert done.as_json() == {"rows": 5, "bytes": 100, "alreadyThere": 1}
    assert Figures.of_json(done.as_json()) == done


def test_a_figure_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(AttributeError):
        count(rowz=1)


def test_retries_and_reconnects_are_counted() -> None:
    before, answers = so_far(), [Disconnected("away"), Disconnected("away"), "here"]

    def ask() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    retry = Retry("asking", timeout=60, sleep=lambda seconds: None)
    assert retry.run(ask) == "here"
    done = so_far() - before
    assert (done.retries, done.reconnects) == (2, 1)
    assert done.waited > 0
    assert Retry("asking", timeout=60).run(lambda: "at once") == "at once"
    assert (so_far() - before).reconnects == 1


def test_one_lost_connection_is_one_reconnect_also_where_questions_are_asked_in_between() -> None:
    before, retry = so_far(), Retry("writing", timeout=60, sleep=lambda seconds: None)
    retry.after(Disconnected("away"))
    retry.run(lambda: "what is there?")
    retry.progress()
    assert ((so_far() - before).retries, (so_far() - before).reconnects) == (1, 1)


def test_a_server_that_never_comes_back_is_no_reconnect() -> None:
    before = so_far()

    def ask() -> None:
        raise Disconnected("away")

    with pytest.raises(ConnectError):
        Retry("asking", attempts=2, sleep=lambda seconds: None).run(ask)
    assert ((so_far() - before).retries, (so_far() - before).reconnects) == (2, 0)
