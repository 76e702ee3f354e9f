"""Rows that tasks hand to the driver, which writes them in the order of the tasks. Knows Arrow; no server, no Spark."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import pyarrow as pa

from penstock.arrow.ipc import pack, unpack
from penstock.kit import figures
from penstock.kit.contract import Origin, Receipt

Send = Callable[[Iterator[pa.RecordBatch], Origin], Receipt]


def write(batches: Iterator[pa.RecordBatch], origin: Origin, most: int, send: Send) -> Receipt:
    """In a task: a receipt that carries the rows. More than about `most` bytes are sent by the task itself."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size > most:
            return send(chain(_emptied(held), batches), origin)
    return Receipt(origin, sum(map(len, held)), size, packed=pack(held))


def commit(receipts: Sequence[Receipt], send: Send) -> Iterator[Receipt]:
    """In the driver: send the rows in receipts. Gives each receipt, in the order of the tasks."""
    for receipt in sorted(receipts, key=lambda receipt: receipt.origin.partition):
        if receipt.packed is not None:
            receipt = send(unpack(receipt.packed), receipt.origin)
            figures.count(already_there=receipt.known)
        yield receipt


def _emptied(held: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches, each removed from the list as it is taken, so that its memory can be freed."""
    while held:
        yield held.pop(0)
