"""JetStream and a `df.write` with `txnAppId`: what the ledger tells apart, and which versions it refuses."""

from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from sink_writes import Stopped, batch, bodies, commit, count, dies_after, stored, write

from nats_servers import Admin
from penstock.connectors.jetstream import JetStream
from penstock.connectors.nats import CoreNats
from penstock.errors import ConnectError, OptionError, PenstockError, ProtocolError
from penstock.kit.contract import Receipt, Transaction
from penstock.testing.nats_server import NatsServer

RULES = (
    r"Here the query is txnAppId 'orders-main', and the batch is txnVersion {}\. Each write .* Versions count from 0"
)


class Sink:
    """Writes to one stream, whose window is over at once: only the ledger helps."""

    def __init__(self, admin: Admin, url: str, stream: str, ledger: str):
        admin.create(stream, duplicate_window=100_000_000)
        self.admin, self.url, self.stream = admin, url, stream
        self.options = {"subject": f"{stream}.x", "ledger": ledger}

    def task(self, version: int, rows: Any, partition: int = 0, name: str = "orders-main") -> Receipt:
        return write(self.url, rows, Transaction(name, version, partition), **self.options)

    def write(self, version: int, *partitions: list[bytes], name: str = "orders-main") -> None:
        """One `df.write`, with the rows of each partition."""
        receipts = [self.task(version, [batch(rows)], at, name) for at, rows in enumerate(partitions)]
        commit(self.url, receipts, version, **self.options)

    def numbers(self) -> list[int]:
        return [int(body) for body in bodies(self.admin, self.stream)]


@pytest.fixture
def sink(admin: Admin, nats: NatsServer, stream: str) -> Sink:
    return Sink(admin, nats.url, stream, f"{stream}L")


@pytest.fixture
def other(admin: Admin, nats: NatsServer, stream: str) -> Sink:
    """Another stream, with the same ledger."""
    return Sink(admin, nats.url, f"{stream}B", f"{stream}L")


def test_a_first_version_larger_than_0_is_refused_with_what_versions_are(sink: Sink) -> None:
    for version in (1, 20261115):
        with pytest.raises(OptionError, match=f"has no note of this query, .*{RULES.format(version)}"):
            sink.write(version, count(0, 5))
    sink.write(0, [])
    sink.write(1, count(0, 5))
    with pytest.raises(OptionError, match=f"ends with batch 1 of this query, .*{RULES.format(3)}"):
        sink.write(3, count(5, 9))
    assert sink.numbers() == list(range(5))


def test_a_version_that_is_over_is_refused_and_not_left_out_without_a_word(sink: Sink) -> None:
    for version in range(3):
        sink.write(version, count(10 * version, 10 * version + 5))
    with pytest.raises(ConnectError, match=f"comes too late: batch 2 .*{RULES.format(0)}"):
        sink.write(0, count(0, 5))


def test_two_sinks_with_one_name_are_refused_also_where_their_rows_are_equal(sink: Sink, other: Sink) -> None:
    """The ledger is the same for all streams, so the second would be taken for the first."""
    sink.write(0, count(0, 5), count(5, 10))
    with pytest.raises(ProtocolError, match=f"there were as many, with checksum .*{RULES.format(0)}"):
        other.write(0, count(0, 5), count(5, 10))
    assert other.numbers() == []
    other.write(0, count(0, 5), count(5, 10), name="orders-copy")
    for each, name in ((sink, "orders-main"), (other, "orders-copy")):
        each.write(0, count(0, 5), count(5, 10), name=name)
        assert sorted(each.numbers()) == list(range(10))


def test_two_sinks_with_one_name_are_refused_also_where_rows_have_ids_of_their_own(sink: Sink, other: Sink) -> None:
    rows = batch(count(0, 5), id=pa.array([f"order-{i}" for i in range(5)]))

    def write_to(target: Sink) -> None:
        receipt = target.task(0, [rows])
        opened: Any = JetStream.open_sink(JetStream.parse_sink({"servers": sink.url, **target.options}), rows.schema)
        with closing(opened):
            opened.commit([receipt], 0)

    write_to(sink)
    write_to(sink)
    with pytest.raises(ProtocolError, match=f"with streams {sink.stream}, and these have streams {other.stream}"):
        write_to(other)
    assert sink.numbers() == list(range(5))


def test_rows_in_fewer_partitions_are_refused(sink: Sink) -> None:
    sink.write(0, count(0, 5), count(5, 10))
    with pytest.raises(ProtocolError, match=f"there were 5 and now there are 10.*{RULES.format(0)}"):
        sink.write(0, count(0, 10))
    with pytest.raises(
        ProtocolError, match=f"partition 1 of batch 0 .* had rows then and has none now.*{RULES.format(0)}"
    ):
        sink.write(0, count(0, 5))
    assert sorted(sink.numbers()) == list(range(10))


def test_a_write_that_ended_half_way_is_completed(sink: Sink) -> None:
    sink.task(0, [batch(count(0, 5))])
    with pytest.raises(Stopped):
        sink.task(0, dies_after([batch(count(5, 7)), batch(count(7, 10))], 1), partition=1)
    assert len(sink.numbers()) < 10
    sink.write(0, count(0, 5), count(5, 10))
    assert sorted(sink.numbers()) == list(range(10))


def test_notes_stay_whatever_the_name_begins_with(sink: Sink) -> None:
    """Names of writes that are never replayed begin with write-, and their notes expire."""
    with pytest.raises(Stopped):
        sink.task(0, dies_after([batch(count(0, 5)), batch([])], 1), name="write-orders")
    assert [headers.get("Nats-TTL") for _, _, headers in stored(sink.admin, sink.options["ledger"])] == [None]


def test_core_nats_says_why_it_has_no_such_option() -> None:
    for name in ("txnAppId", "txnVersion"):
        with pytest.raises(PenstockError, match=f"option '{name}' is for sinks that know a write again.*jetstream"):
            CoreNats.parse_sink({"subject": "a", name: "1"})
