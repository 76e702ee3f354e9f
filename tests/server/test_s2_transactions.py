"""S2 and a `df.write` with `txnAppId`: rows that moved, and versions that do not fit."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from s2_sources_and_sinks import QUICK, numbers, values, write

from penstock.clients.s2.appends import MOST_BYTES
from penstock.connectors.s2 import S2Streams
from penstock.connectors.s2.chain import ROOM
from penstock.errors import ConnectError, ProtocolError
from penstock.kit.contract import Transaction
from penstock.testing.s2_lite import S2Lite
from s2_servers import Cloud, S2Admin

RULES = (
    r"Here the query is txnAppId 'orders-main', and the batch is txnVersion {}\. Each write .* Versions count from 0"
)


class Sink:
    def __init__(self, server: S2Lite | Cloud, admin: S2Admin, stream: str):
        admin.make(stream)
        self.server, self.admin, self.stream = server, admin, stream

    def write(self, version: int, *partitions: Iterable[int], name: str = "orders-main", **options: Any) -> None:
        """One `df.write`, with the rows of each partition. All go through the driver."""
        given = {**self.server.options(), **QUICK, "stream": self.stream, **options}
        columns = pa.schema([("value", pa.binary())])
        sink: Any = S2Streams.open_sink(S2Streams.parse_sink(given), columns)
        batches = [pa.record_batch([[b"%d" % i for i in rows]], columns) for rows in partitions]
        receipts = [sink.write(iter([rows]), Transaction(name, version, at)) for at, rows in enumerate(batches)]
        sink.commit(receipts, version)

    def numbers(self) -> list[int]:
        return numbers(self.admin, self.stream)


@pytest.fixture
def sink(s2: S2Lite | Cloud, s2_admin: S2Admin, stream: str) -> Sink:
    return Sink(s2, s2_admin, f"txn-{stream.lower()}-{id(stream)}")


def test_rows_in_fewer_partitions_are_refused_before_any_is_written(sink: Sink) -> None:
    sink.write(0, range(5))
    sink.write(1, range(5, 8), range(8, 12))
    words = f"partition 1 of batch 1 .* had rows then and has none now.*{RULES.format(1)}"
    for moved in ([range(5, 12)], [range(5, 12), ()]):
        with pytest.raises(ProtocolError, match=words):
            sink.write(1, *moved)
    with pytest.raises(ProtocolError, match=f"with other rows.*{RULES.format(1)}"):
        sink.write(1, range(5, 7), range(7, 10), range(10, 12))
    assert sink.numbers() == list(range(12))
    sink.write(1, range(5, 8), range(8, 12))
    sink.write(2, range(12, 15))
    assert sink.numbers() == list(range(15))


def test_rows_in_fewer_partitions_are_not_noticed_where_tasks_write_by_themselves(sink: Sink) -> None:
    """What is not promised."""
    sink.write(0, range(3), range(3, 7), driverBytes="1")
    sink.write(0, range(7), driverBytes="1")
    assert sorted(sink.numbers()) == sorted([*range(7), *range(3, 7)])


def test_a_write_that_ended_between_two_tasks_is_completed(sink: Sink, s2: S2Lite | Cloud) -> None:
    write(s2, values(0, 5), Transaction("orders-main", 0, 0), commit=False, stream=sink.stream)
    assert sink.numbers() == list(range(5))
    sink.write(0, range(5), range(5, 9))
    assert sink.numbers() == list(range(9))


def test_a_first_version_larger_than_1_is_taken_where_the_whole_stream_shows_that_it_is_new(sink: Sink) -> None:
    sink.write(7, range(5))
    sink.write(9, range(5, 9))
    sink.write(9, range(5, 9))
    assert sink.numbers() == list(range(9))
    for version in (3, 8):
        with pytest.raises(ConnectError, match=rf"there are rows of batch \d already.*{RULES.format(version)}"):
            sink.write(version, range(9, 12))
    sink.admin.append(sink.stream, [b"others"] * 50)
    with pytest.raises(ConnectError, match=r"cannot tell whether .* txnAppId 'new', and the batch is txnVersion 7"):
        sink.write(7, range(5), name="new", lookBack="20")


def test_the_longest_name_fits_beside_the_largest_row(sink: Sink) -> None:
    name, largest = "n" * 100, MOST_BYTES - ROOM - 8
    rows = pa.record_batch({"value": pa.array([b"x" * largest] * 2, pa.binary())})
    for _ in range(2):
        write(sink.server, iter([rows]), Transaction(name, 2**63 - 1, 99_999), stream=sink.stream)
    assert [len(body) for body in sink.admin.bodies(sink.stream)] == [largest] * 2
