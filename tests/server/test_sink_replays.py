"""Replays whose rows differ, turn up in other streams, or meet a twin after a long look."""

import time
from typing import Any

import pyarrow as pa
import pytest
from sink_tools import Stopped, batch, batches, bodies, commit, count, dies_after, write

from harness import Admin
from penstock.connectors.jetstream.guard import Guard
from penstock.connectors.jetstream.sink import _Task
from penstock.contract import Origin
from penstock.embedded import NatsServer
from penstock.errors import ProtocolError

WINDOW = 0.1
SHORT = {"duplicate_window": int(WINDOW * 1e9)}
REPLAYS = {"fewer": count(0, 300), "other": [b"other", *count(1, 500)], "more": count(0, 600)}


def outwait() -> None:
    """Let the duplicate window of a SHORT stream pass."""
    time.sleep(WINDOW * 2.5)


def stop(*_: Any) -> None:
    raise Stopped


def test_a_stream_that_turns_up_in_a_later_batch_is_read_back_too(admin: Admin, nats: NatsServer, stream: str) -> None:
    for name in "ab":
        admin.create(f"{stream}{name}", f"{stream}.{name}", **SHORT)
    rows = [batch(count(0, 5), subject=pa.array([f"{stream}.{name}"] * 5)) for name in "ab"]
    for _ in range(2):
        write(nats.url, rows, Origin(stream, 0, 0))
        outwait()
    assert bodies(admin, f"{stream}a") == count(0, 5)
    assert bodies(admin, f"{stream}b") == count(0, 5)


def test_a_read_back_that_outlasts_the_window_is_done_again(
    admin: Admin, nats: NatsServer, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A twin writes after a task has looked, and longer than the window before that one publishes."""
    admin.create(stream, **SHORT)
    origin, subject, original, slow = Origin(stream, 0, 0), f"{stream}.x", Guard._read_back, [True]
    with monkeypatch.context() as dying:
        dying.setattr(_Task, "_publish", stop)
        with pytest.raises(Stopped):
            write(nats.url, batches(20), origin, subject=subject)
    outwait()

    def read_back(self: Guard, calls: Any, name: str) -> None:
        original(self, calls, name)
        if slow:
            slow.clear()
            write(nats.url, batches(20), origin, subject=subject)
            outwait()

    monkeypatch.setattr(Guard, "_read_back", read_back)
    write(nats.url, batches(20), origin, subject=subject)
    assert bodies(admin, stream) == count(0, 20)


@pytest.mark.parametrize("guarded", [True, False])
def test_it_is_the_guard_that_knows_rows_again_after_the_window(
    admin: Admin, nats: NatsServer, stream: str, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not guarded:
        monkeypatch.setattr(Guard, "look", lambda self, calls, targets: None)
    admin.create(stream, **SHORT)
    with pytest.raises(Stopped):
        write(nats.url, dies_after(batches(2500), 1), Origin(stream, 0, 0), subject=f"{stream}.x")
    outwait()
    write(nats.url, batches(2500), Origin(stream, 0, 0), subject=f"{stream}.x")
    assert bodies(admin, stream) == count(0, 1000) + count(1000 if guarded else 0, 2500)


@pytest.mark.parametrize(
    ("path", "replay"),
    [
        ("window", "fewer"),
        ("window", "other"),
        ("read back", "fewer"),
        ("read back", "other"),
        ("commit", "fewer"),
        ("commit", "more"),
    ],
)
def test_a_replay_with_other_rows_is_refused(
    admin: Admin, nats: NatsServer, stream: str, path: str, replay: str
) -> None:
    admin.create(stream, **(SHORT if path == "read back" else {}))
    receipt = write(nats.url, batches(500), Origin(stream, 0, 0), subject=f"{stream}.x")
    if path == "commit":
        commit(nats.url, [receipt], 0)
    if path == "read back":
        outwait()
    with pytest.raises(ProtocolError, match=r"partition 0 of batch 0 was written before with other rows"):
        write(nats.url, [batch(REPLAYS[replay])], Origin(stream, 0, 0), subject=f"{stream}.x")
