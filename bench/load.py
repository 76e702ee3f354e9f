"""Fill streams for benchmarks, fast: a window of acknowledgements on one in a thousand."""

import time

from penstock.clients.jetstream.calls import Calls
from penstock.clients.nats.client import Connection
from penstock.connectors.jetstream.options import JetStreamOptions

HEADERS = (
    b"NATS/1.0\r\nNats-Msg-Type: order.created\r\ntrace: 4bf92f3577b34da6a3ce929d0e0e4736\r\nregion: eu-west-1\r\n\r\n"
)


def publisher(url: str, stream: str) -> Connection:
    """A connection to publish on."""
    return Connection(JetStreamOptions.parse("jetstream", {"servers": url, "stream": stream}))


def fill(url: str, stream: str, count: int, size: int = 200, headers: bytes = b"") -> None:
    """A file-backed stream of `count` messages on a few subjects."""
    connection = publisher(url, stream)
    calls = Calls(connection, connection.options)  # type: ignore[arg-type]
    calls.call(
        f"STREAM.CREATE.{stream}",
        {"name": stream, "subjects": [f"{stream}.>"], "storage": "file", "allow_direct": True},
    )
    body = b'{"order": %010d, "item": "' + b"x" * (size - 40) + b'", "n": 1}'
    body = body[: size - 1] + b"}" if len(body % 0) > size else body
    for low in range(0, count, 1000):
        out = bytearray()
        for i in range(low, min(count, low + 1000)):
            payload = (body % i).ljust(size)[:size]
            subject = b"%s.%d" % (stream.encode(), i % 16)
            if headers:
                out += b"HPUB %s %d %d\r\n%s%s\r\n" % (subject, len(headers), len(headers) + size, headers, payload)
            else:
                out += b"PUB %s %d\r\n%s\r\n" % (subject, size, payload)
        connection.send(bytes(out))
        if low % 5000 == 0:
            while calls.stream(stream).last < low - 20_000:
                time.sleep(0.001)
    while calls.stream(stream).last < count:
        time.sleep(0.01)
    connection.close()
