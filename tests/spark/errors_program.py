"""Fails in every way that one of our errors can come through Spark, and prints what a user would see. Takes JSON.

What the terminal would show of each case is printed as one line of JSON: `plain` is Python's own way, `shown` is that
of the session. The last case is left uncaught, as in a program of a user.
"""

import contextlib
import io
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.functions import udf

import penstock.spark.warm
from penstock.connectors.journal import Journal
from penstock.connectors.journal.options import JournalOptions, JournalSinkOptions
from penstock.connectors.journal.sink import JournalSink
from penstock.connectors.journal.source import JournalSource
from penstock.kit.contract import Origin, Receipt, Sink, Source
from penstock.planning.positions import Range
from penstock.spark.session import local_session
from penstock.testing.journal import JournalLog
from penstock.testing.nats_server import NatsServer


class TrimmedSource(JournalSource):
    """Loses rows after they were planned, and before they are read."""

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        (self.folder / span.shard / "first").write_text("2")
        return super().read(span)


class OccupiedSink(JournalSink):
    """Finds a file in the place of its log, when it begins to write."""

    def write(self, batches: Iterator[pa.RecordBatch], origin: Origin) -> Receipt:
        shutil.rmtree(self.log.folder, ignore_errors=True)
        self.log.folder.write_text("a file")
        return super().write(batches, origin)


class BuggySource(JournalSource):
    """Has a bug."""

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        yield from {}["a bug"]


class Broken(Journal):
    """A journal that fails in tasks, with errors of ours."""

    format = "broken"

    @classmethod
    def open_source(cls, options: JournalOptions) -> Source:
        return TrimmedSource(options, cls.columns(options))

    @classmethod
    def open_sink(cls, options: JournalSinkOptions, columns: pa.Schema) -> Sink:
        return OccupiedSink(options, columns)


class Buggy(Journal):
    """A journal that fails in tasks, with a bug."""

    format = "buggy"

    @classmethod
    def open_source(cls, options: JournalOptions) -> Source:
        return BuggySource(options, cls.columns(options))


def divided(number: int) -> int:
    return number // 0


class Cases:
    """The ways to fail, by their names."""

    def __init__(self, spark: Any, folder: Path):
        self.spark, self.folder = spark, folder
        spark.dataSource.register(Broken)
        spark.dataSource.register(Buggy)

    def journal(self) -> dict[str, str]:
        """A new journal of five rows."""
        log = JournalLog(self.folder / f"journal-{time.time_ns()}")
        log.make("shard")
        log.append("shard", list("abcde"))
        return log.options()

    def schema(self) -> None:
        self.spark.read.format("jetstream").options(stream="ORDERS", startingOfsets="earliest").load().collect()

    def batch_read(self) -> None:
        self.spark.read.format("broken").options(**self.journal()).load().collect()

    def batch_write(self) -> None:
        rows = self.spark.range(0, 1, 1, 1).selectExpr("'a' AS value")  # one task: a second would be cut off
        rows.write.format("broken").mode("append").options(directory=str(self.folder / "target")).save()

    def stream_schema(self) -> None:
        rows = self.spark.readStream.format("jetstream").options(stream="ORDERS", startingOfsets="earliest").load()
        self.started(rows, "noop", {})

    def stream_latest_offset(self) -> None:
        with NatsServer(self.folder / "nats") as server:
            options = {"servers": server.url, "subjects": "orders.>", "reconnectTimeout": "1s"}
            query = self.started(self.spark.readStream.format("nats").options(**options).load(), "noop", {})
            while query.isActive and not query.recentProgress:
                time.sleep(0.05)
        query.awaitTermination()

    def stream_read(self) -> None:
        options = self.journal() | {"startingOffsets": "earliest"}
        rows = self.spark.readStream.format("broken").options(**options).load()
        self.started(rows, "noop", {}).awaitTermination()

    def stream_write(self) -> None:
        options = self.journal() | {"startingOffsets": "earliest"}
        rows = self.spark.readStream.format("journal").options(**options).load().select("value")
        self.started(rows, "broken", {"directory": str(self.folder / "stream-target")}).awaitTermination()

    def started(self, rows: Any, format: str, options: dict[str, str]) -> Any:
        place = self.folder / "checkpoints" / str(time.time_ns())
        return rows.writeStream.format(format).options(**options).option("checkpointLocation", str(place)).start()

    def bug_of_a_user(self) -> None:
        self.spark.range(1).select(udf(divided, "int")("id")).collect()

    def bug_of_a_source(self) -> None:
        self.spark.read.format("buggy").options(**self.journal()).load().collect()


def seen(case: Callable[[], None]) -> dict[str, str]:
    """What the terminal shows of a case: by Python's own hook, and by the one that is in place."""
    try:
        case()
    except Exception as error:
        texts = {}
        for name, hook in (("plain", sys.__excepthook__), ("shown", sys.excepthook)):
            out = io.StringIO()
            with contextlib.redirect_stderr(out):
                hook(type(error), error, error.__traceback__)
            texts[name] = out.getvalue()
        return texts | {"text": str(error)}
    raise AssertionError("nothing failed")


def main(job: dict[str, Any]) -> None:
    if job.get("remote"):
        from pyspark.sql import SparkSession

        # Only so that Spark's Python processes start sooner.
        lean = Path(penstock.spark.warm.__file__).with_name("lean")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(lean), os.environ.get("PYTHONPATH", "")])
        penstock.spark.warm.start()
        os.environ["SPARK_TESTING"] = "1"  # a port of its own, and not the one of every other
        builder = SparkSession.builder.remote(job["remote"])
        builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "OFF")
        spark = builder.getOrCreate()
        if hasattr(penstock, "errors_last"):
            penstock.errors_last()
    else:
        spark = local_session("errors", "local[2]", quiet=True)
    cases = Cases(spark, Path(job["folder"]))
    for name in job["cases"]:
        began = time.monotonic()
        print(json.dumps({"case": name} | seen(getattr(cases, name)) | {"took": time.monotonic() - began}), flush=True)
    getattr(cases, job["uncaught"])()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
