"""S2 streams read by position: any range, as often as wanted."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby, takewhile
from typing import Any, TypeVar

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

log = logging.getLogger("penstock")
T = TypeVar("T")

# Of so many streams the sizes of records are looked at.
WEIGHED = 16


class S2Source:
    """A source on one connection, taken at the first question."""

    def __init__(self, options: S2SourceOptions, columns: pa.Schema):
        self.options, self.columns, self.losses = options, columns, LossReport(options)
        self._calls = Calls(options)
        self._made: dict[str, str] = {}  # when each stream was
        self._first: dict[str, int] = {}
        self._tails: dict[str, int] = {}
        self._known: set[str] = set()  # every stream that was ever there
        self._until = float("-inf")  # when the cached starts of streams expire

    def check(self) -> None:
        """Refuse streams that are not there."""
        self.bounds()

    def bounds(self) -> Bounds:
        """Both ends of every stream. Where they begin is looked up now and then, and checked by whoever reads."""
        return self._ask(self._bounds)

    def find(self, shard: str, timestamp: int) -> int:
        """The first record not older than a moment: S2 keeps milliseconds."""
        found = self._ask(lambda: self._calls.at_time(shard, -(-timestamp // 1000)))
        return self._tails.get(shard, 0) if found is None else found

    def count(self, shard: str, positions: Sequence[int]) -> Sequence[int] | None:
        """Positions have no gaps but for a few command records."""
        return None

    def weigh(self, at: Offsets, bounds: Bounds, limit: int) -> Bounds:
        """The bounds with the sizes of the records ahead, in the streams that have most of them."""
        ahead = {name: bound.next - at[name].next for name, bound in bounds.items() if name in at}
        most = [name for name in sorted(ahead, key=lambda name: -ahead[name])[:WEIGHED] if ahead[name] > 0]
        places = {name: [at[name].next + far for far in sizes.places(ahead[name])] for name in most}
        asked = [(name, place) for name in most for place in places[name]]
        answers = iter(self._ask(lambda: self._calls.sizes(asked, sizes.BLOCK)))
        found = dict(bounds)
        for name in most:
            average = sizes.average([next(answers) for _ in places[name]], ahead[name], limit)
            found[name] = bounds[name]._replace(row_bytes=average)
        return found

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        """The rows of a range. What is missing of it was trimmed or has expired."""
        for same in self.planned([span]):
            yield from self._read(same)

    def read_many(self, spans: Sequence[Range]) -> Iterator[pa.RecordBatch]:
        """The rows of several ranges, in their order: short ones are asked for together, and come in one batch."""
        left = self.planned(spans)
        while left:
            some = list(takewhile(lambda span: len(span) <= MOST_RECORDS, left[:PIPELINE])) or left[:1]
            left = left[len(some) :]
            answers = self._together(some) if len(some) > 1 else {}
            for whole, group in groupby(some, answers.__contains__):
                if whole:
                    together = list(group)
                    yield from self._shown([span.shard for span in together], [answers[span] for span in together])
                    continue
                for span in group:
                    yield from self._read(span)

    def planned(self, spans: Sequence[Range]) -> list[Range]:
        """The ranges whose streams are still those that they were planned for, by one question for all of them. A
        stream that is gone or was made again is an error, or logged.
        """
        retry = self.options.retry(f"looking up '{spans[0].shard}'" if len(spans) == 1 else "looking up streams")
        return retry.run(lambda: self._ask(lambda: self._planned(spans)))

    def _planned(self, spans: Sequence[Range]) -> list[Range]:
        made = self._calls.named(span.shard for span in spans)
        same: list[Range] = []
        others: list[Range] = []
        for span in spans:
            life = made.get(span.shard)
            (same if life is not None and span.epoch in ("", life) else others).append(span)
        tails = self._calls.tails([span.shard for span in others if span.shard in made])
        for span in others:
            if span.shard in tails:
                bound = Bound(0, tails[span.shard], made[span.shard])
                self.losses.lost([Loss(span.shard, span.start, bound, "recreated")])
            else:
                self.losses.lost([Loss(span.shard, span.start, None, "gone")])
        return same

    def _read(self, span: Range) -> Iterator[pa.RecordBatch]:
        for records in self.records(span):
            yield from self._shown([span.shard], [records])

    def _together(self, spans: Sequence[Range]) -> dict[Range, Records]:
        """The records of the ranges that one answer each was enough for; whatever is odd is left to `read`."""
        try:
            answers = self._calls.read_short([(span.shard, span.start, len(span)) for span in spans])
        except Disconnected:
            self._calls.drop()
            return {}
        return {
            span: records
            for span, records in zip(spans, answers, strict=True)
            if len(records) == len(span) and records.sequence[0] == span.start and records.sequence[-1] == span.end - 1
        }

    def records(self, span: Range) -> Iterator[Records]:
        """The records of a range whose stream is the one planned for, command records and all."""
        at, retry = span.start, self.options.retry(f"reading '{span.shard}'")
        away = False
        while at < span.end:
            try:
                if away and not self._planned([span]):  # much may have happened meanwhile
                    return
                away = False
                for records in self._calls.read(span.shard, at, span.end - at):
                    if not len(records):
                        continue  # only a sign of life
                    for low, high in gaps(records.sequence, at):
                        if low < span.end:
                            self._lost(span, low, min(high, span.end))
                    at = int(records.sequence[-1]) + 1
                    records = records.where(records.sequence < span.end)
                    retry.progress()
                    if len(records):
                        yield records
                if at < span.end:
                    at = self._short(span, at)
                    retry.after(Disconnected("the answer ended early")) if at < span.end else None
            except Disconnected as error:
                self._calls.drop()
                retry.after(error)
                away = True
            except ApiError as error:
                if not error.is_gone:
                    raise ConnectError(f"reading stream '{span.shard}' failed: {error}.") from None
                self.losses.lost([Loss(span.shard, at, None, "gone")])
                return

    def progress(self, at: Offsets) -> None:
        """S2 has no place for it."""

    def commit(self, end: Offsets) -> None:
        """Records stay until they expire."""

    def close(self) -> None:
        """Give the connection back."""
        self._calls.close()

    def _bounds(self) -> Bounds:
        before, tails = self._made, self._look()
        if any(tails[name] < self._tails.get(name, 0) and before.get(name) == self._made[name] for name in tails):
            tails = self._look()  # made again just behind the list
        due = time.monotonic() >= self._until
        new = {name for name in tails if name not in self._first or before.get(name) != self._made[name]}
        self._first |= self._calls.firsts({name: tail for name, tail in tails.items() if due or name in new})
        if due:
            self._until = time.monotonic() + self.options.discovery_interval
        self._tails = tails
        return {name: Bound(min(self._first[name], tail), tail, self._made[name]) for name, tail in tails.items()}

    def _look(self) -> dict[str, int]:
        """The tails of the streams that are there, by the list of them: a look at one that is gone may make it."""
        self._look_up()
        return self._calls.tails(list(self._made))

    def _look_up(self) -> None:
        if self.options.names:
            self._made = self._calls.named(self.options.names)
            for name in self.options.names:
                if name in self._made or name in self._known:
                    continue
                error = partial(self._calls.missing, name, self.options.naming(name))
                self.losses.missing(name, error, nothing_left=False)
                self._known.add(name)
        else:
            self._made = self._calls.streams(self.options.stream_prefix or "")
        self._known |= self._made.keys()

    def _ask(self, question: Callable[[], T]) -> T:
        """The answer; where the connection broke, the next question takes a new one."""
        try:
            return question()
        except Disconnected:
            self._calls.drop()
            raise
        except ApiError as error:
            raise ConnectError(f"S2 refuses: {error}.") from None

    def _short(self, span: Range, at: int) -> int:
        """An answer ended before its range: why, and where to go on."""
        if not self._planned([span]):
            return span.end
        tail = self._calls.tails([span.shard]).get(span.shard)
        if tail is None:
            self.losses.lost([Loss(span.shard, at, None, "gone")])
        elif tail < span.end:
            self.losses.lost([Loss(span.shard, span.end, Bound(0, tail), "backwards")])
        else:
            left = [records for records in self._calls.read(span.shard, at, 1) if len(records)]
            if left and left[0].sequence[0] < span.end:
                return at  # there is more after all
            self._lost(span, at, span.end)
        return span.end

    def _lost(self, span: Range, low: int, high: int) -> None:
        self.losses.lost([Loss(span.shard, low, Bound(high, span.end), "trimmed")])

    def _shown(self, streams: Sequence[str], parts: Sequence[Records]) -> Iterator[pa.RecordBatch]:
        """Records of some streams, one part of each, as rows; command records only where they are asked for."""
        if not self.options.include_command_records:
            parts = [part.where(~part.commands()) for part in parts]
        counts = [len(part) for part in parts]
        if sum(counts):
            names = pa.array(streams, pa.string()).take(pa.array(np.repeat(np.arange(len(parts)), counts)))
            yield self._rows(names, Records.joined(parts))

    def _rows(self, streams: pa.Array, records: Records) -> pa.RecordBatch:
        records = records.without(chain.HEADER)
        made: dict[str, Callable[[], Any]] = {
            "value": lambda: records.value,
            "headers": records.headers,
            "timestamp": lambda: pa.array(records.timestamp * 1000).view(TIMESTAMP),
            "stream": lambda: streams,
            "sequence": lambda: pa.array(records.sequence),
        }
        return pa.RecordBatch.from_arrays([made[field.name]() for field in self.columns], schema=self.columns)
