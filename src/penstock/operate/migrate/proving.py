"""The proof on live traffic: a plain subscription and the streams, watched for a while. Streams are read by ephemeral
consumers; what is compared, and why those bounds, is in proof.py. Publishes nothing.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import pyarrow as pa

from penstock.clients.jetstream import engines
from penstock.clients.jetstream.api import StreamInfo
from penstock.clients.jetstream.calls import Calls
from penstock.clients.nats.client import Connection
from penstock.clients.nats.options import NatsOptions
from penstock.clients.nats.subjects import intersect
from penstock.errors import Disconnected, OptionError
from penstock.kit.retry import Retry
from penstock.operate.migrate.listening import NAME, Listener
from penstock.operate.migrate.proof import Kept, Print, Verdict, compare, fingerprint, of_message
from penstock.operate.migrate.traffic import Message

T = TypeVar("T")
# Seconds for a message to reach the leader of a stream, or us. It is waited for up to GRACE; SETTLE is for the moments
# at which a bound is taken, where waiting longer would prove nothing more.
SETTLE, GRACE = 0.5, 10.0
# Seconds between two looks at the last sequences; and the longest that JetStream may stay away.
STEP, AWAY = 0.25, 60.0
# The most messages of one proof: about a gigabyte of memory. And how far back ids of a duplicate window are looked for.
MOST, LOOK_BACK = 4_000_000, 100_000


class Mark(NamedTuple):
    """The last sequences at a moment, and what had been got by then."""

    moment: float
    lasts: Mapping[str, int]
    got: int


@dataclass
class Part:
    """One stretch of time in which the subscription was never interrupted."""

    seconds: float
    verdicts: list[Verdict]
    asked: list[str] = field(default_factory=list)  # servers that are known to have sent us what is published there
    unasked: list[str] = field(default_factory=list)
    interruption: str = ""  # what ended it, if it was not its time


@dataclass
class Proven:
    """What a proof found: its parts, and what to know of them."""

    parts: list[Part] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def verdicts(self) -> list[Verdict]:
        """Those of all parts."""
        return [verdict for part in self.parts for verdict in part.verdicts]

    @property
    def messages(self) -> int:
        """How many stored messages were compared."""
        return sum(verdict.stored for verdict in self.verdicts)

    @property
    def holds(self) -> bool:
        """Whether nothing was missing on either side. Says nothing where nothing was published."""
        return all(verdict.holds for verdict in self.verdicts)

    @property
    def whole(self) -> bool:
        """Whether all of the time was covered, and something was published in it."""
        return bool(self.messages) and not any(part.interruption for part in self.parts)


class Prover:
    """Proves streams. `tell` gets progress: how many messages came, and how many seconds are left."""

    def __init__(self, options: NatsOptions, streams: Sequence[str], tell: Callable[[int, float], None] | None = None):
        self.options = options.model_copy(update={"connection_name": NAME})
        self.names, self.tell = list(streams), tell or (lambda got, left: None)
        self.proven = Proven()
        self._calls: Calls | None = None
        self._leaders: dict[str, str] = {}
        self._deadline: float | None = None  # of all parts; the time begins when the first subscription is known

    def prove(self, seconds: float) -> Proven:
        """Watch for so long. An interruption of our own subscription ends a part, and another one begins."""
        try:
            self._leave_out(self._infos())
            while not self.proven.parts or (self._deadline or 0) - time.monotonic() > STEP:
                self.proven.parts.append(self._part(seconds))
        finally:
            self._drop()
        return self.proven

    def _leave_out(self, infos: Mapping[str, StreamInfo]) -> None:
        """Leave out streams that cannot be read without changing them, or that store something else than is published.
        An OptionError where no other is left.
        """
        for name, info in infos.items():
            if info.retention != "limits":
                why = (
                    f"has the retention '{info.retention}': what is read there is gone for its consumers, and what "
                    "they have read is gone for the proof"
                )
            elif info.derived or not info.takes:
                why = "is a mirror, has sources, or changes subjects: it does not hold what is published"
            else:
                continue
            self.names.remove(name)
            self.proven.remarks.append(f"stream '{name}' is not proven: it {why}.")
        if not self.names:
            raise OptionError(f"nothing can be proven. {' '.join(self.proven.remarks)}")

    def _part(self, seconds: float) -> Part:
        before = self._infos()
        filters = [text for info in before.values() for text in info.subjects]
        got: list[Print] = []

        def take(came: Sequence[Message]) -> None:
            if len(got) < MOST:
                got.extend(of_message(message.subject, message.block, message.body) for message in came)

        listener = Listener(self.options, filters, take)
        Retry("listening", timeout=AWAY).run(listener.open)
        try:
            asked, unasked = listener.probe()
            _sleep(SETTLE)
            start = self._infos()
            began = time.monotonic()
            deadline = self._deadline = self._deadline or began + seconds
            marks = [Mark(began, _lasts(start), len(got))]
            while listener.lost is None and time.monotonic() < deadline and len(got) < MOST:
                _sleep(min(STEP, max(0.01, deadline - time.monotonic())))
                self._mark(marks, got)
                self.tell(len(got), max(0.0, deadline - time.monotonic()))
            if listener.lost is None:
                self._mark(marks, got, must=True)
            return self._judge(listener, before, marks, got, Part(0.0, [], asked, unasked))
        finally:
            listener.close()

    def _mark(self, marks: list[Mark], got: Sequence[Print], *, must: bool = False) -> None:
        """Note the last sequences. While a stream has no leader nobody can tell them, and only the last look must."""
        try:
            infos = self._infos() if must else self._asked(self._look)
        except Disconnected:
            return
        marks.append(Mark(time.monotonic(), _lasts(infos), len(got)))

    def _judge(
        self,
        listener: Listener,
        before: Mapping[str, StreamInfo],
        marks: Sequence[Mark],
        got: Sequence[Print],
        part: Part,
    ) -> Part:
        """Read the streams, and wait for what is on its way, on either side."""
        start, end = marks[0], marks[-1]
        if listener.lost is not None:
            # What was stored shortly before may not have reached us any more.
            safe = [mark for mark in marks if mark.moment <= listener.until - SETTLE]
            end = (safe or [start])[-1]._replace(got=len(got))
            part.interruption = str(listener.lost)
        part.seconds = max(0.0, end.moment - start.moment)
        kept: dict[str, list[Kept]] = {name: [] for name in before}
        done = time.monotonic() + GRACE
        while True:
            is_open = listener.lost is None
            if is_open:
                listener.wait_for_look(GRACE)
            now = self._infos()
            for name, info in now.items():
                if info.created != before[name].created or info.last < end.lasts[name]:
                    raise OptionError(f"stream '{name}' was made anew during the proof, which proves nothing then.")
                known = kept[name][-1].sequence if kept[name] else before[name].last
                kept[name] += self._retried(f"reading '{name}'", _reading(name, known + 1, info.last + 1, info))
            part.verdicts = [
                self._verdict(name, before[name], list(got), end.got, kept[name], start.lasts[name], end.lasts[name])
                for name in before
            ]
            if all(verdict.holds for verdict in part.verdicts) or time.monotonic() > done:
                break
            _sleep(STEP)
        if len(got) >= MOST:
            self.proven.remarks.append(f"after {MOST:,} messages the proof ended: more do not fit into memory.")
        return part

    def _verdict(
        self, name: str, info: StreamInfo, got: list[Print], until: int, kept: list[Kept], start: int, end: int
    ) -> Verdict:
        takes = _Takes(info.subjects)
        mine = [each for each in got if takes(each.subject)]
        count = sum(takes(each.subject) for each in got[:until])
        found = compare(name, mine, count, kept, start, end)
        if found.lacking and any(each.id for each in mine):
            # An id that was stored before we began is dropped as well.
            low = max(info.first, info.last - LOOK_BACK)
            read = _reading(name, low, info.last + 1, info, young=info.duplicate_window)
            ids = {each.print.id for each in self._retried(f"reading '{name}'", read)}
            found = compare(name, mine, count, kept, start, end, ids)
        return found

    def _infos(self) -> dict[str, StreamInfo]:
        return self._retried("asking for streams", self._look)

    def _look(self, calls: Calls) -> dict[str, StreamInfo]:
        infos = calls.streams(self.names)
        found = {}
        for name, info in infos.items():
            if info is None:
                raise calls.missing(name)
            found[name] = info
            if self._leaders.setdefault(name, info.leader) != info.leader:
                self.proven.remarks.append(
                    f"the leader of '{name}' changed from '{self._leaders[name]}' to '{info.leader}' during the proof. "
                    "What is published without waiting for an ack while a stream has no leader reaches subscribers, "
                    "and is not stored."
                )
                self._leaders[name] = info.leader
        return found

    def _retried(self, what: str, ask: Callable[[Calls], T]) -> T:
        return Retry(what, timeout=AWAY).run(lambda: self._asked(ask))

    def _asked(self, ask: Callable[[Calls], T]) -> T:
        """The answer, on a connection that is kept while it lives."""
        try:
            if self._calls is None:
                # A server that is away for a moment is asked again: the next one may answer.
                limit = min(2.0, self.options.request_timeout)
                options = self.options.model_copy(update={"request_timeout": limit})
                self._calls = Calls(Connection(options), options)
            return ask(self._calls)
        except Disconnected:
            self._drop()
            raise

    def _drop(self) -> None:
        if self._calls is not None:
            self._calls.connection.close()
        self._calls = None


class _Takes:
    """Whether a stream takes a subject; asked for each message, so answers are kept."""

    def __init__(self, filters: Sequence[str]):
        self.filters, self.known = filters, dict[bytes, bool]()

    def __call__(self, subject: bytes) -> bool:
        if subject not in self.known:
            text = subject.decode(errors="replace")
            self.known[subject] = any(intersect(text, each) for each in self.filters)
        return self.known[subject]


def _reading(
    name: str, start: int, end: int, info: StreamInfo, young: float | None = None
) -> Callable[[Calls], list[Kept]]:
    """How to read a range of a stream: through an ephemeral consumer, as a new program does. With `young`, only what
    was stored so many seconds before the stream's last message, or later.
    """
    since = 0 if young is None else info.last_time - int(young * 1e6)

    def read(calls: Calls) -> list[Kept]:
        found: list[Kept] = []
        if start >= end:
            return found
        for rows in engines.consumer(calls, name, start, end, (), info.most_idle):
            subjects = rows.subject.view(pa.binary()).to_pylist()
            columns = (rows.sequence.to_pylist(), rows.timestamp.cast(pa.int64()).to_pylist(), subjects,
                       rows.headers().to_pylist(), rows.value.to_pylist())  # fmt: skip
            for sequence, stored, subject, pairs, body in zip(*columns, strict=True):
                if stored >= since:
                    fields = [(pair["key"], pair["value"]) for pair in pairs or ()]
                    found.append(Kept(sequence, fingerprint(subject, fields, body)))
        return found

    return read


def _lasts(infos: Mapping[str, StreamInfo]) -> dict[str, int]:
    return {name: info.last for name, info in infos.items()}


def _sleep(seconds: float) -> None:
    time.sleep(seconds)
