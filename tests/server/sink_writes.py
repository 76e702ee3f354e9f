"""A sink without Spark, and a stream read raw."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from nats_servers import Admin
from penstock.connectors.jetstream import JetStream
from penstock.kit.contract import Origin, Receipt
from penstock.planning.positions import Range

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
ORIGIN = Origin("0b9e4a2c", 0, 1)
Message = tuple[str, bytes, dict[str, bytes]]


def batch(values: Iterable[bytes], **columns: Any) -> pa.RecordBatch:
    """Rows of bodies, and of other columns."""
    return pa.record_batch({"value": pa.array(list(values), pa.binary()), **columns})


def count(start: int, end: int) -> list[bytes]:
    return [b"%d" % i for i in range(start, end)]


def batches(rows: int, size: int = 1000) -> Iterator[pa.RecordBatch]:
    """`rows` numbers, in batches as Spark gives them."""
    for low in range(0, rows, size):
        yield batch(count(low, min(rows, low + size)))


def write(url: str, rows: Iterable[pa.RecordBatch], origin: Origin = ORIGIN, **options: str) -> Receipt:
    """One attempt of a task."""
    given = iter(rows)
    first = next(given)

    def everything() -> Iterator[pa.RecordBatch]:
        yield first
        yield from given

    sink: Any = JetStream.open_sink(JetStream.parse_sink({"servers": url, **options}), first.schema)
    try:
        receipt: Receipt = sink.write(everything(), origin)
        return receipt
    finally:
        sink.close()


def commit(url: str, receipts: Sequence[Receipt], number: int | None = ORIGIN.batch, **options: str) -> None:
    """What the driver does when all tasks are done."""
    sink: Any = JetStream.open_sink(JetStream.parse_sink({"servers": url, "subject": "x", **options}), batch([]).schema)
    try:
        sink.commit(receipts, number)
    finally:
        sink.close()


def stored(admin: Admin, stream: str) -> list[Message]:
    """Every message of a stream, as the server gives it: subject, body, headers."""
    source: Any = JetStream.open_source(
        JetStream.parse({"servers": admin.options.servers[0], "stream": stream, "startingOffsets": "earliest"})
    )
    try:
        bound = source.bounds()[stream]
        rows = [row for b in source.read(Range(stream, bound.first, bound.next, bound.epoch)) for row in b.to_pylist()]
    finally:
        source.close()
    return [(r["subject"], r["value"], {h["key"]: h["value"] for h in r["headers"] or []}) for r in rows]


def bodies(admin: Admin, stream: str) -> list[bytes]:
    return [body for _, body, _ in stored(admin, stream)]


class Stopped(Exception):  # noqa: N818 - what a test does to a task
    """A task is killed here."""


def dies_after(rows: Iterable[pa.RecordBatch], whole: int) -> Iterator[pa.RecordBatch]:
    """The first `whole` batches, and then the end of the task."""
    for i, each in enumerate(rows):
        if i == whole:
            raise Stopped
        yield each
