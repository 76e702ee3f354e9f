"""What is read is what was published: once each, the same each time, by either engine, whatever the messages hold."""

import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from jetstream_sources import (
    Query,
    consumers,
    everything,
    numbers,
    once,
    opened,
    sequences,
    table,
    until,
    values,
    whole,
)

from nats_servers import Admin
from penstock.clients.jetstream import engines
from penstock.clients.nats.client import Connection
from penstock.connectors.jetstream import JetStream
from penstock.errors import OptionError
from penstock.kit.contract import Predicate
from penstock.planning.positions import Range, even
from penstock.testing.nats_server import NatsServer

ENGINES = ("consumer", "direct")
MAX_PAYLOAD = 1 << 20


def headers_of(rows: pa.Table) -> list[list[tuple[str, bytes]] | None]:
    return [h and [(field["key"], field["value"]) for field in h] for h in rows["headers"].to_pylist()]


def micros(rows: pa.Table) -> list[int]:
    return rows["timestamp"].cast(pa.int64()).to_pylist()


@pytest.fixture
def filled(admin: Admin, stream: str) -> str:
    """A stream of the numbers 0 to 999 at sequences 1 to 1000."""
    admin.create(stream)
    admin.numbers(stream, 1000)
    return stream


MESSAGES: dict[str, list[tuple[Any, ...]]] = {
    "without headers": [("{s}.a", b"one"), ("{s}.b.c", b"two"), ("{s}.a", b"three")],
    "with headers": [("{s}.a", b"one", {"Key": "value"}), ("{s}.b", b"two", {"A": "1", "B": "2"})],
    "with several values of one key": [("{s}.a", b"x", [("K", "1"), ("L", "2"), ("K", "3"), ("k", "4")])],
    "with an empty header value": [("{s}.a", b"x", [("Empty", ""), ("Full", "yes"), ("Last", "")])],
    "with colons and spaces in header values": [("{s}.a", b"x", [("T", "12:30:00 CET"), ("U", "a: b")])],
    "with headers that are not ASCII": [("{s}.a", b"x", [("Grüße", "schöne €")])],
    "with the header names of DIRECT.GET": [("{s}.a", b"x", [("Nats-Sequence", "77"), ("Nats-Subject", "not.this")])],
    "with an empty body": [("{s}.a", b""), ("{s}.a", b"", {"K": "v"}), ("{s}.a", b"")],
    "with all 256 bytes": [("{s}.a", bytes(range(256))), ("{s}.a", bytes(range(256)) * 40, {"K": "v"})],
    "with frames inside": [
        ("{s}.a", b"\r\nMSG {s}.a 2 5\r\nhello\r\n"),
        ("{s}.a", b"MSG x 1 $JS.ACK.S.C.1.1.1.1111111111111111111.0 3\r\nabc\r\nHMSG x 2 10 12\r\n"),
        ("{s}.a", b"\r\n-ERR 'no'\r\nPING\r\n", {"K": "MSG a 1 0"}),
    ],
    "of the maximum size": [
        ("{s}.a", random.Random(1).randbytes(MAX_PAYLOAD)),
        ("{s}.a", b"small"),
        ("{s}.a", random.Random(2).randbytes(MAX_PAYLOAD - 100), {"K": "v"}),
        ("{s}.a", b"\n" * MAX_PAYLOAD),
    ],
    "with a long subject": [("{s}." + "t" * 200, b"x"), ("{s}." + ".".join("abcdefgh" * 8), b"y", {"K": "v"})],
}
MESSAGES["mixed"] = [message for name, some in MESSAGES.items() if name != "of the maximum size" for message in some]
random.Random(3).shuffle(MESSAGES["mixed"])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("what", MESSAGES)
def test_messages_are_read_as_published(admin: Admin, nats: NatsServer, stream: str, what: str, engine: str) -> None:
    admin.create(stream)
    repeat = 1 if what == "of the maximum size" else 30  # more than one small buffer, so that vectors are at work
    published = [(subject.format(s=stream), *rest) for subject, *rest in MESSAGES[what]] * repeat
    admin.publish(published)
    rows = everything(nats.url, stream, readEngine=engine)
    assert rows["subject"].to_pylist() == [subject for subject, *_ in published]
    assert values(rows) == [body for _, body, *_ in published]
    assert sequences(rows) == list(range(1, len(published) + 1))
    assert set(rows["stream"].to_pylist()) == {stream}
    pairs = [rest[0].items() if rest and isinstance(rest[0], dict) else rest and rest[0] for _, _, *rest in published]
    assert headers_of(rows) == [[(k, v.encode()) for k, v in p] if p else None for p in pairs]


def test_both_engines_give_the_same_table(admin: Admin, nats: NatsServer, stream: str) -> None:
    admin.create(stream)
    rng = random.Random(4)
    for _ in range(3):
        admin.publish(
            (
                f"{stream}.{rng.randrange(9)}",
                rng.randbytes(rng.choice([0, 5, 200, 5000])),
                {"K": str(i)} if i % 3 else {},
            )
            for i in range(500)
        )
    by_consumer, by_direct = (everything(nats.url, stream, readEngine=engine) for engine in ENGINES)
    assert by_consumer.num_rows == 1500
    assert by_consumer.equals(by_direct)
    assert by_consumer.schema == by_direct.schema


@pytest.mark.parametrize("engine", ENGINES)
def test_the_time_of_a_row_is_the_time_that_the_server_stored(
    admin: Admin, nats: NatsServer, stream: str, engine: str
) -> None:
    admin.create(stream)
    admin.numbers(stream, 50)
    stored = [admin.calls.first_from(stream, sequence) for sequence in range(1, 51)]
    assert micros(everything(nats.url, stream, readEngine=engine)) == [message.time for message in stored if message]


def test_the_column_headers_can_be_left_out(admin: Admin, nats: NatsServer, stream: str) -> None:
    admin.create(stream)
    admin.publish([(f"{stream}.a", b"x", {"K": "v"})] * 3)
    for engine in ENGINES:
        rows = everything(nats.url, stream, readEngine=engine, includeHeaders=False)
        assert rows.column_names == ["value", "timestamp", "stream", "sequence", "subject"]
        assert values(rows) == [b"x"] * 3


@pytest.mark.parametrize("engine", ["auto", *ENGINES])
@pytest.mark.parametrize("parts", [1, 2, 7, 100, 300])
def test_ranges_cut_anywhere_give_every_row_exactly_once(
    admin: Admin, nats: NatsServer, filled: str, parts: int, engine: str
) -> None:
    with opened(nats.url, stream=filled, readEngine=engine) as source:
        span = whole(source, filled)
        edges = [span.start, *even(span, parts), span.end]
        tables = [table(source, Range(filled, a, b, span.epoch)) for a, b in pairwise(edges)]
    assert [t.num_rows for t in tables] == [b - a for a, b in pairwise(edges)]
    assert numbers(pa.concat_tables(tables)) == list(range(1000))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_range_of_many_pulls_is_read_whole(
    admin: Admin, nats: NatsServer, filled: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"PULL": 70, "DIRECT": 70, "PULL_BYTES": 3000, "DIRECT_BYTES": 3000}.items():
        monkeypatch.setattr(engines, name, value)
    rows = everything(nats.url, filled, readEngine=engine)
    assert numbers(rows) == list(range(1000))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_range_read_again_gives_the_same_rows(admin: Admin, nats: NatsServer, filled: str, engine: str) -> None:
    with opened(nats.url, stream=filled, readEngine=engine) as source:
        span = Range(filled, 100, 900, whole(source, filled).epoch)
        first = table(source, span)
        admin.numbers(filled, 500, start=1000)
        assert table(source, span).equals(first)
    with opened(nats.url, stream=filled, readEngine=engine) as another:
        assert table(another, span).equals(first)
    assert numbers(first) == list(range(99, 899))


@pytest.mark.parametrize("engine", ENGINES)
def test_deleted_messages_inside_a_range_are_not_loss(admin: Admin, nats: NatsServer, filled: str, engine: str) -> None:
    gone = {2, 3, 500, *range(700, 720), 998}
    for sequence in gone:
        admin.delete_message(filled, sequence)
    rows = everything(nats.url, filled, readEngine=engine)
    assert sequences(rows) == [s for s in range(1, 1001) if s not in gone]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_range_whose_tail_was_deleted_ends(admin: Admin, nats: NatsServer, filled: str, engine: str) -> None:
    for sequence in range(981, 1001):
        admin.delete_message(filled, sequence)
    assert numbers(everything(nats.url, filled, readEngine=engine)) == list(range(980))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_range_of_which_nothing_is_left_gives_no_row(
    admin: Admin, nats: NatsServer, filled: str, engine: str
) -> None:
    for sequence in range(400, 450):
        admin.delete_message(filled, sequence)
    with opened(nats.url, stream=filled, readEngine=engine) as source:
        assert sequences(table(source, Range(filled, 400, 450))) == []
        assert sequences(table(source, Range(filled, 398, 452))) == [398, 399, 450, 451]


@pytest.mark.parametrize("engine", ENGINES)
def test_an_empty_range_asks_nothing_and_gives_no_row(admin: Admin, nats: NatsServer, filled: str, engine: str) -> None:
    with opened(nats.url, stream=filled, readEngine=engine) as source:
        assert list(source.read(Range(filled, 17, 17))) == []
        assert source._calls is None


@pytest.mark.parametrize("engine", ENGINES)
def test_a_stream_without_messages_gives_no_row(admin: Admin, nats: NatsServer, stream: str, engine: str) -> None:
    admin.create(stream)
    with opened(nats.url, stream=stream, readEngine=engine) as source:
        bound = source.bounds()[stream]
        assert (bound.first, bound.next) == (1, 1)
        assert table(source, whole(source, stream)).num_rows == 0
    admin.numbers(stream, 5)
    admin.purge(stream)
    with opened(nats.url, stream=stream, readEngine=engine) as source:
        bound = source.bounds()[stream]
        assert (bound.first, bound.next) == (6, 6)


@pytest.fixture
def kinds(admin: Admin, stream: str) -> str:
    """A stream of 900 messages: 300 each on .a.x, .b.y and .c.z, in turn."""
    admin.create(stream)
    admin.publish((f"{stream}.{'abc'[i % 3]}.{'xyz'[i % 3]}", str(i).encode()) for i in range(900))
    return stream


@pytest.mark.parametrize("engine", ["auto", *ENGINES])
@pytest.mark.parametrize(
    ("filters", "kept"),
    [("a.>", "a"), ("*.y", "b"), ("a.x,c.*", "ac"), ("a.x,b.y,c.z", "abc"), (">", "abc"), ("a.nothing", "")],
)
def test_filters_choose_the_same_rows_on_every_engine(
    admin: Admin, nats: NatsServer, kinds: str, filters: str, kept: str, engine: str
) -> None:
    subjects = ",".join(f"{kinds}.{text}" for text in filters.split(","))
    rows = everything(nats.url, kinds, readEngine=engine, subjects=subjects)
    assert numbers(rows) == [i for i in range(900) if "abc"[i % 3] in kept]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_filtered_range_ends_where_the_range_ends(admin: Admin, nats: NatsServer, kinds: str, engine: str) -> None:
    for subjects, kept in ((f"{kinds}.b.>", "b"), (f"{kinds}.b.>,{kinds}.c.>", "bc")):
        with opened(nats.url, stream=kinds, subjects=subjects, readEngine=engine) as source:
            rows = table(source, Range(kinds, 101, 301), Range(kinds, 301, 303))
        assert sequences(rows) == [s for s in range(101, 303) if "abc"[(s - 1) % 3] in kept]


def test_a_filter_that_no_subject_can_match_is_refused(admin: Admin, nats: NatsServer, stream: str) -> None:
    admin.create(stream)
    words = rf"no message can match 'elsewhere\.>': the stream takes {stream}\.>"
    with opened(nats.url, stream=stream, subjects="elsewhere.>") as source, pytest.raises(OptionError, match=words):
        source.check()
    for begin in (Query, once):
        with (
            opened(nats.url, stream=stream, subjects=f"{stream}.ok,elsewhere.>") as source,
            pytest.raises(OptionError, match=words),
        ):
            begin(source)


@pytest.fixture
def sparse(admin: Admin, stream: str) -> str:
    """5,000 messages, of which 200 are on .hot: dense at the beginning, then hardly any."""
    admin.create(stream)
    hot = {*range(0, 300, 2), *range(400, 5000, 92)}
    admin.publish((f"{stream}.{'hot' if i in hot else 'cold'}", str(i).encode()) for i in range(5000))
    assert len(hot) == 200
    return stream


@pytest.mark.parametrize("engine", ["auto", "direct"])
def test_a_sparse_filter_is_cut_into_tasks_of_equal_rows(
    admin: Admin, nats: NatsServer, sparse: str, engine: str
) -> None:
    with opened(nats.url, stream=sparse, subjects=f"{sparse}.hot", minPartitions=8, readEngine=engine) as source:
        sizes = [table(source, *task).num_rows for task in once(source)]
    assert len(sizes) == 8
    assert sum(sizes) == 200
    assert all(15 <= size <= 35 for size in sizes)
    until(lambda: consumers(admin, sparse) == 0)


@pytest.mark.parametrize(("engine", "most"), [("auto", 32), ("direct", 32), ("consumer", 60)])
@pytest.mark.parametrize("limit", [None, 800])
def test_planning_takes_few_requests(
    admin: Admin,
    nats: NatsServer,
    stream: str,
    engine: str,
    most: int,
    limit: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chance = random.Random(4)
    admin.create(stream)
    admin.publish((f"{stream}.{'hot' if chance.random() < 0.2 else 'cold'}", b"") for _ in range(10_000))
    asked: list[str] = []
    with opened(nats.url, stream=stream, subjects=f"{stream}.hot", minPartitions=8, readEngine=engine) as source:
        query = Query(source)
        requests, ask = Connection.requests, Connection.ask
        with monkeypatch.context() as patch:
            patch.setattr(Connection, "requests", lambda c, a: (asked.extend(s for s, _ in a), requests(c, a))[1])
            patch.setattr(Connection, "ask", lambda c, subject: (asked.append(subject), ask(c, subject))[1])
            start, end = query.at, query.step(limit)
        tasks = query.plan.tasks(start, end)
        sizes = [table(source, *task).num_rows for task in tasks]
    assert len(sizes) == 8
    assert limit is None or sum(sizes) == limit, "a limit is exact"
    average = sum(sizes) / 8
    assert all(0.5 * average <= size <= 1.5 * average for size in sizes)
    assert len(asked) <= most, "halving took 150 to 380"


@pytest.mark.parametrize("engine", ["auto", "direct"])
def test_a_limit_per_trigger_counts_the_rows_that_match(
    admin: Admin, nats: NatsServer, sparse: str, engine: str
) -> None:
    with opened(nats.url, stream=sparse, subjects=f"{sparse}.hot", readEngine=engine) as source:
        read = Query(source).run(60)
    assert [rows.num_rows for rows in read] == [60, 60, 60, 20]
    assert sequences(pa.concat_tables(read)) == sequences(everything(nats.url, sparse, subjects=f"{sparse}.hot"))


@pytest.mark.parametrize("engine", ["auto", "direct"])
def test_a_batch_waits_until_enough_rows_match(admin: Admin, nats: NatsServer, sparse: str, engine: str) -> None:
    options = {"subjects": f"{sparse}.hot", "minRecordsPerTrigger": 250, "readEngine": engine}
    with opened(nats.url, stream=sparse, **options) as source:
        query = Query(source)
        assert query.run() == [], "5,000 messages, but only 200 match"
        admin.numbers(sparse, 49, subject=f"{sparse}.hot")
        assert query.run() == []
        admin.numbers(sparse, 1, subject=f"{sparse}.hot")
        assert [rows.num_rows for rows in query.run()] == [250]


@pytest.mark.parametrize("engine", ["auto", "direct"])
def test_a_limit_per_trigger_holds_while_messages_arrive(
    admin: Admin, nats: NatsServer, sparse: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting takes several questions, and what arrives between them is not part of the batch."""
    with opened(nats.url, stream=sparse, subjects=f"{sparse}.hot", minPartitions=3, readEngine=engine) as source:
        query, count = Query(source), source.count

        def counted(shard: str, positions: Sequence[int]) -> Sequence[int] | None:
            admin.numbers(sparse, 20, subject=f"{sparse}.hot")
            return count(shard, positions)

        monkeypatch.setattr(source, "count", counted)
        start, end = query.at, query.step(60)
        sizes = [table(source, *task).num_rows for task in query.plan.tasks(start, end)]
    assert sum(sizes) == 60
    assert all(18 <= size <= 22 for size in sizes)


def test_a_limit_per_trigger_is_shared_by_two_streams_and_nothing_is_missed(
    admin: Admin, nats: NatsServer, stream: str
) -> None:
    for name, count in ((f"{stream}A", 1000), (f"{stream}B", 50)):
        admin.create(name)
        admin.numbers(name, count)
    with opened(nats.url, stream=f"{stream}A,{stream}B") as source:
        read = Query(source).run(300)
    assert [rows.num_rows for rows in read] == [300, 300, 300, 150]
    rows = pa.concat_tables(read).to_pylist()
    assert [row["sequence"] for row in rows if row["stream"] == f"{stream}A"] == list(range(1, 1001))
    assert [row["sequence"] for row in rows if row["stream"] == f"{stream}B"] == list(range(1, 51))


def test_a_batch_planned_again_from_its_text_has_the_same_tasks(admin: Admin, nats: NatsServer, sparse: str) -> None:
    with opened(nats.url, stream=sparse, subjects=f"{sparse}.hot", minPartitions=4) as source:
        query = Query(source)
        start, end = query.at, query.step(150)
        tasks = query.plan.tasks(start, end)
        admin.numbers(sparse, 100, subject=f"{sparse}.hot")
        replayed = Query(source).plan.tasks(json.loads(json.dumps(start)), json.loads(json.dumps(end)))
    assert replayed == tasks
    assert len(tasks) == 4


def test_several_small_streams_share_a_task_and_each_row_comes_once(
    admin: Admin, nats: NatsServer, stream: str
) -> None:
    names = [f"{stream}_{k}" for k in range(5)]
    for name in names:
        admin.create(name)
        admin.numbers(name, 20)
    with opened(nats.url, stream=",".join(names)) as source:
        tasks = once(source)
        assert len(tasks) == 1
        rows = table(source, *tasks[0])
    assert [(row["stream"], int(row["value"])) for row in rows.to_pylist()] == [
        (n, i) for n in names for i in range(20)
    ]


@pytest.fixture
def moments(admin: Admin, stream: str) -> tuple[str, list[int]]:
    """A stream of 40 messages, each at a time of its own, and those times."""
    admin.create(stream)
    times: list[int] = []
    for i in range(40):
        admin.numbers(stream, 1, start=i)
        message = admin.calls.first_from(stream, i + 1)
        assert message is not None
        times.append(message.time)
    assert len(set(times)) == 40
    return stream, times


def test_find_gives_the_first_message_not_older_than_a_moment(nats: NatsServer, moments: tuple[str, list[int]]) -> None:
    stream, times = moments
    with opened(nats.url, stream=stream) as source:
        assert source.find(stream, 0) == 1
        assert source.find(stream, times[0]) == 1
        for k in (0, 1, 17, 38, 39):
            assert source.find(stream, times[k]) == k + 1
            assert source.find(stream, times[k] + 1) == k + 2
        assert source.find(stream, times[39] + 1) == 41
        assert source.find(stream, times[39] + 10**12) == 41


def test_find_steps_over_deleted_messages(admin: Admin, nats: NatsServer, moments: tuple[str, list[int]]) -> None:
    stream, times = moments
    for sequence in (1, 2, *range(10, 20), 25, 39, 40):
        admin.delete_message(stream, sequence)
    left = [s for s in range(1, 41) if s not in (1, 2, *range(10, 20), 25, 39, 40)]
    with opened(nats.url, stream=stream) as source:
        for k in range(40):
            at = source.find(stream, times[k])
            assert [s for s in left if s >= at] == [s for s in left if s >= k + 1]


def test_find_in_a_stream_without_messages_gives_its_head(admin: Admin, nats: NatsServer, stream: str) -> None:
    admin.create(stream)
    with opened(nats.url, stream=stream) as source:
        assert source.find(stream, 0) == 1
    admin.numbers(stream, 7)
    admin.purge(stream)
    with opened(nats.url, stream=stream) as source:
        assert source.find(stream, 0) == 8


def test_a_query_starts_and_ends_at_timestamps(nats: NatsServer, moments: tuple[str, list[int]]) -> None:
    stream, times = moments

    def iso(moment: int) -> str:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment)).isoformat()

    with opened(nats.url, stream=stream, startingTimestamp=iso(times[10]), endingTimestamp=iso(times[30])) as source:
        tasks = once(source)
        assert numbers(table(source, *tasks[0])) == list(range(10, 30))


@pytest.mark.parametrize("engine", ["auto", "direct"])
def test_count_tells_how_many_rows_lie_at_or_after_a_position(
    admin: Admin, nats: NatsServer, kinds: str, engine: str
) -> None:
    for subjects, kept in ((f"{kinds}.a.>", "a"), (f"{kinds}.a.x,{kinds}.c.*", "ac")):
        with opened(nats.url, stream=kinds, subjects=subjects, readEngine=engine) as source:
            source.bounds()
            positions = [0, 1, 2, 450, 898, 900, 901]
            true = [sum("abc"[(s - 1) % 3] in kept for s in range(max(1, p), 901)) for p in positions]
            assert list(source.count(kinds, positions) or []) == true
    until(lambda: consumers(admin, kinds) == 0)


def test_count_leaves_it_to_the_numbers_where_they_are_dense_and_counts_where_most_is_deleted(
    admin: Admin, nats: NatsServer, filled: str
) -> None:
    with opened(nats.url, stream=filled) as source:
        source.bounds()
        assert source.count(filled, [1, 500]) is None
    for sequence in range(2, 602):
        admin.delete_message(filled, sequence)
    with opened(nats.url, stream=filled) as source:
        source.bounds()
        assert list(source.count(filled, [1, 2, 601, 602, 1000, 1001]) or []) == [400, 399, 399, 399, 1, 0]


def test_subjects_without_a_stream_find_the_streams_that_take_them(admin: Admin, nats: NatsServer, stream: str) -> None:
    admin.create(f"{stream}A", f"{stream}.a.>")
    admin.create(f"{stream}B", f"{stream}.b.>")
    admin.create(f"{stream}C", f"{stream}.c.>")
    for letter in "abc":
        admin.numbers(f"{stream}{letter.upper()}", 10, subject=f"{stream}.{letter}.x")
    with opened(nats.url, subjects=f"{stream}.a.x,{stream}.b.>") as source:
        assert sorted(source.bounds()) == [f"{stream}A", f"{stream}B"]
        rows = table(source, whole(source, f"{stream}A"), whole(source, f"{stream}B"))
    assert set(rows["subject"].to_pylist()) == {f"{stream}.a.x", f"{stream}.b.x"}
    assert rows.num_rows == 20


def test_subjects_that_no_stream_takes_are_refused(nats: NatsServer) -> None:
    with (
        opened(nats.url, subjects="nobody.takes.this") as source,
        pytest.raises(OptionError, match=r"no stream takes messages on nobody\.takes\.this"),
    ):
        source.bounds()


def test_a_query_that_may_lose_is_started_without_a_stream_that_is_gone(
    admin: Admin, nats: NatsServer, stream: str
) -> None:
    admin.create(stream)
    with opened(nats.url, stream=f"{stream},{stream}_GONE", failOnDataLoss="false") as source:
        source.check()
        assert list(source.bounds()) == [stream]
    with (
        opened(nats.url, stream=f"{stream},{stream}_GONE") as source,
        pytest.raises(OptionError, match=f"'{stream}_GONE' does not exist"),
    ):
        source.check()


def test_a_stream_that_does_not_exist_is_refused_with_the_nearest_name(
    admin: Admin, nats: NatsServer, stream: str
) -> None:
    admin.create(f"{stream}_ORDERS")
    with (
        opened(nats.url, stream=f"{stream}_ORDER") as source,
        pytest.raises(OptionError, match=rf"'{stream}_ORDER' does not exist. Did you mean '{stream}_ORDERS'"),
    ):
        source.bounds()


@pytest.mark.usefixtures("_new_ledger")
def test_a_ledger_is_not_told_to_who_misspells_a_stream(admin: Admin, nats: NatsServer) -> None:
    admin.create("PENSTOCK_LEDGER")
    try:
        for name in ("PENSTOCK", "LEDGER"):
            with opened(nats.url, stream=name) as source, pytest.raises(OptionError) as caught:
                source.check()
            assert "does not exist" in str(caught.value)
            assert "PENSTOCK_LEDGER" not in str(caught.value)
    finally:
        admin.delete("PENSTOCK_LEDGER")


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_stream_made_while_the_query_runs_is_found_and_read_from_its_beginning(
    admin: Admin, nats: NatsServer, stream: str, start: str
) -> None:
    admin.create(f"{stream}_old", f"{stream}.old.>")
    admin.numbers(f"{stream}_old", 10, subject=f"{stream}.old.x")
    with opened(nats.url, streamPattern=f"{stream}_(old|new)", discoveryInterval="50ms") as source:
        query = Query(source, start)
        read = query.run()
        admin.create(f"{stream}_new", f"{stream}.new.>")
        admin.create(f"{stream}_newer", f"{stream}.newer.>")  # only its beginning matches
        admin.numbers(f"{stream}_new", 25, subject=f"{stream}.new.x")
        until(lambda: read.extend(query.run()) or query.at["next"].get(f"{stream}_new") == 26)
        assert sorted(query.at["next"]) == [f"{stream}_new", f"{stream}_old"]
    rows = pa.concat_tables(read)
    assert [r["sequence"] for r in rows.to_pylist() if r["stream"] == f"{stream}_new"] == list(range(1, 26))
    old = [r["sequence"] for r in rows.to_pylist() if r["stream"] == f"{stream}_old"]
    assert old == ([] if start == "latest" else list(range(1, 11)))


def test_a_pattern_that_matches_nothing_yet_waits_for_a_stream(admin: Admin, nats: NatsServer, stream: str) -> None:
    with opened(nats.url, streamPattern=f"{stream}_.*", discoveryInterval="50ms") as source:
        query = Query(source, "latest")
        assert query.run() == []
        admin.create(f"{stream}_x", f"{stream}.>")
        admin.numbers(f"{stream}_x", 5, subject=f"{stream}.y")
        read = until(query.run)
    assert numbers(pa.concat_tables(read)) == [0, 1, 2, 3, 4]


def test_two_streams_are_read_each_by_its_own_numbers(admin: Admin, nats: NatsServer, stream: str) -> None:
    admin.create(f"{stream}A")
    admin.create(f"{stream}B")
    admin.numbers(f"{stream}A", 30)
    admin.numbers(f"{stream}B", 20, start=100)
    with opened(nats.url, stream=f"{stream}A, {stream}B") as source:
        a, b = whole(source, f"{stream}A"), whole(source, f"{stream}B")
        rows = table(source, a, b).to_pylist()
    assert [int(r["value"]) for r in rows if r["stream"] == a.shard] == list(range(30))
    assert [int(r["value"]) for r in rows if r["stream"] == b.shard] == list(range(100, 120))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_reader_that_stops_early_leaves_a_usable_connection_and_no_consumer(
    admin: Admin, nats: NatsServer, stream: str, engine: str
) -> None:
    admin.create(stream)
    admin.publish((f"{stream}.n", b"%06d" % i + bytes(500)) for i in range(10_000))
    with opened(nats.url, stream=stream, readEngine=engine) as source:
        span = whole(source, stream)
        reading = source.read(span)
        first = next(reading)
        connection = source._open().connection
        assert 0 < first.num_rows < 10_000
        reading.close()
        assert sequences(table(source, Range(stream, 10, 20))) == list(range(10, 20))
        assert source._open().connection is connection
        assert table(source, span).num_rows == 10_000
    until(lambda: consumers(admin, stream) == 0)


def test_a_connection_given_back_early_serves_the_next_reader(admin: Admin, nats: NatsServer, stream: str) -> None:
    admin.create(stream)
    admin.publish((f"{stream}.n", b"%06d" % i + bytes(500)) for i in range(10_000))
    with opened(nats.url, stream=stream, readEngine="consumer") as source:
        span = whole(source, stream)
        reading = source.read(span)
        next(reading)
        reading.close()
        connection = source._open().connection
    with opened(nats.url, stream=stream, readEngine="consumer") as another:
        assert table(another, span).num_rows == 10_000
        assert another._open().connection is connection


def test_a_connection_is_reused_by_the_next_source_of_the_process(admin: Admin, nats: NatsServer, filled: str) -> None:
    used = []
    for _ in range(3):
        with opened(nats.url, stream=filled) as source:
            table(source, Range(filled, 1, 10))
            used.append(source._open().connection)
    assert len({id(connection) for connection in used}) == 1


def test_sources_that_live_at_once_have_a_connection_each(admin: Admin, nats: NatsServer, filled: str) -> None:
    with opened(nats.url, stream=filled) as one, opened(nats.url, stream=filled) as two:
        left, right = one.read(Range(filled, 1, 501)), two.read(Range(filled, 501, 1001))
        first, other = next(left), next(right)
        assert sum(rows.num_rows for rows in (first, *left)) == 500
        assert sum(rows.num_rows for rows in (other, *right)) == 500
        assert one._open().connection is not two._open().connection


def test_a_narrowed_read_finds_the_streams_that_the_whole_read_finds(
    admin: Admin, nats: NatsServer, stream: str
) -> None:
    """A stream that sources another holds subjects which it does not list."""
    admin.create(f"{stream}B", f"{stream}.eu")
    admin.numbers(f"{stream}B", 5, subject=f"{stream}.eu")
    body = {
        "name": f"{stream}A",
        "subjects": [f"{stream}.x"],
        "sources": [{"name": f"{stream}B"}],
        "allow_direct": True,
    }
    admin.calls.call(f"STREAM.CREATE.{stream}A", body)
    until(lambda: admin.calls.stream(f"{stream}A").last == 5)
    options = JetStream.parse({"servers": nats.url, "subjects": f"{stream}.>"})
    narrowed = JetStream.narrow(options, [Predicate("subject", "=", f"{stream}.eu")])
    for asked in (options, narrowed):
        source = JetStream.open_source(asked)
        assert sorted(source.bounds()) == [f"{stream}A", f"{stream}B"]
        source.close()


def test_a_subject_that_is_no_text_is_matched_by_its_bytes(admin: Admin, nats: NatsServer, stream: str) -> None:
    admin.create(stream)
    admin.connection.send(b"PUB %s.a.\xff 1\r\nx\r\n" % stream.encode())
    until(lambda: admin.calls.stream(stream).last == 1)
    for engine in ("direct", "consumer"):
        with opened(nats.url, stream=stream, subjects=f"{stream}.a.*,{stream}.b", readEngine=engine) as source:
            assert sum(map(len, source.read(whole(source, stream)))) == 1


def test_a_mirror_and_a_stream_with_sources_are_read_with_their_own_numbers(
    admin: Admin, nats: NatsServer, filled: str
) -> None:
    admin.calls.call(
        f"STREAM.CREATE.{filled}M", {"name": f"{filled}M", "mirror": {"name": filled}, "allow_direct": True}
    )
    admin.calls.call(
        f"STREAM.CREATE.{filled}T", {"name": f"{filled}T", "sources": [{"name": filled}], "allow_direct": True}
    )
    for copy in (f"{filled}M", f"{filled}T"):
        until(lambda copy=copy: admin.calls.stream(copy).messages == 1000)
        for engine in ENGINES:
            rows = everything(nats.url, copy, readEngine=engine, subjects=f"{filled}.n")
            assert numbers(rows) == list(range(1000))
