"""The servers of `penstock jetstream bench`: the one that is given, or embedded ones. Knows how servers are started."""

import contextlib
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from penstock.cli.jetstream.asking import asking
from penstock.clients.nats.options import NatsOptions
from penstock.errors import ConnectError

if TYPE_CHECKING:  # other commands need no numpy
    from penstock.operate.bench.matrix import Able, Scenario
    from penstock.operate.bench.run import Server
    from penstock.testing import NatsCluster


class Servers:
    """The server that is given, or servers of our own: one anew for each round, and a cluster that is kept."""

    def __init__(self, given: NatsOptions | None, monitoring: Sequence[str]):
        from penstock.operate.bench.machine import ByMonitoring

        self.given = given
        self._look = ByMonitoring(monitoring) if monitoring else None
        if self._look is not None and self._look() is None:
            raise ConnectError(f"no monitoring answers on {self._look.sites[0].url}/varz: check --monitoring.")
        self._kept = contextlib.ExitStack()
        self._cluster: NatsCluster | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._kept.close()

    @contextmanager
    def open(self, scenario: "Scenario") -> "Iterator[Server]":
        """A server for a scenario."""
        from penstock.operate.bench.run import Server

        if self.given is not None:
            yield Server(self.given, self._look)
        elif scenario.clustered:
            yield self._of_cluster()
        else:
            with self._single(scenario) as server:
                yield server

    def able(self) -> "tuple[Able, dict[str, Any]]":
        """What the server can run, and what a report says of it."""
        from penstock.operate.bench.matrix import Able, Scenario

        with self.open(Scenario.of({})) as server, asking(server.options) as calls:
            info = calls.connection.info
            calls.call("INFO")  # JetStream must be there, before anything is begun
            names = info.get("connect_urls")
            cluster = self.given is None or (bool(info.get("cluster")) and isinstance(names, list) and len(names) >= 3)
            able = Able(
                calls.connection.version(), self.given is None, cluster, calls.connection.max_payload or 1 << 20
            )
            kind = "embedded" if self.given is None else "given"
            return able, {"version": str(info.get("version", "")), "kind": kind, "servers": 3 if cluster else 1}

    @contextmanager
    def _single(self, scenario: "Scenario") -> "Iterator[Server]":
        from penstock.operate.bench.machine import by_pids
        from penstock.operate.bench.run import Server
        from penstock.testing import NatsServer

        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
            data = Path(folder) / "data"
            config = ""
            if scenario.cipher != "none":
                key = secrets.token_hex(16)
                config = f'jetstream {{ store_dir: "{data}", cipher: {scenario.cipher}, key: "{key}" }}\n'
            with NatsServer(Path(folder), config=config) as server:
                process = server.process
                pids = [process.pid] if process is not None else []
                yield Server(_embedded(server.url), by_pids(lambda: pids), (data,))

    def _of_cluster(self) -> "Server":
        """The cluster, started when it is first needed. A server of it that has died is started again."""
        from penstock.operate.bench.machine import by_pids
        from penstock.operate.bench.run import Server
        from penstock.testing import NatsCluster

        if self._cluster is None:
            self._cluster = self._kept.enter_context(NatsCluster())
        cluster = self._cluster
        for server in cluster.servers:
            if server.process is None or server.process.poll() is not None:
                server.start()
        folders = tuple(server.folder / "data" for server in cluster.servers)
        look = by_pids(lambda: [server.process.pid for server in cluster.servers if server.process is not None])
        return Server(_embedded(cluster.url), look, folders)


def _embedded(url: str) -> NatsOptions:
    return NatsOptions.parse("jetstream", {"servers": url, "requestTimeout": "5s"})
