"""What Spark's own handler of errors passes on from a Python process, of ours and of others."""

import io
import os
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
from pyspark.util import handle_worker_exception

from penstock.errors import OptionError, ProtocolError
from penstock.spark.border import HIDE, Border


class Called(Border):
    """Something that Spark calls."""

    def wrong_option(self) -> None:
        raise OptionError("an option is wrong.")

    def lines(self) -> Iterator[int]:
        yield 1
        raise OptionError("an option is wrong.")

    def bug(self) -> None:
        raise KeyError("a bug")

    def strange(self) -> None:
        raise ProtocolError("the answer is strange.")


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HIDE, raising=False)


@pytest.fixture
def _worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a Python process of Spark."""
    monkeypatch.setitem(sys.modules, "pyspark.worker_util", ModuleType("pyspark.worker_util"))


def passed_on(name: str) -> str:
    """The text that Spark gets of an error."""
    out = io.BytesIO()
    try:
        list(getattr(Called(), name)() or ())
    except Exception as error:
        handle_worker_exception(error, out)
    return out.getvalue()[8:].decode()


@pytest.mark.usefixtures("_worker")
@pytest.mark.parametrize("name", ["wrong_option", "lines"])
def test_of_an_error_of_ours_spark_gets_the_sentence_alone(name: str) -> None:
    assert passed_on(name) == "penstock.OptionError: an option is wrong.\n"


@pytest.mark.usefixtures("_worker")
@pytest.mark.parametrize(
    ("name", "last"),
    [("bug", "KeyError: 'a bug'"), ("strange", "penstock.ProtocolError: the answer is strange.")],
)
def test_what_may_be_a_fault_of_ours_keeps_its_traceback(name: str, last: str) -> None:
    said = passed_on(name).strip().splitlines()
    assert said[0] == "Traceback (most recent call last):"
    assert said[-1] == last
    assert any(f"in {name}" in line for line in said)


@pytest.mark.usefixtures("_worker")
def test_an_error_after_one_of_ours_in_the_same_process_keeps_its_traceback() -> None:
    passed_on("wrong_option")
    assert HIDE not in os.environ
    out = io.BytesIO()
    try:
        raise ZeroDivisionError  # of a user, which does not cross the border
    except ZeroDivisionError as error:
        handle_worker_exception(error, out)
    assert b"Traceback" in out.getvalue()


@pytest.mark.usefixtures("_worker")
def test_a_bug_while_an_error_of_ours_is_handled_keeps_its_traceback() -> None:
    out = io.BytesIO()
    try:
        try:
            Called().wrong_option()
        finally:
            Called().bug()
    except KeyError as error:
        handle_worker_exception(error, out)
    assert out.getvalue().count(b"Traceback") == 2


@pytest.mark.usefixtures("_worker")
def test_where_a_session_hides_all_tracebacks_it_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HIDE, "1")
    passed_on("wrong_option")
    assert passed_on("bug") == "KeyError: 'a bug'\n"
    assert os.environ[HIDE] == "1"


def test_in_a_program_of_a_user_nothing_is_hidden() -> None:
    assert "Traceback" in passed_on("wrong_option")
