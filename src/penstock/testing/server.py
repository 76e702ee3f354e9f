"""A server that is a process of its own: how it ends. Knows no server."""

import subprocess
from types import TracebackType
from typing import Self


class ServerProcess:
    """What servers for tests share. Each has a `start`, which sets `process`."""

    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> Self:
        """Start it, and wait until it answers."""
        raise NotImplementedError

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
        if terminate:
            process.terminate()
        else:
            process.kill()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
