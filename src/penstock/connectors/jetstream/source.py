"""JetStream as a log: a shard is a stream, a position is a sequence, an epoch is when the stream was created.

A query that resumes needs nothing on the server: consumers are created for a range and deleted after it. Knows streams
and ranges; must not know Spark, or how a batch is cut into ranges.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pyarrow as pa

from penstock.clients.jetstream import api, counting, engines
from penstock.clients.jetstream.calls import Calls
from penstock.clients.nats.client import Denied
from penstock.clients.nats.pool import connect, keep
from penstock.connectors.jetstream.admission import admit, admit_each_filter, admit_filters
from penstock.connectors.jetstream.bounds import bound, first_gap, went_back
from penstock.connectors.jetstream.discovery import Discovery
from penstock.connectors.jetstream.engine_choice import choose
from penstock.connectors.jetstream.options import JetStreamOptions
from penstock.connectors.jetstream.upkeep import Upkeep
from penstock.errors import Disconnected, PenstockError
from penstock.kit.loss import LossReport
from penstock.planning.positions import Bounds, Loss, Offsets, Position, Range, lost

log = logging.getLogger("penstock")
T = TypeVar("T")

# A new leader may lack its last messages for a moment: it is asked so many times before that is a loss.
ATTEMPTS = 5


class JetStreamSource:
    """A source that connects when it is first used. `read` may need a second connection."""

    def __init__(self, options: JetStreamOptions, columns: pa.Schema):
        self.options, self.columns, self.losses = options, columns, LossReport(options)
        self._calls: Calls | None = None
        self._second: Calls | None = None
        self._discovery = Discovery(options)
        self._seen: dict[str, api.StreamInfo] = {}  # the streams as of the last `bounds`
        self._known: set[str] = set()  # the streams that the query reads, in this run or from its checkpoint
        self._upkeep = Upkeep(options, self.losses)
        self._warned: set[str] = set()
        self._may_count_direct = True

    def check(self) -> None:
        """Refuse streams that do not exist or cannot be read, and filters that match nothing in them."""
        streams = self._ask(self._look)
        if not self.options.is_narrowed:
            self._ask(lambda calls: admit_filters(calls, self.options.subjects, streams))

    def begin(self) -> None:
        """Refuse each filter that matches nothing, and each stream that no filter matches: a mistake of the user."""
        if not self.options.is_narrowed:
            self._ask(lambda calls: admit_each_filter(calls, self.options.subjects, self._seen))

    def resume(self, at: Offsets, notes: Mapping[str, str]) -> None:
        """Read the streams of the checkpoint, also where they no longer list the subjects."""
        self._known |= at.keys()
        self._discovery.search_again()
        self._upkeep.resume(at, notes)

    def notes(self, at: Offsets) -> Mapping[str, str]:
        """For each stream that releases messages: the query's filters, and the durable that keeps messages for it."""
        return self._upkeep.notes

    def bounds(self) -> Bounds:
        """Both ends of every stream. A stream that was deleted since the last call is left out."""
        for attempt in range(1, ATTEMPTS + 1):
            before, bounds = dict(self._seen), self._ask(self._bounds)
            is_older = any(went_back(before[name], self._seen[name]) for name in bounds if name in before)
            if attempt == ATTEMPTS or not is_older:
                break
            self._seen = before
            time.sleep(0.1 * 2**attempt)
        return bounds

    def marks(self, at: Offsets) -> Mapping[str, str]:
        """The time of the message before each position; none where that message is gone. The server is asked only where
        neither the info of the stream nor the position's own mark tells it.
        """
        marks, sequences = {}, {}
        for name, position in at.items():
            info = self._seen.get(name)
            if info is None or not info.last:
                continue
            if position.next == info.last + 1:
                marks[name] = str(info.last_time)
            elif position.mark and info.numbers_hold(position.next, position.mark):
                marks[name] = position.mark
            elif info.first < position.next <= info.last:
                sequences[name] = position.next - 1
        times = self._ask(lambda calls: calls.times(sequences)) if sequences else {}
        return marks | {name: str(moment) for name, moment in times.items()}

    def find(self, shard: str, timestamp: int) -> int:
        """The first sequence whose message is not older, or the end. Bisects by single messages of the leader, which
        needs no other permission.
        """
        return self._ask(lambda calls: self._find(calls, shard, timestamp))

    def count(self, shard: str, positions: Sequence[int]) -> Sequence[int] | None:
        """How many messages that match are at or after each position. None where sequences tell that well enough, or
        the account may not count.
        """
        info = self._seen[shard]
        filters = self.options.subjects
        if not filters and 2 * info.messages > info.last - info.first:
            return None
        for engine in self._counting_engines():
            try:
                return self._ask(
                    partial(counting.count, info=info, filters=filters, positions=positions, engine=engine)
                )
            except Denied:
                self._drop()
                self._may_count_direct = False
        return None

    def _counting_engines(self) -> Sequence[str]:
        """The engines that may count, the preferred one first."""
        engine = self.options.read_engine
        if engine != "auto":
            return [engine]
        return ["auto", "consumer"] if self._may_count_direct else ["consumer"]

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        """The rows of `span`. After a lost connection, reading continues after the last row. What the stream has lost
        of the range is an error, or logged.
        """
        rest, failures = span, 0
        retry = self.options.retry(f"reading stream '{span.shard}'")
        while rest.length:
            try:
                calls = self._open()
                info = self._check_range(calls, rest, failures)
                if info is None:
                    return
                engine = choose(self.options, calls, info, rest.length, self._reconnect)
                for rows in engine(calls, rest.shard, rest.start, rest.end, self.options.subjects):
                    gap = first_gap(rows.sequence, rest.start)
                    # The stream may have lost the messages of a gap before the server could send them.
                    if gap is not None:
                        after_gap = replace(rest, start=gap)
                        if self._check_range(self._open_second(), after_gap, failures) is None:
                            return
                    if len(rows.sequence):
                        yield engines.as_batch(rows, span.shard, self.columns)
                    rest, failures = replace(rest, start=rows.next), 0
                    retry.progress()
                if rest.length:
                    self._check_range(self._open(), rest, failures)
                return
            except Disconnected as error:
                failures += 1
                self._drop()
                retry.what = f"reading stream '{span.shard}' at {rest.start} of [{span.start}, {span.end})"
                retry.after(error)

    def progress(self, at: Offsets) -> None:
        """Move the progress consumer. On a stream that keeps messages for it, make sure that it exists."""
        self._ask(lambda calls: self._upkeep.hold(calls, at, self._seen))
        if self.options.progress_consumer:
            self._try_upkeep("", lambda calls: self._upkeep.follow(calls, at, self._seen))

    def commit(self, end: Offsets) -> None:
        """Release what Spark has committed, on streams that keep messages only until they are read."""
        for stream, position in end.items():
            if stream in self._seen and self._seen[stream].retention != "limits":
                self._try_upkeep(stream, partial(self._upkeep.release, stream=stream, position=position))

    def close(self) -> None:
        """Give the connections back."""
        for calls in filter(None, (self._calls, self._second)):
            keep(calls.connection)
        self._calls = self._second = None

    def _open(self) -> Calls:
        if self._calls is None:
            self._calls = Calls(connect(self.options), self.options)
        return self._calls

    def _open_second(self) -> Calls:
        """A second connection, for calls while messages arrive on the first."""
        if self._second is None:
            self._second = Calls(connect(self.options), self.options)
        return self._second

    def _drop(self) -> None:
        """Close both connections, which may be broken."""
        for calls in filter(None, (self._calls, self._second)):
            calls.connection.close()
        self._calls = self._second = None

    def _reconnect(self) -> Calls:
        self._drop()
        return self._open()

    def _ask(self, call: Callable[[Calls], T]) -> T:
        """The result of `call`. Where the connection breaks, the next call takes a new one."""
        try:
            return call(self._open())
        except Disconnected:
            self._drop()
            raise

    def _try_upkeep(self, stream: str, call: Callable[[Calls], None]) -> None:
        """Do a `call` that no unread row depends on. An error is logged, and not again until one succeeds."""
        try:
            call(self._open())
            self._warned.discard(stream)
        except PenstockError as error:
            if isinstance(error, Disconnected | Denied):
                self._drop()
            if stream not in self._warned:
                self._warned.add(stream)
                log.warning("housekeeping failed, no row is affected: %s", error)

    def _bounds(self, calls: Calls) -> Bounds:
        streams = self._look(calls)
        self._upkeep.watch(calls, streams)
        self._seen |= streams
        self._known |= streams.keys()
        return {name: bound(info, owned=self._owns(info)) for name, info in streams.items()}

    def _owns(self, info: api.StreamInfo) -> bool:
        """Whether every gap that a work queue has after the query's position is a loss. A mirror has the sequences of
        its origin, and gaps for what it does not mirror.
        """
        return not self.options.subjects and not info.derived and self._upkeep.owns(info.name)

    def stream(self, name: str) -> api.StreamInfo:
        """The info of a stream, as of the last `bounds`."""
        return self._seen[name]

    def skip_gaps(self, at: Offsets) -> Offsets:
        """Each position moved to the next message, from the leader, or to the end. With filters none is moved: there a
        gap is not a loss.
        """
        if self.options.subjects:
            return {}
        moved = {}
        for name, position in at.items():
            message = self._ask(partial(Calls.first_from, stream=name, sequence=position.next))
            sequence = self._seen[name].last + 1 if message is None else message.sequence
            moved[name] = position._replace(next=sequence)
        return moved

    def _look(self, calls: Calls) -> dict[str, api.StreamInfo]:
        """The streams that exist. Those that cannot be read are refused; named ones that are missing are a loss."""
        infos = calls.streams(self._discovery.names(calls, self._known))
        streams = {name: info for name, info in infos.items() if info is not None}
        for name in self.options.stream:
            if name not in streams and name not in self._known:
                self.losses.missing(name, partial(calls.missing, name), nothing_left=not streams)
                self._known.add(name)
        admit(calls, self.options, {name: info for name, info in streams.items() if name not in self._seen})
        return streams

    def _check_range(self, calls: Calls, span: Range, failures: int) -> api.StreamInfo | None:
        """The info of the stream of `span`; None where it is gone, or not the same any more. What it has lost of the
        range is an error, or logged.
        """
        info = calls.streams([span.shard])[span.shard]
        # Only ranges of a query are marked. In a batch read, other readers may take messages from a work queue.
        owned = bool(span.marked) and not self.options.subjects
        bounds = {} if info is None else {span.shard: bound(info, owned=owned and not info.derived)}
        losses = lost({span.shard: Position(span.start, span.epoch)}, bounds)
        if info is not None and not losses and not info.numbers_hold(span.marked, span.mark):
            stored = calls.times({span.shard: span.marked - 1}).get(span.shard)
            if stored is not None and str(stored) != span.mark:
                losses = [Loss(span.shard, span.marked, bound(info), "renumbered")]
        if info is not None and info.created == span.epoch and info.last + 1 < span.end:
            if failures < ATTEMPTS - 1:
                # A new leader may lack its last messages for a moment.
                raise Disconnected(f"stream '{span.shard}' ends at {info.last}")
            losses = [Loss(span.shard, span.end, bound(info), "backwards")]
        self.losses.lost(losses, span.end)
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
