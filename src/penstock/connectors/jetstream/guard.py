"""What a task may publish without storing a row twice, and until when. Knows ids, streams and attempts; publishes
nothing.

Within the duplicate window of a stream the server itself drops a row whose id it knows. So a task must know, at one
moment, which of its rows are stored: from then on the window covers what is added. The first attempt of a task knows
that nothing is stored; a later attempt reads the streams back for its rows. When the window ends before the task does,
it reads them back again.

After a restart, a server knows only the ids of messages that still exist. Then the streams are read back too, where
they may hold rows that the task does not know of. If messages are missing from them, the task fails: nobody can tell
what was stored.
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
from penstock.kit.contract import CLOCK_SLACK, Origin
from penstock.kit.rows import columns
from penstock.planning.positions import Range

# Use 80% of the duplicate window: what is sent must also arrive in it.
WINDOW_SHARE = 0.8
# Reading back may take longer than the window. The next time is shorter, as less is new: try so many times.
MOST_LOOKS = 10
# Stored rows, with what is compared of them. Null where the server changes what is sent.
ROWS = pa.schema([(name, pa.binary()) for name in ("id", "subject", "value", "headers")] + [("stream", pa.string())])


class _Unknown(Exception):  # noqa: N818 - what is wrong, said by whoever asked
    """Messages are gone, so a stream no longer shows which rows were stored in it."""


class Guard:
    """What one attempt knows about its streams, and how long the duplicate windows cover it."""

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
        self.unsure = False  # rows may be stored that we do not know of, but the server does
        self.present = ROWS.empty_table()  # stored rows that were read back
        lasts = {name: info.last for name, info in targets.streams.items()}
        if self.ledger is None:
            self.claim = Claim(0, time.monotonic(), lasts, {})
        else:
            ages = targets.ledger(self.ledger).allow_ttl and origin.is_single
            self.claim = Ledger(calls, self.ledger).claim(origin, lasts, targets.lives, ages)
        self.done = self.claim.done
        self.since: dict[str, float] = {}  # when each stream was last read back; else, when the first attempt began
        self.lives = dict(self.claim.lives)  # the life of each stream then (Targets says what a life is)
        self.read_up_to = dict(self.claim.at)  # unknown rows of this task are after these sequences
        self.acked: dict[str, int] = {}  # unknown rows of this attempt, whose acks are missing, are after these

    def expired(self, targets: Targets) -> list[str]:
        """The streams whose window no longer covers what is published now."""
        if self.ledger is None:
            return []
        now = time.monotonic()
        return [
            name
            for name, info in targets.streams.items()
            if now - self.since.get(name, self.claim.since) >= info.duplicate_window * WINDOW_SHARE
        ]

    def look(self, calls: Calls, targets: Targets) -> None:
        """Read back the streams where that is needed: another attempt may have stored rows, the window has expired, or
        the server has restarted. An OptionError where it can no longer be told which rows are stored.
        """
        if self.ledger is None or self.done is not None:
            return
        for stream in targets.streams:
            self._read_back_others(calls, targets, stream)
        for _ in range(MOST_LOOKS):
            expired = self.expired(targets)
            if not expired:
                return
            now = time.monotonic()
            knows_all = not self.unsure and self._is_only_attempt(calls)
            for stream in expired:
                info, life = targets.look(stream)
                if not knows_all:
                    try:
                        self._read_back(calls, info)
                    except _Unknown as why:
                        raise _cannot_tell(stream, str(why)) from None
                self.since[stream], self.lives[stream] = now, life
            if len(expired) == len(targets.streams):
                self.unsure = False
        raise OptionError(
            f"stream '{expired[0]}' forgets ids after {targets.streams[expired[0]].duplicate_window:g}s "
            f"(duplicate_window), and to look what is there took longer, {MOST_LOOKS} times: so nothing can be written "
            f"exactly once. Raise it: nats stream edit {expired[0]} --dupe-window=2m"
        )

    def _read_back_others(self, calls: Calls, targets: Targets, stream: str) -> None:
        """Read back the rows of an earlier attempt, also within the window: that attempt may have had other rows. After
        a restart of the server, read back the rows that only the server knew.
        """
        is_first_look = bool(self.claim.attempt) and stream not in self.since
        if not self.claim.attempt:
            self.lives.setdefault(stream, targets.lives[stream])
        if not is_first_look and not self.unsure:
            return
        now = time.monotonic()
        info, life = targets.look(stream)
        restarted = not life or life != self.lives.get(stream)
        if not is_first_look and not restarted:
            return
        try:
            if restarted and info.in_memory and info.replicas == 1:
                raise _Unknown("its messages were kept in memory")
            self._read_back(calls, info)
        except _Unknown as why:
            if restarted:
                raise _cannot_tell(
                    stream,
                    f"{why}, and its server has started anew, or another one leads it, and knows only the ids of what "
                    "is there",
                ) from None
            self.unsure, now = True, self.claim.since  # the server knows the ids, until it restarts
        self.since[stream], self.lives[stream] = now, life

    def _is_only_attempt(self, calls: Calls) -> bool:
        """Whether no other attempt of this task has begun."""
        return not self.claim.attempt and Ledger(calls, str(self.ledger)).has_one_attempt(self.origin)

    def find(self, chunk: Chunk, targets: Targets) -> tuple[Ints, str | None]:
        """The numbers of the rows that are stored, and how the first row differs from the stored one, if any does."""
        if not len(self.present) or chunk.ids is None:
            return np.empty(0, np.int64), None
        at = pc.index_in(chunk.ids, value_set=self.present["id"])
        rows = np.flatnonzero(np.asarray(at.is_valid()))
        return chunk.number[rows], self.compare(chunk, rows, self.present.take(at.drop_null()), targets)

    def compare(self, chunk: Chunk, rows: Ints, stored: pa.Table, targets: Targets) -> str | None:
        """How the first of these rows of a chunk differs from the stored one; None where none does. Rows with ids of
        the user are not compared.
        """
        take = pa.array(rows)
        now = {name: getattr(chunk, name).take(take) for name in ("subject", "value")}
        now["headers"] = _comparable_headers(chunk.block.take(take) if chunk.block is not None else None, len(rows))
        ours = pc.starts_with(stored["id"], self.origin.id.encode())
        for name in ("value", "headers", "subject"):
            different = pc.and_(ours, pc.fill_null(pc.not_equal(now[name], stored[name]), False))
            row = pc.index(different, True).as_py()
            if row < 0:
                continue
            was, is_now = stored[name][row].as_py(), now[name][row].as_py()
            if name == "subject" and targets.rewrites(stored["stream"][row].as_py(), is_now.decode(errors="replace")):
                continue
            what = "" if name == "value" else f"'s {name}"
            return f"row {chunk.number[rows[row]]}{what} was {was[:40]!r} then and is {is_now[:40]!r} now"
        return None

    def differs(self, rows: int, digest: str) -> str | None:
        """How an earlier attempt had more, fewer or other rows; None where it did not, or that is not known."""
        if self.done is not None and self.done != rows:
            return f"there were {self.done:,} and now there are {rows:,}"
        if self.done and self.claim.digest and self.claim.digest != digest:
            return f"there were as many, with {self.claim.digest}, and these have {digest}"
        ids = self.present["id"].filter(pc.starts_with(self.present["id"], self.origin.id.encode()))
        if not len(ids):
            return None
        numbers = pc.utf8_slice_codeunits(ids.cast(pa.string()), len(self.origin.id)).cast(pa.int64())
        last = pc.max(numbers).as_py()
        return f"there was a row {last:,} and now there are {rows:,}" if last >= rows else None

    def _read_back(self, calls: Calls, info: StreamInfo) -> None:
        """Add our rows among the messages since the first attempt, or since our last ack, to `present`. Raises _Unknown
        where some of these messages are gone.
        """
        connection = {name: getattr(self.options, name) for name in NatsOptions.model_fields}
        source = JetStreamSource(
            JetStreamOptions(**connection, stream=(info.name,)), columns(pa.field("subject", pa.string()))
        )
        seen, tables = 0, [self.present]
        try:
            source.check()
            after = self._after(calls, info.name, source)
            for batch in source.read(Range(info.name, after + 1, info.last + 1, info.created)):
                seen += len(batch)
                rows = _rows(batch, info)
                if not self.own_ids:  # the rows of others need not be kept
                    rows = rows.filter(pc.starts_with(rows["id"], self.origin.id.encode()))
                tables.append(rows)
        except (DataLossError, OptionError) as error:
            raise _Unknown(str(error).removesuffix(".")) from None
        finally:
            source.close()
        if seen != info.last - after:
            gone = info.last - after - seen
            raise _Unknown(
                f"{gone:,} of the messages since {after} were removed" if gone > 0 else f"it was at {after} before"
            )
        self.present = pa.concat_tables(tables)
        self.read_up_to[info.name] = info.last

    def _after(self, calls: Calls, stream: str, source: JetStreamSource) -> int:
        """The last sequence before the rows that we do not know of."""
        if stream in self.acked and self._is_only_attempt(calls):
            return max(self.acked[stream], self.read_up_to.get(stream, 0))
        if stream in self.read_up_to:
            return self.read_up_to[stream]
        # The first note does not have this stream, and other attempts may have written to it before us.
        return source.find(stream, Ledger(calls, str(self.ledger)).began(self.origin) - CLOCK_SLACK) - 1


def stored_row(name: bytes, message: Stored, info: StreamInfo) -> pa.Table:
    """A message as a table of one row, for `compare`."""
    headers = all_fields(pa.array([message.headers], pa.binary())).as_column()
    return _table(pa.array([name], pa.binary()), [message.subject.encode()], [message.body], headers, info)


def _rows(batch: pa.RecordBatch, info: StreamInfo) -> pa.Table:
    """The messages that have an id. Where one has several, the first is the one that the sink gave."""
    headers = batch.column("headers")
    structs = headers.flatten()
    named = np.flatnonzero(np.asarray(pc.equal(structs.field(0), MESSAGE_ID.decode())))
    rows = np.asarray(pc.list_parent_indices(headers))[named]
    first = np.flatnonzero(np.diff(rows, prepend=-1))
    messages = batch.take(pa.array(rows[first]))
    ids = structs.field(1).take(pa.array(named[first]))
    return _table(ids, messages["subject"].cast(pa.binary()), messages["value"], messages["headers"], info)


def _table(ids: pa.Array, subject: pa.Array, value: pa.Array, headers: pa.Array, info: StreamInfo) -> pa.Table:
    nulls = pa.nulls(len(ids), pa.binary())
    if info.derived:
        subject = nulls
    if info.counts:
        value = nulls
    streams = pa.repeat(info.name, len(ids))
    return pa.table([ids, subject, value, header_lines(headers, COMMANDS), streams], schema=ROWS)


def _comparable_headers(block: pa.Array | None, rows: int) -> pa.Array:
    """The headers of rows to publish, as they would be read back, without those that command the server."""
    if block is None:
        return pa.repeat(pa.scalar(b"", pa.binary()), rows)
    return header_lines(all_fields(join(b"NATS/1.0\r\n", block, b"\r\n")).as_column(), COMMANDS)


def _cannot_tell(stream: str, why: str) -> OptionError:
    return OptionError(
        f"some rows of this batch may have been written to stream '{stream}' before, and which ones cannot be told any "
        f"more: {why}. Set delivery=at_least_once for one run, and rows may be there twice. Back at exactly_once, the "
        "query asks for a note in the ledger first, and says which."
    )
