"""One blocking connection to a NATS server, made after the fork and used by one thread. No other file has its socket.

Knows credentials and time limits; how a socket is made is in dial.py, what the bytes mean in wire.py.
"""

import base64
import json
import os
import re
import select
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

# Two megabytes of 200-byte messages are 7,500 rows: the fixed cost of the vectors, half a millisecond, is spread thin.
BUFFER = 2 << 20
# While more is on its way, wait this long for a fuller buffer before looking at what is there.
LINGER = 0.002
# The subscription to our own inbox, where answers come.
OWN = 1


class Denied(ConnectError):  # noqa: N818 - likewise
    """The account lacks a permission; no other connection will do."""


class LineTooLong(ConnectError):  # noqa: N818 - likewise
    """A subject, with its reply and sizes, is longer than the server takes; it will not take it another time."""


class Connection:
    """A connection that stands. Whatever goes wrong with it is a ConnectError."""

    def __init__(self, options: NatsOptions):
        self.options = options
        self.used = False  # before this use of it
        self.info: dict[str, Any] = {}
        self._buffer, self._size, self._used = bytearray(BUFFER), 0, 0
        self._vectors = True
        self._optional: set[str] = set()
        self._replies = 0
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
        """Major and minor version of the server."""
        major, minor = re.findall(r"\d+", self.info.get("version", "0.0"))[:2]
        return int(major), int(minor)

    @property
    def max_payload(self) -> int:
        """The largest message that the server takes; 0 where it does not say."""
        return field(self.info, "max_payload", int, 0)

    def close(self) -> None:
        """Close the socket, if any."""
        with suppress(AttributeError, OSError):
            self._socket.close()

    def alive(self) -> bool:
        """Whether it can be used again. Answers the server's PINGs, and throws away what nobody waits for."""
        try:
            while select.select([self._socket], [], [], 0)[0]:
                self._take(time.monotonic() + self.options.request_timeout, linger=False)
        except (OSError, ValueError, PenstockError):
            return False
        return True

    def send(self, data: bytes | memoryview) -> None:
        """All of `data`, however long that takes: the time limit is for each piece that goes out."""
        left = memoryview(data)
        try:
            self._socket.settimeout(self.options.request_timeout)
            while left:
                left = left[self._socket.send(left) :]
        except OSError as error:
            self._hear_why()
            raise Disconnected(f"lost the connection to {self._at}: {reason(error)}") from None

    def request(self, subject: str, body: bytes = b"") -> wire.Frame:
        """The answer to one request."""
        return self.requests([(subject, body)])[0]

    def requests(self, asked: Sequence[tuple[str, bytes] | tuple[str, bytes, bytes]]) -> list[wire.Frame]:
        """The answers to many requests, subject, body and perhaps a header block, sent in one go. Messages that arrive
        in between are dropped.
        """
        waiting = {}
        out = bytearray()
        for i, (subject, body, *block) in enumerate(asked):
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
        """A new subscription to an inbox of its own, and that inbox: reply subjects are a token longer, or several."""
        self._sid += 1
        inbox = f"{self.inbox}.{self._sid}"
        self.send(b"SUB %s.%s %d\r\n" % (inbox.encode(), b">" if deep else b"*", self._sid))
        return self._sid, inbox

    def unsubscribe(self, sid: int) -> None:
        """End a subscription. What is still under way for it will be ignored."""
        self.send(b"UNSUB %d\r\n" % sid)

    def publish(self, subject: str, body: bytes = b"", reply: str = "") -> None:
        """One message, without waiting."""
        self.send(b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), reply.encode(), len(body), body))

    def ask(self, subject: str) -> None:
        """One request whose answer nobody waits for, and whose refusal does not matter."""
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
        """What came for `sid` and others: at least one frame. `linger` waits for a fuller buffer while more comes.

        `quick` sees the bytes first, and says how many of them it has dealt with; then there is nothing more to see.
        """
        limit = timeout or self.options.request_timeout
        try:
            return self._take(time.monotonic() + limit, linger=linger, sid=sid, kind=kind, quick=quick)
        except TimeoutError:
            raise Disconnected(f"{self._at} sent nothing for {limit:g}s, with messages due") from None

    def flush(self, keep: Callable[[wire.Scan], None] | None = None) -> None:
        """Wait until the server has seen all that was sent. `keep` gets the messages that come in between."""
        self.send(b"PING\r\n")
        deadline = time.monotonic() + self.options.request_timeout
        while True:
            try:
                scan = self._take(deadline, linger=False, sid=OWN if keep else 0, kind="any")
            except TimeoutError:
                raise Disconnected(f"{self._at} did not answer a PING") from None
            if keep is not None:
                keep(scan)
            if any(frame.kind == b"PONG" for frame in scan.others):
                return

    def listen(self) -> wire.Scan:
        """Whatever comes next, however long that takes, of all subscriptions but our own inbox."""
        for asked in (False, True):
            try:
                deadline = time.monotonic() + self.options.request_timeout
                return self._take(deadline, linger=True, sid=OWN, kind="any")
            except TimeoutError:
                if not asked:  # silence may be a lost connection
                    self.send(b"PING\r\n")
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
                self.close()  # nobody can read on from here
                raise
            self._used = scan.used
            if scan.messages is not None and not small:
                self._vectors = scan.used < wire.LARGE * len(scan.messages)
            for frame in scan.others:
                self._notice(frame)
            if scan.messages is not None or scan.others:
                return scan
            if self._size == len(self._buffer) and not scan.used:
                # One frame is larger than the buffer. It is not resized in place: columns may still look at it.
                self._buffer = self._buffer + bytes(len(self._buffer))

    def _fill(self, deadline: float, linger: bool) -> None:
        """Read until there is something new, and with `linger` until the buffer is full or nothing more comes."""
        if self._used:
            left = self._size - self._used
            self._buffer[:left] = self._buffer[self._used : self._size]
            self._size, self._used = left, 0
        view = memoryview(self._buffer)
        got = 0
        try:
            while self._size < len(view):
                self._socket.settimeout(max(0.001, deadline - time.monotonic()) if not got else LINGER)
                n = self._socket.recv_into(view[self._size :])
                if not n:
                    if got:  # what came before the end counts; the next look finds the end again
                        return
                    raise Disconnected(f"{self._at} closed the connection")
                self._size += n
                got += n
                if not linger:
                    return
        except TimeoutError:
            if not got:
                raise
        except OSError as error:
            if not got:
                raise Disconnected(f"lost the connection to {self._at}: {reason(error)}") from None

    def _hear_why(self) -> None:
        """Raise what the server said before it hung up, if it said anything."""
        deadline = time.monotonic() + 0.1  # it is here already, behind whatever else came
        with suppress(TimeoutError):
            while time.monotonic() < deadline:
                self._take(deadline, linger=False)

    def _notice(self, frame: wire.Frame) -> None:
        if frame.kind == b"PING":
            self.send(b"PONG\r\n")
        elif frame.kind == b"INFO":
            self.info.update(wire.info(frame.payload))
        elif frame.kind == b"-ERR":
            text = frame.payload.decode(errors="replace").strip("'")
            if text.lower().startswith("permissions violation"):
                if any(f'"{subject}.' in text for subject in self._optional):
                    return
                raise Denied(f"{self._at} refuses: {text}. Grant that to the account that Penstock uses.")
            if text.lower().startswith("maximum control line"):
                raise LineTooLong(f"{self._at} refuses: {text}")
            raise Disconnected(f"{self._at} ended the connection: {text}")

    def _open(self, server: Address) -> None:
        options = self.options
        deadline = time.monotonic() + options.connect_timeout
        self._at = str(server)
        self._size = self._used = 0
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
