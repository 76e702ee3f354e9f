"""A bad network between a client and a server: cuts, stalls, delays and refuses, to the byte."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from io import BufferedReader
from types import TracebackType
from typing import Self

from penstock.testing.nats_server import free_port


class Proxy:
    """Passes bytes on to 127.0.0.1:`port`.

    `plan` says what befalls connections, in turn: ("cut", n) ends all of them after n more bytes from the
    server, ("stall", n) lets the one that is at n more bytes hang for ever. Later connections are well again,
    until the next step of the plan. `sent` are numbers of bytes from the client after which all are cut, in turn.
    `instead` are answers that the first connections get, each for what it says first, and nothing more. `rate` is how
    many bytes a second go through, from the client and from the server. While it is not `reachable`, whoever connects
    is sent away. `frames` edits each message from the server, its line and its body, as a link between servers does.
    """

    def __init__(
        self,
        port: int,
        plan: list[tuple[str, int]] | None = None,
        delay: float = 0.0,
        sent: list[int] | None = None,
        instead: list[bytes] | None = None,
        rate: float = 0.0,
        frames: Callable[[bytes, bytes], bytes] | None = None,
    ):
        self.target, self.plan, self.delay, self.sent = port, list(plan or []), delay, list(sent or [])
        self.instead, self.rate, self.reachable = list(instead or []), rate, True
        self.frames = frames
        self.connections = 0
        self.passed = 0  # bytes from the server, since the last step of the plan
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", free_port()))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept, self._listener)

    @property
    def url(self) -> str:
        """Its address, for a client of NATS."""
        return f"nats://127.0.0.1:{self.port}"

    def soon(self, step: str, after: int) -> None:
        """Take a step of the plan, after so many more bytes from the server."""
        with self._lock:
            self.passed, self.plan = 0, [(step, after)]

    def cut(self) -> None:
        """End all connections now."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                _end(end)

    def refuse(self) -> None:
        """End all connections, and let nobody in again."""
        _end(self._listener)
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.refuse()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def _start(self, what: object, *arguments: object) -> None:
        thread = threading.Thread(target=what, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                self.connections += 1
                if self.instead:
                    client.recv(65536)
                    client.sendall(self.instead.pop(0))
                    _end(client)
                    continue
                if not self.reachable:
                    _end(client)
                    continue
                try:
                    upstream = socket.create_connection(("127.0.0.1", self.target), timeout=5)
                    for end in (client, upstream):  # a bad network, but no slower than it must be
                        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                except OSError:
                    _end(client)
                    continue
                upstream.settimeout(None)
                with self._lock:
                    self._pairs.append((client, upstream))
                self._start(self._up, client, upstream)
                self._start(self._down, upstream, client)

    def _up(self, client: socket.socket, upstream: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                with self._lock:
                    cut = bool(self.sent) and len(data) >= self.sent[0]
                    if cut:
                        data = data[: self.sent.pop(0)]
                    elif self.sent:
                        self.sent[0] -= len(data)
                if self.rate:
                    time.sleep(len(data) / self.rate)
                upstream.sendall(data)
                if cut:
                    self.cut()
        _end(upstream)

    def _down(self, upstream: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if self.frames is not None:
                self._edit(upstream.makefile("rb"), client)
            while data := upstream.recv(65536):
                time.sleep(self.delay + (len(data) / self.rate if self.rate else 0.0))
                step, data = self._befalls(data)
                client.sendall(data)
                if step == "cut":
                    self.cut()
                if step == "stall":
                    while upstream.recv(65536):
                        pass
                    return
        _end(client)

    def _edit(self, upstream: BufferedReader, client: socket.socket) -> None:
        assert self.frames is not None
        while line := upstream.readline():
            words = line.split()
            is_message = bool(words) and words[0] in (b"MSG", b"HMSG")
            client.sendall(self.frames(line, upstream.read(int(words[-1]) + 2)) if is_message else line)

    def _befalls(self, data: bytes) -> tuple[str, bytes]:
        """What happens within `data`, and how much of it passes before."""
        with self._lock:
            if not self.plan or self.passed + len(data) < self.plan[0][1]:
                self.passed += len(data)
                return "", data
            step, at = self.plan.pop(0)
            data = data[: max(0, at - self.passed)]
            self.passed = 0
            return step, data


def _end(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
