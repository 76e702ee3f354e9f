"""The server's answers to publishes, read many at once. Knows no sockets."""

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
    """A row that the server refused. `code` is its err_code; 503 where no stream has the subject."""

    row: int
    code: int
    text: str


@dataclass
class Acks:
    """The rows that are stored, and those that were refused."""

    rows: Ints
    spans: dict[str, tuple[int, int]] = attribute(default_factory=dict)  # first and last sequence in each stream
    # Row, stream and sequence of the duplicates: rows that were stored before.
    known: list[tuple[int, str, int]] = attribute(default_factory=list)
    refused: list[Refusal] = attribute(default_factory=list)

    def add(self, more: "Acks", mark: Callable[[Ints], None] = lambda rows: None) -> None:
        """Add more answers, and `mark` their stored rows."""
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
    """Extend the span of a stream to these sequences. A `first` of 0 is no sequence."""
    if first > 0:
        old = spans.get(stream, (first, last))
        spans[stream] = (min(old[0], first), max(old[1], last))


def read(messages: Messages, numbers: Ints) -> Acks:
    """The answers in `messages`. Each subject ends in an index into `numbers`, which are the rows that were sent.

    Nearly always all rows are stored in one stream, one after the other. Counting in the joined bodies shows that; then
    only the first and the last answer are parsed.
    """
    rows = numbers[_places(messages, len(numbers))]
    bodies = messages.values
    low, high = (bodies.offset, bodies.offset + len(bodies)) if len(bodies) else (0, 0)
    at = np.frombuffer(bodies.buffers()[1], np.int32)
    joined = bodies.buffers()[2].to_pybytes()[at[low] : at[high]] if at[low] < at[high] else b""
    first = bodies[0].as_py()
    prefix = first[: first.find(b'"seq":') + 6]
    uniform = joined.count(prefix) == len(bodies) and b'"error"' not in joined and b'"duplicate"' not in joined
    acks = Acks(rows)
    if uniform and prefix.endswith(b'"seq":'):
        stream, first_sequence = stored_at(an_object(first, "JetStream"))
        _, last_sequence = stored_at(an_object(bodies[-1].as_py(), "JetStream"))
        widen(acks.spans, stream, min(first_sequence, last_sequence), max(first_sequence, last_sequence))
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
    """The number at the end of each subject; a ProtocolError where it is not below `count`."""
    lines, end = np.frombuffer(messages.lines, np.uint8), messages.subject_end
    places = decimals(lines, end)
    if places.max() >= count or (lines[end - 1] - 48 > 9).any():
        row = int(np.argmax((places >= count) | (lines[end - 1] - 48 > 9)))
        subject = lines[messages.subject_start[row] : end[row]].tobytes()
        raise ProtocolError(f"JetStream answered on {subject[-60:]!r}, but {count:,} rows were sent.")
    return places


def place(subject: bytes, prefix: bytes, count: int) -> int:
    """The number at the end of one subject; a ProtocolError where it is not below `count`."""
    number = subject.removeprefix(prefix)
    if not number.isdigit() or len(number) > 9 or int(number) >= count:
        raise ProtocolError(f"JetStream answered on {subject[-60:]!r}, but {count:,} rows were sent.")
    return int(number)


def stored_at(answer: dict[str, Any]) -> tuple[str, int]:
    """The stream and the sequence in an answer."""
    return field(answer, "stream", str), field(answer, "seq", int)


def in_a_row(data: bytes, prefix: bytes, numbers: Ints) -> tuple[Acks, int] | None:
    """The whole answers at the start of `data`, and their bytes, where the rows are consecutive and all are stored in
    one stream. None where that is not so: then `read` must parse them.

    Counting shows that it is so; only the first and the last answer are parsed.
    """
    start = b"MSG " + prefix
    lines = data.count(b"\r\n")
    if not data.startswith(start) or lines < 2:
        return None
    end = len(data) if data.endswith(b"\r\n") else data.rfind(b"\r\n") + 2
    if lines % 2:  # after the last whole answer, the control line of the next one
        end = data.rfind(b"\r\n", 0, end - 2) + 2
    count = lines // 2
    sequence_at = data.find(b'"seq":', 0, end)
    first, last = _answer_at(data, 0, len(start)), _answer_at(data, data.rfind(start, 0, end), len(start))
    if sequence_at < 0 or first is None or last is None:
        return None
    body_start = data[: sequence_at + 6].rpartition(b"\r\n")[2]
    if (
        last.place - first.place + 1 != count
        or last.place >= len(numbers)
        or data.count(b"\n" + start, 0, end) + 1 != count
        or data.count(body_start, 0, end) != count
        or data.find(b'"error"', 0, end) >= 0
        or data.find(b'"duplicate"', 0, end) >= 0
    ):
        return None
    stream, first_sequence = stored_at(parse(first.body))
    _, last_sequence = stored_at(parse(last.body))
    span = (min(first_sequence, last_sequence), max(first_sequence, last_sequence))
    return Acks(numbers[first.place : last.place + 1], {stream: span}), end


class _Answer(NamedTuple):
    place: int  # the number at the end of its subject
    body: bytes


def _answer_at(data: bytes, at: int, skip: int) -> _Answer | None:
    """The answer at `at`, whose subject ends after `skip` bytes but for the number; None where it is cut off or has no
    number.
    """
    line_end = data.find(b"\r\n", at)
    end = data.find(b"\r\n", line_end + 2)
    number = data[at + skip : line_end].partition(b" ")[0]
    if end < 0 or not number.isdigit() or len(number) > 9:
        return None
    return _Answer(int(number), data[line_end + 2 : end])


def parse(body: bytes) -> dict[str, Any]:
    """The fields of an answer."""
    return an_object(body, "JetStream")


def refusal(row: int, answer: dict[str, Any]) -> Refusal | None:
    """The refusal in an answer; None where the row is stored."""
    error = field(answer, "error", dict, {})
    if not error:
        return None
    return Refusal(row, field(error, "err_code", int, 0), field(error, "description", str, ""))


def nothing() -> Ints:
    """No rows."""
    return np.empty(0, np.int64)
