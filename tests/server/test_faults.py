"""Whatever breaks while a range is read: every row comes exactly once, or an error says where it stopped."""

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jetstream_sources import consumers, numbers, once, opened, sequences, table, until, whole

from nats_servers import Admin, server
from penstock.clients.jetstream import api, engines
from penstock.clients.jetstream.calls import ApiError
from penstock.errors import ConnectError, OptionError
from penstock.planning.planner import Planner
from penstock.planning.positions import Range
from penstock.testing.nats_server import NatsServer
from penstock.testing.proxy import Proxy

ENGINES = ("consumer", "direct")
COUNT = 4000
FILLER = random.Random(5).randbytes(40) + b"\r\nMSG S.a 2 $JS.ACK.S.x.1.1.1.1.0 3\r\nabc\r\n" + b"x" * 200


@pytest.fixture(scope="module")
def filled(nats: NatsServer) -> str:
    """A stream of 4,000 messages of 300 bytes on the shared server, some of them with headers."""
    admin = Admin(nats.url)
    admin.create("FAULTS")
    admin.publish(("FAULTS.n", b"%d " % i + FILLER, {"Number": str(i)} if i % 5 == 0 else {}) for i in range(COUNT))
    admin.close()
    return "FAULTS"


def ids(rows: Any) -> list[int]:
    return [int(value.partition(b" ")[0]) for value in rows["value"].to_pylist()]


def small_pulls(monkeypatch: pytest.MonkeyPatch, messages: int = 500) -> None:
    """Let a range take many requests, so that most of it is still in the server when something breaks."""
    monkeypatch.setattr(engines, "PULL", messages)
    monkeypatch.setattr(engines, "DIRECT", messages)


CUTS = {
    "while greeting": [40],
    "while connecting": [700],
    "before the first message": [3_000],
    "early": [20_000],
    "several times": [100_000, 70_001, 250_007, 33_333],
    "in every place": [5_000 + 14_983 * k for k in range(12)],
    "at the end": [1_195_000],
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("where", CUTS)
def test_a_connection_that_is_cut_costs_no_row_and_doubles_none(
    nats: NatsServer, filled: str, where: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.kit.retry.LONGEST_WAIT", 0.001)
    small_pulls(monkeypatch)
    with opened(nats.url, stream=filled) as source:
        span = whole(source, filled)
    with Proxy(nats.port, [("cut", at) for at in CUTS[where]]) as proxy:
        with opened(proxy.url, stream=filled, readEngine=engine) as source:
            rows = table(source, span)
        assert ids(rows) == list(range(COUNT))
        assert proxy.plan == []
        assert proxy.connections == len(CUTS[where]) + 1


@pytest.mark.parametrize("engine", ENGINES)
def test_cuts_at_any_byte_of_a_frame_cost_no_row(
    nats: NatsServer, filled: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty cuts, each a few bytes further into a frame than the one before."""
    monkeypatch.setattr("penstock.kit.retry.LONGEST_WAIT", 0.001)
    small_pulls(monkeypatch, 40)
    with opened(nats.url, stream=filled) as source:
        epoch = whole(source, filled).epoch
    with Proxy(nats.port, [("cut", 25_000 + 11 * k) for k in range(30)]) as proxy:
        with opened(proxy.url, stream=filled, readEngine=engine) as source:
            rows = table(source, Range(filled, 1, COUNT + 1, epoch))
        assert ids(rows) == list(range(COUNT))
        assert proxy.plan == []


@pytest.mark.parametrize("engine", ENGINES)
def test_what_arrived_before_a_cut_is_not_asked_for_again(
    nats: NatsServer, filled: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that lets only 150 kB pass per connection still lets the whole range pass."""
    monkeypatch.setattr("penstock.kit.retry.LONGEST_WAIT", 0.001)
    with opened(nats.url, stream=filled) as source:
        span = whole(source, filled)
    with Proxy(nats.port, [("cut", 150_000)] * 40) as proxy:
        with opened(proxy.url, stream=filled, readEngine=engine) as source:
            assert ids(table(source, span)) == list(range(COUNT))
        assert proxy.connections < 20


@pytest.mark.parametrize("engine", ENGINES)
def test_a_connection_that_hangs_is_given_up_and_costs_no_row(
    nats: NatsServer, filled: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pulls(monkeypatch)
    with opened(nats.url, stream=filled) as source:
        span = whole(source, filled)
    with Proxy(nats.port, [("stall", 300_000), ("stall", 200_000)]) as proxy:
        with opened(proxy.url, stream=filled, readEngine=engine, requestTimeout="500ms") as source:
            assert ids(table(source, span)) == list(range(COUNT))
        assert proxy.connections == 3


@pytest.mark.parametrize("engine", ENGINES)
def test_a_slow_network_costs_no_row(nats: NatsServer, filled: str, engine: str) -> None:
    with Proxy(nats.port, delay=0.01) as proxy, opened(proxy.url, stream=filled, readEngine=engine) as source:
        assert ids(table(source, whole(source, filled))) == list(range(COUNT))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_server_that_does_not_come_back_is_an_error_that_says_where_it_stopped(
    nats: NatsServer, filled: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pulls(monkeypatch)
    with (
        Proxy(nats.port) as proxy,
        opened(proxy.url, stream=filled, readEngine=engine, connectTimeout="1s", reconnectTimeout="3s") as source,
    ):
        reading = source.read(whole(source, filled))
        read = ids(next(reading))
        proxy.refuse()
        began = time.monotonic()
        with pytest.raises(ConnectError) as caught:
            read.extend(number for rows in reading for number in ids(rows))
        assert 3 <= time.monotonic() - began < 10
    assert read == list(range(len(read)))
    assert f"reading stream '{filled}' at {len(read) + 1} of [1, {COUNT + 1}) failed" in str(caught.value)
    assert f"127.0.0.1:{proxy.port}: Connection refused" in str(caught.value)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.filterwarnings("error")
def test_a_reader_that_stops_after_the_connection_was_lost_ends_in_silence(
    nats: NatsServer, filled: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pulls(monkeypatch)
    with Proxy(nats.port) as proxy, opened(proxy.url, stream=filled, readEngine=engine) as source:
        reading = source.read(whole(source, filled))
        next(reading)
        connection = source._open().connection
        proxy.refuse()
        until(lambda: not connection.alive())
        reading.close()


def test_an_idle_connection_that_was_cut_is_not_used_again(nats: NatsServer, filled: str) -> None:
    with Proxy(nats.port) as proxy:
        for cut, connections in ((False, 1), (True, 1), (False, 2)):
            with opened(proxy.url, stream=filled) as source:
                assert ids(table(source, Range(filled, 1, 11))) == list(range(10))
            assert proxy.connections == connections
            if cut:
                proxy.cut()


def test_the_driver_asks_again_over_a_new_connection(nats: NatsServer, filled: str) -> None:
    with Proxy(nats.port) as proxy, opened(proxy.url, stream=filled, subjects=f"{filled}.n") as source:
        plan = Planner(source, source.options, "earliest")
        bound = plan.look(now=True)[filled]
        asked: list[Callable[[], object]] = [
            lambda: plan.look(now=True),
            lambda: plan.find(filled, 0),
            lambda: plan._counts(filled, [1, 1000]),
        ]
        for ask in asked:
            before = ask()
            proxy.cut()
            assert ask() == before
        assert proxy.connections == 4
        assert bound.next == COUNT + 1


def test_a_server_that_is_dead_at_the_start_is_an_error_in_time(nats: NatsServer) -> None:
    with Proxy(nats.port, [("stall", 0)]) as proxy, opened(proxy.url, stream="S", connectTimeout="500ms") as source:
        began = time.monotonic()
        with pytest.raises(
            ConnectError, match=rf"no NATS server answers \(127\.0\.0\.1:{proxy.port}: no answer in time"
        ):
            source.bounds()
        assert time.monotonic() - began < 2


# --- the server itself ---


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("ending", ["kill", "stop"])
def test_a_server_that_is_restarted_in_the_middle_of_a_range_costs_no_row(
    folder: Path, engine: str, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pulls(monkeypatch, 300)
    with server(folder) as (running, admin):
        admin.create("S")
        admin.publish(("S.n", b"%d " % i + FILLER) for i in range(COUNT))
        with opened(running.url, stream="S", readEngine=engine, connectTimeout="2s") as source:
            reading = source.read(whole(source, "S"))
            read = ids(next(reading))
            for _ in range(2):
                getattr(running, ending)()
                back = threading.Thread(target=running.start)  # comes back while the reader is trying
                back.start()
                read += ids(next(reading))
                back.join(20)
            for rows in reading:
                read += ids(rows)
        assert read == list(range(COUNT))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_task_waits_for_a_server_that_is_away_for_longer_than_a_moment(
    folder: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`reconnectTimeout` is for tasks, too."""
    small_pulls(monkeypatch, 300)
    with server(folder) as (running, admin):
        admin.create("S")
        admin.publish(("S.n", b"%d " % i + FILLER) for i in range(COUNT))
        with opened(running.url, stream="S", readEngine=engine, reconnectTimeout="30s") as source:
            reading = source.read(whole(source, "S"))
            read = ids(next(reading))
            running.stop()
            back = threading.Timer(5, running.start)
            back.start()
            try:
                for rows in reading:
                    read += ids(rows)
            finally:
                back.join(20)
        assert read == list(range(COUNT))


def test_the_driver_waits_for_a_server_that_is_away_for_longer_than_a_moment(folder: Path) -> None:
    with server(folder) as (running, admin):
        admin.create("S")
        with opened(running.url, stream="S", connectTimeout="2s", reconnectTimeout="30s") as source:
            plan = Planner(source, source.options, "earliest")
            plan.look(now=True)
            running.stop()
            back = threading.Timer(4, running.start)
            back.start()
            try:
                assert list(plan.look(now=True)) == ["S"]
            finally:
                back.join(20)
        with opened(running.url, stream="S", connectTimeout="1s", reconnectTimeout="1s") as source:
            plan = Planner(source, source.options, "earliest")
            plan.look(now=True)
            running.stop()
            began = time.monotonic()
            with pytest.raises(ConnectError, match="no NATS server answers"):
                plan.look(now=True)
            assert 1 < time.monotonic() - began < 8


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NatsServer, Admin]]:
    """A server that cuts a client off which does not take its data for half a second. S has 40 MB."""
    folder = tmp_path_factory.mktemp("impatient")
    config = f'jetstream {{ store_dir: "{folder / "data"}" }}\nwrite_deadline: "500ms"\n'
    with server(folder, config=config) as (running, admin):
        admin.create("S")
        admin.publish(("S.n", b"%d " % i + bytes(4000)) for i in range(10_000))
        yield running, admin


@pytest.mark.parametrize("engine", ENGINES)
def test_a_reader_that_was_cut_off_for_being_slow_goes_on(
    impatient: tuple[NatsServer, Admin], engine: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engines, "PULL_BYTES", 30 << 20)
    monkeypatch.setattr(engines, "DIRECT_BYTES", 30 << 20)
    running, _ = impatient
    log = running.folder / "server.log"
    seen = log.read_text().count("Slow Consumer")
    with opened(running.url, stream="S", readEngine=engine) as source:
        reading = source.read(whole(source, "S"))
        read = ids(next(reading))
        until(lambda: log.read_text().count("Slow Consumer") > seen)
        for rows in reading:
            read += ids(rows)
    assert read == list(range(10_000))
    assert "is tried again" in caplog.text


def test_a_consumer_that_is_deleted_in_the_middle_of_a_range_costs_no_row(
    admin: Admin, nats: NatsServer, filled: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    small_pulls(monkeypatch, 200)
    with opened(nats.url, stream=filled, readEngine="consumer") as source:
        reading = source.read(whole(source, filled))
        read = ids(next(reading))
        for _ in range(3):
            for name in admin.calls.call(f"CONSUMER.NAMES.{filled}")["consumers"]:
                with contextlib.suppress(ApiError):  # one of an earlier test that is just going
                    admin.calls.call(f"CONSUMER.DELETE.{filled}.{name}")
            read += ids(next(reading))
        for rows in reading:
            read += ids(rows)
    assert read == list(range(COUNT))
    assert "is tried again" in caplog.text
    until(lambda: consumers(admin, filled) == 0)


# --- limits ---


@pytest.fixture
def full(admin: Admin, stream: str) -> str:
    """A stream of 1,000 messages that may have one consumer, and has it."""
    admin.create(stream, max_consumers=1)
    admin.publish((f"{stream}.{'ab'[i % 2]}", str(i).encode()) for i in range(1000))
    body = {"durable_name": "taken", "ack_policy": "explicit"}
    admin.calls.call(f"CONSUMER.CREATE.{stream}.taken", {"stream_name": stream, "config": body})
    return stream


def test_auto_reads_with_direct_get_where_the_stream_has_no_consumer_left(nats: NatsServer, full: str) -> None:
    with opened(nats.url, stream=full) as source:
        assert numbers(table(source, whole(source, full))) == list(range(1000))
    with opened(nats.url, stream=full, subjects=f"{full}.a", minPartitions=4) as source:
        assert numbers(table(source, *(span for task in once(source) for span in task))) == list(range(0, 1000, 2))


def test_a_stream_with_no_consumer_left_says_what_can_be_done(admin: Admin, nats: NatsServer, full: str) -> None:
    with (
        opened(nats.url, stream=full, readEngine="consumer") as source,
        pytest.raises(ConnectError, match=r"(?i)maximum consumers.*error 10026"),
    ):
        table(source, whole(source, full))
    config = admin.calls.call(f"STREAM.INFO.{full}")["config"] | {"allow_direct": False}
    admin.calls.call(f"STREAM.UPDATE.{full}", config)
    with (
        opened(nats.url, stream=full) as source,
        pytest.raises(ConnectError, match=rf"'{full}' has no consumer left.* nats stream edit {full} --allow-direct"),
    ):
        table(source, whole(source, full))


def test_a_batch_is_planned_where_the_stream_has_few_consumers_left(
    admin: Admin, nats: NatsServer, stream: str
) -> None:
    """Counting makes a consumer for each position: with room for three, the tasks need not be even, but must be."""
    admin.create(stream, max_consumers=3)
    admin.publish((f"{stream}.{'ab'[i % 2]}", str(i).encode()) for i in range(1000))
    with opened(nats.url, stream=stream, subjects=f"{stream}.a", minPartitions=8) as source:
        tasks = once(source)
        assert len(tasks) == 8
        assert numbers(table(source, *(span for task in tasks for span in task))) == list(range(0, 1000, 2))
    assert consumers(admin, stream) == 0, "the consumers made for counting are gone"


def test_a_batch_is_counted_with_consumers_where_direct_get_is_not_permitted(folder: Path) -> None:
    config = f"""
    jetstream {{ store_dir: "{folder / "data"}" }}
    accounts {{ A {{ jetstream: enabled, users: [
      {{ user: admin, password: a }},
      {{ user: reader, password: r, permissions: {{ publish: {{ deny: "$JS.API.DIRECT.>" }} }} }} ] }} }}"""
    with NatsServer(folder, config=config) as running:
        admin = Admin(running.url, user="admin", password="a")
        admin.create("S")
        admin.publish((f"S.{'ab'[i % 2]}", str(i).encode()) for i in range(1000))
        options = {"user": "reader", "password": "r", "subjects": "S.a", "minPartitions": 4}
        with opened(running.url, stream="S", **options) as source:
            plan = Planner(source, source.options, "earliest")
            end = plan.next(plan.next(plan.initial(), None), 100)
            assert end["next"]["S"] in (200, 201)
            assert len(end["cuts"]["S"]) == 3
        admin.close()


@pytest.mark.parametrize("idle", [1, 5])
def test_a_stream_that_limits_how_long_consumers_live_is_read(
    admin: Admin, nats: NatsServer, stream: str, idle: int
) -> None:
    admin.create(stream, consumer_limits={"inactive_threshold": idle * 10**9})
    admin.publish((f"{stream}.{'ab'[i % 2]}", str(i).encode()) for i in range(1000))
    for options in ({}, {"allow_direct": False}):
        if options:
            admin.calls.call(
                f"STREAM.UPDATE.{stream}", admin.calls.call(f"STREAM.INFO.{stream}")["config"] | {"allow_direct": False}
            )
        for engine in ("auto", "consumer"):
            with opened(nats.url, stream=stream, readEngine=engine, subjects=f"{stream}.a", minPartitions=4) as source:
                tasks = once(source)
                assert numbers(table(source, *(span for task in tasks for span in task))) == list(range(0, 1000, 2))


def test_an_interest_stream_that_would_delete_the_progress_consumer_is_refused(
    admin: Admin, nats: NatsServer, stream: str
) -> None:
    admin.create(stream, retention="interest", consumer_limits={"inactive_threshold": 5 * 10**9})
    with (
        opened(nats.url, stream=stream, progressConsumer="spark") as source,
        pytest.raises(OptionError, match=r"deletes consumers that nobody pulls from for 5s.*read a mirror of it"),
    ):
        Planner(source, source.options, "latest").next({"next": {stream: 1}, "epochs": {}, "version": 1}, None)


def test_a_server_that_limits_pulls_is_read(folder: Path) -> None:
    config = f'jetstream {{ store_dir: "{folder / "data"}", limits {{ max_request_batch: 50 }} }}'
    with server(folder, config=config) as (running, admin):
        admin.create("S")
        admin.numbers("S", 2000)
        for engine in ("auto", *ENGINES):
            with opened(running.url, stream="S", readEngine=engine) as source:
                assert numbers(table(source, whole(source, "S"))) == list(range(2000))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_connection_gathers_no_subscriptions(folder: Path, engine: str, caplog: pytest.LogCaptureFixture) -> None:
    config = f'jetstream {{ store_dir: "{folder / "data"}" }}\nmax_subscriptions: 3\n'
    with server(folder, config=config) as (running, admin):
        admin.create("S")
        admin.numbers("S", 10)
        for _ in range(5):
            with opened(running.url, stream="S", readEngine=engine) as source:
                assert numbers(table(source, Range("S", 1, 6), Range("S", 6, 11))) == list(range(10))
                reading = source.read(Range("S", 1, 6))
                next(reading)
                reading.close()
    assert caplog.text == "", "the server had nothing to object to"


@pytest.mark.parametrize("engine", ENGINES)
def test_messages_larger_than_the_server_now_allows_are_read(
    folder: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were stored when max_payload was larger; a pull has a limit of bytes, and must not go on for ever."""
    pulls, pull = itertools.count(1), api.pull

    def counted(batch: int, max_bytes: int) -> bytes:
        assert next(pulls) < 100, "it pulls for ever"
        return pull(batch, max_bytes)

    monkeypatch.setattr(api, "pull", counted)
    config = f'jetstream {{ store_dir: "{folder / "data"}" }}\nmax_payload: '
    with server(folder, config=config + "20MB") as (_, admin):
        admin.create("S")
        admin.publish([("S.n", b"small"), ("S.n", bytes(15 << 20)), ("S.n", b"small")])
    with (
        server(folder, config=config + "1MB") as (running, admin),
        opened(running.url, stream="S", readEngine=engine, requestTimeout="5s") as source,
    ):
        assert sequences(table(source, whole(source, "S"))) == [1, 2, 3]


@pytest.mark.parametrize("engine", ENGINES)
def test_messages_larger_than_one_request_are_read(folder: Path, engine: str) -> None:
    with server(folder, config=f'jetstream {{ store_dir: "{folder / "data"}" }}\nmax_payload: 16MB') as (
        running,
        admin,
    ):
        admin.create("S")
        sizes = [10, 6 << 20, 15 << 20, 10, 9 << 20]
        admin.publish(("S.n", bytes(size)) for size in sizes)
        with opened(running.url, stream="S", readEngine=engine) as source:
            rows = table(source, whole(source, "S"))
        assert [len(value) for value in rows["value"].to_pylist()] == sizes


def test_two_readers_of_one_process_do_not_disturb_each_other(nats: NatsServer, filled: str) -> None:
    """Interleaved on one connection, as when Spark joins a stream with itself in one task."""
    with opened(nats.url, stream=filled, readEngine="consumer") as one, opened(nats.url, stream=filled) as two:
        left, right = one.read(whole(one, filled)), two.read(whole(two, filled))
        read: dict[int, list[int]] = {0: [], 1: []}
        live = {0: left, 1: right}
        while live:
            for which, reading in list(live.items()):
                rows = next(reading, None)
                if rows is None:
                    del live[which]
                else:
                    read[which] += ids(rows)
    assert read[0] == read[1] == list(range(COUNT))
