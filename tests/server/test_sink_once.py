"""Exactly once: whatever becomes of an attempt, of a twin or of a replay, the stream read raw has every row once, in
order; or the replay is refused. What a bad network does is in test_sink_faults.py.
"""

import itertools
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from jetstream_sources import until
from sink_writes import HEADERS, ORIGIN, Stopped, batch, batches, bodies, commit, count, dies_after, stored, write

from nats_servers import Admin, server
from penstock.connectors.jetstream.guard import Guard, _Unknown
from penstock.connectors.jetstream.sink import _Task
from penstock.errors import ConnectError, OptionError, ProtocolError
from penstock.kit.contract import Origin
from penstock.testing.nats_server import NatsServer

pytestmark = pytest.mark.usefixtures("_new_ledger")

FLAGS: dict[str, dict[str, Any]] = {"pipelined": {}, "atomic": {"allow_atomic": True}, "fast": {"allow_batched": True}}
all_modes = pytest.mark.parametrize("mode", FLAGS)
WINDOW = 0.1  # seconds, the shortest that a server allows


def made(admin: Admin, stream: str, mode: str = "pipelined", window: float = WINDOW, **config: Any) -> str:
    """A stream on which the sink takes the way `mode` by itself."""
    config |= {"storage": "memory"} if mode == "atomic" else {}
    admin.create(stream, duplicate_window=int(window * 1e9), **FLAGS[mode], **config)
    return f"{stream}.x"


def pass_the_window() -> None:
    time.sleep(WINDOW * 2)


def forgotten(admin: Admin, stream: str) -> None:
    """Wait until the server knows none of the ids that came so far: it looks for old ones in its own time."""
    probe = (f"{stream}.probe", b"probe", {"Nats-Msg-Id": "probe"})
    first = admin.publish([probe])
    until(lambda: admin.publish([probe]) != first)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.kit.retry.LONGEST_WAIT", 0.01)


@all_modes
@pytest.mark.parametrize("window", [WINDOW, 120.0], ids=["after the window", "in the window"])
@pytest.mark.parametrize("whole", [0, 1, 3])
def test_a_retry_writes_only_what_is_missing(
    admin: Admin, nats: NatsServer, stream: str, mode: str, window: float, whole: int
) -> None:
    subject = made(admin, stream, mode, window)
    with pytest.raises(Stopped):
        write(nats.url, dies_after(batches(4000), whole), subject=subject)
    assert len(bodies(admin, stream)) == whole * 1000
    if window == WINDOW:
        pass_the_window()
    receipt = write(nats.url, batches(4000), subject=subject)
    assert bodies(admin, stream) == count(0, 4000)
    assert receipt.rows == 4000
    assert receipt.known >= whole * 1000 or mode == "fast", "fast ingest does not tell which rows it knew"


def test_without_the_guard_a_retry_after_the_window_writes_rows_twice(
    admin: Admin, nats: NatsServer, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof that the test above proves something."""
    monkeypatch.setattr(Guard, "look", lambda *_: None)
    monkeypatch.setattr(Guard, "expired", lambda *_: [])
    subject = made(admin, stream)
    with pytest.raises(Stopped):
        write(nats.url, dies_after(batches(4000), 2), subject=subject)
    forgotten(admin, stream)
    write(nats.url, batches(4000), subject=subject)
    assert sum(body.isdigit() for body in bodies(admin, stream)) == 6000


@pytest.mark.parametrize("window", [WINDOW, 120.0])
@all_modes
def test_a_batch_that_was_done_is_not_written_again(
    admin: Admin, nats: NatsServer, stream: str, mode: str, window: float
) -> None:
    subject = made(admin, stream, mode, window)
    commit(nats.url, [write(nats.url, batches(2000), subject=subject)])
    pass_the_window()
    receipt = write(nats.url, batches(2000), subject=subject)
    assert (receipt.rows, receipt.known) == (2000, 2000)
    commit(nats.url, [receipt])
    assert bodies(admin, stream) == count(0, 2000)


def test_a_driver_that_another_has_overtaken_is_stopped(admin: Admin, nats: NatsServer, stream: str) -> None:
    """Two drivers on one checkpoint: one stands still in batch 0 while the other goes on to batch 3."""
    subject = made(admin, stream)
    for number in range(4):
        origin = ORIGIN._replace(batch=number)
        commit(nats.url, [write(nats.url, batches(100), origin, subject=subject)], number)
    pass_the_window()
    with pytest.raises(ConnectError, match=r"partition 1 of batch 0 comes too late: batch 3 .* stop the older one"):
        write(nats.url, batches(100), ORIGIN, subject=subject)
    assert len(bodies(admin, stream)) == 400


def test_rows_of_others_in_between_change_nothing(admin: Admin, nats: NatsServer, stream: str) -> None:
    subject = made(admin, stream)
    admin.publish((f"{stream}.other", b"before") for _ in range(500))
    other = ORIGIN._replace(partition=7)

    def with_others() -> Iterator[pa.RecordBatch]:
        for each in dies_after(batches(3000, 500), 4):
            admin.publish((f"{stream}.other", b"between") for _ in range(100))
            write(nats.url, [batch([b"another task"] * 50)], other._replace(query=f"q{next(numbers)}"), subject=subject)
            yield each

    numbers = itertools.count(100)
    with pytest.raises(Stopped):
        write(nats.url, with_others(), subject=subject)
    pass_the_window()
    admin.publish((f"{stream}.other", b"after") for _ in range(500))
    write(nats.url, batches(3000, 500), subject=subject)
    assert [body for body in bodies(admin, stream) if body.isdigit()] == count(0, 3000)


def test_a_retry_finds_its_rows_in_several_streams(admin: Admin, nats: NatsServer, stream: str) -> None:
    for name in "AB":
        admin.create(f"{stream}{name}", f"{stream}.{name}.>", duplicate_window=int(WINDOW * 1e9))
    # The second stream is met only after some batches, so the first note knows nothing of it.
    rows = [batch(count(low, low + 500)) for low in range(0, 2000, 500)]
    subjects = [
        [f"{stream}.{'A' if low < 1000 or i % 2 else 'B'}.x" for i in range(500)] for low in range(0, 2000, 500)
    ]
    given = [each.append_column("subject", pa.array(s)) for each, s in zip(rows, subjects, strict=True)]
    with pytest.raises(Stopped):
        write(nats.url, dies_after(given, 3))
    pass_the_window()
    write(nats.url, given)
    both = bodies(admin, f"{stream}A") + bodies(admin, f"{stream}B")
    assert sorted(map(int, both)) == list(range(2000))
    assert bodies(admin, f"{stream}B") == [b"%d" % i for i in range(1000, 2000, 2)]


def test_a_twin_that_is_ahead_in_a_stream_met_late_is_seen(admin: Admin, nats: NatsServer, stream: str) -> None:
    """The first attempt writes to A, a twin to A and B, the window passes, and only then the first comes to B."""
    for name in "AB":
        admin.create(f"{stream}{name}", f"{stream}.{name}.>", duplicate_window=int(WINDOW * 1e9))
    rows = [
        batch(count(5 * i, 5 * i + 5)).append_column("subject", pa.array([f"{stream}.{name}.x"] * 5))
        for i, name in enumerate("AB")
    ]

    def overtaken() -> Iterator[pa.RecordBatch]:
        yield rows[0]
        write(nats.url, rows)
        sys.__dict__.pop("_penstock_targets", None)  # the twin would be in another process
        pass_the_window()
        yield rows[1]

    write(nats.url, overtaken())
    assert bodies(admin, f"{stream}A") == count(0, 5)
    assert bodies(admin, f"{stream}B") == count(5, 10)


def test_a_task_that_is_still_at_work_when_its_batch_is_done_is_stopped_where_it_cannot_tell(
    admin: Admin, nats: NatsServer, stream: str
) -> None:
    """A twin was faster; the notes are gone that would say where to look in a stream met late."""
    for name in "AB":
        admin.create(f"{stream}{name}", f"{stream}.{name}.>", duplicate_window=int(WINDOW * 1e9))
    rows = [batch([name.encode()], subject=pa.array([f"{stream}.{name}.x"])) for name in "AB"]

    def overtaken() -> Iterator[pa.RecordBatch]:
        yield rows[0]
        commit(nats.url, [write(nats.url, rows)])
        sys.__dict__.pop("_penstock_targets", None)
        pass_the_window()
        yield rows[1]

    with pytest.raises(ConnectError, match=r"partition 1 of batch 0 is being written, .* has overtaken it"):
        write(nats.url, overtaken())
    assert bodies(admin, f"{stream}B") == [b"B"]


def stops(*_: Any) -> None:
    raise Stopped


def test_a_read_back_that_outlasts_the_window_is_done_again(
    admin: Admin, nats: NatsServer, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A twin writes after a task has looked, and longer than the window before that one publishes."""
    subject, original, slow = made(admin, stream), Guard._read_back, [True]
    with monkeypatch.context() as dying:
        dying.setattr(_Task, "_publish", stops)
        with pytest.raises(Stopped):
            write(nats.url, batches(20), subject=subject)
    pass_the_window()

    def read_back(self: Guard, calls: Any, info: Any) -> None:
        original(self, calls, info)
        if slow:
            slow.clear()
            write(nats.url, batches(20), subject=subject)
            pass_the_window()

    monkeypatch.setattr(Guard, "_read_back", read_back)
    write(nats.url, batches(20), subject=subject)
    assert bodies(admin, stream) == count(0, 20)


def twins(*attempts: Callable[[], Any]) -> list[BaseException]:
    """Attempts at the same time; what went wrong in them."""
    failed: list[BaseException] = []

    def run(attempt: Callable[[], Any]) -> None:
        try:
            attempt()
        except BaseException as error:  # a test must see it, whatever it is
            failed.append(error)

    threads = [threading.Thread(target=run, args=(attempt,)) for attempt in attempts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return failed


def slowly(rows: Iterator[pa.RecordBatch], seed: int, most: float) -> Iterator[pa.RecordBatch]:
    """Rows that keep a task at work for longer than the window."""
    pauses = random.Random(seed)
    for each in rows:
        time.sleep(pauses.uniform(0, most))
        yield each


@all_modes
def test_a_task_that_takes_longer_than_the_window_writes_each_row_once(
    admin: Admin, nats: NatsServer, stream: str, mode: str
) -> None:
    write(nats.url, slowly(batches(3000, 300), 1, 0.15), subject=made(admin, stream, mode))
    assert bodies(admin, stream) == count(0, 3000)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("window", [WINDOW, 120.0])
def test_twins_that_write_the_same_rows_leave_each_once(
    admin: Admin, nats: NatsServer, stream: str, window: float, seed: int
) -> None:
    subject = made(admin, stream, window=window)
    failed = twins(
        *(
            lambda i=i: write(nats.url, slowly(batches(3000, 300), 10 * seed + i, 0.1), subject=subject)  # type: ignore[misc]
            for i in range(3)
        )
    )
    assert failed == []
    assert bodies(admin, stream) == count(0, 3000)


@pytest.mark.parametrize("window", [WINDOW, 120.0])
def test_the_duplicate_window_is_enough_without_a_ledger_and_no_longer(
    admin: Admin, nats: NatsServer, stream: str, window: float
) -> None:
    subject = made(admin, stream, window=window)
    write(nats.url, batches(1000), subject=subject, ledger="none")
    if window == WINDOW:
        forgotten(admin, stream)
    write(nats.url, batches(1000), subject=subject, ledger="none")
    found = [body for body in bodies(admin, stream) if body.isdigit()]
    assert found == count(0, 1000) * (2 if window == WINDOW else 1)


def test_at_least_once_writes_again_and_needs_no_ledger(admin: Admin, nats: NatsServer, stream: str) -> None:
    subject = made(admin, stream)
    for _ in range(2):
        receipt = write(nats.url, batches(1000), subject=subject, delivery="at_least_once", ledger=f"{stream}L")
        commit(nats.url, [receipt], delivery="at_least_once", ledger=f"{stream}L")
    assert len(bodies(admin, stream)) == 2000
    assert admin.calls.streams([f"{stream}L"]) == {f"{stream}L": None}


OTHER_ROWS = {
    "other content": [batch([b"other", *count(1, 1000)]), *batches(4000)][:1] + list(batches(4000))[1:],
    "fewer rows": list(batches(1500)),
}


@pytest.mark.parametrize("window", [WINDOW, 120.0], ids=["read back", "known by the server"])
@pytest.mark.parametrize("how", OTHER_ROWS)
def test_a_replay_with_other_rows_is_refused_where_it_is_seen(
    admin: Admin, nats: NatsServer, stream: str, how: str, window: float
) -> None:
    subject = made(admin, stream, window=window)
    with pytest.raises(Stopped):
        write(nats.url, dies_after(batches(4000), 3), subject=subject)
    if window == WINDOW:
        pass_the_window()
    with pytest.raises(ProtocolError, match=r"partition 1 of batch 0 was written before with other rows: .*rand, now"):
        write(nats.url, OTHER_ROWS[how], subject=subject)


@pytest.mark.parametrize("rows", [1500, 2500])
def test_a_replay_of_a_batch_that_was_done_must_have_as_many_rows(
    admin: Admin, nats: NatsServer, stream: str, rows: int
) -> None:
    subject = made(admin, stream)
    commit(nats.url, [write(nats.url, batches(2000), subject=subject)])
    with pytest.raises(ProtocolError, match=rf"with other rows: there were 2,000 and now there are {rows:,}"):
        write(nats.url, batches(rows), subject=subject)
    assert bodies(admin, stream) == count(0, 2000)


def test_what_was_removed_in_between_cannot_be_told(admin: Admin, nats: NatsServer, stream: str) -> None:
    subject = made(admin, stream)
    with pytest.raises(Stopped):
        write(nats.url, dies_after(batches(3000), 2), subject=subject)
    for sequence in (5, 6):
        admin.delete_message(stream, sequence)
    pass_the_window()
    with pytest.raises(OptionError, match=r"cannot be told any more: 2 of the messages since 0 were removed"):
        write(nats.url, batches(3000), subject=subject)
    admin.purge(stream, seq=1000)
    with pytest.raises(OptionError, match=r"cannot be told any more: .* starts at 1000"):
        write(nats.url, batches(3000), subject=subject)


@pytest.mark.parametrize("window", [WINDOW, 120.0])
def test_an_id_of_the_users_own_is_dropped_where_it_is_there_whatever_its_body(
    admin: Admin, nats: NatsServer, stream: str, window: float
) -> None:
    """Somebody else wrote it, with another body: that is what such an id is for."""
    subject = made(admin, stream, window=window)
    rows = [
        batch([b"first"], id=pa.array(["order-0"])),
        batch([b"mine", b"also mine"], id=pa.array(["order-1", "order-2"])),
    ]
    with pytest.raises(Stopped):
        write(nats.url, dies_after(rows, 1), subject=subject)
    sent = [batch([b"theirs"], id=pa.array(["order-1"]))]
    write(nats.url, sent, ORIGIN._replace(query="another"), subject=subject)
    if window == WINDOW:
        pass_the_window()
    receipt = write(nats.url, rows, subject=subject)
    assert bodies(admin, stream) == [b"first", b"theirs", b"also mine"]
    assert (receipt.rows, receipt.known) == (3, 2)


def test_a_stream_of_one_message_a_subject_knows_its_rows_for_ever(admin: Admin, nats: NatsServer, stream: str) -> None:
    made(admin, stream, max_msgs_per_subject=1, discard="new", discard_new_per_subject=True)
    rows = [batch(count(0, 500)).append_column("subject", pa.array([f"{stream}.{i}" for i in range(500)]))]
    for _ in range(2):
        receipt = write(nats.url, rows, ledger="none")
        pass_the_window()
    assert (receipt.rows, receipt.known) == (500, 500)
    assert bodies(admin, stream) == count(0, 500)
    other = [batch([b"0", b"other"]).append_column("subject", pa.array([f"{stream}.0", f"{stream}.1"]))]
    with pytest.raises(Exception, match=rf"row 1 of partition 1 of batch 0 \(b'other' to '{stream}\.1'\) was refused"):
        write(nats.url, other, ledger="none")


# --- rows that have the same body ---


def lettered(order: str, by: str, size: int = 3) -> list[pa.RecordBatch]:
    """Rows whose bodies are all equal, and that differ by their subjects or headers."""
    rows = []
    for low in range(0, len(order), size):
        some = order[low : low + size]
        subject = pa.array([f"{by}.{letter}" if "." not in by else by for letter in some])
        headers = pa.array([[{"key": "Letter", "value": letter.encode()}] for letter in some], HEADERS)
        rows.append(batch([b"same"] * len(some), subject=subject, headers=headers))
    return rows


@pytest.mark.parametrize("by", ["subject", "headers"])
@pytest.mark.parametrize("path", ["window", "read back", "known by the server"])
def test_rows_in_another_order_are_refused_also_where_their_bodies_are_equal(
    admin: Admin, nats: NatsServer, stream: str, by: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(admin, stream, window=WINDOW if path == "read back" else 120.0)
    name = stream if by == "subject" else f"{stream}.x"
    with pytest.raises(Stopped):
        write(nats.url, dies_after(lettered("abcdef", name), 1), Origin(stream, 0, 0))
    if path == "read back":
        pass_the_window()
    if path == "known by the server":  # as where messages are gone, so that they cannot be read back
        monkeypatch.setattr(Guard, "_read_back", cannot_read)
    words = r"other rows: row 0's (subject|headers) was b'.*a.*' then and is b'.*d.*' now"
    with pytest.raises(ProtocolError, match=words):
        write(nats.url, lettered("defabc", name), Origin(stream, 0, 0))
    assert [headers["Letter"] for _, _, headers in stored(admin, stream)][:3] == [b"a", b"b", b"c"]
    write(nats.url, lettered("abcdef", name), Origin(stream, 0, 0))
    letters = [headers["Letter"].decode() for _, _, headers in stored(admin, stream)]
    assert "".join(letters) == "abcdef"


def cannot_read(*_: Any) -> None:
    raise _Unknown("some are gone")


def test_a_row_that_comes_again_as_it_was_is_known_whatever_is_in_it(
    admin: Admin, nats: NatsServer, stream: str
) -> None:
    """Headers are compared as they are read back, and those that command are not compared at all."""
    admin.create(stream, allow_atomic=True, allow_msg_ttl=True, storage="memory")
    headers = [[("A", b"  1"), ("A", b""), ("Nats-Rollup", b"x"), ("b", None)], None, [], [("c", b"\xff: 1 ")]]
    rows = [
        batch(
            [b"", b"1", b"2", b"3"],
            headers=pa.array([h and [{"key": k, "value": v} for k, v in h] for h in headers], HEADERS),
            ttl=pa.array(["1h", None, "2h", None]),
        )
    ]
    for way in ("atomic", "pipelined"):
        for again in (False, True):
            receipt = write(nats.url, rows, Origin(f"{stream}{way}", 0, 0), subject=f"{stream}.x", publishMode=way)
            assert receipt.known == 4 * again
    assert len(bodies(admin, stream)) == 8


@pytest.mark.parametrize("where", ["stream", "account"])
def test_subjects_that_a_stream_or_an_account_changes_are_not_compared(folder: Path, where: str) -> None:
    mapping = 'mappings = { "S.in.*": "S.out.$1" }' if where == "account" else ""
    config = f'''jetstream {{ store_dir: "{folder / "data"}" }}\n{mapping}'''
    with server(folder, config=config) as (running, admin):
        changed = {"subject_transform": {"src": "S.in.*", "dest": "S.out.{{wildcard(1)}}"}}
        admin.create("S", **(changed if where == "stream" else {}))
        for _ in range(2):
            receipt = write(running.url, lettered("abcdef", "S.in.x", 6), Origin("q", 0, 0))
        assert receipt.known == 6
        assert [subject for subject, _, _ in stored(admin, "S")] == ["S.out.x"] * 6
        with pytest.raises(ProtocolError, match="row 0's headers"):
            write(running.url, lettered("defabc", "S.in.x", 6), Origin("q", 0, 0))
