"""What Spark does to a Python source, and what we make of it: mostly with the journal, which needs no server."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from nats_servers import Admin
from penstock.connectors import FORMATS, connector
from penstock.connectors.jetstream import JetStream
from penstock.errors import OptionError
from penstock.testing.journal import JournalLog, NotedJournal
from penstock.testing.nats_server import NatsServer

GOLDEN = Path(__file__).parent.parent / "checkpoints" / "v0.1" / "jetstream"


@pytest.fixture
def log(spark: SparkSession, tmp_path: Path) -> JournalLog:
    spark.dataSource.register(NotedJournal)
    log = JournalLog(tmp_path / "log")
    log.make("shard")
    return log


def run(frame: Any, checkpoint: Path, **options: str) -> list[Any]:
    """One AvailableNow run into nothing; its batches with rows."""
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).options(**options)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return [p for p in query.recentProgress if p.numInputRows]


def test_spark_finds_every_format_by_itself() -> None:
    """In a fresh process: what Spark's own lookup does, with the module that it runs."""
    code = (
        "from pkgutil import iter_modules; from importlib import import_module\n"
        "found = [import_module(m.name) for m in iter_modules() if m.name.startswith('pyspark_')]\n"
        "print(sorted(module.DefaultSource.name() for module in found))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(sorted(FORMATS))


@pytest.mark.parametrize("name", FORMATS)
def test_the_arrow_schema_is_what_spark_makes_of_ours(name: str) -> None:
    options = connector(name).options_type.model_construct(include_headers=True)
    columns = connector(name).columns(options)
    assert to_arrow_schema(from_arrow_schema(columns), timezone="UTC").equals(columns)


def test_filters_on_position_and_time_read_less(spark: SparkSession, log: JournalLog) -> None:
    log.append("shard", [f"v{i}" for i in range(200)])
    reader = spark.read.format("journal").options(**log.options(), pushFilters=True)
    assert reader.load().where("sequence >= 150 and sequence < 160").count() == 10
    assert log.calls()[-1] == "read shard 150 160"
    assert reader.load().where("sequence in (3, 9)").count() == 2
    assert log.calls()[-1] == "read shard 3 10"
    before = len(log.calls())
    assert reader.load().where("sequence > 500").count() == 0
    assert len(log.calls()) == before


def test_a_limit_counts_rows_before_filters_whether_they_are_pushed_or_not(
    spark: SparkSession, log: JournalLog
) -> None:
    log.append("shard", [f"v{i}" for i in range(200)])
    frame = spark.read.format("journal").options(**log.options(), maxRecords=10, pushFilters=True).load()
    for pushed in ("true", "false"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", pushed)
        try:
            assert frame.where("sequence >= 150").count() == 0
            assert frame.where("sequence >= 5").count() == 5
        finally:
            spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_a_python_worker_does_not_collect_its_modules_after_every_task(log: JournalLog) -> None:
    """In a fresh process, as a worker is: the first task freezes what is imported, the second no more."""
    log.append("shard", ["a"])
    code = (
        "import gc, sys\n"
        "from penstock.connectors.journal import Journal\n"
        "from penstock.planning.positions import Range\n"
        "from penstock.spark.reading import Partition\n"
        "from pyspark.sql.pandas.types import from_arrow_schema\n"
        f"source = Journal({log.options()!r})\n"
        "reader = source.streamReader(from_arrow_schema(Journal.columns(source.parse(source.options))))\n"
        "for _ in range(2):\n"
        "    assert sum(map(len, reader.read(Partition((Range('shard', 0, 1),))))) == 1\n"
        "    print(gc.get_freeze_count())\n"
    )
    path = {"PYTHONPATH": str(Path(__file__).parent.parent)}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=path)
    first, second = map(int, said.stdout.split())
    assert first >= second > 10_000  # frozen objects may still go when nothing refers to them


def test_filters_are_no_error_where_the_session_does_not_push_them(spark: SparkSession, log: JournalLog) -> None:
    log.append("shard", ["a", "b"])
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        frame = spark.read.format("journal").options(**log.options(), pushFilters=True).load()
        assert frame.where("sequence = 1").count() == 1
        assert log.calls()[-1] == "read shard 0 2"
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_progress_is_told_at_once_and_commits_as_spark_does(
    spark: SparkSession, log: JournalLog, tmp_path: Path
) -> None:
    log.append("shard", [f"v{i}" for i in range(30)])
    frame = (
        spark.readStream.format("journal")
        .options(**log.options(), startingOffsets="earliest")
        .option("maxRecordsPerTrigger", 10)
    )
    run(frame.load(), tmp_path / "c")
    told = [call for call in log.calls() if not call.startswith("read")]
    assert told == [
        "progress [('shard', 0)]",
        "commit [('shard', 0)]",
        "progress [('shard', 10)]",
        "commit [('shard', 10)]",
        "progress [('shard', 20)]",
        "commit [('shard', 20)]",
        "progress [('shard', 30)]",
    ]  # fmt: skip - the last commit never comes, the last progress does


def test_a_replayed_batch_has_the_same_tasks_whatever_the_options_say_now(
    spark: SparkSession, log: JournalLog, tmp_path: Path
) -> None:
    log.append("shard", [f"v{i}" for i in range(60)])
    frame = spark.readStream.format("journal").options(**log.options(), startingOffsets="earliest")
    run(frame.option("minPartitions", 3).load(), tmp_path / "c")
    (tmp_path / "c" / "commits" / "1").unlink()
    before = len(log.calls())
    run(frame.option("minPartitions", 2).option("maxRecordsPerPartition", 7).load(), tmp_path / "c")
    again = [call for call in log.calls()[before:] if call.startswith("read")]
    assert sorted(again) == ["read shard 0 20", "read shard 20 40", "read shard 40 60"]


def test_a_checkpoint_of_a_later_version_is_refused_with_a_sentence(
    spark: SparkSession, log: JournalLog, tmp_path: Path
) -> None:
    log.append("shard", ["a"])
    frame = spark.readStream.format("journal").options(**log.options(), startingOffsets="earliest").load()
    run(frame, tmp_path / "c")
    last = tmp_path / "c" / "offsets" / "1"
    last.write_text(last.read_text().replace('"version": 1', '"version": 2'))
    (tmp_path / "c" / "offsets" / ".1.crc").unlink(missing_ok=True)
    log.append("shard", ["b"])
    with pytest.raises(PySparkException, match="positions of version 2, and this Penstock reads version 1"):
        run(frame, tmp_path / "c")


def test_a_checkpoint_of_version_0_1_is_read_for_ever(
    spark: SparkSession, nats: NatsServer, admin: Admin, tmp_path: Path
) -> None:
    """Written by a run on a stream GOLDEN of 60 messages, stopped after 40; only its time of creation is put in."""
    created = admin.create("GOLDEN", "golden.>")["created"]
    admin.numbers("GOLDEN", 60, subject="golden.n")
    shutil.copytree(GOLDEN, tmp_path / "c")
    for file in (tmp_path / "c" / "offsets").iterdir():
        file.write_text(file.read_text().replace("@CREATED@", created))
    frame = spark.readStream.format("jetstream").options(servers=nats.url, stream="GOLDEN").load()
    [batch] = run(frame, tmp_path / "c")
    assert batch.numInputRows == 20
    assert json.loads(batch.sources[0].startOffset)["next"] == {"GOLDEN": 41}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"stream": "NOSUCH"}, "stream 'NOSUCH' does not exist"),
        ({}, "set 'stream', 'streamPattern' or 'subjects' to say what to read"),
        ({"stream": "A", "streamPattern": "B"}, "set 'stream' or 'streamPattern', not both"),
        ({"stream": "S", "subjects": "foo.*,foo.bar"}, "has 'foo.*' and 'foo.bar', which overlap"),
        ({"stream": "S", "maxRecordsPerTrigger": "ten"}, "option 'maxRecordsPerTrigger' must be a whole number"),
        (
            {"stream": "S", "readEngine": "push"},
            "option 'readEngine' must be 'auto', 'consumer' or 'direct', but is 'push'",
        ),
        (
            {"stream": "S", "servers": "nats://127.0.0.1:1,nats://127.0.0.1:2"},
            "127.0.0.1:1: Connection refused; 127.0.0.1:2",
        ),
        ({"stream": "S", "path": "x"}, "jetstream takes no path"),
    ],
)
def test_bad_input_is_a_sentence_at_load(
    spark: SparkSession, nats: NatsServer, given: dict[str, str], sentence: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        spark.readStream.format("jetstream").options(**({"servers": nats.url} | given)).load()
    assert sentence in str(caught.value)


def test_subject_filters_are_pushed_and_never_change_a_result(
    spark: SparkSession, nats: NatsServer, admin: Admin, stream: str
) -> None:
    subjects = [f"{stream}.{a}.{b}" for a in ("eu", "us", "eux") for b in ("x", "y")]
    admin.create(stream)
    admin.publish((subjects[i % 6], str(i).encode()) for i in range(60))
    reader = spark.read.format("jetstream").options(servers=nats.url, stream=stream, pushFilters=True)
    kept = reader.load().localCheckpoint()
    eu, prefix = subjects[0], f"{stream}.eu"
    for where in (
        f"subject = '{eu}'",
        f"subject in ('{eu}', '{subjects[3]}')",
        f"subject like '{prefix}.%'",
        f"subject like '{prefix}%'",
        "subject like '%.x'",
        "subject = 'elsewhere.x'",
        f"subject = '{stream}.*.x'",
        f"subject like '{stream}.%' and subject = '{eu}'",
        f"subject = '{eu}' and subject = '{subjects[1]}'",
        f"not subject = '{eu}'",
        f"subject = '{eu}' or sequence = 3",
    ):
        expected = sorted(r.sequence for r in kept.where(where).collect())
        assert sorted(r.sequence for r in reader.load().where(where).collect()) == expected, where


@pytest.mark.parametrize(
    ("given", "entries"),
    [
        ("map('a', 'x') AS headers", [("a", b"x")]),
        ("map('a', binary('x')) AS headers", [("a", b"x")]),
        ("map(1, 2.5D) AS headers", [("1", b"2.5")]),
        ("cast(NULL AS MAP<STRING, STRING>) AS headers", None),
        ("array(struct('a' AS name, 7 AS number)) AS headers", [("a", b"7")]),
        ("array(struct('a' AS key, 'uint8' AS kind, binary('x') AS value)) AS headers", [("a", b"x")]),
    ],
)
def test_headers_of_another_type_are_refused_with_the_expression_that_casts_them(
    spark: SparkSession, given: str, entries: list[tuple[str, bytes]] | None
) -> None:
    rows = spark.range(1).selectExpr("5 AS value", given)
    options = JetStream.parse_sink({"subject": "a"})
    with pytest.raises(OptionError) as caught:
        JetStream.open_sink(options, to_arrow_schema(rows.schema, timezone="UTC"))
    value, headers = re.findall(r"selectExpr: (.*? AS `\w+`)\.", str(caught.value))
    cast = rows.selectExpr(value, headers)
    JetStream.open_sink(options, to_arrow_schema(cast.schema, timezone="UTC"))
    row = cast.selectExpr("value", "CAST(headers AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers").first()
    assert row is not None
    assert row.value == "5"
    assert row.headers == (None if entries is None else [(key, bytearray(value)) for key, value in entries])
