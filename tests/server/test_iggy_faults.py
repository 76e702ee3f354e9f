"""What servers and operators of Iggy do besides dying: answers without messages, purges, requests that are stored late,
messages that were confirmed and are gone. Every row is counted; where that cannot come out right, it is shown.
"""

import itertools
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from iggy_sources_and_sinks import ME, numbers, read, sink, source, values, write

from iggy_servers import IggyAdmin, Server
from penstock.connectors.iggy import kept
from penstock.connectors.iggy.rows import name
from penstock.errors import ConnectError, DataLossError, Disconnected, Interrupted
from penstock.kit.contract import Origin
from penstock.planning.planner import Planner
from penstock.planning.positions import Position, Range
from penstock.testing.iggy_double import IggyDouble, Message

_names = itertools.count(1)


@pytest.fixture
def stream() -> str:
    return f"f{time.time_ns()}-{next(_names)}"


@pytest.fixture
def double() -> Iterator[IggyDouble]:
    """A double of the test's own, to do harm to."""
    with IggyDouble() as running:
        yield running


@pytest.fixture
def admin(double: IggyDouble) -> IggyAdmin:
    return IggyAdmin(double)


def number(origin: Origin) -> int:
    """The id of the first row of a task."""
    task = name(origin)
    return task.high << 64 | task.low


def made(admin: IggyAdmin, stream: str, count: int, partitions: int = 1) -> None:
    admin.make(stream, "t", partitions)
    for partition in range(partitions):
        admin.send(stream, "t", [b"%d" % i for i in range(partition * count, (partition + 1) * count)], partition)


class Query:
    """Batch after batch as Spark runs them, with the checkpoint in memory. Another one on it is a restart."""

    def __init__(self, server: Server, stream: str, at: dict[str, Any] | None = None, **more: Any):
        self.source = source(server, stream, discoveryInterval="1h", **more)
        self.planner = Planner(self.source, self.source.options, "earliest")
        self.at = self.planner.initial() if at is None else at
        if at is None:
            self.at = self.planner.next(self.at, None)  # the empty first batch

    def plan(self, most: int | None = None) -> tuple[dict[str, Any], list[tuple[Range, ...]]]:
        self.planner.look(now=True)
        end = self.planner.next(self.at, most)
        return end, self.planner.tasks(self.at, end)

    def batch(self, most: int | None = None) -> list[int]:
        end, tasks = self.plan(most)
        found = self.rows(tasks)
        self.at = end
        return found

    def rows(self, tasks: list[tuple[Range, ...]]) -> list[int]:
        spans = [span for task in tasks for span in task]
        return [int(v) for span in spans for batch in self.source.read(span) for v in batch["value"].to_pylist()]


# Reading: answers without messages


@pytest.mark.parametrize(
    "faults",
    [
        ["empty"],
        ["", "empty"],
        ["", "", "empty", "empty", "", "empty"],
        ["skip:300"],
        ["", "skip:17", "skip:3"],
        ["", "skip:100000", ""],
        ["skip:100", "empty"],
        ["hole:10", "", "hole:3"],
        ["empty", "cut", "skip:5", "", "empty", "cut"],
    ],
)
def test_an_answer_without_messages_costs_no_row(
    double: IggyDouble, admin: IggyAdmin, stream: str, faults: list[str]
) -> None:
    made(admin, stream, 2000)
    opened = source(double, stream, pollCount=500)
    bound = opened.bounds()[f"{stream}/t/0"]
    double.poll_faults = list(faults)
    span = Range(f"{stream}/t/0", 0, 2000, bound.epoch)
    assert [int(v) for batch in opened.read(span) for v in batch["value"].to_pylist()] == list(range(2000))
    assert not double.poll_faults


def test_a_query_reads_every_row_whatever_the_server_leaves_out(
    double: IggyDouble, admin: IggyAdmin, stream: str
) -> None:
    made(admin, stream, 600, partitions=3)
    found, query = [], Query(double, stream, pollCount=50)
    for turn in range(30):
        double.poll_faults = [["empty"], ["", "empty"], ["", "", "skip:7"], ["empty", "", "", "empty"]][turn % 4]
        found += query.batch(most=60)
    assert sorted(found) == list(range(1800))


def test_a_partition_that_stays_unreadable_is_said(double: IggyDouble, admin: IggyAdmin, stream: str) -> None:
    made(admin, stream, 100)
    opened = source(double, stream, reconnectTimeout="500ms")
    bound = opened.bounds()[f"{stream}/t/0"]
    double.poll_faults = ["empty"] * 1000
    with pytest.raises(ConnectError, match=r"failed \d+ times .*gives no message of '.*/t/0' from 0 on.* up to 99"):
        list(opened.read(Range(f"{stream}/t/0", 0, 100, bound.epoch)))
    lenient = source(double, stream, reconnectTimeout="100ms", failOnDataLoss="false")
    with pytest.raises(ConnectError, match="gives no message"):
        list(lenient.read(Range(f"{stream}/t/0", 0, 100, bound.epoch)))


def test_where_a_partition_begins_is_no_guess(double: IggyDouble, admin: IggyAdmin, stream: str) -> None:
    made(admin, stream, 100)
    double.poll_faults = ["empty"]
    with pytest.raises(Disconnected, match="gives no message"):
        source(double, stream).bounds()
    double.poll_faults = ["empty", "empty"]
    assert len(Query(double, stream).batch()) == 100


def test_a_time_that_nothing_is_found_for_is_no_guess(double: IggyDouble, admin: IggyAdmin, stream: str) -> None:
    made(admin, stream, 100)
    opened, shard = source(double, stream), f"{stream}/t/0"
    double.poll_faults = ["empty"]
    with pytest.raises(Disconnected, match="its message 99 is younger"):
        opened.find(shard, 0)
    assert opened.find(shard, 0) == 0
    assert opened.find(shard, time.time_ns() // 1000 + 3_600_000_000) == 100


@pytest.mark.parametrize("narrow", [False, True])
def test_a_later_message_proves_a_gap_and_nothing_else_does(
    double: IggyDouble, admin: IggyAdmin, stream: str, narrow: bool
) -> None:
    made(admin, stream, 10)
    double.narrow = narrow
    double.gap(stream, "t", 0, 50)
    with pytest.raises(ConnectError, match=r"no message of .* from 10 on.* with the next message that is sent"):
        read(double, stream, reconnectTimeout="100ms")
    admin.send(stream, "t", [b"10"])
    assert [row["sequence"] for row in read(double, stream, pollCount=3)] == [*range(10), 60]
    query = Query(double, stream, reconnectTimeout="100ms")
    assert query.batch(most=30) == list(range(10))  # it ends inside the gap
    assert query.batch() == [10]


def test_unused_offsets_that_nothing_is_left_before_are_taken_for_deleted_messages(
    double: IggyDouble, admin: IggyAdmin, stream: str
) -> None:
    admin.make(stream, "t")
    query, lenient = Query(double, stream), Query(double, stream, failOnDataLoss="false")
    double.gap(stream, "t", 0, 2)
    admin.send(stream, "t", [b"0", b"1"])
    with pytest.raises(DataLossError, match="starts at 2, but the query is at 0"):
        query.batch()
    assert lenient.batch() == [0, 1]
    double.gap(stream, "t", 0, 3)
    admin.send(stream, "t", [b"2"])
    restarted = Query(double, stream, lenient.at)
    double.trim(stream, "t", 0, 2)  # read, all of them
    with pytest.raises(DataLossError, match="starts at 7, but the query is at 4"):
        restarted.batch()


@pytest.mark.parametrize("brief", [False, True])
def test_messages_that_are_left_out_twice_are_taken_for_a_gap(
    double: IggyDouble, admin: IggyAdmin, stream: str, brief: bool
) -> None:
    made(admin, stream, 10)
    opened, double.brief, double.poll_faults = source(double, stream), brief, ["skip:3", "skip:3"]
    found = [int(v) for batch in opened.read(Range(f"{stream}/t/0", 2, 10)) for v in batch["value"].to_pylist()]
    assert found == list(range(2 if brief else 5, 10))


# Reading: purged, or lost


def test_a_purge_before_the_first_rows_of_a_query_that_starts_behind_deleted_messages_is_not_noticed(
    double: IggyDouble, admin: IggyAdmin, stream: str
) -> None:
    made(admin, stream, 20)
    double.trim(stream, "t", 0, 16)
    query, other = Query(double, stream), Query(double, stream)
    assert other.batch(most=1) == [16]
    double.purge(stream, "t")
    admin.send(stream, "t", [b"%d" % i for i in range(100, 131)])
    assert query.batch() == list(range(116, 131))  # nothing is left before 16 by which it could tell
    with pytest.raises(DataLossError):
        other.batch()


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("trimmed", [0, 60])
def test_a_purged_topic_that_is_filled_again_is_no_silent_loss(
    double: IggyDouble, admin: IggyAdmin, stream: str, restarted: bool, trimmed: int
) -> None:
    made(admin, stream, 100)
    double.trim(stream, "t", 0, trimmed)
    query = Query(double, stream)
    assert query.batch() == list(range(trimmed, 100))
    admin.send(stream, "t", [b"100"] * 20)  # never read
    admin.purge(stream, "t")
    admin.send(stream, "t", [b"%d" % i for i in range(1000, 1150)])
    if restarted:
        query = Query(double, stream, query.at)
    with pytest.raises(DataLossError, match=r"counts anew \(now 0 to 149\): its record 99 is not the one"):
        query.batch()
    lenient = Query(double, stream, query.at, failOnDataLoss="false") if restarted else query
    lenient.planner.losses.stops = lenient.source.losses.stops = False
    assert lenient.batch() == list(range(1000, 1150))
    admin.send(stream, "t", [b"7"])
    assert lenient.batch() == [7]


def test_a_purged_topic_with_less_than_was_read_is_said(double: IggyDouble, admin: IggyAdmin, stream: str) -> None:
    made(admin, stream, 100)
    query = Query(double, stream)
    query.batch()
    admin.purge(stream, "t")
    admin.send(stream, "t", [b"1"] * 40)
    with pytest.raises(DataLossError, match="ends at 39, but the query already stands at 100"):
        query.batch()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_purge_between_planning_and_reading_fails_the_task(
    double: IggyDouble, admin: IggyAdmin, stream: str, restarted: bool
) -> None:
    made(admin, stream, 100)
    query = Query(double, stream, maxRecordsPerPartition=30)
    end, tasks = query.plan()
    if restarted:  # as a batch that is replayed: it asks nobody what to read
        tasks = Query(double, stream, query.at).planner.tasks(query.at, end)
    admin.purge(stream, "t")
    admin.send(stream, "t", [b"%d" % i for i in range(1000, 1040)])
    for task in tasks:
        with pytest.raises(DataLossError, match="ends at 39, but the query already stands at 100"):
            query.rows([task])
    admin.send(stream, "t", [b"%d" % i for i in range(1040, 1120)])
    for task in tasks:
        with pytest.raises(DataLossError, match=r"counts anew .* its record 99 is not the one that the query read"):
            query.rows([task])
    query.source.losses.stops = False
    assert query.rows(tasks) == []  # the next plan begins with the first of the new ones


def test_a_purge_while_a_range_is_read_fails_the_task(double: IggyDouble, admin: IggyAdmin, stream: str) -> None:
    made(admin, stream, 100)
    opened = source(double, stream, pollCount=10)
    bound = opened.bounds()[f"{stream}/t/0"]
    batches = opened.read(Range(f"{stream}/t/0", 0, 20, bound.epoch))
    next(batches)
    next(batches)
    admin.purge(stream, "t")
    with pytest.raises(DataLossError, match="ends at -1, but the query already stands at 20"):
        next(batches)
    admin.send(stream, "t", [b"1"] * 30)
    batches = opened.read(Range(f"{stream}/t/0", 0, 30, bound.epoch))
    next(batches)
    admin.purge(stream, "t")
    with pytest.raises(DataLossError, match="ends at -1, but the query already stands at 30"):
        next(batches)


def test_a_purge_while_a_range_is_read_fails_the_task_also_where_new_messages_came(
    double: IggyDouble, admin: IggyAdmin, stream: str
) -> None:
    made(admin, stream, 100)
    query = Query(double, stream, pollCount=10)
    _, ((span,),) = query.plan()
    batches = query.source.read(span)
    next(batches)
    admin.purge(stream, "t")
    admin.send(stream, "t", [b"1"] * 200)
    with pytest.raises(DataLossError, match="counts anew"):
        list(batches)


def test_messages_that_a_restarted_server_lost_are_no_silent_loss(
    double: IggyDouble, admin: IggyAdmin, stream: str
) -> None:
    made(admin, stream, 100)
    query = Query(double, stream)
    query.batch()
    double.stop()
    double.lose(stream, "t", 0, 30)
    double.start()
    with pytest.raises(DataLossError, match="ends at 69, but the query already stands at 100"):
        query.batch()
    admin.send(stream, "t", [b"%d" % i for i in range(200, 250)])
    with pytest.raises(DataLossError, match="its record 99 is not the one that the query read"):
        query.batch()


def test_an_empty_answer_never_hides_a_purge(double: IggyDouble, admin: IggyAdmin, stream: str) -> None:
    made(admin, stream, 10)
    query = Query(double, stream)
    query.batch()
    admin.purge(stream, "t")
    admin.send(stream, "t", [b"1"] * 20)
    double.poll_faults = ["empty", "empty"]
    with pytest.raises(DataLossError, match="counts anew"):
        query.batch()


def test_a_mark_is_asked_for_only_where_there_is_a_message(double: IggyDouble, admin: IggyAdmin, stream: str) -> None:
    made(admin, stream, 10, partitions=2)
    opened = source(double, stream)
    shards = list(opened.bounds())
    double.trim(stream, "t", 1, 5)
    marks = opened.marks({shards[0]: Position(10), shards[1]: Position(5), f"{stream}/t/7": Position(3)})
    assert set(marks) == {shards[0]}  # the one before 5 was deleted, and there is no partition 7
    assert opened.marks({shards[0]: Position(0), shards[1]: Position(11)}) == {}
    assert opened.marks({shards[0]: Position(10)}) == marks
    assert opened.marks({shards[0]: Position(9)}) != marks


# Writing: answers without messages


@pytest.mark.parametrize("fault", [["empty"], ["skip:40"], ["skip:100000"], ["skip:40", "empty"], ["hole:40"]])
@pytest.mark.parametrize("turn", range(5))
def test_a_replay_with_answers_without_messages_doubles_no_row(
    double: IggyDouble, admin: IggyAdmin, stream: str, fault: list[str], turn: int
) -> None:
    admin.make(stream, "t", 2)
    write(double, stream, values(0, 500), batchLength=100)
    double.poll_faults = [""] * turn + fault
    assert write(double, stream, values(0, 500), batchLength=100).known == 500
    assert sorted(numbers(admin, stream)) == list(range(500))


@pytest.mark.parametrize("fault", ["empty", "skip:100000"])
def test_a_lost_answer_with_answers_without_messages_doubles_no_row(
    double: IggyDouble, admin: IggyAdmin, stream: str, fault: str
) -> None:
    admin.make(stream, "t")
    admin.send(stream, "t", [b"other"] * 10)

    def rows() -> Iterator[pa.RecordBatch]:
        yield from values(0, 200)
        double.poll_faults, double.faults = [fault], ["lose_reply"]
        yield from values(200, 400)

    write(double, stream, rows(), ME._replace(batch=0), batchLength=100)
    assert not double.poll_faults
    assert numbers(admin, stream) == list(range(400))


def test_a_partition_that_cannot_be_read_back_is_not_written_to(
    double: IggyDouble, admin: IggyAdmin, stream: str
) -> None:
    admin.make(stream, "t")
    write(double, stream, values(0, 100))
    double.poll_faults = ["empty"] * 1000
    with pytest.raises(ConnectError, match="gives no message"):
        write(double, stream, values(0, 100), reconnectTimeout="200ms")
    double.poll_faults = []
    assert numbers(admin, stream) == list(range(100))


# Writing: purged, or lost


@pytest.mark.parametrize("rest", [0, 30])
def test_after_a_purge_a_replayed_batch_is_there_once_and_it_is_said(
    double: IggyDouble, admin: IggyAdmin, stream: str, rest: int, caplog: pytest.LogCaptureFixture
) -> None:
    admin.make(stream, "t", 2)
    write(double, stream, values(5000, 5100), ME._replace(batch=2))

    def dying() -> Iterator[pa.RecordBatch]:
        yield from values(0, 300)
        raise RuntimeError("the task dies")

    with pytest.raises(RuntimeError, match="the task dies"):
        write(double, stream, dying(), batchLength=100)
    kept._memory().clear()  # another process
    admin.purge(stream, "t")
    admin.send(stream, "t", [b"other"] * rest)
    with caplog.at_level(logging.WARNING, "penstock"):
        write(double, stream, values(0, 500), batchLength=100)
    assert "has nothing of this query. If the query has written to it before, the topic was purged" in caplog.text
    assert sorted(numbers(admin, stream)) == list(range(500))
    write(double, stream, values(0, 500), batchLength=100)
    assert len(numbers(admin, stream)) == 500


def test_partitions_that_never_got_a_row_are_written_to_without_ado(
    double: IggyDouble, admin: IggyAdmin, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    admin.make(stream, "t", 3)

    def to(partition: int, low: int, high: int) -> Iterator[pa.RecordBatch]:
        for batch in values(low, high):
            yield batch.append_column("partition", pa.array([partition] * len(batch)))

    with caplog.at_level(logging.WARNING, "penstock"):
        write(double, stream, to(0, 0, 50), ME._replace(batch=1))
        write(double, stream, to(1, 50, 100), ME._replace(batch=2))
        write(double, stream, to(2, 100, 150), ME._replace(batch=9))
    assert not caplog.text
    assert sorted(numbers(admin, stream)) == list(range(150))


def test_a_query_whose_first_rows_come_late_writes_them(double: IggyDouble, admin: IggyAdmin, stream: str) -> None:
    """As windows do, and filters: nothing tells it from a query whose topic was purged, but that."""
    admin.make(stream, "t", 2)
    write(double, stream, values(0, 100), ME._replace(batch=7))
    assert sorted(numbers(admin, stream)) == list(range(100))


@pytest.mark.parametrize("how", ["purged", "purged and filled", "lost", "lost and filled"])
def test_rows_that_are_gone_when_the_batch_is_done_are_written_again(
    double: IggyDouble, admin: IggyAdmin, stream: str, how: str
) -> None:
    """Both tasks are done, their rows confirmed; then some go, and others may come; then Spark commits."""
    admin.make(stream, "t")
    opened = sink(double, stream, next(values(0, 1)).schema)
    tasks = {ME: values(0, 300), ME._replace(partition=1): values(300, 700)}
    receipts = [opened.write(rows, origin) for origin, rows in tasks.items()]
    double.purge(stream, "t") if how.startswith("purged") else double.lose(stream, "t", 0, 120)
    if how.endswith("filled"):
        admin.send(stream, "t", [b"other"] * 800)
    evidence = "its message 699 is no longer the one" if how.endswith("filled") else "wrote up to 699, and it ends at"
    with pytest.raises(ConnectError, match=f"/t/0' has lost what was written to it: .*{evidence}"):
        opened.commit(receipts, ME.batch)
    tasks = {ME: values(0, 300), ME._replace(partition=1): values(300, 700)}
    opened.commit([opened.write(rows, origin) for origin, rows in tasks.items()], ME.batch)
    assert sorted(numbers(admin, stream)) == list(range(700))


def test_rows_found_from_an_earlier_attempt_must_be_there_too_when_the_batch_is_done(
    double: IggyDouble, admin: IggyAdmin, stream: str
) -> None:
    admin.make(stream, "t")
    opened = sink(double, stream, next(values(0, 1)).schema)
    opened.write(values(0, 300), ME)
    receipt = opened.write(values(0, 300), ME)
    assert receipt.known == 300
    double.lose(stream, "t", 0, 10)
    with pytest.raises(ConnectError, match="wrote up to 299, and it ends at 289"):
        opened.commit([receipt], ME.batch)


def test_rows_that_are_lost_while_their_task_goes_on_fail_it(double: IggyDouble, admin: IggyAdmin, stream: str) -> None:
    admin.make(stream, "t")

    def rows() -> Iterator[pa.RecordBatch]:
        yield from values(0, 300)
        double.stop()
        double.lose(stream, "t", 0, 120)  # more than the request that was not answered yet
        double.start()
        yield from values(300, 400)

    with pytest.raises(
        ConnectError, match=r"has lost what was written to it: it ends at \d+, but .* has seen it up to"
    ):
        write(double, stream, rows(), batchLength=100)
    write(double, stream, values(0, 400), batchLength=100)
    assert sorted(numbers(admin, stream)) == list(range(400))


@pytest.mark.parametrize("left", [3, 0])
def test_rows_that_retention_took_before_the_batch_was_done_are_not_missed(
    double: IggyDouble, admin: IggyAdmin, stream: str, left: int
) -> None:
    admin.make(stream, "t")
    opened = sink(double, stream, next(values(0, 1)).schema)
    receipt = opened.write(values(0, 300), ME)
    admin.send(stream, "t", [b"other"] * 5)
    double.trim(stream, "t", 0, 305 - left)
    opened.commit([receipt], ME.batch)


@pytest.mark.parametrize("driver_bytes", ["1", "4mb"])
@pytest.mark.parametrize("how", ["purged", "lost"])
def test_a_running_query_stops_once_when_rows_of_its_last_batch_are_gone(
    double: IggyDouble, admin: IggyAdmin, stream: str, how: str, driver_bytes: str
) -> None:
    admin.make(stream, "t", 2)
    query, more = Origin(stream, 2, 0), {"driverBytes": driver_bytes, "batchLength": 50}
    write(double, stream, values(0, 100), query, **more)
    write(double, stream, values(100, 200), query._replace(batch=3), **more)
    double.stop()
    double.purge(stream, "t") if how == "purged" else double.lose(stream, "t", 1, 30)
    double.start()
    evidence = "wrote up to 99, and it ends at|its message 99 is no longer the one that partition 0 of batch 3 wrote"
    with pytest.raises(ConnectError, match=evidence):
        write(double, stream, values(200, 300), query._replace(batch=4), **more)
    for _ in range(2):  # it was said; whoever starts it again wants it to go on
        write(double, stream, values(200, 300), query._replace(batch=4), **more)
    rest = [] if how == "purged" else [n for n in range(200) if n not in range(170, 200)]
    assert sorted(numbers(admin, stream)) == [*rest, *range(200, 300)]


def test_messages_lost_while_the_query_was_not_running_are_lost(
    double: IggyDouble, admin: IggyAdmin, stream: str
) -> None:
    """What durability=persisted is for: nothing can tell them from messages that never were."""
    admin.make(stream, "t")
    query = Origin(stream, 2, 0)
    write(double, stream, values(0, 100), query)
    double.stop()
    double.lose(stream, "t", 0, 30)
    double.start()
    kept._memory().clear()  # another process
    write(double, stream, values(100, 200), query._replace(batch=3))
    assert numbers(admin, stream) == [*range(70), *range(100, 200)]


# Writing: a request that is stored late


def test_a_request_stored_within_the_settle_time_is_found(double: IggyDouble, admin: IggyAdmin, stream: str) -> None:
    admin.make(stream, "t")
    double.faults = ["", "late:0.2"]
    write(double, stream, values(0, 500), batchLength=100, settleTime="600ms")
    time.sleep(0.3)  # whatever comes would have come
    assert numbers(admin, stream) == list(range(500))


def test_a_server_that_hung_gets_the_settle_time_from_when_it_answers_again(
    double: IggyDouble, admin: IggyAdmin, stream: str
) -> None:
    admin.make(stream, "t")
    double.faults = ["", "freeze:1.5"]
    write(double, stream, values(0, 500), batchLength=100, settleTime="500ms", requestTimeout="400ms")
    time.sleep(0.3)
    assert sorted(numbers(admin, stream)) == list(range(500))


def test_a_request_stored_later_than_that_doubles_rows_and_is_said(
    double: IggyDouble, admin: IggyAdmin, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What no client of Iggy 0.9 can prevent. The ids tell the doubles."""
    admin.make(stream, "t")
    double.faults = ["", "later"]
    with caplog.at_level(logging.WARNING, "penstock"):
        write(double, stream, values(0, 400), batchLength=100, settleTime="20ms")
    assert sorted(numbers(admin, stream)) == sorted([*range(400), *range(100, 200)])
    assert "100 rows of partition 0 of batch 3 are in" in caplog.text
    assert "stored later than settleTime (0.02s)" in caplog.text
    ids = [message.id() for message in admin.read(stream, "t")]
    assert len(set(ids)) == 400


def test_others_and_lost_answers_are_not_taken_for_doubles(
    double: IggyDouble, admin: IggyAdmin, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    admin.make(stream, "t")
    stop = threading.Event()

    def others() -> None:
        while not stop.wait(0.002):
            with double.lock:
                double.topic(stream, "t").partitions[0].append(Message(1, b"other", b"", 0))

    thread = threading.Thread(target=others)
    thread.start()
    double.faults = ["", "lose_reply", "lose_request", "", "lose_request", "lose_reply"]
    try:
        with caplog.at_level(logging.WARNING, "penstock"):
            write(double, stream, values(0, 1000), batchLength=100)
    finally:
        stop.set()
        thread.join()
    assert numbers(admin, stream) == list(range(1000))
    assert "twice" not in caplog.text


# Writing: an input that is cut off


@pytest.mark.parametrize("driver_bytes", ["1", "4mb"])
def test_an_attempt_whose_input_is_cut_off_is_continued(
    double: IggyDouble, admin: IggyAdmin, stream: str, driver_bytes: str
) -> None:
    admin.make(stream, "t", 2)

    def cut() -> Iterator[pa.RecordBatch]:
        yield from values(0, 700)
        raise Interrupted("Spark ended this task before all of its rows came.")

    with pytest.raises(Interrupted, match="before all of its rows came"):
        write(double, stream, cut(), batchLength=100, driverBytes=driver_bytes)
    write(double, stream, values(0, 1000), batchLength=100, driverBytes=driver_bytes)
    assert sorted(numbers(admin, stream)) == list(range(1000))


# What is read back


def test_a_running_query_reads_nothing_back(double: IggyDouble, admin: IggyAdmin, stream: str) -> None:
    made(admin, stream, 12_000, partitions=3)
    query = Origin(stream, 5, 0)
    double.topic(stream, "t").partitions[0].append(Message(number(query), b"90000", b"", 0))
    write(double, stream, values(90_001, 90_002), query._replace(batch=6), driverBytes="4mb")
    admin.send(stream, "t", [b"other"] * 10, 1)
    before = double.polled
    write(double, stream, values(90_002, 90_003), query._replace(batch=7), driverBytes="4mb")
    assert double.polled - before <= 15  # what others sent since, and the last rows
    write(double, stream, values(90_002, 90_003), query._replace(batch=7), driverBytes="4mb")
    assert sorted(n for n in numbers(admin, stream) if n >= 90_000) == [90_000, 90_001, 90_002]
    write(double, stream, values(0, 1), query._replace(batch=9))
    with pytest.raises(ConnectError, match="there are rows of batch 9 already"):
        write(double, stream, values(90_003, 90_004), query._replace(batch=8), driverBytes="4mb")


def test_a_running_query_finds_what_a_batch_has_left_that_failed(
    double: IggyDouble, admin: IggyAdmin, stream: str
) -> None:
    admin.make(stream, "t", 2)
    query = Origin(stream, 2, 0)
    write(double, stream, values(0, 500), query, driverBytes="4mb", batchLength=100)
    double.faults = ["", "", "refuse:4010"]
    with pytest.raises(ConnectError, match="Cannot append message"):
        write(double, stream, values(500, 1000), query._replace(batch=3), driverBytes="4mb", batchLength=100)
    assert 500 < len(numbers(admin, stream)) < 1000
    receipt = write(double, stream, values(500, 1000), query._replace(batch=3), driverBytes="4mb", batchLength=100)
    assert receipt.rows == 500
    assert sorted(numbers(admin, stream)) == list(range(1000))


# A single df.write


def test_a_single_write_reads_nothing_back(double: IggyDouble, admin: IggyAdmin, stream: str) -> None:
    made(admin, stream, 12_000, partitions=3)
    schema = next(values(0, 1)).schema
    ends = sink(double, stream, schema).ends()
    admin.send(stream, "t", [b"other"] * 10)
    before = double.polled
    opened = sink(double, stream, schema)
    opened.begin(ends)
    opened.commit([opened.write(values(90_000, 90_001), Origin("one", 0, 0))], None)
    assert double.polled - before <= 11  # what others sent since, and the row itself
    assert numbers(admin, stream).count(90_000) == 1


def test_a_retried_task_of_a_single_write_finds_its_rows_behind_all_that_others_wrote(
    double: IggyDouble, admin: IggyAdmin, stream: str
) -> None:
    made(admin, stream, 100, partitions=3)
    schema = next(values(0, 1)).schema
    ends, me = sink(double, stream, schema).ends(), Origin("one", 0, 0)

    def attempt(batches: Iterator[pa.RecordBatch]) -> None:
        opened = sink(double, stream, schema, lookBack=100, batchLength=50)
        opened.begin(ends)
        opened.commit([opened.write(batches, me)], None)

    def dying() -> Iterator[pa.RecordBatch]:
        yield from values(5000, 5400)
        raise RuntimeError("the task dies")

    with pytest.raises(RuntimeError, match="the task dies"):
        attempt(dying())
    for partition in range(3):
        admin.send(stream, "t", [b"other"] * 1000, partition)  # more than lookBack
    attempt(values(5000, 6000))
    assert sorted(n for n in numbers(admin, stream) if n >= 5000) == list(range(5000, 6000))


@pytest.mark.parametrize("change", ["purged", "made again"])
def test_a_single_write_finds_its_rows_in_a_topic_that_counts_anew(
    double: IggyDouble, admin: IggyAdmin, stream: str, change: str
) -> None:
    made(admin, stream, 100)
    schema = next(values(0, 1)).schema
    ends, me = sink(double, stream, schema).ends(), Origin("one", 0, 0)
    if change == "purged":
        admin.purge(stream, "t")
    else:
        admin.delete(stream, "t")
        admin.make(stream, "t")
    for _ in range(2):
        opened = sink(double, stream, schema)
        opened.begin(ends)
        opened.commit([opened.write(values(0, 50), me)], None)
        admin.send(stream, "t", [b"other"] * (10 if change == "purged" else 200))
    assert numbers(admin, stream) == list(range(50))


def test_a_single_write_to_a_topic_that_is_not_there_yet_has_nothing_to_note(double: IggyDouble, stream: str) -> None:
    assert sink(double, stream, next(values(0, 1)).schema, createTopic="true").ends() == {}
