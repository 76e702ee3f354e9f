"""Iggy and a `df.write` with `txnAppId`: rows that moved, versions that do not fit, and ids of the user."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from iggy_sources_and_sinks import numbers, values
from iggy_sources_and_sinks import sink as opened

from iggy_servers import IggyAdmin, Server
from penstock.connectors.iggy import Iggy
from penstock.errors import ConnectError, OptionError, ProtocolError
from penstock.kit.contract import Receipt, Transaction

RULES = (
    r"Here the query is txnAppId 'orders-main', and the batch is txnVersion {}\. Each write .* Versions count from 0"
)
COLUMNS = pa.schema([("value", pa.string())])


class Sink:
    """Writes to a topic of two partitions."""

    def __init__(self, server: Server, admin: IggyAdmin, stream: str):
        admin.make(stream, "t", 2)
        self.server, self.admin, self.stream = server, admin, stream

    def task(
        self, version: int, rows: Iterable[int], at: int = 0, *, name: str = "orders-main", **more: Any
    ) -> Receipt:
        batch = pa.record_batch([[str(i) for i in rows]], COLUMNS)
        sink = opened(self.server, self.stream, COLUMNS, **{"driverBytes": "4mb", **more})
        receipt: Receipt = sink.write(iter([batch]), Transaction(name, version, at))
        return receipt

    def write(self, version: int, *partitions: Iterable[int], **more: Any) -> None:
        """One `df.write`, with the rows of each of Spark's partitions. All go through the driver."""
        receipts = [self.task(version, rows, at, **more) for at, rows in enumerate(partitions)]
        more.pop("name", None)
        opened(self.server, self.stream, COLUMNS, **more).commit(receipts, version)

    def numbers(self) -> list[int]:
        return sorted(numbers(self.admin, self.stream))


@pytest.fixture
def sink(iggy: Server, iggy_admin: IggyAdmin, stream: str) -> Sink:
    return Sink(iggy, iggy_admin, f"txn-{stream}-{id(stream)}")


def test_rows_in_fewer_partitions_are_refused_before_any_is_written(sink: Sink) -> None:
    sink.write(0, range(5))
    sink.write(1, range(5, 8), range(8, 12))
    for moved in ([range(5, 12)], [range(5, 12), ()]):
        words = f"partition 1 of batch 1 .* had rows then and has none now.*{RULES.format(1)}"
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


def test_a_write_that_ended_between_two_tasks_is_completed(sink: Sink) -> None:
    sink.task(0, range(5), driverBytes="1")
    assert sink.numbers() == list(range(5))
    sink.write(0, range(5), range(5, 9))
    assert sink.numbers() == list(range(9))


def test_a_first_version_larger_than_1_is_taken_where_the_whole_topic_shows_that_it_is_new(sink: Sink) -> None:
    sink.write(7, range(5))
    sink.write(9, range(5, 9))
    sink.write(9, range(5, 9))
    assert sink.numbers() == list(range(9))
    with pytest.raises(ConnectError, match=f"there are rows of batch 9 already.*{RULES.format(8)}"):
        sink.write(8, range(9, 12))
    for partition in range(2):
        sink.admin.send(sink.stream, "t", [b"others"] * 50, partition)
    with pytest.raises(ConnectError, match=r"cannot tell whether .* txnAppId 'new', and the batch is txnVersion 7"):
        sink.write(7, range(5), name="new", lookBack="20")


def test_rows_with_ids_of_their_own_are_refused_as_they_would_not_be_known_again(sink: Sink) -> None:
    rows = next(values(0, 5)).append_column("id", pa.array([str(i) for i in range(1, 6)]))
    made = opened(sink.server, sink.stream, rows.schema, txnAppId="orders-main", txnVersion="0")
    with pytest.raises(OptionError, match=r"rows with an `id` of their own.* leave out the column"):
        made.write(iter([rows]), Transaction("orders-main", 0, 0))


def test_a_version_that_an_id_has_no_room_for_is_refused() -> None:
    given = {"stream": "s", "topic": "t", "password": "p", "txnAppId": "a"}
    assert Iggy.parse_sink({**given, "txnVersion": str(2**32 - 1)}).txn_version == 2**32 - 1
    with pytest.raises(OptionError, match="txnVersion must be below 4,294,967,296"):
        Iggy.parse_sink({**given, "txnVersion": str(2**32)})
