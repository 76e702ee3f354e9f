"""The proof on live traffic: a plain subscription and the streams, watched for a while. Streams are read by ephemeral
consumers; what is compared, and why those bounds, is in proof.py. Publishes nothing.
"""

import time
from array import array
from bisect import bisect_left
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
from penstock.operate.migrate.proof import Edges, Kept, Print, Verdict, compare, fingerprint, of_message
from penstock.operate.migrate.traffic import Message

T = TypeVar("T")
# Seconds for a message to reach the leader of a stream, or us. It is waited for up to GRACE; SETTLE is for the moments
# at which a bound is taken, where waiting longer would prove nothing more.
SETTLE, GRACE = 0.5, 10.0
# Seconds between two looks at the last sequences; and the longest that JetStream may stay away.
STEP, AWAY = 0.25, 60.0
# How often a bound is taken, until one is found at which nothing comes.
TRIES = 5
# The most messages of one proof: about a gigabyte of memory. And how far back ids of a duplicate window are looked for.
MOST, LOOK_BACK = 4_000_000, 100_000


class Mark(NamedTuple):
    """The last sequences at a moment, and how many messages had come by then."""

    moment: float
    lasts: Mapping[str, int]
    got: int  # those that had come before the sequences were asked for: they must be stored
    around: tuple[int, int]  # the same, and those that had come after the answer


@dataclass
class Part:
    """One stretch of time in which the subscription was never interrupted."""

    seconds: float
    verdicts: list[Verdict]
    asked: list[str] = field(default_factory=list)  # servers that are known to have sent us what is published there
    unasked: list[str] = field(default_factory=list)
    interruption: str = ""  # what ended it, if it was not its time
    is_full: bool = False  # whether that was the number of messages, after which the proof ends


@dataclass
class Proven:
    """What a proof found: its parts, and what to know of them."""

    parts: list[Part] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    without_stream: list[str] = field(default_factory=list)  # subjects that were asked for, and that no stream takes

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
        """Whether nothing was missing for sure. Says nothing where nothing was published."""
        return all(verdict.holds for verdict in self.verdicts)

    @property
    def whole(self) -> bool:
        """Whether all of the time was covered, something was published in it, and all of it could be compared."""
        if self.without_stream or not all(verdict.whole for verdict in self.verdicts):
            return False
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
        """Watch for so long. An interruption of our own subscription ends a part, and another one begins. After MOST
        messages the proof ends.
        """
        try:
            self._leave_out(self._infos())
            while not self.proven.parts or (self._deadline or 0) - time.monotonic() > STEP:
                self.proven.parts.append(self._part(seconds))
                if self.proven.parts[-1].is_full:
                    break
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
        got = _Got()
        listener = self._listener = Listener(self.options, filters, lambda came: got.take(came, listener.covered))
        Retry("listening", timeout=AWAY).run(listener.open)
        try:
            asked, unasked = listener.probe()
            time.sleep(SETTLE)
            marks: list[Mark] = []
            self._edge(marks, got.prints)
            deadline = self._deadline = self._deadline or marks[0].moment + seconds
            while listener.lost is None and time.monotonic() < deadline and got.full is None:
                time.sleep(min(STEP, max(0.01, deadline - time.monotonic())))
                self._mark(marks, got.prints)
                self.tell(len(got.prints), max(0.0, deadline - time.monotonic()))
            if listener.lost is None and got.full is None:
                self._edge(marks, got.prints)
            return self._judge(listener, before, marks, got, Part(0.0, [], asked, unasked))
        finally:
            listener.close()

    def _edge(self, marks: list[Mark], got: Sequence[Print]) -> None:
        """Note the last sequences at a bound. A moment in which nothing comes is the best: there, equal messages can be
        told apart. There may be none.
        """
        found: list[Mark] = []
        for _ in range(TRIES):
            self._mark(found, got, must=True)
            if len(set(found[-1].around)) == 1 or self._listener.lost is not None:
                break
        marks.append(found[-1])

    def _mark(self, marks: list[Mark], got: Sequence[Print], *, must: bool = False) -> None:
        """Note the last sequences. While a stream has no leader nobody can tell them, and only the bounds must."""
        came, listener = len(got), self._listener
        listener.wait_for_look(SETTLE)
        try:
            infos = self._infos() if must else self._asked(self._look)
        except Disconnected:
            return
        moment = time.monotonic()
        listener.wait_for_look(SETTLE)
        marks.append(Mark(moment, _lasts(infos), came, (came, len(got))))

    def _judge(
        self,
        listener: Listener,
        before: Mapping[str, StreamInfo],
        marks: list[Mark],
        got: "_Got",
        part: Part,
    ) -> Part:
        """Read the streams, and wait for what is on its way, on either side."""
        start = marks[0]
        kept: dict[str, list[Kept]] = {name: [] for name in before}
        seen = [(mark.moment, mark.lasts) for mark in marks]
        done = time.monotonic() + GRACE
        while True:
            if listener.lost is None:
                listener.wait_for_look(GRACE)
            end = self._end(listener, marks, got, part)
            now = self._infos()
            seen.append((time.monotonic(), _lasts(now)))
            # What was on its way at the end is stored by then.
            bound = next((lasts for moment, lasts in seen if moment >= end.moment + SETTLE), seen[-1][1])
            for name, info in now.items():
                if info.created != before[name].created or info.last < end.lasts[name]:
                    raise OptionError(f"stream '{name}' was made anew during the proof, which proves nothing then.")
                known = kept[name][-1].sequence if kept[name] else before[name].last
                kept[name] += self._retried(f"reading '{name}'", _reading(name, known + 1, info.last + 1, info))
            part.verdicts = [self._verdict(before[name], got, kept[name], start, end, bound[name]) for name in before]
            holds = all(verdict.holds for verdict in part.verdicts)
            settled = seen[-1][0] >= end.moment + SETTLE or not any(verdict.doubtful for verdict in part.verdicts)
            if (holds and settled) or time.monotonic() > done:
                break
            time.sleep(STEP)
        return part

    def _end(self, listener: Listener, marks: list[Mark], took: "_Got", part: Part) -> Mark:
        """Where a part ends: at its last mark, or, where the subscription was cut off, at the last one before that. It
        may be cut off also while we wait for what is on its way.
        """
        start, end, got = marks[0], marks[-1], took.prints
        cut = took.full if took.full is not None else listener.covered if listener.lost is not None else None
        if cut is not None:
            # What was stored shortly before may not have reached us any more.
            safe = [mark for mark in marks if mark.moment <= cut - SETTLE]
            end = (safe or [start])[-1]._replace(got=len(got))
            part.is_full = took.full is not None
            part.interruption = f"{len(got):,} messages came" if part.is_full else str(listener.lost)
        part.seconds = max(0.0, end.moment - start.moment)
        return end

    def _verdict(self, info: StreamInfo, took: "_Got", kept: list[Kept], start: Mark, end: Mark, bound: int) -> Verdict:
        takes, got = _Takes(info.subjects), list(took.prints)
        places = [number for number, each in enumerate(got) if takes(each.subject)]
        mine, arrivals = [got[number] for number in places], array("d", (took.moments[number] for number in places))
        edges = Edges(*(bisect_left(places, edge) for edge in (*start.around, *end.around)))

        def judged(earlier: Sequence[Kept] = ()) -> Verdict:
            return compare(
                info.name, mine, bisect_left(places, end.got), kept, start.lasts[info.name], end.lasts[info.name],
                edges=edges, before=info.last, last=bound, arrivals=arrivals, window=info.duplicate_window,
                earlier=earlier,
            )  # fmt: skip

        found = judged()
        if (found.lacking or found.doubtful) and any(each.id for each in mine):
            # An id that was stored before we began is dropped as well.
            low = max(info.first, info.last - LOOK_BACK)
            read = _reading(info.name, low, info.last + 1, info, young=info.duplicate_window)
            found = judged(self._retried(f"reading '{info.name}'", read))
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


class _Got:
    """What the subscription got, up to MOST messages."""

    def __init__(self) -> None:
        self.prints: list[Print] = []
        self.moments = array("d")  # when each of them came, in seconds by our clock
        self.full: float | None = None  # once there are so many: what the server had for us by then is all here

    def take(self, came: Sequence[Message], covered: float) -> None:
        """Keep what came since `covered`."""
        if self.full is not None:
            return
        self.moments.extend([time.time()] * len(came))  # before the others: who reads them counts those
        self.prints += [of_message(message.subject, message.block, message.body) for message in came]
        if len(self.prints) >= MOST:
            self.full = covered


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
                    found.append(Kept(sequence, fingerprint(subject, fields, body), stored / 1e6))
        return found

    return read


def _lasts(infos: Mapping[str, StreamInfo]) -> dict[str, int]:
    return {name: info.last for name, info in infos.items()}
