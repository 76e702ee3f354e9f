"""HTTP/1.1 on a socket, for three things that libraries do slowly or not at all: pipelined requests, answers that are
read while they arrive, and a request that is written while its answer is read. Knows no S2.
"""

import contextlib
import json
import re
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from penstock.errors import ConnectError, Disconnected, OptionError

# The most requests without an answer: their answers must fit into the buffers of the sockets.
PIPELINE = 64
LARGE = 4 << 20
# Acknowledge at once. The system resets it by itself, so that it is set before each read. Linux only.
_QUICK: int | None = getattr(socket, "TCP_QUICKACK", None)
# Limits of what is read: bytes of a head or a line, of a chunk or a whole answer, and interim answers or trailers.
HEAD, WHOLE, WORDS = 1 << 16, 64 << 20, 100


class Request(NamedTuple):
    """A request; `path` follows the address of the server."""

    method: str
    path: str
    headers: Mapping[str, str] = {}
    body: bytes = b""


class Response(NamedTuple):
    """An answer; `body` is empty where it is read in pieces."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; empty where it is none."""
        try:
            answer = json.loads(self.body or b"{}")
        except (ValueError, RecursionError):
            return {}
        return answer if isinstance(answer, dict) else {}


class Connection:
    """A connection to one server, used by one thread. Answers are read in the order of the requests."""

    def __init__(self, base: str, headers: Mapping[str, str], connect: float, wait: float, ca: Path | None = None):
        parts = urlsplit(base)
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self.wait, self.used, self.closed = wait, False, False
        self.closed_by_peer = False
        self._lost: Disconnected | None = None  # why nothing more can be read than what is in the buffer
        self._due = 0  # answers that have not been read to their end
        self._common = "".join(f"{name}: {value}\r\n" for name, value in {"host": parts.netloc, **headers}.items())
        self._buffer = bytearray()
        try:
            self._socket = self._dial(connect, parts.scheme == "https", ca)
        except OSError as error:
            raise Disconnected(f"cannot connect to {self}: {error.strerror or error}") from None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def _dial(self, timeout: float, tls: bool, ca: Path | None) -> socket.socket:
        raw = socket.create_connection((self.host, self.port), timeout=timeout)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if _large_buffers():  # for what arrives while rows are handed over; smaller buffers grow by themselves
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LARGE)
        if not tls:
            return raw
        try:
            context = ssl.create_default_context(cafile=str(ca) if ca else None)
        except (OSError, ssl.SSLError) as error:
            raise OptionError(f"cannot use the file in tlsCa: {error}") from None
        try:
            return context.wrap_socket(raw, server_hostname=self.host)
        except ssl.SSLCertVerificationError as error:
            raise ConnectError(
                f"TLS with {self} failed: {error.verify_message}. Check tlsCa and the address."
            ) from None

    def ask(self, requests: Sequence[Request]) -> list[Response]:
        """The answers to pipelined requests, in order. They are fewer where the connection ended after some of them, as
        proxies close it after so many requests: the others can be sent again over another connection.
        """
        self.used = True
        answers: list[Response] = []
        try:
            for low in range(0, len(requests), PIPELINE):
                part = requests[low : low + PIPELINE]
                self._due += len(part)
                self.send(b"".join(self._text(request) for request in part))
                for _ in part:
                    answers.append(self.response())
                    if self.closed:
                        return answers
        except Disconnected:
            if not answers:
                raise
        return answers

    def stream(self, request: Request) -> tuple[Response, Iterator[bytes]]:
        """Send a request: the head of its answer, and the body in pieces where the status is 200. Read it to its end,
        or close the connection.
        """
        self.post(request)
        return self.answer()

    def post(self, request: Request) -> None:
        """Send a request. `response` reads its answer later."""
        self._due += 1
        self.send(self._text(request))

    def open(self, request: Request) -> None:
        """Start a request. `piece` sends its body in pieces, `end` ends it, and `answer` reads its answer."""
        self._due += 1
        self.send(self._text(request._replace(headers={**request.headers, "transfer-encoding": "chunked"})))

    def piece(self, *parts: bytes | memoryview) -> None:
        """Send a piece of the body of the open request."""
        size = sum(map(len, parts))
        self.send(b"".join((b"%x\r\n" % size, *parts, b"\r\n")))

    def end(self) -> None:
        """End the body of the open request."""
        self.send(b"0\r\n\r\n")

    def answer(self) -> tuple[Response, Iterator[bytes]]:
        """The head of the next answer, and its body in pieces where the status is 200."""
        status, headers = self._head()
        if status != 200:
            return Response(status, headers, self._whole(status, headers)), iter(())
        return Response(status, headers, b""), self._body(status, headers)

    def alive(self) -> bool:
        """Whether it can take another request: all answers were read, and the server has not closed it, as far as this
        side knows.
        """
        if self.closed or self._buffer or self._due:
            return False
        try:
            self._socket.settimeout(0)
            self._socket.recv(1, 0 if isinstance(self._socket, ssl.SSLSocket) else socket.MSG_PEEK)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            pass
        return False  # closed, or bytes that nobody asked for

    def close(self) -> None:
        """Close the connection."""
        self.closed = True
        self._socket.close()

    def heard(self) -> bool:
        """Whether there is something to read: an answer, or the end of the connection. Does not wait."""
        try:
            return bool(self._buffer) or self._lost is not None or self._listen() is not None
        except OSError as error:
            raise self._broken(error) from None

    def send(self, data: bytes) -> None:
        """Send bytes. Where that fails, what the server sent before it closed the connection can still be read."""
        why: OSError | str
        try:
            self._socket.settimeout(self.wait)
            self._socket.sendall(data)
            return
        except TimeoutError:
            why = f"it took no more bytes for {self.wait:g}s"
        except OSError as error:
            why = error
        # The system keeps what arrived before a reset until the socket is closed.
        with contextlib.suppress(OSError):
            while len(self._buffer) < WHOLE and self._listen():
                pass
        raise self._broken(why)

    def _text(self, request: Request) -> bytes:
        own = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
        chunked = "transfer-encoding" in request.headers
        length = "" if chunked or request.method == "GET" else f"content-length: {len(request.body)}\r\n"
        head = f"{request.method} {request.path} HTTP/1.1\r\n{self._common}{own}{length}\r\n"
        return head.encode() + request.body

    def response(self) -> Response:
        """The answer to the oldest request without one."""
        status, headers = self._head()
        return Response(status, headers, self._whole(status, headers))

    def _head(self) -> tuple[int, dict[str, str]]:
        for _ in range(WORDS):
            first, *lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
            match = re.match(r"HTTP/1\.\d ([1-9]\d\d)\b", first, re.ASCII)
            if match is None:
                raise self._broken(f"it does not speak HTTP/1.1, but {first[:40]!r}")
            status = int(match[1])
            if status >= 200:  # below, it is an interim answer
                parts = (line.partition(":") for line in lines)
                return status, {name.lower(): value.strip() for name, _, value in parts}
        raise self._broken(f"it sent {WORDS} words in between, the last one {first[:40]!r}, and no answer")

    def _whole(self, status: int, headers: Mapping[str, str]) -> bytes:
        parts, size = [], 0
        for part in self._body(status, headers):
            parts.append(part)
            size += len(part)
            if size > WHOLE:
                raise self._broken(f"it sent an answer of more than {WHOLE:,} bytes")
        return b"".join(parts)

    def _body(self, status: int, headers: Mapping[str, str]) -> Iterator[bytes]:
        if status in (204, 304):
            pass
        elif "chunked" in headers.get("transfer-encoding", ""):
            yield from self._chunks()
        elif "content-length" in headers:
            left = self._number(headers["content-length"], 10)
            while left:
                if not self._buffer:
                    self._more(left)
                part = bytes(self._take(min(left, len(self._buffer))))
                left -= len(part)
                yield part
        else:
            yield from self._rest()
        self._due -= 1
        if headers.get("connection", "").lower() == "close":
            self.close()

    def _chunks(self) -> Iterator[bytes]:
        while size := self._number(self._until(b"\r\n").partition(b";")[0].decode("latin-1"), 16):
            if size > WHOLE:
                raise self._broken(f"it sends a chunk of {size:,} bytes")
            while len(self._buffer) < size + 2:
                self._more(size + 2 - len(self._buffer))
            part = bytes(self._take(size + 2))
            if not part.endswith(b"\r\n"):
                raise self._broken(f"it does not speak HTTP/1.1: a chunk of {size:,} bytes ends with {part[-2:]!r}")
            yield part[:-2]
        for _ in range(WORDS):
            if not self._until(b"\r\n"):
                return
        raise self._broken(f"it sent {WORDS} headers behind its answer")

    def _number(self, text: str, base: int) -> int:
        """A length: digits only. `int` would take signs, spaces and underscores."""
        if not re.fullmatch(r"\d{1,15}" if base == 10 else r"[0-9a-fA-F]{1,12}[ \t]*", text, re.ASCII):
            raise self._broken(f"it does not speak HTTP/1.1: a length is no number, but {text[:40]!r}")
        return int(text, base)

    def _until(self, end: bytes) -> bytes:
        """Read up to `end`, which ends a line or a head."""
        while (at := self._buffer.find(end, 0, HEAD)) < 0:
            if len(self._buffer) >= HEAD:
                raise self._broken(f"it does not speak HTTP, but {bytes(self._buffer[:40])!r}")
            self._more()
        return bytes(self._take(at + len(end))[:at])

    def _rest(self) -> Iterator[bytes]:
        """The bytes until the server closes the connection."""
        try:
            while True:
                yield bytes(self._take(len(self._buffer)))
                self._more()
        except Disconnected:
            if not self.closed_by_peer:
                raise

    def _take(self, size: int) -> bytearray:
        taken = self._buffer[:size]
        del self._buffer[:size]
        return taken

    def _listen(self) -> bytes | None:
        """What has arrived, without waiting: None where nothing has, and b"" at the end of the connection."""
        try:
            self._socket.settimeout(0)
            data = self._socket.recv(1 << 16)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        self.closed_by_peer = not data
        self._buffer += data
        return data

    def _more(self, wanted: int = 0) -> None:
        if self._lost is not None:
            raise self._lost
        try:
            self._socket.settimeout(self.wait)
            if _QUICK is not None:  # servers delay the end of an answer until the rest is acknowledged
                self._socket.setsockopt(socket.IPPROTO_TCP, _QUICK, 1)
            data = self._socket.recv(max(1 << 16, min(wanted, 4 << 20)))
        except OSError as error:
            raise self._broken(error) from None
        if not data:
            self.closed_by_peer = True
            raise self._broken("it closed the connection")
        self._buffer += data

    def _broken(self, why: OSError | str) -> Disconnected:
        self.close()
        if isinstance(why, TimeoutError):
            self._lost = Disconnected(f"{self} sent nothing for {self.wait:g}s, with an answer due")
        else:
            reason = why if isinstance(why, str) else why.strerror or str(why)
            self._lost = Disconnected(f"lost the connection to {self}: {reason}")
        return self._lost


def _large_buffers() -> bool:
    """Whether the system allows a receive buffer of LARGE bytes."""
    try:
        return int(Path("/proc/sys/net/core/rmem_max").read_text()) >= LARGE
    except (OSError, ValueError):
        return False
