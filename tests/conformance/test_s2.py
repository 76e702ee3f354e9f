import itertools
import time
from typing import Any

import pytest

from penstock.connectors.s2 import S2Streams
from penstock.testing.conformance import Conformance, WriteConformance
from penstock.testing.s2_lite import S2Lite
from s2_servers import Cloud, S2Admin

_runs = itertools.count(1)


class S2Log:
    """Streams whose names share a prefix that no other test has."""

    def __init__(self, server: S2Lite | Cloud, admin: S2Admin):
        self.server, self.admin = server, admin
        self.prefix = f"conf-{time.time_ns()}-{next(_runs)}"

    def make(self, shard: str) -> None:
        self.admin.make(f"{self.prefix}/{shard}")

    def append(self, shard: str, values: list[str]) -> None:
        self.admin.append(f"{self.prefix}/{shard}", [value.encode() for value in values])

    def trim(self, shard: str, count: int) -> None:
        stream = f"{self.prefix}/{shard}"
        self.admin.trim(stream, count)
        deadline = time.monotonic() + 60
        while self.admin.read(stream)[0].seq_num < count:  # trimming takes its time
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def delete(self, shard: str) -> None:
        self.admin.delete(f"{self.prefix}/{shard}")

    def options(self) -> dict[str, Any]:
        return {**self.server.options(), "streamPrefix": f"{self.prefix}/"}

    def target(self) -> dict[str, Any]:
        return {**self.server.options(), "stream": f"out-{self.prefix}", "ensureStream": "true"}

    def written(self) -> list[str]:
        return [body.decode() for body in self.admin.bodies(f"out-{self.prefix}")]


class TestS2(Conformance):
    connector = S2Streams

    @pytest.fixture
    def log(self, s2: S2Lite | Cloud, s2_admin: S2Admin) -> S2Log:
        return S2Log(s2, s2_admin)


class TestS2Writes(WriteConformance):
    connector = S2Streams

    @pytest.fixture
    def log(self, s2: S2Lite | Cloud, s2_admin: S2Admin) -> S2Log:
        return S2Log(s2, s2_admin)


class TestS2WritesByTasks(TestS2Writes):
    """Each task appends to a stream of its own."""

    @pytest.fixture
    def log(self, s2: S2Lite | Cloud, s2_admin: S2Admin) -> S2Log:
        class ByTask(S2Log):
            def target(self) -> dict[str, Any]:
                return {**self.server.options(), "stream": f"out-{self.prefix}/{{partition}}", "ensureStream": "true"}

            def written(self) -> list[str]:
                return [
                    body.decode() for i in range(4) for body in self.admin.bodies_if_there(f"out-{self.prefix}/{i}")
                ]

        return ByTask(s2, s2_admin)
