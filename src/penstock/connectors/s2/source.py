"""S2 streams read by sequence number: any range, as often as wanted. Plans nothing, and knows no Spark."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby, takewhile
from typing import TypeVar

import numpy as np
import pyarrow as pa

from penstock.arrow.types import TIMESTAMP
from penstock.clients.s2.appends import MOST_RECORDS
from penstock.clients.s2.calls import Calls, gaps
from penstock.clients.s2.http import PIPELINE
from penstock.clients.s2.reach import ApiError
from penstock.clients.s2.records import Records
from penstock.connectors.s2 import chain, sizes
from penstock.connectors.s2.options import S2SourceOptions
from penstock.errors import ConnectError, Disconnected
from penstock.kit.loss import LossReport
from penstock.planning.positions import Bound, Bounds, Loss, Offsets, Range

T = TypeVar("T")

# Streams whose records are looked at to learn their size.
WEIGHED = 16


class S2Source:
    """A source on one connection, opened with the first request."""

    def __init__(self, options: S2SourceOptions, columns: pa.Schema):
        self.options, self.columns, self.losses = options, columns, LossReport(options)
        self._calls = Calls(options)
        self._created: dict[str, str] = {}  # time of creation of the streams that exist
        self._first: dict[str, int] = {}
        self._tails: dict[str, int] = {}
        self._known: set[str] = set()  # every stream that existed, or was reported as missing
        self._until = float("-inf")  # when `_first` expires

    def check(self) -> None:
        """Refuse streams that do not exist."""
        self.bounds()

    def bounds(self) -> Bounds:
        """Both ends of every stream. Beginnings may be out of date by `discoveryInterval`; `read` checks them."""
        return self._ask(self._bounds)

    def find(self, shard: str, timestamp: int) -> int:
        """The first record not older than `timestamp`, or the tail. S2 keeps milliseconds, so it is rounded up."""
        milliseconds = -(-timestamp // 1000)
        sequence = self._ask(lambda: self._calls.at_time(shard, milliseconds))
        return self._tails.get(shard, 0) if sequence is None else sequence

    def count(self, shard: str, positions: Sequence[int]) -> Sequence[int] | None:
        """None: positions have no gaps but for a few command records."""
        return None

    def weigh(self, at: Offsets, bounds: Bounds, limit: int) -> Bounds:
        """The bounds, with the sizes of the next records in the streams that have most of them."""
        ahead = {name: bound.next - at[name].next for name, bound in bounds.items() if name in at}
        most = [name for name in sorted(ahead, key=lambda name: -ahead[name])[:WEIGHED] if ahead[name] > 0]
        places = {name: [at[name].next + distance for distance in sizes.places(ahead[name])] for name in most}
        requests = [(name, place) for name in most for place in places[name]]
        answers = iter(self._ask(lambda: self._calls.sizes(requests, sizes.BLOCK)))
        weighed = dict(bounds)
        for name in most:
            average = sizes.average([next(answers) for _ in places[name]], ahead[name], limit)
            weighed[name] = bounds[name]._replace(row_bytes=average)
        return weighed

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        """The rows of a range. Records that are missing were trimmed or have expired: they are reported as lost."""
        for planned in self.planned([span]):
            yield from self._read(planned)

    def read_many(self, spans: Sequence[Range]) -> Iterator[pa.RecordBatch]:
        """The rows of several ranges, in their order. Short ranges are requested together, and come in one batch."""
        left = self.planned(spans)
        while left:
            group = list(takewhile(lambda span: span.length <= MOST_RECORDS, left[:PIPELINE])) or left[:1]
            left = left[len(group) :]
            answers = self._read_short(group) if len(group) > 1 else {}
            for is_answered, neighbours in groupby(group, key=answers.__contains__):
                if is_answered:
                    ranges = list(neighbours)
                    yield from self._shown([span.shard for span in ranges], [answers[span] for span in ranges])
                else:
                    for span in neighbours:
                        yield from self._read(span)

    def planned(self, spans: Sequence[Range]) -> list[Range]:
        """The ranges whose streams are still the ones that they were planned for, by one request for all of them.

        A stream that was deleted, or deleted and made again, is reported as lost.
        """
        retry = self.options.retry(f"looking up '{spans[0].shard}'" if len(spans) == 1 else "looking up streams")
        return retry.run(lambda: self._ask(lambda: self._planned(spans)))

    def _planned(self, spans: Sequence[Range]) -> list[Range]:
        all_created = self._calls.named(span.shard for span in spans)
        same: list[Range] = []
        others: list[Range] = []
        for span in spans:
            created = all_created.get(span.shard)
            if created is not None and span.epoch in ("", created):
                same.append(span)
            else:
                others.append(span)
        tails = self._calls.tails([span.shard for span in others if span.shard in all_created])
        for span in others:
            if span.shard in tails:
                bound = Bound(0, tails[span.shard], all_created[span.shard])
                self.losses.lost([Loss(span.shard, span.start, bound, "recreated")])
            else:
                self.losses.lost([Loss(span.shard, span.start, None, "gone")])
        return same

    def _read(self, span: Range) -> Iterator[pa.RecordBatch]:
        for records in self.records(span):
            yield from self._shown([span.shard], [records])

    def _read_short(self, spans: Sequence[Range]) -> dict[Range, Records]:
        """The records of the ranges that were complete in one answer. The others are left to `_read`."""
        try:
            answers = self._calls.read_short([(span.shard, span.start, span.length) for span in spans])
        except Disconnected:
            self._calls.drop()
            return {}
        return {
            span: records
            for span, records in zip(spans, answers, strict=True)
            if len(records) == span.length
            and records.sequence[0] == span.start
            and records.sequence[-1] == span.end - 1
        }

    def records(self, span: Range) -> Iterator[Records]:
        """The records of a range that `planned` gave, command records included. Goes on after a lost connection."""
        at, retry = span.start, self.options.retry(f"reading '{span.shard}'")
        was_disconnected = False
        while at < span.end:
            try:
                if was_disconnected and not self._planned([span]):  # the stream may have been replaced meanwhile
                    return
                was_disconnected = False
                for records in self._calls.read(span.shard, at, span.end - at):
                    if not len(records):
                        continue  # a heartbeat
                    for low, high in gaps(records.sequence, at):
                        if low < span.end:
                            self._lost(span, low, min(high, span.end))
                    at = int(records.sequence[-1]) + 1
                    records = records.where(records.sequence < span.end)
                    retry.progress()
                    if len(records):
                        yield records
                if at < span.end:
                    at = self._after_short_answer(span, at)
                    if at < span.end:
                        retry.after(Disconnected("the answer ended early"))
            except Disconnected as error:
                self._calls.drop()
                retry.after(error)
                was_disconnected = True
            except ApiError as error:
                if not error.is_gone:
                    raise ConnectError(f"reading stream '{span.shard}' failed: {error}.") from None
                self.losses.lost([Loss(span.shard, at, None, "gone")])
                return

    def progress(self, at: Offsets) -> None:
        """Nothing to do: S2 keeps no positions of readers."""

    def commit(self, end: Offsets) -> None:
        """Nothing to do: records stay until they are trimmed or expire."""

    def close(self) -> None:
        """Give the connection back."""
        self._calls.close()

    def _bounds(self) -> Bounds:
        before, tails = self._created, self._look()
        if any(tails[name] < self._tails.get(name, 0) and before.get(name) == self._created[name] for name in tails):
            tails = self._look()  # a stream was made again between the list and its tail
        due = time.monotonic() >= self._until
        new = {name for name in tails if name not in self._first or before.get(name) != self._created[name]}
        self._first |= self._calls.firsts({name: tail for name, tail in tails.items() if due or name in new})
        if due:
            self._until = time.monotonic() + self.options.discovery_interval
        self._tails = tails
        return {name: Bound(min(self._first[name], tail), tail, self._created[name]) for name, tail in tails.items()}

    def _look(self) -> dict[str, int]:
        """The tails of the streams that exist. They are listed first, as asking for a tail may create the stream."""
        self._list()
        return self._calls.tails(list(self._created))

    def _list(self) -> None:
        """List the streams to read. A named stream that does not exist is reported as missing."""
        if self.options.names:
            self._created = self._calls.named(self.options.names)
            for name in self.options.names:
                if name in self._created or name in self._known:
                    continue
                error = partial(self._calls.missing, name, self.options.naming(name))
                self.losses.missing(name, error, nothing_left=False)
                self._known.add(name)
        else:
            self._created = self._calls.streams(self.options.stream_prefix or "")
        self._known |= self._created.keys()

    def _ask(self, question: Callable[[], T]) -> T:
        """The answer of S2. After a lost connection, the next question opens a new one."""
        try:
            return question()
        except Disconnected:
            self._calls.drop()
            raise
        except ApiError as error:
            raise ConnectError(f"S2 refuses: {error}.") from None

    def _after_short_answer(self, span: Range, at: int) -> int:
        """Where to read on after an answer that ended at `at`, before its range. Reports what was lost."""
        if not self._planned([span]):
            return span.end
        tail = self._calls.tails([span.shard]).get(span.shard)
        if tail is None:
            self.losses.lost([Loss(span.shard, at, None, "gone")])
        elif tail < span.end:
            self.losses.lost([Loss(span.shard, span.end, Bound(0, tail), "backwards")])
        else:
            answers = [records for records in self._calls.read(span.shard, at, 1) if len(records)]
            if answers and answers[0].sequence[0] < span.end:
                return at  # the stream has more of the range
            self._lost(span, at, span.end)
        return span.end

    def _lost(self, span: Range, low: int, high: int) -> None:
        self.losses.lost([Loss(span.shard, low, Bound(high, span.end), "trimmed")])

    def _shown(self, streams: Sequence[str], parts: Sequence[Records]) -> Iterator[pa.RecordBatch]:
        """Records as rows: one part from each stream. Without command records, unless the options include them."""
        if not self.options.include_command_records:
            parts = [part.where(~part.commands()) for part in parts]
        counts = [len(part) for part in parts]
        if sum(counts):
            names = pa.array(streams, pa.string()).take(pa.array(np.repeat(np.arange(len(parts)), counts)))
            yield self._rows(names, Records.joined(parts))

    def _rows(self, streams: pa.Array, records: Records) -> pa.RecordBatch:
        records = records.without(chain.HEADER)
        columns = {
            "value": records.value,
            "timestamp": pa.array(records.timestamp * 1000).view(TIMESTAMP),
            "stream": streams,
            "sequence": pa.array(records.sequence),
        }
        if "headers" in self.columns.names:
            columns["headers"] = records.headers()
        return pa.RecordBatch.from_arrays([columns[field.name] for field in self.columns], schema=self.columns)
