"""What a plain subscriber got, compared with what a stream has. Pure: both sides in, a verdict out.

The sets that are compared are defined by what is asked, in this order, for each stream:

1. `before`: its last sequence. Then we subscribe.
2. When the servers know of the subscription, and some time has passed: `start`, its last sequence again.
3. At the end: `end`, its last sequence, and how many messages the subscription has got by then.

A message that the subscription got was published after `before` was asked: so it must be stored behind `before`. A
message that is stored behind `start` and up to `end` was published when the subscription was known: so it must have
been got, or come soon. Whatever is outside of these bounds says nothing. Messages that are equal, byte for byte, are
told apart by their number only.
"""

import hashlib
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.clients.nats import headers

# How many examples of what is missing are kept.
EXAMPLES = 10


class Print(NamedTuple):
    """What is kept of a message: a checksum of subject, headers and body, and its Nats-Msg-Id, if it has one."""

    subject: bytes
    checksum: bytes
    id: bytes = b""


class Kept(NamedTuple):
    """A message of the stream."""

    sequence: int
    print: Print


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
    removed: int = 0  # sequences inside of the bounds without a message: limits, or somebody deleted it
    disordered: int = 0  # subjects whose messages came in another order

    @property
    def holds(self) -> bool:
        """Whether nothing is missing on either side."""
        return not self.lacking and not self.unheard


def compare(
    stream: str,
    got: Sequence[Print],
    until: int,
    kept: Sequence[Kept],
    start: int,
    end: int,
    known_ids: Iterable[bytes] = (),
) -> Verdict:
    """The verdict on one stream. `got` is all that the subscription got on its subjects, of which the first `until`
    must be stored. `kept` is what the stream has behind `before`, also beyond `end`. `known_ids` are those of messages
    that it stored earlier, within its duplicate window.
    """
    in_stream = Counter(each.print.checksum for each in kept)
    ids = {each.print.id for each in kept if each.print.id}.union(known_ids)
    lacking: list[str] = []
    count_lacking = repeated = 0
    for each in got[:until]:
        if in_stream[each.checksum] > 0:
            in_stream[each.checksum] -= 1
        elif each.id and each.id in ids:
            repeated += 1
        else:
            count_lacking += 1
            if len(lacking) < EXAMPLES:
                lacking.append(each.subject.decode(errors="replace"))
    inside = [each for each in kept if start < each.sequence <= end]
    heard = Counter(each.checksum for each in got)
    unheard = []
    for kept_one in inside:
        if heard[kept_one.print.checksum] > 0:
            heard[kept_one.print.checksum] -= 1
        else:
            unheard.append(kept_one.sequence)
    return Verdict(
        stream, start, end, len(inside), until, tuple(lacking), count_lacking, tuple(unheard[:EXAMPLES]), len(unheard),
        repeated, end - start - len(inside), disordered(got, inside),
    )  # fmt: skip


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
