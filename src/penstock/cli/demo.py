"""The demo: made-up orders in a server on this machine, and a pipeline that writes their sums back. It is killed in the
middle and started again, and the sums prove that no order was lost or counted twice. A page shows it, and stays with
new orders where somebody sits at a terminal.
"""

import json
import logging
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass, field
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
from penstock.errors import OptionError, ProtocolError
from penstock.monitor import needed
from penstock.planning.checkpoint import Checkpoint
from penstock.spark.session import require_java
from penstock.testing.nats_server import NatsServer, free_port

STREAM, RESULTS = "ORDERS", "ORDERS_BY_WINDOW"
REGIONS = ("eu", "us", "ap", "sa")
BATCHES = 5
A_SECOND = 200  # orders, while somebody looks
PIPELINE = """\
[source]
type = "jetstream"
servers = "{url}"
identifier = "ORDERS"
batch_size = {batch_size}

[source.input_schema]
type = "json"
schema = "id BIGINT, amount DOUBLE, at DOUBLE"

[[transforms]]
sql = "SELECT timestamp_seconds(at) AS at, split_part(_meta.subject, '.', 2) AS region, amount FROM input"

[[transforms]]
sql = '''
SELECT unix_seconds(window.start) AS window, region, count(*) AS orders, sum(amount) AS amount
FROM input WATERMARK at DELAY OF INTERVAL 0 SECONDS
GROUP BY window(at, '5 seconds'), region
'''

[[sinks]]
type = "jetstream"
servers = "{url}"
subject = "sums.{{region}}"

[trigger]
{trigger}

[checkpoint]
location = "checkpoint"

[spark.conf]
"spark.sql.shuffle.partitions" = 2
"""


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
            job = _Job(server.url, Path(folder), master, records, _Page.where_possible())
            if job.page is not None:
                console.print(f"the page, once Spark has started: {job.page.address}", highlight=False, soft_wrap=True)
            console.print(f"the pipeline, {job.file.name}:", highlight=False)
            console.print(job.file.read_text(), style="dim", highlight=False, markup=False)
            task = progress.add_task("Spark, killed in the middle", total=records)
            job.run(lambda done: progress.update(task, completed=done), kill_in=BATCHES // 2 + 1)
            task = progress.add_task("Spark, started again", total=records)
            job.run(lambda done: progress.update(task, completed=done))
        _show(console, _results(server.url), records)
        if console.is_terminal and job.page is not None:
            _look(console, server.url, job)


def _show(console: Console, results: list[dict[str, Any]], records: int) -> None:
    """The sums, and whether they are of all orders."""
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


def _look(console: Console, url: str, job: "_Job") -> None:
    """Run the pipeline on, with new orders all the time, until Ctrl-C."""
    console.print("new orders go on, for a look at the page; Ctrl-C ends it", highlight=False)
    connection, _ = _connect(url)
    made_up, due = random.Random(), time.monotonic()

    def more(done: int) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due += 1.0
            connection.send(b"".join(_order(i, time.time() + 86_400, made_up) for i in range(A_SECOND)))

    try:
        job.run(more, trigger='processing_time = "1s"')
    except KeyboardInterrupt:
        pass
    finally:
        connection.close()


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
        numbers = range(low, min(records, low + 1000))
        connection.send(b"".join(_order(i, began + 20 * i / records, made_up) for i in numbers))
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


def _order(number: int, at: float, made_up: random.Random) -> bytes:
    """A message with an order."""
    body = json.dumps({"id": number, "amount": round(made_up.uniform(1, 500), 2), "at": at}).encode()
    return b"PUB orders.%s %d\r\n%s\r\n" % (made_up.choice(REGIONS).encode(), len(body), body)


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


@dataclass(frozen=True)
class _Page:
    """Where the page is, in each run."""

    port: int = field(default_factory=free_port)
    key: str = field(default_factory=lambda: secrets.token_urlsafe(16))

    @classmethod
    def where_possible(cls) -> "_Page | None":
        """None without the packages that it needs."""
        try:
            needed.require()
        except OptionError:
            return None
        return cls()

    @property
    def address(self) -> str:
        """With the key, which the page takes out of it."""
        return f"http://127.0.0.1:{self.port}/#key={self.key}"

    def open(self) -> None:
        """Open it in a browser, where there is a screen to see one."""
        if sys.stdout.isatty() and (sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY")):
            webbrowser.open(self.address)


class _Job:
    """`penstock run` with the pipeline, in a process of its own that can be killed."""

    def __init__(self, url: str, folder: Path, master: str, records: int, page: _Page | None):
        self.checkpoint, self.log, self.file = folder / "checkpoint", folder / "spark.log", folder / "orders.toml"
        self.url, self.records, self.master, self.page = url, records, master, page
        self.write("available_now = true")

    def write(self, trigger: str) -> None:
        """Write the pipeline file."""
        self.file.write_text(PIPELINE.format(url=self.url, batch_size=self.records // BATCHES + 1, trigger=trigger))

    def run(self, progress: Callable[[int], None], kill_in: int | None = None, trigger: str | None = None) -> None:
        """Run it to its end, or kill it in the middle of batch `kill_in`."""
        process: subprocess.Popen[bytes] | None = None
        if trigger is not None:
            self.write(trigger)
        command = [sys.executable, "-m", "penstock.cli", "run", str(self.file), "--master", self.master]
        env = dict(os.environ)
        if self.page is not None:
            command += ["--http", f"127.0.0.1:{self.page.port}"]
            env["PENSTOCK_API_KEY"] = self.page.key
        try:
            with self.log.open("ab") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)
            is_open = kill_in is None  # in a later run, it comes back by itself
            while process.poll() is None:
                time.sleep(0.02)
                if self.page is not None and not is_open and "serving" in self.log.read_text():
                    is_open = True
                    self.page.open()
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
