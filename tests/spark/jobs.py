"""Run driver.py beside the test, watch its checkpoint, and kill what should be killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from penstock.connectors import connector
from spark.driver import start

DRIVER = Path(__file__).with_name("driver.py")


class Job:
    """What a driver is told, and where its rows go."""

    def __init__(self, folder: Path, options: dict[str, Any], **more: Any):
        self.out, self.checkpoint, self.log = folder / "rows", folder / "checkpoint", folder / "driver.log"
        self.told = {
            "options": options | {"requestTimeout": "5s"},
            "out": str(self.out),
            "checkpoint": str(self.checkpoint),
            "conf": {"spark.log.level": "ERROR", **more.pop("conf", {})},
            **more,
        }

    @contextmanager
    def running(self, **env: str) -> Iterator["subprocess.Popen[bytes]"]:
        """The driver in a process group of its own; whatever is left of it ends with the block."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, str(DRIVER), json.dumps(self.told)],
                stdout=log, stderr=log, start_new_session=True, env=os.environ | env,
            )  # fmt: skip
        try:
            yield process
        finally:
            for pid in [*descendants(process.pid), process.pid]:
                kill(pid)
            process.wait()

    def run(self, **env: str) -> None:
        """To its end, which must be a good one."""
        with self.running(**env) as process:
            code = process.wait(180)
        assert code == 0, self.log.read_text()[-3000:]

    def go_on(self, spark: SparkSession) -> None:
        """To its end, in another application: that of the tests, which is there already."""
        spark.dataSource.register(connector(self.told.get("format", "jetstream")))
        start(spark, self.told | {"available_now": True}).awaitTermination()

    def values(self) -> list[int]:
        """Every row the sink has, by its metadata log: what a failed attempt left behind does not count."""
        files = committed(self.out)
        return [int(v) for v in ds.dataset(files).to_table(["value"])["value"].to_pylist()] if files else []

    def in_batch(self, first: int) -> bool:
        """Whether a batch is planned and not yet finished: this one, or a later one where this is over already."""
        planned, done = (
            max((int(file.name) for file in folder.glob("[0-9]*") if file.name.isdigit()), default=-1)
            for folder in (self.checkpoint / "offsets", self.checkpoint / "commits")
        )
        return planned >= first and planned > done

    def batch_done(self, number: int) -> bool:
        return (self.checkpoint / "commits" / str(number)).exists()


def committed(folder: Path) -> list[str]:
    """The files that a streaming query has written into a folder, by its log."""
    files: set[str] = set()
    for entry in (folder / "_spark_metadata").iterdir():
        if entry.name.isdigit() or entry.name.endswith(".compact"):
            files |= {json.loads(line)["path"].removeprefix("file://") for line in entry.read_text().splitlines()[1:]}
    return sorted(files)


def wait(condition: Callable[[], Any], process: "subprocess.Popen[bytes] | None" = None, seconds: float = 120) -> Any:
    """Poll until something holds; not longer than the process lives."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        assert process is None or process.poll() is None, "the driver ended before"
        time.sleep(0.005)
    raise AssertionError("it did not happen in time")


def descendants(pid: int) -> list[int]:
    """Children, grandchildren and so on."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found


def command(pid: int) -> str:
    """The command line of a process, and its name, by which forks of a warm Python differ. Nothing once it ended."""
    process = Path("/proc") / str(pid)
    try:
        line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return line and line + (process / "comm").read_text()
    except OSError:
        return ""


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def jvms(process: "subprocess.Popen[bytes]") -> list[int]:
    return [pid for pid in descendants(process.pid) if "SparkSubmit" in command(pid) and "java" in command(pid)]


def kill_jvm(process: "subprocess.Popen[bytes]") -> None:
    found = jvms(process)
    assert found, "there is no JVM to kill"
    for pid in found:
        kill(pid)


def task_workers(process: "subprocess.Popen[bytes]") -> list[int]:
    """Python processes that run tasks: forked by the daemon, not the daemon itself."""
    daemons = [pid for pid in descendants(process.pid) if "pyspark.worker" in command(pid)]
    return [child for daemon in daemons for child in descendants(daemon)]


def kill_application(process: "subprocess.Popen[bytes]") -> None:
    """The JVM and all that run its tasks: nobody writes any more when this returns."""
    workers = task_workers(process)
    kill_jvm(process)
    for pid in workers:
        kill(pid)
    wait(lambda: not any(map(command, workers)))
