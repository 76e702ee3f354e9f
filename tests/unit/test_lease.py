import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.checkpoints import storage
from penstock.checkpoints.lease import FILE, Holder, InUseError, Lease
from penstock.errors import ConnectError

TTL = 0.9  # a beat each 0.15 s
SETTLE = 0.2
# Takes the lease on each folder that it is told of, says what became of it, and holds it until the next one.
HOLD = """
import sys
from penstock.errors import PenstockError
from penstock.checkpoints.lease import Lease
lease = None
print("ready", flush=True)
for line in sys.stdin:
    if lease:
        lease.release()
    lease = Lease(line.strip(), ttl=float(sys.argv[1]), settle=float(sys.argv[2]))
    try:
        lease.take()
        print("taken", flush=True)
    except PenstockError as error:
        print("refused", flush=True)
"""


@contextmanager
def process(ttl: float = TTL, settle: float = SETTLE) -> Iterator["subprocess.Popen[str]"]:
    """A process that is ready to take leases."""
    command = [sys.executable, "-c", HOLD, str(ttl), str(settle)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert said(running) == "ready"
            yield running
        finally:
            running.kill()


def said(running: "subprocess.Popen[str]") -> str:
    assert running.stdout is not None
    return running.stdout.readline().strip()


def take(running: "subprocess.Popen[str]", folder: Path) -> None:
    assert running.stdin is not None
    running.stdin.write(f"{folder}\n")
    running.stdin.flush()


def lease(folder: Path, **more: Any) -> Lease:
    return Lease(str(folder), **{"ttl": TTL, "settle": SETTLE, **more})


def holder(folder: Path) -> Holder:
    found = Holder.parse((folder / FILE).read_bytes())
    assert found is not None
    return found


def write(folder: Path, **fields: Any) -> Holder:
    """The lease of somebody else."""
    written = Holder(**{**vars(Holder.here()), "owner": "another", **fields})
    storage.folder(str(folder)).write(FILE, written.encode())
    return written


def until(condition: Any, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def test_a_lease_is_taken_renewed_and_given_up(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"  # which a first run does not find
    with lease(folder) as held:
        assert held.held
        first = holder(folder)
        assert (first.pid, first.host, first.boot != "") == (os.getpid(), os.uname().nodename, Path("/proc").exists())
        until(lambda: holder(folder).beat > first.beat)
        assert holder(folder).owner == first.owner
    assert not held.held
    assert [*folder.iterdir()] == []
    with held, lease(tmp_path / "other"):
        assert held.held


def test_a_second_run_is_told_who_has_it(tmp_path: Path) -> None:
    with lease(tmp_path):
        with pytest.raises(InUseError) as caught:
            lease(tmp_path).take()
        found = holder(tmp_path)
        assert str(caught.value) == (
            f"pipeline checkpoint '{tmp_path}' is in use by process {os.getpid()} on host {found.host} since "
            f"{found.started}: stop it first."
        )


def test_that_of_a_process_that_was_killed_is_taken_at_once(tmp_path: Path) -> None:
    with process(ttl=60) as running:
        take(running, tmp_path)
        assert said(running) == "taken"
        running.send_signal(signal.SIGKILL)
        until(lambda: Path(f"/proc/{running.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
        assert holder(tmp_path).pid == running.pid
        began = time.monotonic()
        with lease(tmp_path, ttl=60) as held:  # it is not even buried yet
            assert time.monotonic() - began < 10
            assert held.held
        write(tmp_path, pid=running.pid)
        running.wait()
        with lease(tmp_path, ttl=60):
            assert time.monotonic() - began < 20


@pytest.mark.parametrize("other", ["host", "boot", "processes"])
def test_a_process_id_means_nothing_on_another_machine_or_in_another_container(tmp_path: Path, other: str) -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    write(tmp_path, pid=ended.pid, **{other: "another"})
    began = time.monotonic()
    with lease(tmp_path):
        assert time.monotonic() - began >= TTL


def test_that_of_another_host_is_refused_while_its_beat_moves(tmp_path: Path) -> None:
    there = write(tmp_path, host="h2", pid=123, started="2026-11-17T06:00:00+00:00")
    stop = threading.Event()

    def beat() -> None:
        number = 0
        while not stop.wait(TTL / 6):
            number += 1
            write(tmp_path, host="h2", pid=123, started=there.started, beat=number)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(InUseError, match=r"in use by process 123 on host h2 since 2026-11-17T06:00:00"):
            lease(tmp_path).take()
    finally:
        stop.set()
        thread.join()
    assert holder(tmp_path).host == "h2"


def test_that_of_another_host_is_taken_when_its_beat_stands_still(tmp_path: Path) -> None:
    write(tmp_path, host="h2", pid=os.getpid())
    began = time.monotonic()
    with lease(tmp_path):
        assert TTL * 7 / 6 <= time.monotonic() - began < TTL * 7 / 6 + SETTLE + 5
        assert holder(tmp_path).host == os.uname().nodename


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"owner": 1}', b"\xff"])
def test_a_damaged_one_counts_until_it_has_stood_still(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    began = time.monotonic()
    with lease(tmp_path):
        assert time.monotonic() - began >= TTL


@pytest.mark.parametrize("content", [b"", b'{"owner": "', b"\xff", b"null"])
def test_one_that_is_damaged_is_written_again_by_its_holder_and_refused_to_others(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    lost = threading.Event()
    with lease(tmp_path, ttl=3, on_lost=lost.set) as held:
        owner = holder(tmp_path).owner
        (tmp_path / FILE).write_bytes(content)
        with pytest.raises(InUseError, match=f"in use by process {os.getpid()} on host"):
            lease(tmp_path, ttl=3).take()
        assert holder(tmp_path).owner == owner
        time.sleep(3)  # as long as one lives that is not renewed
        assert (held.held, lost.is_set()) == (True, False)
    assert f"the file '{tmp_path}/{FILE}' was damaged ({content!r}), and is written again" in caplog.text


def test_one_that_is_damaged_before_the_eyes_of_another_is_refused_with_the_name_of_the_file(tmp_path: Path) -> None:
    write(tmp_path, host="h2")
    threading.Timer(0.2, (tmp_path / FILE).write_bytes, [b"{"]).start()
    with pytest.raises(InUseError) as caught:
        lease(tmp_path, ttl=60).take()
    assert f"the file '{tmp_path}/{FILE}' was changed a moment ago. Whose it is cannot be read (b'{{')" in str(
        caught.value
    )


def test_one_that_is_half_written_by_another_is_left_to_it(tmp_path: Path) -> None:
    """A first look shows half of it. At the next one it is whole, and ours is lost."""
    lost = threading.Event()
    held = lease(tmp_path, ttl=6, on_lost=lost.set).take()
    (tmp_path / FILE).write_bytes(b'{"owner": ')
    held.renew()
    assert (tmp_path / FILE).read_bytes() == b'{"owner": '
    there = write(tmp_path, host="h2")
    held.renew()
    assert lost.is_set()
    assert holder(tmp_path) == there


def test_one_that_is_given_up_while_it_is_watched_is_taken(tmp_path: Path) -> None:
    write(tmp_path, host="h2")
    threading.Timer(0.2, (tmp_path / FILE).unlink).start()
    began = time.monotonic()
    with lease(tmp_path, ttl=60) as held:
        assert held.held
        assert time.monotonic() - began < 30


def test_of_two_that_start_at_the_same_time_one_wins(tmp_path: Path) -> None:
    with process() as a, process() as b:
        for number in range(20):
            take(a, tmp_path / str(number))
            take(b, tmp_path / str(number))
            assert sorted([said(a), said(b)]) == ["refused", "taken"], f"in round {number}"


def start_together(leases: list[Lease]) -> list[Lease]:
    """Those that were taken."""
    taken = []

    def start(one: Lease) -> None:
        with suppress(InUseError):
            taken.append(one.take())

    threads = [threading.Thread(target=start, args=(one,)) for one in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return taken


def test_of_two_that_write_when_neither_has_seen_the_other_one_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, put = threading.Barrier(2), Lease._write
    first = threading.local()

    def together(self: Lease) -> None:
        if not hasattr(first, "done"):
            first.done = True
            both.wait(20)
        put(self)

    monkeypatch.setattr(Lease, "_write", together)
    (taken,) = start_together([lease(tmp_path, settle=1), lease(tmp_path, settle=1)])
    assert holder(tmp_path).owner == taken._me.owner
    taken.release()


def test_of_those_that_wait_for_the_same_dead_holder_one_wins(tmp_path: Path) -> None:
    write(tmp_path, host="h2")
    (taken,) = start_together([lease(tmp_path, settle=0.5) for _ in range(3)])
    assert taken.held
    taken.release()


def test_whoever_was_too_slow_to_write_withdraws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """He looked before the other wrote, and wrote when the other had won. Without his withdrawing both have it."""
    slow, quick = lease(tmp_path, ttl=3), lease(tmp_path, ttl=3)
    put = slow._write
    late: list[None] = []

    def stuck() -> None:
        if not late:
            late.append(None)
            quick.take()
        put()

    monkeypatch.setattr(slow, "_write", stuck)
    with pytest.raises(InUseError):
        slow.take()
    assert (quick.held, slow.held) == (True, False)
    assert holder(tmp_path).owner == quick._me.owner, "it was written again"
    quick.release()


def test_storage_that_is_always_too_slow_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = storage.Folder.write

    def slow(self: storage.Folder, name: str, content: bytes) -> None:
        time.sleep(0.03)
        put(self, name, content)

    monkeypatch.setattr(storage.Folder, "write", slow)
    with pytest.raises(ConnectError, match=r"takes longer than 0.02s"):
        lease(tmp_path, ttl=0.1, settle=0.04).take()
    assert not (tmp_path / FILE).exists()


def test_a_holder_is_told_when_another_has_taken_it(tmp_path: Path) -> None:
    lost = threading.Event()
    held = lease(tmp_path, on_lost=lost.set).take()
    there = write(tmp_path, host="h2", beat=7)
    assert lost.wait(20)
    assert not held.held
    with pytest.raises(InUseError, match="was lost"):
        held.require()
    time.sleep(TTL / 2)
    assert holder(tmp_path) == there, "it is no longer renewed"
    held.release()
    assert holder(tmp_path) == there, "that of another is not removed"


def test_storage_that_fails_for_a_while_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lost = threading.Event()
    with lease(tmp_path, ttl=3, on_lost=lost.set) as held:
        write_really = storage.Folder.write
        monkeypatch.setattr(storage.Folder, "write", fail)
        with caplog.at_level(logging.WARNING, "penstock"):
            until(lambda: sum("could not be renewed: no storage" in r.getMessage() for r in caplog.records) >= 3)
        assert held.held
        monkeypatch.setattr(storage.Folder, "write", write_really)
        beat = holder(tmp_path).beat
        until(lambda: holder(tmp_path).beat >= beat + 2)
        assert not lost.is_set()


def fail(*_: Any) -> None:
    raise ConnectError("no storage")


def test_storage_that_fails_for_as_long_as_a_lease_lives_loses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[float] = []
    held = lease(tmp_path, on_lost=lambda: lost.append(time.monotonic())).take()
    monkeypatch.setattr(storage.Folder, "write", fail)
    began = time.monotonic()
    until(lambda: lost)
    assert TTL / 2 < lost[0] - began < TTL + 1
    time.sleep(TTL / 2)
    assert len(lost) == 1
    held.release()


def test_storage_that_hangs_loses_it_too_and_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run takes it after a still `ttl`, and a holder that waits for its storage must know before."""
    lost, go_on = threading.Event(), threading.Event()
    held = lease(tmp_path, ttl=3, on_lost=lost.set).take()
    write_really = storage.Folder.write

    def hang(self: storage.Folder, name: str, content: bytes) -> None:
        go_on.wait(20)
        write_really(self, name, content)

    monkeypatch.setattr(storage.Folder, "write", hang)
    assert lost.wait(3 * 7 / 6)
    go_on.set()
    until(lambda: not (tmp_path / FILE).exists())  # what it wrote too late is removed
    assert not held.held


def test_one_that_somebody_deleted_is_written_again(tmp_path: Path) -> None:
    with lease(tmp_path) as held:
        (tmp_path / FILE).unlink()
        until((tmp_path / FILE).exists)
        assert held.held


def test_storage_that_fails_at_the_end_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = lease(tmp_path).take()
    monkeypatch.setattr(storage.Folder, "remove", fail)
    held.release()
    assert not held.held


def test_who_stops_its_query_when_the_lease_is_lost_may_release_it_there(tmp_path: Path) -> None:
    released = threading.Event()
    held = lease(tmp_path)

    def stop() -> None:
        held.release()
        released.set()

    held.on_lost = stop
    held.take()
    write(tmp_path, host="h2")
    assert released.wait(20)


def test_what_is_written_is_plain_json(tmp_path: Path) -> None:
    with lease(tmp_path):
        body = json.loads((tmp_path / FILE).read_text())
        assert {"owner", "host", "pid", "started", "beat"} <= body.keys()
