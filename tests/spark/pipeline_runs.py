"""What tests of pipelines share: files, and runs of them, in this process to their end or as the command in one of its
own, which can be killed.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

from pyspark.sql import SparkSession

from penstock.checkpoints.lease import Lease
from penstock.cli.peek import newest
from penstock.connectors import connector
from penstock.pipelines import runner
from penstock.pipelines.load import load
from penstock.pipelines.runner import Runner, Running, State
from penstock.testing.nats_server import NatsServer
from spark.jobs import command, descendants, kill, wait

# Reads what is there and ends; what fails says so at once.
ONCE = """
[trigger]
available_now = true

[restart]
max_restarts = 0
"""


def written(folder: Path, name: str, text: str) -> Path:
    """A pipeline file."""
    file = folder / f"{name}.toml"
    file.write_text(text)
    return file


def run(spark: SparkSession, *files: Path) -> Running:
    """Run files to their end: how the first of them went. Nobody else wants their checkpoints."""
    with patch.object(runner, "Lease", partial(Lease, settle=0.01)):
        return Runner(spark, load(files), lambda text: None).run()[0]


def done(spark: SparkSession, *files: Path) -> Running:
    """Run files to their end, which must be a good one."""
    went = run(spark, *files)
    assert went.state is State.DONE, went.error
    return went


def bodies(nats: NatsServer, stream: str) -> list[bytes]:
    """Every body of a stream of JetStream, in order."""
    rows = newest(connector("jetstream"), {"servers": nats.url, "stream": stream}, 100_000)
    return [row["value"] for row in rows]


class Command:
    """`penstock run` with files, on a Spark of two threads or where `more` says."""

    def __init__(self, folder: Path, *files: Path, more: tuple[str, ...] = ("--master", "local[2]")):
        self.log = folder / "command.log"
        self.line = [sys.executable, "-m", "penstock.cli", "run", *map(str, files), *more]

    @contextmanager
    def running(self, **env: str) -> Iterator["subprocess.Popen[bytes]"]:
        """The command in a session of its own. All that it started ends with the block."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(self.line, stdout=log, stderr=log, start_new_session=True, env=os.environ | env)
        try:
            yield process
        finally:
            self.kill(process)

    def kill(self, process: "subprocess.Popen[bytes]") -> None:
        """The command, its JVM and all Python processes: nobody writes any more when this returns."""
        every = [process.pid, *descendants(process.pid)]  # Spark's Python processes have a group of their own
        for pid in every:
            kill(pid)
        process.wait()
        wait(lambda: not any(map(command, every)))

    def run(self, **env: str) -> int:
        """To its end; the exit code."""
        with self.running(**env) as process:
            return process.wait(180)

    def said(self) -> str:
        return self.log.read_text()


def batches(location: Path) -> tuple[int, int]:
    """The last batch that a checkpoint has planned, and the last one that it has committed; -1 where there is none."""
    planned, committed = (
        max((int(file.name) for file in (location / part).glob("[0-9]*") if file.name.isdigit()), default=-1)
        for part in ("offsets", "commits")
    )
    return planned, committed
