"""HTTP as servers and proxies speak it, not only as s2-lite does."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.clients.s2.http import Connection, Request
from penstock.errors import Disconnected

GET = Request("GET", "/x")


@contextmanager
def answering(*answers: bytes, close: bool = True) -> Iterator[Connection]:
    """A connection to a server that says this, whatever it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                for answer in answers:
                    client.recv(65536)
                    client.sendall(answer)
                if not close:
                    client.recv(65536)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        connection = Connection(f"http://127.0.0.1:{listener.getsockname()[1]}", {"a": "b"}, 5, 1)
        yield connection
        connection.close()
        thread.join(5)


def test_a_body_has_a_length_or_comes_in_chunks_or_ends_with_the_connection() -> None:
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc") as connection:
        assert connection.ask([GET])[0].body == b"abc"
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: z\r\n\r\n"
    with answering(chunked, close=False) as connection:
        assert connection.ask([GET])[0].body == b"abcde"
        assert connection.alive()
    with answering(b"HTTP/1.0 200 OK\r\n\r\nuntil the end") as connection:
        assert connection.ask([GET])[0].body == b"until the end"
        assert not connection.alive()
    with answering(b"HTTP/1.1 204 No Content\r\n\r\n", close=False) as connection:
        assert connection.ask([GET])[0].body == b""
        assert connection.alive()


def test_answers_keep_their_order_and_words_in_between_are_no_answers() -> None:
    one = b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n"
    with answering(b"".join(one + b"%d" % i for i in range(5))) as connection:
        assert [answer.body for answer in connection.ask([GET] * 5)] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("last", [b"", b"connection: close\r\n"])
def test_answers_before_the_end_of_a_connection_count(last: bytes) -> None:
    one = b"HTTP/1.1 200 OK\r\n%scontent-length: 1\r\n\r\n"
    with answering(one % b"" + b"0" + one % last + b"1") as connection:
        assert [answer.body for answer in connection.ask([GET] * 5)] == [b"0", b"1"]
        assert connection.closed


def test_a_connection_that_the_server_ends_or_that_has_something_to_come_is_not_used_again() -> None:
    with answering(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 1\r\n\r\nx", close=False) as connection:
        assert connection.ask([GET])[0].body == b"x"
        assert not connection.alive()
    with answering(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n", close=False) as connection:
        _, body = connection.stream(GET)
        assert next(body) == b"x"
        assert not connection.alive()
    with answering(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx?", close=False) as connection:
        assert connection.ask([GET])[0].body == b"x"
        assert not connection.alive()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", "a length is no number"),
        (b"SSH-2.0\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 20 OK\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 \xb200 OK\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\nhello", "a length is no number, but '-5'"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1_0\r\n\r\n0123456789", "a length is no number"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: " + b"9" * 5000 + b"\r\n\r\n", "a length is no number"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-3\r\nabc\r\n", "a length is no number, but '-3'"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0x3\r\nabc\r\n", "a length is no number"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffff\r\nabc\r\n", "a chunk of 4,294,967,295"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n", "a chunk of 3 bytes ends"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000, "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"5" * 100_000, "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 200, "headers behind its"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 5000, "words in between"),
        (b"", "closed the connection"),
    ],
)
def test_what_is_cut_off_or_garbled_is_a_lost_connection(answer: bytes, why: str) -> None:
    with answering(answer) as connection:
        with pytest.raises(Disconnected, match=why):
            connection.ask([GET])
        assert connection.closed


def test_an_answer_without_end_is_not_gathered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.clients.s2.http.WHOLE", 1 << 20)
    chunk = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
    for head, body in ((b"transfer-encoding: chunked\r\n", chunk * 20), (b"", bytes(2 << 20))):
        with answering(b"HTTP/1.1 500 No\r\n" + head + b"\r\n" + body) as connection:
            with pytest.raises(Disconnected, match="an answer of more than 1,048,576 bytes"):
                connection.stream(GET)
            assert connection.closed
    # One that is read while it comes may have any length.
    large = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (3 << 20) + bytes(3 << 20)
    with answering(large) as connection:
        assert sum(map(len, connection.stream(GET)[1])) == 3 << 20


def test_an_answer_that_has_no_body_is_not_waited_for() -> None:
    with answering(b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", close=False) as connection:
        assert connection.ask([GET])[0].body == b""


def test_an_answer_that_does_not_come_is_not_waited_for_for_ever() -> None:
    with answering(b"HTTP/1.1 200 OK\r\n", close=False) as connection, pytest.raises(Disconnected, match="for 1s"):
        connection.ask([GET])


def test_nobody_there_is_said_with_the_address() -> None:
    with pytest.raises(Disconnected, match=r"cannot connect to 127.0.0.1:1: Connection refused"):
        Connection("http://127.0.0.1:1", {}, 1, 1)
