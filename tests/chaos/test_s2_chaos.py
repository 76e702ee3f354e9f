"""Random faults, from a seed, for S2: whatever befalls the attempts of some tasks, each row is there once, in order."""

import logging
import os
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from s2_sources_and_sinks import write

from penstock.errors import ConnectError
from penstock.kit.contract import Origin
from penstock.testing.proxy import Proxy
from penstock.testing.s2_lite import S2Lite
from s2_servers import S2Admin

ROUNDS, SEED = int(os.environ.get("ROUNDS", "10")), int(os.environ.get("SEED", "1"))
GROUP = 10  # rounds to a test; in one of them the server is killed
LIMITS = {"requestTimeout": "1s", "connectTimeout": "1s", "reconnectTimeout": "3s"}
BAD_ATTEMPTS, MOST_ATTEMPTS = 3, 12


class Stopped(Exception):  # noqa: N818 - nothing is wrong with it
    """The task dies."""


class Round:
    """Some tasks of one batch, all attempts to write them, and what became of it."""

    def __init__(self, server: S2Lite, seed: int):
        self.server, self.admin, self.seed, self.dice = server, S2Admin(server), seed, random.Random(seed)
        self.stream = f"chaos-{seed}-{time.time_ns()}"
        self.shared = self.dice.random() < 0.5
        self.tasks = self.dice.randint(1, 3)
        self.total = self.dice.randint(500, 6000)
        self.size = self.dice.choice([100, 999, 1000, 2500])
        self.padding = self.dice.choice([b"", b"-" * 20, b"-" * 300])
        self.events: list[str] = []
        self.failed: list[BaseException] = []
        self.up = threading.Event()
        self.up.set()
        for name in self.names():
            self.admin.make(name)

    def names(self) -> list[str]:
        return [self.stream] if self.shared else [f"{self.stream}/{i}" for i in range(self.tasks)]

    def row(self, task: int, i: int) -> bytes:
        return b"%d %d %s" % (task, i, self.padding)

    def rows(self, task: int, stop: int) -> Iterator[pa.RecordBatch]:
        size = self.size
        for low in range(0, self.total, size):
            if low >= stop:
                raise Stopped
            some = [self.row(task, i) for i in range(low, min(self.total, low + size))]
            yield pa.record_batch({"value": pa.array(some, pa.binary())})

    def attempt(self, task: int, dice: random.Random, calm: bool) -> bool:
        """Write a task, with a fault or without; whether it is done."""
        options: dict[str, Any] = {"maxUnackedBytes": dice.choice([1, 50_000, 32 << 20])}
        options["appendSession"] = dice.choice(["true", "true", "false"])
        options["stream"] = self.stream if self.shared else f"{self.stream}/{{partition}}"
        origin = Origin(f"query-{self.seed}", 2, task)
        stop = self.total if calm or dice.random() < 0.6 else dice.randint(1, self.total)
        plan = [] if calm else [("cut", dice.randint(100, 3000)) for _ in range(dice.randint(0, 3))]
        plan += [] if calm or dice.random() < 0.8 else [("stall", dice.randint(100, 3000))]
        sent = [] if calm else [dice.randint(100, 200_000) for _ in range(dice.randint(0, 2))]
        self.events.append(f"task {task} stops at {stop}, plan {plan}, sent {sent}, {options}")
        with Proxy(self.server.port, plan, sent=sent) as proxy:
            try:
                endpoint = f"http://127.0.0.1:{proxy.port}"
                write(self.server, self.rows(task, stop), origin, **options, **LIMITS, endpoint=endpoint)
            except (Stopped, ConnectError) as error:
                self.events.append(f"task {task}: {type(error).__name__} {str(error)[:80]}")
                return False
        return True

    def work(self, task: int) -> None:
        """One task until it is done, as Spark would, with a twin now and then."""
        dice = random.Random(self.seed * 100 + task)
        try:
            for number in range(MOST_ATTEMPTS):
                calm = number >= BAD_ATTEMPTS
                if calm:
                    assert self.up.wait(60), "the server did not come back"
                twin = None
                if not calm and dice.random() < 0.3:
                    twin = threading.Thread(target=self.attempt, args=(task, random.Random(dice.random()), False))
                    twin.start()
                done = self.attempt(task, dice, calm)
                if twin is not None:
                    twin.join()
                if done:
                    return
            raise AssertionError(f"task {task} was not done after {MOST_ATTEMPTS} attempts")
        except BaseException as error:
            self.failed.append(error)

    def run(self) -> None:
        stop = threading.Event()

        def others() -> None:
            while not stop.wait(0.02):
                self.admin.append(self.names()[0], [b"other"])

        def killer() -> None:
            time.sleep(self.dice.random() * 0.3)
            self.up.clear()
            self.server.kill()
            self.events.append("the server is killed")
            self.server.start()
            self.up.set()

        kills = self.seed % GROUP == 0
        around = [threading.Thread(target=killer)] if kills else []
        around += [threading.Thread(target=others)] if not kills and self.dice.random() < 0.3 else []
        tasks = [threading.Thread(target=self.work, args=(task,)) for task in range(self.tasks)]
        for thread in (*around, *tasks):
            thread.start()
        for thread in tasks:
            thread.join()
        stop.set()
        for thread in around:
            thread.join()

    def check(self) -> None:
        said = "\n".join([f"seed {self.seed}: make chaos ROUNDS=1 SEED={self.seed}", *self.events])
        assert not self.failed, f"{self.failed[0]!r}\n{said}"
        for task in range(self.tasks):
            name = self.stream if self.shared else f"{self.stream}/{task}"
            found = [b for b in self.admin.bodies(name) if b.startswith(b"%d " % task)]
            assert found == [self.row(task, i) for i in range(self.total)], said


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S2Lite]:
    with S2Lite(tmp_path_factory.mktemp("chaos-s2")) as running:
        yield running


@pytest.mark.parametrize("first", range(SEED, SEED + ROUNDS, GROUP))
def test_s2_rows_are_there_once_and_in_order(on_disk: S2Lite, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("penstock"), "disabled", True)  # the events of a round say more
    for seed in range(first, min(first + GROUP, SEED + ROUNDS)):
        played = Round(on_disk, seed)
        played.run()
        played.check()
