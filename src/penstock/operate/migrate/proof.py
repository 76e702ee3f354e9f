"""What a plain subscriber got, compared with what a stream has. Pure: both sides in, a verdict out.

The sets that are compared are defined by what is asked, in this order, for each stream:

1. `before`: its last sequence. Then we subscribe.
2. When the servers know of the subscription, and some time has passed: `start`, its last sequence again.
3. At the end: `end`, its last sequence, and how many messages the subscription has got by then.

A message that the subscription got was published after `before` was asked: so it must be stored behind `before`. A
message that is stored behind `start` and up to `end` was published when the subscription was known: so it must have
been got, or come soon. Whatever is outside of these bounds says nothing.

Messages that are equal, byte for byte, are told apart by their number only. So one that was stored after the end must
not stand for one that was lost before: they are counted between `start` and `end` only. At both moments it is noted how
many had come a little before the question, and a little after the answer. Where equal messages came in between, or some
may have been on their way, it cannot be told, and they are doubtful: neither lost nor proven.
"""

import hashlib
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from penstock.clients.nats import headers

# How many examples of what is missing are kept.
EXAMPLES = 10
# Seconds: a message may reach us so much later than its stream; and the end of a duplicate window is not known better.
LAG, MARGIN = 0.1, 0.25


class Print(NamedTuple):
    """What is kept of a message: a checksum of subject, headers and body, and its Nats-Msg-Id, if it has one."""

    subject: bytes
    checksum: bytes
    id: bytes = b""


class Kept(NamedTuple):
    """A message of the stream."""

    sequence: int
    print: Print
    moment: float = 0.0  # when it was stored, in seconds by the server's clock


class Edges(NamedTuple):
    """How many messages had come before `start` was asked, after its answer, and the same for `end`."""

    before_start: int
    after_start: int
    before_end: int
    after_end: int


def fingerprint(subject: bytes, pairs: Iterable[tuple[str, bytes]], body: bytes) -> Print:
    """The print of a message, by its header fields."""
    digest = hashlib.blake2b(digest_size=12)
    identity = b""
    parts = [subject, body]
    for key, value in pairs:
        parts += [key.encode(), value]
        if key.lower() == "nats-msg-id" and not identity:
            identity = value
    for part in parts:
        digest.update(b"%d " % len(part))
        digest.update(part)
    return Print(subject, digest.digest(), identity)


def of_message(subject: bytes, block: bytes, body: bytes) -> Print:
    """The print of a message as it comes from the server."""
    return fingerprint(subject, headers.fields(block)[2] if block else (), body)


@dataclass(frozen=True)
class Verdict:
    """What is true of one stream, for the messages inside of the bounds."""

    stream: str
    start: int
    end: int
    stored: int = 0  # messages behind `start`, up to `end`
    got: int = 0  # messages that the subscription got until `end` was asked
    not_stored: tuple[str, ...] = ()  # examples: subjects of messages that were got, and are not in the stream
    lacking: int = 0  # how many of them there are
    not_got: tuple[int, ...] = ()  # examples: sequences of messages that are stored, and were not got
    unheard: int = 0  # how many of them there are
    repeated: int = 0  # got more often than stored, with an id that the stream has: it drops those
    removed: int = 0  # sequences without a message: limits, or somebody deleted it
    disordered: int = 0  # subjects whose messages came in another order
    doubtful: int = 0  # messages of which it cannot be told

    @property
    def lost(self) -> int:
        """How many messages the stream lacks for sure: it may have had as many as were removed."""
        return max(0, self.lacking - self.removed)

    @property
    def holds(self) -> bool:
        """Whether nothing is missing for sure, on either side."""
        return not self.lost and not self.unheard

    @property
    def whole(self) -> bool:
        """Whether all messages could be compared."""
        return not self.removed and not self.doubtful


def compare(
    stream: str,
    got: Sequence[Print],
    until: int,
    kept: Sequence[Kept],
    start: int,
    end: int,
    *,
    edges: Edges | None = None,
    before: int | None = None,
    last: int | None = None,
    arrivals: Sequence[float] = (),
    window: float = 0.0,
    earlier: Iterable[Kept] = (),
) -> Verdict:
    """The verdict on one stream. `got` is all that the subscription got on its subjects, of which the first `until`
    must be stored; `arrivals` says when, by our clock. `kept` is what the stream has behind `before`, also beyond
    `end`. Of messages that are equal, those behind `last` count for nothing. `window` is the stream's duplicate window,
    and `earlier` are messages that it stored before that, for their ids.
    """
    edges = edges or Edges(0, 0, until, until)
    before = min([start, *(each.sequence - 1 for each in kept[:1])]) if before is None else before
    last = max([end, *(each.sequence for each in kept[-1:])]) if last is None else last
    inside = [each for each in kept if start < each.sequence <= end]
    got_often, kept_often = Counter(each.checksum for each in got), Counter(each.print.checksum for each in kept)
    equal = {checksum for often in (got_often, kept_often) for checksum, count in often.items() if count > 1}
    ids = _Ids(got, arrivals, kept, earlier, equal, window)

    lacking: list[str] = []
    count_lacking = repeated = doubtful = 0
    places: defaultdict[bytes, list[int]] = defaultdict(list)  # of equal messages, in `got`
    missing: list[tuple[Print, int, list[int]]] = []
    for number, each in enumerate(got):
        if each.checksum in equal:
            places[each.checksum].append(number)
        elif number < until and not kept_often[each.checksum]:
            missing.append((each, 1, [number]))
    unheard = [each.sequence for each in inside if not got_often[each.print.checksum]]

    stored: defaultdict[bytes, list[int]] = defaultdict(list)
    for one in kept:
        if one.print.checksum in equal and start < one.sequence <= last:
            stored[one.print.checksum].append(one.sequence)
    in_stream = Counter(one.print.checksum for one in inside)
    for checksum, numbers in places.items():
        each, sequences, count = got[numbers[0]], stored[checksum], in_stream[checksum]
        came = [bisect_right(numbers, edge - 1) for edge in edges]
        most = came[3] - came[0]
        for _ in numbers[came[1] : came[2]]:  # each of them needs one of its own
            in_stream[each.checksum] -= 1
        left = in_stream[checksum]
        if left < 0:
            # Some may still have been on their way: to the stream at the end, to us at the start.
            late = sum(edges.after_start <= n and ids.soon(n, edges.after_start) for n in numbers)
            unsure = min(-left, len(sequences) - count + late) if not ids.has(each.id) else 0  # an id tells more
            doubtful += unsure
            if -left > unsure:
                missing.append((each, -left - unsure, numbers[came[1] : came[2]]))
        elif count > most:
            unsure = min(count - most, came[0] + len(numbers) - came[3])
            doubtful += unsure
            unheard += sequences[most + unsure : count]
        else:
            unsure = max(most - count, left)
            if ids.has(each.id):
                unsure = min(unsure, sum(ids.judge(each, numbers[came[0] : came[3]])))
            doubtful += unsure
    for print_, count, numbers in missing:
        out, maybe = ids.judge(print_, numbers)
        out = min(count, out)
        maybe = min(count - out, maybe)
        count_lacking, doubtful, repeated = count_lacking + out, doubtful + maybe, repeated + count - out - maybe
        lacking += [print_.subject.decode(errors="replace")] * min(out, EXAMPLES - len(lacking))
    unheard.sort()
    removed = last - before - sum(before < each.sequence <= last for each in kept)
    return Verdict(
        stream, start, end, len(inside), until, tuple(lacking), count_lacking, tuple(unheard[:EXAMPLES]), len(unheard),
        repeated, removed, disordered(got, inside), doubtful,
    )  # fmt: skip


class _Ids:
    """Which messages are repetitions: the stream drops those whose id it stored within its duplicate window."""

    def __init__(
        self,
        got: Sequence[Print],
        arrivals: Sequence[float],
        kept: Sequence[Kept],
        earlier: Iterable[Kept],
        equal: set[bytes],
        window: float,
    ):
        self.arrivals, self.window = arrivals, window
        self.moments: defaultdict[bytes, list[tuple[float, bytes]]] = defaultdict(list)
        for each in (*earlier, *kept):
            if each.print.id:
                self.moments[each.print.id].append((each.moment, each.print.checksum))
        # How far our clock is ahead, by messages that are there once on both sides.
        self.ahead: float | None = None
        if self.moments and arrivals:
            single = {each.print.checksum: each.moment for each in kept if each.print.checksum not in equal}
            found = [
                moment - single[each.checksum]
                for each, moment in zip(got, arrivals, strict=False)
                if each.checksum in single
            ]
            self.ahead = median(found) if found else None

    def has(self, identity: bytes) -> bool:
        """Whether it was ever stored."""
        return bool(identity) and identity in self.moments

    def soon(self, number: int, after: int) -> bool:
        """Whether a message came at most LAG later than the one at `after`."""
        return bool(self.arrivals) and self.arrivals[number] - self.arrivals[after] <= LAG

    def judge(self, print_: Print, numbers: Sequence[int]) -> tuple[int, int]:
        """How many of these equal messages are no repetition, and of how many it cannot be told."""
        if not self.has(print_.id):
            return len(numbers), 0
        if not self.arrivals:
            return 0, 0
        out = maybe = 0
        for number in numbers:
            moment = self.arrivals[number] - (self.ahead or 0.0)
            sure = near = False
            for stored, checksum in self.moments[print_.id]:
                # What is stored later is no reason to drop this one: only the very same message, sent again until its
                # ack came, stands for it. But two clocks, and two ways, are never equal.
                age, ahead = moment - stored, self.window if checksum == print_.checksum else 0.0
                sure = sure or -ahead - LAG <= age <= self.window
                near = near or -ahead - MARGIN <= age <= self.window + MARGIN
            maybe += not sure and (near or self.ahead is None)
            out += not sure and not near and self.ahead is not None
        return out, maybe


def disordered(got: Sequence[Print], kept: Sequence[Kept]) -> int:
    """On how many subjects the messages of the stream came to the subscription in another order."""
    places: defaultdict[bytes, list[int]] = defaultdict(list)
    for number, each in enumerate(got):
        places[each.checksum].append(number)
    at: dict[bytes, int] = {}
    wrong: set[bytes] = set()
    for message in kept:
        found, last = places.get(message.print.checksum), at.get(message.print.subject, -1)
        if not found:
            continue
        following = bisect_right(found, last)
        if following == len(found):
            wrong.add(message.print.subject)
        else:
            at[message.print.subject] = found[following]
    return len(wrong)
