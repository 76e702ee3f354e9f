"""The rows of one task in one stream, each once, whoever else writes there and however often the task is tried.

The last record of every batch is stamped with whose it is, how many rows of its task are stored with it, and a checksum
of them. A batch is appended only at the place up to which every stamp is known, and S2 refuses it elsewhere: so nothing
is written twice, by this attempt or by another one. Pure: knows no sockets and no Spark.
"""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from penstock.clients.s2.appends import MOST_BYTES, MOST_RECORDS, Batch, Encoded, append_input, with_header
from penstock.kit.contract import Origin

HEADER = b"@penstock"
# What a stamp may add to a record, as S2 counts it: batches leave room for it.
ROOM = 160


class Stamp(NamedTuple):
    """How far a task is."""

    origin: Origin
    rows: int
    crc: int
    final: bool

    def encode(self) -> bytes:
        """The value of the header."""
        query, batch, partition = self.origin
        return f"1;{query};{batch};{partition};{self.rows};{self.crc:08x};{'f' if self.final else ''}".encode()

    @classmethod
    def decode(cls, value: bytes) -> "Stamp | None":
        """From the value of a header; None where it is no stamp that we know."""
        parts = value.decode(errors="replace").split(";")
        try:
            version, query, batch, partition, rows, crc, final = parts
            stamp = cls(Origin(query, int(batch), int(partition)), int(rows), int(crc, 16), final == "f")
        except ValueError:
            return None
        return stamp if version == "1" else None


def mine(stamps: Iterable[Stamp], origin: Origin) -> Stamp | None:
    """The last stamp of this task among some, in the order of the stream. A later batch of its query means that this
    attempt is long over.
    """
    found = None
    for stamp in stamps:
        if stamp.origin.query == origin.query and stamp.origin.batch > origin.batch:
            raise origin.overtaken(stamp.origin.batch)
        if stamp.origin == origin:
            found = stamp
    return found


def settled(stamps: Iterable[Stamp], origin: Origin, *, alone: bool) -> bool:
    """Whether these stamps show that what lies before them is of no concern: there is one of an older batch, or where
    the task is `alone` in asking, one of its own.
    """
    return any(
        (alone and stamp.origin == origin) or (stamp.origin.query == origin.query and stamp.origin.batch < origin.batch)
        for stamp in stamps
    )


@dataclass
class _Piece:
    """Rows that are not known to be stored, from row `first` on."""

    first: int
    rows: Encoded
    crc: int | None  # of all rows before them, as far as that is known

    @property
    def end(self) -> int:
        return self.first + len(self.rows)


class Chain:
    """Cuts rows into batches with stamps, and knows which rows are stored.

    `base` is the place in the stream up to which every stamp is known, `at` where the next batch goes. Batches of
    unconditional chains go wherever there is room.
    """

    def __init__(self, origin: Origin, at: int, *, conditional: bool = True, token: bytes | None = None):
        self.origin, self.conditional, self.token = origin, conditional, token
        self.base = self.at = at
        self.rows = self.stored = self.sent = self.known = 0
        self.final = False  # the stamp of the last row that is stored says that there are no more
        self._pieces: list[_Piece] = []
        self._cursor = (0, 0)  # a row, and the checksum of all before it
        self._stamp: Stamp | None = None  # of another attempt, to be checked when its rows come by

    def add(self, rows: Encoded) -> None:
        """More rows of the task."""
        self._pieces.append(_Piece(self.rows, rows, self._cursor[1] if self._cursor[0] == self.rows else None))
        self.rows += len(rows)
        self._check()

    def adopt(self, stamp: Stamp | None, at: int) -> None:
        """Another look: everything before `at` is known, and this is the last stamp of this task in it.

        What was sent and is not among it did not arrive.
        """
        self.base = self.at = at
        if stamp is not None and stamp.rows > self.stored:
            self.known += stamp.rows - self.stored
            self._stamp = stamp
            self.stored, self.final = stamp.rows, stamp.final
        self.sent = self.stored
        self._check()

    def next(self, *, last: bool) -> Batch | None:
        """The next batch to send, at the end of those that are under way; None where there is none yet.

        A batch that may be the last one waits until `last` says whether it is.
        """
        if self.sent >= self.rows:
            return None
        piece = next(p for p in self._pieces if p.end > self.sent)
        low = self.sent - piece.first
        high = _cut(piece.rows, low)
        end = piece.first + high
        if end == self.rows and not last:
            return None
        part = piece.rows.part(low, high)
        data = bytes(part.joined())
        self._cursor = (end, zlib.crc32(data, self._crc_at(self.sent)))
        self._note()
        stamp = Stamp(self.origin, end, self._cursor[1], end == self.rows)
        tail = bytes(part.part(len(part) - 1, len(part)).joined())
        data = data[: len(data) - len(tail)] + with_header(tail, HEADER, stamp.encode())
        match = self.at if self.conditional else None
        batch = Batch(end, len(part), self.at, append_input(data, match, self.token))
        self.at += len(part)
        self.sent = end
        return batch

    def acked(self, batch: Batch) -> None:
        """A batch is stored."""
        self.base = batch.at + batch.records
        self.stored = max(self.stored, batch.end)
        self.final = self.stored == self.rows
        self._forget()

    def end(self) -> None:
        """There are no more rows: are they those of the first time?"""
        if self.conditional and self.stored > self.rows:
            raise self.origin.differs(f"it had at least {self.stored:,} rows then, and has {self.rows:,} now")
        if self.conditional and self.rows and self.stored == self.rows and not self.final:
            raise self.origin.differs(f"it had more than {self.rows:,} rows then")

    def _check(self) -> None:
        """Compare the rows that another attempt wrote with ours, as soon as these are there."""
        stamp = self._stamp
        if stamp is not None and stamp.rows <= self.rows:
            if self._crc_at(stamp.rows) != stamp.crc:
                raise self.origin.differs(f"the first {stamp.rows:,} of them have another checksum")
            self._stamp, self._cursor = None, (stamp.rows, stamp.crc)
        self._forget()

    def _crc_at(self, row: int) -> int:
        """The checksum of all rows before `row`, which must not be older than those that are kept."""
        if self._cursor[0] == row:
            return self._cursor[1]
        at, crc = max((p.first, p.crc) for p in self._pieces if p.crc is not None and p.first <= row)
        for piece in self._pieces:
            if at <= piece.first < row:
                crc = zlib.crc32(piece.rows.part(0, min(row, piece.end) - piece.first).joined(), crc)
        return crc

    def _forget(self) -> None:
        """Let go of rows that are stored. The first ones kept know the checksum of what went before."""
        gone = [piece for piece in self._pieces if piece.end <= self.stored]
        left = self._pieces[len(gone) :]
        if gone and (not left or left[0].crc is None):
            self._cursor = (gone[-1].end, self._crc_at(gone[-1].end))
            self._note()
        self._pieces = left

    def _note(self) -> None:
        """Keep the checksum at the cursor with the rows that begin there."""
        for piece in self._pieces:
            if piece.first == self._cursor[0]:
                piece.crc = self._cursor[1]


def _cut(rows: Encoded, low: int) -> int:
    """Where a batch ends that begins at `low`: as large as S2 takes it."""
    metered = np.cumsum(rows.metered[low : low + MOST_RECORDS])
    return low + max(1, int(np.searchsorted(metered, MOST_BYTES - ROOM, side="right")))
