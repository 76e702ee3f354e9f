"""Writing to three servers: ids that are being stored, and leaders that change."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from jetstream_sources import until
from sink_writes import Stopped, batch, bodies, commit, count, dies_after, write
from test_cluster import SHORT_TIMEOUTS, asked

from nats_servers import Admin
from penstock.errors import OptionError
from penstock.kit.contract import Origin, Receipt
from penstock.kit.retry import Retry
from penstock.testing.nats_cluster import NatsCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with NatsCluster(tmp_path_factory.mktemp("cluster")) as made:
        until(lambda: asked(made, lambda admin: admin.create("FIRST", num_replicas=3)), 30)
        yield made


@pytest.fixture
def admin(cluster: NatsCluster) -> Iterator[Admin]:
    with contextlib.closing(Admin(cluster.url)) as connected:
        yield connected


def test_an_id_that_is_being_stored_is_waited_for(cluster: NatsCluster, admin: Admin, stream: str) -> None:
    """Rows of the same id follow each other closely: the second comes while the first is still under way."""
    admin.create(stream, num_replicas=3)
    ids = pa.array([f"order-{i // 2}" for i in range(4000)])
    receipt = write(
        cluster.url, [batch(count(0, 4000), id=ids)], Origin(stream, 0, 0), subject=f"{stream}.x", **SHORT_TIMEOUTS
    )
    assert receipt.rows == 4000
    assert receipt.known >= 2000
    assert sorted(map(int, bodies(admin, stream))) == list(range(0, 4000, 2))


# --- who leads a stream ---

REFUSED = "cannot be told any more: .*its server has started anew, or another one leads it"


def keyed(stream: str) -> list[pa.RecordBatch]:
    return [
        batch(count(low, low + 5), subject=pa.array([f"{stream}.{i}" for i in range(low, low + 5)])) for low in (0, 5)
    ]


def led(cluster: NatsCluster, stream: str) -> str:
    """Who leads a stream. Nobody answers for one that has no leader yet: whoever asked is to ask again."""

    def leader() -> str | None:
        answer = asked(cluster, lambda admin: admin.calls.call(f"STREAM.INFO.{stream}")["cluster"])
        return answer.get("leader") if isinstance(answer, dict) else None

    return str(until(leader, 30))


def elsewhere(cluster: NatsCluster, leader: str) -> str:
    """The addresses, with one first that does not lead the stream."""
    return cluster.first(next(server for server in cluster.servers if f"s{server.port}" != leader))


def half_written(cluster: NatsCluster, admin: Admin, stream: str, **config: Any) -> str:
    """A stream of last values to which a first attempt has written five rows, newer than which are there now; the
    addresses of servers for a later attempt.
    """
    until(lambda: asked(cluster, lambda admin: admin.create(stream, max_msgs_per_subject=1, **config)), 30)
    url = elsewhere(cluster, led(cluster, stream))
    with pytest.raises(Stopped):
        write(url, dies_after(keyed(stream), 1), Origin(stream, 0, 0), **SHORT_TIMEOUTS)
    admin.publish((f"{stream}.{i}", b"newer") for i in range(5))
    return url


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_later_attempt_over_another_server_than_the_leader_goes_on(
    cluster: NatsCluster, admin: Admin, stream: str, replicas: int
) -> None:
    url = half_written(cluster, admin, stream, num_replicas=replicas)
    receipt = write(url, keyed(stream), Origin(stream, 0, 0), **SHORT_TIMEOUTS)
    assert (receipt.rows, receipt.known) == (10, 5)
    assert sorted(bodies(admin, stream)) == sorted([*count(5, 10), *[b"newer"] * 5])


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_leader_that_has_started_anew_is_seen_from_another_server(
    cluster: NatsCluster, admin: Admin, stream: str, replicas: int
) -> None:
    url = half_written(cluster, admin, stream, num_replicas=replicas)
    leader = cluster.named(led(cluster, stream))
    leader.kill()
    leader.start()
    until(lambda: asked(cluster, lambda admin: admin.publish([(f"{stream}.other", b"")])), 30)
    with pytest.raises(OptionError, match=REFUSED):
        write(url, keyed(stream), Origin(stream, 0, 0), **SHORT_TIMEOUTS)


def test_another_leader_counts_as_a_new_one(cluster: NatsCluster, admin: Admin, stream: str) -> None:
    url = half_written(cluster, admin, stream, num_replicas=3)
    before = led(cluster, stream)
    admin.calls.call(f"STREAM.LEADER.STEPDOWN.{stream}")
    until(lambda: led(cluster, stream) != before, 30)
    with pytest.raises(OptionError, match=REFUSED):
        write(url, keyed(stream), Origin(stream, 0, 0), **SHORT_TIMEOUTS)


def test_a_stream_in_memory_is_empty_after_a_restart_and_that_is_said(
    cluster: NatsCluster, admin: Admin, stream: str
) -> None:
    until(lambda: asked(cluster, lambda admin: admin.create(stream, storage="memory")), 30)
    url, leader = elsewhere(cluster, led(cluster, stream)), cluster.named(led(cluster, stream))
    with pytest.raises(Stopped):
        write(url, dies_after(keyed(stream), 1), Origin(stream, 0, 0), **SHORT_TIMEOUTS)
    leader.kill()
    leader.start()
    until(lambda: asked(cluster, lambda admin: admin.publish((f"{stream}.n", b"") for _ in range(20))), 30)
    with pytest.raises(OptionError, match="more: its messages were kept in memory, and its server has started anew"):
        write(url, keyed(stream), Origin(stream, 0, 0), **SHORT_TIMEOUTS)


def test_a_ledger_that_is_made_before_the_first_row_has_three_replicas(
    cluster: NatsCluster, admin: Admin, stream: str
) -> None:
    retry = Retry("finishing a batch", timeout=60)  # as the writer does
    retry.run(lambda: commit(cluster.url, [Receipt(Origin(stream, 0, 0), 0)], 0, ledger=f"{stream}L"))
    # A new stream has no leader for a moment, and then nobody answers for it.
    assert Retry("asking", timeout=60).run(lambda: admin.calls.stream(f"{stream}L")).replicas == 3
