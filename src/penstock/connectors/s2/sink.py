"""Rows into S2 streams, each exactly once. What is sent when is chain.py's, how is session.py's."""

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pyarrow as pa

from penstock.clients.s2.calls import Calls, Last
from penstock.clients.s2.reach import ApiError
from penstock.clients.s2.session import Session
from penstock.connectors.s2 import chain, rows
from penstock.connectors.s2.chain import Chain, Stamp
from penstock.connectors.s2.history import History
from penstock.connectors.s2.options import S2SinkOptions
from penstock.errors import ConnectError, Disconnected, PenstockError
from penstock.kit import via_driver
from penstock.kit.contract import Origin, Receipt, Spans
from penstock.planning.positions import Offsets, Position

log = logging.getLogger("penstock")
T = TypeVar("T")

# A task has so many streams open at once; the one that was not used for longest is finished first.
MOST_OPEN = 32
# Consecutive conflicts before giving up.
CONFLICTS = 200


class S2Sink:
    """A sink that connects when the first row comes."""

    def __init__(self, options: S2SinkOptions, columns: pa.Schema):
        rows.accept(options, columns)
        self.options, self.columns = options, columns
        self.before: Offsets = {}  # where streams ended before a single write began

    def write(self, batches: Iterator[pa.RecordBatch], origin: Origin) -> Receipt:
        """Append the rows that are not there yet, or hand them to the driver, which is the only one to write."""
        if self.options.direct():
            return self._append(batches, origin)
        return via_driver.write(batches, origin, self.options.driver_bytes, self._append)

    def commit(self, receipts: Sequence[Receipt], batch: int | None) -> None:
        """Write what the tasks handed over, in the order of the tasks."""
        seen: dict[str, Seen] = {}
        for receipt in via_driver.commit(receipts, partial(self._append, seen=seen)):
            if receipt.rows:
                log.info("%s", receipt)

    def check(self) -> None:
        """Reach the basin."""
        with closing(Calls(self.options)) as calls:
            calls.reach()

    def ends(self) -> Offsets:
        """Where the streams end that rows may go to; left out where there are too many of them to look at."""
        if self.options.delivery != "exactly_once":
            return {}
        name = self.options.target
        prefix = "" if name is None or "stream" in self.columns.names else name.partition("{")[0]
        with closing(Calls(self.options)) as calls:
            made = calls.named([prefix]) if prefix == name else calls.few(prefix)
            return {stream: Position(tail, made[stream]) for stream, tail in calls.tails(list(made)).items()}

    def begin(self, ends: Offsets) -> None:
        """The rows to come are of a single write, before which streams ended so."""
        self.before = ends

    def close(self) -> None:
        """Every write closes what it opened."""

    def _append(
        self, batches: Iterator[pa.RecordBatch], origin: Origin, seen: "dict[str, Seen] | None" = None
    ) -> Receipt:
        task = _Task(self.options, origin, self.before, seen)
        try:
            for batch in batches:
                if len(batch):
                    task.put(batch)
            return task.finish()
        except PenstockError as error:
            task.spans.explain(error, known_again=self.options.delivery == "exactly_once")
            raise
        finally:
            task.close()


@dataclass
class Seen:
    """What is known of a stream: every stamp of this batch before `tail`."""

    tail: int
    stamps: list[Stamp]


class _Writer:
    """One stream of a task."""

    def __init__(self, stream: str, options: S2SinkOptions):
        self.stream, self.session = stream, Session(options, stream, shared=options.append_session)
        self.seen: list[Stamp] = []
        self.chain: Chain
        self.retry = options.retry(f"writing to '{stream}'")
        self.conflicts = 0


class _Task:
    """One attempt to write one partition."""

    def __init__(self, options: S2SinkOptions, origin: Origin, before: Offsets, seen: dict[str, Seen] | None = None):
        self.options, self.origin, self.seen = options, origin, seen
        self.calls = Calls(options)
        self.history = History(self.calls, options, origin, before, alone=seen is None)
        self.writers: dict[str, _Writer] = {}  # the ones that were used last come last
        self.rows = self.size = 0
        self.version: pa.Array | None = None  # of the last row, where rows have one
        self.spans = Spans()

    def put(self, batch: pa.RecordBatch) -> None:
        """Send rows on their way, as far as their batches are full."""
        if self.options.version_column is not None:
            self.version = rows.ascending(self.options, self.origin, batch, self.rows, self.version)
        found = list(rows.records(self.options, self.origin, batch, self.rows))
        self.rows += len(batch)
        self.size += sum(int(made.metered.sum()) for _, made in found)
        self._look([name for name, _ in found if name not in self.writers])
        for name, made in found:
            writer = self.writers[name] = self.writers.pop(name)
            writer.chain.add(made)
            self._pump(writer, last=False)
            self._rest(MOST_OPEN, last=False)

    def finish(self) -> Receipt:
        """Send the rest, and wait for the last answer."""
        for writer in self.writers.values():
            self._pump(writer, last=True)
            self._rest(MOST_OPEN, last=True)
        self._rest(0, last=True)
        for writer in self.writers.values():
            writer.chain.end()
            if self.seen is not None:
                self.seen[writer.stream] = Seen(writer.chain.at, writer.seen)
        known = sum(writer.chain.known for writer in self.writers.values())
        return Receipt(self.origin, self.rows, self.size, self.spans, known)

    def close(self) -> None:
        """Let go of connections."""
        for writer in self.writers.values():
            writer.session.drop() if writer.session.unacked else writer.session.close()
        self.calls.close()

    def _rest(self, most: int, *, last: bool) -> None:
        """Finish what is under way, of the streams that were used least lately, until at most so many are open."""
        busy = [writer for writer in self.writers.values() if writer.session.is_open]
        for writer in busy[: max(0, len(busy) - most)]:
            self._drain(writer, last=last)
            writer.session.close()
            writer.session = Session(self.options, writer.stream, shared=self.options.append_session)

    def _pump(self, writer: _Writer, *, last: bool) -> None:
        """Send whatever is ready, with not too much of it unanswered."""
        # Outside a session nothing stops a batch behind one that was refused, and it may just fit behind another's.
        most = self.options.max_unacked_bytes if self.options.append_session else 0
        while True:
            try:
                while (batch := writer.chain.next(last=last)) is not None:
                    writer.session.send(batch)
                    while writer.session.size > most:
                        self._answer(writer)
                return
            except (Disconnected, ApiError) as error:
                self._recover(writer, error)

    def _drain(self, writer: _Writer, *, last: bool) -> None:
        """Wait until nothing is unanswered."""
        while writer.session.unacked:
            try:
                self._answer(writer)
            except (Disconnected, ApiError) as error:
                self._recover(writer, error)
                self._pump(writer, last=last)

    def _answer(self, writer: _Writer) -> None:
        batch = writer.session.receive()
        writer.chain.acked(batch)
        writer.retry.progress()
        writer.conflicts = 0
        self.spans.widen(writer.stream, batch.at, batch.at + batch.records - 1)

    def _recover(self, writer: _Writer, error: Disconnected | ApiError) -> None:
        """After a failure: find out what arrived, and go on behind it."""
        while writer.session.answered:
            self._answer(writer)
        on_their_way = writer.session.unacked
        writer.session.drop()
        writer.session = Session(self.options, writer.stream, shared=self.options.append_session)
        if isinstance(error, ApiError):
            self._judge(writer, error)
        else:
            unsure = self.options.delivery != "exactly_once" and bool(on_their_way)
            if unsure and self.options.append_retry_policy == "no_side_effects":
                raise ConnectError(f"{error}; what was sent may have arrived (appendRetryPolicy=no_side_effects)")
            writer.retry.after(error)
        if not writer.chain.conditional:
            writer.chain.adopt(None, writer.chain.at)
            return
        self._ask(lambda: self._catch_up(writer))

    def _judge(self, writer: _Writer, error: ApiError) -> None:
        """Make an error of what S2 refused, unless somebody was only faster."""
        if "seq_num_mismatch" in error.answer:
            writer.conflicts += 1
            if writer.conflicts > CONFLICTS:
                raise ConnectError(
                    f"others write to stream '{writer.stream}' all the time, and were faster {CONFLICTS} times in a "
                    "row. Write to a stream of your own, or set delivery=at_least_once."
                ) from None
            if writer.conflicts > 1:
                time.sleep(random.random() * 0.01 * min(writer.conflicts, 10))
            return
        if "fencing_token_mismatch" in error.answer:
            now = error.answer["fencing_token_mismatch"]
            raise ConnectError(
                f"stream '{writer.stream}' is fenced: its token is now {now!r}, and fencingToken is "
                f"{self.options.fencing_token!r}. Another writer has taken over; stop one of the two."
            ) from None
        if error.is_gone:
            if writer.chain.stored:
                raise ConnectError(f"stream '{writer.stream}' was deleted while it was written to: {error}.") from None
            missing = self.calls.missing(writer.stream, self.options.naming(writer.stream))
            raise type(missing)(f"{missing} Or set ensureStream=true to make it.") from None
        raise ConnectError(f"stream '{writer.stream}' refuses a batch of {self.origin}: {error}.") from None

    def _look(self, names: list[str]) -> None:
        """Begin to write to streams: where do they stand, and what of this task is there already?"""
        if not names:
            return
        writers = {name: _Writer(name, self.options) for name in names}
        conditional = self.options.delivery == "exactly_once"
        token = None if self.options.fencing_token is None else self.options.fencing_token.encode()
        last: dict[str, Last] = {}
        if conditional or self.options.ensure_stream:
            unknown = [name for name in names if not self.seen or name not in self.seen]
            last = self._ask(lambda: self.calls.last(unknown))
        for name in names:
            begin = partial(self._begin, writers[name], last.get(name), conditional, token)
            writers[name].chain = self._ask(begin)
        self.writers |= writers

    def _begin(self, writer: _Writer, last: Last | None, conditional: bool, token: bytes | None) -> Chain:
        name, tail = writer.stream, 0
        if self.seen and name in self.seen:
            tail, writer.seen = self.seen[name].tail, self.seen[name].stamps
        else:
            if last is None and self.options.ensure_stream:
                self.calls.make(name, self.options.stream_config())
                last = self.calls.last([name]).get(name)
            if last is not None:
                tail = last.tail
            if conditional and last is not None and tail:
                writer.seen = self.history.before(name, last)
        begun = Chain(self.origin, tail, conditional=conditional, token=token)
        begun.adopt(chain.mine(writer.seen, self.origin), tail)
        return begun

    def _ask(self, question: Callable[[], T]) -> T:
        """The answer to a question, over a new connection if this one broke."""

        def once() -> T:
            try:
                return question()
            except Disconnected:
                self.calls.drop()
                raise
            except ApiError as error:
                raise ConnectError(f"S2 refuses: {error}.") from None

        return self.options.retry("looking at the streams").run(once)

    def _catch_up(self, writer: _Writer) -> None:
        """Read what was appended since everything was known."""
        known = writer.chain.base
        tail = self.calls.tails(list(self.calls.named([writer.stream]))).get(writer.stream, 0)
        if tail < known:
            raise ConnectError(
                f"stream '{writer.stream}' ends at {tail}, but {self.origin} has written up to {known}: it was deleted "
                "and made again, or restored from a backup."
            )
        stamps, held = self.history.between(writer.stream, known, tail)
        if not held:
            raise ConnectError(
                f"stream '{writer.stream}' was trimmed from {known} on while {self.origin} was written, so nobody can "
                "tell what of it arrived. Let it keep records for longer."
            )
        writer.seen += stamps
        writer.chain.adopt(chain.mine(writer.seen, self.origin), tail)
