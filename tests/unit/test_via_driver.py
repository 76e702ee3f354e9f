"""Rows that travel to the driver, and rows that are too many for that."""

from collections.abc import Iterator

import pyarrow as pa

from penstock.kit import via_driver
from penstock.kit.contract import Origin, Receipt


class Target:
    """Notes what is sent, by whom."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, list[int]]] = []

    def send(self, batches: Iterator[pa.RecordBatch], origin: Origin) -> Receipt:
        rows = [value for batch in batches for value in batch["n"].to_pylist()]
        self.sent.append((origin.partition, rows))
        return Receipt(origin, len(rows))


def batches(*sizes: int) -> Iterator[pa.RecordBatch]:
    first = 0
    for size in sizes:
        yield pa.record_batch({"n": pa.array(range(first, first + size), pa.int64())})
        first += size


def test_few_rows_travel_and_are_written_in_the_order_of_the_tasks() -> None:
    target = Target()
    receipts = [via_driver.write(batches(3, 2), Origin("q", 0, task), 1000, target.send) for task in (2, 0, 1)]
    assert target.sent == []
    assert [receipt.rows for receipt in receipts] == [5, 5, 5]
    done = list(via_driver.commit(receipts, target.send))
    assert target.sent == [(task, list(range(5))) for task in (0, 1, 2)]
    assert all(receipt.packed is None for receipt in done)


def test_more_rows_than_may_travel_are_sent_by_their_task() -> None:
    target = Target()
    receipt = via_driver.write(batches(100, 100, 100), Origin("q", 0, 0), 1000, target.send)
    assert target.sent == [(0, list(range(300)))]
    assert receipt.packed is None
    assert list(via_driver.commit([receipt], target.send)) == [receipt]
    assert len(target.sent) == 1


def test_a_task_without_rows_has_nothing_to_travel() -> None:
    target = Target()
    for given in (batches(), batches(0)):
        receipt = via_driver.write(given, Origin("q", 0, 0), 1000, target.send)
        assert (receipt.rows, receipt.packed) == (0, None)
