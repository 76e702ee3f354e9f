"""Rows that wait for a commit: every number has its row, and the limit is about memory."""

import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kit import buffer as module
from penstock.kit.buffer import COST, Buffer


def rows(first: int, count: int, size: int = 10) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(first, first + count)), "value": pa.array([bytes(size)] * count)})


def numbers(batches: list[pa.RecordBatch]) -> list[int]:
    return [n for batch in batches for n in batch["n"].to_pylist()]


@given(st.lists(st.tuples(st.integers(1, 70), st.sampled_from(["add", "release", "rows"])), max_size=80))
def test_rows_come_out_under_the_numbers_they_got(steps: list[tuple[int, str]]) -> None:
    held = Buffer(1 << 30)
    base = held.first
    count = released = 0
    for n, step in steps:
        if step == "add":
            assert held.add(rows(count, n))
            count += n
        elif step == "release":
            end = min(count, released + n)
            assert numbers(held.release(base + end)) == list(range(released, end))
            released = end
        else:
            end = min(count, released + n)
            assert numbers(held.rows(base + released, base + end)) == list(range(released, end))
    assert numbers(held.waiting()) == list(range(released, count))


def test_messages_that_trickle_in_take_about_the_memory_that_is_counted() -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("reads /proc")
    held, before = Buffer(4 << 20), _resident()
    at = 0
    while held.add(rows(at, 1, 20)):
        at += 1
    assert at > 20_000
    assert len(held.waiting()) < 150
    assert _resident() - before < 24 << 20, "ten times as much, and a hundred without putting rows together"
    assert numbers(held.waiting()) == list(range(at))


def test_small_batches_become_few() -> None:
    held = Buffer(1 << 30)
    for at in range(1000):
        held.add(rows(at, 1))
    assert len(held.waiting()) <= 40
    assert held.room() > (1 << 30) - (1 << 19)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_a_slice_counts_and_keeps_only_itself() -> None:
    held = Buffer(1 << 20)
    large = rows(0, 1000, 10_000)
    held.add(large.slice(5, 3))
    assert sum(batch.get_total_buffer_size() for batch in held.waiting()) < 40_000
    assert held.room() > (1 << 20) - 50_000
    assert numbers(held.waiting()) == [5, 6, 7]


def test_what_is_left_of_a_batch_after_a_release_keeps_only_itself() -> None:
    held = Buffer(1 << 30)
    held.add(rows(0, 1000, 10_000))
    held.release(held.first + 990)
    assert sum(batch.get_total_buffer_size() for batch in held.waiting()) < 150_000
    assert held.most - held.room() < 150_000


def test_what_is_released_makes_room_for_as_much() -> None:
    held = Buffer(1 << 20)
    for at in range(0, 500, 10):
        held.add(rows(at, 10))
    held.release(held.next)
    assert held.room() == held.most


def test_a_batch_larger_than_the_room_is_kept_in_part() -> None:
    held = Buffer(100_000)
    assert not held.add(rows(0, 100, 10_000))
    kept = numbers(held.waiting())
    assert kept == list(range(len(kept)))
    assert 5 <= len(kept) <= 10
    assert held.dropped == 100 - len(kept)
    assert held.next - held.first == 100


def test_a_batch_that_must_be_kept_is_kept_whole() -> None:
    held = Buffer(1000)
    assert held.add(rows(0, 100, 10_000), whole=True)
    assert held.room() == 0
    assert numbers(held.waiting()) == list(range(100))


def test_small_batches_with_dropped_rows_between_them_stay_apart() -> None:
    held = Buffer(COST * 3 + 2000)
    base = held.first
    held.add(rows(0, 5, 50))
    held.add(rows(5, 500, 500))
    held.release(base + 2)
    held.add(rows(505, 5, 50))
    found = numbers(held.rows(base, base + 510))
    assert found[:3] == [2, 3, 4]
    for n in found:
        assert numbers(held.rows(base + n, base + n + 1)) == [n]


def test_a_run_whose_clock_is_behind_numbers_its_rows_behind_those_of_the_run_before(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = time.time_ns()
    monkeypatch.setattr(module.time, "time_ns", lambda: now)
    before = Buffer(1 << 20)
    before.add(rows(0, 10))
    monkeypatch.setattr(module.time, "time_ns", lambda: now - 5 * 10**9)
    held = Buffer(1 << 20)
    held.add(rows(10, 3))  # came before anybody knew of the checkpoint
    held.follow(before.next)
    assert held.first == before.next
    held.add(rows(13, 2))
    assert numbers(held.rows(before.next, held.next)) == [10, 11, 12, 13, 14]
    again = Buffer(1 << 20)
    assert again.rows(before.first, before.next) == [], "a batch of the run before"
    assert "10 messages were not committed by an earlier run, and are gone" in caplog.text
    again.add(rows(0, 1))
    assert numbers(again.rows(before.next, again.next)) == [0]
