"""Messages whose header block lacks its end, or is none: servers store and deliver them. Each costs only itself."""

from typing import Any

import pyarrow as pa
import pytest
from jetstream_sources import Query, everything, opened, sequences, until, values, whole

from nats_servers import Admin
from penstock.connectors.nats import CoreNats
from penstock.connectors.nats.source import SHARD
from penstock.planning.positions import Range
from penstock.testing.nats_server import NatsServer

GOOD = b"NATS/1.0\r\nA: 1\r\nB: 2\r\n\r\n"
BAD = [
    b"NATS/1.0\r\nA: 1\r\n", b"NATS/1.0\r\nA: 1", b"NATS/1.0\r\n", b"NATS/1.0", b"garbage", b"x", b"\r\n", b"\r\n\r\n",
    b"NATS/1.0\r\nA: 1\r\nB", b"NATS/1.0\r\nA: 1\r\nB:", b"NATS/1.0\r\nA: 1\r\nB: 2", b"NATS/1.0\r\nA: 1\r\n: 2",
    b"NATS/1.0\nA: 1\n\n", b"\0" * 20, b"NATS/1.0 503\r\n\r\n", b"NATS/1.0 503", b"NATS/1.0 204 EOB\r\nA: 1\r\n\r\n",
]  # fmt: skip
# A good one before, between and behind the bad ones, and one without headers.
BLOCKS = [GOOD, *(block for bad in BAD for block in (bad, GOOD)), b"", BAD[0]]
ENGINES = ("consumer", "direct")


def fill(admin: Admin, stream: str, **config: Any) -> str:
    admin.create(stream, **config)
    admin.publish((f"{stream}.{'ab'[i % 2]}", b"%d" % i, block) for i, block in enumerate(BLOCKS))
    return stream


def check(rows: pa.Table) -> None:
    """Every row is there with its value, and the good ones have their headers."""
    assert sequences(rows) == list(range(1, len(BLOCKS) + 1))
    assert values(rows) == [b"%d" % i for i in range(len(BLOCKS))]
    for block, headers in zip(BLOCKS, rows["headers"].to_pylist(), strict=True):
        pairs = [(field["key"], field["value"]) for field in headers or ()]
        if block == GOOD:
            assert pairs == [("A", b"1"), ("B", b"2")]
        else:
            assert pairs in ([], [("A", b"1")]), block


@pytest.mark.parametrize("engine", ENGINES)
def test_a_message_with_a_bad_header_block_costs_only_itself(
    admin: Admin, nats: NatsServer, stream: str, engine: str
) -> None:
    fill(admin, stream)
    check(everything(nats.url, stream, readEngine=engine))
    # Also where it is the first or the last of a range, and alone in it.
    with opened(nats.url, stream=stream, readEngine=engine) as source:
        span = whole(source, stream)
        for start in range(1, len(BLOCKS) + 1):
            for end in {start + 1, min(start + 2, len(BLOCKS) + 1)}:
                batches = list(source.read(Range(stream, start, end, span.epoch)))
                assert [s for rows in batches for s in rows.column("sequence").to_pylist()] == list(range(start, end))


def test_both_engines_give_the_same_headers_of_a_bad_block(admin: Admin, nats: NatsServer, stream: str) -> None:
    fill(admin, stream)
    tables = [everything(nats.url, stream, readEngine=engine) for engine in ENGINES]
    assert tables[0].equals(tables[1])


def test_a_work_queue_with_a_bad_header_block_is_read_and_released(admin: Admin, nats: NatsServer, stream: str) -> None:
    fill(admin, stream, retention="workqueue")
    with opened(nats.url, stream=stream, minPartitions=4) as source:
        query = Query(source)
        check(pa.concat_tables(query.run(7)))
        source.commit(query.offsets)
    assert admin.calls.stream(stream).messages == 0


@pytest.mark.parametrize("filters", ["a", "b", "a,b"])
def test_messages_with_bad_header_blocks_are_counted_and_chosen(
    admin: Admin, nats: NatsServer, stream: str, filters: str
) -> None:
    fill(admin, stream, retention="workqueue")
    subjects = ",".join(f"{stream}.{name}" for name in filters.split(","))
    expected = [i + 1 for i in range(len(BLOCKS)) if "ab"[i % 2] in filters]
    with opened(nats.url, stream=stream, subjects=subjects, minPartitions=3) as source:
        source.bounds()
        assert source.count(stream, range(1, len(BLOCKS) + 2)) == [
            sum(s >= at for s in expected) for at in range(1, len(BLOCKS) + 2)
        ]
        assert sequences(pa.concat_tables(Query(source).run())) == expected


def test_bad_header_blocks_come_through_a_shared_consumer(admin: Admin, nats: NatsServer, stream: str) -> None:
    fill(admin, stream)
    config = {"durable_name": "d", "ack_policy": "explicit"}
    admin.calls.call(f"CONSUMER.CREATE.{stream}.d", {"stream_name": stream, "config": config})
    with opened(nats.url, stream=stream, ack="explicit", consumer="d") as source:
        first = source.bounds()[stream].first
        end = until(lambda: (n := source.bounds()[stream].next) - first >= len(BLOCKS) and n)
        check(pa.Table.from_batches(source.ship(Range(stream, first, end))))


def test_bad_header_blocks_come_through_core_nats(admin: Admin, nats: NatsServer, stream: str) -> None:
    source: Any = CoreNats.open_source(CoreNats.parse({"servers": nats.url, "subjects": f"{stream}.>"}))
    try:
        first = source.bounds()[SHARD].next
        fill(admin, stream)  # a stream, too, so that all are acknowledged
        end = until(lambda: (n := source.bounds()[SHARD].next) - first >= len(BLOCKS) and n)
        rows = pa.Table.from_batches(source.ship(Range(SHARD, first, end)))
        check(rows.append_column("sequence", pa.array(range(1, len(BLOCKS) + 1))))
    finally:
        source.close()
