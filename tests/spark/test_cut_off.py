"""Tasks that Spark ends before all of their rows came: a stopped query, a failing UDF, a failing source, a killed task,
a stage that is tried again. To a sink it must not look like the end of its rows, and every row must be there once.
"""

import itertools
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from iggy_servers import IggyAdmin, options
from iggy_servers import Server as IggyServer
from nats_servers import Admin
from penstock.connectors.iggy import Iggy
from penstock.connectors.jetstream import JetStream
from penstock.connectors.journal import Journal
from penstock.connectors.journal.options import JournalOptions
from penstock.connectors.journal.sink import JournalSink
from penstock.connectors.journal.source import JournalSource
from penstock.connectors.nats import CoreNats
from penstock.connectors.s2 import S2Streams
from penstock.errors import Interrupted
from penstock.kit.contract import Origin, Receipt, Sink, Source
from penstock.planning.positions import Range
from penstock.testing.journal import JournalLog
from penstock.testing.nats_server import NatsServer
from s2_servers import S2Admin
from spark.test_sink import numbers

ROWS = 6000
SMALL = {"spark.sql.execution.arrow.maxRecordsPerBatch": "200"}
_names = itertools.count(1)


class FailingSource(JournalSource):
    """Fails in the middle of a range where the file `fail` is there, and takes it away."""

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        small = (batch.slice(at, 100) for batch in super().read(span) for at in range(0, len(batch), 100))
        for number, batch in enumerate(small):
            if number == 15 and (self.folder / "fail").exists():
                (self.folder / "fail").unlink()
                raise OSError("the source fails")
            yield batch


class WatchedSink(JournalSink):
    """Notes how the rows of each task ended."""

    def write(self, batches: Iterator[pa.RecordBatch], origin: Origin) -> Receipt:
        self._note("begun")
        try:
            receipt = super().write(batches, origin)
        except Interrupted:
            self._note("interrupted")
            raise
        self._note("ended" if receipt.rows else "empty")
        return receipt

    def _note(self, how: str) -> None:
        with (self.log.folder / "ends").open("a") as file:
            file.write(how + "\n")


class Watched(Journal):
    format = "watched"

    @classmethod
    def open_source(cls, options: JournalOptions) -> Source:
        return FailingSource(options, cls.columns(options))

    @classmethod
    def open_sink(cls, options: Any, columns: pa.Schema) -> Sink:
        return WatchedSink(options, columns)


class Target:
    """Where rows go, and what is there."""

    def __init__(self, format: str, options: dict[str, str], rows: Callable[[], list[int]]):
        self.format, self.options, self.rows = format, options, rows


KINDS = ["watched", "jetstream", "s2", "s2 by task", "iggy", "iggy by task", "nats"]


@pytest.fixture
def log(tmp_path: Path) -> JournalLog:
    log = JournalLog(tmp_path / "log")
    log.make("in")
    log.append("in", [str(i) for i in range(ROWS)])
    return log


@pytest.fixture
def target(request: pytest.FixtureRequest, nats: NatsServer, admin: Admin, stream: str, log: JournalLog) -> Target:
    return made(request.param, request, nats, admin, stream, log)


def made(
    what: str, request: pytest.FixtureRequest, nats: NatsServer, admin: Admin, stream: str, log: JournalLog
) -> Target:
    kind, _, by_task = what.partition(" ")
    name = f"cut-{time.time_ns()}-{next(_names)}"
    if kind == "watched":
        return Target(kind, log.target(), lambda: [int(value) for value in log.written()])
    if kind in ("jetstream", "nats"):
        admin.create(stream, duplicate_window=100_000_000)
        return Target(kind, {"servers": nats.url, "subject": f"{stream}.x"}, lambda: numbers(nats.url, stream))
    driver_bytes = {"driverBytes": "1"} if by_task else {}
    if kind == "s2":
        s2 = request.getfixturevalue("s2")
        return Target(
            kind,
            {**s2.options(), "stream": name, "ensureStream": "true", **driver_bytes},
            lambda: [int(body) for body in S2Admin(s2).bodies(name)] if S2Admin(s2).names(name) else [],
        )
    iggy: IggyServer = request.getfixturevalue("iggy")
    IggyAdmin(iggy).make(name, "out", 2)
    return Target(
        kind,
        {**options(iggy), "stream": name, "topic": "out", **driver_bytes, "batchLength": "100"},
        lambda: [int(value) for value in IggyAdmin(iggy).payloads(name, "out")],
    )


class Query:
    """A query from the log to a target, through a UDF that may be slow or fail."""

    def __init__(self, spark: SparkSession, log: JournalLog, target: Target, folder: Path):
        for connector in (Watched, JetStream, CoreNats, S2Streams, Iggy):
            spark.dataSource.register(connector)
        self.spark, self.log, self.target, self.folder = spark, log, target, folder

    def start(self, *, slow: bool = False, fails: bool = False) -> Any:
        seen = str(self.folder / "seen")

        def through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for number, batch in enumerate(batches):
                if slow:
                    time.sleep(0.03)
                    with Path(seen).open("a") as file:
                        file.write("x")
                if fails and number == 8:
                    raise ValueError("the UDF fails")
                yield batch

        limits = {"startingOffsets": "earliest", "maxRecordsPerPartition": str(ROWS // 2)}
        return (
            self.spark.readStream.format("watched")
            .options(**self.log.options(), **limits)
            .load()
            .where("stream = 'in'")
            .selectExpr("string(value) AS value")
            .mapInArrow(through, "value string")
            .writeStream.format(self.target.format)
            .options(**self.target.options)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    def finish(self) -> list[int]:
        self.start().awaitTermination()
        return self.target.rows()


@pytest.fixture
def query(spark: SparkSession, log: JournalLog, target: Target, tmp_path: Path) -> Iterator[Query]:
    for key, value in SMALL.items():
        spark.conf.set(key, value)
    yield Query(spark, log, target, tmp_path)
    for key in SMALL:
        spark.conf.unset(key)


def is_whole(kind: str, rows: list[int]) -> bool:
    return sorted(rows if kind != "nats" else set(rows)) == list(range(ROWS))


@pytest.mark.parametrize("target", KINDS, indirect=True)
def test_a_query_that_is_stopped_in_mid_batch_and_then_fails_in_a_udf_goes_on(query: Query) -> None:
    running = query.start(slow=True)
    seen, deadline = query.folder / "seen", time.monotonic() + 60
    while not seen.exists() or seen.stat().st_size < 6:
        assert time.monotonic() < deadline
        assert running.exception() is None, running.exception()
        time.sleep(0.01)
    running.stop()
    assert not is_whole(query.target.format, query.target.rows()), "it was stopped too late to prove anything"
    with pytest.raises(PySparkException, match="the UDF fails"):
        query.start(fails=True).awaitTermination()
    assert not is_whole(query.target.format, query.target.rows())
    assert is_whole(query.target.format, query.finish())


@pytest.mark.parametrize("target", ["watched", "s2 by task"], indirect=True)
def test_a_source_that_fails_once_costs_no_row(query: Query) -> None:
    (query.log.folder / "fail").touch()
    with pytest.raises(PySparkException, match="the source fails"):
        query.start().awaitTermination()
    assert not is_whole(query.target.format, query.target.rows())
    assert is_whole(query.target.format, query.finish())


@pytest.mark.parametrize("target", ["watched"], indirect=True)
def test_a_sink_is_told_that_its_rows_were_cut_off(query: Query) -> None:
    with pytest.raises(PySparkException, match="the UDF fails"):
        query.start(fails=True).awaitTermination()
    ends = query.log.folder / "out" / "ends"
    deadline = time.monotonic() + 20
    while True:  # a task is told when it notices; whether there is a second one by then is up to Spark
        noted = Counter(ends.read_text().split() if ends.exists() else [])
        if noted["interrupted"] and noted["begun"] == noted["interrupted"] + noted["ended"] + noted["empty"]:
            break
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert noted["ended"] == 0
    assert is_whole("watched", query.finish())
    assert Counter(ends.read_text().split())["ended"] >= 2


PROGRAM = Path(__file__).with_name("retried.py")
RETRIED = ["jetstream", "s2", "s2 by task", "iggy", "iggy by task"]


def test_a_killed_task_or_a_stage_that_is_tried_again_leaves_every_row_once(
    request: pytest.FixtureRequest, nats: NatsServer, admin: Admin, log: JournalLog, tmp_path: Path
) -> None:
    """One program for all of them: most of the time is Spark's start."""
    cases = [(how, kind) for how in ("task", "stage") for kind in RETRIED]
    targets = [made(kind, request, nats, admin, f"RETRIED{number}", log) for number, (_, kind) in enumerate(cases)]
    writes = [(how, target.format, target.options) for (how, _), target in zip(cases, targets, strict=True)]
    told = json.dumps({"folder": str(tmp_path), "rows": ROWS, "writes": writes})
    run = subprocess.run([sys.executable, str(PROGRAM), told], capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    tries = json.loads(run.stdout.splitlines()[-1])
    for case, target, (attempts, partitions) in zip(cases, targets, tries, strict=True):
        assert attempts > partitions, f"nothing was tried again in {case}: nothing was proven"
        assert sorted(target.rows()) == list(range(ROWS)), case
