"""A small HTTP server that notes what it was asked, for what s2-lite never does: refuse, redirect, hang up."""

import contextlib
import http.client
import re
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from penstock.testing.nats_server import free_port


class HttpDouble:
    """Answers each request by `answer(head, body)`; None ends the connection without a word.

    `heads` are the requests with their headers, in the order of their coming, `connections` how many there were. A
    connection is ended after `most` answers, as proxies do; `polite` says so in the last of them.
    """

    def __init__(self, answer: Callable[[str, bytes], bytes | None], most: float = float("inf"), polite: bool = True):
        self.answer, self.most, self.polite = answer, most, polite
        self.heads: list[str] = []
        self.connections = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", free_port()))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(5)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        waiting, answered = b"", 0
        with client, contextlib.suppress(OSError):
            while answered < self.most:
                while b"\r\n\r\n" not in waiting:
                    data = client.recv(4096)
                    if not data:
                        return
                    waiting += data
                first, _, waiting = waiting.partition(b"\r\n\r\n")
                head = first.decode()
                size = int((re.findall(r"(?i)content-length: (\d+)", head) or [0])[0])
                while len(waiting) < size:
                    waiting += client.recv(65536)
                body, waiting = waiting[:size], waiting[size:]
                with self._lock:
                    self.heads.append(head)
                said = self.answer(head, body)
                if said is None:
                    return
                answered += 1
                if answered == self.most and self.polite:
                    said = said.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
                client.sendall(said)


def answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    """An answer with a body."""
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def passed_on(port: int) -> Callable[[str, bytes], bytes]:
    """What a server on this machine answers; bodies must have a length."""

    def answered(head: str, body: bytes) -> bytes:
        first, *lines = head.split("\r\n")
        method, path, _ = first.split(" ")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        with contextlib.closing(connection):
            connection.request(method, path, body or None, dict(line.split(": ", 1) for line in lines))
            response = connection.getresponse()
            said = response.read()
        kind = response.getheader("content-type")
        return answer(said, f"{response.status} {response.reason}", *([f"content-type: {kind}"] if kind else []))

    return answered
