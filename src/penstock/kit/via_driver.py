"""Rows that a task hands to the driver, which writes the tasks of a batch in their order. Knows Arrow; no server."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import pyarrow as pa

from penstock.arrow.ipc import pack, unpack
from penstock.kit.contract import Origin, Receipt

Send = Callable[[Iterator[pa.RecordBatch], Origin], Receipt]


def write(batches: Iterator[pa.RecordBatch], origin: Origin, most: int, send: Send) -> Receipt:
    """In a task: a receipt with the rows in it, up to about `most` bytes; more than that is sent from here."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size > most:
            return send(chain(_emptied(held), batches), origin)
    return Receipt(origin, sum(map(len, held)), size, packed=pack(held))


def commit(receipts: Sequence[Receipt], send: Send) -> Iterator[Receipt]:
    """In the driver: each receipt in the order of the tasks, after the rows that travelled in it were sent."""
    for receipt in sorted(receipts, key=lambda receipt: receipt.origin.partition):
        yield receipt if receipt.packed is None else send(unpack(receipt.packed), receipt.origin)


def _emptied(held: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches, each let go of as it is taken: all of them may be large."""
    while held:
        yield held.pop(0)
