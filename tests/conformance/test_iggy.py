import itertools
import time
from typing import Any

import pytest

from iggy_servers import IggyAdmin, Server, options
from penstock.connectors.iggy import Iggy
from penstock.testing.conformance import Conformance, WriteConformance
from penstock.testing.iggy_double import IggyDouble

_runs = itertools.count(1)


class IggyLog:
    """A stream of its own; a shard is a partition of the one topic that is read."""

    def __init__(self, server: Server, admin: IggyAdmin):
        self.server, self.admin = server, admin
        self.stream = f"conf{time.time_ns()}-{next(_runs)}"
        self.shards: dict[str, int] = {}

    def make(self, shard: str) -> None:
        if shard in self.shards or not self.shards:
            self.admin.make(self.stream, "t")
            self.shards = {shard: 0}
        else:
            self.admin.grow(self.stream, "t", 1)
            self.shards[shard] = len(self.shards)

    def append(self, shard: str, values: list[str]) -> None:
        self.admin.send(self.stream, "t", [value.encode() for value in values], self.shards[shard])

    def trim(self, shard: str, count: int) -> None:
        if not isinstance(self.server, IggyDouble):
            pytest.skip("a real server deletes whole segments in its own time")
        self.server.trim(self.stream, "t", self.shards[shard], count)

    def delete(self, shard: str) -> None:
        self.admin.delete(self.stream, "t")

    def options(self) -> dict[str, Any]:
        return {**options(self.server), "stream": self.stream, "topic": "t"}

    def target(self) -> dict[str, Any]:
        made = {**options(self.server), "stream": self.stream, "topic": "out", "createTopic": "true"}
        return {**made, "topicPartitions": "3"}

    def written(self) -> list[str]:
        return [value.decode() for value in self.admin.payloads(self.stream, "out")]


class TestIggy(Conformance):
    connector = Iggy

    def shard_of(self, row: Any) -> str:
        return f"{row.stream}/{row.topic}/{row.partition}"

    @pytest.fixture
    def log(self, iggy: Server, iggy_admin: IggyAdmin) -> IggyLog:
        return IggyLog(iggy, iggy_admin)


class TestIggyWrites(WriteConformance):
    connector = Iggy

    @pytest.fixture
    def log(self, iggy: Server, iggy_admin: IggyAdmin) -> IggyLog:
        return IggyLog(iggy, iggy_admin)


class TestIggyWritesByTasks(TestIggyWrites):
    """Each task sends by itself."""

    @pytest.fixture
    def log(self, iggy: Server, iggy_admin: IggyAdmin) -> IggyLog:
        class ByTask(IggyLog):
            def target(self) -> dict[str, Any]:
                return super().target() | {"driverBytes": "1"}

        return ByTask(iggy, iggy_admin)
