"""Errors of ours in a user's own program: last on the terminal, alone and once. Knows the hooks of Python and IPython
for errors that nobody catches; no server.

Spark puts 20 to 100 lines around such an error, and the user reads the last line first. What is left of it here: the
lines of the user's program that led to it, an empty line, and the sentence.
"""

import os
import sys
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from penstock.errors import PenstockError, ProtocolError
from penstock.spark.sentence import Told, found

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]
# Packages whose lines tell a user nothing about their own program.
NOT_THE_USERS = ("penstock", "pyspark", "py4j", "IPython", "ipykernel")


class _Hooks:
    """Whether errors are shown in this way, and what showed them before."""

    is_on = False
    before: "Hook | None" = None  # None: ours is not in place


def errors_last(is_on: bool = True) -> None:
    """Show errors of ours that nobody catches in this program, and in this notebook, as a sentence at the end.

    All others are shown as before. `errors_last(False)` ends it. Threads other than the main one are not meant.
    """
    _Hooks.is_on = is_on
    if is_on and _Hooks.before is None:
        _Hooks.before, sys.excepthook = sys.excepthook, _uncaught
    elif not is_on and sys.excepthook is _uncaught and _Hooks.before is not None:
        sys.excepthook, _Hooks.before = _Hooks.before, None  # else somebody's hook calls ours, which hands on
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None and is_on and not shell.custom_exceptions:  # else the notebook has a way of its own
        from pyspark.errors import PySparkException

        of_java = (sys.modules["py4j.protocol"].Py4JError,) if "py4j.protocol" in sys.modules else ()
        shell.set_custom_exc((PenstockError, PySparkException, *of_java), _in_a_notebook)
    elif shell is not None and not is_on and PenstockError in shell.custom_exceptions:
        shell.set_custom_exc((), None)


def _uncaught(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
    lines = shown(error, at) if _Hooks.is_on else None
    if lines is None:
        (_Hooks.before or sys.__excepthook__)(kind, error, at)
    else:
        sys.stderr.write("".join(lines))


def _in_a_notebook(
    shell: Any, kind: type[BaseException], error: BaseException, at: TracebackType | None, tb_offset: int | None = None
) -> None:
    lines = shown(error, at)
    if lines is None:
        shell.showtraceback((kind, error, at), tb_offset=tb_offset)
    else:
        shell._showtraceback(kind, error, "".join(lines).splitlines())  # IPython's own, for each kind of notebook


def shown(error: BaseException, at: TracebackType | None) -> list[str] | None:
    """The lines of an error of ours, with those of the user's program before it. None for an error that is not ours."""
    told = _told(error)
    if told is None:
        return None
    frames = [frame for frame in traceback.extract_tb(at) if not frame.filename.startswith(_homes())]
    above = ["Traceback (most recent call last):\n", *traceback.format_list(frames)] if frames else []
    return [*above, "\n", f"{told}\n"]


def _told(error: BaseException) -> Told | None:
    if isinstance(error, ProtocolError):  # it may be a fault of ours; Python, too, shows the sentence last
        return None
    if isinstance(error, PenstockError):
        return Told(type(error).__name__, str(error))
    if not type(error).__module__.startswith(("pyspark.", "py4j.")):
        return None
    try:
        return found(str(error))
    except Exception:  # the text of an error of Java is Java's, which may have ended
        return None


def _homes() -> tuple[str, ...]:
    """The folders of `NOT_THE_USERS`, of those that are imported."""
    files = [getattr(sys.modules.get(name), "__file__", None) for name in NOT_THE_USERS]
    return tuple(os.path.join(os.path.dirname(file), "") for file in files if file)
