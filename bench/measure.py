"""Clocks for benchmarks: CPU time of processes by name, medians, and a place for results."""

import json
import os
import platform
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
_TICK = os.sysconf("SC_CLK_TCK")


def processes(part: str) -> dict[int, str]:
    """Running processes whose command line or name has `part`."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                line += (entry / "comm").read_text()  # forks of a warm Python have its command line
            except OSError:
                continue
            if part in line:
                found[int(entry.name)] = line
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time that these processes have used so far; the ended ones count nothing."""
    total = 0.0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / _TICK
    return total


def resident_mb(pids: Iterable[int]) -> float:
    """Peak resident memory of these processes."""
    total = 0.0
    for pid in pids:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        total += int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024
    return total


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def save(name: str, result: dict[str, Any]) -> None:
    """Write a result beside the machine it was measured on."""
    RESULTS.mkdir(exist_ok=True)
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.system()}
    (RESULTS / f"{name}.json").write_text(json.dumps({"machine": machine, **result}, indent=2, sort_keys=True) + "\n")
