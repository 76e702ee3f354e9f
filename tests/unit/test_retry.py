import logging
from typing import Any

import pytest

from penstock.errors import ConnectError, Disconnected
from penstock.kit.retry import LONGEST_WAIT, Retry, at_once

AWAY = Disconnected("the server is away")


class Time:
    def __init__(self) -> None:
        self.now, self.waits = 1000.0, list[float]()

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    def retry(self, **limits: Any) -> Retry:
        return Retry("reading", clock=lambda: self.now, sleep=self.sleep, **limits)


def fail_for_ever(retry: Retry) -> None:
    while True:
        retry.after(AWAY)


def test_it_is_tried_until_the_time_is_over_and_once_at_its_end() -> None:
    time = Time()
    retry = time.retry(timeout=60)
    with pytest.raises(ConnectError, match=r"reading failed \d+ times in 60s: the server is away"):
        fail_for_ever(retry)
    assert time.now == 1060
    assert max(time.waits) <= LONGEST_WAIT


def test_it_is_tried_as_often_as_allowed() -> None:
    time = Time()
    retry = time.retry(attempts=3, delay=0.1)
    for _ in range(3):
        retry.after(AWAY)
    with pytest.raises(ConnectError, match="reading failed 4 times"):
        retry.after(AWAY)
    assert 0.05 <= time.waits[0] <= 0.1
    assert 0.2 <= time.waits[2] <= 0.4


def test_progress_gives_all_of_the_time_again() -> None:
    time = Time()
    retry = time.retry(timeout=10)
    for _ in range(5):
        retry.after(AWAY)
        time.now += 8
        retry.progress()


def test_a_server_that_stays_away_is_mentioned_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    time = Time()
    retry = time.retry(timeout=60)
    with caplog.at_level(logging.WARNING), pytest.raises(ConnectError):
        fail_for_ever(retry)
    assert 5 <= len(caplog.records) <= 8
    assert "the server is away; reading is tried again, up to 60s without progress" in caplog.text


def test_an_answer_that_comes_late_is_the_answer() -> None:
    time, answers = Time(), [AWAY, AWAY, 7]

    def ask() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Disconnected):
            raise answer
        return answer

    assert time.retry(timeout=60).run(ask) == 7


def test_at_once_asks_a_second_time_and_no_third() -> None:
    tries = []

    def ask() -> None:
        tries.append(1)
        raise AWAY

    with pytest.raises(Disconnected):
        at_once(ask)
    assert len(tries) == 2


def test_a_server_that_answers_and_fails_at_every_write_is_not_tried_for_ever() -> None:
    retry = Retry("writing", attempts=3, sleep=lambda seconds: None)

    def write() -> None:
        retry.run(lambda: "what is there?")
        retry.after(Disconnected("away"))

    for _ in range(3):
        write()
    with pytest.raises(ConnectError, match="writing failed 4 times"):
        write()
