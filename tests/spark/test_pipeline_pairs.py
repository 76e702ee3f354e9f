"""Pipelines from each system to another, on real Spark and real servers: what arrives, with its keys and headers."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from iggy_servers import IggyAdmin
from iggy_servers import Server as Iggy
from iggy_servers import options as iggy_options
from kafka_servers import KafkaAdmin
from nats_servers import Admin
from penstock.cli.peek import newest
from penstock.connectors import connector
from penstock.testing.kafka import KafkaBroker
from penstock.testing.nats_server import NatsServer
from penstock.testing.s2_lite import S2Lite
from s2_servers import S2Admin
from spark.pipeline_runs import ONCE, bodies, done, written

ORDERS = [{"id": i, "region": ("eu", "us", "ap")[i % 3]} for i in range(9)]
BYTES = [json.dumps(order).encode() for order in ORDERS]
JSON = '[source.input_schema]\ntype = "json"\nschema = "id BIGINT, region STRING"\n'


def ids(values: list[bytes]) -> list[int]:
    return sorted(json.loads(value)["id"] for value in values)


def messages(nats: NatsServer, stream: str) -> list[dict[str, Any]]:
    """Every message of a stream, its headers as pairs of text."""
    rows = newest(connector("jetstream"), {"servers": nats.url, "stream": stream}, 1000)
    for row in rows:
        row["headers"] = [(header["key"], header["value"].decode()) for header in row["headers"]]
    return rows


def to_iggy(iggy: Iggy, stream: str, topic: str) -> str:
    reach = iggy_options(iggy)
    return f"""
[[sinks]]
type = "iggy"
address = "{reach["address"]}"
username = "{reach["username"]}"
password = {{ file = "{reach["passwordFile"]}" }}
identifier = "{stream}/{topic}"
"""


@pytest.fixture
def topic(iggy_admin: IggyAdmin, stream: str) -> str:
    """A stream of Iggy with the topics `in` and `out`: a real server keeps the names of earlier runs."""
    name = f"{stream}-{time.time_ns()}"
    iggy_admin.make(name, "in", 2)
    iggy_admin.make(name, "out", 2)
    return name


def typed(message: Any) -> dict[str, tuple[str, Any]]:
    """The headers of a message of Iggy: the kind of each, and the value."""
    return {key.value: (type(value).__name__, value.value) for key, value in message.user_headers().items()}


def test_json_of_kafka_goes_to_iggy_with_typed_headers_of_where_it_came_from(
    spark: SparkSession,
    kafka: KafkaBroker, kafka_admin: KafkaAdmin, iggy: Iggy, iggy_admin: IggyAdmin, topic: str, folder: Path,
) -> None:  # fmt: skip
    kafka_admin.create(topic, 2)
    for i, body in enumerate(BYTES):
        kafka_admin.produce(topic, [(b"k", body)], partition=i % 2)
    source = f"""
[source]
type = "kafka"
bootstrap_servers = "{kafka.bootstrap}"
identifier = "{topic}"
batch_size = 4
"""
    done(spark, written(folder, "orders", source + JSON + to_iggy(iggy, topic, "out") + ONCE))
    found = iggy_admin.read(topic, "out")
    assert sorted(message.payload() for message in found) == sorted(
        json.dumps(order, separators=(",", ":")).encode() for order in ORDERS
    )
    for message in found:
        number = json.loads(message.payload())["id"]
        assert typed(message) == {
            "source": ("String", "kafka"), "partition": ("UnsignedInt32", number % 2),
            "offset": ("UnsignedInt64", number // 2),
        }  # fmt: skip
    assert len({message.id() for message in found}) == 9, "each message has an id of its own"


def test_lines_of_files_go_to_s2(spark: SparkSession, s2: S2Lite, s2_admin: S2Admin, stream: str, folder: Path) -> None:
    s2_admin.make(stream)
    (folder / "in").mkdir()
    for i in range(3):
        (folder / "in" / f"{i}.json").write_bytes(b"\n".join(BYTES[3 * i : 3 * i + 3]) + b"\n")
    text = f"""
[source]
type = "file_system"
identifier = "in/*.json"
batch_size = 1

[source.input_schema]
type = "json"
schema = "id BIGINT, region STRING"

[[sinks]]
type = "s2"
endpoint = "{s2.url}"
basin = "{s2.basin}"
identifier = "{stream}"
headers = "source"
"""
    file = written(folder, "files", text + ONCE)
    assert done(spark, file).rows == 9
    records = [record for record in s2_admin.read(stream) if record.body]
    assert ids([record.body for record in records]) == list(range(9))
    for record in records:
        number = json.loads(record.body)["id"]
        headers = dict(record.headers)
        assert headers[b"source"] == b"file_system"
        assert headers[b"partition"].decode().endswith(f"/in/{number // 3}.json"), "the file that a line stood in"
    (folder / "in" / "3.json").write_text('{"id": 9, "region": "eu"}\n')
    assert done(spark, file).rows == 1, "a second run reads what is new"
    assert ids([record.body for record in s2_admin.read(stream) if record.body]) == list(range(10))


def test_jetstream_goes_to_kafka_with_keys_by_routing_and_its_headers(
    spark: SparkSession,
    kafka: KafkaBroker, kafka_admin: KafkaAdmin, nats: NatsServer, admin: Admin, stream: str, folder: Path,
) -> None:  # fmt: skip
    admin.create(stream)
    kafka_admin.create(stream, 3)
    trace = [("trace", "a b"), ("trace", "c")]
    admin.publish((f"{stream}.{order['region']}", body, trace) for order, body in zip(ORDERS, BYTES, strict=True))
    text = f"""
[source]
type = "jetstream"
servers = "{nats.url}"
identifier = "{stream}"

[source.input_schema]
type = "json"
schema = "id BIGINT, region STRING"

[routing]
key = "concat(region, '/', _meta.subject)"

[[sinks]]
type = "kafka"
bootstrap_servers = "{kafka.bootstrap}"
identifier = "{stream}"
"""
    done(spark, written(folder, "orders", text + ONCE))
    found = kafka_admin.read(stream)
    assert ids([message.value for message in found]) == list(range(9))
    for message in found:
        region = json.loads(message.value)["region"]
        assert message.key.decode() == f"{region}/{stream}.{region}"
        assert message.headers == [(name, value.encode()) for name, value in trace]


def test_iggy_goes_to_jetstream(
    spark: SparkSession,
    iggy: Iggy, iggy_admin: IggyAdmin, nats: NatsServer, admin: Admin, topic: str, stream: str, folder: Path,
) -> None:  # fmt: skip
    admin.create(stream)
    for partition in range(2):
        values = [body for i, body in enumerate(BYTES) if i % 2 == partition]
        iggy_admin.send(topic, "in", values, partition, user_headers={"trace": "abc"})
    source = to_iggy(iggy, topic, "in").replace("[[sinks]]", "[source]")
    sink = f"""
[[sinks]]
type = "jetstream"
servers = "{nats.url}"
subject = "{stream}.{{region}}"
headers = "both"
"""
    done(spark, written(folder, "orders", source + JSON + sink + ONCE))
    found = messages(nats, stream)
    assert ids([message["value"] for message in found]) == list(range(9))
    for message in found:
        number, region = json.loads(message["value"]).values()
        assert message["subject"] == f"{stream}.{region}"
        place = {("partition", str(number % 2)), ("offset", str(number // 2))}
        assert set(message["headers"]) > {("trace", "abc"), ("source", "iggy")} | place


def test_s2_goes_to_jetstream_and_to_parquet_at_once(
    spark: SparkSession, s2: S2Lite, s2_admin: S2Admin, nats: NatsServer, admin: Admin, stream: str, folder: Path
) -> None:
    s2_admin.make(stream)
    s2_admin.append(stream, BYTES)
    admin.create(stream)
    text = f"""
[source]
type = "s2"
endpoint = "{s2.url}"
basin = "{s2.basin}"
identifier = "{stream}"
batch_size = 4

[source.input_schema]
type = "json"
schema = "id BIGINT, region STRING"

[[sinks]]
type = "jetstream"
servers = "{nats.url}"
subject = "{stream}.{{region}}"

[[sinks]]
type = "parquet"
identifier = "files"
partition_by = "region"
"""
    file = written(folder, "orders", text + ONCE)
    assert done(spark, file).rows == 9
    s2_admin.append(stream, [b'{"id": 9, "region": "eu"}'])
    assert done(spark, file).rows == 1
    assert ids(bodies(nats, stream)) == list(range(10))
    rows = spark.read.parquet(str(folder / "files")).collect()
    assert sorted((row.id, row.region) for row in rows) == [(i, ("eu", "us", "ap")[i % 3]) for i in range(10)]


def test_a_line_of_csv_that_cannot_be_read_is_a_dead_letter_in_parquet(spark: SparkSession, folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "in" / "a.csv").write_text('id;name\n1;ann\ntwo;bob\n3;"x;y"\n\n')
    (folder / "in" / "b.csv").write_text('\ufeff"ID"; "Name"\r\n4;dan\r\n')  # as a spreadsheet writes it
    text = """
[source]
type = "file_system"
identifier = "in/*.csv"

[source.input_schema]
type = "csv"
schema = "id BIGINT, name STRING"
header = true
properties = { sep = ";" }

[[sinks]]
type = "parquet"
identifier = "good"

[errors]
mode = "dead_letter"
sink = { type = "parquet", identifier = "bad" }
"""
    went = done(spark, written(folder, "people", text + ONCE))
    assert (went.rows, went.errors) == (4, 1)
    rows = spark.read.parquet(str(folder / "good")).select("id", "name").collect()
    assert sorted(tuple(row) for row in rows) == [(1, "ann"), (3, "x;y"), (4, "dan")]
    (letter,) = spark.read.parquet(str(folder / "bad")).collect()
    assert bytes(letter.value) == b"two;bob"
    assert letter.error.endswith("is not CSV of the schema (id BIGINT, name STRING): two;bob")
    assert letter.stream.endswith("/in/a.csv")
    assert (letter.pipeline, letter.source) == ("people", "file_system")


def test_an_envelope_is_the_document_of_iggys_message_format(
    spark: SparkSession,
    kafka: KafkaBroker, kafka_admin: KafkaAdmin, iggy: Iggy, iggy_admin: IggyAdmin, topic: str, folder: Path,
) -> None:  # fmt: skip
    kafka_admin.create(topic, 1)
    reading = {"event_type": "sensor_reading", "temperature": 23.5, "inner": {"humidity": 65.2}}
    kafka_admin.produce(topic, [(None, json.dumps(reading).encode()), (None, b"[1, 2]")])
    text = f"""
[source]
type = "kafka"
bootstrap_servers = "{kafka.bootstrap}"
identifier = "{topic}"
input_schema = "json"
{to_iggy(iggy, topic, "out")}
envelope = true
headers = "none"
"""
    began = time.time()
    done(spark, written(folder, "readings", text + ONCE))
    found = iggy_admin.read(topic, "out")
    first, second = sorted((json.loads(message.payload()) for message in found), key=lambda d: d["headers"]["offset"])
    assert list(first) == ["id", "timestamp", "headers", "payload"]
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", first["id"])
    assert first["id"] != second["id"]
    assert abs(first["timestamp"] / 1000 - began) < 60
    assert first["headers"] == {"source": "kafka", "partition": "0", "offset": "0"}
    assert (first["payload"], second["payload"]) == (reading, [1, 2])
    assert not any(message.user_headers() for message in found)


def test_a_raw_copy_of_a_stream_keeps_bytes_subjects_and_headers(
    spark: SparkSession, nats: NatsServer, admin: Admin, stream: str, folder: Path
) -> None:
    admin.create(stream)
    admin.create(f"{stream}COPY")
    sent = [(bytes([255, 0, i]), [("trace", str(i)), ("trace", "x")]) for i in range(5)] + [
        (b"", [("only", "headers")])
    ]
    admin.publish((f"{stream}.{i}", body, headers) for i, (body, headers) in enumerate(sent))
    text = f"""
[jetstream]
servers = "{nats.url}"

[source]
type = "jetstream"
identifier = "{stream}"

[routing]
subject = "replace(subject, '{stream}', '{stream}COPY')"

[[sinks]]
type = "jetstream"
"""
    file = written(folder, "copy", text + ONCE)
    assert done(spark, file).rows == 6
    found = messages(nats, f"{stream}COPY")
    assert {message["subject"]: message["value"] for message in found} == {
        f"{stream}COPY.{i}": body for i, (body, _) in enumerate(sent)
    }
    for message in found:
        number = int(message["subject"].rpartition(".")[2])
        assert [header for header in message["headers"] if header[0] in ("trace", "only")] == sent[number][1]


# Records that are hard to say in a header: line breaks, text of many bytes, no text at all, nothing, and two at once.
HARD = [b"{two\r\nlines", ("é" * 300).encode(), b"\xff\x00", b"", b'{"id": 1}\n{"id": 2}']


def buried(spark: SparkSession, nats: NatsServer, admin: Admin, stream: str, folder: Path, sink: str) -> None:
    """Run a pipeline whose dead letters go to `sink`: all of HARD, and one record that is good."""
    admin.create(stream)
    admin.publish((f"{stream}.n", body) for body in [b'{"id": 0}', *HARD])
    text = f"""
[source]
type = "jetstream"
servers = "{nats.url}"
identifier = "{stream}"
input_schema = {{ type = "json", schema = "id BIGINT" }}

[[sinks]]
type = "parquet"
identifier = "good"

[errors]
mode = "dead_letter"
"""
    went = done(spark, written(folder, "hard", text + sink.replace("[[sinks]]", "[errors.sink]") + ONCE))
    assert (went.rows, went.errors) == (6, 5)
    assert [row.id for row in spark.read.parquet(str(folder / "good")).collect()] == [0]


def check(stream: str, letters: dict[bytes, bytes], empty: bytes = b"") -> None:
    """Each record is there as it was, with what is wrong with it."""
    expected = [body or empty for body in HARD]
    assert sorted(letters) == sorted(expected)
    for number, body in enumerate(expected):
        assert letters[body].startswith(f"a record at {number + 2} of '{stream}' ".encode())
    assert letters[HARD[0]].endswith(b"{two  lines")


def test_dead_letters_of_any_bytes_arrive_in_jetstream(
    spark: SparkSession, nats: NatsServer, admin: Admin, stream: str, folder: Path
) -> None:
    admin.create(f"{stream}DEAD")
    sink = f'[[sinks]]\ntype = "jetstream"\nservers = "{nats.url}"\nsubject = "{stream}DEAD.x"\n'
    buried(spark, nats, admin, stream, folder, sink)
    found = messages(nats, f"{stream}DEAD")
    check(stream, {each["value"]: dict(each["headers"])["penstock-error"].encode() for each in found})


def test_dead_letters_of_any_bytes_arrive_in_iggy(
    spark: SparkSession,
    nats: NatsServer, admin: Admin, iggy: Iggy, iggy_admin: IggyAdmin, topic: str, stream: str, folder: Path,
) -> None:  # fmt: skip
    buried(spark, nats, admin, stream, folder, to_iggy(iggy, topic, "out"))
    found = iggy_admin.read(topic, "out")
    errors = {each.payload(): each.user_headers().to_scalar_dict()["penstock-error"] for each in found}
    check(stream, errors, empty=b" ")  # Iggy has no empty messages


def test_dead_letters_of_any_bytes_arrive_in_kafka(
    spark: SparkSession,
    nats: NatsServer, admin: Admin, kafka: KafkaBroker, kafka_admin: KafkaAdmin, stream: str, folder: Path,
) -> None:  # fmt: skip
    kafka_admin.create(stream)
    sink = f'[[sinks]]\ntype = "kafka"\nbootstrap_servers = "{kafka.bootstrap}"\ntopic = "{stream}"\n'
    buried(spark, nats, admin, stream, folder, sink)
    check(stream, {each.value: dict(each.headers)["penstock-error"] for each in kafka_admin.read(stream)})


def test_dead_letters_of_any_bytes_arrive_in_s2(
    spark: SparkSession, nats: NatsServer, admin: Admin, s2: S2Lite, s2_admin: S2Admin, stream: str, folder: Path
) -> None:
    s2_admin.make(stream)
    sink = f'[[sinks]]\ntype = "s2"\nendpoint = "{s2.url}"\nbasin = "{s2.basin}"\nstream = "{stream}"\n'
    buried(spark, nats, admin, stream, folder, sink)
    found = [each for each in s2_admin.read(stream) if len(each.headers) > 1]
    check(stream, {each.body: dict(each.headers)[b"penstock-error"] for each in found})
