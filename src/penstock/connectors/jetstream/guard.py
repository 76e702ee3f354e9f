"""What a task may publish without writing anything twice, and until when.

Within the duplicate window of a stream the server itself drops a row that it has seen. So all that is needed is to
know, at some moment, which rows of the task are there already: from then on the window covers what anybody adds.
The first attempt of a task knows at once that nothing is there; a later one reads the streams back for its rows. When
the window ends while a task is still at work, it looks again.

A server that starts anew knows only the ids of messages that are still there. Where it has, and rows may be there that
we do not know of, the streams are read back too; if messages are missing from them, nobody can tell, and we stop.
"""

import time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.buffers import Ints, join
from penstock.clients.jetstream.api import StreamInfo
from penstock.clients.jetstream.calls import Calls, Stored
from penstock.clients.jetstream.publish import Chunk
from penstock.clients.nats.commands import COMMANDS
from penstock.clients.nats.frames import header_lines
from penstock.clients.nats.headers import all_fields
from penstock.clients.nats.options import NatsOptions
from penstock.connectors.jetstream.ledger import Claim, Ledger
from penstock.connectors.jetstream.options import JetStreamOptions, JetStreamSinkOptions
from penstock.connectors.jetstream.rows import MESSAGE_ID
from penstock.connectors.jetstream.source import JetStreamSource
from penstock.connectors.jetstream.targets import Targets
from penstock.errors import DataLossError, OptionError
from penstock.kit.contract import Origin
from penstock.kit.rows import columns
from penstock.planning.positions import Range

# Of the window, how much is relied on: what is sent must also arrive in it.
RELIED_ON = 0.8
# Clocks of servers may differ, by far less than this.
CLOCK_SLACK = 60_000_000
# A look that takes longer than the window is followed by a shorter one, as less is new; but not for ever.
LOOKS = 10
# Rows that are there, as far as they are compared: null where the server makes something else of what is sent.
ROWS = pa.schema([(name, pa.binary()) for name in ("id", "subject", "value", "headers")] + [("stream", pa.string())])


class _Unknown(Exception):  # noqa: N818 - what is wrong, said by whoever asked
    """Messages are gone, so that what is left of a stream does not tell what was written to it."""


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
        self.unsure = False  # rows may be there that we do not know of, and the server knows them
        self.present = ROWS.empty_table()  # rows that were found
        lasts = {name: info.last for name, info in targets.streams.items()}
        if self.ledger is None:
            self.claim = Claim(0, time.monotonic(), lasts, {})
        else:
            ages = targets.make_sure_of(self.ledger).allow_ttl and origin.is_single
            self.claim = Ledger(calls, self.ledger).claim(origin, lasts, targets.lives, ages)
        self.done = self.claim.done
        self.since: dict[str, float] = {}  # when we knew what is in a stream; at first, when the first attempt began
        self.lives = dict(self.claim.lives)  # which life each stream led then
        self.behind = dict(self.claim.at)  # where rows of this task can lie in each stream: after these
        self.acked: dict[str, int] = {}  # and rows of this attempt whose acks did not come: after these

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
        """Know what is there, where others may have written, the window is over, or the server has started anew."""
        if self.ledger is None or self.done is not None:
            return
        for stream in targets.streams:
            self._make_sure(calls, targets, stream)
        for _ in range(LOOKS):
            over = self.over(targets)
            if not over:
                return
            now = time.monotonic()
            alone = not self.unsure and self._alone(calls)
            for stream in over:
                info, life = targets.look(stream)
                if not alone:
                    try:
                        self._read_back(calls, info)
                    except _Unknown as why:
                        raise _cannot_tell(stream, str(why)) from None
                self.since[stream], self.lives[stream] = now, life
            if len(over) == len(targets.streams):
                self.unsure = False
        raise OptionError(
            f"stream '{over[0]}' forgets ids after {targets.streams[over[0]].duplicate_window:g}s (duplicate_window), "
            f"and to look what is there took longer, {LOOKS} times: so nothing can be written exactly once. Raise it: "
            f"nats stream edit {over[0]} --dupe-window=2m"
        )

    def _make_sure(self, calls: Calls, targets: Targets, stream: str) -> None:
        """Read back what an earlier attempt has written, also where the window would do: it may have had other rows.
        And whatever nobody knows of but a server that has started anew.
        """
        first = bool(self.claim.attempt) and stream not in self.since
        if not self.claim.attempt:
            self.lives.setdefault(stream, targets.lives[stream])
        if not first and not self.unsure:
            return
        now, (info, life) = time.monotonic(), targets.look(stream)
        anew = not life or life != self.lives.get(stream)
        if not first and not anew:
            return
        try:
            if anew and info.in_memory and info.replicas == 1:
                raise _Unknown("its messages were kept in memory")
            self._read_back(calls, info)
        except _Unknown as why:
            if anew:
                why_not = (
                    "its server has started anew, or another one leads it, and knows only the ids of what is there"
                )
                raise _cannot_tell(stream, f"{why}, and {why_not}") from None
            self.unsure, now = True, self.claim.since  # but the server knows it, as long as it is the same
        self.since[stream], self.lives[stream] = now, life

    def _alone(self, calls: Calls) -> bool:
        """Whether nobody but this attempt has written rows of this task."""
        return not self.claim.attempt and Ledger(calls, str(self.ledger)).alone(self.origin)

    def find(self, chunk: Chunk, targets: Targets) -> tuple[Ints, str | None]:
        """The numbers of the rows that are there, and how the first one differs that does."""
        if not len(self.present) or chunk.ids is None:
            return np.empty(0, np.int64), None
        at = pc.index_in(chunk.ids, value_set=self.present["id"])
        rows = np.flatnonzero(np.asarray(at.is_valid()))
        return chunk.number[rows], self.compare(chunk, rows, self.present.take(at.drop_null()), targets)

    def compare(self, chunk: Chunk, rows: Ints, there: pa.Table, targets: Targets) -> str | None:
        """How the first of these rows of a chunk differs from the one that is there; None where none does.

        An id of the user's own is his affair, whatever else is there under it.
        """
        take = pa.array(rows)
        now = {name: getattr(chunk, name).take(take) for name in ("subject", "value")}
        now["headers"] = _described(chunk.block.take(take) if chunk.block is not None else None, len(rows))
        ours = pc.starts_with(there["id"], self.origin.id.encode())
        for name in ("value", "headers", "subject"):
            other = pc.and_(ours, pc.fill_null(pc.not_equal(now[name], there[name]), False))
            row = pc.index(other, True).as_py()
            if row < 0:
                continue
            was, is_now = there[name][row].as_py(), now[name][row].as_py()
            if name == "subject" and targets.rewrites(there["stream"][row].as_py(), is_now.decode(errors="replace")):
                continue
            what = "" if name == "value" else f"'s {name}"
            return f"row {chunk.number[rows[row]]}{what} was {was[:40]!r} then and is {is_now[:40]!r} now"
        return None

    def differs(self, rows: int) -> str | None:
        """How an earlier attempt had more or fewer rows, if it is known."""
        if self.done is not None and self.done != rows:
            return f"there were {self.done:,} and now there are {rows:,}"
        ids = self.present["id"].filter(pc.starts_with(self.present["id"], self.origin.id.encode()))
        if not len(ids):
            return None
        numbers = pc.utf8_slice_codeunits(ids.cast(pa.string()), len(self.origin.id)).cast(pa.int64())
        last = pc.max(numbers).as_py()
        return f"there was a row {last:,} and now there are {rows:,}" if last >= rows else None

    def _read_back(self, calls: Calls, info: StreamInfo) -> None:
        """Find our rows among all that was stored since the first attempt, or since our last ack."""
        given = {name: getattr(self.options, name) for name in NatsOptions.model_fields}
        source = JetStreamSource(
            JetStreamOptions(**given, stream=(info.name,)), columns(pa.field("subject", pa.string()))
        )
        seen, found = 0, [self.present]
        try:
            source.check()
            after = self._after(calls, info.name, source)
            for batch in source.read(Range(info.name, after + 1, info.last + 1, info.created)):
                seen += len(batch)
                rows = _rows(batch, info)
                if not self.own_ids:  # whoever else writes there does not concern us
                    rows = rows.filter(pc.starts_with(rows["id"], self.origin.id.encode()))
                found.append(rows)
        except (DataLossError, OptionError) as error:
            raise _Unknown(str(error).removesuffix(".")) from None
        finally:
            source.close()
        if seen != info.last - after:
            gone = info.last - after - seen
            raise _Unknown(
                f"{gone:,} of the messages since {after} were removed" if gone > 0 else f"it was at {after} before"
            )
        self.present = pa.concat_tables(found)
        self.behind[info.name] = info.last

    def _after(self, calls: Calls, stream: str, source: JetStreamSource) -> int:
        """Where rows begin that we do not know of."""
        if stream in self.acked and self._alone(calls):
            return max(self.acked[stream], self.behind.get(stream, 0))
        if stream in self.behind:
            return self.behind[stream]
        # Not known yet when the first note was left, and others may be ahead of us in it.
        return source.find(stream, Ledger(calls, str(self.ledger)).began(self.origin) - CLOCK_SLACK) - 1


def one(name: bytes, message: Stored, info: StreamInfo) -> pa.Table:
    """A message as the rows that `compare` takes."""
    headers = all_fields(pa.array([message.headers], pa.binary())).as_column()
    return _table(pa.array([name], pa.binary()), [message.subject.encode()], [message.body], headers, info)


def _rows(batch: pa.RecordBatch, info: StreamInfo) -> pa.Table:
    """The messages that have an id, ours being the first of its name."""
    headers = batch.column("headers")
    structs = headers.flatten()
    named = np.flatnonzero(np.asarray(pc.equal(structs.field(0), MESSAGE_ID.decode())))
    rows = np.asarray(pc.list_parent_indices(headers))[named]
    first = np.flatnonzero(np.diff(rows, prepend=-1))
    rest = batch.take(pa.array(rows[first]))
    ids = structs.field(1).take(pa.array(named[first]))
    return _table(ids, rest["subject"].cast(pa.binary()), rest["value"], rest["headers"], info)


def _table(ids: pa.Array, subject: pa.Array, value: pa.Array, headers: pa.Array, info: StreamInfo) -> pa.Table:
    nothing = pa.nulls(len(ids), pa.binary())
    subject, value = nothing if info.derived else subject, nothing if info.counts else value
    streams = pa.repeat(info.name, len(ids))
    return pa.table([ids, subject, value, header_lines(headers, COMMANDS), streams], schema=ROWS)


def _described(block: pa.Array | None, rows: int) -> pa.Array:
    """The headers of rows that are sent, as they are read back, without those that command."""
    if block is None:
        return pa.repeat(pa.scalar(b"", pa.binary()), rows)
    return header_lines(all_fields(join(b"NATS/1.0\r\n", block, b"\r\n")).as_column(), COMMANDS)


def _cannot_tell(stream: str, why: str) -> OptionError:
    return OptionError(
        f"some rows of this batch may have been written to stream '{stream}' before, and which ones cannot be told any "
        f"more: {why}. Set delivery=at_least_once for one run, and rows may be there twice. Back at exactly_once, the "
        "query asks for a note in the ledger first, and says which."
    )
