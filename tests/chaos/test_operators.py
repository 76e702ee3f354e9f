"""Operators and servers, at random from a seed, against whole queries: what must be there in the end is there, or the
query has stopped with an error that says why.

`make chaos ROUNDS=1000 SEED=7` goes on for longer; each failure says how to play its round again.
"""

import logging
import os
from collections.abc import Iterator

import pytest
from operators import process
from operators.cast import Servers, play
from operators.engine import TaskContext

ROUNDS, SEED = int(os.environ.get("ROUNDS", "15")), int(os.environ.get("SEED", "1"))


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    running = Servers(tmp_path_factory.mktemp("operators"))
    yield running
    running.close()


@pytest.fixture(autouse=True)
def _quick_and_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    process.play(monkeypatch)
    monkeypatch.setattr("penstock.spark.writing.TaskContext", TaskContext)
    monkeypatch.setattr("penstock.kit.retry.LONGEST_WAIT", 0.05)
    monkeypatch.setattr(logging.getLogger("penstock"), "disabled", True)  # the events of a round say more


@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
def test_whatever_operators_do_nothing_is_lost_or_doubled_without_a_word(servers: Servers, seed: int) -> None:
    play(servers, seed)
