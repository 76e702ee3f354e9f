"""Open a source, read ranges and batches, and wait for things: what all tests of the JetStream source share."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from nats_servers import Admin
from penstock.connectors.jetstream import JetStream
from penstock.connectors.jetstream.source import JetStreamSource
from penstock.planning.checkpoint import Checkpoint
from penstock.planning.planner import Planner
from penstock.planning.positions import Offsets, Range


@contextmanager
def opened(url: str, **options: Any) -> Iterator[JetStreamSource]:
    """A source, closed at the end."""
    source: Any = JetStream.open_source(JetStream.parse({"servers": url, **{k: str(v) for k, v in options.items()}}))
    try:
        yield source
    finally:
        source.close()


def whole(source: JetStreamSource, stream: str) -> Range:
    """All that a stream holds now."""
    bound = source.bounds()[stream]
    return Range(stream, bound.first, bound.next, bound.epoch)


def table(source: JetStreamSource, *spans: Range) -> pa.Table:
    """The rows of ranges, one after the other."""
    return pa.Table.from_batches([rows for span in spans for rows in source.read(span)], schema=source.columns)


def everything(url: str, stream: str, **options: Any) -> pa.Table:
    """All rows of a stream, by a source of its own."""
    with opened(url, **({} if "stream" in options else {"stream": stream}), **options) as source:
        return table(source, whole(source, stream))


def sequences(rows: pa.Table) -> list[int]:
    return rows["sequence"].to_pylist()


def values(rows: pa.Table) -> list[bytes]:
    return rows["value"].to_pylist()


def numbers(rows: pa.Table) -> list[int]:
    """The bodies that `Admin.numbers` published."""
    return [int(value) for value in values(rows)]


class Query:
    """A streaming query without Spark: a planner, and where it stands."""

    def __init__(self, source: JetStreamSource, start: str = "earliest", at: dict[str, Any] | None = None):
        """A new query, or one that is restarted from its checkpoint `at`."""
        self.source, self.plan = source, Planner(source, source.options, start)
        self.at = at or self.plan.initial()
        if at is None:
            self.at = self.step()

    def step(self, max_rows: int | None = None) -> dict[str, Any]:
        """The end of the next micro-batch, by what the server holds now."""
        self.plan.look(now=True)
        return self.plan.next(self.at, max_rows)

    def batch(self, max_rows: int | None = None) -> pa.Table | None:
        """Read one micro-batch; None where there is nothing to do."""
        start, end = self.at, self.step(max_rows)
        if end == start:
            return None
        rows = table(self.source, *(span for task in self.plan.tasks(start, end) for span in task))
        self.at = end
        return rows

    def run(self, max_rows: int | None = None) -> list[pa.Table]:
        """Read micro-batches until nothing is left; the rows of each."""
        return list(iter(lambda: self.batch(max_rows), None))

    @property
    def offsets(self) -> Offsets:
        return Checkpoint.decode(self.at).positions


def once(source: JetStreamSource) -> list[tuple[Range, ...]]:
    """The tasks of a batch read."""
    return Planner(source, source.options, "earliest").once(lambda _, bound: (bound.first, bound.next))


def until(condition: Callable[[], Any], seconds: float = 10) -> Any:
    """Wait until a condition holds; what it said."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"did not come true within {seconds:g}s"
        time.sleep(0.01)
    return answer


def consumers(admin: Admin, stream: str) -> int:
    return int(admin.calls.call(f"STREAM.INFO.{stream}")["state"]["consumer_count"])


def take(admin: Admin, stream: str, count: int, durable: str = "d") -> list[bytes]:
    """Another client takes messages from a durable; where they are to be acknowledged."""
    sid, inbox = admin.connection.subscribe()
    admin.connection.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{durable}", b'{"batch": %d}' % count, f"{inbox}.1")
    replies: list[bytes] = []
    while len(replies) < count:
        scan = admin.connection.receive(sid, linger=False)
        lines = bytes(scan.messages.lines) if scan.messages is not None else b""
        replies += [word for word in lines.split() if word.startswith(b"$JS.ACK.")]
    admin.connection.unsubscribe(sid)
    return replies
