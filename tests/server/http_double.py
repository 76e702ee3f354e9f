"""A small HTTP server that notes what it was asked, for what s2-lite never does: refuse, redirect, hang up."""

import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self


class HttpDouble:
    """Answers each request by `answer(number, head)`; None ends the connection without a word.

    `heads` are the requests with their headers, in the order of their coming, `connections` how many there were.
    """

    def __init__(self, answer: Callable[[int, str], bytes | None]):
        self.answer = answer
        self.heads: list[str] = []
        self.connections = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
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
        waiting = b""
        with client:
            while True:
                while b"\r\n\r\n" not in waiting:
                    data = client.recv(65536)
                    if not data:
                        return
                    waiting += data
                head, _, waiting = waiting.partition(b"\r\n\r\n")
                with self._lock:
                    self.heads.append(head.decode())
                    number = len(self.heads)
                said = self.answer(number, head.decode())
                if said is None:
                    return
                client.sendall(said)


def answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    """An answer with a body."""
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body
