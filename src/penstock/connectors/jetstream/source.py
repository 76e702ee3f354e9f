"""JetStream as a log: a shard is a stream, a position its sequence, an epoch its time of creation.

Nothing on the server is needed to go on reading: consumers are made for a range and deleted after it.
"""

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa

from penstock.clients.jetstream import api, counting, engines
from penstock.clients.jetstream.calls import ApiError, Calls
from penstock.clients.nats.client import Denied
from penstock.clients.nats.pool import connect, keep
from penstock.connectors.jetstream.admission import admit, admit_each_filter, admit_filters, listed
from penstock.connectors.jetstream.options import JetStreamOptions
from penstock.connectors.jetstream.upkeep import Upkeep
from penstock.errors import ConnectError, Disconnected, OptionError, PenstockError
from penstock.kit.loss import LossReport
from penstock.planning.positions import Bound, Bounds, Loss, Offsets, Position, Range, lost

log = logging.getLogger("penstock")
T = TypeVar("T")

# DIRECT.GET saves making a consumer; a consumer has the smaller frames. They break even near here.
SMALL = 500
# A new leader may not know of its last messages for a moment: this often it is asked again before that is a loss.
ATTEMPTS = 5


class JetStreamSource:
    """A source on one connection, taken when first needed."""

    def __init__(self, options: JetStreamOptions, columns: pa.Schema):
        self.options, self.columns, self.losses = options, columns, LossReport(options)
        self._calls: Calls | None = None
        self._second: Calls | None = None
        self._names: list[str] = []
        self._names_until = float("-inf")
        self._seen: dict[str, api.StreamInfo] = {}
        self._known: set[str] = set()  # the streams that the query reads, in this run or from its checkpoint
        self._upkeep = Upkeep(options, self.losses)
        self._warned: set[str] = set()
        self._warned_of_none = False
        self._may_count_direct = True

    def check(self) -> None:
        """Refuse what is not there or cannot be read."""
        found = self._ask(self._look)
        if not self.options.is_narrowed:
            self._ask(lambda calls: admit_filters(calls, self.options.subjects, found))

    def begin(self) -> None:
        """A filter or a stream that gives no row, now or ever, is a slip of the user's."""
        if not self.options.is_narrowed:
            self._ask(lambda calls: admit_each_filter(calls, self.options.subjects, self._seen))

    def resume(self, at: Offsets, notes: Mapping[str, str]) -> None:
        """The streams of the checkpoint are read on, also where they no longer list the subjects."""
        self._known |= at.keys()
        self._names_until = float("-inf")
        self._upkeep.resume(at, notes)

    def notes(self) -> Mapping[str, str]:
        """What of a work queue the position is about, and which durable keeps messages of an interest stream."""
        return self._upkeep.notes

    def bounds(self) -> Bounds:
        """Both ends of every stream. A stream that existed before and is gone now is left out."""
        for attempt in range(1, ATTEMPTS + 1):
            before, found = dict(self._seen), self._ask(self._bounds)
            if attempt == ATTEMPTS or not any(_went_back(before[n], self._seen[n]) for n in found if n in before):
                break
            self._seen = before
            time.sleep(0.1 * 2**attempt)
        return found

    def marks(self, at: Offsets) -> Mapping[str, str]:
        """The time of the message before each position. At the head the last look has it, and a mark that comes with a
        position holds where the stream's first message is not younger: then its numbers did not begin anew.
        """
        marks, asked = {}, {}
        for name, position in at.items():
            info = self._seen.get(name)
            if info is None or not info.last:
                continue
            if position.next == info.last + 1:
                marks[name] = str(info.last_time)
            elif position.mark and info.numbers_hold(position.next, position.mark):
                marks[name] = position.mark
            elif info.first < position.next <= info.last:
                asked[name] = position.next - 1
        times = self._ask(lambda calls: calls.times(asked)) if asked else {}
        return marks | {name: str(moment) for name, moment in times.items()}

    def find(self, shard: str, timestamp: int) -> int:
        """By bisection over the leader's messages: it needs nothing but the permission to read one."""
        return self._ask(lambda calls: self._find(calls, shard, timestamp))

    def count(self, shard: str, positions: Sequence[int]) -> Sequence[int] | None:
        """Counts the messages that match, where filters or deletions make numbers misleading; the engine counts."""
        info = self._seen[shard]
        filters = self.options.subjects
        if not filters and 2 * info.messages > info.last - info.first:
            return None
        engine = self.options.read_engine
        ways = (engine,) if engine != "auto" else ("auto", "consumer") if self._may_count_direct else ("consumer",)
        for way in ways:
            try:
                return self._ask(partial(counting.count, info=info, filters=filters, positions=positions, engine=way))
            except Denied:
                self._drop()
                self._may_count_direct = False
        # Even by numbers will do: it is only about who reads how much.
        return None

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        """The rows of `span`. After a lost connection it goes on behind the last row it gave."""
        rest, failures = span, 0
        retry = self.options.retry(f"reading stream '{span.shard}'")
        while len(rest):
            try:
                calls = self._open()
                info = self._checked(calls, rest, failures)
                if info is None:
                    return
                for rows in self._engine(calls, info, rest)(
                    calls, rest.shard, rest.start, rest.end, self.options.subjects
                ):
                    gap = _first_gap(rows, rest)
                    # A gap that the head has passed may be messages that the stream lost while they were under way.
                    if gap is not None and not self._checked(self._witness(), replace(rest, start=gap), failures):
                        return
                    if len(rows.sequence):
                        yield engines.as_batch(rows, span.shard, self.columns)
                    rest, failures = replace(rest, start=rows.next), 0
                    retry.progress()
                if len(rest):
                    self._checked(self._open(), rest, failures)
                return
            except Disconnected as error:
                failures += 1
                self._drop()
                retry.what = f"reading stream '{span.shard}' at {rest.start} of [{span.start}, {span.end})"
                retry.after(error)

    def progress(self, at: Offsets) -> None:
        """Move the progress consumer; on a stream that keeps messages for it, make sure that it exists."""
        self._ask(lambda calls: self._upkeep.hold(calls, at, self._seen))
        if self.options.progress_consumer:
            self._housekeep("", lambda calls: self._upkeep.follow(calls, at, self._seen))

    def commit(self, end: Offsets) -> None:
        """Release what Spark has committed, on streams that keep messages until they are consumed."""
        for stream, position in end.items():
            if stream in self._seen and self._seen[stream].retention != "limits":
                self._housekeep(stream, partial(self._upkeep.release, stream=stream, position=position))

    def close(self) -> None:
        """Give the connections back."""
        for calls in filter(None, (self._calls, self._second)):
            keep(calls.connection)
        self._calls = self._second = None

    def _open(self) -> Calls:
        if self._calls is None:
            self._calls = Calls(connect(self.options), self.options)
        return self._calls

    def _witness(self) -> Calls:
        """Another connection, for questions while messages are under way on the first."""
        if self._second is None:
            self._second = Calls(connect(self.options), self.options)
        return self._second

    def _drop(self) -> None:
        """Throw broken connections away."""
        for calls in filter(None, (self._calls, self._second)):
            calls.connection.close()
        self._calls = self._second = None

    def _ask(self, question: Callable[[Calls], T]) -> T:
        """The answer; where the connection broke, the next question takes a new one."""
        try:
            return question(self._open())
        except Disconnected:
            self._drop()
            raise

    def _housekeep(self, stream: str, do: Callable[[Calls], None]) -> None:
        """Never fatal, as no row that is still to be read depends on it; one warning for each stream is enough."""
        try:
            do(self._open())
            self._warned.discard(stream)
        except PenstockError as error:
            if isinstance(error, Disconnected | Denied):
                self._drop()
            if stream not in self._warned:
                self._warned.add(stream)
                log.warning("housekeeping failed, no row is affected: %s", error)

    def _bounds(self, calls: Calls) -> Bounds:
        found = self._look(calls)
        self._upkeep.watch(calls, found)
        self._seen |= found
        self._known |= found.keys()
        return {name: _bound(info, owned=self._owns(info)) for name, info in found.items()}

    def _owns(self, info: api.StreamInfo) -> bool:
        """Whether all that a work queue loses behind the query's position is lost to the query. A mirror has the
        numbers of its origin, and gaps for what it does not mirror.
        """
        return not self.options.subjects and not info.derived and self._upkeep.owns(info.name)

    def stream(self, name: str) -> api.StreamInfo:
        """A stream as it was at the last look."""
        return self._seen[name]

    def skip_gaps(self, at: Offsets) -> Offsets:
        """To the next message, by the leader's word. With filters, nobody is alarmed by a gap."""
        moved = {}
        for name, position in at.items() if not self.options.subjects else ():
            message = self._ask(partial(Calls.first_from, stream=name, sequence=position.next))
            moved[name] = position._replace(next=self._seen[name].last + 1 if message is None else message.sequence)
        return moved

    def _look(self, calls: Calls) -> dict[str, api.StreamInfo]:
        """The streams that are there and can be read."""
        now = time.monotonic()
        if now >= self._names_until:
            self._names = self._find_names(calls)
            searching = self.options.stream_pattern is not None or not self.options.stream
            self._names_until = now + self.options.discovery_interval if searching else float("inf")
        infos = calls.streams(self._names)
        found = {name: info for name, info in infos.items() if info is not None}
        for name in [name for name in self.options.stream if name not in found and name not in self._known]:
            self.losses.missing(name, partial(calls.missing, name), nothing_left=not found)
            self._known.add(name)
        admit(calls, self.options, {name: info for name, info in found.items() if name not in self._seen})
        return found

    def _find_names(self, calls: Calls) -> list[str]:
        options = self.options
        if options.stream:
            return list(options.stream)
        if options.stream_pattern is not None:
            matching = {name for name in calls.names() if re.fullmatch(options.stream_pattern, name)}
            if not matching and not self._warned_of_none:
                self._warned_of_none = True
                log.warning("no stream matches streamPattern '%s', up to now", options.stream_pattern)
            known = matching & self._known
            if options.asked and matching - known:
                infos = calls.streams(sorted(matching - known))
                matching = {n for n, info in infos.items() if info is not None and listed(info, options.asked)} | known
            return sorted(matching)
        found = {name for subject in options.asked for name in calls.names(subject)} | self._known
        if not found and not options.is_narrowed:
            raise OptionError(
                f"no stream takes messages on {', '.join(options.subjects)}. Name the 'stream' that has them from "
                "before, or make one."
            )
        return sorted(found)

    def _engine(self, calls: Calls, info: api.StreamInfo, span: Range) -> engines.Engine:
        """The engine that was asked for, or that suits; where neither is forced, the other one stands in."""
        asked = self.options.read_engine
        if asked == "direct" or info.retention != "limits":
            return engines.direct
        if asked == "consumer" or not (info.allow_direct and calls.connection.version() >= (2, 11)):
            return partial(self._consumer_or_why, most_idle=info.most_idle)
        small = len(span) <= SMALL and len(self.options.subjects) <= 1
        consumer = partial(engines.consumer, most_idle=info.most_idle)
        both = (engines.direct, consumer) if small else (consumer, engines.direct)
        return partial(self._either, both)

    def _either(
        self,
        both: tuple[engines.Engine, engines.Engine],
        calls: Calls,
        stream: str,
        start: int,
        end: int,
        filters: Sequence[str],
    ) -> Iterator[engines.Rows]:
        """One engine; where the account, the stream or a mirror does not let it, the other goes on behind it."""
        at = start
        try:
            for rows in both[0](calls, stream, start, end, filters):
                yield rows
                at = rows.next
            return
        except Denied:
            self._drop()
            calls = self._open()
        except engines.Incomplete:
            pass
        except ApiError as error:
            log.info("stream '%s' is read the other way: %s", stream, error)
        yield from both[1](calls, stream, at, end, filters)

    def _consumer_or_why(
        self, calls: Calls, stream: str, start: int, end: int, filters: Sequence[str], most_idle: float
    ) -> Iterator[engines.Rows]:
        try:
            yield from engines.consumer(calls, stream, start, end, filters, most_idle)
        except ApiError as error:
            if error.code not in api.TOO_MANY_CONSUMERS:
                raise
            raise ConnectError(
                f"stream '{stream}' has no consumer left: {error}. Raise its max_consumers or the account's, "
                f"or read with readEngine=auto and allow DIRECT.GET: nats stream edit {stream} --allow-direct"
            ) from None

    def _checked(self, calls: Calls, span: Range, failures: int) -> api.StreamInfo | None:
        """The stream of `span`, None where it is gone. What it lost of the range is an error, or logged."""
        info = calls.streams([span.shard])[span.shard]
        # While a range is read once, workers may take messages; that of a query has the position that it is marked at.
        owned = bool(span.marked) and not self.options.subjects
        bounds = {} if info is None else {span.shard: _bound(info, owned=owned and not info.derived)}
        losses = lost({span.shard: Position(span.start, span.epoch)}, bounds)
        if info is not None and not losses and not info.numbers_hold(span.marked, span.mark):
            stored = calls.times({span.shard: span.marked - 1}).get(span.shard)
            if stored is not None and str(stored) != span.mark:
                losses = [Loss(span.shard, span.marked, _bound(info), "renumbered")]
        if info is not None and info.created == span.epoch and info.last + 1 < span.end:
            if failures < ATTEMPTS - 1:
                # A new leader may not know of its last messages for a moment.
                raise Disconnected(f"stream '{span.shard}' ends at {info.last}")
            losses = [Loss(span.shard, span.end, _bound(info), "backwards")]
        self.losses.lost(losses)
        return None if any(loss.kind in ("gone", "recreated", "renumbered") for loss in losses) else info

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


def _bound(info: api.StreamInfo, *, owned: bool = False) -> Bound:
    """Both ends. Messages of a work queue go by design, but not those that only the `owned` query may release."""
    queue = info.retention == "workqueue"
    transient = info.compacts or info.retention == "interest" or (queue and not owned)
    return Bound(info.first, info.last + 1, info.created, info.size / max(1, info.messages), transient, queue)


def _went_back(before: api.StreamInfo, now: api.StreamInfo) -> bool:
    return before.created == now.created and now.last < before.last


def _first_gap(rows: engines.Rows, span: Range) -> int | None:
    """The first position from the start of `span` on that `rows` jump over."""
    numbers = np.asarray(rows.sequence)
    if not len(numbers):
        return None
    if numbers[0] != span.start:
        return span.start
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return None
    return int(numbers[np.argmax(np.diff(numbers) > 1)]) + 1
