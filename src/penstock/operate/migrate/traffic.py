"""What is published, by subject: how often, how large, and with which replies. Pure: messages in, figures out."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.clients.nats import wire
from penstock.operate.migrate.filters import is_private

# So many subjects are told apart; all others are counted together. So many replies are remembered, to know answers by.
MOST_SUBJECTS, MOST_REPLIES = 50_000, 200_000
_MESSAGE_ID = b"\nnats-msg-id:"


class Message(NamedTuple):
    """A message as a subscriber gets it. `block` is its headers, as bytes."""

    subject: bytes
    reply: bytes
    block: bytes
    body: bytes


def messages(columns: wire.Messages) -> Iterator[Message]:
    """The messages of a scan, one by one."""
    text = columns.lines.to_pybytes()
    places = zip(
        columns.subject_start.tolist(), columns.subject_end.tolist(), columns.sid_end.tolist(),
        columns.reply_end.tolist(), strict=True,
    )  # fmt: skip
    blocks = columns.blocks.to_pylist() if columns.blocks is not None else [b""] * len(columns)
    for (start, end, sid_end, reply_end), block, body in zip(places, blocks, columns.values.to_pylist(), strict=True):
        yield Message(text[start:end], text[sid_end + 1 : reply_end], block, body)


def subscriptions(columns: wire.Messages) -> list[int]:
    """The numbers of the subscriptions that the messages of a scan came by."""
    text = columns.lines.to_pybytes()
    places = zip(columns.subject_end.tolist(), columns.sid_end.tolist(), strict=True)
    return [int(text[start + 1 : end]) for start, end in places]


@dataclass
class Figures:
    """What came on one subject."""

    messages: int = 0
    size: int = 0  # of bodies and headers
    largest: int = 0
    requests: int = 0  # with a reply subject
    with_headers: int = 0
    with_id: int = 0  # with a Nats-Msg-Id

    def __add__(self, other: "Figures") -> "Figures":
        return Figures(
            self.messages + other.messages, self.size + other.size, max(self.largest, other.largest),
            self.requests + other.requests, self.with_headers + other.with_headers, self.with_id + other.with_id,
        )  # fmt: skip


@dataclass
class Heard:
    """What was published while somebody listened, which was for `seconds`."""

    seconds: float = 0.0
    subjects: dict[str, Figures] = field(default_factory=dict)
    others: Figures = field(default_factory=Figures)  # of subjects beyond MOST_SUBJECTS
    interruptions: list[str] = field(default_factory=list)
    _replies: set[bytes] = field(default_factory=set, repr=False)

    def take(self, came: Iterable[Message]) -> None:
        """Count messages. What is private, and what answers a request that was heard, is not counted."""
        for subject, reply, block, body in came:
            name = subject.decode(errors="replace")
            if is_private(name) or subject in self._replies:
                continue
            if reply and len(self._replies) < MOST_REPLIES:
                self._replies.add(reply)
            known = self.subjects.get(name)
            if known is None:
                known = self.others
                if len(self.subjects) < MOST_SUBJECTS:
                    known = self.subjects[name] = Figures()
            size = len(block) + len(body)
            known.messages += 1
            known.size += size
            known.largest = max(known.largest, size)
            known.requests += bool(reply)
            known.with_headers += bool(block)
            known.with_id += bool(block) and _MESSAGE_ID in block.lower()

    def all(self) -> Figures:
        """All subjects together."""
        return sum(list(self.subjects.values()), self.others)  # another thread may be adding some

    def requested(self) -> dict[str, Figures]:
        """The subjects on which requests came."""
        return {name: figures for name, figures in self.subjects.items() if figures.requests}
