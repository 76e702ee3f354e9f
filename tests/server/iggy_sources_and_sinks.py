"""Sources and sinks of Iggy as tests use them: without Spark, straight at the server."""

import itertools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from iggy_servers import IggyAdmin, Server, options
from penstock.connectors.iggy import Iggy
from penstock.kit.contract import Origin, Receipt
from penstock.planning.positions import Range

ME = Origin("3f0c8a52-0000-4000-8000-000000000001", 3, 0)
QUICK = {"requestTimeout": "2s", "settleTime": "10ms"}


def source(server: Server, stream: str, **more: Any) -> Any:
    given = {**options(server), "requestTimeout": "2s", "stream": stream, **more}
    given |= {} if "topics" in more else {"topic": more.get("topic", "t")}
    return Iggy.open_source(Iggy.parse({k: str(v) for k, v in given.items()}))


def read(server: Server, stream: str, **more: Any) -> list[dict[str, Any]]:
    opened = source(server, stream, **more)
    return [
        row
        for shard, bound in opened.bounds().items()
        for batch in opened.read(Range(shard, bound.first, bound.next, bound.epoch))
        for row in batch.to_pylist()
    ]


def values(low: int, high: int, size: int = 100) -> Iterator[pa.RecordBatch]:
    """Rows that are numbers, a hundred to a batch."""
    for at in range(low, high, size):
        yield pa.record_batch({"value": [str(i) for i in range(at, min(high, at + size))]})


def sink(server: Server, stream: str, columns: pa.Schema, **more: Any) -> Any:
    given = {**options(server), **QUICK, "stream": stream, "topic": "t", "driverBytes": "1", **more}
    return Iggy.open_sink(Iggy.parse_sink({k: str(v) for k, v in given.items()}), columns)


def write(server: Server, stream: str, batches: Iterator[pa.RecordBatch], origin: Origin = ME, **more: Any) -> Receipt:
    """One attempt of a task, and the driver's part where all went well."""
    batches = iter(batches)
    first = next(batches)
    opened = sink(server, stream, first.schema, **more)
    receipt: Receipt = opened.write(itertools.chain([first], batches), origin)
    opened.options.retry("finishing a batch").run(lambda: opened.commit([receipt], origin.batch))
    return receipt


def numbers(admin: IggyAdmin, stream: str) -> list[int]:
    """The rows of the tests that are in the topic, in the order of its partitions."""
    return [int(value) for value in admin.payloads(stream, "t") if value.isdigit()]
