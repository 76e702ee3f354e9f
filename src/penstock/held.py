"""Rows that arrived and are not committed yet, numbered as they came. For sources that cannot be asked twice.

Knows Arrow and locks; no server, no Spark. One thread adds, another takes.
"""

import logging
import threading
import time
from collections import deque

import pyarrow as pa

log = logging.getLogger("penstock")


class Held:
    """At most about `most` bytes; what comes beyond that is counted, numbered, and dropped.

    Numbers begin with the microsecond of the clock, so that those of a later run lie behind those of an earlier one.
    """

    def __init__(self, most: int):
        self.most = most
        self.first = self.next = time.time_ns() // 1000  # of the rows that are here, and of the next one to come
        self.dropped = 0
        self._batches: deque[tuple[int, pa.RecordBatch]] = deque()
        self._size = 0
        self._lock = threading.Lock()

    def room(self) -> int:
        """How many bytes may still come."""
        return max(0, self.most - self._size)

    @property
    def row_bytes(self) -> float:
        """The average size of the rows that are here."""
        with self._lock:
            return self._size / max(1, sum(len(batch) for _, batch in self._batches))

    def add(self, batch: pa.RecordBatch) -> bool:
        """Take rows in; False where there was no room for them."""
        with self._lock:
            fits = bool(self._size + batch.nbytes <= self.most)
            if fits:
                self._batches.append((self.next, batch))
                self._size += batch.nbytes
            else:
                self.dropped += len(batch)
            self.next += len(batch)
            return fits

    def rows(self, start: int, end: int) -> list[pa.RecordBatch]:
        """The rows with these numbers, as far as they are here."""
        found = []
        if start < self.first:
            log.warning("%d messages were not committed by an earlier run, and are gone", min(end, self.first) - start)
        with self._lock:
            for first, batch in self._batches:
                low, high = max(start, first) - first, min(end, first + len(batch)) - first
                if low < high:
                    found.append(batch.slice(low, high - low))
        return found

    def release(self, end: int) -> list[pa.RecordBatch]:
        """Forget the rows before `end`, and give them back once more. Batches are let go of whole."""
        gone = []
        with self._lock:
            self.first = max(self.first, min(end, self.next))
            while self._batches and self._batches[0][0] < end:
                first, batch = self._batches.popleft()
                self._size -= batch.nbytes
                if first + len(batch) <= end:
                    gone.append(batch)
                    continue
                gone.append(batch.slice(0, end - first))
                # A copy, or the whole of the old batch would stay in memory for the rest of it.
                rest = pa.Table.from_batches([batch.slice(end - first)]).combine_chunks().to_batches()[0]
                self._batches.appendleft((end, rest))
                self._size += rest.nbytes
                break
        return gone

    def waiting(self) -> list[pa.RecordBatch]:
        """All rows that are here."""
        with self._lock:
            return [batch for _, batch in self._batches]
