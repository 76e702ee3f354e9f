"""Every server since 2.10 gives the same rows; what an old one cannot do is said in a sentence."""

from collections.abc import Iterator

import pytest
from jetstream_sources import Query, consumers, everything, numbers, once, opened, sequences, table, until, whole

from nats_servers import Admin, server, server_binary
from penstock.errors import OptionError
from penstock.planning.positions import Position, Range
from penstock.testing.nats_server import NatsServer

VERSIONS = ("2.10.26", "2.11.11", "2.12.8", "2.14.6", "2.15.1")
COUNT = 3000


def engines(version: str) -> tuple[str, ...]:
    return ("auto", "consumer") if version.startswith("2.10.") else ("auto", "consumer", "direct")


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def running(version: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NatsServer, Admin]]:
    """A server with the stream S: 3,000 messages on S.a, S.b and S.c in turn, every other one with headers."""
    with server(tmp_path_factory.mktemp("versions"), executable=server_binary(version)) as (started, admin):
        admin.create("S")
        admin.publish(
            (f"S.{'abc'[i % 3]}", str(i).encode(), {"Number": str(i), "Odd": str(i % 2)} if i % 2 else {})
            for i in range(COUNT)
        )
        yield started, admin


def test_the_server_is_of_the_version_asked_for(running: tuple[NatsServer, Admin], version: str) -> None:
    assert running[1].connection.info["version"] == version


def test_all_rows_are_read_with_their_headers(running: tuple[NatsServer, Admin], version: str) -> None:
    url, tables = running[0].url, []
    for engine in engines(version):
        rows = everything(url, "S", readEngine=engine)
        assert numbers(rows) == list(range(COUNT))
        for i, headers in enumerate(rows["headers"].to_pylist()):
            wanted = [{"key": "Number", "value": str(i).encode()}, {"key": "Odd", "value": b"1"}] if i % 2 else None
            assert headers == wanted
        tables.append(rows)
    assert all(rows.equals(tables[0]) for rows in tables)


@pytest.mark.parametrize(("subjects", "kept"), [("S.b", "b"), ("S.a,S.c", "ac"), ("*.c", "c")])
def test_the_rows_of_filters_are_read(
    running: tuple[NatsServer, Admin], version: str, subjects: str, kept: str
) -> None:
    for engine in engines(version):
        rows = everything(running[0].url, "S", readEngine=engine, subjects=subjects)
        assert numbers(rows) == [i for i in range(COUNT) if "abc"[i % 3] in kept]


@pytest.mark.parametrize("subjects", ["", "S.b"])
def test_a_batch_of_three_tasks_has_every_row_once(running: tuple[NatsServer, Admin], subjects: str) -> None:
    with opened(running[0].url, stream="S", minPartitions=3, subjects=subjects) as source:
        tasks = once(source)
        assert len(tasks) == 3
        read = [numbers(table(source, *task)) for task in tasks]
    assert [n for part in read for n in part] == [i for i in range(COUNT) if not subjects or i % 3 == 1]
    assert max(map(len, read)) - min(map(len, read)) <= 2
    until(lambda: consumers(running[1], "S") == 0)


def test_a_short_range_and_a_range_without_a_row_end(running: tuple[NatsServer, Admin], version: str) -> None:
    for engine in engines(version):
        with opened(running[0].url, stream="S", subjects="S.c", readEngine=engine) as source:
            assert sequences(table(source, Range("S", 1, 3))) == []
            assert sequences(table(source, Range("S", 1, 4), Range("S", 2998, 3001))) == [3, 3000]


def test_find_gives_the_first_message_not_older_than_a_moment(running: tuple[NatsServer, Admin]) -> None:
    with opened(running[0].url, stream="S") as source:
        times = table(source, whole(source, "S"))["timestamp"].cast("int64").to_pylist()
        for moment in (0, times[0], times[1234], times[1234] + 1, times[-1], times[-1] + 1):
            assert source.find("S", moment) == 1 + sum(time < moment for time in times)


def test_count_tells_how_many_rows_lie_at_or_after_a_position(running: tuple[NatsServer, Admin], version: str) -> None:
    for engine in engines(version):
        with opened(running[0].url, stream="S", subjects="S.a,S.c", readEngine=engine) as source:
            source.bounds()
            counted = source.count("S", [1, 2, 1500, 3000, 3001])
        assert list(counted or []) == [2000, 1999, 1001, 1, 0]


def test_a_streaming_query_reads_what_is_published_while_it_runs(
    running: tuple[NatsServer, Admin], stream: str
) -> None:
    started, admin = running
    admin.create(stream)
    admin.numbers(stream, 10)
    with opened(started.url, stream=stream, progressConsumer="spark") as source:
        query = Query(source, "latest")
        read: list[int] = []
        for start in (10, 700, 705):
            admin.numbers(stream, {10: 690, 700: 5, 705: 95}[start], start=start)
            read += [n for rows in query.run(400) for n in numbers(rows)]
        assert read == list(range(10, 800))
        source.progress({stream: Position(601, query.offsets[stream].epoch)})
    assert admin.calls.call(f"CONSUMER.INFO.{stream}.spark")["num_pending"] == 200


def test_direct_get_is_refused_where_the_server_does_not_have_it_in_batches(
    running: tuple[NatsServer, Admin], version: str
) -> None:
    with opened(running[0].url, stream="S", readEngine="direct") as source:
        if version == "2.10.26":
            with pytest.raises(OptionError, match=r"stream 'S' .*DIRECT\.GET.* 2\.11; this is 2\.10\.26"):
                source.bounds()
        else:
            assert "S" in source.bounds()


def test_a_work_queue_is_read_and_released_or_refused(
    running: tuple[NatsServer, Admin], version: str, stream: str
) -> None:
    started, admin = running
    admin.create(stream, retention="workqueue")
    admin.numbers(stream, 20)
    with opened(started.url, stream=stream) as source:
        if version == "2.10.26":
            with pytest.raises(OptionError, match=r"DIRECT\.GET.* 2\.11; this is 2\.10\.26"):
                source.bounds()
            return
        query = Query(source)
        rows = query.batch(5)
        assert rows is not None
        assert numbers(rows) == list(range(5))
        source.commit(query.offsets)
        assert source.bounds()[stream].first == 6
    if version != "2.10.26":
        with (
            opened(started.url, stream=stream, startingOffsets="latest") as source,
            pytest.raises(OptionError, match="would delete the 15 messages before that"),
        ):
            Query(source)
