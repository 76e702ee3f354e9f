"""Replays whose rows differ, turn up in other streams, or meet a twin after a long look."""

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sink_tools import HEADERS, Stopped, batch, batches, bodies, commit, count, dies_after, stored, write

from harness import Admin, server
from penstock.connectors.jetstream.guard import Guard, _Unknown
from penstock.connectors.jetstream.sink import _Task
from penstock.errors import ProtocolError
from penstock.kit.contract import Origin
from penstock.testing.nats_server import NatsServer

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

    def read_back(self: Guard, calls: Any, info: Any) -> None:
        original(self, calls, info)
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


# --- rows that have the same body ---


def lettered(order: str, by: str, size: int = 3) -> list[pa.RecordBatch]:
    """Rows whose bodies are all equal, and that differ by their subjects or headers."""
    made = []
    for low in range(0, len(order), size):
        some = order[low : low + size]
        subject = pa.array([f"{by}.{letter}" if "." not in by else by for letter in some])
        headers = pa.array([[{"key": "Letter", "value": letter.encode()}] for letter in some], HEADERS)
        made.append(batch([b"same"] * len(some), subject=subject, headers=headers))
    return made


@pytest.mark.parametrize("by", ["subject", "headers"])
@pytest.mark.parametrize("path", ["window", "read back", "known by the server"])
def test_rows_in_another_order_are_refused_also_where_their_bodies_are_equal(
    admin: Admin, nats: NatsServer, stream: str, by: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create(stream, **(SHORT if path == "read back" else {}))
    name = stream if by == "subject" else f"{stream}.x"
    with pytest.raises(Stopped):
        write(nats.url, dies_after(lettered("abcdef", name), 1), Origin(stream, 0, 0))
    if path == "read back":
        outwait()
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
