"""A real schema registry: what it keeps and refuses, and records whose schemas it has."""

import json
import os
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.codecs import avro, protobuf
from penstock.codecs.registry import NoSchemaError, Registry, subject_name
from penstock.errors import ConnectError, OptionError
from penstock.testing.schema_registry import SchemaRegistry


def order(*fields: tuple[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "Order", "fields": [{"name": n, "type": t} for n, t in fields]})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchemaRegistry]:
    with SchemaRegistry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture
def registry(server: SchemaRegistry) -> Registry:
    return Registry(server.url)


def put(server: SchemaRegistry, path: str, body: dict[str, Any], method: str = "POST") -> dict[str, Any]:
    headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    request = urllib.request.Request(f"{server.url}{path}", json.dumps(body).encode(), headers, method=method)
    with urllib.request.urlopen(request, timeout=20) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


def test_a_schema_is_registered_once_and_found_by_its_id_its_subject_and_itself(registry: Registry) -> None:
    text = order(("id", "long"))
    subject = subject_name("topic_name", topic="once")
    with pytest.raises(NoSchemaError, match="does not have this schema in 'once-value'"):
        registry.lookup(subject, "AVRO", text)
    number = registry.register(subject, "AVRO", text)
    assert registry.register(subject, "AVRO", text) == registry.lookup(subject, "AVRO", text) == number
    assert json.loads(registry.by_id(number).text) == json.loads(text)
    assert registry.latest(subject).id == number


def test_what_it_does_not_have_is_said(registry: Registry) -> None:
    with pytest.raises(NoSchemaError, match="has no schema with the id 4711"):
        registry.by_id(4711)
    with pytest.raises(NoSchemaError, match="has no subject 'nonesuch'"):
        registry.latest("nonesuch")


def test_a_schema_that_does_not_fit_those_before_is_refused_with_the_reason(
    server: SchemaRegistry, registry: Registry
) -> None:
    registry.register("strict-value", "AVRO", order(("id", "long")))
    put(server, "/config/strict-value", {"compatibility": "BACKWARD"}, "PUT")
    columns = pa.schema([("id", pa.string())])
    with pytest.raises(OptionError, match=r"does not take the schema \(409\): .*STRING not compatible with.*LONG"):
        avro.encoder(columns, order(("id", "string")), registry, "strict-value")
    with pytest.raises(OptionError, match=r"does not take the schema \(422\)"):
        registry.register("strict-value", "AVRO", '{"type": "nonesuch"}')


def test_schemas_evolve_and_each_record_is_read_by_its_own(registry: Registry) -> None:
    values = []
    for text, row in (
        (order(("id", "int")), {"id": 1}),
        (order(("id", "long"), ("note", ["null", "string"])), {"id": 2, "note": "x"}),
    ):
        kinds = pa.schema([("id", pa.int32() if len(row) == 1 else pa.int64()), ("note", pa.string())][: len(row)])
        work = avro.encoder(kinds, text, registry, "evolving-value")
        values += work(pa.array([row], pa.struct(list(kinds)))).to_pylist()
    rows = avro.decoder(None, registry, None, "evolving-value", None)(pa.array(values, pa.binary())).to_pylist()
    assert [(row["id"], row["note"], row["_error"]) for row in rows] == [(1, None, None), (2, "x", None)]


def test_schemas_that_refer_to_others_are_read_and_written_by(server: SchemaRegistry, registry: Registry) -> None:
    registry.register("kind", "AVRO", json.dumps({"type": "enum", "name": "Kind", "symbols": ["A", "B"]}))
    references = [{"name": "Kind", "subject": "kind", "version": 1}]
    put(server, "/subjects/kinds-value/versions", {"schema": order(("kind", "Kind")), "references": references})
    work = avro.encoder(pa.schema([("kind", pa.string())]), None, registry, "kinds-value", use_latest=True)
    values = work(pa.array([{"kind": "B"}]))
    (row,) = avro.decoder(None, registry, None, "kinds-value", None)(values).to_pylist()
    assert row == {"kind": "B", "_error": None}


def test_protobuf_with_imports_evolves_too(server: SchemaRegistry, registry: Registry) -> None:
    line = 'syntax = "proto3"; package shop; message Line { string name = 1; }'
    registry.register("line", "PROTOBUF", line)
    head = 'syntax = "proto3"; package shop; import "line.proto"; import "google/protobuf/timestamp.proto";'
    old = f"{head} message Other {{}} message Order {{ int32 id = 1; Line line = 2; }}"
    new = old.replace("int32 id = 1;", "int64 id = 1; google.protobuf.Timestamp at = 3;")
    references = [{"name": "line.proto", "subject": "line", "version": 1}]
    values = []
    for text, kind in ((old, pa.int32()), (new, pa.int64())):
        body = {"schemaType": "PROTOBUF", "schema": text, "references": references}
        put(server, "/subjects/shop-value/versions", body)
        columns = pa.schema([("id", kind), ("line", pa.struct([("name", pa.string())]))])
        work = protobuf.encoder(columns, None, "shop.Order", registry=registry, subject="shop-value", use_latest=True)
        values += work(pa.array([{"id": 7, "line": {"name": "x"}}], pa.struct(list(columns)))).to_pylist()
    assert values[0][5:7] == b"\x02\x02"
    work_back = protobuf.decoder(None, "shop.Order", registry=registry, subject="shop-value")
    rows = work_back(pa.array(values, pa.binary())).to_pylist()
    assert rows == [{"id": 7, "line": {"name": "x"}, "at": None, "_error": None}] * 2


def test_a_registry_keeps_its_schemas_also_when_it_is_killed_and_leaves_no_process(tmp_path: Path) -> None:
    server = SchemaRegistry(tmp_path)
    registry = Registry(server.url, timeout=0.5)
    with server.start():  # which `with` does too
        assert server.process is not None
        pids = [server.process.pid]
        known = registry.register("kept-value", "AVRO", order(("id", "long")))
        later = registry.register("later-value", "AVRO", order(("number", "long")))
        work = avro.decoder(order(("id", "long")), registry, None, None, None)
        records = [b"\0" + number.to_bytes(4, "big") + b"\x02" for number in (known, later)]
        assert work(pa.array(records[:1])).to_pylist() == [{"id": 1, "_error": None}]
        server.kill()
        assert work(pa.array(records[:1])).to_pylist() == [{"id": 1, "_error": None}]  # known already
        with pytest.raises(ConnectError, match=r"asking the registry at .* failed"):
            work(pa.array(records))
        server.start()
        assert server.process is not None
        pids.append(server.process.pid)
        rows = work(pa.array(records)).to_pylist()
        assert [(row["id"], row["_error"]) for row in rows] == [(1, None), (None, None)]
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def test_a_registry_listens_on_this_machine_only(server: SchemaRegistry) -> None:
    socket.create_connection(("127.0.0.1", server.port), 5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", server.port), 5)
