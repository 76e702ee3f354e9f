"""The main job on one machine: made-up orders in an embedded server, a Spark query over them, and the proof."""

import json
import logging
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from penstock.connectors.jetstream.calls import Calls
from penstock.connectors.jetstream.options import JetStreamOptions
from penstock.connectors.nats.client import Connection
from penstock.embedded import NatsServer
from penstock.errors import ProtocolError
from penstock.session import local_session, require_java

STREAM = "ORDERS"
REGIONS = ("eu", "us", "ap", "sa")
WINDOW = "5 seconds"


def run(console: Console, records: int, master: str) -> None:
    """The whole demo; ends by itself."""
    require_java()
    logging.getLogger("penstock").setLevel(logging.ERROR)
    bar = Progress(
        TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder, NatsServer(Path(folder) / "nats") as server:
        console.print(f"nats-server runs on {server.url}, with its data in {folder}", highlight=False)
        with bar as progress:
            task = progress.add_task("publishing orders", total=records)
            publish(server.url, records, lambda done: progress.update(task, completed=done))
            starting = progress.add_task("starting Spark", total=1)
            spark = local_session("penstock-demo", master, quiet=True, conf={"spark.sql.shuffle.partitions": "4"})
            progress.update(starting, completed=1)
            reading = progress.add_task("reading with Spark", total=records)
            try:
                result = read(spark, server.url, Path(folder), lambda done: progress.update(reading, completed=done))
            finally:
                spark.stop()
    shown = Table("window", "region", "orders", "amount", title="orders by window and region")
    for window, region, orders, amount in result["windows"]:
        shown.add_row(f"{window:%H:%M:%S}", region, f"{orders:,}", f"{amount:,.2f}")
    console.print(shown)
    twice = result["rows"] - result["distinct"]
    console.print(f"{records:,} published, {result['distinct']:,} read, {twice:,} twice", style="bold", highlight=False)
    if result["distinct"] != records or twice:
        raise ProtocolError("the demo did not read every order exactly once")


def publish(url: str, records: int, progress: Callable[[int], None] = lambda done: None) -> None:
    """Make the stream and fill it, a thousand orders to a write; the stream itself says how many it has."""
    options = JetStreamOptions.parse("jetstream", {"servers": url, "stream": STREAM})
    connection = Connection(options)
    calls = Calls(connection, options)
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


def read(spark: Any, url: str, folder: Path, progress: Callable[[int], None]) -> dict[str, Any]:
    """Aggregate the stream by window in micro-batches with a checkpoint, and count every order once."""
    from pyspark.sql import functions as f

    orders = (
        spark.readStream.format("jetstream")
        .option("servers", url)
        .option("stream", STREAM)
        .option("startingOffsets", "earliest")
        .option("maxRecordsPerTrigger", 25_000)
        .load()
        .select(
            f.from_json(f.col("value").cast("string"), "id LONG, amount DOUBLE, at DOUBLE").alias("o"),
            f.split("subject", "\\.")[1].alias("region"),
        )
        .groupBy(f.window(f.timestamp_seconds("o.at"), WINDOW).alias("window"), "region")
        .agg(f.count("o.id").alias("orders"), f.sum("o.amount").alias("amount"), f.collect_set("o.id").alias("ids"))
    )
    query = (
        orders.writeStream.format("memory")
        .queryName("orders_by_window")
        .outputMode("complete")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    while query.isActive:
        query.awaitTermination(1)
        progress(sum(p.numInputRows for p in query.recentProgress))
    query.awaitTermination()
    progress(sum(p.numInputRows for p in query.recentProgress))
    windows = spark.sql(
        "SELECT window.start, region, orders, amount, size(ids) FROM orders_by_window ORDER BY window.start, region"
    ).collect()
    return {
        "rows": sum(row[2] for row in windows),
        "distinct": sum(row[4] for row in windows),
        "windows": [tuple(row)[:4] for row in windows],
    }
