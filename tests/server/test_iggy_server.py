"""Reading and writing Iggy over its real client, with what can go wrong on the way."""

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest
from iggy_sources_and_sinks import ME, numbers, read, sink, source, values, write

from iggy_servers import IggyAdmin, Server
from penstock.clients.iggy import wire
from penstock.connectors.iggy import Iggy
from penstock.errors import ConnectError, DataLossError, Disconnected, OptionError, ProtocolError
from penstock.kit.contract import Origin
from penstock.planning.positions import Position, Range
from penstock.testing.iggy_double import IggyDouble

_names = itertools.count(1)


@pytest.fixture
def stream() -> str:
    return f"s{time.time_ns()}-{next(_names)}"


@pytest.fixture
def double() -> Iterator[IggyDouble]:
    """A double of the test's own, to do harm to."""
    with IggyDouble() as running:
        yield running


# Reading


def test_a_message_comes_with_all_that_it_has(iggy: Server, iggy_admin: IggyAdmin, stream: str) -> None:
    iggy_admin.make(stream, "t", 2)
    before = time.time()
    iggy_admin.send(stream, "t", [b"x"], 1, user_headers={"n": 7, "s": "text", "b": b"raw"}, id=2**100 + 1)
    iggy_admin.send(stream, "t", [b"\xff\x00"], 1)
    first, second = read(iggy, stream)
    assert (first["value"], first["stream"], first["topic"], first["partition"], first["sequence"]) == (
        b"x", stream, "t", 1, 0,
    )  # fmt: skip
    assert first["id"] == str(2**100 + 1)
    assert {h["key"]: h["value"] for h in first["headers"]} == {"n": b"\x07", "s": b"text", "b": b"raw"}
    assert before - 1 < first["timestamp"].timestamp() < time.time() + 1
    assert before - 1 < first["originTimestamp"].timestamp() < time.time() + 1
    assert (second["value"], second["headers"], second["sequence"]) == (b"\xff\x00", None, 1)
    typed = read(iggy, stream, typedHeaders="true")[0]["headers"]
    assert {h["key"]: h["kind"] for h in typed} == {"n": "uint8", "s": "string", "b": "raw"}


def test_every_message_is_read_once_however_it_is_polled(iggy: Server, iggy_admin: IggyAdmin, stream: str) -> None:
    iggy_admin.make(stream, "t")
    iggy_admin.send(stream, "t", [b"%d" % i for i in range(3500)])
    for count in (1, 999, 100_000):
        some = range(3500) if count > 1 else range(20)
        opened = source(iggy, stream, pollCount=count)
        opened.bounds()
        spans = [Range(f"{stream}/t/0", low, min(low + 700, len(some))) for low in range(0, len(some), 700)]
        found = [int(v) for span in spans for batch in opened.read(span) for v in batch["value"].to_pylist()]
        assert found == list(some)


def test_an_empty_partition_and_one_with_a_single_message_are_told_apart(
    iggy: Server, iggy_admin: IggyAdmin, stream: str
) -> None:
    iggy_admin.make(stream, "t", 2)
    iggy_admin.send(stream, "t", [b"one"], 1)
    bounds = source(iggy, stream).bounds()
    assert [bounds[f"{stream}/t/{i}"][:2] for i in range(2)] == [(0, 0), (0, 1)]


def test_gaps_are_legal_and_trimmed_messages_are_loss(double: IggyDouble, stream: str) -> None:
    admin = IggyAdmin(double)
    admin.make(stream, "t")
    admin.send(stream, "t", [b"%d" % i for i in range(10)])
    double.gap(stream, "t", 0, 5)
    admin.send(stream, "t", [b"%d" % i for i in range(10, 20)])
    shard = f"{stream}/t/0"
    assert [row["sequence"] for row in read(double, stream)] == [*range(10), *range(15, 25)]
    opened = source(double, stream)
    epoch = opened.bounds()[shard].epoch
    double.trim(stream, "t", 0, 4)
    with pytest.raises(DataLossError, match="starts at 4, but the query is at 0: 4 messages were deleted unread"):
        list(opened.read(Range(shard, 0, 25, epoch)))
    some = [n for b in opened.read(Range(shard, 8, 20, epoch)) for n in b["sequence"].to_pylist()]
    assert some == [8, 9, 15, 16, 17, 18, 19]
    lenient = source(double, stream, failOnDataLoss="false")
    rest = [n for b in lenient.read(Range(shard, 0, 25, epoch)) for n in b["sequence"].to_pylist()]
    assert rest == [*range(4, 10), *range(15, 25)]
    double.trim(stream, "t", 0, 100)
    with pytest.raises(DataLossError, match="starts at 25, but the query is at 8: 17 messages were deleted unread"):
        list(opened.read(Range(shard, 8, 25, epoch)))
    assert list(lenient.read(Range(shard, 8, 25, epoch))) == []


def test_a_topic_made_again_or_gone_or_shrunk_is_noticed(double: IggyDouble, stream: str) -> None:
    admin = IggyAdmin(double)
    admin.make(stream, "t", 2)
    admin.send(stream, "t", [b"x"] * 5)
    opened = source(double, stream)
    bounds = opened.bounds()
    shard = f"{stream}/t/0"
    admin.delete(stream, "t")
    with pytest.raises(DataLossError, match="is gone"):
        list(opened.read(Range(shard, 0, 5, bounds[shard].epoch)))
    assert opened.bounds() == {}
    admin.make(stream, "t", 1)
    assert set(opened.bounds()) == {shard}
    with pytest.raises(DataLossError, match="was deleted and made again"):
        list(opened.read(Range(shard, 0, 5, bounds[shard].epoch)))


def test_new_partitions_are_found_and_only_those_wanted_are_read(
    iggy: Server, iggy_admin: IggyAdmin, stream: str
) -> None:
    iggy_admin.make(stream, "t", 1)
    opened = source(iggy, stream)
    assert set(opened.bounds()) == {f"{stream}/t/0"}
    iggy_admin.grow(stream, "t", 2)
    assert set(opened.bounds()) == {f"{stream}/t/{i}" for i in range(3)}
    assert set(source(iggy, stream, partitions="0,2").bounds()) == {f"{stream}/t/{i}" for i in (0, 2)}
    with pytest.raises(OptionError, match="topic 't' has no partition 7: its last one is 2"):
        source(iggy, stream, partitions="7").bounds()


def test_a_time_finds_the_first_message_not_older(iggy: Server, iggy_admin: IggyAdmin, stream: str) -> None:
    iggy_admin.make(stream, "t")
    iggy_admin.send(stream, "t", [b"old"] * 3)
    time.sleep(0.05)
    moment = time.time_ns() // 1000
    time.sleep(0.05)
    iggy_admin.send(stream, "t", [b"new"] * 3)
    opened = source(iggy, stream)
    opened.bounds()
    assert opened.find(f"{stream}/t/0", moment) == 3
    assert opened.find(f"{stream}/t/0", 0) == 0
    assert opened.find(f"{stream}/t/0", moment + 3_600_000_000) == 6


def test_a_poll_that_is_cut_is_asked_again(double: IggyDouble, stream: str) -> None:
    admin = IggyAdmin(double)
    admin.make(stream, "t")
    admin.send(stream, "t", [b"%d" % i for i in range(2000)])
    opened = source(double, stream, pollCount="500")
    bound = opened.bounds()[f"{stream}/t/0"]
    double.poll_faults = ["", "cut", "", "cut", "cut"]
    rows = [int(v) for b in opened.read(Range(f"{stream}/t/0", 0, 2000, bound.epoch)) for v in b["value"].to_pylist()]
    assert rows == list(range(2000))
    assert not double.poll_faults


def test_the_progress_consumer_follows_the_query(iggy: Server, iggy_admin: IggyAdmin, stream: str) -> None:
    iggy_admin.make(stream, "t")
    iggy_admin.send(stream, "t", [b"%d" % i for i in range(5)])
    opened = source(iggy, stream, progressConsumer="spark")
    shard = f"{stream}/t/0"
    opened.bounds()
    opened.progress({shard: Position(4, "")})
    assert [message.payload() for message in iggy_admin.next(stream, "t", "spark")] == [b"4"]


# What the server or the user gets wrong


def test_a_query_that_may_lose_is_started_without_a_topic_that_is_gone(
    iggy: Server, iggy_admin: IggyAdmin, stream: str
) -> None:
    iggy_admin.make(stream, "here")
    assert list(source(iggy, stream, topics="here,gone", failOnDataLoss="false").bounds()) == [f"{stream}/here/0"]
    with pytest.raises(OptionError, match="has no topic 'gone'"):
        source(iggy, stream, topics="here,gone").bounds()


def test_names_that_are_not_there_are_said_with_those_like_them(
    iggy: Server, iggy_admin: IggyAdmin, stream: str
) -> None:
    iggy_admin.make(stream, "orders")
    with pytest.raises(OptionError, match=rf"stream '{stream}' has no topic 'order'. Did you mean 'orders'"):
        source(iggy, stream, topic="order").bounds()
    with pytest.raises(OptionError, match=rf"there is no stream '{stream}x'. Did you mean .*'{stream}'"):
        source(iggy, f"{stream}x").bounds()
    with pytest.raises(OptionError, match=rf"stream '{stream}' has no topic .t.. There are: orders. Or set create"):
        write(iggy, stream, values(0, 1))
    with pytest.raises(OptionError, match=rf"there is no stream '{stream}x'. Did you mean .*Or set createTopic"):
        write(iggy, f"{stream}x", values(0, 1))


def test_a_wrong_password_is_said_and_does_not_show(double: IggyDouble, stream: str) -> None:
    given = {"address": double.address, "username": "iggy", "password": "s3cret", "stream": stream, "topic": "t"}
    opened = Iggy.open_source(Iggy.parse(given))
    with pytest.raises(ConnectError, match="refused the credentials of 'iggy'") as refused:
        opened.bounds()
    assert "s3cret" not in str(refused.value) + repr(Iggy.parse(given))


def test_a_server_of_another_version_is_said(double: IggyDouble, stream: str) -> None:
    double.protocol = 12288
    with pytest.raises(ConnectError, match=r"speaks another protocol.*this build talks to 0\.9"):
        source(double, stream).bounds()


@pytest.mark.parametrize(
    ("address", "why"), [("127.0.0.1:1", "Connection refused"), ("no-such-host.invalid:8090", "[Nn]ame")]
)
@pytest.mark.usefixtures("_at_once")
def test_an_address_where_nobody_answers_is_said_at_once_to_readers_and_writers(
    stream: str, address: str, why: str
) -> None:
    given = {"address": address, "password": "iggy", "stream": stream, "topic": "t"}
    columns = pa.schema({"value": pa.string()})
    for opened in (Iggy.open_source(Iggy.parse(given)), Iggy.open_sink(Iggy.parse_sink(given), columns)):
        with pytest.raises(
            ConnectError, match=rf"no Iggy server answers at {address} \(.*{why}.*Check 'address'"
        ) as said:
            opened.check()
        assert not isinstance(said.value, Disconnected), "nothing says that it ever worked: no reason to try again"


def test_a_port_where_something_else_listens_is_said(stream: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            with contextlib.suppress(OSError):
                while True:
                    listener.accept()[0].close()

        threading.Thread(target=refuse, daemon=True).start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        given = {"address": address, "password": "iggy", "stream": stream, "topic": "t"}
        with pytest.raises(ConnectError, match=f"something listens at {address}, but closes the connection"):
            Iggy.open_source(Iggy.parse(given)).check()


def test_a_sink_finds_its_topic_before_any_row_comes(iggy: Server, iggy_admin: IggyAdmin, stream: str) -> None:
    columns = pa.schema({"value": pa.string()})
    with pytest.raises(OptionError, match=rf"there is no stream '{stream}'.* Or set createTopic=true to make it"):
        sink(iggy, stream, columns).check()
    sink(iggy, stream, columns, createTopic="true").check()
    iggy_admin.make(stream, "t")
    sink(iggy, stream, columns).check()


# Writing


def test_every_row_is_there_once_and_in_order_of_its_key(iggy: Server, iggy_admin: IggyAdmin, stream: str) -> None:
    iggy_admin.make(stream, "t", 3)

    def keyed() -> Iterator[pa.RecordBatch]:
        for batch in values(0, 3500):
            keys = [f"user-{int(v) % 17}" for v in batch["value"].to_pylist()]
            yield batch.append_column("key", pa.array(keys))

    receipt = write(iggy, stream, keyed(), batchLength=300)
    assert (receipt.rows, receipt.known) == (3500, 0)
    found = numbers(iggy_admin, stream)
    assert sorted(found) == list(range(3500))
    for key in range(17):
        mine = [n for n in found if n % 17 == key]
        assert mine == sorted(mine)
    assert sum(last - first + 1 for first, last in receipt.spans.values()) == 3500


def test_headers_and_ids_arrive_as_they_were_given(iggy: Server, iggy_admin: IggyAdmin, stream: str) -> None:
    iggy_admin.make(stream, "t")
    typed = [
        {"key": "n", "value": (7).to_bytes(4, "little"), "kind": "uint32"},
        {"key": "s", "value": b"text", "kind": "string"},
        {"key": "big", "value": (2**100).to_bytes(16, "little"), "kind": "uint128"},
        {"key": "f", "value": b"\0\0\0\0\0\0\xf8\x3f", "kind": "float64"},
        {"key": "y", "value": b"\x01", "kind": "bool"},
    ]
    rows = pa.record_batch(
        {"value": ["a", "b"], "id": ["17", None], "headers": pa.array([typed, None], wire.TYPED_HEADERS)}
    ).slice(0, 1)
    with pytest.raises(OptionError, match="has rows with an `id` of their own"):
        write(iggy, stream, iter([rows]), delivery="exactly_once")
    write(iggy, stream, iter([rows]))  # with ids of one's own, at least once is what there is
    message = iggy_admin.read(stream, "t")[0]
    assert message.id() == 17
    assert message.user_headers().to_scalar_dict() == {"n": 7, "s": "text", "big": 2**100, "f": 1.5, "y": True}
    again = read(iggy, stream, typedHeaders="true")[0]["headers"]
    assert sorted(again, key=lambda h: h["key"]) == sorted(typed, key=lambda h: h["key"])


@pytest.mark.parametrize("faults", [["lose_reply"], ["lose_request"], ["lose_reply", "lose_request", "lose_reply"],
                                    ["transient:3"], ["hang"]])  # fmt: skip
def test_a_reply_or_a_request_that_is_lost_costs_no_row_and_doubles_none(
    double: IggyDouble, stream: str, faults: list[str]
) -> None:
    admin = IggyAdmin(double)
    admin.make(stream, "t", 2)
    double.faults = list(faults)
    write(double, stream, values(0, 2500), batchLength=400, requestTimeout="1s")
    assert not double.faults
    assert sorted(numbers(admin, stream)) == list(range(2500))


def test_without_reading_back_a_lost_reply_doubles_rows(double: IggyDouble, stream: str) -> None:
    """The mechanism taken out: at least once."""
    admin = IggyAdmin(double)
    admin.make(stream, "t")
    double.faults = ["lose_reply"]
    write(double, stream, values(0, 500), delivery="at_least_once")
    assert len(numbers(admin, stream)) > 500
    assert set(numbers(admin, stream)) == set(range(500))


def test_a_task_that_fails_midway_is_continued_by_the_next_attempt(
    iggy: Server, iggy_admin: IggyAdmin, stream: str
) -> None:
    iggy_admin.make(stream, "t", 3)

    def dying() -> Iterator[pa.RecordBatch]:
        yield from values(0, 1700)
        raise RuntimeError("the task dies")

    with pytest.raises(RuntimeError, match="the task dies"):
        write(iggy, stream, dying(), batchLength=200)
    receipt = write(iggy, stream, values(0, 3000), batchLength=200)
    assert sorted(numbers(iggy_admin, stream)) == list(range(3000))
    assert 1000 < receipt.known < 3000
    assert write(iggy, stream, values(0, 3000), batchLength=200).known == 3000
    assert len(numbers(iggy_admin, stream)) == 3000


def test_tasks_that_share_partitions_and_other_writers_do_no_harm(
    iggy: Server, iggy_admin: IggyAdmin, stream: str
) -> None:
    iggy_admin.make(stream, "t", 2)
    stop = threading.Event()

    def others() -> None:
        while not stop.is_set():
            iggy_admin.send(stream, "t", [b"other"] * 5)

    thread = threading.Thread(target=others)
    thread.start()
    try:
        for batch in range(2):
            for partition in range(3):
                low = batch * 3000 + partition * 1000
                for _ in range(2):
                    write(iggy, stream, values(low, low + 1000), Origin("q", batch, partition))
    finally:
        stop.set()
        thread.join()
    assert sorted(numbers(iggy_admin, stream)) == list(range(6000))


@pytest.mark.parametrize(("now", "how"), [((0, 900), "has 900 now"), ((1, 1001), "row 0 is b'1' now")])
def test_a_replay_with_other_rows_is_refused(
    iggy: Server, iggy_admin: IggyAdmin, stream: str, now: tuple[int, int], how: str
) -> None:
    iggy_admin.make(stream, "t")
    write(iggy, stream, values(0, 1000))
    with pytest.raises(ProtocolError, match=f"written before with other rows: .*{how}"):
        write(iggy, stream, values(*now))
    assert numbers(iggy_admin, stream) == list(range(1000))


def test_a_later_batch_of_the_query_ends_an_attempt(iggy: Server, iggy_admin: IggyAdmin, stream: str) -> None:
    iggy_admin.make(stream, "t")
    write(iggy, stream, values(0, 10), ME._replace(batch=6))
    with pytest.raises(ConnectError, match="there are rows of batch 6 already"):
        write(iggy, stream, values(0, 10))


def test_what_could_tell_is_gone_is_said_loudly(double: IggyDouble, stream: str) -> None:
    admin = IggyAdmin(double)
    admin.make(stream, "t")
    write(double, stream, values(0, 100))
    admin.send(stream, "t", [b"other"] * 3000)
    with pytest.raises(ConnectError, match=r"cannot tell .* \(lookBack\)"):
        write(double, stream, values(0, 100), lookBack=1000)
    write(double, stream, values(0, 100))
    assert numbers(admin, stream) == list(range(100))
    double.trim(stream, "t", 0, 200)
    with pytest.raises(ConnectError, match="what could tell has been deleted"):
        write(double, stream, values(0, 100))


def test_a_topic_is_made_as_the_options_say(iggy: Server, iggy_admin: IggyAdmin, stream: str) -> None:
    write(iggy, stream, values(0, 10), createTopic="true", topicPartitions=3, messageExpiry="1d")
    assert len(iggy_admin.run(lambda client: client.get_topic(stream, "t")).partitions) == 3
    assert sorted(numbers(iggy_admin, stream)) == list(range(10))


def test_a_server_that_comes_back_is_waited_for(double: IggyDouble, stream: str) -> None:
    admin = IggyAdmin(double)
    admin.make(stream, "t", 2)

    def rows() -> Iterator[pa.RecordBatch]:
        yield from values(0, 1000)
        double.stop()
        threading.Timer(0.5, double.start).start()
        yield from values(1000, 2000)

    write(double, stream, rows(), reconnectTimeout="20s", batchLength=100)
    assert sorted(numbers(admin, stream)) == list(range(2000))
