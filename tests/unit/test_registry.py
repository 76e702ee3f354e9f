"""A schema registry over HTTP, which counts what it is asked, goes away and comes back."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
import pytest

from penstock.codecs.avro import decoder, encoder
from penstock.codecs.registry import NoSchemaError, Registry
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
            self.answer(200, {"id": self.server.add(subject, body["schema"])})
        else:
            self.answer(404, {"message": "Schema not found"})

    def answer(self, code: int, body: dict[str, Any]) -> None:
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
    with pytest.raises(NoSchemaError, match="has nothing at /subjects/nonesuch/versions/latest: Schema not found"):
        Registry(double.url).latest("nonesuch")
    with pytest.raises(OptionError, match="has nothing at /subjects/nonesuch"):
        decoder(None, Registry(double.url), None, "nonesuch", None)
    with pytest.raises(OptionError, match="set a schema, a schema_id or a subject"):
        decoder(None, Registry(double.url), None, None, None)
    with pytest.raises(OptionError, match="a registry keeps schemas by subject"):
        encoder(pa.schema([("id", pa.int64())]), None, Registry(double.url), None)
