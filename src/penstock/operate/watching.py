"""A server that is looked at again and again. It may be away, and is found again. Knows connections; one thread at a
time may look.
"""

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from penstock.clients.jetstream.calls import Calls
from penstock.clients.nats.client import Connection
from penstock.clients.nats.options import NatsOptions
from penstock.errors import Disconnected, PenstockError
from penstock.operate.figures import Look, rated
from penstock.operate.looking import Looker, Refusals

# The longest wait for a connection and for an answer: who looks wants to know that a server is away.
PATIENCE = 5.0


@dataclass(frozen=True)
class Seen:
    """The newest look with rates, when it was, and what is wrong since. `look` is None before the first one."""

    look: Look | None = None
    at: float = 0.0  # seconds since 1970
    error: str = ""


class Watching:
    """One server, by the options of its connection. `names`: only these streams."""

    def __init__(self, options: NatsOptions, names: Sequence[str] = ()):
        patience = {
            "connect_timeout": min(PATIENCE, options.connect_timeout),
            "request_timeout": min(2 * PATIENCE, options.request_timeout),
        }
        self.options, self.names = options.model_copy(update=patience), tuple(names)
        self.seen = Seen()
        self._connection: Connection | None = None
        self._looker: Looker | None = None
        self._before: Look | None = None
        self._refusals = Refusals()  # they outlive a connection

    @property
    def place(self) -> str:
        """The addresses of the server."""
        return ",".join(self.options.servers)

    def look(self) -> Seen:
        """Look once. Where that fails, the error is in what is returned, and so is what was seen before."""
        try:
            now = self._looked()
        except Exception as error:
            # Anything but an error of ours is a fault here; who looks must not take old figures for new ones.
            why = (
                str(error) if isinstance(error, PenstockError) else f"Penstock failed: {type(error).__name__}: {error}."
            )
            with suppress(PenstockError):
                self.close()
            self.seen = Seen(self.seen.look, self.seen.at, why)
            return self.seen
        self.seen = Seen(rated(self._before, now), time.time(), "")
        self._before = now
        return self.seen

    def _looked(self) -> Look:
        if self._looker is not None:
            try:
                return self._looker.look()
            except Disconnected:  # as after a long time without a look; perhaps only this connection
                self.close()
        self._connection = Connection(self.options)
        self._looker = Looker(Calls(self._connection, self.options), self.names, refusals=self._refusals)
        return self._looker.look()

    def close(self) -> None:
        """Let go of the connection. The next look makes another one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._looker = None


class Patiently:
    """Looks in threads of its own, at most every `every` seconds, and only when somebody asks. Whoever asks never waits
    for a server that was away the last time.
    """

    def __init__(self, watching: Watching, every: float):
        self.watching, self.every = watching, every
        self._lock = threading.Lock()
        self._began, self._failures = float("-inf"), 0
        self._done: threading.Event | None = None

    def seen(self, wait: float = 0.0) -> Seen:
        """The newest that is known. A new look begins where that is old; `wait` so many seconds for it."""
        with self._lock:
            due = self._began + self.every * 2 ** min(self._failures, 4)
            if self._done is None and time.monotonic() >= due:
                self._began, self._done = time.monotonic(), threading.Event()
                threading.Thread(target=self._look, args=(self._done,), name="penstock-jetstream", daemon=True).start()
            done, is_away = self._done, self._failures > 0
        if done is not None and wait and not is_away:
            done.wait(wait)
        return self.watching.seen

    def _look(self, done: threading.Event) -> None:
        failed = True
        try:
            failed = bool(self.watching.look().error)
        finally:
            with self._lock:
                self._failures = self._failures + 1 if failed else 0
                self._done = None
            done.set()

    def close(self) -> None:
        """Let go of the connection, after a look that is on its way."""
        with self._lock:
            done = self._done
            self._began = float("inf")
        if done is not None:
            done.wait(PATIENCE)
        with suppress(PenstockError):
            self.watching.close()
