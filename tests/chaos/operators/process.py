"""Spark's Python processes, played by threads: each keeps what it knows to itself, and can be killed at any moment.

Knows sockets, loops and threads of Python; nothing of Penstock but that it keeps what lasts on `sys`.
"""

import asyncio
import contextlib
import itertools
import socket
import sys
import threading
import time
from types import TracebackType
from typing import Any, Self

import pytest

_here = threading.local()
_numbers = itertools.count(1)


class Killed(BaseException):
    """This process is no more. No `except Exception` outlives that, and no `finally` reaches a server again."""


class Process:
    """What runs inside `with process:`, and every thread started there. `fuse` is how many steps on the network it has
    left to live: a step is the moment before or after bytes are sent, or before they are received.
    """

    def __init__(self, name: str, fuse: float = float("inf")):
        self.name, self.fuse, self.number = name, fuse, next(_numbers)
        self.memory: dict[str, Any] = {"_penstock_settled": True}  # what the process keeps on `sys`
        self.wrong = 0.0  # by how many seconds the clock of its machine is
        self.dead = False
        self._sockets: list[_Socket] = []

    def __enter__(self) -> Self:
        _here.__dict__.setdefault("processes", []).append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _here.processes.pop()

    def kill(self) -> None:
        """Its sockets are closed by the system, and whoever is in it gets no further."""
        self.dead = True
        for each in self._sockets:
            each.abort()
        self.memory.clear()

    def tick(self) -> None:
        """A step on the network, or the end."""
        self.fuse -= 1
        if self.fuse < 0 and not self.dead:
            self.kill()
        if self.dead:
            raise Killed(self.name)

    def own(self, opened: "_Socket") -> None:
        self._sockets.append(opened)


def current() -> Process | None:
    """The process of this thread; None for the test itself."""
    entered: list[Process] = _here.__dict__.get("processes", [])
    return entered[-1] if entered else None


class _Socket(socket.socket):
    """A socket of a process."""

    process: Process

    def sendall(self, *given: Any) -> None:
        self.process.tick()
        super().sendall(*given)
        self.process.tick()

    def recv(self, *given: Any) -> bytes:
        self.process.tick()
        return super().recv(*given)

    def recv_into(self, *given: Any) -> int:
        self.process.tick()
        return super().recv_into(*given)

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)
        self.close()


class _Loop(asyncio.SelectorEventLoop):
    """A loop of a process: Iggy's client has sockets of its own, and is used through this."""

    process: Process

    def run_until_complete(self, future: Any) -> Any:
        try:
            self.process.tick()
        except Killed:
            if asyncio.iscoroutine(future):
                future.close()
            raise
        try:
            return super().run_until_complete(future)
        finally:
            self.process.tick()


class _Sys:
    """What `import sys` gives to a module of Penstock: a dictionary of each process's own."""

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]  # that is the point
        process = current()
        return sys.__dict__ if process is None else process.memory

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)


class _Time:
    """And what `import time` gives: the clock on the wall of its machine."""

    def time_ns(self) -> int:
        process = current()
        return time.time_ns() + int(process.wrong * 1e9 if process is not None else 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def play(patch: pytest.MonkeyPatch) -> None:
    """From now on, and until the patch is taken back, a `with process:` is a process."""
    connect, new_loop, start = socket.create_connection, asyncio.new_event_loop, threading.Thread.start

    def create_connection(*given: Any, **more: Any) -> socket.socket:
        process = current()
        if process is None:
            return connect(*given, **more)
        process.tick()
        raw = connect(*given, **more)
        timeout = raw.gettimeout()
        opened = _Socket(raw.family, raw.type, raw.proto, raw.detach())
        opened.settimeout(timeout)
        opened.process = process
        process.own(opened)
        return opened

    def new_event_loop() -> asyncio.AbstractEventLoop:
        process = current()
        if process is None:
            return new_loop()
        loop = _Loop()
        loop.process = process
        return loop

    def start_inside(thread: threading.Thread) -> None:
        process, run = current(), thread.run
        if process is not None:

            def inside() -> None:
                with process, contextlib.suppress(Killed):
                    run()

            thread.run = inside  # type: ignore[method-assign]  # a thread belongs to the process that starts it
        start(thread)

    patch.setattr(socket, "create_connection", create_connection)
    patch.setattr(asyncio, "new_event_loop", new_event_loop)
    patch.setattr(threading.Thread, "start", start_inside)
    for name, module in list(sys.modules.items()):
        if name.startswith("penstock.") and getattr(module, "sys", None) is sys:
            patch.setattr(module, "sys", _Sys())
        if name.startswith("penstock.") and getattr(module, "time", None) is time:
            patch.setattr(module, "time", _Time())
