"""An s2-lite of our own, for tests and benchmarks, on a free port: built once, kept in the user's cache."""

import contextlib
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.embedded import free_port
from penstock.errors import ConnectError, OptionError

VERSION = "0.43.4"


def binary() -> str:
    """The `s2` of the version that we test with: from the cache, or built by cargo, which takes about 15 minutes."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock" / f"s2-{VERSION}"
    found = cache / "bin" / "s2"
    if found.exists():
        return str(found)
    cargo = shutil.which("cargo")
    if cargo is None:
        raise OptionError("there is no s2-lite here, and no cargo to build it with. Install Rust: https://rustup.rs")
    print(f"building s2-lite {VERSION} into {cache}, once: about 15 minutes on two cores", file=sys.stderr, flush=True)
    # Without these two it takes twice as long, and a test server need not be the fastest there is.
    quick = {"CARGO_PROFILE_RELEASE_LTO": "off", "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16"}
    command = [cargo, "install", "--locked", "s2-cli", "--version", VERSION, "--root", str(cache)]
    with contextlib.ExitStack() as stack:
        process = subprocess.Popen(command, env=os.environ | quick, stderr=subprocess.PIPE, text=True)
        stack.callback(process.kill)
        crates = 0
        assert process.stderr is not None
        for line in process.stderr:
            crates += "Compiling" in line
            if crates and crates % 50 == 0 and "Compiling" in line:
                print(f"s2-lite: {crates} crates compiled", file=sys.stderr, flush=True)
        if process.wait() or not found.exists():
            raise ConnectError(f"cargo could not build s2-lite. Try it by hand: {' '.join(command)}")
    return str(found)


class S2Lite:
    """A server with one basin. In memory, or in `folder`: stopped and started again it has its streams still."""

    def __init__(self, folder: Path | None = None, *, basin: str = "penstock-test", port: int | None = None):
        self.folder, self.basin, self.port = folder, basin, port or free_port()
        self.executable = binary()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def options(self) -> dict[str, str]:
        """What a reader or writer needs to reach it."""
        return {"endpoint": self.url, "basin": self.basin}

    def start(self) -> Self:
        """Start it and wait until it is well, with the basin."""
        command = [self.executable, "lite", "--port", str(self.port), "--no-dashboard"]
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
            f"{self.url}/v1/basins/{self.basin}", b"{}", {"content-type": "application/json"}, method="PUT"
        )
        urllib.request.urlopen(request, timeout=5).close()

    def stop(self) -> None:
        """End it, politely first."""
        self._end(terminate=True)

    def kill(self) -> None:
        """End it as a power cut would."""
        self._end(terminate=False)

    def _end(self, *, terminate: bool) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.terminate() if terminate else process.kill()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
