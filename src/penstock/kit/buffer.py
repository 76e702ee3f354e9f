"""Rows that arrived and are not committed yet, numbered as they came. For sources that cannot read a range twice.

Knows Arrow and locks; no server, no Spark. One thread adds rows, another takes them.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from penstock.kit import figures
from penstock.planning.positions import Bound, Offsets, Range

log = logging.getLogger("penstock")

# Memory that a batch takes besides its bytes. Messages that trickle in make batches of one row, where this is most of
# the memory, so small batches are joined.
COST = 8 << 10
# Batches smaller than this many bytes are joined, once this many new ones have come.
SMALL, FEW = 64 << 10, 32


class _Piece(NamedTuple):
    """Rows, the number of the first one, and the bytes of memory that they take."""

    first: int
    batch: pa.RecordBatch
    size: int

    @property
    def end(self) -> int:
        return self.first + len(self.batch)


class Buffer:
    """At most about `most` bytes of rows. Rows beyond that are counted, numbered, and dropped.

    Numbers begin with the clock in microseconds, so that those of a later run are higher than those of an earlier one.
    `follow` makes sure of it where the clock was put back. `fate` is logged of the rows of an earlier run.
    """

    def __init__(self, most: int, fate: str = "and are gone"):
        self.most, self.fate = most, fate
        self.first = self.next = time.time_ns() // 1000  # numbers of the first row kept, and of the next one to come
        self.dropped = 0
        self._pieces: deque[_Piece] = deque()
        self._young = 0  # pieces added since small ones were joined
        self._size = 0
        self._lock = threading.Lock()

    def room(self) -> int:
        """How many bytes may still come."""
        return max(0, self.most - self._size)

    @property
    def row_bytes(self) -> float:
        """The average size of the rows kept."""
        with self._lock:
            return self._size / max(1, sum(len(piece.batch) for piece in self._pieces))

    def add(self, batch: pa.RecordBatch, *, whole: bool = False) -> bool:
        """Add rows, as many as there is room for. `whole`: add all of them. False where rows were dropped."""
        with self._lock:
            piece = _piece(self.next, batch)
            if piece.size > self.room() or self._young >= FEW:
                self._join()
            kept = len(batch) if whole or piece.size <= self.room() else len(batch) * self.room() // piece.size
            if 0 < kept < len(batch):
                piece = _piece(self.next, batch.slice(0, kept))
            if kept:
                self._push(piece)
                self._young += 1
            self.dropped += len(batch) - kept
            figures.count(dropped=len(batch) - kept)
            self.next += len(batch)
            return kept == len(batch)

    def rows(self, start: int, end: int) -> list[pa.RecordBatch]:
        """The rows with these numbers that are kept. Logs those of an earlier run, which are not."""
        batches = []
        if end > self.next:
            self.follow(end)
        if start < self.first:
            gone = min(end, self.first) - start
            log.warning("%d messages were not committed by an earlier run, %s", gone, self.fate)
        with self._lock:
            for piece in self._pieces:
                low, high = max(start, piece.first) - piece.first, min(end, piece.end) - piece.first
                if low < high:
                    batches.append(piece.batch.slice(low, high - low))
        return batches

    def follow(self, at: int) -> None:
        """Numbers before `at` belong to an earlier run: raise the numbers of the rows kept, if need be."""
        with self._lock:
            by = max(0, at - self.first)
            self.first, self.next = self.first + by, self.next + by
            self._pieces = deque(piece._replace(first=piece.first + by) for piece in self._pieces)

    def skip(self) -> None:
        """Use a number for no row."""
        with self._lock:
            self.next += 1

    def release(self, end: int) -> list[pa.RecordBatch]:
        """Drop the rows before `end`, and return them."""
        released = []
        with self._lock:
            self.first = max(self.first, min(end, self.next))
            while self._pieces and self._pieces[0].first < end:
                piece = self._pieces.popleft()
                self._size -= piece.size
                released.append(piece.batch.slice(0, end - piece.first))
                if piece.end > end:
                    rest = _piece(end, piece.batch.slice(end - piece.first))
                    self._pieces.appendleft(rest)
                    self._size += rest.size
        return released

    def waiting(self) -> list[pa.RecordBatch]:
        """All rows kept."""
        with self._lock:
            return [piece.batch for piece in self._pieces]

    def _push(self, piece: _Piece) -> None:
        self._pieces.append(piece)
        self._size += piece.size

    def _join(self) -> None:
        """Join the small pieces at the end, as far as their numbers follow one another."""
        small: list[_Piece] = []
        while self._pieces and self._pieces[-1].size < SMALL:
            if small and self._pieces[-1].end != small[-1].first:
                break
            small.append(self._pieces.pop())
            self._size -= small[-1].size
        if small:
            self._push(_piece(small[-1].first, pa.concat_batches([piece.batch for piece in reversed(small)])))
        self._young = 0


def _piece(first: int, batch: pa.RecordBatch) -> _Piece:
    """A piece of these rows. A slice is copied, as it would keep all of what it was cut from in memory."""
    if batch.get_total_buffer_size() > batch.nbytes + COST:
        batch = pa.concat_batches([batch])
    return _Piece(first, batch, batch.get_total_buffer_size() + COST)


class BufferedSource:
    """What sources share that cannot be asked twice: one shard, whose rows are in a buffer from their arrival until
    Spark has committed them. A subclass fills the buffer, and decides what is in it (`bounds`) and when rows leave it
    (`commit`).
    """

    def __init__(self, shard: str, held: Buffer):
        self.shard, self.held = shard, held

    def begin(self) -> None:
        """Does nothing: a new query and one that resumes are the same."""

    def resume(self, at: Offsets, notes: Mapping[str, str]) -> None:
        """Number new messages after those of the last run."""
        if self.shard in at:
            self.held.follow(at[self.shard].next)

    def notes(self, at: Offsets) -> Mapping[str, str]:
        """There are none."""
        return {}

    def find(self, shard: str, timestamp: int) -> int:
        """The next number: no older message can be had."""
        return self.held.next

    def count(self, shard: str, positions: Sequence[int]) -> Sequence[int] | None:
        """None: positions are consecutive."""
        return None

    def ship(self, span: Range) -> list[pa.RecordBatch]:
        """The rows of a range that are held."""
        return self.held.rows(span.start, span.end)

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        """The rows of a range. Only in the process that holds them."""
        yield from self.ship(span)

    def bound(self) -> Bound:
        """The numbers of the rows that are held, and of the next one."""
        return Bound(self.held.first, self.held.next, row_bytes=self.held.row_bytes, transient=True)
