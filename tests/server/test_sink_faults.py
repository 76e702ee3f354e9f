"""Whatever breaks while rows are written: every row is there once and in order, or an error says what is missing."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sink_writes import batch, batches, bodies, count, write

from nats_servers import Admin, server
from penstock.clients.nats.client import Connection
from penstock.errors import Disconnected, OptionError
from penstock.kit.contract import Origin
from penstock.kit.retry import Retry
from penstock.testing.nats_server import NatsServer
from penstock.testing.proxy import Proxy

COUNT = 5000
# The ways to publish, and one whose window is so short that lost acks mean reading back.
WAYS: dict[str, dict[str, Any]] = {
    "pipelined": {},
    "atomic": {"allow_atomic": True},
    "fast": {"allow_batched": True},
    "short": {"duplicate_window": 100_000_000},
}
all_ways = pytest.mark.parametrize("way", WAYS)
SENT = [30, 300, 700, 1_500, 5_000, 20_011, 70_007, 130_003, 200_009, 300_017, 450_001, 600_011]
CAME = [30, 500, 800, 1_200, 1_500, 2_000, 2_500, 3_500, 6_000, 50_003, 150_001, 250_007]


@pytest.fixture
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.kit.retry.LONGEST_WAIT", 0.001)


@all_ways
@pytest.mark.parametrize("direction", ["sent", "came"])
@pytest.mark.usefixtures("_hasty")
def test_a_cut_anywhere_costs_no_row_and_doubles_none(
    admin: Admin, nats: NatsServer, stream: str, way: str, direction: str
) -> None:
    admin.create(stream, **WAYS[way])
    cuts = 0
    for number, at in enumerate(SENT if direction == "sent" else CAME):
        admin.purge(stream)
        plan: dict[str, Any] = {"sent": [at]} if direction == "sent" else {"plan": [("cut", at)]}
        with Proxy(nats.port, **plan) as proxy:
            receipt = write(proxy.url, batches(COUNT), Origin(f"{stream}-{number}", 0, 0), subject=f"{stream}.x")
            cuts += proxy.connections > 1
        assert receipt.rows == COUNT
        assert bodies(admin, stream) == count(0, COUNT), f"cut at {at}"
    assert cuts >= 5, "or nothing was tried"


MANY = {
    "sent": {"sent": [40_000 + 61_007 * k for k in range(8)]},
    "came": {"plan": [("cut", n) for n in (900, 4_000, 9_999, 30_000, 61_234, 20_001)]},
}


@all_ways
@pytest.mark.parametrize("direction", MANY)
@pytest.mark.usefixtures("_hasty")
def test_many_cuts_in_one_write_cost_no_row(
    admin: Admin, nats: NatsServer, stream: str, way: str, direction: str
) -> None:
    admin.create(stream, **WAYS[way])
    with Proxy(nats.port, **MANY[direction]) as proxy:  # type: ignore[arg-type]
        write(proxy.url, batches(4 * COUNT), Origin(stream, 0, 0), subject=f"{stream}.x")
        assert proxy.connections >= 4
    assert bodies(admin, stream) == count(0, 4 * COUNT)


@all_ways
def test_acks_that_never_come_cost_no_row(admin: Admin, nats: NatsServer, stream: str, way: str) -> None:
    admin.create(stream, **WAYS[way])
    with Proxy(nats.port, plan=[("stall", 5_000)]) as proxy:
        limits = {"ackTimeout": "500ms", "requestTimeout": "1s"}
        write(proxy.url, batches(COUNT), Origin(stream, 0, 0), subject=f"{stream}.x", **limits)
        assert proxy.connections >= 2
    assert bodies(admin, stream) == count(0, COUNT)


@all_ways
def test_acks_that_come_too_late_cost_no_row(
    admin: Admin, nats: NatsServer, stream: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create(stream, **WAYS[way])
    with Proxy(nats.port) as proxy:

        def well_again(self: Retry, error: Disconnected) -> None:
            proxy.delay = 0.0

        monkeypatch.setattr(Retry, "after", well_again)

        def given() -> Iterator[Any]:
            for i, each in enumerate(batches(COUNT)):
                proxy.delay = 0.6 if i == 2 else 0.0
                yield each

        write(proxy.url, given(), Origin(stream, 0, 0), subject=f"{stream}.x", ackTimeout="200ms")
        assert proxy.connections >= 2
    assert bodies(admin, stream) == count(0, COUNT)


@all_ways
@pytest.mark.parametrize("when", [1, 3, 6])
def test_a_server_that_is_killed_in_mid_write_costs_no_row(
    folder: Path, way: str, when: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rows under way: it dies just before the task looks for answers."""
    receive, calls = Connection.receive, [0]
    with server(folder) as (running, admin):
        admin.create("S", **WAYS[way])

        def dying(self: Connection, sid: int, **options: Any) -> Any:
            calls[0] += 1
            if calls[0] == when:
                running.kill()
                running.start()
            return receive(self, sid, **options)

        with monkeypatch.context() as patch:
            patch.setattr(Connection, "receive", dying)
            write(running.url, batches(COUNT), subject="S.x")
        assert calls[0] > when
        after = Admin(running.url)
        assert bodies(after, "S") == count(0, COUNT)
        after.close()


@pytest.mark.parametrize("way", ["pipelined", "atomic", "fast"])
def test_a_slow_link_takes_its_time_and_no_longer(admin: Admin, nats: NatsServer, stream: str, way: str) -> None:
    """Ten megabytes at four a second, where nothing may take longer than two: but something always arrives."""
    admin.create(stream, **WAYS[way])
    rows = [batch([b"%d" % i + b"x" * 10_000 for i in range(1000)])]
    with Proxy(nats.port, rate=4e6) as proxy:
        limits = {"requestTimeout": "2s", "ackTimeout": "2s", "reconnectTimeout": "2s", "publishMode": way}
        receipt = write(proxy.url, rows, Origin(stream, 0, 0), subject=f"{stream}.x", **limits)
        assert proxy.connections == 1
    assert receipt.rows == 1000
    assert bodies(admin, stream) == rows[0]["value"].to_pylist()


@all_ways
@pytest.mark.parametrize("rows", [1, 3000])
def test_a_subject_over_the_control_line_is_refused_at_once_by_its_row(
    admin: Admin, nats: NatsServer, stream: str, way: str, rows: int
) -> None:
    """The server hangs up, and its reset may be faster than its reason: then the next try has it."""
    admin.create(stream, **WAYS[way])
    subjects = [f"{stream}.x"] * rows
    subjects[rows // 2] = f"{stream}.{'x' * 5000}"
    given = [batch(count(0, rows), subject=pa.array(subjects))]
    words = rf"row {rows // 2} of partition 0 of batch 0 has a subject of 5,\d+ bytes.*max_control_line"
    with pytest.raises(OptionError, match=words):
        write(nats.url, given, Origin(stream, 0, 0), reconnectTimeout="10s")
    assert write(nats.url, batches(10), Origin(stream, 0, 1), subject=f"{stream}.x").rows == 10


# --- permissions ---

LOOKS = ["STREAM.NAMES", "STREAM.INFO.*", "STREAM.MSG.GET.*"]


@pytest.fixture
def guarded(folder: Path) -> Iterator[NatsServer]:
    """A server with a stream S, and a user that may publish and look, but make no stream."""
    allowed = json.dumps(["S.>", "PENSTOCK_LEDGER.>", *(f"$JS.API.{each}" for each in LOOKS)])
    config = f"""
    jetstream {{ store_dir: "{folder / "data"}" }}
    accounts {{ A {{ jetstream: enabled, users: [
      {{ user: admin, password: admin }}
      {{ user: bob, password: bob, permissions: {{ publish: {allowed}, subscribe: ["_INBOX.>"] }} }} ] }} }}"""
    with NatsServer(folder, config=config) as running:
        admin = Admin(running.url, user="admin", password="admin")
        admin.create("S")
        admin.close()
        yield running


def test_an_account_that_may_not_make_the_ledger_is_told_what_to_grant(guarded: NatsServer) -> None:
    bob = {"user": "bob", "password": "bob", "subject": "S.x"}
    with pytest.raises(
        OptionError,
        match=r"ledger 'PENSTOCK_LEDGER'.* cannot be made.*allow \$JS\.API\.STREAM\.CREATE\.PENSTOCK_LEDGER",
    ):
        write(guarded.url, batches(10), **bob)  # type: ignore[arg-type]
    assert write(guarded.url, batches(10), ledger="none", **bob).rows == 10  # type: ignore[arg-type]
    admin = Admin(guarded.url, user="admin", password="admin")
    assert admin.calls.stream("S").messages == 10
    admin.close()


def test_a_ledger_that_takes_several_messages_a_subject_is_refused(admin: Admin, nats: NatsServer, stream: str) -> None:
    admin.create(stream)
    admin.create(f"{stream}L")
    with pytest.raises(OptionError, match=rf"stream '{stream}L' cannot be the ledger: it takes several messages"):
        write(nats.url, batches(10), subject=f"{stream}.x", ledger=f"{stream}L")
    assert bodies(admin, stream) == []
