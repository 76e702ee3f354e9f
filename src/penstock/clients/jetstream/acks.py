"""What the server answers to a publish, for many at once. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field as attribute
from typing import Any, NamedTuple

import numpy as np

from penstock.arrow.buffers import Ints, decimals
from penstock.clients.answers import an_object, field
from penstock.clients.nats.wire import Messages
from penstock.errors import ProtocolError


class Refusal(NamedTuple):
    """A row that the server did not take: its err_code, 503 where nobody listens on the subject."""

    row: int
    code: int
    text: str


@dataclass
class Acks:
    """Rows that are stored, where, and those that are not."""

    rows: Ints
    spans: dict[str, tuple[int, int]] = attribute(default_factory=dict)
    known: list[tuple[int, str, int]] = attribute(
        default_factory=list
    )  # row, stream and sequence of those there already
    refused: list[Refusal] = attribute(default_factory=list)

    def add(self, more: "Acks", mark: Callable[[Ints], None] = lambda rows: None) -> None:
        """Take more answers in, and `mark` the rows that they say are stored."""
        mark(more.rows)
        self.rows = np.concatenate([self.rows, more.rows])
        for stream, (first, last) in more.spans.items():
            widen(self.spans, stream, first, last)
        self.known += more.known
        self.refused += more.refused

    def lasts(self) -> dict[str, int]:
        """The last sequence in each stream."""
        return {stream: last for stream, (_, last) in self.spans.items()}


def widen(spans: dict[str, tuple[int, int]], stream: str, first: int, last: int) -> None:
    """Make the span of a stream hold these sequences too."""
    if first > 0:
        old = spans.get(stream, (first, last))
        spans[stream] = (min(old[0], first), max(old[1], last))


def read(messages: Messages, numbers: Ints) -> Acks:
    """The answers whose subjects end in the place of their row among `numbers`.

    Nearly always all are alike: stored in one stream, one after the other. Then the first and the last tell all,
    and a search through the joined bodies shows that they do.
    """
    rows = numbers[_places(messages, len(numbers))]
    bodies = messages.values
    low, high = (bodies.offset, bodies.offset + len(bodies)) if len(bodies) else (0, 0)
    at = np.frombuffer(bodies.buffers()[1], np.int32)
    joined = bodies.buffers()[2].to_pybytes()[at[low] : at[high]] if at[low] < at[high] else b""
    first = bodies[0].as_py()
    prefix = first[: first.find(b'"seq":') + 6]
    alike = joined.count(prefix) == len(bodies) and b'"error"' not in joined and b'"duplicate"' not in joined
    acks = Acks(rows)
    if alike and prefix.endswith(b'"seq":'):
        (stream, a), (_, b) = (stored_at(an_object(body, "JetStream")) for body in (first, bodies[-1].as_py()))
        widen(acks.spans, stream, min(a, b), max(a, b))
        return acks
    stored = []
    for row, body in zip(rows.tolist(), bodies.to_pylist(), strict=True):
        answer = parse(body)
        refused = refusal(row, answer)
        if refused:
            acks.refused.append(refused)
            continue
        stored.append(row)
        stream, sequence = stored_at(answer)
        widen(acks.spans, stream, sequence, sequence)
        if answer.get("duplicate"):
            acks.known.append((row, stream, sequence))
    acks.rows = np.array(stored, np.int64)
    return acks


def _places(messages: Messages, count: int) -> Ints:
    """The number that each subject ends in, which must be below `count`."""
    lines, end = np.frombuffer(messages.lines, np.uint8), messages.subject_end
    places = decimals(lines, end)
    if places.max() >= count or (lines[end - 1] - 48 > 9).any():
        row = int(np.argmax((places >= count) | (lines[end - 1] - 48 > 9)))
        subject = lines[messages.subject_start[row] : end[row]].tobytes()
        raise ProtocolError(f"JetStream answered on {subject[-60:]!r}, but {count:,} rows were sent.")
    return places


def place(subject: bytes, prefix: bytes, count: int) -> int:
    """The same for one subject."""
    number = subject.removeprefix(prefix)
    if not number.isdigit() or len(number) > 9 or int(number) >= count:
        raise ProtocolError(f"JetStream answered on {subject[-60:]!r}, but {count:,} rows were sent.")
    return int(number)


def stored_at(answer: dict[str, Any]) -> tuple[str, int]:
    """The stream and the sequence that an answer tells."""
    return field(answer, "stream", str), field(answer, "seq", int)


def in_a_row(data: bytes, prefix: bytes, numbers: Ints) -> tuple[Acks, int] | None:
    """The answers in `data`, where all is as it nearly always is: rows in a row, all stored, in one stream.

    Then counting is enough, and the first and the last answer tell the rest; also how many bytes that were. None
    where anything is otherwise, for `read` to look at each.
    """
    start = b"MSG " + prefix
    lines = data.count(b"\r\n")
    if not data.startswith(start) or lines < 2:
        return None
    end = len(data) if data.endswith(b"\r\n") else data.rfind(b"\r\n") + 2
    if lines % 2:  # behind the last answer, the control line of one that is still to come
        end = data.rfind(b"\r\n", 0, end - 2) + 2
    count = lines // 2
    last, sequence = data.rfind(start, 0, end), data.find(b'"seq":', 0, end)
    a, b = _answer_at(data, 0, len(start)), _answer_at(data, last, len(start))
    if sequence < 0 or a is None or b is None:
        return None
    alike = data[: sequence + 6].rpartition(b"\r\n")[2]
    if (
        b[0] - a[0] + 1 != count
        or b[0] >= len(numbers)
        or data.count(b"\n" + start, 0, end) + 1 != count
        or data.count(alike, 0, end) != count
        or data.find(b'"error"', 0, end) >= 0
        or data.find(b'"duplicate"', 0, end) >= 0
    ):
        return None
    (stream, first), (_, other) = stored_at(parse(a[1])), stored_at(parse(b[1]))
    return Acks(numbers[a[0] : b[0] + 1], {stream: (min(first, other), max(first, other))}), end


def _answer_at(data: bytes, at: int, skip: int) -> tuple[int, bytes] | None:
    """The place of the row, and the body, of the answer at `at`; None where it is cut off or says no place."""
    line_end = data.find(b"\r\n", at)
    end = data.find(b"\r\n", line_end + 2)
    place = data[at + skip : line_end].partition(b" ")[0]
    return (int(place), data[line_end + 2 : end]) if end >= 0 and place.isdigit() and len(place) < 10 else None


def parse(body: bytes) -> dict[str, Any]:
    """One answer."""
    return an_object(body, "JetStream")


def refusal(row: int, answer: dict[str, Any]) -> Refusal | None:
    """What an answer refuses, if it does."""
    error = field(answer, "error", dict, {})
    return Refusal(row, field(error, "err_code", int, 0), field(error, "description", str, "")) if error else None


def nothing() -> Ints:
    """No rows."""
    return np.empty(0, np.int64)
