"""One attempt to write one partition to S2 streams. Decides when batches are sent and what follows a failure.

Which rows a batch has is chain.py's, how a batch travels is session.py's. Knows no Spark.
"""

import random
import time
from collections.abc import Callable, Collection
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
from penstock.errors import ConnectError, Disconnected
from penstock.kit.contract import Origin, Receipt, Spans
from penstock.planning.positions import Offsets

T = TypeVar("T")

# Streams that a task has open at once. The least recently used one is finished first.
MOST_OPEN = 32
# Consecutive conflicts before giving up.
CONFLICTS = 200


@dataclass
class Seen:
    """What the driver knows of a stream: every stamp of this batch before `tail`."""

    tail: int
    stamps: list[Stamp]


class _Writer:
    """One stream of a task. `chain` is set once it is known where the stream ends."""

    def __init__(self, stream: str, options: S2SinkOptions):
        self.stream, self.options = stream, options
        self.stamps: list[Stamp] = []
        self.chain: Chain
        self.retry = options.retry(f"writing to '{stream}'")
        self.conflicts = 0
        self.renew()

    def renew(self) -> None:
        """Have a new session, which connects when it is used."""
        self.session = Session(self.options, self.stream, shared=self.options.append_session)


class Task:
    """One attempt to write one partition. `seen` is what the driver knows from the tasks that it wrote before, and
    `partitions` are those of its batch that have rows.
    """

    def __init__(
        self,
        options: S2SinkOptions,
        origin: Origin,
        before: Offsets,
        seen: dict[str, Seen] | None = None,
        partitions: Collection[int] = (),
    ):
        self.options, self.origin, self.seen, self.partitions = options, origin, seen, partitions
        self.calls = Calls(options)
        self.history = History(self.calls, options, origin, before, alone=seen is None)
        self.writers: dict[str, _Writer] = {}  # by stream, the most recently used one last
        self.rows = self.size = 0
        self.version: pa.Array | None = None  # of the last row, with `versionColumn`
        self.spans = Spans()

    def put(self, batch: pa.RecordBatch) -> None:
        """Take rows, and send the batches that are full."""
        if self.options.version_column is not None:
            self.version = rows.ascending(self.options, self.origin, batch, self.rows, self.version)
        by_stream = list(rows.records(self.options, self.origin, batch, self.rows))
        self.rows += len(batch)
        self.size += sum(int(records.metered.sum()) for _, records in by_stream)
        self._open([name for name, _ in by_stream if name not in self.writers])
        for name, records in by_stream:
            writer = self.writers[name] = self.writers.pop(name)
            writer.chain.add(records)
            self._send(writer, last=False)
            self._close_idle(MOST_OPEN, last=False)

    def finish(self) -> Receipt:
        """Send the rest, and wait until all of it is stored."""
        for writer in self.writers.values():
            self._send(writer, last=True)
            self._close_idle(MOST_OPEN, last=True)
        self._close_idle(0, last=True)
        for writer in self.writers.values():
            writer.chain.end()
            if self.seen is not None:
                self.seen[writer.stream] = Seen(writer.chain.at, writer.stamps)
        known = sum(writer.chain.known for writer in self.writers.values())
        return Receipt(self.origin, self.rows, self.size, self.spans, known)

    def close(self) -> None:
        """Let go of connections."""
        for writer in self.writers.values():
            if writer.session.unacked:
                writer.session.drop()
            else:
                writer.session.close()
        self.calls.close()

    def _close_idle(self, most: int, *, last: bool) -> None:
        """Close the least recently used streams, each after its last answer, until at most `most` are open."""
        in_use = [writer for writer in self.writers.values() if writer.session.is_open]
        for writer in in_use[: max(0, len(in_use) - most)]:
            self._drain(writer, last=last)
            writer.session.close()
            writer.renew()

    def _send(self, writer: _Writer, *, last: bool) -> None:
        """Send the batches that are ready, while at most `maxUnackedBytes` have no answer."""
        # Outside a session S2 might refuse a batch and take the next one, whose position another writer just reached.
        most = self.options.max_unacked_bytes if self.options.append_session else 0
        while True:
            try:
                while (batch := writer.chain.next(last=last)) is not None:
                    writer.session.send(batch)
                    while writer.session.size > most:
                        self._receive(writer)
                return
            except (Disconnected, ApiError) as error:
                self._recover(writer, error)

    def _drain(self, writer: _Writer, *, last: bool) -> None:
        """Wait until every batch has its answer."""
        while writer.session.unacked:
            try:
                self._receive(writer)
            except (Disconnected, ApiError) as error:
                self._recover(writer, error)
                self._send(writer, last=last)

    def _receive(self, writer: _Writer) -> None:
        """Wait for the answer to the oldest batch."""
        batch = writer.session.receive()
        writer.chain.acked(batch)
        writer.retry.progress()
        writer.conflicts = 0
        self.spans.widen(writer.stream, batch.at, batch.at + batch.records - 1)

    def _recover(self, writer: _Writer, error: Disconnected | ApiError) -> None:
        """After a failure: find out what is stored, so that `_send` goes on behind it."""
        while writer.session.answered:
            self._receive(writer)
        unacked = writer.session.unacked
        writer.session.drop()
        writer.renew()
        if isinstance(error, ApiError):
            self._refused(writer, error)
        else:
            may_repeat = self.options.delivery != "exactly_once" and bool(unacked)
            if may_repeat and self.options.append_retry_policy == "no_side_effects":
                raise ConnectError(f"{error}; what was sent may have arrived (appendRetryPolicy=no_side_effects)")
            writer.retry.after(error)
        if not writer.chain.conditional:
            writer.chain.adopt(None, writer.chain.at)
            return
        self._ask(lambda: self._catch_up(writer))

    def _refused(self, writer: _Writer, error: ApiError) -> None:
        """Raise what S2's refusal means, unless another writer was only faster."""
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
            token = error.answer["fencing_token_mismatch"]
            raise ConnectError(
                f"stream '{writer.stream}' is fenced: its token is now {token!r}, and fencingToken is "
                f"{self.options.fencing_token!r}. Another writer has taken over; stop one of the two."
            ) from None
        if error.is_gone:
            if writer.chain.stored:
                raise ConnectError(f"stream '{writer.stream}' was deleted while it was written to: {error}.") from None
            missing = self.calls.missing(writer.stream, self.options.naming(writer.stream))
            raise type(missing)(f"{missing} Or set ensureStream=true to make it.") from None
        raise ConnectError(f"stream '{writer.stream}' refuses a batch of {self.origin}: {error}.") from None

    def _open(self, names: list[str]) -> None:
        """Begin to write to streams: find where they end, and which rows of this task they have already."""
        if not names:
            return
        writers = {name: _Writer(name, self.options) for name in names}
        exactly_once = self.options.delivery == "exactly_once"
        last: dict[str, Last] = {}
        if exactly_once or self.options.ensure_stream:
            unknown = [name for name in names if not self.seen or name not in self.seen]
            last = self._ask(lambda: self.calls.last(unknown))
        for name in names:
            begin = partial(self._begin, writers[name], last.get(name), exactly_once)
            writers[name].chain = self._ask(begin)
        self.writers |= writers

    def _begin(self, writer: _Writer, last: Last | None, exactly_once: bool) -> Chain:
        name, tail = writer.stream, 0
        if self.seen and name in self.seen:
            tail, writer.stamps = self.seen[name].tail, self.seen[name].stamps
        else:
            if last is None and self.options.ensure_stream:
                self.calls.make(name, self.options.stream_config())
                last = self.calls.last([name]).get(name)
            if last is not None:
                tail = last.tail
            if exactly_once and last is not None and tail:
                writer.stamps = self.history.before(name, last)
                if self.seen is not None and (moved := chain.missing(writer.stamps, self.origin, self.partitions)):
                    raise self.origin.moved(moved)
        token = None if self.options.fencing_token is None else self.options.fencing_token.encode()
        new = Chain(self.origin, tail, conditional=exactly_once, token=token)
        new.adopt(chain.mine(writer.stamps, self.origin), tail)
        return new

    def _ask(self, question: Callable[[], T]) -> T:
        """The answer of S2. After a lost connection, `question` is asked again over a new one."""

        def attempt() -> T:
            try:
                return question()
            except Disconnected:
                self.calls.drop()
                raise
            except ApiError as error:
                raise ConnectError(f"S2 refuses: {error}.") from None

        return self.options.retry("looking at the streams").run(attempt)

    def _catch_up(self, writer: _Writer) -> None:
        """Read the stamps that were appended behind those known."""
        known = writer.chain.base
        tail = self.calls.tails(list(self.calls.named([writer.stream]))).get(writer.stream, 0)
        if tail < known:
            raise ConnectError(
                f"stream '{writer.stream}' ends at {tail}, but {self.origin} has written up to {known}: it was deleted "
                "and made again, or restored from a backup."
            )
        stamps, complete = self.history.between(writer.stream, known, tail)
        if not complete:
            raise ConnectError(
                f"stream '{writer.stream}' was trimmed from {known} on while {self.origin} was written, so nobody can "
                "tell what of it arrived. Let it keep records for longer."
            )
        writer.stamps += stamps
        writer.chain.adopt(chain.mine(writer.stamps, self.origin), tail)
