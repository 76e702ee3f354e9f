"""Three nats-servers of our own that know each other, on free ports of this machine."""

import contextlib
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.testing.nats_server import NatsServer, free_port


class NatsCluster:
    """A cluster with JetStream. Each server is one of `servers`, and can be stopped, killed and started by itself.

    It is there when its servers listen. Until they have a leader, which takes some seconds, JetStream does not answer.
    `config` is added to the configuration of each server, and `jetstream` to its block for JetStream.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        size: int = 3,
        config: str = "",
        jetstream: str = "",
        executable: str | None = None,
    ):
        self._temporary = tempfile.TemporaryDirectory(prefix="penstock-nats-") if folder is None else None
        home = Path(self._temporary.name) if self._temporary else Path(folder or ".")
        ports = [free_port() for _ in range(size)]
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
        self.servers = [
            NatsServer(
                home / f"n{k}",
                config=f"""
                jetstream {{ store_dir: "{home / f"n{k}" / "data"}"
                {jetstream} }}
                cluster {{ name: C, listen: "127.0.0.1:{port}", routes: [ {routes} ] }}
                {config}
                """,
                executable=executable,
            )
            for k, port in enumerate(ports)
        ]

    @property
    def url(self) -> str:
        """The addresses of all servers, a comma list."""
        return ",".join(server.url for server in self.servers)

    def named(self, name: str) -> NatsServer:
        """The server with the name that JetStream tells, such as that of a leader."""
        return next(server for server in self.servers if f"s{server.port}" == name)

    def first(self, server: NatsServer) -> str:
        """The addresses, this server's first: a client connects to it."""
        return ",".join([server.url, *(other.url for other in self.servers if other is not server)])

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as started:
            for server in self.servers:
                started.enter_context(server)
            started.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for server in self.servers:
            server.stop()
