"""What observing costs: a query at full speed that nobody watches, one that is watched, and one that is watched while
another program asks for metrics 200 times a second and 100 others listen to events. In one Spark session, by turns.

The program that asks runs on the same cores, and its own CPU time is not the query's. So there are two ratios: by the
clock, which has both, and by CPU time of the query's processes with all that is asked of them.
"""

import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from measure import cpu_seconds, median, processes, save
from nats_servers import Admin
from penstock.monitor.observer import observe
from penstock.session import local_session
from penstock.testing.nats_server import NatsServer
from spark.jobs import descendants

SIZE, ROUNDS, BATCHES = 200, 7, 10
ASKED, LISTENING = 200, 100  # requests a second, and connections that stay open


def ask(port: int) -> None:
    """Ask until standard input ends. Prints how many answers and events came."""
    host = f"Host: 127.0.0.1:{port}\r\n\r\n".encode()
    readers = [socket.create_connection(("127.0.0.1", port)) for _ in range(LISTENING)]
    for each in readers:
        each.sendall(b"GET /events HTTP/1.1\r\n" + host)
    asking = socket.create_connection(("127.0.0.1", port))
    answers = events = 0
    due = began = time.monotonic()
    open_ = [*readers, asking, sys.stdin]
    while True:
        ready, _, _ = select.select(open_, [], [], max(0.0, due - time.monotonic()))
        for each in ready:
            if each is sys.stdin:
                spent = time.monotonic() - began
                print(f"{answers / spent:.0f} {events / spent / LISTENING:.2f}")
                return
            data = each.recv(1 << 20)
            if each is asking:
                answers += data.count(b"HTTP/1.1 200")
            else:
                events += data.count(b"event: pipelines")
        if time.monotonic() >= due:
            asking.sendall((b"GET /metrics HTTP/1.1\r\n" + host) * 2)
            due += 2 / ASKED


class Asking:
    """A program that asks, while the block runs. `rates`: answers a second, and events a second to each listener."""

    def __init__(self, url: str):
        self.port, self.rates = url.rpartition(":")[2], (0.0, 0.0)

    def __enter__(self) -> "Asking":
        command = [sys.executable, __file__, self.port]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        time.sleep(0.5)
        return self

    def __exit__(self, *what: object) -> None:
        said, _ = self.process.communicate("\n", 10)
        answers, events = map(float, said.split())
        self.rates = answers, events


def read(spark: Any, options: dict[str, str]) -> None:
    """A query from the first message to the last, in batches."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        rows = spark.readStream.format("jetstream").options(**options).load().select("value", "subject", "sequence")
        writer = rows.writeStream.format("noop").option("checkpointLocation", folder).queryName("orders")
        writer.trigger(availableNow=True).start().awaitTermination()


def spark_seconds() -> float:
    """CPU time of this program, its Spark and its Python workers."""
    ours = set(processes("pyspark")) | set(processes("penstock.spark.warm"))
    return cpu_seconds([os.getpid(), *ours & set(descendants(os.getpid()))])


def main() -> dict[str, Any]:
    rows = int(os.environ.get("COUNT", 1_500_000))
    spark = local_session("bench", "local[2]", quiet=True)
    seconds: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    rates: list[tuple[float, float]] = []
    with NatsServer() as server:
        admin = Admin(server.url)
        admin.create("IN", storage="memory")
        admin.publish(("IN.x", b"x" * SIZE) for _ in range(rows))
        options = {
            "servers": server.url, "stream": "IN", "startingOffsets": "earliest",
            "maxRecordsPerTrigger": str(rows // BATCHES + 1),
        }  # fmt: skip

        def off() -> None:
            timed("off", lambda: read(spark, options))

        def on() -> None:
            with observe(spark):
                timed("on", lambda: read(spark, options))

        def asked() -> None:
            with observe(spark) as observer, Asking(observer.url) as asking:
                timed("asked", lambda: read(spark, options))
            rates.append(asking.rates)

        def timed(name: str, work: Callable[[], None]) -> None:
            used, began = spark_seconds(), time.monotonic()
            work()
            seconds.setdefault(name, []).append(time.monotonic() - began)
            cpu.setdefault(name, []).append(spark_seconds() - used)

        for _ in range(ROUNDS + 1):
            for way in (off, on, asked):
                way()
            print({name: round(each[-1], 2) for name, each in seconds.items()}, flush=True)
    spark.stop()
    for measured in (*seconds.values(), *cpu.values()):
        del measured[0]  # the first is for warming up
    result: dict[str, Any] = {
        "rows": rows, "rounds": ROUNDS, "batches": BATCHES,
        "answers a second": round(median(each for each, _ in rates)),
        "events a second to each of 100": round(median(each for _, each in rates), 2),
    }  # fmt: skip
    for name in seconds:
        result[f"{name}, rows a second"] = round(rows / median(seconds[name]))
        result[f"{name}, CPU us a row"] = round(median(cpu[name]) / rows * 1e6, 3)
    for name in ("on", "asked"):
        pairs = zip(seconds["off"], seconds[name], strict=True)
        result[f"{name} to off, throughput"] = round(median(a / b for a, b in pairs), 3)
        used = zip(cpu["off"], cpu[name], strict=True)
        result[f"{name} to off, rows a second of CPU"] = round(median(a / b for a, b in used), 3)
    return result


if __name__ == "__main__":
    if len(sys.argv) > 1:
        ask(int(sys.argv[1]))
    else:
        save("observe", main())
