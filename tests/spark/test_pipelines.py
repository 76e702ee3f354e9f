"""Pipelines from files, on real Spark and real servers."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from kafka_servers import KafkaAdmin
from nats_servers import Admin
from penstock.checkpoints.lease import Lease
from penstock.checkpoints.rewind import rewind
from penstock.cli.dead_letters import letters
from penstock.cli.peek import newest
from penstock.connectors import connector
from penstock.errors import OptionError
from penstock.pipelines import trial
from penstock.pipelines.load import load
from penstock.pipelines.replay import replayed
from penstock.pipelines.restore import memories
from penstock.pipelines.rows import is_row_wise
from penstock.pipelines.runner import State
from penstock.testing.kafka import KafkaBroker
from penstock.testing.nats_server import NatsServer, free_port
from spark.pipeline_runs import ONCE, batches, bodies, done, run, written

if TYPE_CHECKING:
    from kinesis_servers import Kinesis


@pytest.fixture
def orders(admin: Admin, stream: str) -> Iterator[str]:
    """A stream with a hundred orders, number 41 of which is not JSON."""
    admin.create(stream)
    values = [json.dumps({"id": i, "region": ("eu", "us")[i % 2]}).encode() for i in range(100)]
    values[41] = b"{not json"
    admin.publish((f"{stream}.n", value) for value in values)
    admin.create(f"{stream}OUT")
    admin.create(f"{stream}DEAD")
    yield stream
    for name in (stream, f"{stream}OUT", f"{stream}DEAD"):
        admin.delete(name)


SOURCE = """
[source]
type = "jetstream"
servers = "{url}"
identifier = "{stream}"
batch_size = 30

[source.input_schema]
type = "json"
schema = "id BIGINT, region STRING"

[trigger]
available_now = true

[restart]
max_restarts = 0
"""
TO_STREAM = """
[[sinks]]
type = "jetstream"
servers = "{url}"
subject = "{stream}OUT.{{region}}"
"""


def test_a_bad_record_fails_the_pipeline_with_its_place(
    spark: SparkSession, nats: NatsServer, orders: str, folder: Path
) -> None:
    file = written(folder, "orders", (SOURCE + TO_STREAM).format(url=nats.url, stream=orders))
    went = run(spark, file)
    assert went.state is State.FAILED
    assert went.error.startswith(f"a record at 42 of '{orders}' is not JSON of the schema")
    assert 'set mode = "skip" or "dead_letter"' in went.error


def test_skipped_records_are_counted(spark: SparkSession, nats: NatsServer, orders: str, folder: Path) -> None:
    text = SOURCE + TO_STREAM + '\n[errors]\nmode = "skip"\n'
    went = run(spark, written(folder, "orders", text.format(url=nats.url, stream=orders)))
    assert went.state is State.DONE, went.error
    assert (went.rows, went.errors) == (100, 1)
    assert sorted(json.loads(body)["id"] for body in bodies(nats, f"{orders}OUT")) == [i for i in range(100) if i != 41]


def test_a_dead_letter_has_the_original_bytes_and_where_they_came_from(
    spark: SparkSession, nats: NatsServer, orders: str, folder: Path
) -> None:
    dead = """
[errors]
mode = "dead_letter"

[errors.sink]
type = "jetstream"
servers = "{url}"
subject = "{stream}DEAD.x"
"""
    file = written(folder, "orders", (SOURCE + TO_STREAM + dead).format(url=nats.url, stream=orders))
    went = run(spark, file)
    assert went.state is State.DONE, went.error
    assert sorted(json.loads(body)["id"] for body in bodies(nats, f"{orders}OUT")) == [i for i in range(100) if i != 41]
    (letter,) = newest(connector("jetstream"), {"servers": nats.url, "stream": f"{orders}DEAD"}, 10)
    headers = {each["key"]: each["value"].decode() for each in letter["headers"]}
    assert letter["value"] == b"{not json"
    assert headers["penstock-stream"] == orders
    assert headers["penstock-position"] == "42"
    assert headers["penstock-pipeline"] == "orders"
    assert "is not JSON" in headers["penstock-error"]
    assert run(spark, file).state is State.DONE, "a second run finds nothing new"
    assert len(bodies(nats, f"{orders}OUT")) == 99
    assert len(bodies(nats, f"{orders}DEAD")) == 1


def test_what_remembers_rows_goes_together_with_dead_letters(
    spark: SparkSession, nats: NatsServer, orders: str, folder: Path
) -> None:
    (folder / "regions_of.py").write_text("def once(rows):\n    return rows.select('region').dropDuplicates()\n")
    stateful = """
[[transforms]]
python = "regions_of:once"

[errors]
mode = "dead_letter"
sink = {{ type = "jetstream", servers = "{url}", subject = "{stream}DEAD.x" }}
"""
    went = run(spark, written(folder, "orders", (SOURCE + TO_STREAM + stateful).format(url=nats.url, stream=orders)))
    assert went.state is State.DONE, went.error
    assert sorted(bodies(nats, f"{orders}OUT")) == [b'{"region":"eu"}', b'{"region":"us"}'], "once over all batches"
    assert bodies(nats, f"{orders}DEAD") == [b"{not json"]


def test_rows_are_routed_to_sinks_and_every_sink_sees_the_same_batches(
    spark: SparkSession, nats: NatsServer, orders: str, folder: Path
) -> None:
    several = """
[errors]
mode = "skip"

[[sinks]]
type = "parquet"
name = "files"
identifier = "files"

[routing]
sink = "CASE WHEN id < 50 THEN array('files', 'jetstream') WHEN id < 80 THEN array('files') END"
"""
    file = written(folder, "orders", (SOURCE + TO_STREAM + several).format(url=nats.url, stream=orders))
    went = run(spark, file)
    assert went.state is State.DONE, went.error
    assert sorted(json.loads(body)["id"] for body in bodies(nats, f"{orders}OUT")) == [i for i in range(50) if i != 41]
    rows = spark.read.parquet(str(folder / "files"))
    assert sorted(row.id for row in rows.collect()) == [i for i in range(80) if i != 41]


def test_a_row_for_an_unknown_sink_is_an_error(
    spark: SparkSession, nats: NatsServer, orders: str, folder: Path
) -> None:
    routed = '\n[errors]\nmode = "skip"\n[routing]\nsink = "\'nowhere\'"\n'
    went = run(spark, written(folder, "orders", (SOURCE + TO_STREAM + routed).format(url=nats.url, stream=orders)))
    assert went.state is State.FAILED
    assert "'nowhere', and there is none of that name" in went.error


def test_dead_letters_are_shown_and_sent_through_again_once(
    spark: SparkSession, nats: NatsServer, orders: str, folder: Path
) -> None:
    text = """
[source]
type = "jetstream"
servers = "{url}"
identifier = "{stream}"

[source.input_schema]
type = "{type}"

[[transforms]]
sql = "SELECT *, _meta.subject AS came FROM input"

[[sinks]]
type = "jetstream"
servers = "{url}"
subject = "{stream}OUT.x"
schema = "json"

[errors]
mode = "dead_letter"

[errors.sink]
type = "jetstream"
servers = "{url}"
subject = "{stream}DEAD.x"

[trigger]
available_now = true
"""
    file = written(folder, "orders", text.format(url=nats.url, stream=orders, type="json"))
    assert run(spark, file).state is State.DONE
    (found,) = letters(load([file])[0], 10)
    assert (found.stream, found.position, found.value) == (orders, "42", b"{not json")
    file.write_text(text.format(url=nats.url, stream=orders, type="text"))  # the cause is mended: it is text
    for rows in (1, 0):
        went = replayed(spark, load([file])[0], lambda text: None)
        assert went.state is State.DONE, went.error
        assert went.rows == rows
    last = json.loads(bodies(nats, f"{orders}OUT")[-1])
    assert (last["value"], last["came"]) == ("{not json", f"{orders}.n")
    assert len(bodies(nats, f"{orders}OUT")) == 100
    assert len(bodies(nats, f"{orders}DEAD")) == 1


def test_a_dead_letter_that_the_server_would_not_take_is_cut_and_says_so(
    spark: SparkSession, nats: NatsServer, admin: Admin, orders: str, folder: Path
) -> None:
    """A record may be as large as a message can be. With what happened in its headers, it is larger."""
    most = 1 << 20
    large, headed, small = b"x" * most, b"y" * (most - 2000), b"z" * (most - 3000)
    admin.publish([(f"{orders}.n", large), (f"{orders}.n", small), (f"{orders}.n", headed, {"note": "n" * 1500})])
    sinks = TO_STREAM.replace("{{region}}", "x") + '[errors]\nmode = "dead_letter"\n[errors.sink]\n'
    sinks += 'type = "jetstream"\nservers = "{url}"\nsubject = "{stream}DEAD.x"\n'
    text = (SOURCE + sinks).format(url=nats.url, stream=orders)
    went = done(spark, written(folder, "orders", text))
    assert (went.rows, went.errors) == (103, 4)
    _, *dead = newest(connector("jetstream"), {"servers": nats.url, "stream": f"{orders}DEAD"}, 10)
    by_position = {}
    for letter in dead:
        headers = {each["key"]: each["value"].decode() for each in letter["headers"]}
        by_position[int(headers["penstock-position"])] = letter["value"], headers
    value, headers = by_position[101]
    assert most - 3000 < len(value) < most
    assert large.startswith(value)
    assert (headers["penstock-cut"], headers["penstock-stream"]) == (str(most), orders)
    value, headers = by_position[102]
    assert (value, headers.get("penstock-cut")) == (small, None)
    value, headers = by_position[103]
    assert (headers["penstock-cut"], "note" in headers) == (str(len(headed)), False)
    assert headed.startswith(value)
    as_json = 'type = "json"\nschema = "id BIGINT, region STRING"'
    (pipeline,) = load([written(folder, "orders", text.replace(as_json, 'type = "text"'))])
    assert [each.error[:40] for each in letters(pipeline, 10) if "cut" in each.error] == [
        "(cut: the record has 1,048,576 bytes) a ",
        "(cut: the record has 1,046,576 bytes) a ",
    ]
    assert replayed(spark, pipeline, lambda text: None).rows == 2, "half a record is not sent through again"


def test_a_dead_letter_without_headers_is_a_document_and_is_cut_by_what_kinesis_takes(
    spark: SparkSession, nats: NatsServer, admin: Admin, orders: str, folder: Path, kinesis: "Kinesis"
) -> None:
    """What happened is told also where messages have no headers, and the letter is sent through again."""
    large = b"x" * (1 << 20)
    admin.publish([(f"{orders}.n", large), (f"{orders}.n", b'"\xff')])
    dead, options = f"dead-{orders}", kinesis.options(f"dead-{orders}")
    kinesis.make(dead)
    sink = "\n".join(f'{key} = "{value}"' for key, value in options.items())
    sinks = (
        TO_STREAM.replace("{{region}}", "x")
        + f'[errors]\nmode = "dead_letter"\n[errors.sink]\ntype = "kinesis"\n{sink}\n'
    )
    text = (SOURCE + sinks).format(url=nats.url, stream=orders)
    went = done(spark, written(folder, "orders", text))
    assert (went.rows, went.errors) == (102, 3)
    as_json = 'type = "json"\nschema = "id BIGINT, region STRING"'
    (pipeline,) = load([written(folder, "orders", text.replace(as_json, 'type = "raw"'))])
    by_place = {each.position: each for each in letters(pipeline, 10)}
    assert sorted(by_place) == ["101", "102", "42"]
    assert (by_place["42"].value, by_place["102"].value, by_place["42"].stream) == (b"{not json", b'"\xff', orders)
    assert by_place["42"].error.startswith(f"a record at 42 of '{orders}' is not JSON")
    assert by_place["101"].error.startswith("(cut: the record has 1,048,576 bytes) a record at 101")
    assert large.startswith(by_place["101"].value)
    assert len(by_place["101"].value) > 400_000
    assert replayed(spark, pipeline, lambda text: None).rows == 2, "half a record is not sent through again"
    assert {b"{not json", b'"\xff'} < set(bodies(nats, f"{orders}OUT"))


def test_a_dead_letter_that_kafka_would_not_take_is_cut(
    spark: SparkSession, nats: NatsServer, admin: Admin, orders: str, folder: Path, kafka: KafkaBroker,
    kafka_admin: KafkaAdmin,
) -> None:  # fmt: skip
    admin.publish([(f"{orders}.n", b"x" * (1 << 20))])
    kafka_admin.create(f"{orders}.dead")
    sinks = TO_STREAM.replace("{{region}}", "x") + '[errors]\nmode = "dead_letter"\n[errors.sink]\ntype = "kafka"\n'
    sinks += f'bootstrap_servers = "{kafka.bootstrap}"\ntopic = "{orders}.dead"\n'
    went = done(spark, written(folder, "orders", (SOURCE + sinks).format(url=nats.url, stream=orders)))
    assert (went.rows, went.errors) == (101, 2)
    assert sorted(len(value) > 1_000_000 for value in kafka_admin.values(f"{orders}.dead")) == [False, True]


@pytest.mark.parametrize(
    "transform",
    [
        'sql = "SELECT * FROM input"',
        'sql = "SELECT value FROM input WHERE now() IS NOT NULL"',  # asks for the time: part of the streaming query
        'python = "distinct:once"',  # so is what remembers rows
    ],
    ids=["row by row", "with the time", "with memory"],
)
def test_a_topic_of_three_partitions_is_copied_once_also_when_a_batch_is_run_again(
    spark: SparkSession, nats: NatsServer, admin: Admin, kafka: KafkaBroker, kafka_admin: KafkaAdmin, stream: str,
    folder: Path, transform: str,
) -> None:  # fmt: skip
    """Spark gives such partitions to other tasks then: without an order of ours rows are written twice, or refused."""
    topic = f"{stream}-order"
    (folder / "distinct.py").write_text("def once(rows):\n    return rows.select('value').dropDuplicates()\n")
    kafka_admin.create(topic, 3)
    for partition, count in enumerate((100, 200, 300)):
        kafka_admin.produce(topic, [(None, f"{partition}/{i}".encode()) for i in range(count)], partition)
    admin.create(stream, duplicate_window=100_000_000)
    text = """
[source]
type = "kafka"
identifier = "{topic}"
bootstrap_servers = "{brokers}"

[[transforms]]
{transform}

[[sinks]]
type = "jetstream"
servers = "{url}"
subject = "{stream}.x"
"""
    text = text.format(topic=topic, brokers=kafka.bootstrap, url=nats.url, stream=stream, transform=transform)
    file = written(folder, "orders", text + ONCE)
    wanted = sorted(f"{p}/{i}".encode() for p, count in enumerate((100, 200, 300)) for i in range(count))
    went = run(spark, file)
    assert went.state is State.DONE, went.error
    assert sorted(bodies(nats, stream)) == wanted
    commits = folder / ".penstock" / "orders" / "commits"
    for name in ("0", ".0.crc"):
        (commits / name).unlink(missing_ok=True)
    went = run(spark, file)
    assert went.state is State.DONE, went.error
    assert sorted(bodies(nats, stream)) == wanted


def test_a_rewind_as_a_new_query_writes_the_rows_again_and_a_plain_one_is_refused(
    spark: SparkSession, nats: NatsServer, orders: str, folder: Path
) -> None:
    text = SOURCE + TO_STREAM + '\n[errors]\nmode = "skip"\n'
    file = written(folder, "orders", text.format(url=nats.url, stream=orders))
    assert run(spark, file).state is State.DONE
    (pipeline,) = load([file])
    with pytest.raises(OptionError, match="sink 'jetstream' remembers the batches"):
        rewind(pipeline.location, 2, sinks=memories(pipeline))
    rewind(pipeline.location, 2, sinks=memories(pipeline), new_query=True)
    went = run(spark, file)
    assert (went.state, went.rows) == (State.DONE, 40), went.error
    ids = sorted(json.loads(body)["id"] for body in bodies(nats, f"{orders}OUT"))
    assert ids == sorted([*(i for i in range(100) if i != 41), *range(60, 100)])


def test_restore_from_batch_has_an_effect_once(spark: SparkSession, folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "in" / "a.json").write_text("".join(f'{{"id": {i}}}\n' for i in range(3)))
    (folder / "in" / "b.json").write_text("".join(f'{{"id": {i}}}\n' for i in range(3, 5)))
    text = """
[source]
type = "file_system"
identifier = "in"
batch_size = 1

[[sinks]]
type = "noop"

[trigger]
available_now = true

[checkpoint]
location = "place"
"""
    file = written(folder, "files", text)
    assert run(spark, file).rows == 5
    file.write_text(f"{text}restore_from_batch = 0\n")
    went = run(spark, file)
    assert (went.state, went.rows) == (State.DONE, 2), went.error
    assert run(spark, file).rows == 0, "done once"
    assert len(list(folder.glob("place.before-rewind-*"))) == 1


def test_a_second_run_on_the_same_checkpoint_is_refused(
    spark: SparkSession, nats: NatsServer, orders: str, folder: Path
) -> None:
    text = SOURCE + TO_STREAM + '\n[errors]\nmode = "skip"\n'
    file = written(folder, "orders", text.format(url=nats.url, stream=orders))
    (pipeline,) = load([file])
    with Lease(pipeline.location, ttl=2):
        went = run(spark, file)
    assert went.state is State.FAILED
    assert "is in use by process" in went.error
    assert not (Path(pipeline.location) / "offsets").exists()


def test_plans_that_remember_rows_are_told_from_those_that_do_not(spark: SparkSession) -> None:
    rows = spark.readStream.format("rate").load()
    rows.createOrReplaceTempView("numbers")
    for sql, row_wise in (
        ("SELECT value * 2 AS twice FROM numbers WHERE value > 3", True),
        ("SELECT value, explode(array(1, 2)) AS part FROM numbers", True),
        ("SELECT DISTINCT value FROM numbers", False),
        ("SELECT value, count(*) AS n FROM numbers GROUP BY value", False),
        ("SELECT n.value FROM numbers n JOIN numbers m ON n.value = m.value", False),
        ("SELECT current_timestamp() AS now FROM numbers", False),
    ):
        assert is_row_wise(spark.sql(sql), rows) == row_wise, sql


def test_files_of_a_lone_sink_and_of_one_among_several_do_not_lie_in_one_folder(
    spark: SparkSession, folder: Path
) -> None:
    """Spark would read only those of the lone sink, without a word."""
    (folder / "in").mkdir()
    (folder / "in" / "a.json").write_text('{"id": 1}\n')
    source = """
[source]
type = "file_system"
identifier = "in"
input_schema = {{ type = "json", schema = "id BIGINT" }}

[trigger]
available_now = true

[[sinks]]
type = "parquet"
identifier = "{out}"

[errors]
mode = "dead_letter"
sink = {{ type = "parquet", identifier = "bad" }}
"""
    lone = source.partition("[errors]")[0]
    assert run(spark, written(folder, "lone", lone.format(out="a"))).state is State.DONE
    assert run(spark, written(folder, "several", source.format(out="b"))).state is State.DONE
    for name, text, wrong in (("lone", lone, "b"), ("several", source, "a")):
        file = written(folder, f"{name}-other", text.format(out=wrong))
        went = run(spark, file)
        assert went.state is State.FAILED
        assert f"/{wrong}' has " in went.error
        assert went.error.endswith("Name a new folder.")
        assert went.failures == 1, "another start would not help"
    assert [row.id for row in spark.read.parquet(str(folder / "b")).collect()] == [1]


def test_files_of_two_queries_lie_beside_each_other(spark: SparkSession, folder: Path) -> None:
    """Batches are numbered anew without the checkpoint, and by a replay of dead letters: nothing may be overwritten."""
    (folder / "in").mkdir()
    text = """
[source]
type = "file_system"
identifier = "in"
input_schema = { type = "json", schema = "id BIGINT" }

[[sinks]]
type = "parquet"
identifier = "out"

[errors]
mode = "dead_letter"
sink = { type = "parquet", identifier = "bad" }
"""
    file = written(folder, "files", text + ONCE)
    for number in range(2):
        (folder / "in" / "a.json").write_text(f'{{"id": {number}}}\nbad {number}\n')
        done(spark, file)
        shutil.rmtree(folder / ".penstock")
    assert sorted(row.id for row in spark.read.parquet(str(folder / "out")).collect()) == [0, 1]
    assert sorted(bytes(row.value) for row in spark.read.parquet(str(folder / "bad")).collect()) == [b"bad 0", b"bad 1"]


def copying(url: str, stream: str, *sinks: str) -> str:
    """A pipeline file that copies a stream to others, whose names end as `sinks` say."""
    source = f'[source]\ntype = "jetstream"\nservers = "{url}"\nidentifier = "{stream}"\n'
    each = (
        f'[[sinks]]\ntype = "jetstream"\nservers = "{url}"\nsubject = "{stream}{s}.x"\nname = "{s}"\n' for s in sinks
    )
    return source + "".join(each) + ONCE


def test_sinks_come_and_go_on_one_checkpoint(
    spark: SparkSession, nats: NatsServer, admin: Admin, stream: str, folder: Path
) -> None:
    """Each run finds one more row. A sink has the rows of the runs that had it, once."""
    for name in (stream, f"{stream}A", f"{stream}B"):
        admin.create(name)
    for number, sinks in enumerate((["A"], ["A", "B"], ["A"], ["B"], ["A", "B"])):
        admin.numbers(stream, 1, number)
        file = written(folder, "copy", copying(nats.url, stream, *sinks))
        done(spark, file)
        last, _ = batches(folder / ".penstock" / "copy")
    assert bodies(nats, f"{stream}A") == [b"0", b"1", b"2", b"4"]
    assert bodies(nats, f"{stream}B") == [b"1", b"3", b"4"]
    (folder / ".penstock" / "copy" / "commits" / str(last)).unlink()
    for text, said in (
        (copying(nats.url, stream, "A", "B").replace('name = "A"', 'name = "C"'), "the sink 'A' may have rows of it"),
        (copying(nats.url, stream, "B"), "the sink 'A' may have rows of it"),
    ):
        assert said in run(spark, written(folder, "copy", text)).error
    done(spark, written(folder, "copy", copying(nats.url, stream, "A", "B")))
    assert [len(bodies(nats, f"{stream}{name}")) for name in "AB"] == [4, 3], "a batch that is run again is known"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("penstock.sinks", b"", "is damaged: it is empty"),
        ("penstock.sinks", b"\0\xff{garb", "is damaged: it holds"),
        ("penstock.restored", b"{garb", "penstock.restored of checkpoint"),
        ("metadata", b"", "the file 'metadata' of checkpoint"),
    ],
)
def test_a_damaged_file_of_a_checkpoint_is_told_and_no_row_is_doubled(
    spark: SparkSession, nats: NatsServer, admin: Admin, stream: str, folder: Path, name: str, content: bytes, said: str
) -> None:
    for each in (stream, f"{stream}A", f"{stream}B"):
        admin.create(each)
    admin.numbers(stream, 3)
    file = written(folder, "copy", copying(nats.url, stream, "A", "B"))
    done(spark, file)
    place = folder / ".penstock" / "copy"
    (place / "commits" / str(batches(place)[0])).unlink()
    (place / name).write_bytes(content)
    (place / f".{name}.crc").unlink(missing_ok=True)
    went = run(spark, file)
    assert went.state is State.FAILED
    assert said in went.error
    assert len(bodies(nats, f"{stream}A")) == 3


def test_one_sink_becomes_several_only_between_two_batches(
    spark: SparkSession, nats: NatsServer, admin: Admin, stream: str, folder: Path
) -> None:
    for name in (stream, f"{stream}A", f"{stream}B"):
        admin.create(name)
    admin.numbers(stream, 3)
    done(spark, written(folder, "copy", copying(nats.url, stream, "A")))
    checkpoint = folder / ".penstock" / "copy"
    last, _ = batches(checkpoint)
    (checkpoint / "commits" / str(last)).unlink()
    went = run(spark, written(folder, "copy", copying(nats.url, stream, "A", "B")))
    assert went.state is State.FAILED
    assert went.error.startswith(f"batch {last} of copy is not finished, and Spark itself wrote its one sink")
    assert bodies(nats, f"{stream}B") == []
    done(spark, written(folder, "copy", copying(nats.url, stream, "A")))
    done(spark, written(folder, "copy", copying(nats.url, stream, "A", "B")))
    assert bodies(nats, f"{stream}A") == [b"0", b"1", b"2"]


@pytest.fixture
def here(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """`check --connect` on the Spark of the tests, which lives on."""
    monkeypatch.setattr(trial, "session", lambda *pipelines, **more: spark)
    monkeypatch.setattr(trial, "stop", lambda spark: None)


@pytest.mark.usefixtures("here")
def test_a_trial_says_what_would_be_written_and_writes_nothing(nats: NatsServer, orders: str, folder: Path) -> None:
    text = SOURCE + TO_STREAM + '\n[errors]\nmode = "skip"\n'
    pipelines = load([written(folder, "orders", text.format(url=nats.url, stream=orders))])
    (said,) = trial.tried(pipelines, lambda text: None)
    assert said == (
        "orders: its source and sinks answer. 99 rows of the first 100 records would be written; 1 record cannot be "
        "decoded, each of which is left out"
    )
    assert bodies(nats, f"{orders}OUT") == []
    assert not (folder / ".penstock").exists()


@pytest.mark.usefixtures("here")
def test_a_trial_tells_everything_that_fails(nats: NatsServer, orders: str, folder: Path) -> None:
    """Of a source that does not answer no columns are known, and no sink can be asked about them."""
    dead = f"nats://127.0.0.1:{free_port()}"
    source, away = (SOURCE.format(url=url, stream=orders) for url in (nats.url, dead))
    sink = TO_STREAM.format(url=dead, stream=orders)
    files = [written(folder, "sinkless", source + sink), written(folder, "sourceless", away + sink)]
    with pytest.raises(OptionError) as error:
        list(trial.tried(load(files), lambda text: None))
    no_sink, bad_record, no_source = str(error.value).splitlines()
    place = dead.removeprefix("nats://")
    assert no_sink.startswith(f"{files[0]}: sink 'jetstream': no NATS server answers ({place}")
    assert bad_record.startswith(f"{files[0]}: source: a record at 42 of '{orders}' is not JSON of the schema")
    assert no_source.startswith(f"{files[1]}: no NATS server answers ({place}")


def test_a_transform_that_was_changed_over_a_half_done_batch_is_refused_until_it_is_put_back(
    spark: SparkSession, folder: Path
) -> None:
    """The first sink has the rows of the batch, and the second one none: its folder is no folder."""
    (folder / "in").mkdir()
    (folder / "in" / "a.json").write_text("".join(f'{{"id": {i}}}\n' for i in range(20)))
    (folder / "taken").write_text("no folder")

    def edited(sql: str, place: str) -> Path:
        ends = f'''
[source]
type = "file_system"
identifier = "in/*.json"
input_schema = {{ type = "json", schema = "id BIGINT" }}

[[transforms]]
sql = "{sql}"

[[sinks]]
type = "journal"
identifier = "out"

[[sinks]]
type = "parquet"
identifier = "{place}/rows"
'''
        return written(folder, "half", ends + ONCE)

    before, after = "SELECT id FROM input", "SELECT id * 2 AS id FROM input"
    went = run(spark, edited(before, "taken"))
    assert (went.state, went.error) == (
        State.FAILED,
        f"ParentNotDirectoryException: Parent path is not a directory: file:{folder}/taken",
    )
    assert run(spark, edited(after, "free")).error.startswith(
        "batch 0 is half done: the sink 'journal' has rows of it, and now they are others ("
    )
    done(spark, edited(before, "free"))
    done(spark, edited(after, "free"))
    rows = newest(connector("journal"), {"directory": str(folder / "out")}, 100)
    assert sorted(json.loads(row["value"])["id"] for row in rows) == list(range(20))
    assert spark.read.parquet(str(folder / "free" / "rows")).count() == 20
