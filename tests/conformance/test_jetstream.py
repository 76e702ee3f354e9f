import itertools
from typing import Any

import pytest

from nats_servers import Admin
from penstock.connectors.jetstream import JetStream
from penstock.planning.positions import Range
from penstock.testing.conformance import Conformance, WriteConformance
from penstock.testing.nats_server import NatsServer

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

    def target(self) -> dict[str, Any]:
        stream = f"{self.prefix}OUT"
        if self.admin.calls.streams([stream])[stream] is None:
            # The window is over before Spark can write a batch again: only the ledger helps.
            self.admin.create(stream, duplicate_window=100_000_000)
        return {"servers": self.server.url, "subject": f"{stream}.x"}

    def written(self) -> list[str]:
        stream = f"{self.prefix}OUT"
        source = JetStream.open_source(JetStream.parse({"servers": self.server.url, "stream": stream}))
        bound = source.bounds()[stream]
        batches = list(source.read(Range(stream, bound.first, bound.next, bound.epoch)))
        source.close()
        return [value.decode() for batch in batches for value in batch["value"].to_pylist()]


class TestJetStream(Conformance):
    connector = JetStream

    @pytest.fixture
    def log(self, nats: NatsServer, admin: Admin) -> JetStreamLog:
        return JetStreamLog(nats, admin)


class TestJetStreamWrites(WriteConformance):
    connector = JetStream

    @pytest.fixture
    def log(self, nats: NatsServer, admin: Admin) -> JetStreamLog:
        return JetStreamLog(nats, admin)
