"""What a program shows of errors that nobody catches: of ours a sentence at the end, and of others what it would."""

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

import penstock
from penstock.errors import OptionError, PenstockError, ProtocolError
from penstock.spark.sentence import found

SENTENCE = "unknown option 'x' for jetstream. Did you mean 'y'?"
OF_SPARK = f"""[STREAM_FAILED] Query [id = 1] terminated: [PYTHON_EXCEPTION] It failed: penstock.OptionError: {SENTENCE}
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 1]
"""


@pytest.fixture(autouse=True)
def before(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[BaseException]]:
    """Errors that came to the hook that was there before."""
    seen: list[BaseException] = []
    penstock.errors_last(False)
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, at: seen.append(error))
    penstock.errors_last()
    yield seen
    penstock.errors_last(False)


def uncaught(error: Exception) -> None:
    """An error at the end of a program."""
    try:
        raise error
    except Exception as raised:
        sys.excepthook(type(raised), raised, raised.__traceback__)


@pytest.mark.parametrize("error", [OptionError(SENTENCE), PySparkException(OF_SPARK)])
def test_an_error_of_ours_comes_last_after_the_lines_of_the_program(
    error: Exception, before: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    uncaught(error)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "raise error" in lines[2]
    assert lines[-2:] == ["", f"OptionError: {SENTENCE}"]
    assert not before


@pytest.mark.parametrize(
    "error",
    [
        KeyError("x"),
        PySparkException("[PYTHON_EXCEPTION] ZeroDivisionError"),
        ValueError(OF_SPARK),
        Py4JError(),
        ProtocolError("which may be a fault of ours"),
    ],
)
def test_what_is_not_ours_goes_to_the_hook_that_was_there(
    error: Exception, before: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    uncaught(error)
    assert before == [error]
    assert capsys.readouterr().err == ""


def test_it_can_be_turned_off_also_where_another_hook_came_after(
    before: list[BaseException], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours: Callable[..., Any] = sys.excepthook
    monkeypatch.setattr(sys, "excepthook", lambda *args: ours(*args))
    penstock.errors_last(False)
    error = OptionError(SENTENCE)
    uncaught(error)
    assert (before, capsys.readouterr().err) == ([error], "")
    penstock.errors_last()
    uncaught(error)
    assert capsys.readouterr().err.endswith(f"\n\nOptionError: {SENTENCE}\n")


class Shell:
    """What of IPython's shell is used."""

    custom_exceptions: tuple[type[BaseException], ...] = ()
    handler: Any = None

    def __init__(self) -> None:
        self.said: list[str] = []

    def set_custom_exc(self, kinds: tuple[type[BaseException], ...], handler: Any) -> None:
        self.custom_exceptions, self.handler = kinds, handler

    def showtraceback(self, error: tuple[Any, ...], tb_offset: int | None) -> None:
        self.said.append("as always")

    def _showtraceback(self, kind: Any, error: Any, lines: list[str]) -> None:
        self.said += lines

    def run(self, error: Exception) -> None:
        """A cell that fails."""
        try:
            raise error
        except self.custom_exceptions as raised:
            self.handler(self, type(raised), raised, raised.__traceback__, tb_offset=None)


def test_a_notebook_shows_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    shell, module = Shell(), ModuleType("IPython")
    module.get_ipython = lambda: shell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", module)
    penstock.errors_last()
    penstock.errors_last()  # twice is as once
    shell.run(PySparkException(OF_SPARK))
    assert shell.said[-2:] == ["", f"OptionError: {SENTENCE}"]
    shell.run(PySparkException("[PYTHON_EXCEPTION] ZeroDivisionError"))
    assert shell.said[-1] == "as always"
    assert PenstockError in shell.custom_exceptions
    penstock.errors_last(False)
    assert shell.custom_exceptions == ()
    shell.set_custom_exc((KeyError,), "a way of its own")
    penstock.errors_last()
    assert shell.handler == "a way of its own"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OF_SPARK, f"OptionError: {SENTENCE}"),
        (f"x: penstock.clients.nats.client.Denied: {SENTENCE} SQLSTATE: 38000", f"Denied: {SENTENCE}"),
        ("penstock.ConnectError: one\nline and another\n\nJVM stacktrace:\nx", "ConnectError: one\nline and another"),
        (f"{OF_SPARK}\nDuring handling of the above exception, another exception occurred:\n\nValueError: x", None),
        ("a table called penstock.orders: not there", None),
    ],
)
def test_an_error_of_ours_is_found_in_sparks_text(text: str, expected: str | None) -> None:
    told = found(text)
    assert (told and str(told)) == expected
