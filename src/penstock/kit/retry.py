"""Whether to try again after a lost connection, and how long to wait before that. Knows no server."""

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from penstock.errors import ConnectError, Disconnected
from penstock.kit import figures

log = logging.getLogger("penstock")
T = TypeVar("T")

FIRST_WAIT = 0.1
LONGEST_WAIT = 2.0
# A server that stays away is mentioned this often.
WARN_EVERY = 10.0


class Retry:
    """Allows retries for `timeout` seconds after the first failure, or `attempts` times, without progress in between.

    The first wait is `delay` seconds, a tenth by default. Each later one is twice as long, up to two seconds. Waits are
    random in part, so that tasks do not all come back at once.
    """

    def __init__(
        self,
        what: str,
        *,
        timeout: float = float("inf"),
        attempts: float = float("inf"),
        delay: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self.what, self.timeout, self.attempts, self.delay = what, timeout, attempts, delay or FIRST_WAIT
        self._clock, self._sleep = clock, sleep
        self._failures, self._began, self._warn_at = 0, 0.0, 0.0
        self._is_lost = False  # since the last request that succeeded

    def progress(self) -> None:
        """Something was achieved: time and attempts count anew from the next failure on."""
        self._succeeded()
        self._failures = 0

    def _succeeded(self) -> None:
        figures.count(reconnects=int(self._is_lost))
        self._is_lost = False

    def after(self, error: Disconnected) -> None:
        """Wait before the next try. A ConnectError where no more are allowed."""
        now = self._clock()
        if not self._failures:
            self._began = self._warn_at = now
        self._failures += 1
        self._is_lost = True
        left = self._began + self.timeout - now
        if self._failures > self.attempts or left <= 0:
            tries = f"{self._failures} times in {now - self._began:.0f}s" if self._failures > 1 else "once"
            raise ConnectError(f"{self.what} failed {tries}: {error}") from None
        if now >= self._warn_at:
            limit = f"up to {self.timeout:g}s" if self.timeout < float("inf") else f"up to {self.attempts:g} times"
            log.warning("%s; %s is tried again, %s without progress", error, self.what, limit)
            self._warn_at = now + WARN_EVERY
        wait = min(LONGEST_WAIT, self.delay * 2 ** min(self._failures - 1, 16))
        wait = min(wait * (0.5 + random.random() / 2), left)
        figures.count(retries=1, waited=wait)
        self._sleep(wait)

    def run(self, ask: Callable[[], T]) -> T:
        """The answer of `ask`, which is called again after a lost connection while retries are allowed.

        That alone is no progress: a server may answer every question, and fail at every write.
        """
        while True:
            try:
                answer = ask()
            except Disconnected as error:
                self.after(error)
            else:
                self._succeeded()
                return answer


def at_once(ask: Callable[[], T]) -> T:
    """The answer of `ask`, without waiting for a server that is away. One retry, as an idle connection may be dead."""
    try:
        return ask()
    except Disconnected:
        return ask()
