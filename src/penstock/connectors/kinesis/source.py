"""Shards of Kinesis read by sequence number: any range, as often as wanted. Knows no Spark.

A shard that was split or merged ends, and others follow it. Those are read when it is read to its end.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from penstock.arrow.types import HEADERS, TIMESTAMP
from penstock.clients.kinesis.calls import Calls, GoneError, Page, Shard, Summary
from penstock.connectors.kinesis.cursor import Cursor
from penstock.connectors.kinesis.options import KinesisSourceOptions
from penstock.connectors.kinesis.stretch import Stretch
from penstock.connectors.kinesis.tips import Tips, no_records
from penstock.errors import Disconnected, OptionError
from penstock.kit.contract import CLOCK_SLACK
from penstock.kit.loss import LossReport
from penstock.planning.positions import END, Bound, Bounds, Loss, Offsets, Range, share

HOUR = 3_600_000  # in milliseconds
# The last digits of a position, by which a note tells that it is of that one.
TELLING = 10**9
# A note of how far a query has read is renewed after this part of the time for which the stream keeps records.
RENEWED = 8


class KinesisSource:
    """One stream. Its driver knows where shards end, and tasks read ranges."""

    def __init__(self, options: KinesisSourceOptions, columns: pa.Schema):
        self.options, self.columns, self.losses = options, columns, LossReport(options)
        self._calls = Calls(options)
        self._tips = Tips(self._calls, options, self._rows, self._report_expired)
        self._walks: dict[str, tuple[Cursor, Stretch]] = {}  # records that were read to count them
        self._stream: Summary | None = None
        self._shards: dict[str, Shard] = {}
        self._listed_at = self._listed_until = float("-inf")
        self._at: Offsets = {}
        self._noted: Mapping[str, str] = {}  # of the last batch

    def check(self) -> None:
        """Refuse a stream that does not exist."""
        self._calls.summary()

    def bounds(self) -> Bounds:
        """The end of every shard, as far as it is known. They begin with 0, whatever the first number is."""
        self._list()
        is_open = [name for name, shard in self._shards.items() if not shard.is_closed]
        with self._as_listed():
            here = self._here()
            self._tips.look(is_open, here, {name for name in here if self._is_noted(name, here[name].next)})
        assert self._stream is not None
        return {name: Bound(0, self._end(shard), self._stream.created) for name, shard in self._shards.items()}

    def find(self, shard: str, timestamp: int) -> int:
        """The first record that is not older, or the end."""
        cursor = Cursor(self._calls, shard, since=-(-timestamp // 1000))  # Kinesis keeps milliseconds
        while True:
            page = cursor.page(1)
            if page.numbers:
                return page.numbers[0]
            if page.next is None or page.behind == 0:
                return self._end(self._shards[shard])
            if cursor.is_stuck:
                raise no_records(shard)

    def count(self, shard: str, positions: Sequence[int]) -> Sequence[int] | None:
        """None, as nothing can be counted. `limit` takes its place."""
        return None

    def in_order(self, at: Offsets, bounds: Bounds) -> Bounds:
        """The bounds, without records of shards whose parents are not read to their end."""
        return {
            name: bound if self._is_next(name, at) else bound._replace(next=at[name].next if name in at else 0)
            for name, bound in bounds.items()
        }

    def limit(self, at: Offsets, bounds: Bounds, rows: int | None, size: int | None) -> Bounds:
        """The bounds, moved back to the limits. To count records they must be read, which is done here."""
        waiting = {name: bound.next for name, bound in bounds.items() if name in at and at[name].next < bound.next}
        if (rows is None and size is None) or not waiting:
            return bounds
        with self._as_listed():
            self._tips.all(lambda name: self._walk(name, at[name].next, waiting[name], rows, size), list(waiting))
        ends = self._shares(at, waiting, rows, size)
        return {name: bound._replace(next=ends.get(name, bound.next)) for name, bound in bounds.items()}

    def fetched(self, span: Range) -> list[pa.RecordBatch] | None:
        """The rows of a range that the driver has read, to know where it ends."""
        stretches = (each for each in self._stretches(span.shard) if each.covers(span.start, span.end))
        stretch = next(stretches, None)
        return stretch.rows(span.start, span.end) if stretch is not None else None

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        """The rows of a range. Records that have expired meanwhile are reported as lost."""
        cursor = Cursor(self._calls, span.shard, span.start, is_noted=_noted(span.note, span.start)[0] > 0)
        note = span.note if cursor.is_noted else ""
        retry = self.options.retry(f"reading '{span.shard}'")
        while cursor.at < span.end:
            try:
                page = cursor.page()
                if cursor.is_stuck:
                    raise no_records(span.shard)
            except Disconnected as error:
                retry.after(error)
                continue
            except GoneError:
                self.losses.lost([Loss(span.shard, cursor.at, None, "gone")])
                return
            except OptionError:
                if self._same(span.shard, cursor.at, span.epoch) is not None:
                    raise
                return
            if cursor.has_expired and not self._is_whole(cursor, span.epoch, note):
                return
            if page.numbers:
                retry.progress()
                rows = self._rows(span.shard, page)
                yield rows.slice(0, sum(number < span.end for number in page.numbers))
            if page.next is None and span.end == END:
                return
            if not page.numbers and (page.next is None or page.behind == 0):
                if not self._is_whole(cursor, span.epoch, note):
                    return
                retry.after(Disconnected(f"'{span.shard}' ends at {cursor.at}, before the batch does"))

    def begin(self) -> None:
        """Does nothing: a new query may start anywhere."""

    def resume(self, at: Offsets, notes: Mapping[str, str]) -> None:
        """A query goes on."""
        self._at, self._noted = at, notes

    def notes(self, at: Offsets) -> Mapping[str, str]:
        """Of each shard, the time before which all records lie before `at`, where that is known, in milliseconds; for
        how many hours the stream keeps records; and the end of the position, which a rewind does not change.
        """
        assert self._stream is not None
        notes = {}
        for name, position in at.items():
            moment = self._read_up_to(name, position.next)
            before = self._at.get(name)
            if moment:
                notes[name] = f"{moment}/{self._stream.retention}/{position.next % TELLING}"
            elif name in self._noted and before is not None and before.next == position.next:
                notes[name] = self._noted[name]
        self._noted = notes
        return notes

    def is_outdated(self, notes: Mapping[str, str], new: Mapping[str, str]) -> bool:
        """Whether a shard is quiet for so long that the last record may expire before the next one comes."""
        assert self._stream is not None
        oldest = _now() - self._stream.retention * HOUR // RENEWED
        return any(_noted(notes.get(name, ""))[0] < oldest < _noted(note)[0] for name, note in new.items())

    def behind(self, at: Offsets) -> int:
        """How long ago all was read, of the shard where that is longest."""
        late = [name for name, shard in self._shards.items() if name in at and at[name].next < self._end(shard)]
        late += [name for name in self._shards if name in at and at[name].next != END and self._is_unseen(name)]
        times = [_noted(self._noted[name])[0] for name in late if name in self._noted]
        return max(1, _now() - min(times)) if times else int(bool(late))

    def progress(self, at: Offsets) -> None:
        """Remember where the query is."""
        self._at = at

    def commit(self, end: Offsets) -> None:
        """Let go of the rows that Spark has."""
        for name, position in end.items():
            for stretch in self._stretches(name):
                stretch.release(position.next)

    def close(self) -> None:
        """End the threads. The process keeps its client for the next task."""
        self._tips.close()

    def _list(self) -> None:
        """List the shards, where it is time to or one has ended."""
        has_ended = any(
            (stretch := self._tips.get(name)) is not None and stretch.end == END and not shard.is_closed
            for name, shard in self._shards.items()
        )
        if time.monotonic() < (self._listed_until if not has_ended else self._listed_at + self.options.poll_interval):
            return
        stream, self._shards = self._calls.summary(), self._calls.shards()
        if self._stream is not None and stream.created != self._stream.created:
            self._tips.clear()
            self._walks.clear()
        self._stream, self._listed_at = stream, time.monotonic()
        self._listed_until = self._listed_at + self.options.discovery_interval

    @contextmanager
    def _as_listed(self) -> Iterator[None]:
        """Lets shards be listed anew where they are not what they were: the planner asks again then."""
        try:
            yield
        except (GoneError, OptionError) as error:
            assert self._stream is not None
            if isinstance(error, OptionError) and self._calls.summary().created == self._stream.created:
                raise
            self._listed_until = float("-inf")
            raise Disconnected(f"the shards of '{self.options.stream}' have changed") from None

    def _end(self, shard: Shard) -> int:
        if shard.is_closed:
            return END
        stretch = self._tips.get(shard.id)
        known = self._here().get(shard.id)
        return max(known.next if known is not None else 0, stretch.end if stretch is not None else 0)

    def _here(self) -> Offsets:
        """Where the query stands, in the shards of the stream as it is now."""
        assert self._stream is not None
        return {name: at for name, at in self._at.items() if at.epoch in ("", self._stream.created)}

    def _is_unseen(self, name: str) -> bool:
        """Whether it is not known what a shard has now, as Kinesis does not answer."""
        stretch = self._tips.get(name)
        return stretch is not None and stretch.time < _now() - 10_000 - 10_000 * self.options.poll_interval

    def _is_next(self, name: str, at: Offsets) -> bool:
        """Whether all that a shard follows is read to its end, or has expired."""
        parents = [parent for parent in self._shards[name].parents if parent in self._shards]
        return all(parent in at and at[parent].next == END for parent in parents)

    def _is_noted(self, name: str, position: int) -> bool:
        return _noted(self._noted.get(name, ""), position)[0] > 0

    def _read_up_to(self, name: str, position: int) -> int:
        """The time before which all records of a shard lie before a position; 0 where that is not known."""
        if position == END:
            return 0
        return next(filter(None, (stretch.time_at(position) for stretch in self._stretches(name))), 0)

    def _stretches(self, name: str) -> list[Stretch]:
        """The records of a shard that the driver has: the newest ones, and those that it counted."""
        walked = self._walks.get(name)
        return [stretch for stretch in (self._tips.get(name), walked[1] if walked else None) if stretch is not None]

    def _walk(self, name: str, at: int, end: int, rows: int | None, size: int | None) -> None:
        """Read records of a shard from `at` on until there are enough, or they reach `end`."""
        tip = self._tips.get(name)
        if tip is not None and tip.covers(at, end):
            return
        cursor, stretch = self._walks.get(name, (None, Stretch(0)))
        if cursor is None or not stretch.covers(at, at):
            cursor = Cursor(self._calls, name, at, is_noted=self._is_noted(name, at))
            stretch = Stretch(at)
            self._walks[name] = cursor, stretch
        while stretch.end < end and (rows is None or stretch.count(at, end) < rows):
            if size is not None and stretch.size(at, end) >= size:
                return
            if self._tips.read(cursor, stretch, 1):
                return

    def _shares(self, at: Offsets, waiting: Mapping[str, int], rows: int | None, size: int | None) -> dict[str, int]:
        """Where each shard ends so that all together have no more than `rows` records, and about `size` bytes."""
        read: dict[str, Stretch] = {}
        for name, end in waiting.items():
            tip = self._tips.get(name)
            read[name] = tip if tip is not None and tip.covers(at[name].next, end) else self._walks[name][1]
        counts = {name: stretch.count(at[name].next, waiting[name]) for name, stretch in read.items()}
        shares = dict(counts)
        if size is not None:
            part = size // max(1, len(read))
            shares = {name: read[name].within(at[name].next, waiting[name], part) for name in read}
        if rows is not None:
            # Where there are more shards than rows, those that have waited longest come first.
            first = sorted(shares, key=lambda name: self._read_up_to(name, at[name].next))[:rows]
            shares = dict.fromkeys(shares, 0) | share({name: shares[name] for name in first}, rows)
        ends = {}
        for name, stretch in read.items():
            if shares[name] == counts[name] and (stretch.end >= waiting[name] or not counts[name]):
                ends[name] = waiting[name]
            elif shares[name]:
                ends[name] = stretch.after(at[name].next, shares[name])
            else:
                ends[name] = at[name].next
        return ends

    def _report_expired(self, cursor: Cursor) -> None:
        """What the driver reads on from has expired: report it where records may have gone with it."""
        at = self._at.get(cursor.shard)
        note = self._noted.get(cursor.shard, "")
        if at is not None and not self._is_noted(cursor.shard, at.next):
            note = ""
        self._is_whole(cursor, at.epoch if at is not None else "", note)

    def _same(self, shard: str, at: int, epoch: str) -> Summary | None:
        """The stream, if it is the one that a range was planned for. Else None, and it is reported."""
        stream = self._calls.summary()
        if epoch and stream.created != epoch:
            self.losses.lost([Loss(shard, at, Bound(0, 1, stream.created), "recreated")])
            return None
        return stream

    def _is_whole(self, cursor: Cursor, epoch: str, note: str) -> bool:
        """Whether a shard can be read on though the record before the position has expired. Reports what may be lost.
        Nothing is, if the query has looked at the shard since the oldest record that is kept could have come.
        """
        cursor.has_expired = False
        stream = self._same(cursor.shard, cursor.at, epoch)
        if stream is None:
            return False
        moment, kept = _noted(note)
        retention = min(kept or stream.retention, stream.retention)
        horizon = _now() - retention * HOUR
        if moment - CLOCK_SLACK // 1000 < horizon:
            since = f"since {_shown(moment)}" if moment else "for some time"
            self.losses.report(
                f"stream '{self.options.stream}' keeps records for {retention} hours, and the query has not read "
                f"'{cursor.shard}' {since}: what came until {_shown(horizon)} was deleted unread, if anything came",
                "Set failOnDataLoss=false to go on from the first record left, and raise the stream's retention for "
                "the next time.",
                key=(cursor.shard, cursor.at),
            )
        return True

    def _rows(self, shard: str, page: Page) -> pa.RecordBatch:
        count = len(page.numbers)
        columns: dict[str, Any] = {
            "value": pa.array(page.values, pa.binary()),
            "headers": pa.nulls(count, HEADERS),
            "timestamp": pa.array([millis * 1000 for millis in page.times], pa.int64()).view(TIMESTAMP),
            "stream": pa.repeat(pa.scalar(self.options.stream_name, pa.string()), count),
            "sequence": pa.array(map(str, page.numbers), pa.string()),
            "shard": pa.repeat(pa.scalar(shard, pa.string()), count),
            "partitionKey": pa.array(page.keys, pa.string()),
        }
        return pa.RecordBatch.from_arrays([columns[field.name] for field in self.columns], schema=self.columns)


def _now() -> int:
    return time.time_ns() // 1_000_000


def _noted(note: str, position: int | None = None) -> tuple[int, int]:
    """The time in a note, and the hours of retention; 0 where there is none, or it is not of that position."""
    if not note:
        return 0, 0
    moment, hours, place = map(int, note.split("/"))
    return (moment, hours) if position is None or position % TELLING == place else (0, 0)


def _shown(millis: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(millis / 1000))
