"""The demo: made-up orders in a server on this machine, and a Spark query that writes their sums back. The query is
killed in the middle and started again, and the sums prove that no order was lost or counted twice.
"""

import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from penstock.cli.peek import newest
from penstock.clients.jetstream.calls import Calls
from penstock.clients.nats.client import Connection
from penstock.connectors.jetstream.options import JetStreamOptions
from penstock.errors import ProtocolError
from penstock.planning.checkpoint import Checkpoint
from penstock.spark.session import local_session, require_java
from penstock.testing.nats_server import NatsServer

STREAM, RESULTS = "ORDERS", "ORDERS_BY_WINDOW"
REGIONS = ("eu", "us", "ap", "sa")
WINDOW = "5 seconds"
BATCHES = 5


def run(console: Console, records: int, master: str) -> None:
    """Run the whole demo. Ends every process that it started, also where a signal stops it."""
    require_java()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    logging.getLogger("penstock").setLevel(logging.ERROR)
    bar = Progress(
        TextColumn("{task.description:<32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
    # Spark's Python workers may still write while the folder is deleted, which is not an error.
    temporary = tempfile.TemporaryDirectory(prefix="penstock-demo-", ignore_cleanup_errors=True)
    with temporary as folder, NatsServer(Path(folder) / "nats") as server:
        console.print(f"nats-server runs on {server.url}, with its data in {folder}", highlight=False)
        with bar as progress:
            task = progress.add_task("publishing orders", total=records)
            publish(server.url, records, lambda done: progress.update(task, completed=done))
            _prepare(server.url)
            job = _Job(server.url, Path(folder), master, records)
            task = progress.add_task("Spark, killed in the middle", total=records)
            job.run(lambda done: progress.update(task, completed=done), kill_in=BATCHES // 2 + 1)
            task = progress.add_task("Spark, started again", total=records)
            job.run(lambda done: progress.update(task, completed=done))
        results = _results(server.url)
    shown = Table("window", "region", "orders", "amount", title=f"stream {RESULTS}, written by Spark")
    for row in results:
        at = datetime.fromtimestamp(row["window"], UTC)
        shown.add_row(f"{at:%H:%M:%S}", row["region"], f"{row['orders']:,}", f"{row['amount']:,.2f}")
    console.print(shown)
    counted = sum(row["orders"] for row in results)
    by_key = {(row["window"], row["region"]): row["orders"] for row in results}
    twice = counted - sum(by_key.values())
    console.print(f"{records:,} published, {counted - twice:,} read, {twice:,} twice", style="bold", highlight=False)
    if counted != records or twice:
        raise ProtocolError("the demo did not count every order exactly once")


def _end(number: int, frame: Any) -> None:
    """Leave all `with` blocks, as Ctrl-C does: they end what they started."""
    sys.exit(128 + number)


def publish(url: str, records: int, progress: Callable[[int], None] = lambda done: None) -> None:
    """Make the stream and fill it, a thousand orders to a write; the stream itself says how many it has."""
    connection, calls = _connect(url)
    calls.call(
        f"STREAM.CREATE.{STREAM}", {"name": STREAM, "subjects": ["orders.>"], "storage": "file", "allow_direct": True}
    )
    made_up = random.Random(17)
    began = time.time()
    for low in range(0, records, 1000):
        out = bytearray()
        for i in range(low, min(records, low + 1000)):
            order = {"id": i, "amount": round(made_up.uniform(1, 500), 2), "at": began + 20 * i / records}
            body = json.dumps(order).encode()
            out += b"PUB orders.%s %d\r\n%s\r\n" % (made_up.choice(REGIONS).encode(), len(body), body)
        connection.send(bytes(out))
        stored = calls.stream(STREAM).last
        while stored < low - 20_000:  # the server drops what it cannot buffer
            stored = calls.stream(STREAM).last
        progress(stored)
    deadline = time.monotonic() + 60
    while (stored := calls.stream(STREAM).last) < records:
        progress(stored)
        if time.monotonic() > deadline:
            raise ProtocolError(f"the server stored {stored:,} of {records:,} orders, and no more of them in a minute")
    progress(stored)
    connection.close()


def _connect(url: str) -> tuple[Connection, Calls]:
    options = JetStreamOptions.parse("jetstream", {"servers": url, "stream": STREAM})
    connection = Connection(options)
    return connection, Calls(connection, options)


def _prepare(url: str) -> None:
    """A stream for the results, and an order far in the future: it closes the windows of all others."""
    connection, calls = _connect(url)
    calls.call(f"STREAM.CREATE.{RESULTS}", {"name": RESULTS, "subjects": ["sums.>"], "allow_direct": True})
    calls.publish("orders.end", json.dumps({"id": -1, "amount": 0, "at": time.time() + 86_400}).encode())
    connection.close()


def _results(url: str) -> list[dict[str, Any]]:
    """Every message of the second stream, as it is there."""
    from penstock.connectors.jetstream import JetStream

    rows = newest(JetStream, {"servers": url, "stream": RESULTS}, 10_000)
    return sorted((json.loads(row["value"]) for row in rows), key=lambda row: (row["window"], row["region"]))


class _Job:
    """The Spark program, in a process of its own that can be killed."""

    def __init__(self, url: str, folder: Path, master: str, records: int):
        self.checkpoint, self.log = folder / "checkpoint", folder / "spark.log"
        self.records = records
        self.arguments = {
            "url": url,
            "checkpoint": str(self.checkpoint),
            "master": master,
            "limit": records // BATCHES + 1,
        }

    def run(self, progress: Callable[[int], None], kill_in: int | None = None) -> None:
        """Run it to its end, or kill it in the middle of batch `kill_in`."""
        process: subprocess.Popen[bytes] | None = None
        try:
            with self.log.open("ab") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "penstock.cli.demo", json.dumps(self.arguments)],
                    stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
            while process.poll() is None:
                time.sleep(0.02)
                progress(min(self._position(), self.records))
                if kill_in is not None and self._is_in(kill_in):
                    return
        finally:
            if process is not None and process.poll() is None:  # Spark's JVM and Python workers too
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        progress(min(self._position(), self.records))
        if process.returncode:
            raise ProtocolError(f"the Spark program failed:\n{self.log.read_text()[-2000:]}")

    def _is_in(self, batch: int) -> bool:
        planned, done = self.checkpoint / "offsets" / str(batch), self.checkpoint / "commits" / str(batch)
        return planned.exists() and not done.exists()

    def _position(self) -> int:
        """How many orders the last planned batch reaches."""
        planned = sorted((int(p.name) for p in self.checkpoint.glob("offsets/*") if p.name.isdigit()), reverse=True)
        if not planned:
            return 0
        lines = (self.checkpoint / "offsets" / str(planned[0])).read_text().splitlines()
        try:
            return Checkpoint.decode(json.loads(lines[-1])).positions[STREAM].next - 1
        except (IndexError, ValueError, KeyError):  # it is being written just now
            return 0


def _spark_program(arguments: dict[str, Any]) -> None:
    """Sums by window and region, written to the second stream as each window closes."""
    from pyspark.sql import functions as f

    spark = local_session("penstock-demo", arguments["master"], quiet=True, conf={"spark.sql.shuffle.partitions": "2"})
    orders = (
        spark.readStream.format("jetstream")
        .option("servers", arguments["url"])
        .option("stream", STREAM)
        .option("startingOffsets", "earliest")
        .option("maxRecordsPerTrigger", arguments["limit"])
        .load()
        .select(
            f.from_json(f.col("value").cast("string"), "id LONG, amount DOUBLE, at DOUBLE").alias("o"),
            f.split("subject", "\\.")[1].alias("region"),
        )
        .select(f.timestamp_seconds("o.at").alias("at"), "region", "o.amount")
    )
    sums = (
        orders.withWatermark("at", "0 seconds")
        .groupBy(f.window("at", WINDOW).alias("w"), "region")
        .agg(f.count("*").alias("orders"), f.sum("amount").alias("amount"))
        .select(
            f.to_json(f.struct(f.unix_seconds("w.start").alias("window"), "region", "orders", "amount")).alias("value"),
            "region",
        )
    )
    query = (
        sums.writeStream.format("jetstream")
        .option("servers", arguments["url"])
        .option("subject", "sums.{region}")
        .option("checkpointLocation", arguments["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    _spark_program(json.loads(sys.argv[1]))
