"""Sources and sinks of S2 as tests use them: without Spark, straight at the server."""

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from penstock.connectors.s2 import S2Streams
from penstock.kit.contract import Origin, Receipt
from penstock.planning.positions import Offsets, Range
from penstock.testing.s2_lite import S2Lite
from s2_servers import Cloud, S2Admin

ME = Origin("3f0c8a52-0000-4000-8000-000000000001", 3, 0)
QUICK = {"requestTimeout": "3s"}


def source(server: S2Lite | Cloud, **options: Any) -> Any:
    return S2Streams.open_source(S2Streams.parse({**server.options(), **QUICK, **options}))


def read(
    server: S2Lite | Cloud, stream: str, start: int = 0, end: int | None = None, **options: Any
) -> list[dict[str, Any]]:
    """The rows of a stream, or of a range of it."""
    opened = source(server, streams=stream, **options)
    try:
        bound = opened.bounds()[stream]
        span = Range(stream, start, bound.next if end is None else end, bound.epoch)
        return [row for batch in opened.read(span) for row in batch.to_pylist()]
    finally:
        opened.close()


def values(low: int, high: int, size: int = 100) -> Iterator[pa.RecordBatch]:
    """Rows that are numbers, a hundred to a batch."""
    for at in range(low, high, size):
        rows = [b"%d" % i for i in range(at, min(high, at + size))]
        yield pa.record_batch({"value": pa.array(rows, pa.binary())})


def write(
    server: S2Lite | Cloud,
    batches: Iterator[pa.RecordBatch],
    origin: Origin = ME,
    commit: bool = True,
    ends: Offsets | None = None,
    **options: Any,
) -> Receipt:
    """One attempt of a task, and the driver's part where all went well. `ends`: of a single write that began there."""
    batches = iter(batches)
    first = next(batches)
    given = {"driverBytes": "1", **server.options(), **QUICK, **{k: str(v) for k, v in options.items()}}
    sink: Any = S2Streams.open_sink(S2Streams.parse_sink(given), first.schema)

    if ends is not None:
        sink.begin(ends)

    def whole() -> Iterator[pa.RecordBatch]:
        yield first
        yield from batches

    try:
        receipt = sink.write(whole(), origin)
        if commit:
            sink.commit([receipt], origin.batch)
        return receipt
    finally:
        sink.close()


def ends(server: S2Lite | Cloud, columns: pa.Schema, **options: Any) -> Offsets:
    """What a single write notes before its first row."""
    sink: Any = S2Streams.open_sink(S2Streams.parse_sink({**server.options(), **QUICK, **options}), columns)
    found: Offsets = sink.ends()
    return found


def numbers(admin: S2Admin, stream: str) -> list[int]:
    """The numbers in a stream, as s2-sdk reads them; other records are left out."""
    return [int(body) for body in admin.bodies_if_there(stream) if body.isdigit()]


def until(what: Any, seconds: float = 60) -> None:
    """Wait for the server to do what it does in its own time."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def trimmed(admin: S2Admin, stream: str, position: int) -> None:
    """Trim a stream, and wait until the records are gone."""
    admin.trim(stream, position)
    until(lambda: admin.read(stream)[0].seq_num >= position)
