"""Unread data that was deleted stops the query, with numbers; if asked, it goes on and says so. Gaps are no loss."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pyarrow as pa
import pytest
from jetstream_sources import Query, consumers, numbers, once, opened, sequences, table, until, whole

from nats_servers import Admin
from penstock.clients.jetstream import api, engines
from penstock.clients.jetstream.calls import Calls
from penstock.clients.nats.client import Connection
from penstock.errors import DataLossError
from penstock.planning.positions import Position, Range
from penstock.testing.nats_server import NatsServer

ENGINES = ("consumer", "direct")
REMEDY = r"(Raise the stream's limits|Start with a new|Make or name it again).* or set failOnDataLoss=false to go on"


def trim_by_limit(admin: Admin, stream: str) -> None:
    """Messages 1 to 70 go."""
    admin.calls.call(f"STREAM.UPDATE.{stream}", admin.calls.call(f"STREAM.INFO.{stream}")["config"] | {"max_msgs": 30})
    until(lambda: admin.calls.stream(stream).first == 71)


def purge(admin: Admin, stream: str) -> None:
    """All 100 messages go."""
    admin.purge(stream)


def recreate(admin: Admin, stream: str) -> None:
    """Made again, with 40 other messages."""
    admin.delete(stream)
    admin.create(stream)
    admin.numbers(stream, 40, start=1000)


def remove(admin: Admin, stream: str) -> None:
    admin.delete(stream)


@pytest.fixture
def hundred(admin: Admin, stream: str) -> str:
    """A stream of the numbers 0 to 99 at sequences 1 to 100."""
    admin.create(stream)
    admin.numbers(stream, 100)
    return stream


CASES = [
    pytest.param(trim_by_limit, "starts at 71, but the query is at 51: 20 messages were deleted unread", id="trimmed"),
    pytest.param(purge, "starts at 101, but the query is at 51: 50 messages were deleted unread", id="purged"),
    pytest.param(recreate, "was deleted and made again (now 1 to 40, since ", id="re-created"),
    pytest.param(remove, "is gone, or the options no longer name it; the query stood at 51", id="gone"),
]
LEFT = {trim_by_limit: list(range(70, 100)), purge: [], recreate: list(range(1000, 1040)), remove: []}


@pytest.mark.parametrize(("harm", "words"), CASES)
def test_what_was_deleted_unread_stops_the_query_with_numbers(
    admin: Admin, nats: NatsServer, hundred: str, harm: Callable[[Admin, str], None], words: str
) -> None:
    with opened(nats.url, stream=hundred) as source:
        query = Query(source)
        query.batch(50)
        harm(admin, hundred)
        with pytest.raises(DataLossError, match=REMEDY) as caught:
            query.step()
    assert f"stream '{hundred}' {words}" in str(caught.value)


@pytest.mark.parametrize(("harm", "words"), CASES)
def test_a_query_that_may_lose_goes_on_with_what_is_left_and_logs_what_is_not(
    admin: Admin,
    nats: NatsServer,
    hundred: str,
    harm: Callable[[Admin, str], None],
    words: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with opened(nats.url, stream=hundred, failOnDataLoss=False) as source:
        query = Query(source)
        query.batch(50)
        harm(admin, hundred)
        with caplog.at_level(logging.WARNING, "penstock"):
            read = query.run()
            read += query.run()
        assert [r for rows in read for r in numbers(rows)] == LEFT[harm]
        warned = [record.getMessage() for record in caplog.records if record.module == "loss"]
        assert len(warned) == 1, "said once, not once a look"
        assert warned[0].startswith(f"failOnDataLoss=false, going on: stream '{hundred}' {words}")
        # and it still runs
        if harm is remove:
            admin.create(hundred)
        admin.numbers(hundred, 5, start=7000)
        assert numbers(pa.concat_tables(until(query.run)))[-5:] == list(range(7000, 7005))


@pytest.mark.parametrize("harm", [trim_by_limit, purge, recreate])
def test_what_was_skipped_is_not_planned_as_tasks(
    admin: Admin, nats: NatsServer, hundred: str, harm: Callable[[Admin, str], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Were it, a purge of ten million messages would be ten million tasks, and each would warn again."""
    with opened(nats.url, stream=hundred, failOnDataLoss=False) as source:
        query = Query(source)
        query.batch(10)
        harm(admin, hundred)
        start, end = query.at, query.step()
        tasks = query.plan.tasks(start, end)
        assert len(tasks) == (1 if LEFT[harm] else 0)
        caplog.clear()
        assert [n for task in tasks for n in numbers(table(source, *task))] == LEFT[harm]
        assert caplog.text == ""


def test_numbers_that_went_backwards_stop_the_query(
    admin: Admin, nats: NatsServer, hundred: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restore from a backup: the stream is the same one, but ends earlier."""
    with opened(nats.url, stream=hundred) as source:
        query = Query(source)
        query.run()
        monkeypatch.setattr(Calls, "streams", ends_at(60, Calls.streams))
        with pytest.raises(DataLossError, match=rf"stream '{hundred}' ends at 60, but the query already stands at 101"):
            query.step()


def test_a_query_that_may_lose_goes_back_to_the_end_of_a_restored_stream(
    admin: Admin, nats: NatsServer, hundred: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(nats.url, stream=hundred, failOnDataLoss=False) as source:
        query = Query(source)
        query.run()
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "penstock"):
            patch.setattr(Calls, "streams", ends_at(60, Calls.streams))
            query.at = query.step()
        assert query.at["next"] == {hundred: 61}
        assert "its numbers went backwards" in caplog.text
        assert sequences(pa.concat_tables(query.run())) == list(range(61, 101))


def ends_at(last: int, real: Callable[[Calls, Sequence[str]], dict[str, api.StreamInfo | None]]) -> object:
    """`Calls.streams`, of a server that was restored from a backup."""

    def streams(calls: Calls, names: Sequence[str]) -> dict[str, api.StreamInfo | None]:
        return {name: info and replace(info, last=last) for name, info in real(calls, names).items()}

    return streams


@pytest.mark.parametrize("engine", ENGINES)
def test_a_task_whose_range_was_trimmed_since_it_was_planned_fails_with_numbers(
    admin: Admin, nats: NatsServer, hundred: str, engine: str
) -> None:
    with opened(nats.url, stream=hundred, readEngine=engine) as source:
        epoch = whole(source, hundred).epoch
        trim_by_limit(admin, hundred)
        for start, end, gone in ((51, 101, 20), (1, 11, 70), (1, 101, 70)):
            with pytest.raises(DataLossError, match=REMEDY) as caught:
                table(source, Range(hundred, start, end, epoch))
            text = f"stream '{hundred}' starts at 71, but the query is at {start}: {gone} messages were deleted unread"
            assert text in str(caught.value)
        assert sequences(table(source, Range(hundred, 71, 101, epoch))) == list(range(71, 101))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_task_that_may_lose_reads_what_is_left_of_its_range(
    admin: Admin, nats: NatsServer, hundred: str, engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(nats.url, stream=hundred, readEngine=engine, failOnDataLoss=False) as source:
        epoch = whole(source, hundred).epoch
        trim_by_limit(admin, hundred)
        with caplog.at_level(logging.WARNING, "penstock"):
            assert sequences(table(source, Range(hundred, 51, 81, epoch))) == list(range(71, 81))
            assert sequences(table(source, Range(hundred, 1, 11, epoch))) == []
    assert f"stream '{hundred}' starts at 71, but the query is at 51: 20 messages were deleted unread" in caplog.text
    assert f"stream '{hundred}' starts at 71, but the query is at 1: 70 messages were deleted unread" in caplog.text


@pytest.mark.parametrize("engine", ENGINES)
def test_a_task_whose_stream_was_made_again_fails_and_gives_no_row_of_the_new_one(
    admin: Admin, nats: NatsServer, hundred: str, engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        opened(nats.url, stream=hundred, readEngine=engine) as strict,
        opened(nats.url, stream=hundred, readEngine=engine, failOnDataLoss=False) as lax,
    ):
        span = whole(strict, hundred)
        recreate(admin, hundred)
        with pytest.raises(DataLossError, match=rf"'{hundred}' was deleted and made again"):
            table(strict, span)
        assert table(lax, span).num_rows == 0
    assert "was deleted and made again" in caplog.text


@pytest.mark.parametrize("engine", ENGINES)
def test_a_task_whose_stream_is_gone_fails_with_data_loss(
    admin: Admin, nats: NatsServer, hundred: str, engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        opened(nats.url, stream=hundred, readEngine=engine) as strict,
        opened(nats.url, stream=hundred, readEngine=engine, failOnDataLoss=False) as lax,
    ):
        span = whole(strict, hundred)
        remove(admin, hundred)
        with pytest.raises(DataLossError, match=rf"stream '{hundred}' is gone"):
            table(strict, span)
        assert table(lax, span).num_rows == 0
    assert f"'{hundred}' is gone" in caplog.text


@pytest.mark.parametrize("engine", ENGINES)
def test_a_task_that_is_to_read_past_the_end_of_a_restored_stream_fails(
    admin: Admin, nats: NatsServer, hundred: str, engine: str
) -> None:
    """A batch that was planned before the stream was restored is replayed after it: it would lack rows."""
    with opened(nats.url, stream=hundred, readEngine=engine) as source:
        epoch = whole(source, hundred).epoch
        with pytest.raises(DataLossError, match=r"ends at 100"):
            table(source, Range(hundred, 51, 151, epoch))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("filtered", [False, True])
def test_a_range_that_is_trimmed_while_it_is_read_is_loss(
    admin: Admin, nats: NatsServer, stream: str, filtered: bool, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow task on a stream at its limit: what goes between two pulls was not read, and must not be a gap."""
    monkeypatch.setattr(engines, "PULL", 100)
    monkeypatch.setattr(engines, "DIRECT", 100)
    admin.create(stream)
    admin.numbers(stream, 2000)
    options = {"subjects": f"{stream}.n"} if filtered else {}
    with opened(nats.url, stream=stream, readEngine=engine, **options) as source:
        reading = source.read(whole(source, stream))
        rows = [next(reading)]
        admin.purge(stream, seq=1501)
        with pytest.raises(DataLossError, match=r"starts at 1501"):
            rows.extend(reading)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("filtered", [False, True])
def test_what_is_trimmed_after_a_task_has_read_it_is_not_loss(
    admin: Admin, nats: NatsServer, stream: str, filtered: bool, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream's head follows the reader, and passes gaps that were gaps before: every row was there and was read."""
    monkeypatch.setattr(engines, "PULL", 100)
    monkeypatch.setattr(engines, "DIRECT", 100)
    admin.create(stream)
    admin.publish((f"{stream}.{'ab'[i % 2]}", str(i).encode()) for i in range(2000))
    admin.delete_message(stream, 101)
    options = {"subjects": f"{stream}.a"} if filtered else {}
    wanted = [n for n in range(2000) if n != 100 and not (filtered and n % 2)]
    with opened(nats.url, stream=stream, readEngine=engine, **options) as source:
        read: list[int] = []
        for rows in source.read(whole(source, stream)):
            read += map(int, rows["value"].to_pylist())
            if read[-1] > 800:
                admin.purge(stream, seq=501)
    assert read == wanted


@pytest.mark.parametrize("engine", ENGINES)
def test_a_stream_that_keeps_the_newest_of_each_subject_loses_nothing_by_it(
    admin: Admin, nats: NatsServer, stream: str, engine: str
) -> None:
    admin.create(stream, max_msgs_per_subject=1)
    admin.publish((f"{stream}.{i % 7}", str(i).encode()) for i in range(70))
    with opened(nats.url, stream=stream, readEngine=engine) as source:
        query = Query(source)
        old = whole(source, stream)
        assert numbers(pa.concat_tables(query.run())) == list(range(63, 70))
        query.at = query.step()
        admin.publish((f"{stream}.{i % 7}", str(i).encode()) for i in range(70, 140))
        assert source.bounds()[stream].first > query.at["next"][stream]
        assert numbers(pa.concat_tables(query.run())) == list(range(133, 140))
        assert table(source, old).num_rows == 0, "the whole range was replaced since, and that is how it is meant"


@pytest.mark.parametrize("engine", ENGINES)
def test_deletes_inside_what_is_still_to_be_read_are_not_loss(
    admin: Admin, nats: NatsServer, hundred: str, engine: str
) -> None:
    with opened(nats.url, stream=hundred, readEngine=engine) as source:
        query = Query(source)
        first = query.batch(50)
        for sequence in (52, 60, 61, 100):
            admin.delete_message(hundred, sequence)
        rest = pa.concat_tables(query.run())
    assert sequences(first) == list(range(1, 51))
    assert sequences(rest) == [s for s in range(51, 100) if s not in (52, 60, 61)]
    until(lambda: consumers(admin, hundred) == 0)


def test_a_message_deleted_by_hand_at_the_front_of_what_is_to_be_read_says_how_many_are_missing(
    admin: Admin, nats: NatsServer, hundred: str
) -> None:
    """The server moves the first sequence, so it looks like a trim: an error, as nothing may be lost silently."""
    with opened(nats.url, stream=hundred) as source:
        query = Query(source)
        for sequence in (1, 2, 3):
            admin.delete_message(hundred, sequence)
        with pytest.raises(DataLossError, match="starts at 4, but the query is at 1: 3 messages were deleted unread"):
            query.step()


def test_expiry_of_what_was_already_read_is_not_loss(admin: Admin, nats: NatsServer, hundred: str) -> None:
    with opened(nats.url, stream=hundred) as source:
        query = Query(source)
        assert numbers(pa.concat_tables(query.run())) == list(range(100))
        admin.purge(hundred)
        admin.numbers(hundred, 10, start=100)
        assert numbers(pa.concat_tables(query.run())) == list(range(100, 110))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The subjects of all requests."""
    subjects: list[str] = []
    real = Connection.requests

    def requests(connection: Connection, asked: Sequence[tuple[str, bytes]]) -> object:
        subjects.extend(subject for subject, _ in asked)
        return real(connection, asked)

    monkeypatch.setattr(Connection, "requests", requests)
    return subjects


def test_a_position_is_marked_with_the_time_of_the_message_before_it(
    admin: Admin, nats: NatsServer, hundred: str, asked: list[str]
) -> None:
    with opened(nats.url, stream=hundred) as source:
        times = [str(t) for t in table(source, whole(source, hundred))["timestamp"].cast("int64").to_pylist()]
        asked.clear()

        def mark(at: int, known: str = "") -> str | None:
            return source.marks({hundred: Position(at, "", known)}).get(hundred)

        assert mark(101) == times[99]
        assert mark(1) is None
        assert mark(51, times[49]) == times[49]
        assert asked == [], "the last look knows all of that"
        assert mark(51) == times[49]
        assert mark(51, "17") == times[49], "older than all that is there: then it is looked at"
        assert asked == [f"$JS.API.STREAM.MSG.GET.{hundred}"] * 2
        admin.delete_message(hundred, 50)
        assert mark(51) is None
        admin.purge(hundred)
        source.bounds()
        assert mark(101) == times[99]
        assert mark(51) is None


def test_marks_cost_no_request_where_a_query_keeps_up(
    admin: Admin, nats: NatsServer, hundred: str, asked: list[str]
) -> None:
    with opened(nats.url, stream=hundred) as source:
        query = Query(source)
        for start in range(100, 200, 10):
            asked.clear()
            assert query.step()["marks"]
            assert asked == [f"$JS.API.STREAM.INFO.{hundred}"]
            query.batch()
            admin.numbers(hundred, 10, start=start)


def test_servers_whose_clocks_differ_are_no_loss(admin: Admin, nats: NatsServer, hundred: str) -> None:
    """After a change of leader a message may be older than one before it: what counts is the message itself."""
    with opened(nats.url, stream=hundred) as source:
        query = Query(source)
        query.batch(50)
        info = admin.calls.stream(hundred)
        real = Calls.streams
        with pytest.MonkeyPatch.context() as patch:
            late = replace(info, first_time=info.last_time + 5_000_000)
            patch.setattr(Calls, "streams", lambda calls, names: {n: i and late for n, i in real(calls, names).items()})
            assert numbers(pa.concat_tables(query.run())) == list(range(50, 100))


@pytest.fixture
def mirrored(admin: Admin, hundred: str) -> str:
    """A stream with a mirror that keeps its last ten messages, and answers DIRECT.GET in its place now and then."""
    mirror = f"{hundred}M"
    body = {"name": mirror, "mirror": {"name": hundred}, "allow_direct": True, "max_msgs": 10}
    admin.calls.call(f"STREAM.CREATE.{mirror}", body)
    until(lambda: admin.calls.stream(mirror).last == 100)
    assert admin.calls.call(f"STREAM.INFO.{mirror}")["config"]["mirror_direct"], "it inherits that"
    first = (f"$JS.API.DIRECT.GET.{hundred}", b'{"seq":1}')
    until(lambda: admin.connection.request(*first).headers.startswith(b"NATS/1.0 404"))
    return hundred


@pytest.mark.parametrize("engine", ["auto", "direct"])
def test_a_mirror_that_keeps_less_does_not_hide_messages_of_its_origin(
    nats: NatsServer, mirrored: str, engine: str
) -> None:
    """A mirror of a stream that allows DIRECT.GET answers for it, by itself, also where it has other limits."""
    with opened(nats.url, stream=mirrored, readEngine=engine) as source:
        for _ in range(12):
            assert numbers(table(source, whole(source, mirrored))) == list(range(100))


@pytest.mark.parametrize("engine", ["auto", "direct"])
def test_a_mirror_that_keeps_less_does_not_make_tasks_overlap(nats: NatsServer, mirrored: str, engine: str) -> None:
    """Where a batch is cut is found by counting, and the mirror counts otherwise."""
    options = {"subjects": f"{mirrored}.n", "minPartitions": 8, "readEngine": engine}
    with opened(nats.url, stream=mirrored, **options) as source:
        for _ in range(20):
            spans = [span for task in once(source) for span in task]
            edges = [(span.start, span.end) for span in spans]
            assert edges[0][0] == 1
            assert edges[-1][1] == 101
            assert all(end == start for (_, end), (start, _) in pairwise(edges)), "each begins where one ended"
