import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import OptionError
from penstock.options import ReadOptions
from penstock.planning.checkpoint import VERSION, Checkpoint
from penstock.planning.positions import (
    Bound,
    Bounds,
    Offsets,
    Position,
    Range,
    advance,
    even,
    lost,
    settle,
    share,
    tasks,
)

NAMES = st.sampled_from(["A", "B", "C", "D", "E"])
EPOCHS = st.sampled_from(["2026-01-01", "2026-02-02"])


@st.composite
def a_bound(draw: st.DrawFn) -> Bound:
    first = draw(st.integers(0, 60))
    return Bound(first, first + draw(st.integers(0, 60)), draw(EPOCHS), transient=draw(st.booleans()))


ALL_BOUNDS = st.dictionaries(NAMES, a_bound())
ALL_OFFSETS = st.dictionaries(NAMES, st.builds(Position, st.integers(0, 120), EPOCHS))


# share


@pytest.mark.parametrize(
    ("ahead", "limit", "expected"),
    [
        ({}, 10, {}),
        ({"a": 7}, 10, {"a": 7}),
        ({"a": 7}, 3, {"a": 3}),
        ({"a": 7}, 0, {"a": 0}),
        ({"a": 100, "b": 100}, 10, {"a": 5, "b": 5}),
        ({"a": 1, "b": 100, "c": 100}, 51, {"a": 1, "b": 25, "c": 25}),
        ({"a": 2, "b": 3, "c": 1000}, 100, {"a": 2, "b": 3, "c": 95}),
        # Rounded up per shard this would be 3 x 4 = 12.
        ({"a": 9, "b": 9, "c": 9}, 10, {"a": 3, "b": 3, "c": 4}),
        ({"a": 0, "b": 9}, 4, {"a": 0, "b": 4}),
    ],
)
def test_rows_are_shared_small_shards_first(ahead: dict[str, int], limit: int, expected: dict[str, int]) -> None:
    assert share(ahead, limit) == expected


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 500), max_size=12), st.integers(0, 3000))
def test_shares_add_up_to_the_limit_exactly(ahead: dict[str, int], limit: int) -> None:
    given_rows = share(ahead, limit)
    assert sum(given_rows.values()) == min(limit, sum(ahead.values()))
    assert given_rows.keys() == ahead.keys()
    assert all(0 <= given_rows[shard] <= ahead[shard] for shard in ahead)


@given(st.dictionaries(st.text(max_size=3), st.integers(1, 500), min_size=1, max_size=12), st.integers(0, 3000))
def test_no_shard_starves_once_the_limit_reaches_their_number(ahead: dict[str, int], more: int) -> None:
    assert min(share(ahead, len(ahead) + more).values()) >= 1


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 500), min_size=1, max_size=12), st.integers(0, 3000))
def test_a_shard_that_is_cut_short_gets_as_much_as_any_other(ahead: dict[str, int], limit: int) -> None:
    given_rows = share(ahead, limit)
    cut_short = [given_rows[shard] for shard in ahead if given_rows[shard] < ahead[shard]]
    if cut_short:
        assert min(cut_short) >= max(given_rows.values()) - 1


# lost


BOUND = Bound(first=100, next=200, epoch="new")


@pytest.mark.parametrize(
    ("position", "bound", "kind"),
    [
        (Position(100, "new"), BOUND, None),
        (Position(150, "new"), BOUND, None),
        (Position(200, "new"), BOUND, None),
        (Position(99, "new"), BOUND, "trimmed"),
        (Position(0, "new"), BOUND, "trimmed"),
        (Position(201, "new"), BOUND, "backwards"),
        (Position(150, "old"), BOUND, "recreated"),
        # The old life's numbers mean nothing in the new one, so 'recreated' is the word, not 'trimmed'.
        (Position(5, "old"), BOUND, "recreated"),
        (Position(900, "old"), BOUND, "recreated"),
        (Position(150, "new"), None, "gone"),
        # A source without epochs, or a position from before it had them, is judged by numbers alone.
        (Position(150, ""), BOUND, None),
        (Position(5, ""), BOUND, "trimmed"),
        (Position(150, "old"), BOUND._replace(epoch=""), None),
        # Consumed or compacted records are not lost; a head that went back still is.
        (Position(5, "new"), BOUND._replace(transient=True), None),
        (Position(201, "new"), BOUND._replace(transient=True), "backwards"),
        (Position(150, "old"), BOUND._replace(transient=True), "recreated"),
        # Purged: nothing is kept, and everything up to the head had been read.
        (Position(200, "new"), Bound(200, 200, "new"), None),
        (Position(199, "new"), Bound(200, 200, "new"), "trimmed"),
    ],
)
def test_loss_is_told_by_its_kind(position: Position, bound: Bound | None, kind: str | None) -> None:
    losses = lost({"s": position}, {} if bound is None else {"s": bound})
    assert [(loss.shard, loss.at, loss.bound, loss.kind) for loss in losses] == (
        [] if kind is None else [("s", position.next, bound, kind)]
    )


def test_a_gap_behind_the_first_record_is_no_loss() -> None:
    # Only both ends are known of a shard: 40 positions without a record inside change neither.
    assert lost({"s": Position(110, "new")}, {"s": BOUND}) == []


def test_a_shard_that_was_never_read_cannot_lose() -> None:
    assert lost({}, {"s": BOUND}) == []


@pytest.mark.parametrize(
    ("position", "bound", "words"),
    [
        (Position(40, "e"), Bound(100, 200, "e"), ["'s'", "starts at 100", "at 40", "60 messages"]),
        (Position(300, "e"), Bound(100, 200, "e"), ["'s'", "ends at 199", "stands at 300"]),
        (Position(40, "e"), Bound(100, 200, "f"), ["'s'", "made again", "100 to 199", "since f", "at 40"]),
        (Position(40, "e"), None, ["'s'", "gone", "at 40"]),
    ],
)
def test_a_loss_says_its_numbers(position: Position, bound: Bound | None, words: list[str]) -> None:
    (loss,) = lost({"s": position}, {} if bound is None else {"s": bound})
    assert all(word in str(loss) for word in words), str(loss)


# settle


@pytest.mark.parametrize(
    ("position", "bound", "expected"),
    [
        (Position(150, "new"), BOUND, Position(150, "new")),
        (Position(5, "new"), BOUND, Position(100, "new")),
        (Position(5, "new"), BOUND._replace(transient=True), Position(100, "new")),
        (Position(150, "old"), BOUND, Position(100, "new")),
        (Position(300, "new"), BOUND, Position(200, "new")),
        (Position(150, "new"), None, Position(150, "new")),
        (Position(150, ""), BOUND, Position(150, "new")),
        (Position(150, "old"), BOUND._replace(epoch=""), Position(150, "old")),
    ],
)
def test_a_position_settles_where_reading_can_go_on(
    position: Position, bound: Bound | None, expected: Position
) -> None:
    assert settle({"s": position}, {} if bound is None else {"s": bound}) == {"s": expected}


@given(ALL_OFFSETS, ALL_BOUNDS)
def test_a_settled_position_lost_nothing_more_and_settles_no_further(start: Offsets, bounds: Bounds) -> None:
    settled = settle(start, bounds)
    assert {loss.kind for loss in lost(settled, bounds)} <= {"gone"}
    assert settle(settled, bounds) == settled
    assert settled.keys() == start.keys()
    assert all(bounds[s].first <= settled[s].next <= bounds[s].next for s in settled.keys() & bounds.keys())


# advance


def test_without_a_limit_all_there_is_will_be_read() -> None:
    assert advance({"s": Position(110, "e")}, {"s": BOUND}) == {"s": Position(200, "e")}


def test_a_new_shard_only_enters() -> None:
    end = advance({"old": Position(150, "new")}, {"old": BOUND, "young": Bound(7, 99, "x")})
    assert end == {"old": Position(200, "new"), "young": Position(7, "x")}


def test_a_shard_that_is_not_there_stays() -> None:
    assert advance({"s": Position(150, "e")}, {}) == {"s": Position(150, "e")}


def test_a_shard_without_a_share_stays() -> None:
    start = {"a": Position(150, "e"), "b": Position(150, "e")}
    assert advance(start, {"a": BOUND, "b": BOUND}, {"a": 9}) == {"a": Position(159, "e"), "b": Position(150, "e")}


@given(ALL_OFFSETS, ALL_BOUNDS, st.none() | st.dictionaries(NAMES, st.integers(0, 80)))
def test_an_end_is_never_before_its_start(start: Offsets, bounds: Bounds, rows: dict[str, int] | None) -> None:
    end = advance(start, bounds, rows)
    assert end.keys() == start.keys() | bounds.keys()
    for shard in end:
        if shard not in start:
            assert end[shard] == Position(bounds[shard].first, bounds[shard].epoch)
            continue
        assert end[shard].next >= start[shard].next
        assert end[shard].epoch == start[shard].epoch
        head = bounds[shard].next if shard in bounds else 0
        assert end[shard].next <= max(start[shard].next, head)


@given(ALL_OFFSETS, ALL_BOUNDS, st.integers(0, 200))
def test_a_batch_holds_as_many_rows_as_were_shared(start: Offsets, bounds: Bounds, limit: int) -> None:
    start = settle(start, bounds)
    ahead = {s: bounds[s].next - start[s].next for s in start if s in bounds}
    end = advance(start, bounds, share(ahead, limit))
    assert sum(end[s].next - start[s].next for s in start) == min(limit, sum(ahead.values()))


# even


@given(st.integers(0, 1000), st.integers(0, 500), st.integers(1, 40))
def test_even_parts_differ_by_at_most_one(start: int, length: int, parts: int) -> None:
    inner = even(Range("s", start, start + length), parts)
    assert len(inner) == parts - 1
    edges = [start, *inner, start + length]
    lengths = [b - a for a, b in pairwise(edges)]
    assert max(lengths) - min(lengths) <= 1
    assert min(lengths) >= 0


# tasks


@st.composite
def a_batch(draw: st.DrawFn) -> tuple[Offsets, Offsets]:
    start = draw(st.dictionaries(NAMES, st.builds(Position, st.integers(0, 50), st.just("e"))))
    end = {s: Position(p.next + draw(st.integers(0, 40)), p.epoch) for s, p in start.items()}
    entering = draw(st.dictionaries(NAMES, st.builds(Position, st.integers(0, 50), st.just("e"))))
    return start, entering | end


def positions_of(planned: Sequence[Sequence[Range]]) -> list[tuple[str, int]]:
    return sorted((span.shard, at) for task in planned for span in task for at in range(span.start, span.end))


def positions_between(start: Offsets, end: Offsets) -> list[tuple[str, int]]:
    return sorted((s, at) for s in start if s in end for at in range(start[s].next, end[s].next))


@given(a_batch(), st.integers(1, 30))
def test_tasks_cover_a_batch_exactly_once_and_none_reads_more_than_it_may(
    batch: tuple[Offsets, Offsets], per_task: int
) -> None:
    start, end = batch
    planned = tasks(start, end, per_task)
    assert positions_of(planned) == positions_between(start, end)
    assert all(0 < sum(span.length for span in task) <= per_task for task in planned)
    assert all(span.length > 0 and span.epoch == "e" for task in planned for span in task)


@given(a_batch(), st.integers(1, 30), st.data())
def test_tasks_cut_by_rows_cover_a_batch_exactly_once(
    batch: tuple[Offsets, Offsets], per_task: int, data: st.DataObject
) -> None:
    start, end = batch
    cuts = {
        s: sorted(data.draw(st.lists(st.integers(start[s].next, end[s].next), max_size=4)))
        for s in start
        if data.draw(st.booleans())
    }
    planned = tasks(start, end, per_task, cuts)
    assert positions_of(planned) == positions_between(start, end)
    edges = {(s, at) for s, inner in cuts.items() for at in inner}
    inside = {(span.shard, at) for task in planned for span in task for at in range(span.start + 1, span.end)}
    assert not edges & inside, "no task reads across a cut"


@given(a_batch(), st.integers(1, 30), st.randoms(use_true_random=False))
def test_the_same_batch_gives_the_same_tasks_whatever_the_order_of_its_shards(
    batch: tuple[Offsets, Offsets], per_task: int, random: Any
) -> None:
    start, end = batch
    planned = tasks(start, end, per_task)
    shuffled_start, shuffled_end = list(start.items()), list(end.items())
    random.shuffle(shuffled_start)
    random.shuffle(shuffled_end)
    assert tasks(dict(shuffled_start), dict(shuffled_end), per_task) == planned


def test_a_shard_that_enters_has_no_task() -> None:
    assert tasks({}, {"s": Position(50, "e")}, 10) == []


def test_a_shard_that_left_has_no_task() -> None:
    assert tasks({"s": Position(50, "e")}, {}, 10) == []


def test_a_shard_that_went_back_has_no_task() -> None:
    assert tasks({"s": Position(50, "e")}, {"s": Position(20, "e")}, 10) == []


def test_a_shard_in_a_new_life_is_read_from_its_beginning() -> None:
    planned = tasks({"s": Position(50, "old")}, {"s": Position(4, "new")}, 10)
    (task,) = planned
    (span,) = task
    assert (span.shard, span.end, span.epoch) == ("s", 4, "new")
    assert span.start <= 1, "records are counted from 1"


def test_learning_the_epoch_of_a_shard_is_not_a_new_life() -> None:
    # `lost` and `settle` take an unknown epoch for the same life; were it another one here, all would be read again.
    start = {"s": Position(50, "")}
    bounds = {"s": Bound(1, 60, "2026-01-01")}
    assert lost(start, bounds) == []
    end = advance(settle(start, bounds), bounds)
    assert positions_of(tasks(start, end, 100)) == [("s", at) for at in range(50, 60)]


def test_many_small_shards_are_packed_into_few_tasks() -> None:
    start = {f"s{i:03}": Position(0, "e") for i in range(100)}
    end = {shard: Position(3, "e") for shard in start}
    planned = tasks(start, end, 30)
    assert len(planned) == 10
    assert all(len(task) == 10 for task in planned)


def test_a_long_span_is_cut_and_short_ones_share_a_task() -> None:
    start = {s: Position(0, "e") for s in "abc"}
    end = {"a": Position(2, "e"), "b": Position(25, "e"), "c": Position(3, "e")}
    planned = tasks(start, end, 10)
    assert planned == [
        (Range("b", 0, 8, "e", 25),),
        (Range("b", 8, 16, "e", 25),),
        (Range("b", 16, 25, "e", 25),),
        (Range("a", 0, 2, "e", 2), Range("c", 0, 3, "e", 3)),
    ]


# encode and decode


@given(ALL_OFFSETS)
def test_a_position_survives_the_checkpoint(offsets: Offsets) -> None:
    assert Checkpoint.decode(json.loads(json.dumps(Checkpoint(offsets).encode()))).positions == offsets


def test_a_position_without_an_epoch_survives_the_checkpoint() -> None:
    offsets = {"s": Position(5), "t": Position(6, "e")}
    whole = Checkpoint(offsets, per_task=3, cuts={"s": [3]}, begins={"t": 2}, notes={"s": "x"})
    assert Checkpoint.decode(json.loads(json.dumps(whole.encode()))) == whole


@given(ALL_OFFSETS, st.randoms(use_true_random=False))
def test_equal_positions_are_equal_as_text(offsets: Offsets, random: Any) -> None:
    # Spark compares text: another order of keys would start an empty batch.
    shuffled = list(offsets.items())
    random.shuffle(shuffled)
    first = json.dumps(Checkpoint(offsets, per_task=1, cuts={}).encode())
    assert json.dumps(Checkpoint(dict(shuffled), cuts={}, per_task=1).encode()) == first
    assert json.dumps(json.loads(first), sort_keys=True) == first


def test_what_a_checkpoint_says() -> None:
    assert Checkpoint({"B": Position(7, "2026"), "A": Position(3)}, per_task=9).encode() == {
        "epochs": {"B": "2026"},
        "next": {"A": 3, "B": 7},
        "perTask": 9,
        "version": 1,
    }


@pytest.mark.parametrize("version", [VERSION + 1, 99, 0, None])
def test_a_checkpoint_of_another_version_is_refused_with_both_versions(version: int | None) -> None:
    body = Checkpoint({"s": Position(5, "e")}).encode() | {"version": version}
    with pytest.raises(OptionError) as caught:
        Checkpoint.decode(body)
    assert f"positions of version {version}, and this Penstock reads version {VERSION}" in str(caught.value)
    assert "Upgrade Penstock" in str(caught.value)


@pytest.mark.parametrize(
    "harm",
    [
        {"next": ["s"]},
        {"next": {"s": "5"}},
        {"epochs": None},
        {"perTask": "9"},
        {"cuts": {"s": 3}},
        {"begins": 1},
        {"begins": {"s": -5}},
    ],
)
def test_a_checkpoint_that_somebody_has_edited_is_refused_with_what_it_holds(harm: dict[str, Any]) -> None:
    body = Checkpoint({"s": Position(5, "e")}).encode() | harm
    with pytest.raises(OptionError, match=r"a position that no Penstock writes .*'version': 1.*put back what was"):
        Checkpoint.decode(body)


@pytest.mark.parametrize("cuts", [[20, 10], [10, 60]])
def test_cuts_that_would_read_rows_twice_are_refused(cuts: list[int]) -> None:
    end = Checkpoint({"s": Position(30)}, per_task=10, cuts={"s": cuts})
    with pytest.raises(OptionError, match=r"'cuts' (of 's' do not ascend|go beyond the end)"):
        Checkpoint({"s": Position(0)}).tasks_until(end)


@pytest.mark.parametrize("body", [None, [1], "x"])
def test_what_is_not_an_object_is_refused(body: Any) -> None:
    with pytest.raises(OptionError, match="not a JSON object"):
        Checkpoint.decode(body)


def test_a_batch_with_rows_says_how_it_is_cut() -> None:
    """Taken for 1, a missing `perTask` would make a task a row."""
    start, end = Checkpoint({"s": Position(5)}), Checkpoint({"s": Position(50)})
    with pytest.raises(OptionError, match="no 'perTask'"):
        start.tasks_until(end)
    assert start.tasks_until(start) == []
    assert len(start.tasks_until(Checkpoint({"s": Position(50)}, per_task=100))) == 1


def test_a_checkpoint_without_a_version_is_refused() -> None:
    with pytest.raises(OptionError, match="version None"):
        Checkpoint.decode({"next": {"s": 1}, "epochs": {}})


@given(st.dictionaries(NAMES, st.builds(Position, st.integers(0, 10**15), EPOCHS), min_size=1))
def test_next_of_a_checkpoint_can_be_pasted_into_starting_offsets(offsets: Offsets) -> None:
    pasted = json.dumps(Checkpoint(offsets).encode()["next"])
    options = ReadOptions.parse("test", {"startingOffsets": pasted})
    assert options.starting_offsets == {shard: position.next for shard, position in offsets.items()}
