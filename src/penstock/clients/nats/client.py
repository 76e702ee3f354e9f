"""A blocking connection to a NATS server, made after the fork and used by one thread. No other module uses its socket.

Knows subscriptions, requests and time limits. dial.py opens the socket, wire.py parses the bytes. Knows no JetStream.
"""

import base64
import json
import os
import re
import select
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from penstock import __version__
from penstock.clients.answers import field
from penstock.clients.nats import wire
from penstock.clients.nats.credentials import introduce, who
from penstock.clients.nats.dial import Address, address, dial, reason
from penstock.clients.nats.options import NatsOptions
from penstock.errors import ConnectError, Disconnected, PenstockError, ProtocolError

# Two megabytes of 200-byte messages are 7,500 rows: enough for the fixed cost of a scan, half a millisecond.
BUFFER = 2 << 20
# With `linger`, read on until nothing has come for so many seconds.
LINGER = 0.002
# The subscription to our own inbox, for the answers to requests.
OWN = 1
# What would end a subject on the wire. Names in answers may hold it, if whoever answers is no nats-server.
_UNSAFE = re.compile(r"[\x00-\x20\x7f]")


class Denied(ConnectError):  # noqa: N818 - likewise
    """The account lacks a permission; a new connection will not help."""


class LineTooLong(ConnectError):  # noqa: N818 - likewise
    """A control line, which is mostly the subject, is longer than the server accepts; trying again will not help."""


class Connection:
    """An open connection. All that goes wrong with it is a ConnectError."""

    def __init__(self, options: NatsOptions):
        self.options = options
        self.used = False  # whether another task has used it before
        self.info: dict[str, Any] = {}
        self._buffer, self._size, self._used = bytearray(BUFFER), 0, 0
        self._vectors = True
        self._optional: set[str] = set()
        self._replies = 0
        self._pings = self._pongs = 0
        tried = []
        for server in map(address, options.servers):
            try:
                self._open(server)
                break
            except (OSError, Disconnected) as error:
                self.close()
                tried.append(f"{server}: {reason(error)}")
            except PenstockError:
                self.close()
                raise
        else:
            raise Disconnected(
                f"no NATS server answers ({'; '.join(tried)}). Check the option 'servers' and that the server runs."
            )
        self.inbox = f"{options.inbox_prefix}.{base64.b32encode(os.urandom(10)).decode().lower()}"
        self._sid = OWN
        self.send(b"SUB %s.%d.* %d\r\n" % (self.inbox.encode(), OWN, OWN))

    def version(self) -> tuple[int, int]:
        """Major and minor version of the server; (0, 0) where it does not say."""
        major, minor = re.findall(r"\d+", self.info.get("version", "0.0"))[:2]
        return int(major), int(minor)

    @property
    def max_payload(self) -> int:
        """The most bytes of a message that the server accepts; 0 where it does not say."""
        return field(self.info, "max_payload", int, 0)

    @property
    def is_tls(self) -> bool:
        """Whether what is sent and received is encrypted."""
        return isinstance(self._socket, ssl.SSLSocket)

    def close(self) -> None:
        """Close the socket, if there is one."""
        with suppress(AttributeError, OSError):
            self._socket.close()

    def alive(self) -> bool:
        """Whether it can be used again. Answers PINGs of the server, and drops messages that nobody waits for."""
        try:
            while select.select([self._socket], [], [], 0)[0]:
                self._take(time.monotonic() + self.options.request_timeout, linger=False)
        except (OSError, ValueError, PenstockError):
            return False
        return True

    def send(self, data: bytes | memoryview) -> None:
        """Send all of `data`. requestTimeout limits each write to the socket, not all of them."""
        left = memoryview(data)
        try:
            self._socket.settimeout(self.options.request_timeout)
            while left:
                left = left[self._socket.send(left) :]
        except OSError as error:
            self._raise_last_error()
            raise Disconnected(f"lost the connection to {self._at}: {reason(error)}") from None

    def request(self, subject: str, body: bytes = b"") -> wire.Frame:
        """The answer to one request."""
        return self.requests([(subject, body)])[0]

    def requests(self, asked: Sequence[tuple[str, bytes] | tuple[str, bytes, bytes]]) -> list[wire.Frame]:
        """The answers to many requests, sent together. A request is a subject, a body and perhaps a header block. Other
        messages that arrive meanwhile are dropped.
        """
        waiting = {}
        out = bytearray()
        for i, (subject, body, *block) in enumerate(asked):
            _check(subject)
            self._replies += 1
            reply = b"%s.1.%d" % (self.inbox.encode(), self._replies)
            waiting[reply] = i
            if block:
                sizes = len(block[0]), len(block[0]) + len(body)
                out += b"HPUB %s %s %d %d\r\n%s%s\r\n" % (subject.encode(), reply, *sizes, block[0], body)
            else:
                out += b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), reply, len(body), body)
        self.send(bytes(out))
        answers: dict[int, wire.Frame] = {}
        deadline = time.monotonic() + self.options.request_timeout
        while waiting:
            try:
                others = self._take(deadline, linger=False).others
            except TimeoutError:
                subject = asked[next(iter(waiting.values()))][0]
                raise Disconnected(
                    f"{self._at} gave no answer on '{subject}' in {self.options.request_timeout:g}s (requestTimeout)"
                ) from None
            for frame in others:
                if frame.subject in waiting:
                    answers[waiting.pop(frame.subject)] = frame
        return [answers[i] for i in range(len(asked))]

    def subscribe(self, *, deep: bool = False) -> tuple[int, str]:
        """Subscribe to a new inbox: its sid and subject. Reply subjects have one token more; if `deep`, any number."""
        self._sid += 1
        inbox = f"{self.inbox}.{self._sid}"
        self.send(b"SUB %s.%s %d\r\n" % (inbox.encode(), b">" if deep else b"*", self._sid))
        return self._sid, inbox

    def unsubscribe(self, sid: int) -> None:
        """End a subscription. Messages that still arrive for it are ignored."""
        self.send(b"UNSUB %d\r\n" % sid)

    def publish(self, subject: str, body: bytes = b"", reply: str = "") -> None:
        """Publish one message, without an answer."""
        _check(subject)
        self.send(b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), reply.encode(), len(body), body))

    def ask(self, subject: str) -> None:
        """Send a request and ignore its answer, also where permissions forbid it."""
        self._optional.add(subject.rpartition(".")[0])
        self.publish(subject)

    def receive(
        self,
        sid: int,
        *,
        linger: bool,
        kind: wire.Kind = "delivery",
        timeout: float | None = None,
        quick: Callable[[bytes], int] | None = None,
    ) -> wire.Scan:
        """Wait for at least one frame: messages for `sid` as columns, others one by one. `linger` reads on while more
        comes, for a fuller buffer.

        `quick` gets the bytes first and returns how many it has handled. If not 0, the scan is empty.
        """
        limit = timeout or self.options.request_timeout
        try:
            return self._take(time.monotonic() + limit, linger=linger, sid=sid, kind=kind, quick=quick)
        except TimeoutError:
            raise Disconnected(f"{self._at} sent nothing for {limit:g}s, with messages due") from None

    def flush(self, keep: Callable[[wire.Scan], None] | None = None) -> None:
        """Wait until the server has processed all that was sent. `keep` gets the messages that arrive meanwhile."""
        number = self._ping()
        deadline = time.monotonic() + self.options.request_timeout
        while True:
            try:
                scan = self._take(deadline, linger=False, sid=OWN if keep else 0, kind="any")
            except TimeoutError:
                raise Disconnected(f"{self._at} did not answer a PING") from None
            if keep is not None:
                keep(scan)
            if self._pongs >= number:  # not one of an earlier PING, whose wait an error ended
                return

    def _ping(self) -> int:
        """Send a PING: its number."""
        self._pings += 1
        self.send(b"PING\r\n")
        return self._pings

    def listen(self) -> wire.Scan:
        """The next frames of all subscriptions except our own inbox. After requestTimeout a PING checks that the server
        is there; its PONG counts as a frame.
        """
        for pinged in (False, True):
            try:
                deadline = time.monotonic() + self.options.request_timeout
                return self._take(deadline, linger=True, sid=OWN, kind="any")
            except TimeoutError:
                if not pinged:  # the connection may be lost
                    self._ping()
        raise Disconnected(f"{self._at} did not answer a PING")

    def _take(
        self,
        deadline: float,
        *,
        linger: bool,
        sid: int = 0,
        kind: wire.Kind = "delivery",
        quick: Callable[[bytes], int] | None = None,
    ) -> wire.Scan:
        while True:
            self._fill(deadline, linger)
            if quick is not None and (used := quick(bytes(self._buffer[: self._size]))):
                self._used = used
                return wire.Scan(None, [], used)
            small = self._size < 4096
            try:
                scan = wire.scan(self._buffer, self._size, sid=sid, kind=kind, vectors=self._vectors and not small)
            except ProtocolError:
                self.close()  # the next frame cannot be found
                raise
            self._used = scan.used
            if scan.messages is not None and not small:
                self._vectors = scan.used < wire.LARGE * len(scan.messages)
            errors = [error for frame in scan.others if (error := self._handle(frame)) is not None]
            if errors:
                raise errors[0]
            if scan.messages is not None or scan.others:
                return scan
            if self._size == len(self._buffer) and not scan.used:
                # One frame is larger than the buffer. A new buffer is made: columns may still refer to the old one.
                self._buffer = self._buffer + bytes(len(self._buffer))

    def _fill(self, deadline: float, linger: bool) -> None:
        """Read at least one byte; with `linger`, until the buffer is full or nothing more comes."""
        if self._used:
            left = self._size - self._used
            self._buffer[:left] = self._buffer[self._used : self._size]
            self._size, self._used = left, 0
        view = memoryview(self._buffer)
        received = 0
        try:
            while self._size < len(view):
                self._socket.settimeout(max(0.001, deadline - time.monotonic()) if not received else LINGER)
                count = self._socket.recv_into(view[self._size :])
                if not count:
                    if received:  # first the bytes before the end; the next read finds the end again
                        return
                    raise Disconnected(f"{self._at} closed the connection")
                self._size += count
                received += count
                if not linger:
                    return
        except TimeoutError:
            if not received:
                raise
        except OSError as error:
            if not received:
                raise Disconnected(f"lost the connection to {self._at}: {reason(error)}") from None

    def _raise_last_error(self) -> None:
        """Raise the error that the server sent before it closed the connection; return where it sent none."""
        deadline = time.monotonic() + 0.1  # it has arrived, perhaps after other frames
        with suppress(TimeoutError):
            while time.monotonic() < deadline:
                self._take(deadline, linger=False)

    def _handle(self, frame: wire.Frame) -> ConnectError | None:
        """Answer a PING, count a PONG, keep an INFO; what an -ERR means. Other frames are left alone."""
        if frame.kind == b"PING":
            self.send(b"PONG\r\n")
        elif frame.kind == b"PONG":
            self._pongs += 1
        elif frame.kind == b"INFO":
            self.info.update(wire.info(frame.payload))
        elif frame.kind == b"-ERR":
            text = frame.payload.decode(errors="replace").strip("'")
            if text.lower().startswith("permissions violation"):
                if any(f'"{subject}.' in text for subject in self._optional):
                    return None
                return Denied(f"{self._at} refuses: {text}. Grant that to the account that Penstock uses.")
            if text.lower().startswith("maximum control line"):
                return LineTooLong(f"{self._at} refuses: {text}")
            return Disconnected(f"{self._at} ended the connection: {text}")
        return None

    def _open(self, server: Address) -> None:
        options = self.options
        deadline = time.monotonic() + options.connect_timeout
        self._at = str(server)
        self._size = self._used = self._pongs = 0
        self._pings = 1  # the one below
        self._socket, self.info = dial(server, options)
        hello = {
            "verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1,
            "lang": "python-penstock", "version": __version__, "name": options.connection_name,
        }  # fmt: skip
        hello |= introduce(options, str(self.info.get("nonce", "")))
        try:
            self.send(b"CONNECT %s\r\nPING\r\n" % json.dumps(hello).encode())
            while not any(frame.kind == b"PONG" for frame in self._take(deadline, linger=False).others):
                pass
        except TimeoutError:
            raise Disconnected(f"did not finish connecting in {options.connect_timeout:g}s") from None
        except Disconnected as error:
            if "authorization violation" in str(error).lower():
                raise ConnectError(f"{server} refused the credentials ({who(hello)}): {error}") from None
            if options.tls_cert:  # TLS 1.3 refuses a client's certificate only after the handshake
                raise Disconnected(f"{error}; perhaps it does not accept the certificate in tlsCert") from None
            raise


def _check(subject: str) -> None:
    """A ProtocolError for a subject that would be more than one, such as one made of a name that a server told."""
    if not subject or _UNSAFE.search(subject):
        raise ProtocolError(f"{subject[:80]!r} is no subject: it is empty, or has white space or control characters.")
