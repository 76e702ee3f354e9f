import itertools
from typing import Any

import pytest

from conformance.suite import Conformance
from harness import Admin
from penstock.connectors.jetstream import JetStream
from penstock.embedded import NatsServer

_runs = itertools.count(1)


class JetStreamLog:
    """Streams whose names share a prefix that no other test has."""

    def __init__(self, server: NatsServer, admin: Admin):
        self.server, self.admin, self.prefix = server, admin, f"C{next(_runs)}"

    def make(self, shard: str) -> None:
        self.admin.create(f"{self.prefix}-{shard}", f"{self.prefix}.{shard}.>")

    def append(self, shard: str, values: list[str]) -> None:
        self.admin.publish((f"{self.prefix}.{shard}.{i % 3}", value.encode()) for i, value in enumerate(values))

    def trim(self, shard: str, count: int) -> None:
        stream = f"{self.prefix}-{shard}"
        self.admin.purge(stream, seq=self.admin.calls.stream(stream).first + count)

    def delete(self, shard: str) -> None:
        self.admin.delete(f"{self.prefix}-{shard}")

    def options(self) -> dict[str, Any]:
        return {"servers": self.server.url, "streamPattern": f"{self.prefix}-.*"}


class TestJetStream(Conformance):
    connector = JetStream

    @pytest.fixture
    def log(self, nats: NatsServer, admin: Admin) -> JetStreamLog:
        return JetStreamLog(nats, admin)
