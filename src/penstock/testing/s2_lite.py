"""An s2-lite of our own, for tests and benchmarks, on a free port: built once, kept in the user's cache."""

import collections
import contextlib
import fcntl
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

from penstock.errors import ConnectError, OptionError, PenstockError
from penstock.testing.nats_server import free_port
from penstock.testing.server import ServerProcess

VERSION = "0.43.4"
# Without these it takes three times as long, and a test server need not be the fastest there is.
QUICK = {
    "CARGO_PROFILE_RELEASE_LTO": "off",
    "CARGO_PROFILE_RELEASE_OPT_LEVEL": "1",
    "CARGO_PROFILE_RELEASE_BUILD_OVERRIDE_OPT_LEVEL": "0",
    "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
    "CARGO_PROFILE_RELEASE_DEBUG": "0",
    "CARGO_PROFILE_RELEASE_STRIP": "symbols",
}


class NoS2LiteError(OptionError):
    """There is none, and nothing to build it with."""


def binary() -> str:
    """The server of the version that we test with: from the cache, or built by cargo, which takes some minutes."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock" / f"s2-lite-{VERSION}"
    executable = cache / "bin" / "server"
    if executable.exists():
        return str(executable)
    cargo = shutil.which("cargo")
    if cargo is None:
        raise NoS2LiteError("no s2-lite is here, nor cargo to build it with. Install Rust: https://rustup.rs")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # whoever comes second waits, and finds it
        if not executable.exists():
            _build(cargo, cache)
    return str(executable)


def _build(cargo: str, cache: Path) -> None:
    say = functools.partial(print, file=sys.stderr, flush=True)
    why, long = "as there is no package of it to install", "about 7 minutes on two cores"
    say(f"building s2-lite {VERSION} with cargo into {cache}, once, {why}: {long}")
    began = time.monotonic()
    command = [cargo, "install", "--locked", "s2-lite", "--bin", "server", "--version", VERSION, "--root", str(cache)]
    process = subprocess.Popen(command, env=os.environ | QUICK, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        lines = list(collections.deque(process.stderr, maxlen=20))
        if process.wait():
            raise ConnectError(f"cargo could not build s2-lite: {''.join(lines)[-1000:]}")
    finally:
        process.terminate()
        process.wait()
    say(f"s2-lite is built, in {(time.monotonic() - began) / 60:.0f} minutes")


class S2Lite(ServerProcess):
    """A server with one basin. In memory, or in `folder`: stopped and started again it has its streams still."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        basin: str = "penstock-test",
        config: dict[str, Any] | None = None,
        port: int | None = None,
    ):
        self.folder, self.basin, self.config, self.port = folder, basin, config or {}, port or free_port()
        self.executable = binary()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def options(self) -> dict[str, str]:
        """What a reader or writer needs to reach it."""
        return {"endpoint": self.url, "basin": self.basin}

    def start(self) -> Self:
        """Start it and wait until it is well, with the basin."""
        command = [self.executable, "--port", str(self.port), "--no-dashboard"]
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            command += ["--local-root", str(self.folder)]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(command, stdout=quiet, stderr=quiet, env=os.environ | {"RUST_LOG": "error"})
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.url}/health", timeout=2).close()
                self._put_basin()
                return self
            time.sleep(0.02)
        self.kill()
        raise ConnectError(f"s2-lite did not start on port {self.port}")

    def _put_basin(self) -> None:
        request = urllib.request.Request(
            f"{self.url}/v1/basins/{self.basin}",
            json.dumps({"config": self.config}).encode(),
            {"content-type": "application/json"},
            method="PUT",
        )
        urllib.request.urlopen(request, timeout=5).close()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("s2-lite: the build was stopped"))
    try:
        print(binary())
    except PenstockError as problem:
        sys.exit(str(problem))
