"""Where the shards of a stream end. Kinesis does not tell, so the driver reads the newest records. Knows the calls of
Kinesis; plans nothing.

Usually it reads on from where it was, and keeps what came, for tasks. Where too much has come for that, it looks for
the newest record by time, and leaves the rest to tasks.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

import pyarrow as pa

from penstock.clients.kinesis.calls import MOST_AT_ONCE, Calls, Page, ThrottledError
from penstock.connectors.kinesis.cursor import Cursor
from penstock.connectors.kinesis.options import KinesisSourceOptions
from penstock.connectors.kinesis.stretch import Stretch
from penstock.errors import Disconnected
from penstock.kit import figures
from penstock.planning.positions import END, Offsets

log = logging.getLogger("penstock")

# Pages with records of one look at a shard. What is further away is looked for by time.
PAGES = 4
# The first window in which the newest record is looked for, in milliseconds; each further one is so many times longer.
WINDOW, WIDER = 10_000, 8
LONGEST = 366 * 86_400_000  # Kinesis keeps records for a year at most
# Bytes of rows that are kept for tasks, of all shards together.
KEPT = 64 << 20


def no_records(shard: str) -> Disconnected:
    """The error for answers without records that lead nowhere."""
    return Disconnected(f"Kinesis gives no records of '{shard}', and says that there are some")


@dataclass
class Tip:
    """Where a shard ends: a cursor behind its newest record, and the last records before it."""

    cursor: Cursor
    stretch: Stretch
    polled: float = float("-inf")


class Tips:
    """The tips of the shards of a stream. `expired` is called with a cursor whose last record has expired."""

    def __init__(
        self, calls: Calls, options: KinesisSourceOptions, rows: Callable[[str, Page], pa.RecordBatch],
        expired: Callable[[Cursor], None],
    ):  # fmt: skip
        self._calls, self._options, self._rows, self._expired = calls, options, rows, expired
        self._tips: dict[str, Tip] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._warned = float("-inf")

    def get(self, shard: str) -> Stretch | None:
        """The last records of a shard; None before the first look at it."""
        return self._tips[shard].stretch if shard in self._tips else None

    def clear(self) -> None:
        """Forget all: it is another stream."""
        self._tips.clear()

    def look(self, shards: Iterable[str], at: Offsets, noted: Collection[str]) -> None:
        """Look at shards again where it is time to. `at`: where a query stands, from which shards are read on. `noted`:
        those of which it has a note.
        """
        latest = time.monotonic() - self._options.poll_interval
        due = [shard for shard in shards if shard not in self._tips or self._tips[shard].polled <= latest]
        self.all(lambda shard: self._look(shard, at[shard].next if shard in at else None, shard in noted), due)
        for tip in self._tips.values():
            if tip.stretch.bytes > KEPT // len(self._tips):
                tip.stretch.clear()

    def all(self, work: Callable[[str], None], shards: list[str]) -> None:
        """Do something for several shards, at once. Returns, or raises, when all are done."""
        if len(shards) < 2:
            for shard in shards:
                work(shard)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(MOST_AT_ONCE, "penstock-kinesis")
        running = [self._pool.submit(work, shard) for shard in shards]
        wait(running)
        for each in running:
            each.result()

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def read(self, cursor: Cursor, stretch: Stretch, pages: float, *, waits: bool = True) -> bool:
        """Read on, at most so many pages with records. False where that does not reach the end. `waits`: for a server
        that is busy or away, as long as the options say.
        """
        retry = self._options.retry(f"reading '{cursor.shard}'")
        while pages > 0:
            now = time.time_ns() // 1_000_000
            try:
                page = cursor.page()
                if cursor.is_stuck:
                    raise no_records(cursor.shard)
            except Disconnected as error:
                if not waits:
                    raise
                retry.after(error)
                continue
            retry.progress()
            if cursor.has_expired:
                self._expired(cursor)
            stretch.add(page, self._rows(cursor.shard, page), now)
            if page.next is None or page.behind == 0:
                return True
            pages -= bool(page.numbers)
        return False

    def _look(self, shard: str, at: int | None, is_noted: bool) -> None:
        tip = self._tips.get(shard)
        if tip is None:
            tip = self._first(shard, at, is_noted)
        elif tip.stretch.end != END:
            try:
                if not self.read(tip.cursor, tip.stretch, PAGES, waits=False):
                    tip = self._newest(shard)
            except ThrottledError as error:
                figures.count(retries=1)
                if time.monotonic() > self._warned + 60:
                    self._warned = time.monotonic()
                    log.warning("%s. New records of '%s' wait until the next look", error, shard)
        tip.polled = time.monotonic()
        self._tips[shard] = tip

    def _first(self, shard: str, at: int | None, is_noted: bool) -> Tip:
        if at is not None:
            tip = Tip(Cursor(self._calls, shard, at, is_noted=is_noted), Stretch(at))
            if self.read(tip.cursor, tip.stretch, PAGES):
                return tip
        return self._newest(shard)

    def _newest(self, shard: str) -> Tip:
        """Look for the newest record: in windows that become longer until one has records, and then in halves of that
        one, until its rest is short enough to be read.
        """
        now = time.time_ns() // 1_000_000
        window, none_since = WINDOW, now
        while True:
            is_all = window > LONGEST
            tip = self._since(shard, None if is_all else now - window)
            is_read = self.read(tip.cursor, tip.stretch, PAGES)
            if is_read and (tip.stretch.end or is_all):
                return tip
            if not is_read:
                break
            window, none_since = window * WIDER, now - window
        low = now - min(window, LONGEST)
        while none_since - low > 1000:
            middle = (low + none_since) // 2
            tip = self._since(shard, middle)
            if not self.read(tip.cursor, tip.stretch, PAGES):
                low = middle
            elif tip.stretch.end:
                return tip
            else:
                none_since = middle
        tip = self._since(shard, low)
        self.read(tip.cursor, tip.stretch, float("inf"))
        return tip

    def _since(self, shard: str, millis: int | None) -> Tip:
        """A tip that begins at a time, or with all that there is."""
        return Tip(Cursor(self._calls, shard, since=millis), Stretch(0 if millis is None else None))
