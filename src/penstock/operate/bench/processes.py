"""The processes of the load generator, seen from the one that runs the benchmark: started once, given jobs, ended by
their own ids. Knows processes and pipes; knows no server.
"""

import json
import pickle
import queue
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from penstock.errors import ConnectError
from penstock.operate.bench.jobs import Job, Told

READY = 60.0  # seconds until a process must be ready: it may have to wait for a cluster


class LoadError(ConnectError):
    """A process of the load generator could not do its job. The sentence is its own."""


@dataclass
class Worker:
    """One process."""

    process: "subprocess.Popen[bytes]"
    said: "queue.Queue[dict[str, Any] | None]"

    def write(self, data: bytes) -> None:
        """Send it something. What cannot be sent shows as the end of what it says."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.write(data)
            self.process.stdin.flush()


# What is called with each thing that a process says while it works: its number, and the thing.
Hear = Callable[[int, dict[str, Any]], None]


class Processes:
    """Processes that wait for jobs. Each is used again; one that has died is replaced."""

    def __init__(self) -> None:
        self._workers: list[Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """End all processes."""
        for worker in self._workers:
            with suppress(OSError):
                worker.process.kill()
        for worker in self._workers:
            worker.process.wait()
            for pipe in (worker.process.stdin, worker.process.stdout):
                with suppress(OSError):
                    assert pipe is not None
                    pipe.close()
        self._workers = []

    def pids(self) -> list[int]:
        """The ids of the processes."""
        return [worker.process.pid for worker in self._workers]

    def work(
        self,
        jobs: Sequence[Job],
        seconds: float,
        hear: Hear = lambda which, said: None,
        begin: Callable[[], None] = lambda: None,
    ) -> list[Told]:
        """Do jobs at the same time, each in a process; they begin together, and `begin` is called just before. A
        LoadError with the sentence of the first that fails. `seconds` is how long they may take, all in all.
        """
        workers = self._taken(len(jobs))
        try:
            for worker, job in zip(workers, jobs, strict=True):
                data = pickle.dumps(job)
                worker.write(struct.pack(">I", len(data)) + data)
            deadline = time.monotonic() + READY
            for worker in workers:
                self._heard(worker, "ready", deadline, lambda said: None)
            begin()
            for worker in workers:
                worker.write(b"go\n")
            return self._all(workers, seconds, hear)
        except BaseException:
            # Whoever is still at work, or waits for a word, is of no use any more.
            self.end()
            raise

    def _all(self, workers: Sequence[Worker], seconds: float, hear: Hear) -> list[Told]:
        deadline = time.monotonic() + seconds
        return [
            Told(**self._heard(worker, "told", deadline, lambda said, i=i: hear(i, said))["told"])  # type: ignore[misc]
            for i, worker in enumerate(workers)
        ]

    def _heard(
        self, worker: Worker, word: str, deadline: float, hear: Callable[[dict[str, Any]], None]
    ) -> dict[str, Any]:
        """Wait until a process says `word`; what it says before goes to `hear`."""
        while True:
            try:
                said = worker.said.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise LoadError("a process of the load generator did not finish in time, and was ended") from None
            if said is None:
                raise LoadError(f"a process of the load generator ended with {worker.process.wait()}")
            if "failed" in said:
                raise LoadError(said["failed"])
            if word in said:
                return said
            hear(said)

    def _taken(self, count: int) -> list[Worker]:
        self._workers = [worker for worker in self._workers if worker.process.poll() is None]
        while len(self._workers) < count:
            self._workers.append(_started())
        return self._workers[:count]


def _started() -> Worker:
    command = [sys.executable, "-m", "penstock.operate.bench"]
    # Ctrl-C goes to all processes of a group: in one of its own, it is ours to end.
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)
    worker = Worker(process, queue.Queue())
    threading.Thread(target=_listen, args=(worker,), daemon=True).start()
    return worker


def _listen(worker: Worker) -> None:
    assert worker.process.stdout is not None
    with suppress(OSError, ValueError):
        for line in worker.process.stdout:
            with suppress(ValueError):
                worker.said.put(json.loads(line))
    worker.said.put(None)
