"""Writing to three servers: ids that are being stored, and leaders that change."""

import contextlib
from collections.abc import Iterator

import pyarrow as pa
import pytest
from jetstream_tools import until
from sink_tools import batch, bodies, count, write
from test_cluster import PATIENCE, Cluster, asked

from harness import Admin
from penstock.contract import Origin


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    with contextlib.ExitStack() as stack:
        for server in made.servers:
            stack.enter_context(server)
        until(lambda: asked(made, lambda admin: admin.create("FIRST", num_replicas=3)), 30)
        yield made


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with contextlib.closing(Admin(cluster.url)) as connected:
        yield connected


def test_an_id_that_is_being_stored_is_waited_for(cluster: Cluster, admin: Admin, stream: str) -> None:
    """Rows of the same id follow each other closely: the second comes while the first is still under way."""
    admin.create(stream, num_replicas=3)
    ids = pa.array([f"order-{i // 2}" for i in range(4000)])
    receipt = write(
        cluster.url, [batch(count(0, 4000), id=ids)], Origin(stream, 0, 0), subject=f"{stream}.x", **PATIENCE
    )
    assert receipt.rows == 4000
    assert receipt.known >= 2000
    assert sorted(map(int, bodies(admin, stream))) == list(range(0, 4000, 2))
