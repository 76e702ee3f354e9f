"""The rows of one task in one stream, each exactly once, whoever else writes there and however often Spark runs the
task.

The last record of every batch has a stamp: which task wrote it, how many rows of the task are stored up to here, and a
checksum of these rows. A batch is appended with the position that it must get, and every stamp before that position is
known. S2 refuses the batch if another writer was faster. So no attempt writes a row twice. Pure: knows no sockets and
no Spark.
"""

import zlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from penstock.clients.s2.appends import MOST_BYTES, MOST_RECORDS, Batch, Encoded, append_input, with_header
from penstock.kit.contract import Origin

HEADER = b"@penstock"
# Bytes that a stamp may add to a record, as S2 meters them. Batches leave room for it.
ROOM = 200


class Stamp(NamedTuple):
    """How many rows of a task are stored."""

    origin: Origin
    rows: int
    crc: int  # of these rows
    final: bool  # the task has no more rows

    def encode(self) -> bytes:
        """The value of the header."""
        query, batch, partition = self.origin
        return f"1;{query};{batch};{partition};{self.rows};{self.crc:08x};{'f' if self.final else ''}".encode()

    @classmethod
    def decode(cls, value: bytes) -> "Stamp | None":
        """The stamp in the value of a header; None where it is not a stamp, or one of another version."""
        parts = value.decode(errors="replace").split(";")
        try:
            version, query, batch, partition, rows, crc, final = parts
            stamp = cls(Origin(query, int(batch), int(partition)), int(rows), int(crc, 16), final == "f")
        except ValueError:
            return None
        return stamp if version == "1" else None


def mine(stamps: Iterable[Stamp], origin: Origin) -> Stamp | None:
    """The last stamp of this task; None where it has none. Stamps come in the order of the stream.

    An error where its query has written a later batch: this attempt was replaced long ago.
    """
    last = None
    for stamp in stamps:
        if stamp.origin.query == origin.query and stamp.origin.batch > origin.batch:
            raise origin.overtaken(stamp.origin.batch)
        if stamp.origin == origin:
            last = stamp
    return last


def settled(stamps: Iterable[Stamp], origin: Origin, *, alone: bool) -> bool:
    """Whether older records need not be searched: there is a stamp of an older batch of the query, or one of this task
    where only this task is searched for (`alone`).
    """
    return any(
        (alone and stamp.origin == origin) or (stamp.origin.query == origin.query and stamp.origin.batch < origin.batch)
        for stamp in stamps
    )


def missing(stamps: Iterable[Stamp], origin: Origin, partitions: Collection[int]) -> set[int]:
    """The partitions of this batch that have rows in the stream and are not among `partitions`."""
    mine = (stamp.origin for stamp in stamps)
    return {at for query, batch, at in mine if (query, batch) == origin[:2]} - set(partitions)


@dataclass
class _Piece:
    """Rows of the task that are not known to be stored."""

    first: int  # number of the first row
    rows: Encoded
    crc: int | None  # of all rows before them; None where it was not computed

    @property
    def end(self) -> int:
        return self.first + len(self.rows)


class Chain:
    """Cuts the rows of a task into batches with stamps, and knows which rows are stored.

    Every stamp before position `base` of the stream is known. The next batch goes to position `at`. A chain that is not
    `conditional` appends its batches wherever the stream ends.
    """

    def __init__(self, origin: Origin, at: int, *, conditional: bool = True, token: bytes | None = None):
        self.origin, self.conditional, self.token = origin, conditional, token
        self.base = self.at = at
        self.rows = 0  # added
        self.sent = 0
        self.stored = 0
        self.known = 0  # stored by other attempts
        self.final = False  # the stamp of the last stored row says that the task has no more rows
        self._pieces: list[_Piece] = []
        self._cursor = (0, 0)  # number of a row, and the checksum of all rows before it
        self._stamp: Stamp | None = None  # of another attempt, checked once its rows were added here

    def add(self, rows: Encoded) -> None:
        """Take more rows of the task. An error where another attempt stored other rows in their place."""
        self._pieces.append(_Piece(self.rows, rows, self._cursor[1] if self._cursor[0] == self.rows else None))
        self.rows += len(rows)
        self._check()

    def adopt(self, stamp: Stamp | None, at: int) -> None:
        """The stream was searched up to `at`, and `stamp` is the last one of this task in it.

        Rows that were sent and are not covered by the stamp did not arrive: they are sent again.
        """
        self.base = self.at = at
        if stamp is not None and stamp.rows > self.stored:
            self.known += stamp.rows - self.stored
            self._stamp = stamp
            self.stored, self.final = stamp.rows, stamp.final
        self.sent = self.stored
        self._check()

    def next(self, *, last: bool) -> Batch | None:
        """The next batch to send, behind those that have no answer yet; None where there is none.

        The last batch is given only with `last`: its stamp says that no more rows follow.
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
        self._save_checksum()
        stamp = Stamp(self.origin, end, self._cursor[1], end == self.rows)
        tail = bytes(part.part(len(part) - 1, len(part)).joined())
        data = data[: len(data) - len(tail)] + with_header(tail, HEADER, stamp.encode())
        match = self.at if self.conditional else None
        batch = Batch(end, len(part), self.at, append_input(data, match, self.token))
        self.at += len(part)
        self.sent = end
        return batch

    def acked(self, batch: Batch) -> None:
        """S2 has stored a batch."""
        self.base = batch.at + batch.records
        self.stored = max(self.stored, batch.end)
        self.final = self.stored == self.rows
        self._forget()

    def end(self) -> None:
        """All rows were added. An error where an earlier attempt stored more rows than these."""
        if self.conditional and self.stored > self.rows:
            raise self.origin.differs(f"it had at least {self.stored:,} rows then, and has {self.rows:,} now")
        if self.conditional and self.rows and self.stored == self.rows and not self.final:
            raise self.origin.differs(f"it had more than {self.rows:,} rows then")

    def _check(self) -> None:
        """Compare the rows that another attempt wrote with ours, as soon as ours were added."""
        stamp = self._stamp
        if stamp is not None and stamp.rows <= self.rows:
            if self._crc_at(stamp.rows) != stamp.crc:
                raise self.origin.differs(f"the first {stamp.rows:,} of them have another checksum")
            self._stamp, self._cursor = None, (stamp.rows, stamp.crc)
        self._forget()

    def _crc_at(self, row: int) -> int:
        """The checksum of all rows before `row`. The rows before the first piece are gone: `row` must not be one of
        them.
        """
        if self._cursor[0] == row:
            return self._cursor[1]
        at, crc = max((p.first, p.crc) for p in self._pieces if p.crc is not None and p.first <= row)
        for piece in self._pieces:
            if at <= piece.first < row:
                crc = zlib.crc32(piece.rows.part(0, min(row, piece.end) - piece.first).joined(), crc)
        return crc

    def _forget(self) -> None:
        """Drop pieces that are stored. The first piece kept knows the checksum of all rows before it."""
        stored = [piece for piece in self._pieces if piece.end <= self.stored]
        kept = self._pieces[len(stored) :]
        if stored and (not kept or kept[0].crc is None):
            self._cursor = (stored[-1].end, self._crc_at(stored[-1].end))
            self._save_checksum()
        self._pieces = kept

    def _save_checksum(self) -> None:
        """Keep the checksum at the cursor with the piece that begins there."""
        for piece in self._pieces:
            if piece.first == self._cursor[0]:
                piece.crc = self._cursor[1]


def _cut(rows: Encoded, low: int) -> int:
    """The end of the largest batch from row `low` on that S2 takes; at least one row."""
    metered = np.cumsum(rows.metered[low : low + MOST_RECORDS])
    return low + max(1, int(np.searchsorted(metered, MOST_BYTES - ROOM, side="right")))
