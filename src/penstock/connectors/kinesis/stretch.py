"""Records of a shard that one process has read without a gap. Pure: knows no server, no Spark."""

from bisect import bisect_left
from typing import NamedTuple

import pyarrow as pa

from penstock.clients.kinesis.calls import Page
from penstock.planning.positions import END


class _Piece(NamedTuple):
    numbers: list[int]
    times: list[int]
    rows: pa.RecordBatch


class Stretch:
    """All records of a shard from a position on, or from the first one that comes. `time`: what was stored before it
    lies before the end; in milliseconds. `bytes`: what the rows take.
    """

    def __init__(self, start: int | None):
        self.start, self.end = start, start or 0
        self.time = self.bytes = 0
        self._pieces: list[_Piece] = []

    def add(self, page: Page, rows: pa.RecordBatch, now: int) -> None:
        """More records, which follow the last ones. `now`: when they were asked for, in milliseconds."""
        if page.numbers:
            assert page.numbers[0] >= self.end, "records that are there already"
            if self.start is None:
                self.start = page.numbers[0]
            self._pieces.append(_Piece(page.numbers, page.times, rows))
            self.end, self.bytes = page.numbers[-1] + 1, self.bytes + rows.nbytes
            self.time = page.times[-1]
        if page.behind == 0:
            self.time = max(self.time, now)
        if page.next is None:
            self.end = END

    def covers(self, start: int, end: int) -> bool:
        """Whether it has all records of a range."""
        return self.start is not None and self.start <= start and end <= self.end

    def rows(self, start: int, end: int) -> list[pa.RecordBatch]:
        """The records of a range."""
        batches = []
        for piece in self._pieces:
            low, high = bisect_left(piece.numbers, start), bisect_left(piece.numbers, end)
            if low < high:
                batches.append(piece.rows.slice(low, high - low))
        return batches

    def count(self, start: int, end: int) -> int:
        """How many records a range has."""
        return sum(map(len, self.rows(start, end)))

    def size(self, start: int, end: int) -> int:
        """How many bytes the rows of a range take."""
        return sum(batch.nbytes for batch in self.rows(start, end))

    def after(self, start: int, records: int) -> int:
        """The position behind so many records from `start` on."""
        for piece in self._pieces:
            low = bisect_left(piece.numbers, start)
            if records <= len(piece.numbers) - low:
                return piece.numbers[low + records - 1] + 1
            records -= len(piece.numbers) - low
        return self.end

    def time_at(self, position: int) -> int:
        """The time before which all records lie before a position: when the record before it was stored, or, at the
        end, when that was looked for. 0 where it is not known.
        """
        if position == self.end:
            return self.time
        for piece in self._pieces:
            place = bisect_left(piece.numbers, position)
            if place > 0 and piece.numbers[place - 1] == position - 1:
                return piece.times[place - 1]
        return 0

    def within(self, start: int, end: int, size: int) -> int:
        """How many records from `start` on take about `size` bytes; at least one, if there is one."""
        count = 0
        for batch in self.rows(start, end):
            if batch.nbytes > size:
                return max(1, count + int(len(batch) * size / batch.nbytes))
            count, size = count + len(batch), size - batch.nbytes
        return count

    def release(self, before: int) -> None:
        """Let go of the records before a position."""
        while self._pieces and self._pieces[0].numbers[-1] < before:
            piece = self._pieces.pop(0)
            self.start, self.bytes = piece.numbers[-1] + 1, self.bytes - piece.rows.nbytes

    def clear(self) -> None:
        """Let go of all records. It goes on at its end."""
        self._pieces, self.start, self.bytes = [], self.end, 0
