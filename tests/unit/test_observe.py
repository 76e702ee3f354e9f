"""What is known of queries from Spark's events, and how it is shown and guarded."""

import importlib.resources
import json
import re
import socket
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from penstock.errors import OptionError
from penstock.monitor import metrics
from penstock.monitor.app import Access, Api, is_loopback
from penstock.monitor.jetstream import JetStreams
from penstock.monitor.metrics import ALIASES, SHARDS, Metrics
from penstock.monitor.server import Address, Server
from penstock.monitor.view import Told, overview
from penstock.pipelines.runner import State
from penstock.watch.progress import parse
from penstock.watch.store import HOUR, POINTS, Store

KEY = "swordfish"


def ours(next: dict[str, int], **more: Any) -> str:
    return json.dumps({"epochs": {}, "next": next, "version": 1} | more)


def event(number: int = 1, rows: int = 10, *, at: int = 0, name: str = "orders", **more: Any) -> dict[str, Any]:
    """A progress event as Spark writes it, `at` seconds after noon."""
    return {
        "id": f"id-{name}", "runId": "run-1", "name": name, "batchId": number, "numInputRows": rows,
        "timestamp": f"2026-11-17T{12 + at // 3600:02}:{at // 60 % 60:02}:{at % 60:02}.000Z",
        "durationMs": {"addBatch": 800, "triggerExecution": 1000},
        "sources": [{
            "description": "org.apache.spark.PythonMicroBatchStream@1", "numInputRows": rows,
            "endOffset": ours({"ORDERS": 100, "OTHER": 7}),
            "latestOffset": ours(
                {"ORDERS": 150, "OTHER": 7}, format="jetstream",
                metrics={"lag": 50, "lagBytes": 5000, "lagMs": 2500, "retries": number},
            ),
        }],
        "sink": {"description": "x", "numOutputRows": rows},
        "observedMetrics": {"penstock": {"records": rows, "errors": 2}},
    } | more  # fmt: skip


def test_a_progress_event_tells_positions_lag_and_what_stages_took() -> None:
    batch = parse(event())
    (source,) = batch.sources
    assert (source.format, source.lag, source.lag_bytes, source.lag_seconds) == ("jetstream", 50, 5000, 2.5)
    assert [tuple(shard) for shard in source.shards] == [("ORDERS", 100, 50), ("OTHER", 7, 0)]
    assert (batch.lag, batch.lag_seconds, batch.errors, batch.written) == (50, 2.5, 2, 10)
    assert batch.seconds["addBatch"] == 0.8


@pytest.mark.parametrize("as_text", [True, False])
def test_kafka_tells_lag_by_partition(as_text: bool) -> None:
    offsets: list[Any] = [{"orders": {"0": 5, "1": 9}}, {"orders": {"0": 8, "1": 9}}]
    if as_text:
        offsets = [json.dumps(each) for each in offsets]
    source = {"description": "KafkaV2[Subscribe[orders]]", "endOffset": offsets[0], "latestOffset": offsets[1]}
    (read,) = parse(event(sources=[source])).sources
    assert (read.format, read.lag, read.lag_seconds) == ("kafka", 3, None)
    assert [tuple(shard) for shard in read.shards] == [("orders/0", 5, 3), ("orders/1", 9, 0)]


@pytest.mark.parametrize("offset", [None, "", "garbage", "[1]", "7", {"logOffset": 3}, {"a": {"b": "c"}}])
def test_a_source_that_tells_nothing_is_no_error(offset: Any) -> None:
    source = {"description": "FileStreamSource[file:/tmp]", "endOffset": offset, "latestOffset": offset}
    (read,) = parse(event(sources=[source])).sources
    assert (read.format, read.lag, read.shards) == ("files", None, ())


def test_totals_grow_by_batches_and_survive_a_restart() -> None:
    store = Store()
    for run in ("a", "b"):
        store.started("id-orders", run, "orders")
        for number in (1, 2):
            store.progressed(parse(event(number, runId=run)))
        store.progressed(parse(event(2, 0, runId=run, durationMs={"latestOffset": 1})))  # it only looked
        store.ended("id-orders", run, "it broke" if run == "a" else "")
    query = store.named("orders")
    assert query is not None
    assert (query.rows, query.batches, query.errors, query.written, query.runs) == (40, 4, 8, 40, 2)
    assert query.driver.retries == 2 + 2, "each process counts from nothing"
    assert (query.is_active, query.error) == (False, "")


def test_an_hour_of_quick_batches_is_kept_in_bounded_room() -> None:
    store = Store()
    for number in range(8000):
        store.progressed(parse(event(number, at=number)))
    query = store.named("orders")
    assert query is not None
    assert len(query.points) <= POINTS + 1
    assert query.points[-1].at - query.points[0].at == pytest.approx(HOUR, abs=10)
    assert len(query.recent) == 100
    assert sum(point.rows for point in query.points) == pytest.approx(3600 * 10, rel=0.01)


def test_rows_a_second_are_of_the_time_that_passed_also_where_moments_are_put_together() -> None:
    store = Store()
    for number in range(600):  # each takes one of three seconds
        batch = parse(event(number, 30, at=number * 3, durationMs={"addBatch": 800, "triggerExecution": 1000}))
        store.progressed(batch)
        query = store.queries["id-orders"]
        query.began = batch.at if number == 0 else query.began
    rates = [point.rate for point in query.points]
    assert len(rates) < 400
    assert rates[1:] == pytest.approx([10.0] * (len(rates) - 1))


def test_the_age_of_what_kafka_has_unread_is_since_it_was_first_seen() -> None:
    now = [1000.0]
    store = Store(clock=lambda: now[0])

    def look(position: int, head: int) -> float | None:
        now[0] += 10
        source = {"description": "KafkaV2[x]", "endOffset": {"t": {"0": position}}, "latestOffset": {"t": {"0": head}}}
        store.progressed(parse(event(sources=[source])))
        query = store.named("orders")
        assert query is not None
        return query.points[-1].lag_seconds

    assert [look(5, 5), look(5, 9), look(7, 12), look(8, 20), look(9, 21), look(21, 21)] == [0, 0, 10, 20, 0, 0]


def test_a_query_that_begins_anew_under_its_name_is_the_same_one_and_its_totals_go_on() -> None:
    """As after a rewind as a new query: Prometheus would drop the second of two with the same labels."""
    store = Store()
    store.counted = lambda: {("id-1", "write"): {"rows": 30}, ("id-2", "write"): {"rows": 5}}
    for id, run in (("id-1", "a"), ("id-2", "b")):
        store.started(id, run, "orders")
        store.progressed(parse(event(id=id, runId=run)))
    shown = metrics.text(Metrics(store)).decode()
    assert 'penstock_records_read_total{pipeline="orders"} 20.0' in shown
    assert 'penstock_records_written_total{pipeline="orders"} 35.0' in shown
    names = [line.rpartition(" ")[0] for line in shown.splitlines() if not line.startswith("#")]
    assert len(names) == len(set(names))
    assert [(each["query"], each["messages_read"], each["written"]) for each in overview(store, None)] == [
        ("id-2", 20, 35)
    ]


def test_two_sources_of_one_format_are_told_apart() -> None:
    store = Store()
    source = {"endOffset": '{"next": {"A": 5}, "epochs": {}, "version": 1}', "latestOffset": None}
    store.progressed(parse(event(sources=[source, source])))
    shown = metrics.text(Metrics(store)).decode()
    names = [line.rpartition(" ")[0] for line in shown.splitlines() if not line.startswith("#")]
    assert len(names) == len(set(names))
    assert 'source="penstock (2)"' in shown


def test_news_of_a_run_before_change_nothing_and_a_new_run_has_no_old_error() -> None:
    """Spark tells of a start at once, and of the end before it when it comes to it."""
    now = [1000.0]
    store = Store(lambda: now[0])
    store.started("id", "a", "orders")
    store.started("id", "b", "orders")
    store.ended("id", "a", "boom")
    store.progressed(parse(event(id="id", runId="a")))
    query = store.named("orders")
    assert query is not None
    assert (query.is_active, query.error, query.rows) == (True, "", 0)
    store.ended("id", "b", "boom: password=hunter2")
    assert (query.is_active, query.error) == (False, "boom: password=***")
    store.started("id", "c", "orders")
    assert (query.is_active, query.error, query.told) == (True, "", 1000.0)
    now[0] = 2000.0
    store.idle("id", "a")
    assert query.told == 1000.0
    store.idle("id", "c")
    assert query.told == 2000.0, "nothing new is news too"


def test_of_queries_that_have_ended_the_newest_are_kept() -> None:
    now = iter(range(10_000))
    store = Store(lambda: float(next(now)))
    for number in range(250):
        store.started(f"id-{number}", "run", "")
        store.ended(f"id-{number}", "run", "")
    assert list(store.queries) == [f"id-{number}" for number in range(149, 250)]


class Fake:
    """Pipelines that note what they are told."""

    states: Sequence[str] = ("running", "failed", "stopped")

    def __init__(self) -> None:
        self.told: list[Any] = []

    def all(self) -> list[Told]:
        return [
            Told("orders", "Orders", "running", "exactly once", has_dead_letters=True, errors=2),
            Told("b<script>", "Bad", "failed", "at least once", error="the server is gone", restarts=3),
        ]

    def do(self, verb: str, key: str, **given: Any) -> Any:
        if verb == "rewind" and not given:
            raise OptionError("say where to.")
        self.told.append((verb, key, given))
        return "done" if verb not in ("checkpoints", "dead_letters") else []


@pytest.fixture
def fake() -> Fake:
    return Fake()


@pytest.fixture
def api(fake: Fake) -> Api:
    store = Store()
    store.started("id-orders", "run-1", "orders")
    store.progressed(parse(event()))
    return Api(store, fake, Metrics(store, fake), Access("127.0.0.1", KEY))


@pytest.fixture
def client(api: Api) -> Iterator[TestClient]:
    with TestClient(api.app(), base_url="http://localhost:1234") as client:
        yield client


def test_what_is_wrong_comes_first(api: Api) -> None:
    assert [each["key"] for each in overview(api.store, api.pipelines)] == ["b<script>", "orders"]


@pytest.mark.parametrize(
    "path",
    ["/health/live", "/stats", "/metrics", "/pipelines", "/sources", "/sinks", "/pipelines/orders", "/sources/orders",
     "/pipelines/orders/checkpoints", "/pipelines/orders/dead-letters", "/openapi.json", "/", "/app.js", "/style.css"],
)  # fmt: skip
def test_who_is_on_this_machine_may_look(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


def test_health_says_what_is_ill(client: TestClient) -> None:
    answer = client.get("/health")
    assert (answer.status_code, answer.json()["errors"]) == (503, {"b<script>": "the server is gone"})


def test_what_starts_is_not_ready_and_what_was_stopped_by_an_order_is_well(api: Api, fake: Fake) -> None:
    fake.all = lambda: [Told("orders", "Orders", "starting", "exactly once"), Told("b", "B", "stopped", "")]  # type: ignore[method-assign]
    with TestClient(api.app(), base_url="http://localhost:1234") as client:
        answer = client.get("/health/ready")
        assert (answer.status_code, answer.json()["starting"], answer.json()["errors"]) == (503, ["orders"], {})
        fake.all = lambda: [Told("b", "B", "stopped", "")]  # type: ignore[method-assign]
        assert client.get("/health").status_code == 200


def test_rows_that_nobody_counts_are_not_known_rather_than_none() -> None:
    store = Store()
    store.started("id-orders", "run-1", "orders")
    store.progressed(parse(event(sink={"description": "x", "numOutputRows": -1})))
    assert overview(store, None)[0]["written"] is None
    assert "penstock_records_written_total{" not in metrics.text(Metrics(store)).decode()


ORDERS = [("stop", None), ("start", None), ("restart", None), ("rewind", {"batch": 3})]


@pytest.mark.parametrize(("verb", "body"), ORDERS)
def test_an_order_needs_the_key(client: TestClient, fake: Fake, verb: str, body: Any) -> None:
    path = f"/pipelines/orders/{verb}"
    assert client.post(path, json=body).status_code == 401
    assert client.post(path, json=body, headers={"api-key": "wrong"}).status_code == 403
    assert client.post(path, json=body, headers={"authorization": "Bearer "}).status_code == 401
    assert fake.told == []
    answer = client.post(path, json=body, headers={"api-key": KEY})
    assert (answer.status_code, answer.json()) == (200, {"done": "done"})
    assert client.post(path, json=body, headers={"authorization": f"Bearer {KEY}"}).status_code == 200
    assert fake.told == [(verb, "orders", body or {})] * 2


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "evil.example:1234"}, 421),
        ({"host": "localhost.evil.example"}, 421),
        ({"host": ""}, 421),
        ({"host": "["}, 421),
        ({"origin": "http://["}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost:9"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
    ],
)
def test_another_site_is_not_answered_even_with_the_key(
    client: TestClient, fake: Fake, headers: dict[str, str], status: int
) -> None:
    for method, path in (("GET", "/pipelines"), ("POST", "/pipelines/orders/stop")):
        answer = client.request(method, path, headers=headers | {"api-key": KEY})
        assert answer.status_code == status, answer.text
        assert answer.json()["error"]
    assert fake.told == []


def test_off_loopback_everything_but_the_empty_page_needs_the_key(api: Api, fake: Fake) -> None:
    open_to_all = Api(api.store, fake, api.measured, Access("0.0.0.0", KEY))
    with TestClient(open_to_all.app(), base_url="http://penstock.example:80") as client:
        for path in ("/pipelines", "/metrics", "/health", "/events", "/openapi.json"):
            assert client.get(path).status_code == 401
        followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
        assert client.get("/", headers=followed).status_code == 200, "a link from a chat opens it"
        assert client.post("/", headers=followed).status_code == 403
        assert client.get("/pipelines", headers={"api-key": KEY}).status_code == 200
    with pytest.raises(OptionError, match="can be reached by others: set a key"):
        Address("0.0.0.0", 1)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        ("GET", "/pipelines/nonesuch", None, 404, "there is no pipeline 'nonesuch'"),
        ("GET", "/pipelines/..%2f..%2fetc%2fpasswd", None, 404, ""),
        ("GET", "/../../etc/passwd", None, 404, ""),
        ("GET", "/page/index.html", None, 404, ""),
        ("POST", "/pipelines/orders/explode", b"", 404, "is no order"),
        ("POST", "/pipelines/nonesuch/stop", b"", 404, "there is no pipeline"),
        ("POST", "/pipelines/orders/rewind", b"{", 400, "not JSON"),
        ("POST", "/pipelines/orders/rewind", b"[1]", 400, "must be a JSON object"),
        ("POST", "/pipelines/orders/rewind", b'{"file": "/etc/passwd"}', 400, "'file' is not known"),
        ("POST", "/pipelines/orders/stop", b'{"batch": 1}', 400, "'stop' takes nothing"),
        ("POST", "/pipelines/orders/rewind", b"[" * 60_000, 400, "not JSON"),
        ("GET", "/pipelines/orders/stop", None, 404, "An order is a POST"),
        ("POST", "/pipelines/orders/rewind", b"{}", 409, "say where to"),
        ("POST", "/pipelines/orders/rewind", b" " * 100_000, 413, "too long"),
        ("PUT", "/pipelines/orders", b"{}", 405, ""),
        ("DELETE", "/pipelines/orders", b"", 405, ""),
    ],
)
def test_bad_input_gets_a_status_and_a_sentence(
    client: TestClient, fake: Fake, method: str, path: str, body: bytes | None, status: int, said: str
) -> None:
    answer = client.request(method, path, content=body, headers={"api-key": KEY})
    assert answer.status_code == status, answer.text
    assert said in answer.text
    assert fake.told == []


def test_queries_of_a_program_can_be_looked_at_and_not_ordered(api: Api) -> None:
    alone = Api(api.store, None, Metrics(api.store), Access("127.0.0.1", KEY))
    with TestClient(alone.app(), base_url="http://localhost") as client:
        (shown,) = client.get("/pipelines").json()
        assert (shown["key"], shown["state"], shown["messages_read"], shown["lag"]) == ("orders", "running", 10, 50)
        answer = client.post("/pipelines/orders/stop", headers={"api-key": KEY})
        assert (answer.status_code, "belong to a program" in answer.text) == (409, True)


def test_a_query_may_have_slashes_in_its_name(api: Api) -> None:
    api.store.progressed(parse(event(id="id-2", name="etl/orders")))
    alone = Api(api.store, None, Metrics(api.store), Access("127.0.0.1", KEY))
    with TestClient(alone.app(), base_url="http://localhost") as client:
        shown = client.get("/pipelines/etl%2Forders").json()
        assert (shown["name"], shown["takes_orders"]) == ("etl/orders", False)
        assert client.post("/pipelines/etl%2Forders/stop", headers={"api-key": KEY}).status_code == 409


def test_every_file_of_the_page_is_served_and_takes_nothing_from_elsewhere(client: TestClient) -> None:
    files = [
        each for each in importlib.resources.files("penstock.monitor").joinpath("page").iterdir() if each.is_file()
    ]
    assert len(files) > 10
    for each in files:
        answer = client.get("/" if each.name == "index.html" else f"/{each.name}")
        assert (answer.status_code, answer.text) == (200, each.read_text()), each.name
        named = set(re.findall(r"https?://[^\s\"'<>`]+", answer.text))
        assert named <= {"http://www.w3.org/2000/svg"}, each.name
        assert "innerHTML" not in answer.text, "what servers say is shown as text"


def families(api: Api) -> dict[str, Any]:
    return {each.name: each for each in text_string_to_metric_families(metrics.text(api.measured).decode())}


def test_metrics_have_what_was_read_lag_stages_and_states(api: Api) -> None:
    found = {sample.name: sample for family in families(api).values() for sample in family.samples}
    assert found["penstock_records_read_total"].value == 10
    assert found["penstock_lag_seconds"].labels == {"pipeline": "orders", "source": "jetstream"}
    assert (found["penstock_lag_seconds"].value, found["penstock_lag_bytes"].value) == (2.5, 5000)
    assert found["penstock_batch_duration_seconds_count"].value == 1
    states = [s for s in families(api)["penstock_pipeline_state"].samples if s.value == 1]
    assert {(s.labels["pipeline"], s.labels["state"]) for s in states} == {
        ("orders", "running"),
        ("b<script>", "failed"),
    }
    assert families(api)["penstock_dead_letters"].samples[0].value == 2


def test_names_of_metrics_follow_the_conventions_and_aliases_name_what_exists(api: Api) -> None:
    names = {sample.name for family in families(api).values() for sample in family.samples}
    for name, family in families(api).items():
        assert re.fullmatch(r"penstock_[a-z_]+", name)
        assert family.documentation.endswith(".")
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples)
    exist = names | {f"{name}_seconds" for name in names} | {"penstock_batch_duration_seconds"}
    assert {target for target in ALIASES.values() if target not in exist} == set()


def test_of_a_thousand_shards_the_largest_have_figures_and_the_rest_are_added_up(api: Api) -> None:
    ends = {f"s{n:04}": 0 for n in range(1000)}
    heads = {name: int(name[1:]) for name in ends}
    source = {"endOffset": ours(ends), "latestOffset": ours(heads, metrics={"lag": sum(heads.values())})}
    api.store.progressed(parse(event(2, sources=[source])))
    samples = families(api)["penstock_lag_records"].samples
    assert len(samples) == SHARDS + 1
    assert sum(sample.value for sample in samples) == sum(heads.values())
    assert samples[0].labels["shard"] == "s0999"


def test_a_server_stops_at_once_and_without_a_word_while_somebody_listens(
    api: Api, capfd: pytest.CaptureFixture[str]
) -> None:
    server = Server(api.app(), Address(), api.end).start()
    with urllib.request.urlopen(f"{server.url}/events", timeout=20) as listening:
        assert listening.readline() == b"event: pipelines\n"
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 3
        assert b"orders" in listening.read()
    assert capfd.readouterr() == ("", "")


def test_readers_of_events_that_do_not_read_delay_nobody(api: Api) -> None:
    """Fifty of them, and one that does: it has the newest figures, and so has everybody who asks."""
    server = Server(api.app(), Address(), api.end).start()
    port = int(server.url.rpartition(":")[2])
    ask = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"
    asleep = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]
    reader = socket.create_connection(("127.0.0.1", port), timeout=20)
    try:
        for connection in (*asleep, reader):
            connection.sendall(ask)
        for number in range(2, 1000):
            api.store.progressed(parse(event(number)))
        seen = b""
        while b'"batch": 999' not in seen:
            seen = seen[-100_000:] + reader.recv(1 << 16)
        with urllib.request.urlopen(f"{server.url}/pipelines", timeout=5) as answer:
            assert json.loads(answer.read())[1]["batch"] == 999
    finally:
        for connection in (*asleep, reader):
            connection.close()
        server.stop()


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("8686", "127.0.0.1", 8686), ("localhost:80", "localhost", 80), ("[::1]:80", "::1", 80), (":80", "127.0.0.1", 80)],
)
def test_addresses_are_read(text: str, host: str, port: int) -> None:
    address = Address.parse(text)
    assert (address.host, address.port) == (host, port)
    assert is_loopback(address.host)


@pytest.mark.parametrize("text", ["localhost:x", "localhost:99999", "127.0.0.1:-1"])
def test_what_is_no_address_is_said(text: str) -> None:
    with pytest.raises(OptionError, match="is no address such as"):
        Address.parse(text)


def test_the_key_shows_nowhere(client: TestClient, api: Api) -> None:
    assert KEY not in repr(api.access)
    assert KEY not in repr(Address("127.0.0.1", 1, key=KEY))
    for path in ("/stats", "/metrics", "/pipelines", "/openapi.json", "/"):
        assert KEY not in client.get(path).text


DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.mark.parametrize("name", ["prometheus-rules.yml", "grafana-dashboard.json"])
def test_what_is_deployed_asks_for_metrics_that_exist(api: Api, name: str) -> None:
    text = (DEPLOY / name).read_text()
    asked = set(re.findall(r"penstock_[a-z_]+", text))
    exist = {sample.name for family in families(api).values() for sample in family.samples} | set(families(api))
    for family in metrics.FIGURES.values():
        exist.add(f"{family.name}_total")
    exist |= {family.name for family in JetStreams([]).collect()}
    asked |= set(re.findall(r"\bjetstream_[a-z_]+", text))
    assert asked
    assert asked <= exist
    for state in re.findall(r'state=\\?"([^"\\]+)', text):
        assert state in list(State)
    yaml.safe_load(text)  # JSON is YAML too


def test_a_certificate_that_cannot_be_used_is_said_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("no certificate")
    with pytest.raises(OptionError, match=r"the certificate '.*cert.pem' with the key '.*none.pem' cannot be used"):
        Address(cert=str(tmp_path / "cert.pem"), cert_key=str(tmp_path / "none.pem"))
