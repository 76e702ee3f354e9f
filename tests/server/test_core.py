"""Core NATS: what arrives while a query runs, what is dropped, and what a stream captures."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from jetstream_sources import Query, opened, until
from sink_writes import HEADERS, batch, bodies, count, stored

from nats_servers import Admin, server
from penstock.connectors.nats import CoreNats
from penstock.connectors.nats.source import SHARD, CoreSource
from penstock.errors import ConnectError, DataLossError, OptionError
from penstock.kit.contract import Origin, Receipt
from penstock.kit.retry import at_once
from penstock.planning.planner import Planner
from penstock.planning.positions import Position, Range
from penstock.testing.nats_server import NatsServer
from penstock.testing.proxy import Proxy


@contextmanager
def listening(url: str, **options: str) -> Iterator[CoreSource]:
    source: Any = CoreNats.open_source(CoreNats.parse({"servers": url, **options}))
    try:
        source.bounds()
        yield source
    finally:
        source.close()


def publish(url: str, rows: pa.RecordBatch, **options: str) -> Receipt:
    sink: Any = CoreNats.open_sink(CoreNats.parse_sink({"servers": url, **options}), rows.schema)
    try:
        receipt: Receipt = sink.write(iter([rows]), Origin("q", 0, 0))
        return receipt
    finally:
        sink.close()


def arrived(source: CoreSource, wanted: int) -> list[dict[str, Any]]:
    """What is held, once that many have come."""
    first = source.held.first
    until(lambda: source.bounds()[SHARD].next - first >= wanted)
    span = Range(SHARD, first, source.bounds()[SHARD].next)
    return [row for each in source.ship(span) for row in each.to_pylist()]


def test_what_is_published_after_the_start_arrives_with_all_its_parts(nats: NatsServer, stream: str) -> None:
    headers = pa.array([None, [{"key": "k", "value": b"v"}], None], HEADERS)
    rows = batch([b"a", b"", b"\r\nMSG x 1 0\r\n"], headers=headers, reply=pa.array(["r.1", None, "r.3"]))
    rows = rows.append_column("subject", pa.array([f"{stream}.a", f"{stream}.b.c", f"{stream}x"]))
    before = time.time()
    with listening(nats.url, subjects=f"{stream}.>,{stream}x") as source:
        assert publish(nats.url, rows) == Receipt(Origin("q", 0, 0), 3, 14)
        got = arrived(source, 3)
    assert [row["value"] for row in got] == [b"a", b"", b"\r\nMSG x 1 0\r\n"]
    assert [row["subject"] for row in got] == [f"{stream}.a", f"{stream}.b.c", f"{stream}x"]
    assert [row["reply"] for row in got] == ["r.1", None, "r.3"]
    assert [row["headers"] for row in got] == [None, [{"key": "k", "value": b"v"}], None]
    assert all(before <= row["timestamp"].timestamp() <= time.time() for row in got)


def test_every_message_from_the_confirmed_start_on_arrives(nats: NatsServer, stream: str) -> None:
    with listening(nats.url, subjects=f"{stream}.>") as source:
        publish(nats.url, batch(count(0, 50_000)), subject=f"{stream}.x")
        assert [row["value"] for row in arrived(source, 50_000)] == count(0, 50_000)


@pytest.mark.usefixtures("_at_once")
def test_an_address_where_nobody_answers_is_said_at_once() -> None:
    opened = CoreNats.open_source(CoreNats.parse({"servers": "nats://127.0.0.1:1", "subjects": "x"}))
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1"):
        at_once(opened.check)
    opened.close()


def test_members_of_a_queue_group_share_the_messages(nats: NatsServer, stream: str) -> None:
    with (
        listening(nats.url, subjects=stream, queue="workers") as one,
        listening(nats.url, subjects=stream, queue="workers") as other,
    ):
        publish(nats.url, batch(count(0, 2000)), subject=stream)
        start = [s.held.first for s in (one, other)]
        until(lambda: sum(s.held.next for s in (one, other)) - sum(start) == 2000)
        both = [row["value"] for s in (one, other) for row in arrived(s, 0)]
    assert sorted(both, key=int) == count(0, 2000)


def test_loading_takes_no_message_from_a_queue_group(nats: NatsServer, stream: str) -> None:
    with listening(nats.url, subjects=stream, queue="workers") as member:
        for at in range(0, 1000, 100):
            CoreNats({"servers": nats.url, "subjects": stream, "queue": "workers"}).schema()
            publish(nats.url, batch(count(at, at + 100)), subject=stream)
        assert [row["value"] for row in arrived(member, 1000)] == count(0, 1000)


def test_a_batch_is_served_again_until_it_is_committed(nats: NatsServer, stream: str) -> None:
    with listening(nats.url, subjects=stream) as source:
        publish(nats.url, batch(count(0, 100)), subject=stream)
        arrived(source, 100)
        first = source.held.first
        span = Range(SHARD, first + 10, first + 60)
        for _ in range(2):
            assert [v.as_py() for each in source.ship(span) for v in each["value"]] == count(10, 60)
        source.commit({SHARD: Position(first + 60)})
        assert source.bounds()[SHARD].first == first + 60
        assert source.ship(span) == []
        assert [row["value"] for row in arrived(source, 40)] == count(60, 100)


def test_a_later_run_begins_behind_an_earlier_one_and_says_what_is_gone(
    nats: NatsServer, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    with listening(nats.url, subjects=stream) as source:
        publish(nats.url, batch(count(0, 100)), subject=stream)
        arrived(source, 100)
        old = Range(SHARD, source.held.first, source.held.next)
    with listening(nats.url, subjects=stream) as source:
        assert source.bounds()[SHARD].first > old.end
        assert source.ship(old) == []
    assert "100 messages were not committed by an earlier run" in caplog.text


@pytest.mark.parametrize("frozen", [False, True])
def test_a_run_whose_clock_is_behind_is_no_loss(
    nats: NatsServer, stream: str, monkeypatch: pytest.MonkeyPatch, frozen: bool
) -> None:
    with listening(nats.url, subjects=stream) as source:
        plan: Any = Planner(source, source.options, "latest")
        start = plan.next(plan.initial(), None)
        publish(nats.url, batch(count(0, 100)), subject=stream)
        arrived(source, 100)
        plan.look(now=True)
        at = plan.next(start, None)
        assert at["next"][SHARD] == source.held.next
    now = time.time_ns()
    monkeypatch.setattr("penstock.kit.buffer.time.time_ns", lambda: now - 5 * 10**9)
    with listening(nats.url, subjects=stream) as source:
        plan = Planner(source, source.options, "latest")
        if frozen:
            plan.freeze()
        publish(nats.url, batch(count(100, 110)), subject=stream)
        arrived(source, 10)
        end = plan.next(at, None)
        if not frozen:
            rows = [
                v for task in plan.tasks(at, end) for span in task for each in source.ship(span) for v in each["value"]
            ]
            assert [value.as_py() for value in rows] == count(100, 110)


def test_a_thread_that_dies_of_any_error_ends_the_query(
    nats: NatsServer, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening(nats.url, subjects=stream) as source:
        monkeypatch.setattr("penstock.connectors.nats.source.text", lambda _: 1 / 0)
        publish(nats.url, batch([b"a"]), subject=stream)
        with pytest.raises(ZeroDivisionError):
            until(lambda: not source.bounds())


def test_what_does_not_fit_is_dropped_counted_and_said_once(
    nats: NatsServer, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    with listening(nats.url, subjects=stream, maxBufferBytes="20kb") as source:
        first = source.held.first
        for _ in range(5):
            publish(nats.url, batch([b"x" * 1000] * 100), subject=stream)
        until(lambda: source.held.next - first == 500)
        held = sum(map(len, source.held.waiting()))
        assert source.held.dropped == 500 - held > 300
        assert source.bounds()[SHARD].next - first == 500, "they count in the lag"
        source.commit({SHARD: Position(source.held.next)})
        publish(nats.url, batch([b"y"]), subject=stream)
        until(lambda: source.held.waiting())
    assert caplog.text.count("messages are dropped") == 1


def test_a_lost_connection_is_made_again(nats: NatsServer, stream: str, caplog: pytest.LogCaptureFixture) -> None:
    with Proxy(nats.port) as proxy, listening(proxy.url, subjects=stream) as source:
        publish(nats.url, batch([b"before"]), subject=stream)
        arrived(source, 1)
        proxy.cut()
        until(lambda: proxy.connections == 2)

        def comes() -> bool:
            publish(nats.url, batch([b"after"]), subject=stream)
            return any(row["value"] == b"after" for row in arrived(source, 1))

        until(comes)
    assert "what is published until then is not received" in caplog.text


def test_a_subject_that_may_not_be_read_or_written_is_said(folder: Path) -> None:
    may = 'permissions: { publish: ["ok.>"], subscribe: ["ok.>", "_INBOX.>"] }'
    config = f"authorization {{ users: [ {{ user: u, password: p, {may} }} ] }}"
    with NatsServer(folder, config=config) as running:
        who = {"user": "u", "password": "p"}
        with (
            pytest.raises(ConnectError, match=r'Permissions Violation for Subscription to "no\.x"'),
            listening(running.url, subjects="no.x", **who),
        ):
            pass
        with pytest.raises(ConnectError, match=r'Permissions Violation for Publish to "no\.x"'):
            publish(running.url, batch([b"a"]), subject="no.x", **who)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "nats needs the option 'subjects'"),
        ({"subjects": ""}, "option 'subjects' must name at least one subject"),
        ({"subjects": "a.*,a.b"}, "which overlap: messages would be read twice"),
        ({"subjects": "a..b"}, "has 'a..b', which has an empty token"),
        ({"subjects": "a", "startingOffsets": "earliest"}, "'startingOffsets' needs capture=true"),
        ({"subjects": "a", "captureStream": "S"}, "Set capture=true, or leave 'captureStream' out"),
        ({"subjects": "a", "captureMaxAge": "1h"}, "'captureMaxAge' is about the stream that capture=true makes"),
        ({"subjects": "a", "captureStorage": "file", "capture": "false"}, "leave 'captureStorage' out"),
        ({"subjects": "a", "capture": "true", "queue": "q"}, "set 'queue' or 'capture', not both"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        CoreNats.parse(options)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"subject": pa.array(["a b"])}, r"row 0 of partition 0 of batch 0 has the subject 'a b', which has a space"),
        ({"subject": pa.array(["a"]), "reply": pa.array(["*"])}, "row 0 .* which has a wildcard"),
        ({"subject": pa.array(["a"]), "id": pa.array(["1"])}, "nats cannot write the column 'id'"),
    ],
)
def test_rows_that_cannot_be_sent_are_refused(nats: NatsServer, columns: dict[str, pa.Array], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        publish(nats.url, batch([b"a"], **columns))


def captured(url: str, **options: str) -> Any:
    parsed = CoreNats.parse({"servers": url, "capture": "true", **options})
    source: Any = CoreNats.open_source(parsed)
    source.columns = CoreNats.columns(parsed)
    return source


def test_captured_messages_can_be_read_again(admin: Admin, nats: NatsServer, stream: str) -> None:
    options = {"subjects": f"{stream}.>", "captureStream": stream, "captureMaxAge": "10m", "captureStorage": "memory"}
    source = captured(nats.url, **options)
    source.bounds()
    source.close()
    config = admin.calls.call(f"STREAM.INFO.{stream}")["config"]
    assert (config["subjects"], config["max_age"], config["storage"]) == ([f"{stream}.>"], 600_000_000_000, "memory")
    publish(nats.url, batch(count(0, 100)), subject=f"{stream}.x")
    for _ in range(2):
        source = captured(nats.url, **options)
        bound = source.bounds()[stream]
        rows = [r for b in source.read(Range(stream, bound.first, bound.next, bound.epoch)) for r in b.to_pylist()]
        source.close()
        assert [row["value"] for row in rows] == count(0, 100)
    assert CoreNats.columns(CoreNats.parse({"subjects": "a", "capture": "true"})).names[3:5] == ["stream", "sequence"]


def test_a_task_asks_nobody_for_the_stream_of_its_range(admin: Admin, nats: NatsServer, stream: str) -> None:
    """Nor does opening a source: only the driver's questions find or make the stream."""
    source = captured("nats://127.0.0.1:1", subjects=f"{stream}.>", captureStream=stream)
    source.close()
    admin.create(stream)
    admin.numbers(stream, 10)
    info = admin.calls.stream(stream)
    source = captured(nats.url, subjects=f"{stream}.>", captureStream=f"{stream}Other")
    rows = [row for each in source.read(Range(stream, 1, 11, info.created)) for row in each.to_pylist()]
    source.close()
    assert [row["value"] for row in rows] == count(0, 10)
    assert source._source.options.stream == (stream,)


def test_a_stream_that_takes_the_subjects_is_used(admin: Admin, nats: NatsServer, stream: str) -> None:
    admin.create(stream)
    source = captured(nats.url, subjects=f"{stream}.a.>,{stream}.b")
    assert list(source.bounds()) == [stream]
    source.close()
    admin.create(f"{stream}P", f"{stream}P.a")
    with pytest.raises(OptionError, match=rf"stream '{stream}P' takes a part of '{stream}P\.>'"):
        captured(nats.url, subjects=f"{stream}P.>").bounds()


def test_what_was_captured_is_read_on_by_a_stream_that_takes_other_subjects_now(
    admin: Admin, nats: NatsServer, stream: str
) -> None:
    options = {"subjects": f"{stream}.>", "captureStream": f"{stream}New"}
    admin.create(stream)
    admin.numbers(stream, 10)
    source = captured(nats.url, **options, startingOffsets="earliest")
    query = Query(source)
    query.batch(4)
    source.close()
    admin.calls.call(
        f"STREAM.UPDATE.{stream}", admin.calls.call(f"STREAM.INFO.{stream}")["config"] | {"subjects": ["x"]}
    )
    source = captured(nats.url, **options)
    query = Query(source, at=query.at)
    query.step()
    admin.numbers(f"{stream}New", 2, start=10, subject=f"{stream}.n")
    read = [int(value.as_py()) for rows in query.run() for value in rows["value"]]
    source.close()
    assert sorted(read) == list(range(4, 12))


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("takes", ["{s}.a.>", "{s}else"])
def test_a_stream_that_is_edited_to_take_less_under_a_query_is_loss(
    admin: Admin, nats: NatsServer, stream: str, takes: str, fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    takes = takes.format(s=stream)
    options = {"subjects": f"{stream}.>", "failOnDataLoss": fails, "captureStream": f"{stream}New"}
    admin.create(stream)
    source = captured(nats.url, **options)
    query = Query(source)
    config = admin.calls.call(f"STREAM.INFO.{stream}")["config"]
    admin.calls.call(f"STREAM.UPDATE.{stream}", config | {"subjects": [takes]})
    remedy = "Give the stream its subjects back" if ".a" in takes else "Start the query again, and it finds or makes"
    words = rf"no stream keeps all of '{stream}.>' any more: '{stream}' takes {takes}. Messages .* lost. {remedy}"
    if fails == "true":
        with pytest.raises(DataLossError, match=words):
            query.step()
    else:
        for _ in range(2):
            query.step()
        assert caplog.text.count("going on: no stream keeps all") == 1
    source.close()
    if ".a" in takes:
        admin.calls.call(f"STREAM.UPDATE.{stream}", config)
    source = captured(nats.url, **options)
    query = Query(source, at=query.at)
    assert set(query.step()["next"]) == ({stream} if ".a" in takes else {stream, f"{stream}New"})
    source.close()


@pytest.mark.parametrize("edit", [{"sealed": True}, {"subject_transform": {"src": "{s}.>", "dest": "else.{s}.>"}}])
def test_a_capture_stream_that_takes_nothing_any_more_is_loss(
    admin: Admin, nats: NatsServer, stream: str, edit: dict[str, Any]
) -> None:
    if "subject_transform" in edit:
        edit = {"subject_transform": {k: v.format(s=stream) for k, v in edit["subject_transform"].items()}}
    admin.create(stream)
    source = captured(nats.url, subjects=f"{stream}.>")
    query = Query(source)
    config = admin.calls.call(f"STREAM.INFO.{stream}")["config"]
    admin.calls.call(f"STREAM.UPDATE.{stream}", config | edit)
    with pytest.raises(DataLossError, match=rf"'{stream}' takes nothing as it is published \(sealed"):
        query.step()
    source.close()


def test_a_capture_stream_that_is_gone_is_told_as_that(admin: Admin, nats: NatsServer, stream: str) -> None:
    admin.create(stream)
    source = captured(nats.url, subjects=f"{stream}.>")
    query = Query(source)
    admin.delete(stream)
    with pytest.raises(DataLossError, match=f"stream '{stream}' is gone"):
        query.step()
    source.close()


def test_a_subject_over_the_control_line_is_refused_at_once(nats: NatsServer, stream: str) -> None:
    rows = batch([b"a", b"b"], subject=pa.array([f"{stream}.x", "x" * 5000]))
    with pytest.raises(OptionError, match=r"row 1 of partition 0 of batch 0 has a subject of 5,000 bytes"):
        publish(nats.url, rows)


def test_a_server_that_is_away_when_rows_are_sent_is_waited_for(folder: Path) -> None:
    with server(folder) as (running, admin):
        admin.create("S")
        publish(running.url, batch([b"0"], subject=pa.array(["S.x"])))
        running.kill()
        back = threading.Timer(1, running.start)
        back.start()
        try:
            publish(running.url, batch([b"1"], subject=pa.array(["S.x"])))
        finally:
            back.join()
        with closing(Admin(running.url)) as again:
            assert bodies(again, "S") == [b"0", b"1"]


def test_headers_that_command_are_left_out_unless_an_option_says_so(
    admin: Admin, nats: NatsServer, stream: str
) -> None:
    admin.create(stream, allow_rollup_hdrs=True)
    admin.numbers(stream, 5)
    headers = pa.array([[{"key": "Nats-Rollup", "value": b"all"}, {"key": "Own", "value": b"1"}]], HEADERS)
    rows = batch([b"a"], headers=headers)
    publish(nats.url, rows, subject=f"{stream}.x")
    assert len(bodies(admin, stream)) == 6
    publish(nats.url, rows, subject=f"{stream}.x", commandHeaders="true")
    assert stored(admin, stream) == [(f"{stream}.x", b"a", {"Nats-Rollup": b"all", "Own": b"1"})]


def test_a_subject_that_the_account_maps_is_read_by_what_it_is_mapped_to(folder: Path) -> None:
    """The server maps before it delivers or stores: nobody who listens or captures ever sees the subject of before."""
    mapping = 'mappings: { "in.*": "out.{{wildcard(1)}}" }'
    users = "users: [ { user: u, password: p } ]"
    config = f"""
    jetstream {{ store_dir: "{folder / "data"}" }}
    accounts {{ A {{ jetstream: enabled, {mapping}, {users} }} }}"""
    who = {"user": "u", "password": "p"}
    with NatsServer(folder, config=config) as running:
        kept = captured(running.url, subjects="out.>", **who)
        kept.bounds()
        with (
            listening(running.url, subjects="out.>", **who) as mapped,
            listening(running.url, subjects="in.>", **who) as never,
        ):
            publish(running.url, batch(count(0, 5)), subject="in.7", **who)
            assert {row["subject"] for row in arrived(mapped, 5)} == {"out.7"}
            assert never.held.next == never.held.first
        bound = kept.bounds()["PENSTOCK_CAPTURE"]
        rows = [row for b in kept.read(Range("PENSTOCK_CAPTURE", 1, bound.next, bound.epoch)) for row in b.to_pylist()]
        assert [row["subject"] for row in rows] == ["out.7"] * 5
        kept.close()
        with (
            opened(running.url, stream="PENSTOCK_CAPTURE", subjects="in.>", **who) as source,
            pytest.raises(OptionError, match=r"no message can match 'in\.>': the stream takes out\.>"),
        ):
            source.check()


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_a_stream_that_releases_messages_is_not_taken_for_capture(
    admin: Admin, nats: NatsServer, stream: str, retention: str
) -> None:
    admin.create(stream, retention=retention)
    source = captured(nats.url, subjects=f"{stream}.>")
    with pytest.raises(OptionError, match=f"stream '{stream}' takes '{stream}.>' and has {retention} retention"):
        source.check()
    source.close()
