"""Avro and Protobuf in pipelines, on real Spark and real servers: with a registry, with schemas that change, and with
records that are none.
"""

import io
import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import SparkSession

from iggy_servers import IggyAdmin
from iggy_servers import Server as Iggy
from iggy_servers import options as iggy_options
from kafka_servers import KafkaAdmin
from kinesis_servers import Kinesis as KinesisServer
from nats_servers import Admin
from penstock.codecs.registry import Registry
from penstock.pipelines import schemas
from penstock.pipelines.convert import convert
from penstock.pipelines.runner import State
from penstock.testing.kafka import KafkaBroker
from penstock.testing.nats_server import NatsServer
from penstock.testing.proxy import Proxy
from penstock.testing.schema_registry import SchemaRegistry
from spark.pipeline_runs import ONCE, bodies, done, run, written

OLD = [("id", "long"), ("region", "string")]
NEW = [("id", "long"), ("region", "string"), ("amount", ["null", "double"])]
SEED = """
[source]
type = "flink_source"

[source.config]
flink_cluster_url = "http://localhost:8081"
source_type = "kafka"
source_identifier = "{topic}"
batch_size = 500
poll_interval_ms = 1000
initial_offset = "earliest"
skip_errors = {skip}

[source.config.input_schema]
type = "avro"
schema_registry_url = "{registry}"

[source.config.output_schema]
type = "json"

[source.config.properties]
"kafka.group.id" = "flink-consumer-group"
"kafka.bootstrap.servers" = "{kafka}"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchemaRegistry]:
    with SchemaRegistry(tmp_path_factory.mktemp("registry")) as running:
        yield running


def text(fields: list[tuple[str, Any]]) -> str:
    declared = [{"name": name, "type": type} | ({"default": None} if "null" in type else {}) for name, type in fields]
    return json.dumps({"type": "record", "name": "Order", "fields": declared})


def framed(registry: Registry, subject: str, fields: list[tuple[str, Any]], *rows: dict[str, Any]) -> list[bytes]:
    """Rows as a producer of Kafka writes them."""
    schema = fastavro.parse_schema(json.loads(text(fields)))
    number = registry.register(subject, "AVRO", text(fields))
    found = []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, row)
        found.append(b"\0" + number.to_bytes(4, "big") + out.getvalue())
    return found


def test_the_example_of_the_seed_takes_avro_of_kafka_to_json_in_iggy(
    spark: SparkSession, kafka: KafkaBroker, kafka_admin: KafkaAdmin, iggy: Iggy, iggy_admin: IggyAdmin,
    server: SchemaRegistry, stream: str, folder: Path,
) -> None:  # fmt: skip
    registry, topic = Registry(server.url), f"events-{stream}"
    kafka_admin.create(topic)
    name = f"{stream}-{time.time_ns()}"
    iggy_admin.make(name, "out")
    seed = SEED.format(topic=topic, registry=server.url, kafka=kafka.bootstrap, skip="true")
    converted = convert(seed, "seed").text.replace("poll_interval_ms = 1000\n", "")  # it is to end
    reach = iggy_options(iggy)
    here = converted.replace("127.0.0.1:8090", reach["address"]).replace("STREAM", name).replace("TOPIC", "out")
    here = here.replace('{ env = "IGGY_PASSWORD" }', f'{{ file = "{reach["passwordFile"]}" }}')
    file = written(folder, "seed", here + ONCE)
    old = framed(registry, f"{topic}-value", OLD, *({"id": i, "region": "eu"} for i in range(5)))
    kafka_admin.produce(topic, [(None, value) for value in old])
    done(spark, file)
    # The schema changes while the pipeline is down, and comes back as it was. One record is nobody's, and one is large.
    new = framed(registry, f"{topic}-value", NEW, {"id": 5, "region": "us", "amount": 2.5},
                 {"id": 6, "region": "x" * 900_000, "amount": None})  # fmt: skip
    late = framed(registry, f"{topic}-value", OLD, {"id": 7, "region": "ap"})
    strange = [b"\0\0\x0f\xff\xff" + old[0][5:], b"no avro at all"]
    kafka_admin.produce(topic, [(None, value) for value in [*new, *strange, *late]])
    went = done(spark, file)
    assert went.errors == 2
    rows = [json.loads(value) for value in iggy_admin.payloads(name, "out")]
    assert sorted(row["id"] for row in rows) == list(range(8))
    assert {row["id"]: row for row in rows}[5] == {"id": 5, "region": "us", "amount": 2.5}
    assert {row["id"]: row for row in rows}[7] == {"id": 7, "region": "ap"}


def jetstream(nats: NatsServer, stream: str, schema: str, errors: str = "", sink: str = "") -> str:
    return f"""
[jetstream]
servers = "{nats.url}"

[source]
type = "jetstream"
identifier = "{stream}IN"

[source.input_schema]
{schema}

[[sinks]]
type = "jetstream"
identifier = "{stream}.out"
{sink}
{errors}
{ONCE}
"""


@pytest.fixture
def streams(admin: Admin, stream: str) -> Iterator[str]:
    for end in ("in", "out", "dead"):
        admin.create(f"{stream}{end.upper()}", f"{stream}.{end}")
    yield stream
    for end in ("in", "out", "dead"):
        admin.delete(f"{stream}{end.upper()}")


@pytest.mark.parametrize("mode", ["fail", "skip", "dead_letter"])
def test_a_record_that_is_no_avro_goes_the_way_that_the_file_says(
    spark: SparkSession, nats: NatsServer, admin: Admin, server: SchemaRegistry, streams: str, folder: Path, mode: str
) -> None:
    good = framed(Registry(server.url), f"{streams}IN-value", OLD, {"id": 1, "region": "eu"}, {"id": 2, "region": "us"})
    admin.publish([(f"{streams}.in", value) for value in (good[0], b"no avro", good[1])])
    errors = f'[errors]\nmode = "{mode}"\n'
    if mode == "dead_letter":
        errors += f'[errors.sink]\ntype = "jetstream"\nidentifier = "{streams}.dead"\n'
    schema = f'type = "avro"\nschema_registry_url = "{server.url}"'
    went = run(spark, written(folder, mode, jetstream(nats, streams, schema, errors)))
    if mode == "fail":
        assert went.state is State.FAILED
        assert f"a record at 2 of '{streams}IN' has no id of a schema in front" in str(went.error)
        return
    assert went.state is State.DONE, went.error
    assert [json.loads(body)["id"] for body in bodies(nats, f"{streams}OUT")] == [1, 2]
    assert bodies(nats, f"{streams}DEAD") == ([b"no avro"] if mode == "dead_letter" else [])


def test_protobuf_becomes_avro_with_a_schema_that_is_registered(
    spark: SparkSession, nats: NatsServer, admin: Admin, server: SchemaRegistry, streams: str, folder: Path
) -> None:
    fields = "int64 id = 1; string region = 2; repeated string tags = 3;"
    (folder / "order.proto").write_text(f'syntax = "proto3"; package shop; message Order {{ {fields} }}')
    rows = [b"\x08" + bytes([i]) + b"\x12\x02eu\x1a\x01a\x1a\x01b" for i in range(1, 4)]
    admin.publish([(f"{streams}.in", row) for row in rows])
    schema = 'type = "protobuf"\nschema_file = "order.proto"\nmessage = "shop.Order"'
    sink = f'output_schema = {{ type = "avro", schema_registry_url = "{server.url}", subject = "{streams}-copies" }}'
    done(spark, written(folder, "copy", jetstream(nats, streams, schema, sink=sink)))
    registered = Registry(server.url).latest(f"{streams}-copies")
    reader = fastavro.parse_schema(json.loads(registered.text))
    values = bodies(nats, f"{streams}OUT")
    assert all(value[:5] == b"\0" + registered.id.to_bytes(4, "big") for value in values)
    read = [fastavro.schemaless_reader(io.BytesIO(value[5:]), reader, None) for value in values]
    assert read == [{"id": i, "region": "eu", "tags": ["a", "b"]} for i in range(1, 4)]


def test_a_registry_that_is_away_stops_only_what_it_must(
    spark: SparkSession, nats: NatsServer, admin: Admin, streams: str, folder: Path, server: SchemaRegistry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(schemas, "Registry", partial(Registry, timeout=1.0))
    subject, registry = f"{streams}IN-value", Registry(server.url)
    old = framed(registry, subject, OLD, *({"id": i, "region": "eu"} for i in range(3)))
    new = framed(registry, subject, NEW, {"id": 3, "region": "us", "amount": 1.0})
    admin.publish([(f"{streams}.in", value) for value in old])
    with Proxy(server.port) as proxy:
        url = server.url.replace(str(server.port), str(proxy.port))
        pinned = f'type = "avro"\nschema_registry_url = "{url}"\nschema = \'{text(OLD)}\''
        latest = f'type = "avro"\nschema_registry_url = "{url}"'
        proxy.reachable = False
        down = run(spark, written(folder, "latest", jetstream(nats, streams, latest)))
        assert down.state is State.FAILED
        assert f"the registry at {url}" in str(down.error)
        proxy.reachable = True
        done(spark, written(folder, "pinned", jetstream(nats, streams, pinned)))
        assert len(bodies(nats, f"{streams}OUT")) == 3
        proxy.reachable = False
        admin.publish([(f"{streams}.in", value) for value in new])
        down = run(spark, written(folder, "pinned", jetstream(nats, streams, pinned)))
        assert down.state is State.FAILED, "a schema that nobody has seen yet is needed"
        proxy.reachable = True
        done(spark, written(folder, "pinned", jetstream(nats, streams, pinned)))
    assert [json.loads(body)["id"] for body in bodies(nats, f"{streams}OUT")] == [0, 1, 2, 3]


def test_kinesis_goes_to_json_files_and_back(
    spark: SparkSession, kinesis: KinesisServer, nats: NatsServer, streams: str, folder: Path
) -> None:
    name = f"pipeline{time.time_ns()}"
    kinesis.make(name, 2)
    kinesis.make(f"{name}-out")
    kinesis.put(name, [b'{"id": %d}' % i for i in range(10)], "shardId-000000000000")
    kinesis.put(name, [b'{"id": %d}' % i for i in range(10, 20)], "shardId-000000000001")
    file = written(
        folder,
        "kinesis",
        f"""
[kinesis]
endpoint = "{kinesis.url}"

[source]
type = "kinesis"
source_identifier = "{name}"
input_schema = {{ type = "json", schema = "id BIGINT" }}

[source.properties]
"aws.region" = "us-east-1"
"aws.credentials.provider" = "DEFAULT"

[[sinks]]
type = "kinesis"
name = "back"
identifier = "{name}-out"
region = "us-east-1"
partition_key = "order-{{id}}"

[[sinks]]
type = "parquet"
identifier = "rows"
{ONCE}
""",
    )
    done(spark, file)
    back = kinesis.written(f"{name}-out")
    assert sorted(json.loads(value)["id"] for _, _, value in back) == list(range(20))
    assert {key for _, key, _ in back} == {f"order-{i}" for i in range(20)}
    rows = spark.read.parquet(str(folder / "rows")).collect()
    assert sorted(row.id for row in rows) == list(range(20))
