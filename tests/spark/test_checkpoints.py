"""Checkpoints of every source that a version before wrote: a query goes on from them, for ever.

Each was written by a run that read 40 records of a log called golden and ended. What differs from server to server
stands in it as @EPOCH@ and @MARK@, and is put in. To write those of a new version, run this file with CHECKPOINTS=v0.3.
"""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from iggy_servers import IggyAdmin
from iggy_servers import options as of_iggy
from nats_servers import Admin
from penstock.connectors import connector
from penstock.planning.positions import Position
from penstock.testing.nats_server import NatsServer
from s2_servers import S2Admin

FOLDER = Path(__file__).parent.parent / "checkpoints"
COUNT, MORE = 40, 20


class Log(NamedTuple):
    """What is read, and how somebody adds to it."""

    format: str
    options: dict[str, str]
    publish: Callable[[int], None]
    shard: str = ""  # empty: nothing of it stands in the checkpoint but how much came


@pytest.fixture
def log(request: pytest.FixtureRequest, kind: str) -> Log:
    if kind == "s2":
        s2_admin: S2Admin = request.getfixturevalue("s2_admin")
        s2_admin.make("golden")
        options = {**s2_admin.server.options(), "streams": "golden", "startingOffsets": "earliest"}
        return Log("s2", options, lambda count: s2_admin.append("golden", [b"x"] * count), "golden")
    if kind == "iggy":
        iggy_admin: IggyAdmin = request.getfixturevalue("iggy_admin")
        iggy_admin.make("golden", "in")
        options = {**of_iggy(iggy_admin.server), "stream": "golden", "topic": "in", "startingOffsets": "earliest"}
        return Log("iggy", options, lambda count: iggy_admin.send("golden", "in", [b"x"] * count), "golden/in/0")
    nats: NatsServer = request.getfixturevalue("nats")
    admin: Admin = request.getfixturevalue("admin")
    where = {"servers": nats.url}
    if kind == "nats":
        return Log("nats", where | {"subjects": "golden.core.>"}, lambda count: _say(admin, count))
    if "GOLDEN" in admin.calls.names():
        admin.delete("GOLDEN")
    admin.create("GOLDEN", "golden.>", retention="workqueue" if kind == "workqueue" else "limits")

    def publish(count: int) -> None:
        admin.numbers("GOLDEN", count, subject="golden.n")

    if kind == "capture":
        options = {"subjects": "golden.>", "capture": "true", "startingOffsets": "earliest"}
        return Log("nats", where | options, publish, "GOLDEN")
    return Log("jetstream", where | {"stream": "GOLDEN", "startingOffsets": "earliest"}, publish, "GOLDEN")


def _say(admin: Admin, count: int) -> None:
    for _ in range(count):
        admin.connection.publish("golden.core.x", b"x")


def rows_of(spark: SparkSession, log: Log, checkpoint: Path, publishes: int) -> int:
    """How many rows a run reads that goes on until there is nothing more."""
    spark.dataSource.register(connector(log.format))
    frame = spark.readStream.format(log.format).options(**log.options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    if log.shard:
        log.publish(publishes)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(60)
    else:
        query = writer.start()
        deadline = time.monotonic() + 60
        while query.lastProgress is None and time.monotonic() < deadline:
            time.sleep(0.05)
        log.publish(publishes)
        while sum(p.numInputRows for p in query.recentProgress) < publishes and time.monotonic() < deadline:
            time.sleep(0.05)
        query.stop()
    return sum(progress.numInputRows for progress in query.recentProgress)


def own(log: Log) -> dict[str, str]:
    """What stands in a checkpoint of this server's in the place of what another one wrote."""
    if not log.shard:
        return {}
    source: Any = connector(log.format).open_source(connector(log.format).parse(log.options))
    try:
        bound = source.bounds()[log.shard]
        marks = (
            source.marks({log.shard: Position(bound.first + COUNT, bound.epoch)}) if hasattr(source, "marks") else {}
        )
    finally:
        source.close()
    return {"@EPOCH@": bound.epoch, "@MARK@": marks.get(log.shard, "")}


@pytest.mark.parametrize("version", [os.environ["CHECKPOINTS"]] if "CHECKPOINTS" in os.environ else ["v0.2"])
@pytest.mark.parametrize("kind", ["jetstream", "workqueue", "capture", "nats", "s2", "iggy"])
def test_a_query_goes_on_from_the_checkpoint_of_a_version_before(
    spark: SparkSession, log: Log, kind: str, version: str, tmp_path: Path
) -> None:
    golden, checkpoint = FOLDER / version / kind, tmp_path / "checkpoint"
    if "CHECKPOINTS" in os.environ:
        assert rows_of(spark, log, checkpoint, COUNT) == COUNT
        _keep(checkpoint, golden, own(log))
        return
    if log.shard:
        log.publish(COUNT)
    shutil.copytree(golden, checkpoint)
    for file in (checkpoint / "offsets").iterdir():
        text = file.read_text()
        for place, value in own(log).items():
            text = text.replace(place, value)
        file.write_text(text)
    assert rows_of(spark, log, checkpoint, MORE) == MORE


def _keep(checkpoint: Path, golden: Path, values: dict[str, str]) -> None:
    shutil.rmtree(golden, ignore_errors=True)
    shutil.copytree(checkpoint, golden, ignore=shutil.ignore_patterns(".*", "state"))
    for file in (golden / "offsets").iterdir():
        text = file.read_text()
        for place, value in values.items():
            text = text.replace(value, place) if value else text
        file.write_text(text)
        json.loads(text.splitlines()[-1])
