"""S2 streams read by position: any range, as often as wanted."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from penstock.connectors.s2 import chain
from penstock.connectors.s2.calls import ApiError, Calls, gaps
from penstock.connectors.s2.options import S2SourceOptions
from penstock.connectors.s2.wire import Records
from penstock.errors import ConnectError, DataLossError, Disconnected
from penstock.offsets import Bound, Bounds, Loss, Offsets, Range
from penstock.patience import Patience
from penstock.record import TIMESTAMP

log = logging.getLogger("penstock")
T = TypeVar("T")


class S2Source:
    """A source on one connection, taken at the first question."""

    def __init__(self, options: S2SourceOptions, columns: pa.Schema):
        self.options, self.columns = options, columns
        self._calls = Calls(options)
        self._made: dict[str, str] = {}  # when each stream was
        self._first: dict[str, tuple[int, int]] = {}
        self._tails: dict[str, int] = {}
        self._until = float("-inf")  # what is known of the streams, but for their tails, is good so long

    def bounds(self) -> Bounds:
        """Both ends of every stream. Where they begin is looked up now and then, and checked by whoever reads."""
        return self._patiently("looking at the streams", self._bounds)

    def find(self, shard: str, timestamp: int) -> int:
        """The first record not older than a moment: S2 keeps milliseconds."""
        found = self._patiently(f"reading '{shard}'", lambda: self._calls.at_time(shard, -(-timestamp // 1000)))
        return self._tails.get(shard, 0) if found is None else found

    def count(self, shard: str, positions: Sequence[int]) -> Sequence[int] | None:
        """Positions have no gaps but for a few command records."""
        return None

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        """The rows of a range. What is missing of it was trimmed or has expired."""
        for records in self.records(span):
            if not self.options.include_command_records:
                records = records.where(~records.commands())
            if len(records):
                yield self._rows(span.shard, records)

    def records(self, span: Range) -> Iterator[Records]:
        """The same as S2 has them, command records and all."""
        at, patience = (
            span.start,
            Patience(f"reading '{span.shard}'", self.options.max_retries, self.options.retry_delay),
        )
        while at < span.end:
            try:
                for records in self._calls.read(span.shard, at, span.end - at):
                    records = records.where(records.sequence < span.end)
                    patience.progress()
                    for low, high in gaps(records.sequence, at):
                        self._lost(span, low, high)
                    if len(records):
                        at = int(records.sequence[-1]) + 1
                        yield records
                    else:  # all of them lie behind the range
                        self._lost(span, at, span.end)
                        at = span.end
                    if at >= span.end:
                        break
                else:
                    at = self._short(span, at)
            except Disconnected as error:
                self._calls.drop()
                patience.after(error)
            except ApiError as error:
                if not error.is_gone:
                    raise ConnectError(f"reading stream '{span.shard}' failed: {error}.") from None
                self._report(Loss(span.shard, at, None, "gone"))
                return

    def progress(self, at: Offsets) -> None:
        """S2 has no place for it."""

    def commit(self, end: Offsets) -> None:
        """Records stay until they expire."""

    def close(self) -> None:
        """Give the connection back."""
        self._calls.close()

    def _bounds(self) -> Bounds:
        tails = self._calls.tails(list(self._made))
        odd = any(tails.get(name, -1) < last for name, last in self._tails.items() if name in self._made)
        if odd or time.monotonic() >= self._until:
            self._look_up()
            tails = self._calls.tails(list(self._made))
            self._first = self._calls.firsts(tails)
            self._until = time.monotonic() + self.options.discovery_interval
        self._tails = tails
        found = {}
        for name, tail in tails.items():
            first, size = self._first.get(name, (tail, 0))
            found[name] = Bound(min(first, tail), tail, self._made[name], float(size))
        return found

    def _look_up(self) -> None:
        before = self._made
        if self.options.streams:
            self._made = self._calls.named(self.options.streams)
            for name in self.options.streams:
                if name not in self._made and name not in before:
                    raise self._calls.missing(name)
        else:
            self._made = self._calls.streams(self.options.stream_prefix or "")

    def _patiently(self, what: str, ask: Callable[[], T]) -> T:
        patience = Patience(what, self.options.max_retries, self.options.retry_delay)
        while True:
            try:
                return ask()
            except Disconnected as error:
                used = self._calls.used
                self._calls.drop()
                if not self._tails and not used:
                    raise  # at .load() the user is waiting: say it at once
                patience.after(error)
            except ApiError as error:
                raise ConnectError(f"S2 refuses: {error}.") from None

    def _short(self, span: Range, at: int) -> int:
        """An answer ended before its range: why, and where to go on."""
        tail = self._calls.tails([span.shard]).get(span.shard)
        if tail is None:
            self._report(Loss(span.shard, at, None, "gone"))
        elif tail < span.end:
            self._report(Loss(span.shard, span.end, Bound(0, tail), "backwards"))
        elif at < span.end:
            again = next(self._calls.read(span.shard, at, 1), None)
            if again is not None and again.sequence[0] == at:
                self._calls.drop()
                return at  # it is there after all
            self._lost(span, at, span.end)
        return span.end

    def _lost(self, span: Range, low: int, high: int) -> None:
        self._report(Loss(span.shard, low, Bound(high, span.end), "trimmed"))

    def _report(self, loss: Loss) -> None:
        if self.options.fail_on_data_loss:
            raise DataLossError(f"stream {loss}. {loss.remedy}")
        log.warning("failOnDataLoss=false, going on: stream %s", loss)

    def _rows(self, stream: str, records: Records) -> pa.RecordBatch:
        records = records.without(chain.HEADER)
        made: dict[str, Callable[[], Any]] = {
            "value": lambda: records.value,
            "headers": records.headers,
            "timestamp": lambda: pa.array(records.timestamp * 1000).view(TIMESTAMP),
            "stream": lambda: pa.repeat(pa.scalar(stream, pa.string()), len(records)),
            "sequence": lambda: pa.array(records.sequence),
        }
        return pa.RecordBatch.from_arrays([made[field.name]() for field in self.columns], schema=self.columns)
