"""A durable consumer that others share: held until Spark has committed, acknowledged then, delivered again if not."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from jetstream_tools import until

from harness import Admin
from penstock.connectors.jetstream import JetStream
from penstock.connectors.jetstream.durable import DurableSource
from penstock.embedded import NatsServer
from penstock.errors import OptionError
from penstock.offsets import Position, Range


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
def taking(url: str, stream: str, ack: str = "explicit") -> Iterator[DurableSource]:
    source: Any = JetStream.open_source(
        JetStream.parse({"servers": url, "stream": stream, "ack": ack, "consumer": "d"})
    )
    try:
        source.bounds()
        yield source
    finally:
        source.close()


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
    with taking(nats.url, shared) as source:
        held(source, 2000)
        source.commit({shared: Position(source.held.first + 500)})
    with taking(nats.url, shared) as source:
        seen: set[int] = set()

        def everything() -> bool:
            seen.update(commit_all(source))
            return seen >= set(range(500, 3000))

        until(everything, seconds=15)
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
