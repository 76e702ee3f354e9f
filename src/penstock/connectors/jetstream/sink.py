"""Rows into JetStream streams, each exactly once. Knows partitions, attempts and errors. Which rows may be published is
in guard.py, and how in clients/jetstream/publish.py.
"""

import logging
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import pyarrow as pa

from penstock.arrow.buffers import lengths
from penstock.clients.jetstream import api, publish
from penstock.clients.jetstream.acks import Acks, Refusal
from penstock.clients.jetstream.calls import Calls
from penstock.clients.jetstream.publish import Chunk
from penstock.clients.nats.client import LineTooLong
from penstock.clients.nats.frames import longest_line
from penstock.clients.nats.pool import connect, keep
from penstock.connectors.jetstream import modes, rows
from penstock.connectors.jetstream.guard import Guard, stored_row
from penstock.connectors.jetstream.ledger import Ledger
from penstock.connectors.jetstream.options import JetStreamSinkOptions
from penstock.connectors.jetstream.targets import Targets, no_stream_error
from penstock.errors import ConnectError, Disconnected, PenstockError
from penstock.kit import templates
from penstock.kit.contract import Origin, Receipt, Spans, Transaction
from penstock.kit.prefetch import Prefetch

log = logging.getLogger("penstock")

# A remedy in errors about changed rows that only this sink has.
OWN_IDS = "give each row an `id` of its own, or "
# How many reported duplicates to compare with the stored message.
SAMPLES = 4

TTL_INVALID, TTL_OFF = 10165, 10166
_REMEDIES = {
    api.STORE_FAILED: "Make room in the stream, or let it discard old messages",
    api.SEALED: "A sealed stream takes no more messages: write to another one",
    **dict.fromkeys(api.WRONG_SEQUENCE, "Somebody else has written to the subject since; read it again and decide"),
    TTL_INVALID: "The column 'ttl' (or a header Nats-TTL) must be whole seconds, at least 1, or text such as 30s, 1h "
    "or never",
    TTL_OFF: "The row has a time to live, in the column 'ttl' or a header Nats-TTL, and the stream allows none: turn "
    "it on with `nats stream edit {stream} --allow-msg-ttl` (nats-server 2.11), or leave the column out",
}


class _Busy(Disconnected):
    """The server answered for every row, and was not ready for some of them."""


class JetStreamSink:
    """A sink on one connection, opened for the first row."""

    def __init__(self, options: JetStreamSinkOptions, columns: pa.Schema):
        rows.accept(options, columns)
        self.options = options
        self.own_ids, self.own_subjects = "id" in columns.names, "subject" in columns.names
        self._calls: Calls | None = None

    def write(self, batches: Iterator[pa.RecordBatch], origin: Origin) -> Receipt:
        """Publish the rows that are not stored yet. Returns when every row is stored."""
        task = _Task(self, origin, batches)
        try:
            for chunk in task.chunks:
                task.put(chunk)
            return task.receipt()
        except PenstockError as error:
            task.spans.explain(error, known_again=self.options.delivery == "exactly_once")
            raise

    def commit(self, receipts: Sequence[Receipt], batch: int | None) -> None:
        """Note in the ledger that the batch is done, or delete the notes of a `df.write`, which is never replayed."""
        for receipt in receipts:
            if receipt.rows:
                log.info("%s", receipt)
        if not receipts or not self.has_ledger:
            return
        origin = receipts[0].origin
        query, number = origin.query, batch or 0
        rows = {receipt.origin.partition: receipt.rows for receipt in receipts if receipt.rows}
        digests = {receipt.origin.partition: receipt.digest for receipt in receipts if receipt.digest}
        try:
            ledger = Ledger(self.open(), self.options.ledger)
            # A source that cannot be read twice replays an empty batch: then no row has moved to another partition.
            if rows:
                self._refuse_moved(origin, ledger.missing(query, number, rows))
            if batch is not None:
                missing = ledger.done(query, batch, rows, digests)
                self._refuse_moved(origin, missing if rows else ())
            elif rows:
                ledger.forget(query)
        except Disconnected:
            self.drop()
            raise

    def _refuse_moved(self, origin: Origin, missing: Collection[int]) -> None:
        """Refuse a batch where `missing` partitions had rows before and have none now: other partitions have written
        them again. Rows with ids of the user are recognised in any partition.
        """
        if missing and not self.own_ids:
            raise origin.moved(missing, OWN_IDS)

    def check(self) -> None:
        """Reach JetStream. Where all rows go to one subject, make sure that a stream has it and allows publishMode."""
        subject, mode = self.options.subject or "", self.options.publish_mode
        is_fixed = bool(subject) and not self.own_subjects and not templates.columns(subject)
        try:
            calls = self.open()
            names = calls.names(subject if is_fixed else "any")
            if is_fixed and not names:
                raise no_stream_error(calls, subject)
            infos = calls.streams(names).values() if is_fixed and mode in ("fast", "atomic") else ()
            modes.refuse(mode, calls.connection, [info for info in infos if info is not None])
        except Disconnected:
            self.drop()
            raise

    def most_bytes(self) -> int:
        """What the server takes."""
        return self.open().connection.max_payload or 1 << 20

    @property
    def has_ledger(self) -> bool:
        """Whether each attempt is noted in a ledger."""
        return self.options.delivery == "exactly_once" and self.options.ledger.lower() != "none"

    def open(self) -> Calls:
        """The calls on the connection, which is opened where there is none."""
        if self._calls is None:
            self._calls = Calls(connect(self.options), self.options, self.options.ledger)
        return self._calls

    def drop(self) -> None:
        """Close a broken connection."""
        if self._calls is not None:
            self._calls.connection.close()
            self._calls = None

    def close(self) -> None:
        """Give the connection back."""
        if self._calls is not None:
            keep(self._calls.connection)
            self._calls = None


class _Task:
    """One attempt to write one partition."""

    def __init__(self, sink: JetStreamSink, origin: Origin, batches: Iterator[pa.RecordBatch]):
        self.sink, self.options, self.origin = sink, sink.options, origin
        self.chunks = Prefetch(self._chunks(batches))
        self.rows = self.size = self.known = 0
        self.spans = Spans()
        # Two writes may have one txnAppId by mistake, and the ledger, one for all streams, must tell them apart.
        self.has_digest = sink.has_ledger and isinstance(origin, Transaction)
        self.checksum = 0  # of the rows so far
        self.streams: set[str] = set()  # that take them
        self.targets: Targets | None = None
        self.guard: Guard | None = None
        self.compared = 0

    def _chunks(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Chunk]:
        first = 0
        for batch in batches:
            if len(batch):
                yield from rows.parts(rows.chunk(self.options, self.origin, batch, first))
                first += len(batch)

    def put(self, chunk: Chunk) -> None:
        """Store all rows of a chunk, over new connections where one breaks."""
        self.rows += len(chunk)
        self.size += int(lengths(chunk.value).sum())
        if self.has_digest:
            self.checksum = rows.checksum(chunk, self.checksum)
        one_by_one, retry = False, self.options.retry(f"writing {self.origin}")
        while len(chunk):
            try:
                self._store(chunk, one_by_one)
                retry.progress()
                one_by_one = True  # the server says of a single row why it refuses it, but not of a batch
            except Disconnected as error:
                if chunk.stored.any():
                    retry.progress()
                if not isinstance(error, _Busy):
                    self._lost()
                retry.after(error)
            finally:
                if self.guard is not None:
                    self.guard.acked |= chunk.reached
            chunk = chunk.rest()

    def receipt(self) -> Receipt:
        """What was written, and where. A ProtocolError where an earlier attempt had other rows."""
        if self.guard is not None and (why := self.guard.differs(self.rows, self._digest())):
            raise self.origin.differs(why, OWN_IDS)
        return Receipt(self.origin, self.rows, self.size, self.spans, self.known, digest=self._digest())

    def _digest(self) -> str:
        """What tells these rows from those of another write; empty where nothing else can have this name. Rows with ids
        of the user may come in another order and with another content: then it is where they go.
        """
        if not self.has_digest or not self.rows:
            return ""
        if self.sink.own_ids:
            return f"streams {', '.join(sorted(self.streams))}"
        return f"checksum {self.checksum:08x}"

    def _lost(self) -> None:
        self.sink.drop()
        self.targets = None
        if self.guard is not None:
            self.guard.unsure = True

    def _store(self, chunk: Chunk, one_by_one: bool) -> None:
        """Publish a chunk once, and mark the rows in it that are stored."""
        calls = self.sink.open()
        error = rows.too_large(chunk, self.origin, calls.connection.max_payload or 1 << 20)
        if error is not None:
            raise error
        if self.targets is None:
            self.targets = Targets(calls)
        names = self.targets.of(chunk.subject)
        self.streams.update(names)
        if self.options.delivery == "exactly_once":
            if self.guard is None:
                self.guard = Guard(
                    self.options, self.origin, calls, self.targets,
                    ledger=self.sink.has_ledger, own_ids=self.sink.own_ids,
                )  # fmt: skip
            self.guard.look(calls, self.targets)
            if self._mark_present(chunk, self.targets):
                return
        acks = self._publish(calls, self.targets, names, chunk, one_by_one)
        for stream, (first, last) in acks.spans.items():
            self.spans.widen(stream, first, last)
        if chunk.stored.all():
            chunk.reached = acks.lasts()
        self.known += len(acks.known)
        self._compare_duplicates(calls, self.targets, chunk, acks)
        if acks.refused:
            self._handle_refusals(calls, names, chunk, acks.refused)

    def _publish(self, calls: Calls, targets: Targets, names: list[str], chunk: Chunk, one_by_one: bool) -> Acks:
        try:
            return self._publish_as(calls, targets, names, chunk, one_by_one)
        except LineTooLong:
            raise rows.chunk_error(self.origin, chunk, longest_line(chunk.subject)) from None

    def _publish_as(self, calls: Calls, targets: Targets, names: list[str], chunk: Chunk, one_by_one: bool) -> Acks:
        mode = "pipelined" if one_by_one else self._mode(calls, targets, names, chunk)
        timeout = self.options.ack_timeout
        if mode == "fast":
            return publish.fast(calls.connection, chunk, timeout)
        if mode == "atomic":
            return publish.atomic(calls.connection, chunk, timeout)

        def in_time() -> bool:
            return self.guard is None or not self.guard.expired(targets)

        in_flight = self.options.max_in_flight
        return publish.pipelined(calls.connection, chunk, in_flight, timeout, in_time, self.chunks.prepare)

    def _mode(self, calls: Calls, targets: Targets, names: list[str], chunk: Chunk) -> str:
        """The way to publish: what publishMode says, or the fastest that the stream allows."""
        wanted = self.options.publish_mode
        if wanted == "pipelined":
            return wanted
        streams = [targets.streams[name] for name in names]
        modes.refuse(wanted, calls.connection, streams)
        window = targets.window if self.guard is not None else None
        return modes.choose(wanted, calls.connection, streams, conditional=chunk.conditional, window=window)

    def _mark_present(self, chunk: Chunk, targets: Targets) -> bool:
        """Mark the rows that an earlier attempt has stored. True where there are any."""
        assert self.guard is not None
        if self.guard.done is not None:
            present = chunk.number
        else:
            present, difference = self.guard.find(chunk, targets)
            if difference is not None:
                raise self.origin.differs(difference, OWN_IDS)
        chunk.mark(present)
        self.known += len(present)
        return len(present) > 0

    def _compare_duplicates(self, calls: Calls, targets: Targets, chunk: Chunk, acks: Acks) -> None:
        """Compare some of the duplicates with the stored messages. A ProtocolError where one differs."""
        if self.guard is None or chunk.ids is None:
            return
        for number, stream, sequence in acks.known[: max(0, SAMPLES - self.compared)]:
            self.compared += 1
            row = int(np.searchsorted(chunk.number, number))
            message = calls.at(stream, sequence)
            if message is None:
                continue
            stored = stored_row(chunk.ids[row].as_py(), message, targets.streams[stream])
            if difference := self.guard.compare(chunk, np.array([row]), stored, targets):
                raise self.origin.differs(difference, OWN_IDS)

    def _handle_refusals(self, calls: Calls, names: list[str], chunk: Chunk, refused: list[Refusal]) -> None:
        """Raise the error for the first row that cannot be stored, or a Disconnected where publishing again may help.
        Rows that are stored already are marked.
        """
        busy = ""
        for number, code, text in refused:
            row = int(np.searchsorted(chunk.number, number))
            subject, value = chunk.subject[row].as_py().decode(), chunk.value[row].as_py()
            if code in (api.TOO_BUSY, api.IN_PROCESS):
                busy = text
            elif code == api.NO_LISTENER:
                if not calls.names(subject):
                    raise no_stream_error(calls, subject)
                raise Disconnected(f"no server takes messages on '{subject}' at the moment")
            elif self._is_stored(calls, names, subject, value, code):
                chunk.mark(np.array([number]))
                self.known += 1
            else:
                remedy = f" {_REMEDIES[code].replace('{stream}', ' '.join(names))}." if code in _REMEDIES else ""
                raise ConnectError(
                    f"row {number} of {self.origin} ({value[:60]!r} to '{subject}') was refused: {text} (error {code})."
                    + remedy
                )
        if busy:
            raise _Busy(f"the server is not ready for some rows: {busy}")

    def _is_stored(self, calls: Calls, names: list[str], subject: str, value: bytes, code: int) -> bool:
        """Whether the row was refused because the stream keeps one message per subject, and that is this row."""
        assert self.targets is not None
        if code != api.STORE_FAILED or not all(self.targets.streams[name].one_per_subject for name in names):
            return False
        messages = [calls.last_of(name, subject) for name in names]
        return any(message is not None and message.body == value for message in messages)
