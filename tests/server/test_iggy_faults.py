"""What servers and operators of Iggy do besides dying: answers without messages, purges, requests that are stored late,
messages that were confirmed and are gone. Every row is counted; where that cannot come out right, it is shown.
"""

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
from iggy_tools import read, source

from iggy_double import IggyDouble
from iggy_harness import IggyAdmin, Server
from penstock.connectors.iggy.rows import name
from penstock.contract import Origin
from penstock.errors import ConnectError, DataLossError, Disconnected
from penstock.offsets import Position, Range
from penstock.plan import Planner

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
    opened = source(double, stream, maxRetries=3)
    bound = opened.bounds()[f"{stream}/t/0"]
    double.poll_faults = ["empty"] * 1000
    with pytest.raises(ConnectError, match=r"failed 4 times .*gives no message of '.*/t/0' from 0 on.* up to 99"):
        list(opened.read(Range(f"{stream}/t/0", 0, 100, bound.epoch)))
    lenient = source(double, stream, maxRetries=1, failOnDataLoss="false")
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
    with pytest.raises(ConnectError, match=r"no message of .* from 10 on.* the next message that anybody sends there"):
        read(double, stream, maxRetries=1)
    admin.send(stream, "t", [b"10"])
    assert [row["sequence"] for row in read(double, stream, pollCount=3)] == [*range(10), 60]
    query = Query(double, stream, maxRetries=1)
    assert query.batch(most=30) == list(range(10))  # it ends inside the gap
    assert query.batch() == [10]


# Reading: purged, or lost


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
    lenient.planner.options = lenient.source.options = lenient.source.options.model_copy(
        update={"fail_on_data_loss": False}
    )
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


def test_a_purge_between_planning_and_reading_is_said_at_the_next_plan_at_the_latest(
    double: IggyDouble, admin: IggyAdmin, stream: str
) -> None:
    made(admin, stream, 100)
    query = Query(double, stream)
    end, tasks = query.plan()
    admin.purge(stream, "t")
    admin.send(stream, "t", [b"%d" % i for i in range(1000, 1040)])
    with pytest.raises(DataLossError, match="ends at 39, but the query already stands at 100"):
        query.rows(tasks)
    admin.send(stream, "t", [b"%d" % i for i in range(1040, 1120)])
    assert query.rows(tasks) == list(range(1000, 1100))  # the batch itself cannot tell: its offsets are there
    query.at = end
    with pytest.raises(DataLossError, match="counts anew"):
        query.batch()


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
