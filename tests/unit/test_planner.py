import json
import logging
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConnectError, DataLossError, Disconnected, OptionError
from penstock.kit.retry import Retry
from penstock.options import ReadOptions
from penstock.planning.checkpoint import Checkpoint
from penstock.planning.planner import LOOK_AT_LEAST, Planner
from penstock.planning.positions import Bound, Bounds, Offsets, Position, Range

Json = dict[str, Any]
POLL = 0.012  # how often an idle query asks


@dataclass
class Shard:
    """[first, next), a row at each position or only at `rows`."""

    next: int
    first: int = 1
    epoch: str = "life-1"
    row_bytes: float = 100.0
    transient: bool = False
    rows: list[int] | None = None
    queue: bool = False

    def in_range(self, start: int, end: int) -> list[int]:
        start, end = max(start, self.first), min(end, self.next)
        return [r for r in (self.rows if self.rows is not None else range(start, end)) if start <= r < end]


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeSource:
    """A source in memory that counts how often it is asked. The record at position p is p milliseconds old."""

    shards: dict[str, Shard]
    clock: Clock = field(default_factory=Clock)
    looks: int = 0
    counts: int = 0
    cost: float = 0.0
    told: list[Offsets] = field(default_factory=list)
    silent: bool = False

    outage: float = 0.0

    def check(self) -> None:
        raise AssertionError("a planner only asks")

    def bounds(self) -> Bounds:
        assert not self.silent, "asked for the bounds"
        if self.outage:
            self.clock.now += self.outage
            self.outage = 0.0
            raise Disconnected("the server is away")
        self.looks += 1
        self.clock.now += self.cost
        return {n: Bound(s.first, s.next, s.epoch, s.row_bytes, s.transient, s.queue) for n, s in self.shards.items()}

    def find(self, shard: str, timestamp: int) -> int:
        assert not self.silent, "asked for a timestamp"
        held = self.shards[shard]
        return min(max(-(-timestamp // 1000), held.first), held.next)

    def count(self, shard: str, positions: Sequence[int]) -> Sequence[int] | None:
        assert not self.silent, "asked to count"
        self.counts += 1
        rows = self.shards[shard].rows
        return None if rows is None else [len(rows) - bisect_left(rows, p) for p in positions]

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        raise AssertionError("a planner reads nothing")

    def progress(self, at: Offsets) -> None:
        assert not self.silent, "told the progress"
        self.told.append(at)

    def commit(self, end: Offsets) -> None:
        raise AssertionError("a planner commits nothing")

    def close(self) -> None:
        raise AssertionError("a planner closes nothing")


@dataclass
class MarkingSource(FakeSource):
    """One whose positions may come to mean other records; `written` counts the lives of its shards."""

    written: dict[str, str] = field(default_factory=dict)
    asked: int = 0
    unmarked: bool = False  # the record before an end was deleted

    def marks(self, at: Offsets) -> dict[str, str]:
        self.asked += 1
        if self.unmarked:
            return {}
        held = {s: p.next for s, p in at.items() if self.shards[s].first < p.next <= self.shards[s].next}
        return {s: f"{self.written.get(s, 'a')}{number - 1}" for s, number in held.items()}


@dataclass
class ResumingSource(FakeSource):
    """One that finds the shard `hidden` only when it is told that the query reads it."""

    hidden: str = ""
    resumed: list[tuple[Offsets, dict[str, str]]] = field(default_factory=list)
    begun: int = 0

    def begin(self) -> None:
        self.begun += 1

    def resume(self, at: Offsets, notes: Mapping[str, str]) -> None:
        self.resumed.append((at, dict(notes)))
        self.hidden = ""

    def notes(self, at: Offsets) -> dict[str, str]:
        return {"s": "noted"}

    def bounds(self) -> Bounds:
        return {shard: bound for shard, bound in super().bounds().items() if shard != self.hidden}


class PatientOptions(ReadOptions):
    def retry(self, what: str) -> Retry:
        return Retry(what, attempts=3, delay=0.001)


def planner(source: FakeSource, default_start: str = "earliest", **given_options: str) -> Planner:
    return Planner(source, ReadOptions.parse("test", given_options), default_start, source.clock)


def through_log(offset: Json) -> Json:
    """As Spark hands an offset back: from its text."""
    parsed: Json = json.loads(json.dumps(offset))
    return parsed


def begin(plan: Planner) -> Json:
    """Where a new query stands after its first, empty batch."""
    return through_log(plan.next(through_log(plan.initial()), None))


def same_text(a: Json, b: Json) -> bool:
    return json.dumps(a) == json.dumps(b)


def step(plan: Planner, source: FakeSource, start: Json, max_rows: int | None = None) -> Json:
    """The next end, asked late enough for a fresh look."""
    source.clock.now += 60
    return through_log(plan.next(start, max_rows))


def drain(plan: Planner, source: FakeSource, start: Json, max_rows: int | None = None) -> list[tuple[Json, Json]]:
    """All batches from `start` on until there is nothing new."""
    batches = []
    for _ in range(2000):
        end = step(plan, source, start, max_rows)
        if same_text(start, end):
            return batches
        batches.append((start, end))
        start = end
    raise AssertionError("it does not come to an end")


def spans(planned: Sequence[Sequence[Range]]) -> list[tuple[str, int, int]]:
    return [(span.shard, span.start, span.end) for task in planned for span in task]


def rows_of(source: FakeSource, planned: Sequence[Sequence[Range]]) -> list[tuple[str, int]]:
    return [(shard, row) for shard, a, b in spans(planned) for row in source.shards[shard].in_range(a, b)]


def rows_per_batch(plan: Planner, source: FakeSource, batches: list[tuple[Json, Json]]) -> list[int]:
    return [len(rows_of(source, plan.tasks(start, end))) for start, end in batches]


# The start


def test_the_start_stays_though_the_head_moves() -> None:
    # Spark asks twice; a second answer would skip what came in between.
    source = FakeSource({"s": Shard(10)})
    plan = planner(source, "latest")
    first = plan.initial()
    source.shards["s"].next = 50
    source.clock.now += 60
    assert same_text(plan.initial(), first)
    assert Checkpoint.decode(first).positions == {"s": Position(10, "life-1")}


@pytest.mark.parametrize(("default", "expected"), [("latest", 10), ("earliest", 3)])
def test_a_query_without_options_starts_where_its_kind_does(default: str, expected: int) -> None:
    source = FakeSource({"s": Shard(10, first=3)})
    assert Checkpoint.decode(planner(source, default).initial()).positions == {"s": Position(expected, "life-1")}


def test_a_queue_starts_at_its_first_record_unless_told_otherwise() -> None:
    source = FakeSource({"log": Shard(10, first=3), "queue": Shard(10, first=3, queue=True)})
    assert planner(source, "latest").initial()["next"] == {"log": 10, "queue": 3}
    assert planner(source, "latest", startingOffsets="latest").initial()["next"] == {"log": 10, "queue": 10}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "earliest"}, {"a": 3, "b": 1}),
        ({"startingOffsets": "latest"}, {"a": 10, "b": 20}),
        ({"startingOffsets": '{"a": 7}'}, {"a": 7, "b": 1}),
        ({"startingOffsets": '{"a": 10, "b": 20}'}, {"a": 10, "b": 20}),
        ({"startingTimestamp": "8"}, {"a": 8, "b": 8}),
        ({"startingTimestamp": "15"}, {"a": 10, "b": 15}),
        ({"startingTimestamp": "1970-01-01T00:00:00.008Z", "startingOffsets": "latest"}, {"a": 8, "b": 8}),
    ],
)
def test_a_query_starts_where_it_was_told(options: dict[str, str], expected: dict[str, int]) -> None:
    source = FakeSource({"a": Shard(10, first=3), "b": Shard(20)})
    assert planner(source, "latest", **options).initial()["next"] == expected


def test_starting_offsets_of_an_unknown_name_are_refused_with_the_known_ones() -> None:
    source = FakeSource({"b": Shard(10), "a": Shard(10)})
    with pytest.raises(OptionError, match=r"^startingOffsets names 'x', which is not read here\. It reads: a, b\.$"):
        planner(source, startingOffsets='{"x": 1}').initial()


def test_starting_offsets_beyond_the_head_are_refused_with_the_head() -> None:
    source = FakeSource({"s": Shard(10)})
    with pytest.raises(OptionError, match=r"^startingOffsets puts 's' at 11, but its next record will be 10\.$"):
        planner(source, startingOffsets='{"s": 11}').initial()
    assert planner(source, startingOffsets='{"s": 10}').initial()["next"] == {"s": 10}


def test_the_first_batch_is_empty_and_pins_the_start() -> None:
    source = FakeSource({"s": Shard(10)})
    plan = planner(source, "latest")
    start = through_log(plan.initial())
    source.shards["s"].next = 50
    end = step(plan, source, start)
    assert not same_text(start, end), "Spark would write no batch"
    assert Checkpoint.decode(end).positions == {"s": Position(10, "life-1")}
    assert plan.tasks(start, end) == []
    assert "fresh" not in end


@pytest.mark.parametrize("options", [{}, {"startingOffsets": "earliest"}])
def test_a_crash_after_the_pinning_batch_neither_skips_nor_repeats(options: dict[str, str]) -> None:
    source = FakeSource({"s": Shard(10)})
    pinned = begin(planner(source, "latest"))
    source.shards["s"].next = 50
    # The first batch was never committed: the new run asks for a start of its own, and gets another one.
    again = planner(source, "latest", **options)
    assert again.tasks(through_log(again.initial()), pinned) == []
    end = step(again, source, pinned)
    assert rows_of(source, again.tasks(pinned, end)) == [("s", at) for at in range(10, 50)]


# The next batch


def test_nothing_new_gives_back_the_very_text_of_the_start() -> None:
    source = FakeSource({"s": Shard(10, rows=[2, 4, 8]), "t": Shard(7)})
    plan = planner(source, maxRecordsPerPartition="1")
    start = begin(plan)
    end = step(plan, source, start)
    assert "cuts" in end, "the text holds more than positions"
    assert same_text(step(plan, source, end), end)


def test_a_batch_reads_all_there_is() -> None:
    source = FakeSource({"s": Shard(10, first=4), "t": Shard(3)})
    plan = planner(source)
    start = begin(plan)
    end = step(plan, source, start)
    assert end["next"] == {"s": 10, "t": 3}
    assert rows_of(source, plan.tasks(start, end)) == [("s", at) for at in range(4, 10)] + [("t", 1), ("t", 2)]


def test_a_new_shard_is_read_from_its_beginning_in_the_batch_after_it_was_found() -> None:
    source = FakeSource({"s": Shard(10)})
    plan = planner(source, "latest")
    start = begin(plan)
    source.shards["young"] = Shard(5, epoch="y")
    batches = drain(plan, source, start)
    assert [rows_of(source, plan.tasks(a, b)) for a, b in batches] == [[], [("young", at) for at in range(1, 5)]]


def test_the_progress_is_told_once_for_each_position() -> None:
    source = FakeSource({"s": Shard(10)})
    plan = planner(source)
    start = begin(plan)
    end = step(plan, source, start)
    for _ in range(5):
        step(plan, source, end)
    assert [at["s"].next for at in source.told] == [1, 10]


def test_the_head_is_reported_for_lag() -> None:
    source = FakeSource({"s": Shard(10), "t": Shard(7)})
    assert Checkpoint.decode(planner(source).head()).positions == {
        "s": Position(10, "life-1"),
        "t": Position(7, "life-1"),
    }


class DatedSource(FakeSource):
    """A source whose records have times: each of them is as many seconds old as its number is below 100."""

    reads = 0

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        self.reads += 1
        stored = [int((time.time() - 100 + at) * 1e6) for at in self.shards[span.shard].in_range(span.start, span.end)]
        yield pa.record_batch({"timestamp": pa.array(stored, pa.timestamp("us", tz="UTC"))})


def test_the_age_of_the_oldest_unread_record_is_reported_and_asked_for_once_a_second() -> None:
    source = DatedSource({"s": Shard(10), "t": Shard(30, rows=[1, 9, 20])})
    plan = planner(source)
    start = begin(plan)
    end = plan.next(start, 2)
    figures = plan.lag()
    at = Checkpoint.decode(end).positions
    assert figures["lag"] == 10 + 30 - at["s"].next - at["t"].next
    assert figures["lagBytes"] == 100 * figures["lag"]
    oldest = min(at["s"].next, next(row for row in (1, 9, 20) if row >= at["t"].next))
    assert figures["lagMs"] // 1000 == 100 - oldest
    reads = source.reads
    for _ in range(50):
        assert plan.lag() == figures
    assert source.reads == reads
    plan.next(end, None)
    assert plan.lag() == {"lag": 0, "lagMs": 0}


def test_a_server_that_fails_to_tell_an_age_costs_the_age_and_nothing_else() -> None:
    source = FakeSource({"s": Shard(10)})
    plan = planner(source)
    begin(plan)

    def read(span: Range) -> Iterator[pa.RecordBatch]:
        raise ConnectError("gone")

    source.read = read  # type: ignore[method-assign]
    assert plan.lag() == {"lag": 9, "lagBytes": 900}


def test_an_idle_query_looks_at_most_twenty_times_a_second() -> None:
    source = FakeSource({"s": Shard(10)})
    plan = planner(source, "latest")
    start = begin(plan)
    source.looks = 0
    for _ in range(1000):  # 12 s
        source.clock.now += POLL
        assert same_text(plan.next(start, None), start)
    assert 150 <= source.looks <= 241


def test_a_slow_server_is_looked_at_a_twentieth_of_the_time() -> None:
    source = FakeSource({"s": Shard(10)}, cost=0.1)
    plan = planner(source, "latest")
    start = begin(plan)
    source.looks, began = 0, source.clock.now
    while source.clock.now < began + 60:
        source.clock.now += POLL
        plan.next(start, None)
    assert 20 <= source.looks <= 30
    assert source.looks * source.cost <= (source.clock.now - began) / 20 + source.cost


def test_what_is_new_is_seen_at_the_next_look() -> None:
    source = FakeSource({"s": Shard(10)})
    plan = planner(source, "latest")
    start = begin(plan)
    plan.next(start, None)
    source.shards["s"].next = 11
    source.clock.now += 0.1
    assert plan.next(start, None)["next"] == {"s": 11}


# Limits


def test_a_row_limit_holds_for_every_batch_and_nothing_is_left_out() -> None:
    source = FakeSource({"a": Shard(4), "b": Shard(101), "c": Shard(58)})
    plan = planner(source)
    batches = drain(plan, source, begin(plan), max_rows=40)
    assert rows_per_batch(plan, source, batches) == [40, 40, 40, 40]
    read = [row for start, end in batches for row in rows_of(source, plan.tasks(start, end))]
    assert sorted(read) == [(name, at) for name in "abc" for at in range(1, source.shards[name].next)]


def test_a_byte_limit_counts_in_rows_of_the_average_size() -> None:
    source = FakeSource({"s": Shard(101, row_bytes=100.0)})
    plan = planner(source, maxBytesPerTrigger="2500")
    assert rows_per_batch(plan, source, drain(plan, source, begin(plan))) == [25, 25, 25, 25]


def test_a_byte_limit_below_one_row_still_moves_on() -> None:
    source = FakeSource({"s": Shard(4, row_bytes=5000.0)})
    plan = planner(source, maxBytesPerTrigger="10")
    assert rows_per_batch(plan, source, drain(plan, source, begin(plan))) == [1, 1, 1]


def test_of_two_limits_the_smaller_one_counts() -> None:
    source = FakeSource({"s": Shard(101, row_bytes=100.0)})
    plan = planner(source, maxBytesPerTrigger="2500")
    start = begin(plan)
    assert step(plan, source, start, max_rows=10)["next"] == {"s": 11}
    assert step(plan, source, start, max_rows=90)["next"] == {"s": 26}


def test_a_query_waits_for_enough_records() -> None:
    source = FakeSource({"s": Shard(1), "t": Shard(1)})
    plan = planner(source, minRecordsPerTrigger="10", maxTriggerDelay="1h")
    start = begin(plan)
    source.shards["s"].next = 6
    source.shards["t"].next = 5
    assert same_text(step(plan, source, start), start)
    source.shards["t"].next = 6
    assert step(plan, source, start)["next"] == {"s": 6, "t": 6}


def test_a_query_does_not_wait_for_ever() -> None:
    source = FakeSource({"s": Shard(1)})
    plan = planner(source, minRecordsPerTrigger="10", maxTriggerDelay="15m")
    start = begin(plan)
    source.shards["s"].next = 3
    source.clock.now += 60
    assert same_text(plan.next(start, None), start)
    source.clock.now += 899
    assert same_text(plan.next(start, None), start)
    source.clock.now += 1
    assert plan.next(start, None)["next"] == {"s": 3}


def test_the_wait_starts_with_the_first_record_and_anew_after_each_batch() -> None:
    source = FakeSource({"s": Shard(1)})
    plan = planner(source, minRecordsPerTrigger="10", maxTriggerDelay="15m")
    start = begin(plan)
    source.clock.now += 3600  # an hour without a record is no wait for the first one
    assert same_text(plan.next(start, None), start)
    source.shards["s"].next = 3
    source.clock.now += 60
    assert same_text(plan.next(start, None), start)
    source.clock.now += 900
    end = through_log(plan.next(start, None))
    assert end["next"] == {"s": 3}
    source.shards["s"].next = 5
    source.clock.now += 60
    assert same_text(plan.next(end, None), end)


def test_all_limits_together() -> None:
    source = FakeSource({"s": Shard(1, row_bytes=100.0), "t": Shard(1, row_bytes=10.0)})
    plan = planner(source, minRecordsPerTrigger="50", maxTriggerDelay="15m", maxBytesPerTrigger="2000")
    start = begin(plan)
    source.shards["s"].next = 41
    assert same_text(step(plan, source, start, max_rows=30), start), "40 are too few"
    source.shards["t"].next = 21
    end = step(plan, source, start, max_rows=30)
    # 60 are enough; 2000 bytes are 20 of the largest rows, fewer than the 30 that Spark asks for.
    assert end["next"] == {"s": 11, "t": 11}
    assert same_text(step(plan, source, end, max_rows=30), end), "the 40 left are too few again"
    source.clock.now += 900
    assert step(plan, source, end, max_rows=12)["next"] == {"s": 17, "t": 17}


def test_enough_records_are_counted_as_rows_where_numbers_mislead() -> None:
    # 100 positions, but a filter leaves two rows of them: that is no batch of ten.
    source = FakeSource({"s": Shard(1, rows=[])})
    plan = planner(source, minRecordsPerTrigger="10", maxTriggerDelay="15m")
    start = begin(plan)
    source.shards["s"] = Shard(101, rows=[20, 40])
    assert same_text(step(plan, source, start), start)
    source.shards["s"] = Shard(111, rows=[20, 40, *range(101, 109)])
    assert step(plan, source, start)["next"] == {"s": 111}


def test_a_wait_for_rows_lasts_also_between_two_looks() -> None:
    source = FakeSource({"s": Shard(1, rows=[])})
    plan = planner(source, minRecordsPerTrigger="10", maxTriggerDelay="15m")
    start = begin(plan)
    source.shards["s"] = Shard(5, rows=[2])
    assert same_text(step(plan, source, start), start)
    source.shards["s"] = Shard(101, rows=[2, 40])
    assert same_text(step(plan, source, start), start)
    source.clock.now += POLL  # answered from the last look, which says as little as before
    assert same_text(plan.next(start, None), start)


# AvailableNow


def test_after_the_freeze_the_head_stands_still() -> None:
    source = FakeSource({"s": Shard(10)})
    plan = planner(source)
    plan.freeze()
    start = begin(plan)
    source.shards["s"].next = 500
    batches = drain(plan, source, start)
    assert [b["next"] for _, b in batches] == [{"s": 10}]


def test_after_the_freeze_new_shards_are_ignored() -> None:
    source = FakeSource({"s": Shard(10)})
    plan = planner(source)
    plan.freeze()
    start = begin(plan)
    source.shards["young"] = Shard(5)
    assert [b["next"] for _, b in drain(plan, source, start)] == [{"s": 10}]


def test_a_shard_that_was_there_at_the_freeze_is_read_though_the_checkpoint_does_not_know_it() -> None:
    source = FakeSource({"s": Shard(10)})
    checkpoint = begin(planner(source))
    source.shards["young"] = Shard(5)
    plan = planner(source)
    plan.freeze()
    source.shards["young"].next = 50
    batches = drain(plan, source, checkpoint)
    read = [row for start, end in batches for row in rows_of(source, plan.tasks(start, end))]
    assert read == [("s", at) for at in range(1, 10)] + [("young", at) for at in range(1, 5)]


def test_a_frozen_query_ends_also_with_limits_while_more_comes_in() -> None:
    source = FakeSource({"a": Shard(51), "b": Shard(11)})
    plan = planner(source, maxBytesPerTrigger="1000", minRecordsPerTrigger="1000000")
    plan.freeze()
    start = begin(plan)
    batches = []
    for _ in range(100):
        source.shards["a"].next += 7
        end = step(plan, source, start, max_rows=25)
        if same_text(start, end):
            break
        batches.append((start, end))
        start = end
    assert start["next"] == {"a": 51, "b": 11}
    assert rows_per_batch(plan, source, batches) == [10] * 6


def test_a_frozen_query_that_stands_beyond_the_frozen_head_does_not_go_back() -> None:
    source = FakeSource({"s": Shard(10)})
    plan = planner(source, "latest")
    plan.freeze()
    source.shards["s"].next = 20  # the start is asked for after the freeze, and is later than it
    assert drain(plan, source, begin(plan)) == []


# Tasks


def test_sparse_rows_are_cut_evenly_and_the_cuts_are_in_the_end() -> None:
    # All rows are in the last tenth: by positions one task would read nearly everything.
    source = FakeSource({"s": Shard(1001, rows=list(range(901, 1001)))})
    plan = planner(source, maxRecordsPerPartition="25")
    start = begin(plan)
    end = step(plan, source, start)
    planned = plan.tasks(start, end)
    assert [len(rows_of(source, [task])) for task in planned] == [25, 25, 25, 25]
    assert spans(planned)[0][1] == 1
    assert spans(planned)[-1][2] == 1001
    assert end["cuts"] == {"s": [926, 951, 976]}


@given(
    st.dictionaries(
        st.sampled_from("abc"), st.tuples(st.integers(0, 60), st.sets(st.integers(1, 60)), st.booleans()), min_size=1
    ),
    st.integers(1, 40),
    st.integers(1, 20),
)
def test_limited_batches_of_any_rows_read_each_row_once_and_no_task_too_many(
    held: dict[str, tuple[int, set[int], bool]], limit: int, per_task: int
) -> None:
    source = FakeSource(
        {
            name: Shard(n + 1, rows=sorted(r for r in rows if r <= n) if sparse else None)
            for name, (n, rows, sparse) in held.items()
        }
    )
    plan = planner(source, maxRecordsPerPartition=str(per_task))
    read = []
    for start, end in drain(plan, source, begin(plan), limit):
        planned = plan.tasks(start, end)
        batch = rows_of(source, planned)
        assert len(batch) <= limit
        assert all(len(rows_of(source, [task])) <= per_task for task in planned)
        read += batch
    assert sorted(read) == sorted((name, row) for name, s in source.shards.items() for row in s.in_range(1, 1000))


def test_a_limit_counts_rows_not_positions() -> None:
    source = FakeSource({"s": Shard(1001, rows=list(range(10, 1001, 10)))})
    plan = planner(source)
    assert rows_per_batch(plan, source, drain(plan, source, begin(plan), max_rows=30)) == [30, 30, 30, 10]


def test_a_small_batch_is_not_counted() -> None:
    # Counting makes consumers on the server: not for what fits into one task anyway.
    source = FakeSource({"s": Shard(11, rows=[2, 9])})
    plan = planner(source)
    step(plan, source, begin(plan))
    assert source.counts == 0


def test_a_source_that_stops_counting_half_way_is_cut_by_numbers() -> None:
    class Forgetful(FakeSource):
        def count(self, shard: str, positions: Sequence[int]) -> Sequence[int] | None:
            return None if self.counts else super().count(shard, positions)

    source = Forgetful({"s": Shard(1001, rows=list(range(901, 1001)))})
    plan = planner(source, maxRecordsPerPartition="25")
    end = step(plan, source, start := begin(plan))
    assert "cuts" not in end
    assert [task[0].length for task in plan.tasks(start, end)] == [25] * 40


def test_a_replayed_batch_asks_nobody_and_gives_the_same_tasks_under_other_options() -> None:
    source = FakeSource({"s": Shard(1001, rows=list(range(901, 1001))), "t": Shard(301), "u": Shard(2)})
    plan = planner(source, maxRecordsPerPartition="25", minPartitions="3")
    start = begin(plan)
    end = step(plan, source, start, max_rows=120)
    planned = plan.tasks(start, end)
    assert len(planned) > 4
    source.silent = True
    source.shards.clear()
    again = planner(source, maxRecordsPerPartition="7", minPartitions="50", maxBytesPerTrigger="1")
    assert again.tasks(through_log(start), through_log(end)) == planned


@pytest.mark.parametrize("sparse", [False, True])
def test_no_task_reads_more_than_the_partition_limit(sparse: bool) -> None:
    source = FakeSource({"s": Shard(1001, rows=list(range(1, 1001)) if sparse else None)})
    plan = planner(source, maxRecordsPerPartition="300")
    start = begin(plan)
    planned = plan.tasks(start, step(plan, source, start))
    assert [sum(span.length for span in task) for task in planned] == [250, 250, 250, 250]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("rows", "parts"), [([1000], 8), ([5], 4), ([7], 5), ([1, 1, 1, 1, 1], 4), ([9, 2], 6)])
def test_a_batch_has_at_least_the_partitions_asked_for(rows: list[int], parts: int, sparse: bool) -> None:
    source = FakeSource(
        {f"s{i}": Shard(n + 1, rows=list(range(1, n + 1)) if sparse else None) for i, n in enumerate(rows)}
    )
    plan = planner(source, minPartitions=str(parts))
    start = begin(plan)
    planned = plan.tasks(start, step(plan, source, start))
    assert len(planned) >= parts
    assert len(rows_of(source, planned)) == sum(rows)


def test_more_partitions_than_rows_give_a_task_for_each_row() -> None:
    source = FakeSource({"s": Shard(4)})
    plan = planner(source, minPartitions="10")
    start = begin(plan)
    assert len(plan.tasks(start, step(plan, source, start))) == 3


@pytest.mark.parametrize("cause", ["compacted", "trimmed", "recreated"])
def test_what_is_gone_needs_no_tasks(cause: str) -> None:
    # The size of a task is made from the 50 rows that are there; cut by it, a gap of millions is a task a row.
    source = FakeSource({"s": Shard(10, transient=cause == "compacted")})
    plan = planner(source, failOnDataLoss="false")
    start = begin(plan)
    source.shards["s"].first, source.shards["s"].next = 20_000, 20_050
    if cause == "recreated":
        source.shards["s"].epoch = "life-2"
    end = step(plan, source, start)
    planned = plan.tasks(start, end)
    assert len(rows_of(source, planned)) == 50
    assert len(planned) <= 2


# Loss


def test_a_start_by_time_that_lies_beyond_the_look_is_no_loss() -> None:
    """A record arrives between the look at the bounds and the search for the time."""
    source = FakeSource({"s": Shard(10)})
    source.find = lambda shard, timestamp: 12  # type: ignore[method-assign] # two more have arrived
    plan = planner(source, "earliest", startingTimestamp="2026-01-01T00:00:00Z")
    assert plan.initial()["next"] == {"s": 10}
    assert plan.once(lambda _, bound: (bound.first, bound.next)) == []


@pytest.mark.parametrize(
    ("now", "words", "go_on"),
    [
        (
            Shard(90, first=40),
            ["stream 's' starts at 40, but the query is at 10: 30 messages were deleted unread"],
            "from the first one left",
        ),
        (Shard(5), ["stream 's' ends at 4, but the query already stands at 10"], "from its end"),
        (
            Shard(90, epoch="life-2"),
            ["stream 's' was deleted and made again", "1 to 89", "since life-2", "at 10"],
            "from the beginning of the new one",
        ),
        (None, ["stream 's' is gone, or the options no longer name it; the query stood at 10"], "without it"),
    ],
)
def test_loss_stops_the_query_and_says_what_to_do(now: Shard | None, words: list[str], go_on: str) -> None:
    source = FakeSource({"s": Shard(10)})
    plan = planner(source, "latest")
    start = begin(plan)
    source.shards = {} if now is None else {"s": now}
    with pytest.raises(DataLossError) as caught:
        step(plan, source, start)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert str(caught.value).endswith(f"or set failOnDataLoss=false to go on {go_on}.")


def test_records_that_go_by_design_are_no_loss() -> None:
    source = FakeSource({"s": Shard(10, transient=True)})
    plan = planner(source, "latest")
    start = begin(plan)
    source.shards["s"].first, source.shards["s"].next = 12, 15
    end = step(plan, source, start)
    assert rows_of(source, plan.tasks(start, end)) == [("s", 12), ("s", 13), ("s", 14)]


def test_a_loss_that_was_allowed_is_logged_once_and_the_rest_is_read(caplog: pytest.LogCaptureFixture) -> None:
    source = FakeSource({"s": Shard(10)})
    plan = planner(source, "latest", failOnDataLoss="false", minRecordsPerTrigger="100")
    start = begin(plan)
    source.shards["s"].first, source.shards["s"].next = 40, 60
    with caplog.at_level(logging.WARNING, "penstock"):
        for _ in range(5):
            assert same_text(step(plan, source, start), start)
        source.shards["s"].next = 200
        end = step(plan, source, start)
    assert [r.getMessage() for r in caplog.records] == [
        "failOnDataLoss=false, going on: stream 's' starts at 40, but the query is at 10: "
        "30 messages were deleted unread"
    ]
    assert rows_of(source, plan.tasks(start, end)) == [("s", at) for at in range(40, 200)]


def test_a_stream_made_again_is_read_from_its_beginning(caplog: pytest.LogCaptureFixture) -> None:
    source = FakeSource({"s": Shard(100)})
    plan = planner(source, "latest", failOnDataLoss="false")
    start = begin(plan)
    source.shards["s"] = Shard(31, epoch="life-2")
    with caplog.at_level(logging.WARNING, "penstock"):
        batches = drain(plan, source, start, max_rows=12)
    assert ["made again" in r.getMessage() for r in caplog.records] == [True]
    read = [row for a, b in batches for row in rows_of(source, plan.tasks(a, b))]
    assert read == [("s", at) for at in range(1, 31)]
    assert batches[-1][1]["epochs"] == {"s": "life-2"}
    assert all(span.epoch == "life-2" for a, b in batches for task in plan.tasks(a, b) for span in task)


def test_a_stream_restored_from_a_backup_is_read_on_from_its_head() -> None:
    source = FakeSource({"s": Shard(100)})
    plan = planner(source, "latest", failOnDataLoss="false")
    start = begin(plan)
    source.shards["s"].next = 60
    back = step(plan, source, start)
    assert plan.tasks(start, back) == []
    source.shards["s"].next = 63
    end = step(plan, source, back)
    assert rows_of(source, plan.tasks(back, end)) == [("s", 60), ("s", 61), ("s", 62)]


@pytest.mark.parametrize("frozen", [False, True])
def test_a_shard_that_vanishes_for_a_moment_keeps_its_position(frozen: bool) -> None:
    source = FakeSource({"s": Shard(10), "t": Shard(10)})
    plan = planner(source, failOnDataLoss="false")
    start = begin(plan)
    if frozen:
        plan.freeze()
    held = source.shards.pop("s")
    away = step(plan, source, start)
    assert away["next"] == {"s": 1, "t": 10}
    source.shards["s"] = held
    back = step(plan, source, away)
    assert rows_of(source, plan.tasks(away, back)) == [("s", at) for at in range(1, 10)]


# Batch reads


def everything(_: str, bound: Bound) -> tuple[int, int]:
    return bound.first, bound.next


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"a": (5, 21), "b": (1, 11)}),
        ({"startingOffsets": '{"a": 15}'}, {"a": (15, 21), "b": (1, 11)}),
        ({"startingOffsets": "latest"}, {}),
        ({"startingTimestamp": "8"}, {"a": (8, 21), "b": (8, 11)}),
        ({"startingTimestamp": "15"}, {"a": (15, 21)}),
        ({"endingTimestamp": "8"}, {"a": (5, 8), "b": (1, 8)}),
        ({"endingTimestamp": "1970-01-01T00:00:00.0155Z"}, {"a": (5, 16), "b": (1, 11)}),
        ({"endingOffsets": '{"a": 7}'}, {"a": (5, 7), "b": (1, 11)}),
        ({"endingOffsets": '{"a": 7000}'}, {"a": (5, 21), "b": (1, 11)}),
        ({"endingOffsets": "latest"}, {"a": (5, 21), "b": (1, 11)}),
        ({"startingOffsets": '{"a": 9}', "endingOffsets": '{"a": 7, "b": 1}'}, {}),
        ({"startingTimestamp": "8", "endingTimestamp": "10"}, {"a": (8, 10), "b": (8, 10)}),
        ({"endingTimestamp": "8", "endingOffsets": '{"a": 20}'}, {"a": (5, 8), "b": (1, 8)}),
        ({"maxRecords": "8"}, {"a": (5, 9), "b": (1, 5)}),
        ({"maxRecords": "24"}, {"a": (5, 19), "b": (1, 11)}),
        ({"maxRecords": "1000"}, {"a": (5, 21), "b": (1, 11)}),
        # These three are of streaming queries, which share their options with batch reads.
        ({"maxRecordsPerTrigger": "3"}, {"a": (5, 21), "b": (1, 11)}),
        ({"minRecordsPerTrigger": "3000"}, {"a": (5, 21), "b": (1, 11)}),
        ({"maxBytesPerTrigger": "300"}, {"a": (5, 21), "b": (1, 11)}),
    ],
)
def test_a_batch_read_reads_what_it_was_told(options: dict[str, str], expected: dict[str, tuple[int, int]]) -> None:
    source = FakeSource({"a": Shard(21, first=5), "b": Shard(11)})
    planned = planner(source, **options).once(everything)
    assert spans(planned) == [(name, *span) for name, span in expected.items()]


def test_ending_offsets_of_an_unknown_name_are_refused() -> None:
    with pytest.raises(OptionError, match=r"^endingOffsets names 'x', which is not read here\. It reads: s\.$"):
        planner(FakeSource({"s": Shard(10)}), endingOffsets='{"x": 1}').once(everything)


def test_a_batch_read_stays_in_its_windows() -> None:
    source = FakeSource({"a": Shard(101), "b": Shard(101), "c": Shard(101)})
    windows = {"a": (20, 30), "b": (0, 1000), "c": (70, 60)}
    planned = planner(source).once(lambda shard, _: windows[shard])
    assert spans(planned) == [("a", 20, 30), ("b", 1, 101)]


def test_a_batch_read_counts_max_records_in_rows() -> None:
    source = FakeSource({"s": Shard(1001, rows=list(range(10, 1001, 10)))})
    planned = planner(source, maxRecords="30", maxRecordsPerPartition="10").once(everything)
    assert [len(rows_of(source, [task])) for task in planned] == [10, 10, 10]


def test_a_batch_read_from_a_deleted_position_is_a_loss() -> None:
    source = FakeSource({"s": Shard(100, first=50)})
    with pytest.raises(DataLossError, match="40 messages were deleted unread"):
        planner(source, startingOffsets='{"s": 10}').once(everything)
    planned = planner(source, startingOffsets='{"s": 10}', failOnDataLoss="false").once(everything)
    assert spans(planned) == [("s", 50, 100)]


def test_a_batch_read_of_nothing_has_no_task() -> None:
    assert planner(FakeSource({"s": Shard(1)})).once(everything) == []
    assert planner(FakeSource({})).once(everything) == []


# The whole


@given(st.data())
def test_a_query_that_crashes_and_goes_on_reads_every_row_once(data: st.DataObject) -> None:
    source = FakeSource({"a": Shard(1)})
    limit = data.draw(st.none() | st.integers(1, 30))
    options = {"maxRecordsPerPartition": str(data.draw(st.integers(1, 20)))}
    plan = planner(source, **options)
    at = begin(plan)
    read: list[tuple[str, int]] = []
    for _ in range(data.draw(st.integers(1, 8))):
        for name in data.draw(st.sets(st.sampled_from("abc"))):
            source.shards.setdefault(name, Shard(1)).next += data.draw(st.integers(0, 25))
        end = step(plan, source, at, limit)
        if data.draw(st.booleans()):
            # The batch was planned and logged, but not committed: a new process replays it.
            plan = planner(source, **options)
            source.silent = True
            planned = plan.tasks(at, end)
            source.silent = False
        else:
            planned = plan.tasks(at, end)
        read += rows_of(source, planned)
        at = end
    for start, end in drain(plan, source, at, limit):
        read += rows_of(source, plan.tasks(start, end))
    assert sorted(read) == [(name, row) for name in sorted(source.shards) for row in range(1, source.shards[name].next)]


def test_the_end_of_a_batch_is_an_offset_like_any_other() -> None:
    source = FakeSource({"s": Shard(10)})
    plan = planner(source)
    end = step(plan, source, begin(plan))
    bare = Checkpoint({"s": Position(10, "life-1")}).encode()
    assert {key: end[key] for key in ("epochs", "next", "version")} == bare
    assert list(end) == sorted(end)


# Servers that are away, and numbers that begin anew


def test_the_wait_for_a_server_does_not_keep_new_records_waiting() -> None:
    source = FakeSource({"A": Shard(11)})
    plan = Planner(source, PatientOptions.parse("test", {}), "earliest", source.clock)
    start = begin(plan)
    start = step(plan, source, start)
    source.clock.now += 60
    source.outage = 50.0
    assert same_text(plan.next(start, None), start)
    source.shards["A"].next = 21
    source.clock.now += 0.06
    assert Checkpoint.decode(plan.next(start, None)).positions["A"].next == 21
    assert Checkpoint.decode(plan.head()).positions["A"].next == 21


def test_a_slow_look_never_keeps_the_next_one_waiting_for_long() -> None:
    source = FakeSource({"A": Shard(11)}, cost=6.0)
    plan = planner(source)
    start = step(plan, source, begin(plan))
    source.shards["A"].next = 21
    source.clock.now += LOOK_AT_LEAST
    assert Checkpoint.decode(plan.next(start, None)).positions["A"].next == 21


def test_without_retries_a_lost_server_is_told_at_once() -> None:
    source = FakeSource({"A": Shard(11)}, outage=1.0)
    with pytest.raises(ConnectError, match="planning failed once: the server is away"):
        planner(source).initial()


def test_each_position_has_the_mark_of_the_record_before_it() -> None:
    source = MarkingSource({"A": Shard(11), "B": Shard(1)})
    plan = planner(source)
    end = step(plan, source, begin(plan))
    assert Checkpoint.decode(end).positions == {"A": Position(11, "life-1", "a10"), "B": Position(1, "life-1")}
    assert same_text(step(plan, source, end), end)


def test_numbers_that_begin_anew_are_loss() -> None:
    source = MarkingSource({"A": Shard(11)})
    plan = planner(source)
    end = step(plan, source, begin(plan))
    source.written["A"], source.shards["A"].next = "b", 51
    source.clock.now += 60
    with pytest.raises(DataLossError, match=r"'A' counts anew \(now 1 to 50\): its record 10 is not the one"):
        plan.next(end, None)


def test_numbers_that_begin_anew_are_read_from_the_first_where_loss_is_allowed() -> None:
    source = MarkingSource({"A": Shard(11)})
    plan = planner(source, failOnDataLoss="false")
    start = step(plan, source, begin(plan))
    source.written["A"], source.shards["A"].next = "b", 51
    end = step(plan, source, start)
    assert spans(plan.tasks(start, end)) == [("A", 1, 51)]
    assert Checkpoint.decode(end).positions["A"].mark == "b50"
    source.shards["A"].next = 61
    after = step(plan, source, end)
    assert spans(plan.tasks(end, after)) == [("A", 51, 61)]


def test_a_record_that_was_trimmed_cannot_be_compared() -> None:
    source = MarkingSource({"A": Shard(11)})
    plan = planner(source)
    start = step(plan, source, begin(plan))
    source.shards["A"] = Shard(21, first=11)
    end = step(plan, source, start)
    assert spans(plan.tasks(start, end)) == [("A", 11, 21)]


def test_marks_are_compared_once_a_look() -> None:
    source = MarkingSource({"A": Shard(11)})
    plan = planner(source, minRecordsPerTrigger="100")
    start = begin(plan)
    source.clock.now += 60
    source.shards["A"].next = 21
    source.clock.now += 0.06
    source.asked = 0
    for _ in range(3):
        plan.next(start, None)
    assert source.asked <= 1


def test_records_that_went_since_the_last_look_are_not_planned_for() -> None:
    """A position without a mark could never be compared again, and the next records there would pass for the old."""
    source = MarkingSource({"A": Shard(11)})
    plan = planner(source)
    start = step(plan, source, begin(plan))
    source.shards["A"].next = 51
    source.clock.now += 60
    assert plan.look()["A"].next == 51
    source.written["A"], source.shards["A"].next = "b", 5
    with pytest.raises(DataLossError, match="'A' ends at 4, but the query already stands at 11"):
        plan.next(start, 10)


def test_a_last_record_that_was_deleted_costs_one_more_look() -> None:
    class Compacted(MarkingSource):
        def marks(self, at: Offsets) -> dict[str, str]:
            return {}

    source = Compacted({"A": Shard(11)})
    plan = planner(source)
    start = begin(plan)
    source.looks = 0
    end = step(plan, source, start)
    assert Checkpoint.decode(end).positions["A"] == Position(11, "life-1")
    assert source.looks == 2
    assert same_text(plan.next(end, None), end)
    assert source.looks == 2


def test_a_checkpoint_without_marks_goes_on() -> None:
    source = MarkingSource({"A": Shard(11)})
    end = step(planner(source), source, Checkpoint({"A": Position(5, "life-1")}).encode())
    assert Checkpoint.decode(end).positions["A"] == Position(11, "life-1", "a10")


# A new query, and one that goes on


def test_a_new_query_begins_and_a_restarted_one_goes_on_with_its_notes() -> None:
    source = ResumingSource({"s": Shard(10)})
    plan = planner(source)
    at = step(plan, source, begin(plan))
    assert at["notes"] == {"s": "noted"}
    assert (source.begun, source.resumed) == (1, [])
    again = planner(source)
    for _ in range(2):
        assert same_text(step(again, source, at), at)
    assert (source.begun, source.resumed) == (1, [(Checkpoint.decode(at).positions, {"s": "noted"})])


def test_a_batch_read_begins() -> None:
    source = ResumingSource({"s": Shard(10)})
    planner(source).once(everything)
    assert source.begun == 1


@pytest.mark.parametrize("frozen", [False, True])
def test_what_a_source_knows_only_by_the_checkpoint_is_read(frozen: bool) -> None:
    source = ResumingSource({"s": Shard(10), "old": Shard(10)}, hidden="old")
    plan = planner(source)
    at = Checkpoint({"s": Position(10, "life-1"), "old": Position(3, "life-1")}).encode()
    if frozen:
        plan.freeze()
    end = step(plan, source, at)
    assert spans(plan.tasks(at, end)) == [("old", 3, 10)]


def test_a_checkpoint_without_notes_goes_on() -> None:
    source = ResumingSource({"s": Shard(10)})
    plan = planner(source)
    at = Checkpoint({"s": Position(10, "life-1")}).encode()
    assert same_text(step(plan, source, at), at), "notes alone are no reason for a batch"
    assert source.resumed == [(Checkpoint.decode(at).positions, {})]


def test_a_wait_that_is_over_is_not_begun_again_where_the_end_has_no_mark() -> None:
    source = MarkingSource({"A": Shard(1)})
    plan = planner(source, minRecordsPerTrigger="1000", maxTriggerDelay="15m")
    start = begin(plan)
    source.shards["A"] = Shard(51)
    source.unmarked = True
    assert same_text(step(plan, source, start), start)
    source.clock.now += 900
    assert Checkpoint.decode(step(plan, source, start)).positions["A"].next == 51
