"""Declared streams on a cluster of three, one server of which is killed while they are applied."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nats_servers import Admin
from penstock.errors import PenstockError
from penstock.operate.declared import live
from penstock.operate.declared.apply import Stopped, apply
from penstock.operate.declared.files import load
from penstock.operate.declared.model import Declared
from penstock.operate.declared.plan import plan
from penstock.operate.declared.steps import Action, Plan
from penstock.testing.nats_cluster import NatsCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with NatsCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def reached(cluster: NatsCluster) -> Admin:
    """A connection, when the cluster has a leader."""
    deadline = time.monotonic() + 30
    while True:
        try:
            admin = Admin(cluster.url, requestTimeout="1s")
            admin.calls.call("INFO")
            return admin
        except PenstockError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def declared(folder: Path, text: str) -> Declared:
    (folder / "streams.toml").write_text(text)
    return load([folder / "streams.toml"])


def planned(admin: Admin, wanted: Declared) -> Plan:
    return plan(wanted, live.look(admin.calls, wanted.streams))


def test_an_apply_during_which_a_server_is_killed_ends_complete(cluster: NatsCluster, tmp_path: Path) -> None:
    text = "".join(
        f'[streams.S{i}]\nsubjects = ["s{i}"]\nnum_replicas = 3\n[streams.S{i}.consumers.c]\n' for i in range(6)
    )
    wanted = declared(tmp_path, text)
    admin = reached(cluster)
    made = planned(admin, wanted)
    assert len(made.changes) == 12
    killed = cluster.named(str(admin.connection.info["server_name"]))  # we speak to it: the connection is lost too
    steps: list[str] = []

    def harm(step: Any) -> None:
        steps.append(step.name)
        if len(steps) == 5:
            killed.kill()
        elif len(steps) == 8:
            killed.start()

    result = apply(admin.calls, made, tell=harm)
    admin.close()
    assert [step.name for step in result.done] == [step.name for step in made.changes] == steps
    again = reached(cluster)
    after = planned(again, wanted)
    assert [step for step in after.steps if step.action is not Action.NOTHING] == []
    found = live.look(again.calls, wanted.streams)
    assert {name: sorted(each.consumers or {}) for name, each in found.streams.items()} == {
        f"S{i}": ["c"] for i in range(6)
    }
    again.close()


def test_more_replicas_than_servers_are_told_before_and_fewer_are_changed_in_place(
    cluster: NatsCluster, tmp_path: Path
) -> None:
    admin = reached(cluster)
    made = planned(admin, declared(tmp_path, "[streams.R]\nnum_replicas = 5\n"))
    assert made.changes[0].effects == ("The cluster seems to have 3 servers: the server refuses 5 replicas then.",)
    with pytest.raises(Stopped, match="no suitable peers"):
        apply(admin.calls, made)
    for replicas in (1, 3, 1):
        wanted = declared(tmp_path, f"[streams.R]\nnum_replicas = {replicas}\n[streams.R.consumers.c]\n")
        made = planned(admin, wanted)
        assert made.refused(()) == ()
        apply(admin.calls, made)
        assert planned(admin, wanted).changes == ()
    admin.close()
