"""What the machine and the servers use: CPU, memory, disk. Knows /proc of Linux, and /varz of a server; where
neither is there, figures are left out.
"""

import os
import platform
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from penstock.clients.answers import field
from penstock.clients.pages import Site
from penstock.errors import PenstockError

EVERY = 0.2  # seconds between two looks


class Use(NamedTuple):
    """What processes have used: seconds of CPU so far, and bytes of memory now."""

    cpu: float
    memory: int


def used(pids: Iterable[int]) -> Use:
    """What these processes use, those that have ended left out."""
    cpu, memory = 0.0, 0
    for pid in pids:
        with suppress(OSError, ValueError, StopIteration):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            status = Path(f"/proc/{pid}/status").read_text()
            resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
            cpu += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            memory += int(resident.split()[1]) * 1024
    return Use(cpu, memory)


def idle_seconds() -> float | None:
    """How long all cores of this machine have been idle so far; None where it does not tell."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
        return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def disk_bytes(folders: Iterable[Path]) -> int:
    """The sizes of all files in these folders. A file or folder that goes away meanwhile counts nothing."""
    total = 0
    for folder in folders:
        for place, _, files in os.walk(folder):
            for name in files:
                with suppress(OSError):
                    total += os.stat(os.path.join(place, name)).st_size
    return total


def described() -> dict[str, Any]:
    """The machine that runs the load generator, as a report has it."""
    processor, memory = platform.processor() or platform.machine(), 0
    with suppress(OSError, ValueError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), processor)
        found = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
        memory = int(found.split()[1]) * 1024
    return {
        "processor": processor,
        "cores": os.cpu_count() or 1,
        "memory_gb": round(memory / 2**30),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


# What servers use now, and None where it cannot be told. A server by its /varz tells the CPU of now, in cores.
Look = Callable[[], Use | None]


def by_pids(pids: Callable[[], Sequence[int]]) -> Look:
    """Look at processes of this machine."""
    return lambda: used(pids())


class ByMonitoring:
    """Look at /varz of servers that are elsewhere. What they tell of CPU is summed up over time."""

    def __init__(self, urls: Sequence[str]):
        self.sites = [Site(url, timeout=2.0) for url in urls]
        self._cpu, self._at = 0.0, time.monotonic()

    def __call__(self) -> Use | None:
        """What all of them use."""
        percent, memory = 0.0, 0
        try:
            for site in self.sites:
                varz = site.json("/varz")
                percent += float(varz.get("cpu") or 0)
                memory += field(varz, "mem", int, 0)
        except (PenstockError, AttributeError, TypeError, ValueError):
            return None
        now = time.monotonic()
        self._cpu += percent / 100 * (now - self._at)
        self._at = now
        return Use(self._cpu, memory)


class Watch:
    """Looks at the servers while something goes on, in a thread."""

    def __init__(self, look: Look | None):
        self._look = look
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.cores: float | None = None  # that the servers used, on average
        self.memory = 0  # of the servers, at most
        self.idle: float | None = None  # part of the machine that had nothing to do
        self.seconds = 0.0

    def begin(self) -> None:
        """Count from now on."""
        self._began, self._idle = time.monotonic(), idle_seconds()
        self._first = self._look() if self._look is not None else None

    def __enter__(self) -> Self:
        self.begin()
        if self._look is not None:
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.seconds = max(1e-6, time.monotonic() - self._began)
        self._over.set()
        if self._thread is not None:
            self._thread.join(5)
        last = self._look() if self._look is not None else None
        if self._first is not None and last is not None:
            self.memory = max(self.memory, last.memory)
            self.cores = max(0.0, last.cpu - self._first.cpu) / self.seconds
        idle = idle_seconds()
        if idle is not None and self._idle is not None:
            self.idle = min(1.0, (idle - self._idle) / self.seconds / (os.cpu_count() or 1))

    def _watch(self) -> None:
        while not self._over.wait(EVERY):
            seen = self._look() if self._look is not None else None
            if seen is not None:
                self.memory = max(self.memory, seen.memory)
