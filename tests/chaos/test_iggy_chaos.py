"""Random faults, from a seed, for Iggy: lost replies and requests, polls that leave out messages, tasks that die, and a
server that comes back.
"""

import logging
import os
import random
import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest
from iggy_sources_and_sinks import QUICK

from iggy_servers import IggyAdmin, options
from penstock.connectors.iggy import Iggy
from penstock.errors import ConnectError
from penstock.kit.contract import Origin, Receipt
from penstock.testing.iggy_double import IggyDouble

ROUNDS, SEED = int(os.environ.get("ROUNDS", "10")), int(os.environ.get("SEED", "1"))
GROUP = 10
FAULTS = ["lose_reply", "lose_request", "transient:2", "", "", ""]
POLL_FAULTS = [["empty"], ["empty", "empty"], ["skip:1", ""], ["skip:50", "empty"], ["skip:50", "cut"], [""], [""]]


class Stopped(Exception):  # noqa: N818 - nothing is wrong with it
    """The task dies."""


class Round:
    """Two batches of some tasks, one after the other, as Spark runs them, and every attempt of each."""

    def __init__(self, seed: int):
        self.seed, self.dice, self.server = seed, random.Random(seed), IggyDouble()
        self.admin, self.events = IggyAdmin(self.server), [f"seed {seed}: make chaos ROUNDS=1 SEED={seed}"]
        self.partitions, self.tasks = self.dice.randint(1, 4), self.dice.randint(1, 3)
        self.total, self.size = self.dice.randint(50, 900), self.dice.choice([33, 100, 400])
        self.through_driver = self.dice.random() < 0.5
        self.admin.make("chaos", "t", self.partitions)
        self.receipts: dict[int, dict[int, Receipt]] = {}

    def rows(self, batch: int, task: int, stop: int) -> Iterator[pa.RecordBatch]:
        for low in range(0, self.total, self.size):
            if low >= stop:
                raise Stopped
            some = range(low, min(self.total, low + self.size))
            values = [f"{batch} {task} {i}" for i in some]
            yield pa.record_batch({"value": values, "key": [f"k{i % 5}" for i in some]})

    def attempt(self, batch: int, task: int, calm: bool) -> bool:
        dice = self.dice
        given = {**options(self.server), **QUICK, "stream": "chaos", "topic": "t", "reconnectTimeout": "3s"}
        given |= {"batchLength": str(dice.choice([20, 100, 1000])), "requestTimeout": "1s"}
        given |= {} if self.through_driver else {"driverBytes": "1"}
        stop = self.total if calm or dice.random() < 0.6 else dice.randint(1, self.total)
        self.server.faults = [] if calm else [dice.choice(FAULTS) for _ in range(dice.randint(0, 6))]
        # The same gap twice in a row is one, as far as anybody can tell.
        some = range(0 if calm else dice.randint(0, 5))
        self.server.poll_faults = [fault for _ in some for fault in dice.choice(POLL_FAULTS)]
        faults = f"{self.server.faults} and {self.server.poll_faults}"
        self.events.append(f"batch {batch}, task {task}: stops at {stop}, faults {faults}")
        first = next(self.rows(batch, task, 1))
        sink = Iggy.open_sink(Iggy.parse_sink(given), first.schema)
        if not calm and dice.random() < 0.15:
            self.events.append("the server goes and comes back")
            self.server.stop()
            threading.Timer(0.05, self.server.start).start()
        origin = Origin(f"query-{self.seed}", batch, task)
        try:
            receipt = sink.write(self.rows(batch, task, stop), origin)
            written = {**self.receipts.get(batch, {}), task: receipt}
            sink.commit([*written.values()], batch)  # Spark commits all tasks of a batch together
            self.receipts[batch] = written
        except (Stopped, ConnectError) as error:
            self.events.append(f"{type(error).__name__} {str(error)[:100]}")
            return False
        return True

    def play(self) -> None:
        for batch in range(2):
            for task in range(self.tasks):
                for number in range(12):
                    if self.attempt(batch, task, calm=number >= 4):
                        break
                    time.sleep(0.06)  # longer than the server is away
                else:
                    raise AssertionError("\n".join(["it was not done after 12 attempts", *self.events]))
                if self.dice.random() < 0.3:
                    assert self.attempt(batch, task, calm=True)

    def check(self) -> None:
        self.server.faults, self.server.poll_faults = [], []
        found = [value.decode() for value in self.admin.payloads("chaos", "t")]
        expected = [f"{b} {t} {i}" for b in range(2) for t in range(self.tasks) for i in range(self.total)]
        assert sorted(found) == sorted(expected), "\n".join(self.events)
        for b in range(2):
            for t in range(self.tasks):
                for k in range(5):
                    mine = [
                        int(v.split()[2]) for v in found if v.startswith(f"{b} {t} ") and int(v.split()[2]) % 5 == k
                    ]
                    assert mine == sorted(mine), "\n".join(self.events)


@pytest.mark.parametrize("first", range(SEED, SEED + ROUNDS, GROUP))
def test_iggy_rows_are_there_once_and_in_order_of_their_keys(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("penstock"), "disabled", True)  # the events of a round say more
    for seed in range(first, min(first + GROUP, SEED + ROUNDS)):
        played = Round(seed)
        try:
            played.play()
            played.check()
        finally:
            played.server.stop()
