"""The border between our code and Spark's Python processes: errors of ours cross it without their traceback. Knows
these processes; no server.

When a Python process of Spark fails, Spark hands on the whole traceback, and shows it two or three times. For an error
of ours the sentence says all: where it was raised helps nobody. Spark leaves the traceback out where a variable of the
environment asks for it at that moment.
"""

import functools
import inspect
import os
import sys
import weakref
from collections.abc import Callable, Generator
from types import FunctionType
from typing import Any

from penstock.errors import PenstockError, ProtocolError

HIDE = "SPARK_HIDE_TRACEBACK"
# Where this fails, Spark stumbles over its own clean-up, and only the traceback tells what came before.
KEEPS_ITS_TRACEBACK = "streamReader"
_hiding: "list[weakref.finalize[Any, PenstockError]]" = []


class Border:
    """The base of all that Spark calls. Every public method of a subclass is one that Spark calls."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for name, method in list(vars(cls).items()):
            if isinstance(method, FunctionType) and not name.startswith("_") and name != KEEPS_ITS_TRACEBACK:
                setattr(cls, name, _crossing(method))


def _crossing(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same method. What it raises passes `let_go`."""

    @functools.wraps(method)
    def called(*args: Any, **more: Any) -> Any:
        try:
            return method(*args, **more)
        except Exception as error:
            let_go(error)
            raise

    @functools.wraps(method)
    def iterated(*args: Any, **more: Any) -> Generator[Any, Any, Any]:
        try:
            return (yield from method(*args, **more))
        except Exception as error:
            let_go(error)
            raise

    return iterated if inspect.isgeneratorfunction(method) else called


def let_go(error: Exception) -> None:
    """Let Spark leave out the traceback of an error of ours that is about to leave. Other errors keep theirs, and so
    does a ProtocolError, which may be a fault of ours.

    The process ends after the error, as Spark does it. Should one go on, the variable is gone as soon as the error is.
    """
    if "pyspark.worker_util" not in sys.modules:  # this is no process of Spark, but a program of a user
        return
    if isinstance(error, PenstockError) and not isinstance(error, ProtocolError):
        if HIDE not in os.environ:
            os.environ[HIDE] = "1"
            _hiding.append(weakref.finalize(error, os.environ.pop, HIDE, None))
        return
    while _hiding:  # a bug after an error of ours, which may still be there as its context
        _hiding.pop()()
