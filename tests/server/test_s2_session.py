"""Appends to a server that refuses, and hangs up, while there is still much to be written to it."""

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from credentials import Authority

from penstock.clients.s2.frames import to_frame
from penstock.clients.s2.reach import ApiError
from penstock.clients.s2.session import Session
from penstock.clients.s2.varints import varint
from penstock.connectors.s2 import S2Streams
from penstock.connectors.s2.chain import Batch
from penstock.connectors.s2.options import S2SinkOptions
from penstock.errors import ConnectError, Disconnected
from penstock.kit.contract import Origin
from penstock.testing.nats_server import free_port

FENCED = json.dumps({"fencing_token_mismatch": "theirs"}).encode()
# More than the buffers of two sockets hold, so whoever sends it to a server that reads nothing is still writing.
LARGE = bytes(12 << 20)
BEGUN = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def terminal(status: int, body: bytes) -> bytes:
    """The frame with which a session ends."""
    data = status.to_bytes(2, "big") + body
    return (len(data) + 1).to_bytes(3, "big") + b"\x80" + data


def ack(first: int, end: int) -> bytes:
    """The frame that says that records are stored."""
    start, behind = (b"\x08" + varint(number) for number in (first, end))
    return to_frame(b"\x0a" + bytes([len(start)]) + start + b"\x12" + bytes([len(behind)]) + behind)


def batch(message: bytes) -> Batch:
    return Batch(1, 1, 0, message)


class Refusing:
    """A server that answers so, whatever it was told, and hangs up with the rest of the request unread: the other side
    gets a reset. It reads `told` bytes before it answers; the test says when it hangs up.
    """

    def __init__(self, answer: bytes, told: int = 1, tls: ssl.SSLContext | None = None):
        self.answer, self.told, self.tls = answer, told, tls
        self.hung_up, self.may_hang_up = threading.Event(), threading.Event()
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", free_port()))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def options(self, **more: str) -> S2SinkOptions:
        given = {"endpoint": self.url, "basin": "some-basin", "stream": "x", "requestTimeout": "3s", **more}
        found: S2SinkOptions = S2Streams.parse_sink(given)
        return found

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            client.settimeout(5)
            with self.tls.wrap_socket(client, server_side=True) if self.tls else client as client:
                read = 0
                while read < self.told:
                    read += len(client.recv(min(4096, self.told - read)))
                client.sendall(self.answer)
                self.may_hang_up.wait(5)
            self.hung_up.set()


@contextmanager
def refusing(answer: bytes, told: int = 1, tls: ssl.SSLContext | None = None) -> Iterator[Refusing]:
    server = Refusing(answer, told, tls)
    try:
        yield server
    finally:
        server.may_hang_up.set()
        server.close()


def soon(what: Callable[[], object]) -> None:
    """Do it while the test is writing."""
    threading.Timer(0.2, what).start()


def test_a_refusal_wins_over_the_broken_pipe_of_a_large_write() -> None:
    with refusing(BEGUN + chunk(terminal(412, FENCED))) as server:
        session = Session(server.options(), "x")
        soon(server.may_hang_up.set)
        with pytest.raises(ApiError) as caught:
            session.send(batch(LARGE))
        assert caught.value.answer == {"fencing_token_mismatch": "theirs"}
        session.drop()


def test_a_refusal_wins_over_tls_too(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*authority.issue("server"))
    with refusing(BEGUN + chunk(terminal(412, FENCED)), tls=tls) as server:
        session = Session(server.options(tlsCa=str(authority.file)), "x")
        soon(server.may_hang_up.set)
        with pytest.raises(ApiError, match="412"):
            session.send(batch(LARGE))
        session.drop()


def test_a_refusal_is_noticed_before_the_next_batch_is_written() -> None:
    with refusing(BEGUN + chunk(terminal(412, FENCED))) as server:
        session = Session(server.options(), "x")
        session.send(batch(b"first"))
        server.may_hang_up.set()
        assert server.hung_up.wait(5)
        with pytest.raises(ApiError, match="412"):
            session.send(batch(b"second"))
        assert [sent.message for sent in session.unacked] == [b"first"]
        session.drop()


def test_an_answer_other_than_200_wins_too_also_without_a_session() -> None:
    why = b'{"message": "not by you"}'
    said = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: %d\r\n\r\n%s" % (len(why), why)
    for append_session in ("true", "false"):
        with refusing(said) as server:
            session = Session(server.options(appendSession=append_session), "x")
            soon(server.may_hang_up.set)
            with pytest.raises(ConnectError, match=r"S2 refuses the access token: not by you \(401"):
                session.send(batch(LARGE))
            session.drop()


@pytest.mark.parametrize("said", [b"", BEGUN, BEGUN + b"ff\r\nhalf of"])
def test_a_connection_that_breaks_before_an_answer_is_whole_is_a_lost_one(said: bytes) -> None:
    with refusing(said) as server:
        session = Session(server.options(), "x")
        soon(server.may_hang_up.set)
        with pytest.raises(Disconnected, match=r"lost the connection to .*(reset|pipe)"):
            session.send(batch(LARGE))
        session.drop()


def test_a_server_that_takes_no_more_and_has_said_why_is_believed() -> None:
    with refusing(BEGUN + chunk(terminal(412, FENCED))) as server:
        session = Session(server.options(requestTimeout="500ms"), "x")
        with pytest.raises(ApiError, match="412"):
            session.send(batch(LARGE))
        session.drop()


def rows(count: int, size: int) -> Iterator[pa.RecordBatch]:
    for i in range(count):
        yield pa.record_batch({"value": pa.array([bytes([i]) * size], pa.binary())})


def test_a_sink_whose_stream_is_fenced_while_it_writes_says_so_and_does_not_connect_again() -> None:
    said = BEGUN + chunk(ack(7, 8)) + chunk(terminal(412, FENCED))
    with refusing(said, told=1_000_000) as server:
        options = server.options(delivery="at_least_once", fencingToken="mine")
        sink = S2Streams.open_sink(options, pa.schema({"value": pa.binary()}))
        soon(server.may_hang_up.set)
        with pytest.raises(ConnectError, match="is fenced: its token is now 'theirs'") as caught:
            sink.write(rows(30, 900_000), Origin("q", 0, 0))
        assert "rows of this task were written to 'x' up to 7" in str(caught.value)  # the answer before it counts
        assert server.connections == 1
