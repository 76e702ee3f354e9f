"""JetStream as a log: a shard is a stream, a position its sequence, an epoch its time of creation.

Nothing on the server is needed to go on reading: consumers are made for a range and deleted after it.
"""

import logging
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa

from penstock.connectors.jetstream import api, engines
from penstock.connectors.jetstream.admission import admit, filters_for
from penstock.connectors.jetstream.calls import ApiError, Calls
from penstock.connectors.jetstream.options import JetStreamOptions
from penstock.connectors.jetstream.upkeep import Upkeep
from penstock.connectors.nats.client import Denied, Disconnected, connect, keep
from penstock.errors import ConnectError, DataLossError, OptionError, PenstockError
from penstock.offsets import Bound, Bounds, Offsets, Range
from penstock.plan import REMEDY

log = logging.getLogger("penstock")
T = TypeVar("T")

# DIRECT.GET saves making a consumer; a consumer has the smaller frames. They break even near here.
SMALL = 500
# A task goes on by itself after a lost connection, this often without a single row; then Spark retries it.
ATTEMPTS = 5


class JetStreamSource:
    """A source on one connection, taken when first needed."""

    def __init__(self, options: JetStreamOptions, columns: pa.Schema):
        self.options, self.columns = options, columns
        self._calls: Calls | None = None
        self._names: list[str] = []
        self._names_until = float("-inf")
        self._seen: dict[str, api.StreamInfo] = {}
        self._upkeep = Upkeep(options)
        self._warned = False

    def bounds(self) -> Bounds:
        """Both ends of every stream. A stream that existed before and is gone now is left out."""
        return self._patiently(self._bounds)

    def find(self, shard: str, timestamp: int) -> int:
        """By bisection over the leader's messages: it needs nothing but the permission to read one."""
        return self._patiently(lambda calls: self._find(calls, shard, timestamp))

    def count(self, shard: str, positions: Sequence[int]) -> Sequence[int] | None:
        """Counts the messages that match, where filters or deletions make numbers misleading; the engine counts."""
        info = self._seen[shard]
        filters = filters_for(info, self.options.subjects)
        if not filters and 2 * info.messages > info.last - info.first:
            return None
        return self._patiently(lambda calls: self._count(calls, info, filters, positions))

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        """The rows of `span`. After a lost connection it goes on behind the last row it gave."""
        at, failures = span.start, 0
        while at < span.end:
            try:
                calls = self._open()
                info = calls.stream(span.shard)
                if not self._readable(info, Range(span.shard, at, span.end, span.epoch)):
                    return
                filters = filters_for(info, self.options.subjects)
                rest = Range(span.shard, at, span.end, span.epoch)
                for rows in self._engine(calls, info, rest)(calls, rest, filters):
                    failures = 0
                    if len(rows.sequence):
                        yield self._batch(rows, span.shard)
                    at = rows.next
                return
            except Disconnected as error:
                failures += 1
                self._drop()
                if failures >= ATTEMPTS:
                    raise ConnectError(
                        f"reading stream '{span.shard}' stopped at {at} of [{span.start}, {span.end}) after {failures} "
                        f"attempts without a message: {error}"
                    ) from None
                log.warning("stream '%s': %s; going on at %d", span.shard, error, at)
                _pause(failures)

    def progress(self, at: Offsets) -> None:
        """Move the progress consumer; on a stream that keeps messages for it, only make sure that it exists."""
        if self.options.progress_consumer:
            self._housekeep(lambda calls: self._upkeep.follow(calls, at, self._seen))

    def commit(self, end: Offsets) -> None:
        """Release what Spark has committed, on streams that keep messages until they are consumed."""
        if any(info.retention != "limits" for info in self._seen.values()):
            self._housekeep(lambda calls: self._upkeep.release(calls, end, self._seen))

    def close(self) -> None:
        """Give the connection back."""
        if self._calls is not None:
            keep(self._calls.connection)
            self._calls = None

    def _open(self) -> Calls:
        if self._calls is None:
            self._calls = Calls(connect(self.options), self.options)
        return self._calls

    def _drop(self) -> None:
        """Throw a broken connection away."""
        if self._calls is not None:
            self._calls.connection.close()
            self._calls = None

    def _patiently(self, ask: Callable[[Calls], T]) -> T:
        """The answer of the driver's question, over a new connection if this one broke."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return ask(self._open())
            except Disconnected:
                self._drop()
                if attempt == ATTEMPTS or not self._seen:  # at .load() the user is waiting: say it at once
                    raise
                _pause(attempt)
        raise AssertionError("unreachable")

    def _housekeep(self, do: Callable[[Calls], None]) -> None:
        """Never fatal, as no data depends on it; one warning is enough."""
        try:
            do(self._open())
        except PenstockError as error:
            if isinstance(error, Disconnected | Denied):
                self._drop()
            if not self._warned:
                self._warned = True
                log.warning("housekeeping failed, data is not affected: %s", error)

    def _bounds(self, calls: Calls) -> Bounds:
        now = time.monotonic()
        if now >= self._names_until or not self._names:
            self._names = self._find_names(calls)
            searching = self.options.stream_pattern is not None or not self.options.stream
            self._names_until = now + self.options.discovery_interval if searching else float("inf")
        found = {}
        for name, info in calls.streams(self._names).items():
            if info is not None:
                found[name] = info
            elif name not in self._seen and name in self.options.stream:
                raise calls.missing(name)
        if self.options.is_narrowed:
            found = {name: info for name, info in found.items() if filters_for(info, self.options.subjects)}
        new = {name: info for name, info in found.items() if name not in self._seen}
        if new:
            admit(calls, self.options, found, new)
        self._seen |= found
        return {
            name: Bound(info.first, info.last + 1, info.created, info.size / max(1, info.messages), info.transient)
            for name, info in found.items()
        }

    def _find_names(self, calls: Calls) -> list[str]:
        options = self.options
        if options.stream:
            return list(options.stream)
        if options.stream_pattern is not None:
            matching = [name for name in calls.names() if re.fullmatch(options.stream_pattern, name)]
            if options.subjects and matching:
                infos = calls.streams(matching)
                matching = [n for n, info in infos.items() if info is not None and filters_for(info, options.subjects)]
            return sorted(matching)
        found = {name for subject in options.subjects for name in calls.names(subject)}
        if not found and not self._seen and not options.is_narrowed:
            raise OptionError(
                f"no stream has messages on {', '.join(options.subjects)}. Name the 'stream', or make one."
            )
        return sorted(found)

    def _engine(self, calls: Calls, info: api.StreamInfo, span: Range) -> engines.Engine:
        asked = self.options.read_engine
        if asked == "consumer":
            return engines.consumer
        can = info.allow_direct and calls.connection.version() >= (2, 11)
        if asked == "direct" or info.retention != "limits":
            return engines.direct
        if can and len(span) <= SMALL and len(filters_for(info, self.options.subjects)) <= 1:
            return engines.direct
        return self._consumer_or_direct if can else self._consumer_or_why

    def _consumer_or_direct(self, calls: Calls, span: Range, filters: Sequence[str]) -> Iterator[engines.Rows]:
        """A consumer; where the account or the stream allows none, DIRECT.GET."""
        rows = engines.consumer(calls, span, filters)
        try:
            first = next(rows, None)
        except Denied:
            self._drop()
            calls = self._open()
        except ApiError as error:
            if error.code not in api.TOO_MANY_CONSUMERS:
                raise
        else:
            if first is not None:
                yield first
                yield from rows
            return
        yield from engines.direct(calls, span, filters)

    def _consumer_or_why(self, calls: Calls, span: Range, filters: Sequence[str]) -> Iterator[engines.Rows]:
        try:
            yield from engines.consumer(calls, span, filters)
        except ApiError as error:
            if error.code not in api.TOO_MANY_CONSUMERS:
                raise
            raise ConnectError(
                f"stream '{span.shard}' has no consumer left: {error}. Raise its max_consumers or the account's, "
                f"or allow DIRECT.GET: nats stream edit {span.shard} --allow-direct"
            ) from None

    def _readable(self, info: api.StreamInfo, span: Range) -> bool:
        """Whether the range can still be read; a loss since it was planned is an error, or logged."""
        if span.epoch and info.created != span.epoch:
            loss = f"stream '{span.shard}' was deleted and made again while [{span.start}, {span.end}) was to be read"
        elif info.first > span.start and not info.transient:
            gone = min(info.first, span.end) - span.start
            loss = (
                f"stream '{span.shard}' starts at {info.first}, but a task is at {span.start}: {gone} messages were "
                "deleted unread"
            )
        else:
            return True
        if self.options.fail_on_data_loss:
            raise DataLossError(f"{loss}. {REMEDY}")
        log.warning("failOnDataLoss=false, going on: %s", loss)
        return not span.epoch or info.created == span.epoch

    def _batch(self, rows: engines.Rows, stream: str) -> pa.RecordBatch:
        made: dict[str, Callable[[], pa.Array]] = {
            "value": lambda: rows.value,
            "headers": rows.headers,
            "timestamp": lambda: rows.timestamp,
            "stream": lambda: pa.repeat(stream, len(rows.sequence)),
            "sequence": lambda: rows.sequence,
            "subject": lambda: rows.subject,
        }
        return pa.RecordBatch.from_arrays([made[field.name]() for field in self.columns], schema=self.columns)

    def _find(self, calls: Calls, shard: str, timestamp: int) -> int:
        info = calls.stream(shard)
        if info.last_time < timestamp or not info.messages:
            return info.last + 1
        low, high = info.first, info.last
        while low < high:
            middle = (low + high) // 2
            message = calls.first_from(shard, middle)
            if message is None or message.time >= timestamp:
                high = middle
            else:
                low = message.sequence + 1
        return low

    def _count(
        self, calls: Calls, info: api.StreamInfo, filters: Sequence[str], positions: Sequence[int]
    ) -> Sequence[int] | None:
        direct = info.allow_direct and calls.connection.version() >= (2, 12)
        if self.options.read_engine == "direct" or info.retention != "limits":
            if not direct:
                return None
            per_filter = [calls.direct_counts(info.name, text, positions) for text in filters or (">",)]
            return [sum(counts) for counts in zip(*per_filter, strict=True)]
        try:
            return calls.counts(info.name, [api.reader(at, filters, info.name) for at in positions])
        except (Denied, ApiError):
            # No consumer to be had: even by numbers will do, it is only about who reads how much.
            self._drop()
            return None


def _pause(attempt: int) -> None:
    """Before another attempt: up to two seconds, unequal so that tasks do not come back all at once."""
    time.sleep(min(2.0, 0.1 * 2**attempt) * (0.5 + random.random() / 2))
