"""Ten pipelines in one application, for as many batches as they have in an hour with one every ten seconds: do memory
and threads stay flat? Each copies a stream to another, one with dead letters, one with two sinks.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from measure import median, save
from nats_servers import Admin
from penstock.testing.nats_server import NatsServer
from spark.jobs import descendants

PIPELINES, BATCHES, EVERY = 10, 360, 5.0
FILE = """
[source]
type = "jetstream"
servers = "{url}"
identifier = "IN{i}"
input_schema = {{ type = "json", schema = "id BIGINT" }}

[[sinks]]
type = "jetstream"
servers = "{url}"
subject = "OUT{i}.x"
"""
DEAD = """
[errors]
mode = "dead_letter"
sink = {{ type = "jetstream", servers = "{url}", subject = "DEAD.x" }}
"""
SECOND = '\n[[sinks]]\ntype = "noop"\n'


def sample(pid: int) -> dict[str, int]:
    """Megabytes and threads of the command and all that it started."""
    figures = {"megabytes": 0, "threads": 0, "processes": 0}
    for each in [pid, *descendants(pid)]:
        try:
            status = dict(
                line.split(":\t", 1) for line in (Path("/proc") / str(each) / "status").read_text().splitlines()
            )
        except OSError:
            continue
        figures["processes"] += 1
        figures["threads"] += int(status["Threads"])
        figures["megabytes"] += int(status.get("VmRSS", "0 kB").split()[0]) // 1024
    return figures


def committed(folder: Path) -> list[int]:
    """The last batch that each pipeline has finished."""
    return [
        max((int(file.name) for file in (location / "commits").glob("[0-9]*")), default=-1)
        for location in sorted((folder / ".penstock").glob("p*"))
    ]


def main() -> dict[str, Any]:
    batches, seconds = int(os.environ.get("BATCHES", BATCHES)), float(os.environ.get("SECONDS", "inf"))
    samples = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, NatsServer() as server:
        folder, admin = Path(name), Admin(server.url)
        admin.create("DEAD", storage="memory", max_msgs=1000)
        for i in range(PIPELINES):
            admin.create(f"IN{i}", storage="memory", max_msgs=10_000)
            admin.create(f"OUT{i}", storage="memory", max_msgs=1000)
            text = FILE + (DEAD if i == 0 else SECOND if i == 1 else "")
            (folder / f"p{i}.toml").write_text(text.format(url=server.url, i=i))
        is_over = threading.Event()

        def publish() -> None:
            number = 0
            while not is_over.wait(0.05):
                number += 1
                for i in range(PIPELINES):
                    bad = i == 0 and number % 50 == 0
                    admin.publish([(f"IN{i}.x", b"bad" if bad else b'{"id": %d}' % number)] * 3)

        publisher = threading.Thread(target=publish)
        publisher.start()
        log = (folder / "log").open("w")
        command = [sys.executable, "-m", "penstock.cli", "run", name, "--master", "local[2]"]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        began = time.monotonic()
        try:
            while process.poll() is None and min(committed(folder), default=-1) < batches:
                if time.monotonic() - began > seconds:
                    break
                time.sleep(EVERY)
                samples.append(sample(process.pid) | {"batches": sum(committed(folder))})
                print(round(time.monotonic() - began), samples[-1], flush=True)
            assert process.poll() is None, (folder / "log").read_text()[-3000:]
            slowest = min(committed(folder))
        finally:
            is_over.set()
            publisher.join()
            process.terminate()
            process.wait(120)
            admin.close()
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    parts = ("megabytes", "threads", "processes")
    return {
        "pipelines": PIPELINES, "batches": samples[-1]["batches"], "batches of the slowest": slowest,
        "seconds": round(time.monotonic() - began),
        "second quarter": {part: median([each[part] for each in early]) for part in parts},
        "last quarter": {part: median([each[part] for each in late]) for part in parts},
    }  # fmt: skip


if __name__ == "__main__":
    save("soak", main())
