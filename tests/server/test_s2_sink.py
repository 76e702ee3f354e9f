"""Writing S2 for real: every row of the failure matrix, and what bad rows get."""

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from http_double import HttpDouble, passed_on
from s2_sdk import CommandRecord
from s2_sources_and_sinks import ME, QUICK, ends, numbers, read, trimmed, until, values, write

from penstock.connectors.s2 import S2Streams, chain
from penstock.errors import ConnectError, OptionError, PenstockError, ProtocolError
from penstock.testing.proxy import Proxy
from penstock.testing.s2_lite import S2Lite
from s2_servers import Cloud, S2Admin, lite

_names = itertools.count(1)
Server = S2Lite | Cloud


@pytest.fixture
def name(s2_admin: S2Admin) -> str:
    made = f"write-{time.time_ns()}-{next(_names)}"
    s2_admin.make(made)
    return made


def _failing(low: int, high: int) -> Iterator[pa.RecordBatch]:
    yield from values(low, high)
    raise RuntimeError("the task dies")


def _through(server: Server, proxy: Proxy) -> dict[str, str]:
    return {"endpoint": f"http://127.0.0.1:{proxy.port}"}


# What is written


@pytest.mark.parametrize("session", ["true", "false"])
@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_every_row_is_there_once_and_in_order(
    s2: Server, s2_admin: S2Admin, name: str, session: str, compression: str
) -> None:
    receipt = write(s2, values(0, 5500), stream=name, appendSession=session, compression=compression)
    assert numbers(s2_admin, name) == list(range(5500))
    assert (receipt.rows, receipt.known, receipt.spans) == (5500, 0, {name: (0, 5499)})


def test_a_record_has_the_headers_and_the_time_of_its_row(s2: Server, s2_admin: S2Admin, name: str) -> None:
    moment = int(time.time()) - 60
    rows = pa.record_batch(
        {
            "value": ["x", "y"],
            "headers": pa.array(
                [[{"key": "a", "value": b"1"}], None],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
            "timestamp": pa.array([moment * 1_000_000, None], pa.timestamp("us", "UTC")),
        }
    )
    write(s2, iter([rows]), stream=name)
    first, second = s2_admin.read(name)
    assert (first.body, first.headers, first.timestamp) == (b"x", [(b"a", b"1")], moment * 1000)
    assert second.timestamp > moment * 1000 + 30_000
    # The stamp is at the end of each batch, and our own source does not show it.
    assert second.headers[0][0] == chain.HEADER
    assert [row["headers"] for row in read(s2, name)] == [[{"key": "a", "value": b"1"}], None]


def test_rows_go_to_the_stream_of_their_column_or_template(s2: Server, s2_admin: S2Admin, name: str) -> None:
    rows = pa.record_batch({"value": [str(i) for i in range(90)], "region": [f"r{i % 3}" for i in range(90)]})
    receipt = write(s2, iter([rows]), stream=f"{name}/{{region}}/{{partition}}", ensureStream="true")
    for i in range(3):
        assert numbers(s2_admin, f"{name}/r{i}/0") == list(range(i, 90, 3))
    assert receipt.spans == {f"{name}/r{i}/0": (0, 29) for i in range(3)}
    own = pa.record_batch({"value": ["1", "2"], "stream": [name, None]})
    write(s2, iter([own]), stream=f"{name}/r0/0", origin=ME._replace(batch=4))
    assert numbers(s2_admin, name) == [1]
    assert numbers(s2_admin, f"{name}/r0/0")[-1] == 2


def test_more_streams_than_are_open_at_once(s2: Server, s2_admin: S2Admin, name: str) -> None:
    def many() -> Iterator[pa.RecordBatch]:
        for at in range(0, 600, 200):
            some = range(at, at + 200)
            yield pa.record_batch({"value": [str(i) for i in some], "k": [str(i % 100) for i in some]})

    options = {"stream": f"{name}/{{k}}", "ensureStream": "true"}
    assert write(s2, many(), **options).rows == 600
    assert write(s2, many(), **options).known == 600
    for i in (0, 41, 99):
        assert numbers(s2_admin, f"{name}/{i}") == list(range(i, 600, 100))


def test_writer_headers_name_the_task(s2: Server, s2_admin: S2Admin, name: str) -> None:
    write(s2, values(0, 3), stream=name, writerHeaders="true")
    records = s2_admin.read(name)
    assert {record.headers[0] for record in records} == {(b"@writer", f"{ME.query}/0".encode())}


def test_a_stream_is_made_as_the_options_say(s2: Server, s2_admin: S2Admin, name: str) -> None:
    made = f"{name}-made"
    write(s2, values(0, 3), stream=made, ensureStream="true", retention="2h", storageClass="express",
          timestamping="arrival")  # fmt: skip
    config = s2_admin._run(lambda basin: basin.get_stream_config(made))
    assert config.retention_policy == 7200
    assert config.storage_class == "express"
    assert config.timestamping.mode.value == "arrival"


# The failure matrix


@pytest.mark.parametrize("session", ["true", "false"])
@pytest.mark.parametrize("at", [200, 500, 700, 900])
def test_a_lost_answer_to_a_batch_that_landed_doubles_nothing(
    s2: Server, s2_admin: S2Admin, name: str, at: int, session: str
) -> None:
    s2 = lite(s2)
    with Proxy(s2.port, [("cut", 700 + at), ("cut", at)]) as proxy:
        receipt = write(s2, values(0, 4500), stream=name, appendSession=session, **_through(s2, proxy))
        assert not proxy.plan
    assert numbers(s2_admin, name) == list(range(4500))
    assert receipt.rows == 4500


@pytest.mark.parametrize("sent", [[60_000], [1_500, 20_000], [30_000, 1_000, 20_000]])
def test_a_batch_that_was_cut_off_is_sent_again(s2: Server, s2_admin: S2Admin, name: str, sent: list[int]) -> None:
    s2 = lite(s2)
    with Proxy(s2.port, sent=list(sent)) as proxy:
        write(s2, values(0, 9000), stream=name, **_through(s2, proxy))
        assert not proxy.sent
    assert numbers(s2_admin, name) == list(range(9000))


def test_a_proxy_that_ends_connections_after_some_requests_costs_no_retry(
    s2: Server, s2_admin: S2Admin, name: str
) -> None:
    with HttpDouble(passed_on(lite(s2).port), most=3) as proxy:
        options = {"stream": name, "appendSession": "false", "reconnectTimeout": "1ms", "endpoint": proxy.url}
        write(s2, values(0, 10_000), **options)
        assert proxy.connections >= 4
    assert numbers(s2_admin, name) == list(range(10_000))


def test_an_answer_that_never_comes_ends_in_time_and_doubles_nothing(s2: Server, s2_admin: S2Admin, name: str) -> None:
    s2 = lite(s2)
    with Proxy(s2.port, [("stall", 1200)]) as proxy:
        write(s2, values(0, 4500), stream=name, **(_through(s2, proxy) | {"requestTimeout": "500ms"}))
    assert numbers(s2_admin, name) == list(range(4500))


def test_a_task_that_fails_midway_is_continued_by_the_next_attempt(s2: Server, s2_admin: S2Admin, name: str) -> None:
    with pytest.raises(RuntimeError, match="the task dies"):
        write(s2, _failing(0, 3300), stream=name, maxUnackedBytes=1)
    until(lambda: len(numbers(s2_admin, name)) >= 3200)
    receipt = write(s2, values(0, 5000), stream=name)
    assert numbers(s2_admin, name) == list(range(5000))
    assert receipt.rows == 5000
    assert 3000 < receipt.known < 5000


def test_an_attempt_may_cut_its_rows_otherwise(s2: Server, s2_admin: S2Admin, name: str) -> None:
    with pytest.raises(RuntimeError, match="the task dies"):
        write(s2, _failing(0, 3300), stream=name, maxUnackedBytes=1)
    write(s2, values(0, 5000, size=1700), stream=name)
    assert numbers(s2_admin, name) == list(range(5000))


def test_a_batch_that_was_finished_is_not_written_again(s2: Server, s2_admin: S2Admin, name: str) -> None:
    write(s2, values(0, 2000), stream=name)
    assert write(s2, values(0, 2000), stream=name).known == 2000
    assert numbers(s2_admin, name) == list(range(2000))


def test_without_stamps_a_retry_doubles_rows(
    s2: Server, s2_admin: S2Admin, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mechanism taken out: what the two tests above would see."""
    write(s2, values(0, 2000), stream=name)
    monkeypatch.setattr("penstock.connectors.s2.history.stamps_of", lambda records: [])
    write(s2, values(0, 2000), stream=name)
    assert len(numbers(s2_admin, name)) == 4000


def test_speculative_twins_leave_one_copy(s2: Server, s2_admin: S2Admin, name: str) -> None:
    failed: list[BaseException] = []

    def attempt() -> None:
        try:
            write(s2, values(0, 20_000, size=500), stream=name, maxUnackedBytes=100_000)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=attempt) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert numbers(s2_admin, name) == list(range(20_000))


@pytest.mark.parametrize("session", ["true", "false"])
def test_tasks_that_write_to_one_stream_at_once_keep_their_order(
    s2: Server, s2_admin: S2Admin, name: str, session: str
) -> None:
    failed: list[BaseException] = []

    def attempt(partition: int) -> None:
        try:
            low = partition * 10_000
            rows = values(low, low + 5000, size=1000)
            write(s2, rows, ME._replace(partition=partition), stream=name, appendSession=session)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=attempt, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    found = numbers(s2_admin, name)
    for i in range(4):
        assert [n for n in found if n // 10_000 == i] == list(range(i * 10_000, i * 10_000 + 5000))
        assert write(s2, values(i * 10_000, i * 10_000 + 5000), ME._replace(partition=i), stream=name).known == 5000
    assert len(numbers(s2_admin, name)) == 20_000


def test_other_writers_in_between_do_no_harm(s2: Server, s2_admin: S2Admin, name: str) -> None:
    stop = threading.Event()

    def other() -> None:
        while not stop.is_set():
            s2_admin.append(name, [b"other"] * 3)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        for batch in range(3):
            low = batch * 5000
            with pytest.raises(RuntimeError, match="the task dies"):
                write(s2, _failing(low, low + 2500), ME._replace(batch=batch), stream=name, maxUnackedBytes=50_000)
            write(s2, values(low, low + 5000), ME._replace(batch=batch), stream=name, maxUnackedBytes=50_000)
    finally:
        stop.set()
        thread.join()
    assert numbers(s2_admin, name) == list(range(15_000))
    assert b"other" in s2_admin.bodies(name)


def test_command_records_behind_the_last_stamp_do_no_harm(s2: Server, s2_admin: S2Admin, name: str) -> None:
    write(s2, values(0, 1500), stream=name)
    s2_admin.command(name, CommandRecord.fence("someone"))
    write(s2, values(0, 1500), stream=name)
    assert numbers(s2_admin, name) == list(range(1500))


def test_records_of_others_are_looked_through_as_far_as_is_promised(s2: Server, s2_admin: S2Admin, name: str) -> None:
    write(s2, values(0, 1500), stream=name)
    s2_admin.append(name, [b"other"] * 2500)
    with pytest.raises(ConnectError, match=r"cannot tell .* behind 2,000 records of others \(lookBack\)"):
        write(s2, values(0, 1500), stream=name, lookBack=2000)
    write(s2, values(0, 1500), stream=name)
    assert numbers(s2_admin, name) == list(range(1500))


@pytest.mark.parametrize(
    ("now", "how"),
    [((0, 1900), "1,900 now"), ((5, 2005), "another checksum")],
)
def test_a_replay_with_other_rows_is_refused(
    s2: Server, s2_admin: S2Admin, name: str, now: tuple[int, int], how: str
) -> None:
    write(s2, values(0, 2000), stream=name)
    with pytest.raises(ProtocolError, match=f"was written before with other rows: .*{how}"):
        write(s2, values(*now), stream=name)
    assert numbers(s2_admin, name) == list(range(2000))


@pytest.mark.parametrize("cut", [400, 2000, 3333])
def test_a_replay_goes_on_behind_an_attempt_that_took_a_part_for_the_whole(
    s2: Server, s2_admin: S2Admin, name: str, cut: int
) -> None:
    """What an attempt leaves whose input was cut off unseen: a part of the rows, with a final stamp."""
    write(s2, values(0, cut), stream=name)
    last = chain.Stamp.decode(dict(s2_admin.read(name)[-1].headers)[chain.HEADER])
    assert last is not None
    assert last.final
    receipt = write(s2, values(0, 5000), stream=name)
    assert numbers(s2_admin, name) == list(range(5000))
    assert (receipt.rows, receipt.known) == (5000, cut)
    assert write(s2, values(0, 5000), stream=name).known == 5000
    with pytest.raises(ProtocolError, match="another checksum"):
        write(s2, values(1, 5001), stream=name)
    assert numbers(s2_admin, name) == list(range(5000))


def test_a_second_driver_on_one_checkpoint_stops_the_first(s2: Server, s2_admin: S2Admin, name: str) -> None:
    write(s2, values(0, 100), ME._replace(batch=7), stream=name)
    with pytest.raises(ConnectError, match="rows of batch 7 already: another run of this query has overtaken it"):
        write(s2, values(100, 200), ME._replace(batch=6), stream=name)
    assert numbers(s2_admin, name) == list(range(100))


def test_a_new_query_starts_at_the_end(s2: Server, s2_admin: S2Admin, name: str) -> None:
    write(s2, values(0, 100), stream=name)
    write(s2, values(0, 100), ME._replace(query="another"), stream=name)
    assert numbers(s2_admin, name) == [*range(100), *range(100)]


def test_a_stamp_that_expired_is_said_loudly(s2: Server, s2_admin: S2Admin, name: str) -> None:
    write(s2, values(0, 100), stream=name)
    s2_admin.trim(name, 101)
    until(lambda: not s2_admin.read_some(name, 0))
    with pytest.raises(ConnectError, match=r"cannot tell .* of its 101 records, those that could"):
        write(s2, values(0, 100), stream=name)
    write(s2, values(0, 100), stream=name, delivery="at_least_once")
    write(s2, values(0, 100), ME._replace(query="new", batch=0), stream=name)
    assert len(numbers(s2_admin, name)) == 200


def test_a_stamp_that_expired_before_the_records_of_others_is_said_loudly(
    s2: Server, s2_admin: S2Admin, name: str
) -> None:
    write(s2, values(0, 100), stream=name)
    s2_admin.append(name, [b"other"] * 10)
    trimmed(s2_admin, name, 105)
    with pytest.raises(ConnectError, match="those that could tell have been trimmed or have expired"):
        write(s2, values(0, 100), stream=name)
    assert numbers(s2_admin, name) == []


def test_a_stream_made_again_under_a_task_is_said_loudly(s2: Server, s2_admin: S2Admin, name: str) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield from values(0, 2000)
        s2_admin.delete(name)
        s2_admin.make(name)
        yield from values(2000, 4000)

    with pytest.raises(ConnectError, match=r"was deleted and made again|was deleted while it was written to"):
        write(s2, rows(), stream=name, maxUnackedBytes=1)


def test_a_busy_server_is_asked_again(s2: Server, s2_admin: S2Admin, name: str) -> None:
    s2 = lite(s2)
    busy = (
        b'HTTP/1.1 503 Busy\r\ncontent-type: application/json\r\ncontent-length: 28\r\n\r\n{"code":"server_draining"}  '
    )
    limited = (
        b'HTTP/1.1 429 Slow\r\ncontent-type: application/json\r\ncontent-length: 23\r\n\r\n{"code":"rate_limited"}'
    )
    with Proxy(s2.port, instead=[busy, limited, busy]) as proxy:
        write(s2, values(0, 2000), stream=name, **_through(s2, proxy))
        assert not proxy.instead
    assert numbers(s2_admin, name) == list(range(2000))


def test_a_server_killed_in_mid_batch_keeps_each_row_once(tmp_path: Path) -> None:
    with S2Lite(tmp_path / "data") as server:
        admin = S2Admin(server)
        admin.make("out")

        def rows() -> Iterator[pa.RecordBatch]:
            yield from values(0, 6000)
            server.kill()
            threading.Timer(0.5, server.start).start()
            yield from values(6000, 12_000)

        write(server, rows(), stream="out", reconnectTimeout="30s")
        assert numbers(admin, "out") == list(range(12_000))


def test_a_server_that_stays_away_ends_the_task_with_what_was_written(s2: Server, name: str) -> None:
    s2 = lite(s2)
    with Proxy(s2.port) as proxy:

        def rows() -> Iterator[pa.RecordBatch]:
            yield from values(0, 5000)
            proxy.refuse()
            yield from values(5000, 10_000)

        with pytest.raises(
            ConnectError,
            match=rf"there\. Before that, .*written to '{name}' up to \d+; they are known",
        ):
            write(s2, rows(), stream=name, reconnectTimeout="200ms", maxUnackedBytes=1, **_through(s2, proxy))


# Single writes

ONCE = ME._replace(query="a-write", batch=0)


@pytest.mark.parametrize("target", ["{name}", "{name}/{{partition}}", "{name}/{{k}}", None])
def test_a_single_write_reads_nothing_that_was_there_before(
    s2: Server, s2_admin: S2Admin, name: str, target: str | None
) -> None:
    stream = {None: name, "{name}": name}.get(target, f"{name}/0")
    if stream != name:
        s2_admin.make(stream)
    s2_admin.append(stream, [b"x" * 1000] * 3000)
    row = pa.record_batch({"value": ["7"]})
    option = {} if target is None else {"stream": target.format(name=name)}
    if "{k}" in option.get("stream", ""):
        row = pa.record_batch({"value": ["7"], "k": ["0"]})
    elif target is None:
        row = pa.record_batch({"value": ["7"], "stream": [stream]})
    began = ends(s2, row.schema, **option)
    assert began[stream].next == 3000
    with Proxy(lite(s2).port) as proxy:
        write(s2, iter([row]), ONCE, ends=began, **option, **_through(s2, proxy))
        assert proxy.passed < 10_000
        assert numbers(s2_admin, stream) == [7]
        write(s2, iter([row]), ONCE._replace(query="another"), **option, **_through(s2, proxy))
        assert proxy.passed > 3_000_000, "what a stream's query would read"


def test_a_retried_task_of_a_single_write_finds_what_the_first_attempt_wrote(
    s2: Server, s2_admin: S2Admin, name: str
) -> None:
    s2_admin.append(name, [b"old"] * 1500)
    began = ends(s2, next(values(0, 1)).schema, stream=name)
    with pytest.raises(RuntimeError, match="the task dies"):
        write(s2, _failing(0, 3300), ONCE, ends=began, stream=name, maxUnackedBytes=1)
    until(lambda: len(numbers(s2_admin, name)) >= 3200)
    s2_admin.append(name, [b"other"] * 1500)
    receipt = write(s2, values(0, 5000), ONCE, ends=began, stream=name)
    assert numbers(s2_admin, name) == list(range(5000))
    assert receipt.known > 3000


def test_where_a_single_write_began_is_no_place_in_a_stream_that_was_made_again(
    s2: Server, s2_admin: S2Admin, name: str
) -> None:
    s2_admin.append(name, [b"old"] * 1500)
    began = ends(s2, next(values(0, 1)).schema, stream=name)
    s2_admin.delete(name)
    s2_admin.make(name)
    for _ in range(2):
        write(s2, values(0, 1000), ONCE, ends=began, stream=name)
        s2_admin.append(name, [b"other"] * 1500)
    assert numbers(s2_admin, name) == list(range(1000))


def test_a_wrong_port_and_a_wrong_basin_are_told_at_once(s2: Server) -> None:
    schema = next(values(0, 1)).schema
    for wrong, why in (
        (
            {"endpoint": "http://127.0.0.1:1"},
            r"cannot connect to 127.0.0.1:1: Connection refused: check the option 'endpoint', and that S2 is there",
        ),
        ({"basin": "penstock-tess"}, r"there is no basin 'penstock-tess'.* Check the options 'basin' and 'endpoint'"),
    ):
        options = {**s2.options(), "stream": "x", "reconnectTimeout": "10m", **wrong}
        with pytest.raises(PenstockError, match=why):
            S2Streams.open_sink(S2Streams.parse_sink(options), schema).check()


# At least once


def test_at_least_once_needs_no_order_among_tasks_and_may_double(s2: Server, s2_admin: S2Admin, name: str) -> None:
    for _ in range(2):
        write(s2, values(0, 1500), stream=name, delivery="at_least_once")
    assert numbers(s2_admin, name) == [*range(1500), *range(1500)]
    # It leaves stamps too, so that a run that must know finds them.
    assert write(s2, values(0, 1500), ME._replace(batch=4), stream=name, lookBack=1).known == 0


def test_at_least_once_sends_again_or_fails_as_the_policy_says(s2: Server, s2_admin: S2Admin, name: str) -> None:
    s2 = lite(s2)
    options = {"stream": name, "delivery": "at_least_once"}
    with Proxy(s2.port, [("cut", 450)]) as proxy:
        write(s2, values(0, 4500), **options, **_through(s2, proxy))
        assert not proxy.plan
    assert set(numbers(s2_admin, name)) == set(range(4500))
    with Proxy(s2.port, [("cut", 450)]) as proxy, pytest.raises(ConnectError, match="may have arrived"):
        write(s2, values(0, 4500), appendRetryPolicy="no_side_effects", **options, **_through(s2, proxy))


# Through the driver


def test_small_tasks_are_written_by_the_driver_in_their_order(s2: Server, s2_admin: S2Admin, name: str) -> None:
    options = S2Streams.parse_sink({**s2.options(), **QUICK, "stream": name})
    schema = next(values(0, 1)).schema
    receipts = [
        S2Streams.open_sink(options, schema).write(values(i * 100, i * 100 + 100), ME._replace(partition=i))
        for i in (2, 0, 1)
    ]
    assert numbers(s2_admin, name) == []
    assert all(receipt.packed and "packed" not in repr(receipt) for receipt in receipts)
    for _ in range(2):
        S2Streams.open_sink(options, schema).commit(receipts, ME.batch)
    assert numbers(s2_admin, name) == list(range(300))


def test_a_large_task_writes_by_itself(s2: Server, s2_admin: S2Admin, name: str) -> None:
    receipt = write(s2, values(0, 5000), stream=name, driverBytes=10_000, commit=False)
    assert receipt.packed is None
    assert numbers(s2_admin, name) == list(range(5000))


# What bad rows get


@pytest.mark.parametrize(
    ("versions", "why"),
    [
        ([[1], [1, 2, 2], [2, 3]], None),
        ([[1, 2], [1, 3]], "row 2 of partition 0 of batch 3 has an older 'v' .versionColumn. than the row before it"),
        ([[1, 3, 2]], r"row 2 .*\.repartition\(n, 'id'\)\.sortWithinPartitions\('v', 'id'\) just before the write"),
        ([[1], [None]], "row 1 of partition 0 of batch 3 has no 'v'"),
    ],
)
def test_rows_that_do_not_ascend_by_their_version_are_refused(
    s2: Server, s2_admin: S2Admin, name: str, versions: list[list[Any]], why: str | None
) -> None:
    batches = [pa.record_batch({"id": ["a"] * len(some), "v": pa.array(some, pa.int64())}) for some in versions]
    options = {"stream": name, "mode": "upsert", "keyColumns": "id", "versionColumn": "v"}
    if why is None:
        write(s2, iter(batches), **options)
        assert len(s2_admin.bodies(name)) == sum(map(len, versions))
        return
    with pytest.raises(OptionError, match=why):
        write(s2, iter(batches), **options)
    assert s2_admin.bodies(name) == []


def versions(*some: int) -> pa.RecordBatch:
    return pa.record_batch({"id": ["a"] * len(some), "v": pa.array(some, pa.int64())})


def test_versions_of_other_tasks_and_batches_are_not_compared(s2: Server, s2_admin: S2Admin, name: str) -> None:
    options = {"stream": name, "mode": "upsert", "keyColumns": "id", "versionColumn": "v"}
    for origin, version in ((ME, 9), (ME._replace(partition=1), 5), (ME._replace(batch=4), 1)):
        write(s2, iter([versions(version)]), origin, **options)
    assert s2_admin.bodies(name) == [b'{"v":9}', b'{"v":5}', b'{"v":1}']


def test_a_refused_version_leaves_the_rows_that_were_appended_before(s2: Server, s2_admin: S2Admin, name: str) -> None:
    given = {**s2.options(), "stream": name, "mode": "upsert", "keyColumns": "id", "versionColumn": "v"}
    sink: Any = S2Streams.open_sink(S2Streams.parse_sink(given), versions(1).schema)
    tasks = [versions(1, 2), versions(4, 3)]
    receipts = [sink.write(iter([rows]), ME._replace(partition=number)) for number, rows in enumerate(tasks)]
    with pytest.raises(OptionError, match="row 1 of partition 1 of batch 3 has an older 'v'"):
        sink.commit(receipts, ME.batch)
    assert s2_admin.bodies(name) == [b'{"v":1}', b'{"v":2}']


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"versionColumn": "w"}, "versionColumn is 'w', but there is no such column. There are: id, v"),
        ({"versionColumn": "flag"}, "versionColumn is 'flag', which has no order: it is bool"),
        ({"versionColumn": "v", "mode": "append", "keyColumns": ""}, "'versionColumn' is for mode=upsert"),
    ],
)
def test_a_version_that_cannot_be_one_is_refused(options: dict[str, str], why: str) -> None:
    schema = pa.schema([("id", pa.string()), ("v", pa.int64())] + ([("flag", pa.bool_())] if "flag" in why else []))
    given = {"basin": "some-basin", "stream": "x", "mode": "upsert", "keyColumns": "id", **options}
    with pytest.raises(OptionError, match=why):
        S2Streams.open_sink(S2Streams.parse_sink(given), schema)


@pytest.mark.parametrize(
    ("rows", "options", "why"),
    [
        ({"value": ["a", None]}, {}, r"row 1 of partition 0 of batch 3 has no value \(null\)"),
        ({"value": ["a", "b" * 1_048_600]}, {}, r"row 1 of partition 0 of batch 3 has 1,048,608 bytes for stream '.*'"),
        ({"value": ["a", "b"], "stream": ["x", ""]}, {"stream": None}, "row 1 .* has the stream ''"),
        ({"value": ["a", "b"], "stream": ["x", "y\0"]}, {"stream": None}, "row 1 .* none of them is NUL"),
        ({"value": ["a", "b"], "stream": [None, "y"]}, {"stream": None}, r"row 0 .* has no stream \(null\)"),
        ({"value": ["a"]}, {"stream": None}, "rows have no stream: set the option 'stream'"),
        ({"value": ["a"], "more": [1]}, {}, "s2 cannot write the column 'more'"),
        ({"more": [1]}, {}, "there is no column 'value'"),
        ({"value": [1]}, {}, "column 'value' must be STRING or BINARY, but is int64"),
        ({"value": ["a"], "timestamp": ["now"]}, {}, "column 'timestamp' must be TIMESTAMP"),
        ({"value": ["a"]}, {"stream": "s/{nope}"}, "there is no column 'nope'"),
        ({"value": ["a"], "sequence": [3]}, {}, "cannot write the column 'sequence'"),
    ],
)
def test_a_row_that_cannot_be_written_is_refused(
    s2: Server, s2_admin: S2Admin, name: str, rows: dict[str, Any], options: dict[str, Any], why: str
) -> None:
    given = {"stream": name} | options
    with pytest.raises(OptionError, match=why):
        write(s2, iter([pa.record_batch(rows)]), **{k: v for k, v in given.items() if v is not None})
    assert s2_admin.bodies(name) == []


def test_a_header_without_a_name_is_refused(s2: Server, name: str) -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = pa.record_batch({"value": ["a"], "headers": pa.array([[{"key": "", "value": b"fence"}]], kind)})
    with pytest.raises(OptionError, match=r"row 0 .* a header without a name, which S2 keeps for its commands"):
        write(s2, iter([rows]), stream=name)


def test_a_stream_that_is_not_there_is_named_with_those_like_it(s2: Server, name: str) -> None:
    with pytest.raises(
        OptionError, match=rf"has no stream '{name}x'. Did you mean '{name}'.* 'stream' and 'basin'. Or set ensu"
    ):
        write(s2, values(0, 10), stream=f"{name}x")


def test_a_writer_that_was_fenced_out_is_told_by_whom(s2: Server, s2_admin: S2Admin, name: str) -> None:
    s2_admin.command(name, CommandRecord.fence("mine"))
    write(s2, values(0, 10), stream=name, fencingToken="mine")
    s2_admin.command(name, CommandRecord.fence("theirs"))
    with pytest.raises(ConnectError, match="is fenced: its token is now 'theirs', and fencingToken is 'mine'"):
        write(s2, values(0, 10), ME._replace(batch=4), stream=name, fencingToken="mine")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"keyColumns": "a"}, "'keyColumns' is for mode=upsert"),
        ({"mode": "upsert"}, "mode=upsert needs 'keyColumns'"),
        ({"retention": "soon"}, "retention must be infinite or a duration"),
        ({"fencingToken": "x" * 37}, "at most 36 bytes"),
        ({"basin": "B"}, "'B' is no name of a basin"),
        ({"endpoint": "127.0.0.1:80"}, "endpoint must be an address"),
        ({"stream": "x" * 513}, "1 to 512 bytes"),
        ({"deliver": "x"}, "unknown option 'deliver' for s2. Did you mean 'delivery'"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, str], why: str) -> None:
    with pytest.raises(PenstockError, match=why):
        S2Streams.parse_sink({"basin": "some-basin", "stream": "x", **options})
