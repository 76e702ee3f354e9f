"""A schema registry over HTTP, which counts what it is asked, goes away and comes back."""

import base64
import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from penstock.codecs import proto_files, protobuf
from penstock.codecs.avro import decoder, encoder
from penstock.codecs.registry import NoSchemaError, Registry, subject_name
from penstock.errors import ConnectError, OptionError

ORDER = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})
NEWER = json.dumps(
    {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string"}]}
)


class Double(ThreadingHTTPServer):
    """Confluent's API, as far as it is asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.asked: Counter[str] = Counter()
        self.is_broken = False
        self.wants = ""  # the header Authorization
        self.sends_to = ""  # another address
        self.says: Any = None  # whatever is asked
        self.url = f"http://127.0.0.1:{self.server_port}"

    def add(self, subject: str, text: str, **more: Any) -> int:
        number = len(self.schemas) + 1
        self.schemas[number] = {"schema": text, **more}
        self.subjects.setdefault(subject, []).append(number)
        return number


class Handler(BaseHTTPRequestHandler):
    server: Double

    def do_GET(self) -> None:
        self.server.asked[self.path] += 1
        parts = self.path.strip("/").split("/")
        if self.server.is_broken:
            self.answer(503, {"message": "in maintenance"})
        elif self.server.sends_to:
            self.send_response(302)
            self.send_header("Location", self.server.sends_to + self.path)
            self.end_headers()
        elif self.server.says is not None:
            self.answer(200, self.server.says)
        elif self.server.wants and self.headers["Authorization"] != self.server.wants:
            self.answer(401, {"message": "who are you?"})
        elif parts[0] == "schemas" and int(parts[2]) in self.server.schemas:
            self.answer(200, self.server.schemas[int(parts[2])])
        elif parts[0] == "subjects" and parts[1] in self.server.subjects:
            numbers = self.server.subjects[parts[1]]
            number = numbers[-1] if parts[3] == "latest" else numbers[int(parts[3]) - 1]
            self.answer(200, {"id": number, "version": 1, **self.server.schemas[number]})
        else:
            self.answer(404, {"error_code": 40403, "message": "Schema not found"})

    def do_POST(self) -> None:
        self.server.asked[self.path] += 1
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        subject = self.path.strip("/").split("/")[1]
        known = [n for n in self.server.subjects.get(subject, []) if self.server.schemas[n]["schema"] == body["schema"]]
        if known:
            self.answer(200, {"id": known[0]})
        elif self.path.endswith("/versions"):
            kind = {key: body[key] for key in ("schemaType",) if key in body}
            self.answer(200, {"id": self.server.add(subject, body["schema"], **kind)})
        else:
            self.answer(404, {"message": "Schema not found"})

    def answer(self, code: int, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def double() -> Iterator[Double]:
    server = Double()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def framed(number: int, body: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + body


def test_records_of_several_schemas_are_read_by_one_and_each_schema_is_asked_for_once(double: Double) -> None:
    old, new = double.add("orders-value", ORDER), double.add("orders-value", NEWER)
    work = decoder(None, Registry(double.url), None, "orders-value", None)
    values = [framed(old, b"\x02"), framed(new, b"\x04\x02x"), framed(99, b"\x06"), b"\x01", framed(new, b"\x08\x02y")]
    for _ in range(3):
        rows = work(pa.array(values, pa.binary())).to_pylist()
    assert [(row["id"], row["note"]) for row in rows] == [(1, None), (2, "x"), (None, None), (None, None), (4, "y")]
    errors = [row["_error"] for row in rows]
    assert errors[2] == f"has the schema id 99: the registry at {double.url} has no schema with the id 99"
    assert errors[3] == "has no id of a schema in front: a zero, and four bytes, as Confluent writes"
    assert double.asked == {
        "/subjects/orders-value/versions/latest": 1, f"/schemas/ids/{old}": 1, f"/schemas/ids/{new}": 1,
        "/schemas/ids/99": 1,
    }  # fmt: skip


def test_with_an_id_bare_records_are_read_and_so_are_those_in_frames(double: Double) -> None:
    number = double.add("orders-value", ORDER)
    work = decoder(None, Registry(double.url), number, None, None)
    rows = work(pa.array([b"\x02", framed(number, b"\x04"), b"\x00", b"\xff"], pa.binary())).to_pylist()
    assert [row["id"] for row in rows] == [1, 2, 0, None]
    assert rows[3]["_error"] == "is not Avro of the schema: it breaks off"


def test_a_registry_that_is_away_fails_the_task_and_no_record(double: Double) -> None:
    number = double.add("orders-value", ORDER)
    work = decoder(ORDER, Registry(double.url, timeout=0.2), None, None, None)
    double.is_broken = True
    with pytest.raises(ConnectError, match=r"asking the registry at .* failed .* answers 503 .*in maintenance"):
        work(pa.array([framed(number, b"\x02")], pa.binary()))
    double.is_broken = False
    assert work(pa.array([framed(number, b"\x02")], pa.binary())).to_pylist() == [{"id": 1, "_error": None}]
    double.is_broken = True
    assert work(pa.array([framed(number, b"\x04")], pa.binary())).to_pylist() == [{"id": 2, "_error": None}]


def test_users_and_tokens_are_told_and_a_wrong_one_is_a_sentence(double: Double) -> None:
    number = double.add("orders-value", ORDER)
    for wants, right in (
        ("Basic YW5uOnN3b3JkZmlzaA==", Registry(double.url, username="ann", password="swordfish")),
        ("Bearer swordfish", Registry(double.url, token="swordfish")),
    ):
        double.wants = wants
        assert right.latest("orders-value").id == number
        assert "swordfish" not in repr(right)
        with pytest.raises(OptionError, match=r"refuses the user, password or token \(401\): who are you\?"):
            Registry(double.url, token="other").latest("orders-value")


def test_a_redirect_takes_no_password_along(double: Double) -> None:
    double.sends_to = f"http://localhost:{double.server_port}/elsewhere"
    with pytest.raises(OptionError, match=r"sends us to http://localhost:\d+/elsewhere/subjects/x"):
        Registry(double.url, username="ann", password="swordfish").latest("x")
    assert list(double.asked) == ["/subjects/x/versions/latest"], "nobody else was asked"


@pytest.mark.parametrize(
    "said",
    [{}, [], 5, {"id": "7", "schema": ORDER}, {"id": 7, "schema": 5}, {"id": 7, "schema": ORDER, "references": [{}]}],
)
def test_an_answer_that_is_none_is_asked_for_again_and_then_told(double: Double, said: Any) -> None:
    double.says = said
    with pytest.raises(ConnectError, match=r"the registry .*(answers with|refers to|answers without)"):
        Registry(double.url, timeout=0.1).latest("orders-value")


def test_schemas_that_refer_to_each_other_are_refused(double: Double) -> None:
    double.add("a", ORDER, references=[{"name": "B", "subject": "b", "version": 1}])
    double.add("b", ORDER, references=[{"name": "B", "subject": "b", "version": 1}])
    with pytest.raises(NoSchemaError, match="refer to each other: B"):
        Registry(double.url).latest("a")


@pytest.mark.parametrize("url", ["localhost:8081", "htp://x", "http://a b", "https://ann:swordfish@host"])
def test_what_is_no_address_of_a_registry_is_refused(url: str) -> None:
    with pytest.raises(OptionError, match=r"no address of a registry|has no user in it") as caught:
        Registry(url)
    assert "swordfish" not in str(caught.value)


def test_schemas_that_refer_to_others_are_read(double: Double) -> None:
    double.add("kind", json.dumps({"type": "enum", "name": "Kind", "symbols": ["A", "B"]}))
    text = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "kind", "type": "Kind"}]})
    number = double.add("orders-value", text, references=[{"name": "Kind", "subject": "kind", "version": 1}])
    work = decoder(None, Registry(double.url), None, "orders-value", None)
    assert work(pa.array([framed(number, b"\x02")], pa.binary())).to_pylist() == [{"kind": "B", "_error": None}]


def test_a_schema_is_registered_once_and_its_id_stands_in_front(double: Double) -> None:
    columns = pa.schema([("id", pa.int64())])
    with pytest.raises(OptionError, match="Register the schema first"):
        encoder(columns, ORDER, Registry(double.url), "orders-value", register=False)
    for _ in range(2):
        work = encoder(columns, ORDER, Registry(double.url), "orders-value")
    assert work(pa.array([{"id": 1}])).to_pylist() == [framed(1, b"\x02")]
    assert list(double.schemas) == [1]
    assert encoder(columns, ORDER, Registry(double.url), "orders-value", register=False).id == 1


def test_what_is_missing_is_said(double: Double) -> None:
    with pytest.raises(NoSchemaError, match="has no subject 'nonesuch'"):
        Registry(double.url).latest("nonesuch")
    with pytest.raises(OptionError, match="has no subject 'nonesuch'"):
        decoder(None, Registry(double.url), None, "nonesuch", None)
    with pytest.raises(OptionError, match="the token for the registry has a line end"):
        Registry(double.url, token="secret\n")
    with pytest.raises(OptionError, match="set a schema, a schema_id or a subject"):
        decoder(None, Registry(double.url), None, None, None)
    with pytest.raises(OptionError, match="a registry keeps schemas by subject"):
        encoder(pa.schema([("id", pa.int64())]), None, Registry(double.url), None)


def test_the_newest_schema_of_a_subject_is_written_by_where_that_is_asked_for(double: Double) -> None:
    double.add("kind", json.dumps({"type": "enum", "name": "Kind", "symbols": ["A", "B"]}))
    text = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "kind", "type": "Kind"}]})
    number = double.add("orders-value", text, references=[{"name": "Kind", "subject": "kind", "version": 1}])
    registry, columns = Registry(double.url), pa.schema([("kind", pa.string())])
    work = encoder(columns, None, registry, "orders-value", use_latest=True)
    assert work(pa.array([{"kind": "B"}])).to_pylist() == [framed(number, b"\x02")]
    assert len(double.schemas) == 2
    with pytest.raises(OptionError, match="has no field 'id', which is a column"):
        encoder(pa.schema([("id", pa.int64())]), None, registry, "orders-value", use_latest=True)
    with pytest.raises(OptionError, match="use_latest takes the newest schema of a subject: set a registry"):
        encoder(columns, text, registry, "orders-value", use_latest=True)


@pytest.mark.parametrize(
    ("strategy", "given", "subject"),
    [
        ("topic_name", {"topic": "orders"}, "orders-value"),
        ("topic_name", {"topic": "orders", "record": "shop.Order", "is_key": True}, "orders-key"),
        ("record_name", {"record": "shop.Order"}, "shop.Order"),
        ("topic_record_name", {"topic": "orders", "record": "shop.Order"}, "orders-shop.Order"),
    ],
)
def test_subjects_are_named_as_kafkas_clients_do(strategy: Any, given: dict[str, Any], subject: str) -> None:
    assert subject_name(strategy, **given) == subject


@pytest.mark.parametrize(
    ("strategy", "given", "said"),
    [
        ("topic_name", {"record": "shop.Order"}, "made of the topic, which is not given"),
        ("topic_record_name", {"topic": "orders"}, "made of the record, which is not given"),
        ("TopicNameStrategy", {"topic": "orders"}, "is no strategy for subjects. There are: topic_name, record_name"),
    ],
)
def test_a_subject_that_cannot_be_named_is_refused(strategy: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        subject_name(strategy, **given)


LINE = 'syntax = "proto3"; package shop; message Line { string name = 1; }'
SHOP = """syntax = "proto3";
package shop;
import "line.proto";
message Refund { int64 id = 1; message Part { sint32 amount = 2; } }
message Order { int64 id = 1; repeated Line lines = 2; }
"""


def shop(double: Double, text: str = SHOP) -> int:
    """The id of a file that imports another one."""
    double.add("line", LINE, schemaType="PROTOBUF")
    references = [{"name": "line.proto", "subject": "line", "version": 1}]
    return double.add("orders-value", text, schemaType="PROTOBUF", references=references)


def test_messages_say_which_one_of_their_file_they_are(double: Double) -> None:
    number = shop(double)
    work = protobuf.decoder(None, "shop.Order", registry=Registry(double.url), subject="orders-value")
    order, line = b"\x08\x07\x12\x03\x0a\x01x", {"name": "x"}
    values = [b"\x02\x02" + order, b"\x00" + order, b"\x04\x00\x00" + order, b"\x02\x08" + order, b"\xff\xff", b""]
    rows = work(pa.array([framed(number, value) for value in values], pa.binary())).to_pylist()
    assert (rows[0]["id"], rows[0]["lines"], rows[0]["_error"]) == (7, [line], None)
    assert [row["_error"] for row in rows[1:]] == [
        "is a message 'shop.Refund', and 'shop.Order' is read",
        "is a message 'shop.Refund.Part', and 'shop.Order' is read",
        "is a message that its schema does not have, and 'shop.Order' is read",
        "breaks off",
        "breaks off",
    ]
    assert double.asked[f"/schemas/ids/{number}"] == 1


def test_messages_of_several_files_are_read_by_the_numbers_of_their_fields(double: Double) -> None:
    first = double.add("s", 'syntax = "proto3"; message M { int32 id = 1; string gone = 2; }', schemaType="PROTOBUF")
    other = double.add("s", 'syntax = "proto3"; message M { sint64 id = 1; }', schemaType="PROTOBUF")
    newest = double.add(
        "s", 'syntax = "proto3"; message M { int64 number = 1; optional bool new = 3; }', schemaType="PROTOBUF"
    )
    avro = double.add("t", ORDER)
    work = protobuf.decoder(None, None, registry=Registry(double.url), subject="s")
    values = [
        framed(first, b"\x00\x08\x01\x12\x01x"),
        framed(newest, b"\x00\x08\x02\x18\x01"),
        framed(other, b"\x00\x08\x02"),
    ]
    rows = work(pa.array([*values, framed(avro, b"\x00"), b"\x01"], pa.binary())).to_pylist()
    assert [(row["number"], row["new"]) for row in rows[:2]] == [(1, None), (2, True)]
    assert [row["_error"] for row in rows] == [
        None,
        None,
        f"has the schema id {other}, which cannot be read: the field 'number' was written as sint64, and cannot be read"
        " as int64.",
        f"has the schema id {avro}, which is AVRO",
        "has no id of a schema in front: a zero, and four bytes, as Confluent writes",
    ]


def test_with_an_id_bare_messages_are_read_and_so_are_those_in_frames(double: Double) -> None:
    number = double.add("s", 'syntax = "proto3"; message M { int32 id = 1; }', schemaType="PROTOBUF")
    work = protobuf.decoder(None, None, registry=Registry(double.url), schema_id=number)
    rows = work(pa.array([b"\x08\x01", framed(number, b"\x00\x08\x02"), b"", b"\x00"], pa.binary())).to_pylist()
    assert [row["id"] for row in rows] == [1, 2, 0, None]
    assert rows[3]["_error"] == "has no id of a schema in front: a zero, and four bytes, as Confluent writes"


def test_a_file_is_registered_and_the_message_is_named_behind_its_id(double: Double) -> None:
    text = SHOP.replace('import "line.proto";\n', "").replace(" repeated Line lines = 2;", "")
    registry, columns = Registry(double.url), pa.schema([("id", pa.int64())])
    for name, index in ((None, b"\x00"), ("shop.Order", b"\x02\x02")):
        work = protobuf.encoder(columns, None, name, schema=text, registry=registry, subject="orders-value")
        (value,) = work(pa.array([{"id": 5}])).to_pylist()
        assert value == framed(1, index + b"\x08\x05")
        (row,) = protobuf.decoder(None, name, registry=registry, subject="orders-value")(pa.array([value])).to_pylist()
        assert row == {"id": 5, "_error": None}
    parts = pa.schema([("amount", pa.int32())])
    work = protobuf.encoder(parts, None, "shop.Refund.Part", registry=registry, subject="orders-value", use_latest=True)
    assert work(pa.array([{"amount": -1}], pa.struct(list(parts)))).to_pylist() == [framed(1, b"\x04\x00\x00\x10\x01")]
    assert double.schemas[1]["schemaType"] == "PROTOBUF"
    with pytest.raises(OptionError, match="Register the schema first"):
        protobuf.encoder(columns, None, None, schema=text, registry=registry, subject="other", register=False)
    with pytest.raises(OptionError, match=r"a registry takes the text of a \.proto file"):
        protobuf.encoder(columns, b"", "shop.Order", registry=registry, subject="orders-value")


def test_a_file_that_is_registered_in_base64_is_read(double: Double) -> None:
    """As Confluent's client for Python registers it, and Apicurio keeps it."""
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", syntax="proto3")
    file.dependency.extend(["line.proto", "google/protobuf/timestamp.proto"])
    made = file.message_type.add(name="M")
    made.field.add(name="line", number=1, type=11, label=1, type_name=".shop.Line")
    made.field.add(name="at", number=2, type=11, label=1, type_name=".google.protobuf.Timestamp")
    double.add("line", LINE, schemaType="PROTOBUF")
    references = [{"name": "line.proto", "subject": "line", "version": 1}]
    text = base64.b64encode(file.SerializeToString()).decode()
    number = double.add("s", text, schemaType="PROTOBUF", references=references)
    work = protobuf.decoder(None, None, registry=Registry(double.url), subject="s")
    (row,) = work(pa.array([framed(number, b"\x00\x0a\x03\x0a\x01x")], pa.binary())).to_pylist()
    assert row == {"line": {"name": "x"}, "at": None, "_error": None}


def test_a_file_that_is_none_is_refused_with_its_place() -> None:
    with pytest.raises(OptionError, match=r"no \.proto file that protoc takes: schema\.proto:1:31"):
        protobuf.decoder(None, None, schema='syntax = "proto3"; message M  int32 id = 1; }')
    with pytest.raises(OptionError, match=r"no \.proto file that protoc takes: line\.proto: File not found"):
        protobuf.decoder(None, None, schema='syntax = "proto3"; import "line.proto";')
    with pytest.raises(OptionError, match=r"cannot be called '\.\./line\.proto'"):
        proto_files.compiled("", [("../line.proto", "")])
