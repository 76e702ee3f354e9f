"""Random faults, from a seed: whatever befalls the attempts of a task, each row is in its stream once, and in order.

`make chaos ROUNDS=1000 SEED=7` goes on for longer; `make chaos ROUNDS=1 SEED=42` does one round again.
"""

import itertools
import logging
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest
from sink_writes import Stopped, batch, bodies, commit, write

from nats_servers import Admin
from penstock.connectors.jetstream.targets import Targets
from penstock.errors import ConnectError
from penstock.kit import process_cache as pool
from penstock.kit.contract import Origin, Receipt
from penstock.testing.nats_server import NatsServer
from penstock.testing.proxy import Proxy

ROUNDS, SEED = int(os.environ.get("ROUNDS", "50")), int(os.environ.get("SEED", "1"))
GROUP = 10  # rounds to a test; in one of them the server may be killed
FLAGS: list[dict[str, Any]] = [{}, {"allow_atomic": True}, {"allow_batched": True}]
WINDOWS = [0.1, 1.0, 120.0]
LIMITS = {"reconnectTimeout": "3s", "requestTimeout": "2s", "connectTimeout": "2s"}
BAD_ATTEMPTS, MOST_ATTEMPTS = 3, 12  # after so many, nothing more befalls a task; after so many it must be done
FOREIGN = b"foreign"


class _Idle(threading.local):
    """What a process keeps, connections and streams: a thread stands for a worker of Spark, and those share nothing."""

    def __init__(self) -> None:
        self.connections: dict[Any, list[tuple[float, Any]]] = {}
        self.targets: dict[Any, Any] = {}

    def close(self) -> None:
        for _, connection in itertools.chain.from_iterable(self.connections.values()):
            connection.close()
        self.connections.clear()
        self.targets.clear()


idle = _Idle()


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("chaos")) as running:
        yield running


@pytest.fixture(autouse=True)
def _quick_and_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.kit.retry.LONGEST_WAIT", 0.01)
    monkeypatch.setattr(pool, "_idle", lambda: idle.connections)
    monkeypatch.setattr(Targets, "_kept", lambda targets: idle.targets.setdefault(targets._key, {}))
    monkeypatch.setattr(logging.getLogger("penstock"), "disabled", True)  # the events of a round say more


class Background:
    """Something at the same time, and what went wrong in it."""

    def __init__(self, what: Callable[[], None]):
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(what,), daemon=True)
        self._thread.start()

    def _run(self, what: Callable[[], None]) -> None:
        try:
            what()
        except BaseException as error:  # whoever waits must see it, whatever it is
            self.error = error
        finally:
            idle.close()

    def wait(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive(), "something hangs"
        if self.error is not None:
            raise self.error


class Round:
    """One task, all attempts to write it, and what became of it. The seed decides all but the time that things take."""

    def __init__(self, server: NatsServer, seed: int):
        self.server, self.seed, self.dice = server, seed, random.Random(seed)
        self.origin = Origin(f"chaos{seed}", 0, self.dice.randrange(3))
        self.events: list[str] = []
        self.began = time.monotonic()
        self.admin = Admin(server.url)
        self.twins: list[Background] = []
        self.may_kill = seed % GROUP == 0 and self.dice.random() < 0.8
        self.streams = [f"C{seed}{name}" for name in "AB"[: self.dice.choice([1, 1, 2])]]
        self.window, self.mode = 120.0, "atomic"
        for stream in self.streams:
            flags, window = self.dice.choice(FLAGS), self.dice.choice(WINDOWS)
            self.admin.create(stream, duplicate_window=int(window * 1e9), **flags)
            self.window = min(self.window, window)
            # Atomic batches are taken by themselves only where a stream is in memory; these survive a killed server.
            self.mode = self.mode if "allow_atomic" in flags else "auto"
            self.note(f"stream {stream} {' '.join(flags) or 'plain'}, window {window:g}s")
        self.total = self.dice.randint(300, 2500)
        padding = self.dice.choice([b"", b"-" * 20, b"-" * 200])
        self.rows = [b"%d %s" % (i, padding) for i in range(self.total)]
        # Sometimes a stream is met only late in the task.
        late = self.dice.choice([0, 0, self.total // 2])
        self.places = [self.streams[0] if i < late else self.dice.choice(self.streams) for i in range(self.total)]
        self.largest = self.dice.choice([60, 300, 1000, 2500])
        self.note(f"{self.total} rows of {len(padding)}+ bytes, at most {self.largest} to a batch")

    def note(self, event: str) -> None:
        self.events.append(f"{time.monotonic() - self.began:7.3f} {event}")

    def run(self) -> None:
        """Everything, up to the replay of a batch that was done."""
        receipt = self.attempts("attempt")
        if self.chance(0.2):
            self.outwait()
        for _ in range(self.dice.choice([1, 1, 2])):
            self.note("commit")
            commit(self.server.url, [receipt], self.origin.batch)
        if self.chance(0.3):
            self.foreign()
        if self.chance(0.2):
            self.outwait()
        self.attempts("replay", twins=False)
        for twin in self.twins:
            twin.wait()
        self.check()

    def attempts(self, name: str, *, twins: bool = True) -> Receipt:
        """Attempts at the task until one of them comes to its end."""
        for number in range(MOST_ATTEMPTS):
            bad = number < BAD_ATTEMPTS
            if twins and bad and self.chance(0.25):
                dice = random.Random(self.dice.random())
                whose = f"twin of {name} {number}"
                self.twins.append(Background(lambda dice=dice, whose=whose: self.twin(dice, whose)))  # type: ignore[misc]
                if self.chance(0.2):
                    time.sleep(self.dice.uniform(0, 0.05))
            receipt = self.attempt(self.dice, f"{name} {number}", bad, alone=False)
            if self.twins and self.chance(0.7):
                self.twins.pop().wait()
            if receipt is not None:
                return receipt
            if self.chance(0.3):
                self.foreign()
            if self.chance(0.3):
                self.outwait()
        raise AssertionError(f"{MOST_ATTEMPTS} attempts did not do it")

    def twin(self, dice: random.Random, name: str) -> None:
        """The same task, in another process as it were: once, however that ends."""
        self.attempt(dice, name, bad=True, alone=True)

    def attempt(self, dice: random.Random, name: str, bad: bool, *, alone: bool) -> Receipt | None:
        """One attempt of the task; None where it did not come to its end."""
        self.note(f"{name} begins")
        disasters: list[Background] = []
        with ExitStack() as stack:
            proxy, given = self.network(dice, name, bad)
            url = self.server.url if proxy is None else stack.enter_context(proxy).url
            rows = self.batches(dice, name, bad, proxy, None if alone else disasters)
            try:
                receipt = write(url, rows, self.origin, publishMode=self.mode, **LIMITS, **given)
                self.note(f"{name} did it, {receipt.known} rows known")
                assert receipt.rows == self.total
                return receipt
            except Stopped:
                self.note(f"{name} died")
            except ConnectError as error:
                self.note(f"{name} failed: {error}")
            except Exception as error:
                self.note(f"{name} FAILED: {type(error).__name__}: {error}")
                raise
            finally:
                for disaster in disasters:
                    disaster.wait()
                if disasters:
                    self.admin.close()
                    self.admin = Admin(self.server.url)
        return None

    def network(self, dice: random.Random, name: str, bad: bool) -> tuple[Proxy | None, dict[str, str]]:
        """The way to the server, and what befalls it; the options that go with that."""
        kind = dice.choices(["none", "cut", "sent", "stall"], [24, 32, 32, 1])[0]
        if not bad or (kind == "none" and dice.random() < 0.5):
            return None, {}
        if kind == "cut":
            at = [_about(dice, 30, 60_000) for _ in range(dice.randint(1, 4))]
            self.note(f"{name}: cut after {at} bytes from the server")
            return Proxy(self.server.port, [("cut", n) for n in at]), {}
        if kind == "sent":
            at = [_about(dice, 30, 300_000) for _ in range(dice.randint(1, 4))]
            self.note(f"{name}: cut after {at} bytes to the server")
            return Proxy(self.server.port, sent=at), {}
        if kind == "stall":
            # Mostly among the acks: an answer to a request is waited for much longer.
            n = _about(dice, 5_000, 80_000) if dice.random() < 0.9 else _about(dice, 30, 5_000)
            self.note(f"{name}: stall after {n} bytes from the server")
            return Proxy(self.server.port, [("stall", n)]), {"ackTimeout": "200ms"}
        return Proxy(self.server.port), {}

    def batches(
        self, dice: random.Random, name: str, bad: bool, proxy: Proxy | None, disasters: list[Background] | None
    ) -> Iterator[pa.RecordBatch]:
        """The rows, and what befalls the task between them. Only where there is a list of `disasters` is there one."""
        dies = dice.randrange(self.total) if bad and dice.random() < 0.35 else None
        slow = dice.random() < 0.1 and min(0.15, 20 * self.largest / self.total * 0.02)
        gone = dice.randrange(self.total) if proxy and bad and dice.random() < 0.006 else None
        killed = dice.randrange(self.total) if disasters is not None and self.may_kill and bad else None
        others = disasters is not None and killed is None and dice.random() < 0.1
        low = 0
        while low < self.total:
            high = min(self.total, low + dice.randint(1, self.largest))
            if dies is not None and low >= dies:
                self.note(f"{name}: dies before row {low}")
                raise Stopped
            if gone is not None and low >= gone:
                self.note(f"{name}: nobody answers any more from row {low}")
                assert proxy is not None
                proxy.refuse()
                gone = None
            if killed is not None and low >= killed:
                assert disasters is not None
                after, down = dice.uniform(0, 0.01), dice.uniform(0, 0.2)
                self.note(f"{name}: the server is killed {after:.3f}s after row {low}, for {down:.3f}s")
                disasters.append(Background(lambda a=after, d=down: self.kill(a, d)))  # type: ignore[misc]
                self.may_kill, killed = dice.random() < 0.5, None
            if others and dice.random() < 0.2:
                self.foreign()
            if slow:
                time.sleep(dice.uniform(0, slow))
            subjects = [f"{stream}.x" for stream in self.places[low:high]]
            yield batch(self.rows[low:high], subject=pa.array(subjects))
            low = high

    def kill(self, after: float, down: float) -> None:
        time.sleep(after)
        self.server.kill()
        time.sleep(down)
        self.server.start()

    def foreign(self) -> None:
        """Somebody else writes to a stream."""
        stream, number = self.dice.choice(self.streams), self.dice.randint(1, 300)
        self.note(f"{number} messages of somebody else to {stream}")
        self.admin.publish((f"{stream}.other", FOREIGN) for _ in range(number))

    def outwait(self) -> None:
        """Let the window pass, if it is a short one."""
        if self.window == WINDOWS[0] or (self.window == WINDOWS[1] and self.chance(0.1)):
            self.note(f"the window of {self.window:g}s passes")
            time.sleep(self.window * 1.3)

    def chance(self, likely: float) -> bool:
        return self.dice.random() < likely

    def check(self) -> None:
        """The streams, read raw."""
        for stream in self.streams:
            wanted = [row for row, place in zip(self.rows, self.places, strict=True) if place == stream]
            found = [body for body in bodies(self.admin, stream) if body != FOREIGN]
            if found == wanted:
                continue
            times = Counter(found)
            missing = [_number(row) for row in wanted if not times[row]]
            twice = [_number(row) for row in wanted if times[row] > 1]
            places = {_number(row): [i for i, body in enumerate(found) if body == row] for row in wanted}
            early = [(_number(a), _number(b)) for a, b in itertools.pairwise(found) if _number(a) > _number(b)]
            raise AssertionError(
                f"{stream} has {len(found)} rows for {len(wanted)}: {len(missing)} missing {_some(missing)}, "
                f"{len(twice)} more than once {_some([(n, places[n]) for n in twice])}, out of order: {_some(early)}"
            )

    def end(self) -> None:
        """Leave nothing behind."""
        for twin in self.twins:
            twin.wait()
        idle.close()
        self.admin.close()
        again = Admin(self.server.url)
        for stream in self.streams:
            again.delete(stream)
        again.close()


def _about(dice: random.Random, low: int, high: int) -> int:
    """A number of any size: small ones as often as large ones."""
    return int(low * (high / low) ** dice.random())


def _number(body: bytes) -> int:
    return int(body.partition(b" ")[0])


def _some(things: list[Any]) -> str:
    return f"{things[:10]}{'...' if len(things) > 10 else ''}"


@pytest.mark.parametrize("first", range(SEED, SEED + ROUNDS, GROUP))
def test_whatever_happens_each_row_is_there_once_and_in_order(own_server: NatsServer, first: int) -> None:
    for seed in range(first, min(first + GROUP, SEED + ROUNDS)):
        played = Round(own_server, seed)
        try:
            played.run()
            played.end()
        except Exception as error:
            events = "\n  ".join(played.events)
            pytest.fail(f"seed {seed}: {type(error).__name__}: {error}\n  {events}")
