"""Rows into JetStream streams, each exactly once. What may be published when is guard.py's, how is publish.py's."""

import logging
from collections.abc import Iterable, Iterator, Sequence

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
from penstock.connectors.jetstream import rows
from penstock.connectors.jetstream.guard import Guard, one
from penstock.connectors.jetstream.ledger import Ledger
from penstock.connectors.jetstream.options import JetStreamSinkOptions
from penstock.connectors.jetstream.targets import Targets, nobody
from penstock.errors import ConnectError, Disconnected, OptionError, PenstockError
from penstock.kit import templates
from penstock.kit.contract import Origin, Receipt, Spans
from penstock.kit.prefetch import Ahead

log = logging.getLogger("penstock")

# A batch is sent whole, whatever the clock says meanwhile: the window of its stream must be far longer than that.
LEAST_WINDOW = 10.0
# The way out that only this sink has.
OWN_IDS = "give each row an `id` of its own, or "
# Of the rows that the server knew already, so many are compared with what is there.
SAMPLES = 4
# Faster ways to publish: what a stream must allow for each, and since when servers know it.
MODES = (("fast", "allow_batched", (2, 14)), ("atomic", "allow_atomic", (2, 12)))

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
    """The server answered for every row, and wants some of them again a little later."""


class JetStreamSink:
    """A sink on one connection, taken when the first row comes."""

    def __init__(self, options: JetStreamSinkOptions, columns: pa.Schema):
        rows.accept(options, columns)
        self.options = options
        self.own_ids, self.own_subjects = "id" in columns.names, "subject" in columns.names
        self._calls: Calls | None = None

    def write(self, batches: Iterator[pa.RecordBatch], origin: Origin) -> Receipt:
        """Publish the rows that are not there yet; returns when every row is stored."""
        task = _Task(self, origin, batches)
        try:
            for chunk in task.chunks:
                task.put(chunk)
            return task.receipt()
        except PenstockError as error:
            task.spans.explain(error, known_again=True)
            raise

    def commit(self, receipts: Sequence[Receipt], batch: int | None) -> None:
        """Note in the ledger that the batch is done, or forget a write that will not be asked for again."""
        for receipt in receipts:
            if receipt.rows:
                log.info("%s", receipt)
        if not receipts or not self.has_ledger:
            return
        query, rows = receipts[0].origin.query, {each.origin.partition: each.rows for each in receipts if each.rows}
        try:
            ledger = Ledger(self.open(), self.options.ledger)
            # Where none has rows, none moved: a source that cannot be asked twice replays an empty batch.
            if rows:
                self._refuse_moved(query, batch or 0, ledger.missing(query, batch or 0, rows))
            if batch is not None:
                missing = ledger.done(query, batch, rows)
                self._refuse_moved(query, batch, missing if rows else ())
            elif rows:
                ledger.forget(query)
        except Disconnected:
            self.drop()
            raise

    def _refuse_moved(self, query: str, batch: int, missing: Iterable[int]) -> None:
        """Refuse a batch of which partitions had rows before and have none now: others have written them again."""
        for partition in sorted(missing):
            if not self.own_ids:  # by these, rows are known again wherever they come from
                how = "it had rows then and has none now. They came in another partition, and may be there twice"
                raise Origin(query, batch, partition).differs(how, OWN_IDS)

    def check(self) -> None:
        """Reach JetStream, and where all rows go to one subject, make sure that a stream takes it, and as is asked."""
        subject = self.options.subject or ""
        same = bool(subject) and not self.own_subjects and not templates.columns(subject)
        try:
            calls = self.open()
            names = calls.names(subject if same else "any")
            if same and not names:
                raise nobody(calls, subject)
            infos = calls.streams(names).values() if same and self.options.publish_mode in ("fast", "atomic") else ()
            _refuse_mode(self.options.publish_mode, calls, [info for info in infos if info is not None])
        except Disconnected:
            self.drop()
            raise

    @property
    def has_ledger(self) -> bool:
        """Whether attempts are noted."""
        return self.options.delivery == "exactly_once" and self.options.ledger.lower() != "none"

    def open(self) -> Calls:
        """The connection."""
        if self._calls is None:
            self._calls = Calls(connect(self.options), self.options, self.options.ledger)
        return self._calls

    def drop(self) -> None:
        """Throw a broken connection away."""
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
        self.chunks = Ahead(self._chunks(batches))
        self.rows = self.size = self.known = 0
        self.spans = Spans()
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
        """Store a chunk, over new connections if need be."""
        self.rows += len(chunk)
        self.size += int(lengths(chunk.value).sum())
        one_by_one, retry = False, self.options.retry(f"writing {self.origin}")
        while len(chunk):
            try:
                self._store(chunk, one_by_one)
                one_by_one = True  # whatever a batch did not take, the server says why row by row
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
        """What was written, and where. A replay that had other rows the first time is refused."""
        if self.guard is not None and (why := self.guard.differs(self.rows)):
            raise self.origin.differs(why, OWN_IDS)
        return Receipt(self.origin, self.rows, self.size, self.spans, self.known)

    def _lost(self) -> None:
        self.sink.drop()
        self.targets = None
        if self.guard is not None:
            self.guard.unsure = True

    def _store(self, chunk: Chunk, one_by_one: bool) -> None:
        """Publish a chunk as far as it goes, and mark in it what is stored."""
        calls = self.sink.open()
        error = rows.too_large(chunk, self.origin, calls.connection.max_payload or 1 << 20)
        if error is not None:
            raise error
        if self.targets is None:
            self.targets = Targets(calls)
        names = self.targets.of(chunk.subject)
        if self.options.delivery == "exactly_once":
            if self.guard is None:
                self.guard = Guard(
                    self.options, self.origin, calls, self.targets,
                    ledger=self.sink.has_ledger, own_ids=self.sink.own_ids,
                )  # fmt: skip
            self.guard.look(calls, self.targets)
            if self._find_present(chunk, self.targets):
                return
        taken = self._publish(calls, self.targets, names, chunk, one_by_one)
        for stream, (first, last) in taken.spans.items():
            self.spans.widen(stream, first, last)
        if chunk.stored.all():
            chunk.reached = taken.lasts()
        self.known += len(taken.known)
        self._compare(calls, self.targets, chunk, taken)
        if taken.refused:
            self._judge(calls, names, chunk, taken.refused)

    def _publish(self, calls: Calls, targets: Targets, names: list[str], chunk: Chunk, one_by_one: bool) -> Acks:
        try:
            return self._publish_as(calls, targets, names, chunk, one_by_one)
        except LineTooLong:
            raise rows.of_chunk(self.origin, chunk, longest_line(chunk.subject)) from None

    def _publish_as(self, calls: Calls, targets: Targets, names: list[str], chunk: Chunk, one_by_one: bool) -> Acks:
        mode = "pipelined" if one_by_one else self._mode(calls, targets, names, chunk)
        timeout = self.options.ack_timeout
        if mode == "fast":
            return publish.fast(calls.connection, chunk, timeout)
        if mode == "atomic":
            return publish.atomic(calls.connection, chunk, timeout)
        guard = self.guard
        in_time = (lambda: True) if guard is None else (lambda: not guard.over(targets))
        window = self.options.max_in_flight
        return publish.pipelined(calls.connection, chunk, window, timeout, in_time, self.chunks.prepare)

    def _mode(self, calls: Calls, targets: Targets, names: list[str], chunk: Chunk) -> str:
        """The way that was asked for, or the best that the stream allows."""
        asked, version = self.options.publish_mode, calls.connection.version()
        if asked == "pipelined":
            return asked
        infos = [targets.streams[name] for name in names]
        _refuse_mode(asked, calls, infos)
        for mode, flag, since in MODES:
            alone = len(names) == 1 and not infos[0].one_per_subject and not chunk.conditional
            alone &= self.guard is None or targets.window >= LEAST_WINDOW
            # A stream on disk stages atomic batches there first, and takes 0.6 of the rows that it takes one by one.
            suits = mode == "fast" or asked == mode or infos[0].in_memory
            if asked in ("auto", mode) and version >= since and alone and suits and getattr(infos[0], flag):
                return mode
        return "pipelined"

    def _find_present(self, chunk: Chunk, targets: Targets) -> bool:
        """Mark the rows that an earlier attempt wrote; whether there are any."""
        assert self.guard is not None
        if self.guard.done is not None:
            found = chunk.number
        else:
            found, different = self.guard.find(chunk, targets)
            if different is not None:
                raise self.origin.differs(different, OWN_IDS)
        chunk.mark(found)
        self.known += len(found)
        return len(found) > 0

    def _compare(self, calls: Calls, targets: Targets, chunk: Chunk, taken: Acks) -> None:
        """Look at some of the rows that the server knew already: are they the same?"""
        if self.guard is None or chunk.ids is None:
            return
        for number, stream, sequence in taken.known[: max(0, SAMPLES - self.compared)]:
            self.compared += 1
            row = int(np.searchsorted(chunk.number, number))
            message = calls.at(stream, sequence)
            if message is None:
                continue
            there = one(chunk.ids[row].as_py(), message, targets.streams[stream])
            if different := self.guard.compare(chunk, np.array([row]), there, targets):
                raise self.origin.differs(different, OWN_IDS)

    def _judge(self, calls: Calls, names: list[str], chunk: Chunk, refused: list[Refusal]) -> None:
        """Make an error of what the server refused, unless it is no reason to stop."""
        busy = ""
        for number, code, text in refused:
            row = int(np.searchsorted(chunk.number, number))
            subject, value = chunk.subject[row].as_py().decode(), chunk.value[row].as_py()
            if code in (api.TOO_BUSY, api.IN_PROCESS):
                busy = text
            elif code == api.NO_LISTENER:
                if not calls.names(subject):
                    raise nobody(calls, subject)
                raise Disconnected(f"no server takes messages on '{subject}' at the moment")
            elif self._is_there(calls, names, subject, value, code):
                chunk.mark(np.array([number]))
                self.known += 1
            else:
                remedy = f" {_REMEDIES[code].replace('{stream}', ' '.join(names))}." if code in _REMEDIES else ""
                raise ConnectError(
                    f"row {number} of {self.origin} ({value[:60]!r} to '{subject}') was refused: {text} (error {code})."
                    + remedy
                )
        if busy:  # a pause, and the rest again, for as long as that helps
            raise _Busy(f"the server is not ready for some rows: {busy}")

    def _is_there(self, calls: Calls, names: list[str], subject: str, value: bytes, code: int) -> bool:
        """Whether a stream that keeps one message a subject has just this one."""
        assert self.targets is not None
        if code != api.STORE_FAILED or not all(self.targets.streams[name].one_per_subject for name in names):
            return False
        there = [calls.last_of(name, subject) for name in names]
        return any(message is not None and message.body == value for message in there)


def _refuse_mode(asked: str, calls: Calls, infos: Sequence[api.StreamInfo]) -> None:
    """Refuse a way to publish that the server does not know or a stream does not allow."""
    for mode, flag, since in MODES:
        lacking = [info.name for info in infos if not getattr(info, flag)]
        if asked != mode or (calls.connection.version() >= since and not lacking):
            continue
        where = f" on stream {', '.join(lacking)}" if lacking else ""
        needs, has = ".".join(map(str, since)), calls.connection.info.get("version")
        raise OptionError(
            f"publishMode={mode} needs nats-server {needs} (this is {has}) and {flag}{where}. Turn it on, or leave "
            "publishMode at auto."
        )
