"""Figures of streams and consumers: rates of two looks, what is worst, and how it is shown."""

import io
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from starlette.testclient import TestClient

from penstock.cli.jetstream.top import drawn, line
from penstock.cli.run import _servers
from penstock.clients.nats.client import Denied
from penstock.clients.nats.options import NatsOptions
from penstock.monitor import jetstream as monitored
from penstock.monitor import metrics
from penstock.monitor.app import Access, Api
from penstock.monitor.jetstream import SERIES, JetStreams
from penstock.monitor.metrics import Metrics
from penstock.operate import looking
from penstock.operate.figures import (
    ConsumerFigures,
    Look,
    StreamFigures,
    as_json,
    rated,
    worst_consumers,
    worst_streams,
)
from penstock.operate.looking import Looker
from penstock.operate.watching import Patiently, Seen, Watching
from penstock.watch.store import Store

KEY = "swordfish"
HOSTILE = '<script>x</script>"\n\x1b[31m[red]'


def stream(
    name: str = "S", messages: int = 10, *, created: str = "2026-11-01T00:00:00Z", **config: Any
) -> StreamFigures:
    state = {"messages": messages, "bytes": messages * 100, "first_seq": 1, "last_seq": messages, "consumer_count": 1,
             "first_ts": "2026-11-17T07:00:00Z", "last_ts": "2026-11-17T07:20:00Z"}  # fmt: skip
    return StreamFigures.of({"config": {"name": name, **config}, "created": created, "state": state})


def consumer(
    name: str = "c", delivered: int = 0, *, of: str = "S", created: str = "2026-11-01T00:00:00Z", **told: Any
) -> ConsumerFigures:
    item = {
        "stream_name": of, "name": name, "created": created, "ts": "2026-11-17T07:20:00Z",
        "config": {"max_ack_pending": 1000}, "delivered": {"consumer_seq": delivered, "stream_seq": delivered},
        "ack_floor": {"consumer_seq": delivered, "stream_seq": delivered}, **told,
    }  # fmt: skip
    return ConsumerFigures.of(item)


def look(at: float, *things: StreamFigures | ConsumerFigures, **more: Any) -> Look:
    streams = tuple(each for each in things if isinstance(each, StreamFigures))
    consumers = tuple(each for each in things if isinstance(each, ConsumerFigures))
    return Look(at, {"id": "ID", "name": "s1", "version": "2.15.1"}, None, streams, consumers, **more)


def test_two_looks_give_rates() -> None:
    now = rated(
        look(0, stream(messages=100), consumer(delivered=50)), look(4, stream(messages=300), consumer(delivered=60))
    )
    assert (now.streams[0].rate, now.streams[0].byte_rate, now.streams[0].out_rate) == (50.0, 5000.0, 2.5)
    assert (now.consumers[0].rate, now.consumers[0].ack_rate) == (2.5, 2.5)


@pytest.mark.parametrize("created", ["2026-11-01T00:00:00Z", "2026-11-17T00:00:00Z"])
def test_what_was_deleted_and_made_again_or_set_back_has_no_negative_rate(created: str) -> None:
    before = look(0, stream(messages=900), consumer(delivered=900))
    now = rated(before, look(2, stream(messages=5, created=created), consumer(delivered=5, created=created)))
    assert now.streams[0].rate is None
    assert now.consumers[0].rate is None
    larger = rated(before, look(2, stream(messages=9000, created="2026-11-17T00:00:00Z")))
    assert larger.streams[0].rate is None, "another stream under the same name has not grown"


def test_a_first_look_has_no_rates() -> None:
    only = look(0, stream(), consumer())
    assert rated(None, only).streams[0].rate is None
    assert rated(only, only).streams[0].rate is None


def test_what_stands_still_comes_first_and_then_what_is_behind() -> None:
    seen = look(
        0,
        consumer("quick"),
        consumer("behind", num_pending=10**6, num_waiting=1),
        consumer("stuck", num_pending=1, num_ack_pending=1000),
        stream("small", 1),
        stream("large", 1000),
        stream("full", 10, max_msgs=10),
    )
    assert [each.name for each in worst_consumers(seen)] == ["stuck", "behind", "quick"]
    assert [each.name for each in worst_streams(seen)] == ["full", "large", "small"]


def test_a_busy_consumer_at_its_limit_does_not_stand_still() -> None:
    def at(delivered: int) -> ConsumerFigures:
        return consumer(delivered=delivered, num_pending=100, num_ack_pending=1000)

    idle, busy = rated(look(0, at(5)), look(1, at(5))), rated(look(0, at(5)), look(1, at(500)))
    assert as_json(idle)["consumers"][0]["harm"] == 2
    assert as_json(busy)["consumers"][0]["harm"] == 0


def test_beyond_the_largest_the_rest_is_added_up() -> None:
    seen = look(
        0,
        *(stream(f"S{k:04}", k) for k in range(3000)),
        *(consumer(f"c{k}", num_pending=1, num_waiting=1) for k in range(300)),
    )
    shown = as_json(seen, 50)
    assert (len(shown["streams"]), len(shown["consumers"])) == (50, 50)
    assert shown["other_streams"]["count"] == 2950
    assert shown["other_streams"]["messages"] + sum(each["messages"] for each in shown["streams"]) == sum(range(3000))
    assert shown["other_consumers"] == {"count": 250, "pending": 250}


def printed(seen: Seen, width: int, most: int = 20) -> str:
    out = Console(file=io.StringIO(), width=width, force_terminal=False)
    out.print(drawn(seen, width, most))
    text: str = out.file.getvalue()  # type: ignore[attr-defined] # it is the StringIO
    return text


@pytest.mark.parametrize("width", [200, 100, 60, 30])
def test_a_table_fits_into_any_terminal_and_shows_no_control_characters(width: int) -> None:
    text = printed(Seen(look(0, stream(HOSTILE), consumer(HOSTILE, of=HOSTILE, num_pending=3)), time.time()), width)
    assert max(len(each) for each in text.splitlines()) <= width
    assert "\x1b" not in text


def test_the_others_have_a_row_of_their_own() -> None:
    text = printed(Seen(look(0, *(stream(f"S{k}", 100) for k in range(12))), time.time()), 120, 5)
    assert "7 others" in text
    assert "700" in text


def test_a_server_that_is_away_is_shown_with_what_was_seen_before() -> None:
    gone = Seen(look(0, stream("ORDERS")), time.time() - 30, "no NATS server answers")
    assert "no NATS server answers What is below is 30 s old" in " ".join(printed(gone, 120).split())
    assert "ORDERS" in printed(gone, 120)
    assert line(gone).keys() == {"time", "error"}, "old figures are not told as if they were of now"
    assert "connecting" in printed(Seen(), 80)


# --- in a program: the page and metrics ---


class Fake(Watching):
    """A server whose looks are made up."""

    def __init__(self, made: Look | str, hold: threading.Event | None = None, **options: str):
        super().__init__(NatsOptions.parse("jetstream", {"servers": "nats://127.0.0.1:9", **options}))
        self.made, self.looks, self.hold = made, 0, hold

    def look(self) -> Seen:
        self.looks += 1
        if self.hold is not None:
            self.hold.wait(20)
        if isinstance(self.made, str):
            self.seen = replace(self.seen, error=self.made)
        else:
            self.seen = Seen(self.made, time.time())
        return self.seen


def watched(*fakes: Fake, every: float = 60.0) -> JetStreams:
    streams = JetStreams([])
    streams.watched = [Patiently(each, every) for each in fakes]
    return streams


def families(streams: JetStreams) -> dict[str, Any]:
    text = metrics.text(Metrics(Store(), None, streams)).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_metrics_have_the_names_and_labels_of_the_exporter() -> None:
    seen = look(0, stream("ORDERS", 7), consumer("billing", 3, of="ORDERS", num_pending=4, num_ack_pending=2))
    told = families(watched(Fake(seen)))
    (sample,) = told["jetstream_stream_total_messages"].samples
    assert (sample.value, sample.labels["stream_name"], sample.labels["is_stream_leader"]) == (7, "ORDERS", "true")
    assert sample.labels.keys() == {
        "server_id", "server_name", "cluster", "domain", "meta_leader", "is_meta_leader", "account", "account_id",
        "stream_name", "stream_leader", "is_stream_leader",
    }  # fmt: skip
    (sample,) = told["jetstream_consumer_num_pending"].samples
    assert (sample.value, sample.labels["consumer_name"], sample.labels["stream_name"]) == (4, "billing", "ORDERS")
    assert told["jetstream_server_total_messages"].samples[0].value == 7
    assert told["penstock_jetstream_up"].samples[0].value == 1


def test_the_number_of_series_is_bounded_and_says_how_many_are_left_out() -> None:
    many = (stream(f"S{k}") for k in range(1000)), (consumer(f"c{k}", of="S1") for k in range(1000))
    told = families(watched(Fake(look(0, *many[0], *many[1]))))
    assert len(told["jetstream_stream_total_messages"].samples) == SERIES
    assert len(told["jetstream_consumer_num_pending"].samples) == SERIES
    assert {each.value for each in told["penstock_jetstream_left_out"].samples} == {1000 - SERIES}
    assert told["jetstream_server_total_streams"].samples[0].value == 1000


def test_an_account_that_two_pipelines_use_is_told_once() -> None:
    seen = look(0, stream("ORDERS"), consumer(of="ORDERS"))
    seen = replace(seen, server={**seen.server, "account": "A"})
    told = families(watched(Fake(seen, user="a"), Fake(seen, user="b")))
    for family in told.values():
        labels = [(each.name, tuple(sorted(each.labels.items()))) for each in family.samples]
        assert len(labels) == len(set(labels)), family.name
    assert len(told["jetstream_stream_total_messages"].samples) == 1
    assert len(told["jetstream_server_total_streams"].samples) == 1


def test_two_accounts_of_a_server_are_both_told_where_it_does_not_name_them() -> None:
    one, other = Fake(look(0, stream("S", 1)), user="a", password="s3cret"), Fake(look(0, stream("S", 2)), user="b")
    nameless = [Fake(look(0, stream("S", k)), token="t0ken") for k in (3, 4)]
    told = families(watched(one, other, *nameless))
    by_account = {each.labels["account"]: each.value for each in told["jetstream_stream_total_messages"].samples}
    assert by_account == {"a": 1, "b": 2, "": 3, "2": 4}
    assert len(told["jetstream_server_total_messages"].samples) == 4


def test_each_connection_says_whether_it_is_up() -> None:
    told = families(watched(Fake(look(0), user="a"), Fake("it refuses the credentials", user="b")))
    assert {each.labels["user"]: each.value for each in told["penstock_jetstream_up"].samples} == {"a": 1, "b": 0}


def test_old_figures_are_not_shown_as_if_they_were_of_now() -> None:
    hold = threading.Event()
    fake = Fake(look(0, stream("ORDERS")), hold)
    fake.seen = Seen(fake.made, time.time() - monitored.OLD - 1)  # type: ignore[arg-type] # it is a look
    streams = watched(fake)
    try:
        assert streams.shown() == []
        told = families(streams)
        assert told["penstock_jetstream_up"].samples[0].value == 0
        assert not told["jetstream_stream_total_messages"].samples
        fake.seen = replace(fake.seen, error="it is away")
        assert [(each["streams"], each["error"]) for each in streams.shown()] == [([], "it is away")]
    finally:
        hold.set()


def test_sums_of_some_streams_are_not_told_as_those_of_the_account() -> None:
    some = replace(look(0, stream("ORDERS")), is_whole=False, account={"streams": 7, "consumers": 9})
    told = families(watched(Fake(some)))
    assert told["jetstream_server_total_streams"].samples[0].value == 7
    assert told["jetstream_server_total_consumers"].samples[0].value == 9
    assert not told["jetstream_server_total_messages"].samples


def test_a_fault_of_ours_is_shown_and_does_not_freeze_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    watching = Watching(NatsOptions.parse("jetstream", {}))
    watching.seen = Seen(look(0, stream("ORDERS")), time.time())

    def fails() -> Look:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(watching, "_looked", fails)
    seen = watching.look()
    assert "Penstock failed: ZeroDivisionError: division by zero." in seen.error
    assert "ZeroDivisionError" in printed(seen, 80)


class Refusing:
    """Calls of a server that refuses some questions, and counts what it was asked."""

    prefix = "$JS.API"

    def __init__(self, *refused: str):
        self.refused, self.asked, self.connection = refused, [], self
        self.info: dict[str, Any] = {}

    def requests(self, asked: list[tuple[str, bytes]]) -> list[Any]:
        self.asked += [subject for subject, _ in asked]
        for subject, _ in asked:
            if subject in self.refused:
                raise Denied(f'127.0.0.1:9 refuses: Permissions Violation for Publish to "{subject}".')
        return [{"streams": [], "consumers": [], "total": 0} for _ in asked]

    def request(self, subject: str, body: bytes = b"") -> Any:
        return self.requests([(subject, body)])[0]

    def flush(self) -> None:
        pass

    def answer(self, reply: Any) -> Any:
        return reply


def test_what_was_refused_is_not_asked_again_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Refusing("$JS.API.STREAM.LIST")
    looker = Looker(calls)  # type: ignore[arg-type] # it answers as Calls do
    first = looker.look()
    asked = calls.asked.count("$JS.API.STREAM.LIST")
    again = [looker.look() for _ in range(5)][-1]
    assert calls.asked.count("$JS.API.STREAM.LIST") == asked
    assert calls.asked.count("$JS.API.INFO") == 6, "what is allowed is asked"
    assert again.problems == first.problems != ()
    assert not again.is_whole
    after = Looker(calls, refusals=looker.refusals)  # type: ignore[arg-type] # as after a lost connection
    after.look()
    assert calls.asked.count("$JS.API.STREAM.LIST") == asked
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + looking.AGAIN + 1)
    calls.refused = ()
    assert after.look().problems == ()


def test_a_refusal_of_another_subject_is_not_remembered() -> None:
    calls = Refusing("$JS.API.INFO")
    found = looking.Refusals()
    assert found.ask(calls, [("STREAM.LIST", None)]) != []  # type: ignore[arg-type] # it answers as Calls do
    calls.refused = ("$JS.API.STREAM.LIST",)
    found.ask(calls, [("STREAM.LIST", None), ("INFO", None)])  # type: ignore[arg-type] # likewise
    calls.asked.clear()
    answers = found.ask(calls, [("STREAM.LIST", None), ("INFO", None)])  # type: ignore[arg-type] # likewise
    assert calls.asked == ["$JS.API.INFO"]
    assert isinstance(answers[0], Denied)
    assert isinstance(answers[1], dict), "answers keep the order of their questions"


def pipeline(*ends: tuple[str, dict[str, str]]) -> Any:
    first, *rest = [SimpleNamespace(type=kind, options=options) for kind, options in ends]
    return SimpleNamespace(source=first, sinks=rest, dead_letters=None)


def test_a_run_looks_at_the_streams_that_its_pipelines_name() -> None:
    at = {"servers": "nats://a:4222", "user": "u"}
    named = [
        pipeline(("jetstream", {**at, "stream": "ORDERS, RETURNS"}), ("parquet", {})),
        pipeline(("jetstream", {**at, "Stream": "ORDERS", "requestTimeout": "3s"})),
    ]
    (found,) = _servers(named)
    assert found.names == ("ORDERS", "RETURNS")
    by_subject = pipeline(("jetstream", {**at, "stream": "ORDERS"}), ("jetstream", {**at, "subject": "out.{x}"}))
    (found,) = _servers([by_subject])
    assert found.names == (), "the sink's stream is not known: all are looked at"
    two = _servers([*named, pipeline(("jetstream", {**at, "user": "v", "streamPattern": "O.*"}))])
    assert [(each.options.user, each.names) for each in two] == [("u", ("ORDERS", "RETURNS")), ("v", ())]


def test_names_of_others_cannot_break_a_line_of_metrics() -> None:
    (sample,) = families(watched(Fake(look(0, stream(HOSTILE)))))["jetstream_stream_total_messages"].samples
    assert sample.labels["stream_name"] == HOSTILE


def test_whoever_asks_often_does_not_ask_the_server_often() -> None:
    fake = Fake(look(0, stream()))
    streams = watched(fake)
    for _ in range(20):
        families(streams)
        streams.shown()
    assert fake.looks == 1


def test_a_server_that_hangs_holds_up_nobody_for_long_and_one_that_was_away_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(monitored, "WAIT", 0.2)
    hold = threading.Event()
    streams = watched(Fake(look(0, stream()), hold))
    began = time.monotonic()
    assert streams.shown() == [], "nothing is known yet"
    assert families(streams)["penstock_jetstream_up"].samples[0].value == 0
    assert time.monotonic() - began < 1
    hold.set()
    monkeypatch.setattr(monitored, "WAIT", 5.0)
    away = watched(Fake("it is away"), every=0.0)
    away.watched[0].seen(5)
    away.watched[0].watching.hold = threading.Event()  # type: ignore[attr-defined] # it is a Fake
    began = time.monotonic()
    told = families(away)
    assert told["penstock_jetstream_up"].samples[0].value == 0
    assert not told["jetstream_stream_total_messages"].samples
    assert time.monotonic() - began < 2


def test_a_server_that_stays_away_is_asked_more_and_more_seldom() -> None:
    fake = Fake("it is away")
    patient = Patiently(fake, 0.01)
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        patient.seen()
        time.sleep(0.002)
    assert 3 <= fake.looks <= 8


@pytest.fixture
def api() -> Api:
    store = Store()
    streams = watched(Fake(look(0, stream(HOSTILE), consumer("stuck", num_pending=1, num_ack_pending=1000))))
    streams.watched[0].seen(5)
    return Api(store, None, Metrics(store, None, streams), Access("127.0.0.1", KEY), streams)


def test_the_page_gets_streams_and_consumers_as_json(api: Api) -> None:
    with TestClient(api.app(), base_url="http://localhost:1") as client:
        (server,) = client.get("/jetstream").json()
        assert server["place"] == "nats://127.0.0.1:9"
        assert server["streams"][0]["stream"] == HOSTILE
        assert server["consumers"][0]["harm"] == 2
        assert "/jetstream" in client.get("/openapi.json").json()["paths"]
        assert client.get("/jetstream.js").headers["content-type"].startswith("text/javascript")


def test_the_rules_of_who_may_ask_hold_for_streams_too(api: Api) -> None:
    with TestClient(api.app(), base_url="http://evil.example") as client:
        assert client.get("/jetstream").status_code == 421
    with TestClient(api.app(), base_url="http://localhost:1") as client:
        assert client.get("/jetstream", headers={"sec-fetch-site": "cross-site"}).status_code == 403
        assert client.post("/jetstream").status_code in (401, 403)
    api.access = Access("0.0.0.0", KEY)
    with TestClient(api.app(), base_url="http://host:1") as client:
        assert client.get("/jetstream").status_code == 401
        assert client.get("/jetstream", headers={"api-key": KEY}).status_code == 200


def test_a_program_without_servers_has_nothing_to_show() -> None:
    store = Store()
    api = Api(store, None, Metrics(store), Access("127.0.0.1", KEY))
    with TestClient(api.app(), base_url="http://localhost:1") as client:
        assert client.get("/jetstream").json() == []
        assert "jetstream_" not in client.get("/metrics").text


def test_a_server_of_core_nats_alone_is_left_out() -> None:
    streams = watched(Fake("JetStream not enabled for account. Start nats-server with -js."))
    streams.watched[0].seen(5)
    assert streams.shown() == []
    assert families(streams)["penstock_jetstream_up"].samples == []
