"""What a task may publish without writing anything twice, and until when.

Within the duplicate window of a stream the server itself drops a row that it has seen. So all that is needed is to
know, at some moment, which rows of the task are there already: from then on the window covers what anybody adds.
The first attempt of a task knows at once that nothing is there; a later one, if the window since the first is
over, reads the streams back for its rows. When the window ends while a task is still at work, it looks again.
"""

import time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columns import Ints
from penstock.connectors.jetstream.calls import Calls
from penstock.connectors.jetstream.ledger import Claim, Ledger
from penstock.connectors.jetstream.options import JetStreamOptions, JetStreamSinkOptions
from penstock.connectors.jetstream.publish import Chunk
from penstock.connectors.jetstream.rows import MESSAGE_ID
from penstock.connectors.jetstream.source import JetStreamSource
from penstock.connectors.jetstream.targets import Targets
from penstock.connectors.nats.options import NatsOptions
from penstock.contract import Origin
from penstock.errors import DataLossError, OptionError
from penstock.offsets import Range
from penstock.record import columns

# Of the window, how much is relied on: what is sent must also arrive in it.
RELIED_ON = 0.8
# Clocks of servers may differ, by far less than this.
CLOCK_SLACK = 60_000_000


class Guard:
    """Keeps an eye on the window for one attempt."""

    def __init__(
        self,
        options: JetStreamSinkOptions,
        origin: Origin,
        calls: Calls,
        targets: Targets,
        *,
        ledger: bool,
        own_ids: bool,
    ):
        self.options, self.origin, self.own_ids = options, origin, own_ids
        self.ledger = options.ledger if ledger else None
        self.unsure = False  # rows were sent, and their acks were lost
        self.present: dict[bytes, bytes] = {}  # rows that were found, by id: their values
        lasts = {name: info.last for name, info in targets.streams.items()}
        if self.ledger is None:
            self.claim = Claim(0, time.monotonic(), lasts, {})
        else:
            ages = targets.make_sure_of(self.ledger).allow_ttl and origin.is_single
            self.claim = Ledger(calls, self.ledger).claim(origin, lasts, {}, ages)
        self.done = self.claim.done
        self.since: dict[str, float] = {}  # when we knew what is in a stream; at first, when the first attempt began
        self.behind = dict(self.claim.at)  # where our rows can lie in each stream: after these

    def over(self, targets: Targets) -> list[str]:
        """The streams whose window no longer covers what is published now."""
        if self.ledger is None:
            return []
        now = time.monotonic()
        return [
            name
            for name, info in targets.streams.items()
            if now - self.since.get(name, self.claim.since) >= info.duplicate_window * RELIED_ON
        ]

    def look(self, calls: Calls, targets: Targets) -> None:
        """Know again what is there, where the window is over."""
        if self.ledger is None or self.done is not None:
            return
        if self.claim.attempt:
            self._compare(calls, targets)
        while over := self.over(targets):  # again where looking took longer than the window
            now = time.monotonic()
            alone = not self.claim.attempt and not self.unsure and Ledger(calls, self.ledger).alone(self.origin)
            for stream in over:
                if not alone:
                    self._read_back(calls, stream)
                self.since[stream] = now
            if len(over) == len(targets.streams):
                self.unsure = False

    def _compare(self, calls: Calls, targets: Targets) -> None:
        """Look at what an earlier attempt wrote, also where the window would do: it may have had other rows."""
        for stream in set(targets.streams) - set(self.since) - set(self.over(targets)):
            now = time.monotonic()
            try:
                self._read_back(calls, stream)
            except OptionError:  # some of it was removed; but the server knows it still
                now = self.claim.since
            self.since[stream] = now

    def find(self, chunk: Chunk) -> tuple[Ints, str | None]:
        """The numbers of the rows that are there, and how the first one differs that does."""
        if not self.present or chunk.ids is None:
            return np.empty(0, np.int64), None
        there = np.flatnonzero(np.asarray(pc.is_in(chunk.ids, pa.array(list(self.present), pa.binary()))))
        for row in there.tolist():
            name, value = chunk.ids[row].as_py(), chunk.value[row].as_py()
            before = self.present[name]
            if value != before and self.names(name):
                return chunk.number[there], f"row {chunk.number[row]} was {before[:40]!r} and is {value[:40]!r} now"
        return chunk.number[there], None

    def names(self, name: bytes) -> bool:
        """Whether an id is one that we made. What a user means by an id of his own is his affair."""
        return name.startswith(self.origin.id.encode())

    def differs(self, rows: int) -> str | None:
        """How an earlier attempt had more or fewer rows, if it is known."""
        if self.done is not None and self.done != rows:
            return f"there were {self.done:,} and now there are {rows:,}"
        prefix = self.origin.id.encode()
        numbers = [int(name[len(prefix) :]) for name in self.present if self.names(name)]
        if numbers and max(numbers) >= rows:
            return f"there was a row {max(numbers):,} and now there are {rows:,}"
        return None

    def _read_back(self, calls: Calls, stream: str) -> None:
        """Find our rows among all that was stored since the first attempt."""
        info = calls.stream(stream)
        given = {name: getattr(self.options, name) for name in NatsOptions.model_fields}
        source = JetStreamSource(JetStreamOptions(**given, stream=(stream,)), columns())
        try:
            source.bounds()
            after = self.behind.get(stream)
            if after is None:  # not known yet when the first note was left, and others may be ahead of us in it
                began = Ledger(calls, str(self.ledger)).began(self.origin)
                after = source.find(stream, began - CLOCK_SLACK) - 1
            seen = 0
            for batch in source.read(Range(stream, after + 1, info.last + 1, info.created)):
                seen += len(batch)
                ids, values = _ids(batch)
                if not self.own_ids:  # whoever else writes there does not concern us
                    ours = pc.starts_with(ids, self.origin.id.encode())
                    ids, values = ids.filter(ours), values.filter(ours)
                self.present |= dict(zip(ids.to_pylist(), values.to_pylist(), strict=True))
        except DataLossError as error:
            raise _cannot_tell(stream, str(error)) from None
        finally:
            source.close()
        if seen < info.last - after:
            raise _cannot_tell(stream, f"{info.last - after - seen:,} of the messages since {after} were removed")
        self.behind[stream] = info.last


def _ids(batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
    """The ids of the messages that have one, ours being the first of its name, and their values."""
    headers = batch.column("headers")
    structs = headers.flatten()
    named = np.flatnonzero(np.asarray(pc.equal(structs.field(0), MESSAGE_ID.decode())))
    rows = np.asarray(pc.list_parent_indices(headers))[named]
    first = np.flatnonzero(np.diff(rows, prepend=-1))
    return structs.field(1).take(pa.array(named[first])), batch.column("value").take(pa.array(rows[first]))


def _cannot_tell(stream: str, why: str) -> OptionError:
    return OptionError(
        f"an earlier attempt may have written some rows of this batch to stream '{stream}', and which ones cannot be "
        f"told any more: {why}. Set delivery=at_least_once for this run, and rows may be there twice."
    )
