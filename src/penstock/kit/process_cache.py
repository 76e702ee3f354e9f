"""What a Python process keeps from task to task, such as connections: a worker of Spark runs many tasks. Knows no
protocol.

It is kept on `sys`: a module that was pickled by value, as `penstock.register` does it, has new globals in each task.
"""

import os
import sys
import time
from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar, cast

# Spark ends a worker after a minute without work; a connection need not wait longer for its next use.
MOST_IDLE = 60.0

T = TypeVar("T")


def shared(name: str, make: Callable[[], T]) -> T:
    """The object of that name in this process, made when it is first asked for."""
    key = f"_penstock_{name}"
    if key in sys.__dict__:
        return cast(T, sys.__dict__[key])
    return cast(T, sys.__dict__.setdefault(key, make()))  # another thread may have been faster


class Pooled(Protocol):
    """A connection that can be used again."""

    used: bool  # whether it has been, before its current use

    def alive(self) -> bool:
        """Whether it still works, as far as can be seen from here."""

    def close(self) -> None:
        """Hang up."""


P = TypeVar("P", bound=Pooled)


def take(key: Hashable, make: Callable[[], P]) -> P:
    """An idle connection of this process to the same place, as the same user, that is still alive, or a new one."""
    now = time.monotonic()
    for waiting in _idle().values():
        while waiting and now - waiting[0][0] > MOST_IDLE:
            waiting.pop(0)[1].close()
    waiting = _idle().get((os.getpid(), key), [])
    while waiting:
        connection = waiting.pop()[1]
        if connection.alive():
            connection.used = True
            return connection  # type: ignore[return-value]  # what lies under a key was made by the same `make`
        connection.close()
    return make()


def keep(key: Hashable, connection: Pooled) -> None:
    """Give a connection back after use, for the next task of this process."""
    _idle().setdefault((os.getpid(), key), []).append((time.monotonic(), connection))


def close_all() -> None:
    """Close all idle connections."""
    for waiting in _idle().values():
        while waiting:
            waiting.pop()[1].close()


def _idle() -> dict[Hashable, list[tuple[float, Pooled]]]:
    idle: dict[Hashable, list[tuple[float, Pooled]]] = shared("idle", dict)
    return idle
