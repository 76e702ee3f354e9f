"""A durable consumer that others share: held until Spark has committed, acknowledged then, delivered again if not."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from jetstream_sources import take, until
from pyspark.sql.pandas.types import from_arrow_schema

from nats_servers import Admin, server
from penstock.connectors.jetstream import JetStream
from penstock.connectors.jetstream.durable import DurableSource
from penstock.errors import Disconnected, OptionError
from penstock.kit.figures import so_far
from penstock.planning.checkpoint import Checkpoint
from penstock.planning.planner import Planner
from penstock.planning.positions import Position, Range
from penstock.spark.reading import StreamReader
from penstock.testing.nats_server import NatsServer
from penstock.testing.proxy import Proxy


@pytest.fixture
def shared(admin: Admin, stream: str) -> str:
    admin.create(stream)
    admin.numbers(stream, 3000)
    return stream


def durable(admin: Admin, stream: str, policy: str = "explicit", **config: Any) -> None:
    body = {"durable_name": "d", "ack_policy": policy, "max_ack_pending": 2000, "ack_wait": 1_000_000_000, **config}
    admin.calls.call(f"CONSUMER.CREATE.{stream}.d", {"stream_name": stream, "config": body})


def state(admin: Admin, stream: str) -> dict[str, Any]:
    return admin.calls.call(f"CONSUMER.INFO.{stream}.d")


@contextmanager
def taking(url: str, stream: str, ack: str = "explicit", **options: str) -> Iterator[DurableSource]:
    source: Any = JetStream.open_source(
        JetStream.parse({"servers": url, "stream": stream, "ack": ack, "consumer": "d", **options})
    )
    try:
        source.bounds()
        yield source
    finally:
        source.close()


def drain(source: DurableSource, wanted: set[int], before: Sequence[int] = ()) -> list[int]:
    """Read and commit until all of these have come; what came, with what came before."""
    seen = list(before)

    def all_of_them() -> bool:
        seen.extend(commit_all(source))
        return set(seen) >= wanted

    until(all_of_them, 20)
    return seen


def held(source: DurableSource, wanted: int) -> list[int]:
    """The numbers that are held, once so many have come."""
    until(lambda: source.held.next - source.held.first >= wanted)
    span = Range(source.stream, source.held.first, source.held.next)
    return [int(v) for each in source.ship(span) for v in each["value"].to_pylist()]


def commit_all(source: DurableSource) -> list[int]:
    """The numbers that are held, committed: those, and none that come in between."""
    span = Range(source.stream, source.held.first, source.held.next)
    found = [int(v) for each in source.ship(span) for v in each["value"].to_pylist()]
    source.commit({source.stream: Position(span.end)})
    return found


def as_spark(source: DurableSource, done: Callable[[list[int]], bool]) -> list[int]:
    """What a query reads until it is done, and commits a batch only when the next one begins."""
    plan = Planner(source, source.options, "latest")
    seen: list[int] = []
    at, deadline = plan.next(plan.initial(), None), time.monotonic() + 30
    while not done(seen):
        assert time.monotonic() < deadline, f"there came {len(seen)} rows, and then no more"
        end = plan.next(at, None)
        if end != at:
            source.commit(Checkpoint.decode(at).positions)
            spans = [span for task in plan.tasks(at, end) for span in task]
            seen += [int(v) for span in spans for each in source.ship(span) for v in each["value"].to_pylist()]
            at = end
        time.sleep(0.01)
    return seen


@pytest.mark.parametrize(("config", "options"), [({"max_ack_pending": 500}, {}), ({}, {"maxBufferBytes": "200kb"})])
@pytest.mark.parametrize("ack", ["explicit", "all"])
def test_a_batch_with_all_that_may_be_pending_is_not_the_last_one(
    admin: Admin, nats: NatsServer, shared: str, ack: str, config: dict[str, Any], options: dict[str, Any]
) -> None:
    durable(admin, shared, ack, **config)
    with taking(nats.url, shared, ack, **options) as source:

        def done(seen: list[int]) -> bool:
            """The last batch is acknowledged too."""
            return len(seen) >= 3000 and state(admin, shared)["num_ack_pending"] == 0

        assert as_spark(source, done) == list(range(3000))


@pytest.mark.parametrize("ack", ["explicit", "all"])
def test_messages_are_acknowledged_when_spark_has_them(admin: Admin, nats: NatsServer, shared: str, ack: str) -> None:
    durable(admin, shared, ack)
    with taking(nats.url, shared, ack) as source:
        assert held(source, 2000) == list(range(2000))
        assert state(admin, shared)["ack_floor"]["stream_seq"] == 0
        source.commit({shared: Position(source.held.first + 1500)})
        assert state(admin, shared)["ack_floor"]["stream_seq"] == 1500, "confirmed, so it is there at once"
        assert held(source, 1500) == list(range(1500, 3000))


def test_a_long_batch_is_not_delivered_to_others(admin: Admin, nats: NatsServer, shared: str) -> None:
    durable(admin, shared)
    with taking(nats.url, shared) as source:
        held(source, 2000)
        time.sleep(2.5)  # more than twice the time after which the server would deliver it again
        assert state(admin, shared)["num_redelivered"] == 0
        source.commit({shared: Position(source.held.next)})
        assert sorted(held(source, 1000)) == list(range(2000, 3000))


def test_what_was_not_acknowledged_is_delivered_again(admin: Admin, nats: NatsServer, shared: str) -> None:
    durable(admin, shared)
    before = so_far()
    with taking(nats.url, shared) as source:
        held(source, 2000)
        time.sleep(0.05)
        source.commit({shared: Position(source.held.first + 500)})
    told = so_far() - before
    assert told.acks == 500
    assert told.ack_delay > 500 * 0.05, "from the delivery to the acknowledgement"
    before = so_far()
    with taking(nats.url, shared) as source:
        seen: set[int] = set()

        def everything() -> bool:
            seen.update(commit_all(source))
            return seen >= set(range(500, 3000))

        until(everything, seconds=15)
        assert (so_far() - before).redelivered >= 1500
        assert not seen & set(range(500)), "what was acknowledged does not come again"


def test_other_programs_get_their_share(admin: Admin, nats: NatsServer, shared: str) -> None:
    durable(admin, shared, max_ack_pending=-1)
    with taking(nats.url, shared) as one, taking(nats.url, shared) as other:
        seen: list[int] = []

        def all_of_them() -> bool:
            for source in (one, other):
                seen.extend(commit_all(source))
            return len(seen) >= 3000

        until(all_of_them)
    assert sorted(seen) == list(range(3000))


def test_acknowledging_all_loses_nothing_that_a_client_took_who_died(
    admin: Admin, nats: NatsServer, shared: str
) -> None:
    durable(admin, shared, "all")
    take(admin, shared, 7)  # and never acknowledges them
    with taking(nats.url, shared, "all") as source:
        held(source, 1000)
        seen = commit_all(source)
        assert state(admin, shared)["ack_floor"]["stream_seq"] == 0, "acknowledging ours would acknowledge theirs"
        seen = drain(source, set(range(3000)), seen)
        until(lambda: state(admin, shared)["num_ack_pending"] == 0)
        assert state(admin, shared)["ack_floor"]["stream_seq"] == 3000
    assert sorted(seen) == list(range(3000)), "kept alive until they could be acknowledged, so nothing came twice"


def test_acknowledging_all_loses_nothing_that_a_client_took_in_the_middle(
    admin: Admin, nats: NatsServer, shared: str
) -> None:
    durable(admin, shared, "all", max_ack_pending=1000)
    with taking(nats.url, shared, "all") as source:
        until(lambda: source.held.next - source.held.first >= 1000)
        others = threading.Thread(target=take, args=(admin, shared, 5))
        others.start()
        seen = drain(source, set(range(3000)))
        others.join(10)
        with contextlib.closing(Admin(nats.url)) as boss:
            until(lambda: state(boss, shared)["ack_floor"]["stream_seq"] == 3000)
    assert sorted(set(seen)) == list(range(3000))


@pytest.mark.parametrize("ack", ["explicit", "all"])
def test_a_connection_that_is_cut_loses_nothing(admin: Admin, nats: NatsServer, shared: str, ack: str) -> None:
    """What the server had sent already is in nobody's hands."""
    durable(admin, shared, ack, max_ack_pending=-1)
    with Proxy(nats.port, [("cut", 30_000), ("cut", 40_000), ("cut", 50_000)]) as proxy:
        with taking(proxy.url, shared, ack) as source:
            seen = drain(source, set(range(3000)))
            until(lambda: (commit_all(source), state(admin, shared)["num_ack_pending"] == 0)[1], 20)
        assert proxy.plan == []
        assert proxy.connections > 3
    assert sorted(set(seen)) == list(range(3000))
    assert state(admin, shared)["ack_floor"]["stream_seq"] == 3000


def test_acknowledging_all_says_who_is_in_the_way(
    admin: Admin, nats: NatsServer, shared: str, caplog: pytest.LogCaptureFixture
) -> None:
    durable(admin, shared, "all")
    replies = take(admin, shared, 3)
    with taking(nats.url, shared, "all") as source:
        held(source, 1997)
        commit_all(source)

        def warned() -> bool:
            admin.connection.send(b"".join(b"PUB %s 4\r\n+WPI\r\n" % reply for reply in replies))  # they work, and work
            time.sleep(0.2)
            return "3 others were delivered to somebody who has not acknowledged them" in caplog.text

        until(warned)
        admin.connection.send(b"PUB %s 4\r\n+ACK\r\n" % replies[-1])
        until(lambda: state(admin, shared)["ack_floor"]["stream_seq"] >= 2000)
    assert caplog.text.count("others were delivered to somebody") == 1


@pytest.mark.parametrize("ack", ["explicit", "all"])
def test_what_could_not_be_acknowledged_at_once_is_acknowledged_later(
    admin: Admin, nats: NatsServer, shared: str, ack: str
) -> None:
    durable(admin, shared, ack, ack_wait=3_000_000_000)
    with Proxy(nats.port) as proxy, taking(proxy.url, shared, ack, requestTimeout="1s") as source:
        held(source, 2000)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("penstock.connectors.jetstream.durable._confirm", refuse)
            source.commit({shared: Position(source.held.first + 2000)})
            assert state(admin, shared)["ack_floor"]["stream_seq"] == 0
        until(lambda: state(admin, shared)["ack_floor"]["stream_seq"] == 2000)
        assert state(admin, shared)["num_redelivered"] == 0


def refuse(*_: object) -> None:
    raise Disconnected("the server is away")


@pytest.mark.parametrize("size", ["1", "1kb", "100kb", "1mb", "3mb"])
def test_a_small_buffer_is_no_reason_to_stand_still(admin: Admin, nats: NatsServer, shared: str, size: str) -> None:
    durable(admin, shared, ack_wait=30_000_000_000)
    with taking(nats.url, shared, maxBufferBytes=size) as source:
        seen = drain(source, set(range({"1": 20, "1kb": 200}.get(size, 3000))))
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize("size", ["1mb", "256mb"])
def test_messages_larger_than_a_pull_are_taken(folder: Path, size: str) -> None:
    config = f'jetstream {{ store_dir: "{folder / "data"}" }}\nmax_payload: 16MB'
    with server(folder, config=config) as (running, admin):
        admin.create("S")
        sizes = [10, 9 << 20, 10, 15 << 20, 3 << 20, 10]
        admin.publish(("S.n", bytes(n)) for n in sizes)
        durable(admin, "S", ack_wait=30_000_000_000)
        with taking(running.url, "S", maxBufferBytes=size) as source:
            seen: list[int] = []

            def all_of_them() -> bool:
                span = Range("S", source.held.first, source.held.next)
                seen.extend(len(v) for each in source.ship(span) for v in each["value"].to_pylist())
                source.commit({"S": Position(span.end)})
                return len(seen) >= len(sizes)

            until(all_of_them)
            assert seen == sizes
            until(lambda: state(admin, "S")["num_ack_pending"] == 0)
            assert state(admin, "S")["num_redelivered"] == 0


@pytest.mark.parametrize(
    "limits", [{"max_batch": 7}, {"max_expires": 5_000_000}, {"max_bytes": 500}, {"max_bytes": 20}]
)
def test_a_consumer_that_limits_pulls_can_be_used(
    admin: Admin, nats: NatsServer, shared: str, limits: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    durable(admin, shared, ack_wait=30_000_000_000, **limits)
    with taking(nats.url, shared) as source:
        assert held(source, 300)[:300] == list(range(300))
    assert caplog.text == ""


def test_limits_that_come_while_a_query_runs_are_kept(admin: Admin, nats: NatsServer, shared: str) -> None:
    durable(admin, shared)
    with taking(nats.url, shared) as source:
        seen = drain(source, set(range(3000)))
        durable(admin, shared, max_batch=5, max_expires=100_000_000)
        admin.numbers(shared, 100, start=3000)
        seen = drain(source, set(range(3000, 3100)), seen)
    assert sorted(seen) == list(range(3100))


def test_a_thread_that_dies_of_any_error_ends_the_query(
    admin: Admin, nats: NatsServer, shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable(admin, shared)
    monkeypatch.setattr("penstock.connectors.jetstream.durable.with_acks", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), taking(nats.url, shared) as source:  # it may die while it is opened
        until(lambda: not source.bounds())


def test_a_run_whose_clock_is_behind_is_no_loss(
    admin: Admin, nats: NatsServer, shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable(admin, shared)
    with taking(nats.url, shared) as source:
        query: Any = Planner(source, source.options, "latest")
        held(source, 2000)
        at = query.next(Checkpoint({shared: Position(source.held.first)}).encode(), 500)
        assert at["next"][shared] == source.held.first + 500
        source.commit(Checkpoint.decode(at).positions)
    now = time.time_ns()
    monkeypatch.setattr("penstock.kit.buffer.time.time_ns", lambda: now - 5 * 10**9)
    with taking(nats.url, shared) as source:
        assert source.held.first < at["next"][shared]
        query = Planner(source, source.options, "latest")
        query.next(at, None)
        assert source.held.first == at["next"][shared]
        seen = drain(source, set(range(500, 3000)))
    assert not set(seen) & set(range(500))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ack": "explicit"}, "ack=explicit needs one 'stream' and its 'consumer'"),
        ({"consumer": "d"}, "set 'ack' to explicit or all to take messages from a 'consumer'"),
        ({"ack": "all", "consumer": "d", "subjects": "a"}, "'subjects' has no meaning with ack=all"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        JetStream.parse({"stream": "S", **options})


def test_a_consumer_that_does_not_fit_is_refused(admin: Admin, nats: NatsServer, shared: str) -> None:
    with (
        pytest.raises(OptionError, match=rf"stream '{shared}' has no consumer 'd'. It has none"),
        taking(nats.url, shared),
    ):
        pass
    durable(admin, shared, "all")
    with (
        pytest.raises(OptionError, match="ack=explicit, but consumer 'd' has the ack policy all"),
        taking(nats.url, shared),
    ):
        pass


def test_loading_takes_no_message_from_a_shared_durable(admin: Admin, nats: NatsServer, shared: str) -> None:
    """With max_deliver=1 it would be gone for good."""
    durable(admin, shared, max_deliver=1)
    for _ in range(5):
        JetStream({"servers": nats.url, "stream": shared, "ack": "explicit", "consumer": "d"}).schema()
    time.sleep(0.2)  # a pull that had been sent would be answered by now
    info = state(admin, shared)
    assert (info["delivered"]["consumer_seq"], info["num_ack_pending"], info["num_waiting"]) == (0, 0, 0)
    with taking(nats.url, shared) as source:
        assert held(source, 2000) == list(range(2000))


def test_a_trigger_that_stops_at_what_is_there_is_refused(admin: Admin, nats: NatsServer, shared: str) -> None:
    durable(admin, shared, "explicit")
    options = JetStream.parse({"servers": nats.url, "stream": shared, "ack": "explicit", "consumer": "d"})
    reader = StreamReader(JetStream, options, from_arrow_schema(JetStream.columns(options)))
    with pytest.raises(OptionError, match="has nothing before it listens"):
        reader.prepareForTriggerAvailableNow()
    assert state(admin, shared)["num_ack_pending"] == 0
