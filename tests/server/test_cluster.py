"""Three servers: a leader that steps down, a server that dies, and a replica that has not heard the latest."""

import contextlib
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from jetstream_sources import Query, numbers, opened, sequences, table, until, whole

from nats_servers import Admin
from penstock.clients.jetstream import engines
from penstock.clients.jetstream.calls import Calls, Stored
from penstock.errors import ConnectError, DataLossError, PenstockError
from penstock.planning.positions import Range
from penstock.testing.nats_cluster import NatsCluster
from penstock.testing.nats_server import NatsServer

ENGINES = ("consumer", "direct")
COUNT = 3000
# A new leader is elected after four to nine seconds; a reader makes five attempts.
SHORT_TIMEOUTS = {"requestTimeout": "3s", "connectTimeout": "1s"}
FILLER = random.Random(6).randbytes(200)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    """Three servers, and on all of them the stream S of 3,000 messages and T of 100."""
    with NatsCluster(tmp_path_factory.mktemp("cluster")) as made:
        until(lambda: asked(made, lambda admin: admin.create("S", num_replicas=3)), 30)
        with contextlib.closing(Admin(made.url)) as admin:
            admin.create("T", num_replicas=3)
            admin.publish(("S.n", b"%d " % i + FILLER) for i in range(COUNT))
            admin.numbers("T", 100)
        yield made


def asked(cluster: NatsCluster, what: Any) -> Any:
    """The answer of whichever server can be reached; None where there is none yet."""
    try:
        with contextlib.closing(Admin(cluster.url, requestTimeout="2s", connectTimeout="1s")) as admin:
            return what(admin) or True
    except (PenstockError, AssertionError):  # the latter from `publish`, where the stream has no leader
        return None


def leader(cluster: NatsCluster) -> str | None:
    answer = asked(cluster, lambda admin: admin.calls.call("STREAM.INFO.S")["cluster"])
    return answer.get("leader") if isinstance(answer, dict) else None


@pytest.fixture
def healthy(cluster: NatsCluster) -> NatsCluster:
    """The cluster, when every server is up, has a leader and all messages."""

    def is_healthy() -> bool:
        answer = asked(cluster, lambda admin: admin.calls.call("STREAM.INFO.S")["cluster"])
        if not isinstance(answer, dict) or not answer.get("leader"):
            return False
        replicas = answer.get("replicas", [])
        return len(replicas) == 2 and all(r["current"] and not r.get("offline") for r in replicas)

    until(is_healthy, 30)
    return cluster


@pytest.fixture
def many_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "PULL", 100)
    monkeypatch.setattr(engines, "DIRECT", 100)


def ids(rows: Any) -> list[int]:
    return [int(value.partition(b" ")[0]) for value in rows["value"].to_pylist()]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.usefixtures("many_requests")
def test_a_leader_that_steps_down_in_the_middle_of_a_range_costs_no_row(healthy: NatsCluster, engine: str) -> None:
    with opened(healthy.url, stream="S", readEngine=engine, **SHORT_TIMEOUTS) as source:
        reading = source.read(whole(source, "S"))
        read = ids(next(reading))
        for _ in range(2):
            before = leader(healthy)
            assert asked(healthy, lambda admin: admin.calls.call("STREAM.LEADER.STEPDOWN.S"))
            until(lambda before=before: leader(healthy) not in (None, before))
            read += ids(next(reading))
        for rows in reading:
            read += ids(rows)
    assert read == list(range(COUNT))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.usefixtures("many_requests")
def test_a_server_that_dies_in_the_middle_of_a_range_costs_no_row(healthy: NatsCluster, engine: str) -> None:
    """The one that the reader is connected to, and that leads the stream."""
    victim = healthy.named(leader(healthy) or "")
    with opened(healthy.first(victim), stream="S", readEngine=engine, **SHORT_TIMEOUTS) as source:
        reading = source.read(whole(source, "S"))
        read = ids(next(reading))
        assert source._open().connection.info["server_name"] == f"s{victim.port}"
        victim.kill()
        try:
            for rows in reading:
                read += ids(rows)
        finally:
            victim.start()
    assert read == list(range(COUNT))


def test_a_query_goes_on_over_another_server(healthy: NatsCluster) -> None:
    victim = healthy.servers[0]
    with opened(healthy.first(victim), stream="T", **SHORT_TIMEOUTS) as source:
        query = Query(source)
        assert sum(rows.num_rows for rows in query.run()) == 100
        victim.kill()
        try:
            until(lambda: asked(healthy, lambda admin: admin.numbers("T", 50, start=100)), 20)
            read = [number for rows in until(query.run) for number in sequences(rows)]
        finally:
            victim.start()
    assert read == list(range(101, 101 + len(read)))
    assert len(read) >= 50


# --- a stream in memory on one server, which that server's restart empties: it counts from 1 again ---


def holder(cluster: NatsCluster, stream: str) -> NatsServer:
    """The server that has the stream."""
    info = until(lambda: asked(cluster, lambda admin: admin.calls.call(f"STREAM.INFO.{stream}")["cluster"]), 20)
    return cluster.named(info["leader"])


def empty(cluster: NatsCluster, stream: str, refill: int) -> None:
    """Restart the server that has the stream in memory, and publish other messages, from 1000 on."""
    server = holder(cluster, stream)
    server.kill()
    server.start()
    until(lambda: asked(cluster, lambda admin: admin.calls.stream(stream).last == 0) is True, 20)
    until(lambda: asked(cluster, lambda admin: admin.numbers(stream, refill, start=1000)), 20)


@pytest.fixture
def volatile(healthy: NatsCluster, stream: str) -> str:
    until(lambda: asked(healthy, lambda admin: admin.create(stream, storage="memory")), 20)
    until(lambda: asked(healthy, lambda admin: admin.numbers(stream, 50)), 20)
    return stream


@pytest.mark.parametrize("restarted", [False, True])
def test_a_stream_that_was_emptied_and_filled_again_is_loss(
    healthy: NatsCluster, volatile: str, restarted: bool
) -> None:
    with opened(healthy.url, stream=volatile, **SHORT_TIMEOUTS) as source:
        query = Query(source)
        assert numbers(query.batch(30)) == list(range(30))  # type: ignore[arg-type]
        if not restarted:
            empty(healthy, volatile, 60)
            with pytest.raises(DataLossError, match=rf"'{volatile}' counts anew \(now 1 to 60\): its record 30 is not"):
                query.step()
            return
    empty(healthy, volatile, 60)
    with opened(healthy.url, stream=volatile, **SHORT_TIMEOUTS) as source:
        query = Query(source, at=query.at)
        with pytest.raises(DataLossError, match=rf"'{volatile}' counts anew \(now 1 to 60\): its record 30 is not"):
            query.step()
    with opened(healthy.url, stream=volatile, failOnDataLoss=False, **SHORT_TIMEOUTS) as source:
        query = Query(source, at=query.at)
        assert [n for rows in query.run() for n in numbers(rows)] == list(range(1000, 1060))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_task_gives_no_row_of_a_stream_that_was_filled_again(
    healthy: NatsCluster, volatile: str, engine: str
) -> None:
    """A batch that was planned before is replayed after it; in pieces, so that a task knows more than its own range."""
    options = {"stream": volatile, "readEngine": engine, "minPartitions": 3, **SHORT_TIMEOUTS}
    with opened(healthy.url, **options) as strict, opened(healthy.url, failOnDataLoss=False, **options) as lax:
        query = Query(strict)
        start, end = query.at, query.step(30)
        tasks = query.plan.tasks(start, end)
        assert len(tasks) == 3
        empty(healthy, volatile, 60)
        for task in tasks:
            with pytest.raises(DataLossError, match=rf"'{volatile}' counts anew"):
                table(strict, *task)
            assert table(lax, *task).num_rows == 0


@pytest.mark.parametrize("lax", [False, True])
def test_a_work_queue_that_was_emptied_and_filled_again_is_not_purged_unread(
    healthy: NatsCluster, stream: str, lax: bool
) -> None:
    until(lambda: asked(healthy, lambda admin: admin.create(stream, storage="memory", retention="workqueue")), 20)
    until(lambda: asked(healthy, lambda admin: admin.numbers(stream, 50)), 20)
    with opened(healthy.url, stream=stream, failOnDataLoss=not lax, **SHORT_TIMEOUTS) as source:
        query = Query(source)
        query.batch(30)
        before = query.offsets
        empty(healthy, stream, 60)
        if lax:
            start, end = query.at, query.step()
            source.commit(before)  # as Spark does, when the next batch is planned
            rows = table(source, *(span for task in query.plan.tasks(start, end) for span in task))
            assert numbers(rows) == list(range(1000, 1060))
            return
        with pytest.raises(DataLossError, match="counts anew"):
            query.step()
        source.commit(before)
        assert source.bounds()[stream].first == 1
        assert source._seen[stream].messages == 60


# --- a replica that lags: its word is not the last one ---


class Lagging:
    """A connection whose DIRECT.GET is answered by a replica that has nothing from a sequence on, a few times."""

    def __init__(self, real: Any, first_missing: int, times: int):
        self.real, self.first_missing, self.times = real, first_missing, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def publish(self, subject: str, body: bytes = b"", reply: str = "") -> None:
        if ".DIRECT.GET." in subject and self.times:
            asked = json.loads(body)
            there = self.first_missing - asked["seq"]
            if there <= asked["batch"]:
                self.times -= 1
                # Past its own end the server answers 404, before it no more than is there.
                asked |= {"batch": there} if there > 0 else {"seq": 10**15}
                body = json.dumps(asked).encode()
        self.real.publish(subject, body, reply)


@pytest.fixture
def lagging(admin: Admin, nats: NatsServer, stream: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a source on a stream of 100 messages, whose replica lacks those from `first_missing` on, `times` times."""
    admin.create(stream)
    admin.numbers(stream, 100)
    monkeypatch.setattr("penstock.kit.retry.LONGEST_WAIT", 0.001)
    with contextlib.ExitStack() as stack:

        def make(first_missing: int, times: int, **options: Any) -> tuple[Any, Range]:
            source = stack.enter_context(opened(nats.url, stream=stream, readEngine="direct", **options))
            span = whole(source, stream)
            left = [times]

            def open_lagging() -> Calls:
                if source._calls is None:
                    calls = type(source)._open(source)
                    calls.connection = Lagging(calls.connection, first_missing, left[0])  # type: ignore[assignment]
                    left[0] -= 1
                return source._calls

            source._drop()
            monkeypatch.setattr(source, "_open", open_lagging)
            return source, span

        yield make


@pytest.mark.parametrize("first_missing", [1, 2, 60, 100])
def test_the_end_of_a_lagging_replica_is_not_the_end_of_the_range(lagging: Any, first_missing: int) -> None:
    source, span = lagging(first_missing, 2)
    assert sequences(table(source, span)) == list(range(1, 101))


def test_a_replica_that_never_catches_up_is_an_error_and_not_a_short_range(lagging: Any) -> None:
    source, span = lagging(60, 99)
    reading = source.read(span)
    read: list[int] = []
    with pytest.raises(
        ConnectError, match=r"stream '\w+' cannot be read with DIRECT.GET: replicas lack its last messages"
    ):
        read.extend(number for rows in reading for number in rows["sequence"].to_pylist())
    assert read == list(range(1, 60))


def test_without_the_leaders_word_a_lagging_replica_would_cut_the_range_short(
    lagging: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the tests above can fail."""
    monkeypatch.setattr(engines, "_proven", lambda *_: True)
    source, span = lagging(60, 2)
    assert sequences(table(source, span)) == list(range(1, 60))


class Leader:
    """The calls of a range whose replica has nothing: `first` is what the leader has."""

    prefix = "$JS.API"

    def __init__(self, first: int | None):
        self.first = first

    def first_from(self, stream: str, sequence: int, filters: Sequence[str] = ()) -> Stored | None:
        return None if self.first is None else Stored(max(self.first, sequence), 0)


@pytest.mark.parametrize(("first", "ends"), [(None, True), (100, True), (250, True), (99, False), (10, False)])
def test_a_range_ends_only_where_the_leader_has_nothing_more_of_it(first: int | None, ends: bool) -> None:
    calls: Any = Leader(first)
    assert engines._proven(calls, "S", 10, 100, ()) == ends
