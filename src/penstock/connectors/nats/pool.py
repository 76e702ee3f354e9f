"""Connections that wait for their next use: Spark's workers live through many tasks."""

import os
import sys
import time
from typing import Any

from penstock.connectors.nats.client import Connection
from penstock.connectors.nats.options import NatsOptions

# Spark ends a worker after a minute without work; a connection need not wait longer for its next use.
MOST_IDLE = 60.0


def connect(options: NatsOptions) -> Connection:
    """An idle connection of this process that is still alive, or a new one."""
    _forget_old()
    waiting = _idle().get(key(options), [])
    while waiting:
        _, connection = waiting.pop()
        if connection.alive():
            connection.used = True
            return connection
        connection.close()
    return Connection(options)


def keep(connection: Connection) -> None:
    """Give a connection back after use, for the next task of this process."""
    _idle().setdefault(key(connection.options), []).append((time.monotonic(), connection))


def _idle() -> dict[Any, list[tuple[float, Connection]]]:
    """Kept on `sys`: a module that was pickled by value has new globals in each task."""
    idle: dict[Any, list[tuple[float, Connection]]] = sys.__dict__.setdefault("_penstock_idle_nats", {})
    return idle


def _forget_old() -> None:
    now = time.monotonic()
    for waiting in _idle().values():
        while waiting and now - waiting[0][0] > MOST_IDLE:
            waiting.pop(0)[1].close()


def key(options: NatsOptions) -> Any:
    """What tells connections of this process apart: whom they reach, as whom."""
    return (os.getpid(), *(getattr(options, name) for name in NatsOptions.model_fields))
