"""What the server answers to a publish, for many at once. Pure."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from penstock.columns import Ints, decimals
from penstock.connectors.nats.wire import Messages


class Refusal(NamedTuple):
    """A row that the server did not take: its err_code, 503 where nobody listens on the subject."""

    row: int
    code: int
    text: str


@dataclass
class Acks:
    """Rows that are stored, where, and those that are not."""

    rows: Ints
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    known: list[tuple[int, str, int]] = field(default_factory=list)  # row, stream and sequence of those there already
    refused: list[Refusal] = field(default_factory=list)

    def add(self, more: "Acks", mark: Callable[[Ints], None] = lambda rows: None) -> None:
        """Take more answers in, and `mark` the rows that they say are stored."""
        mark(more.rows)
        self.rows = np.concatenate([self.rows, more.rows])
        for stream, (first, last) in more.spans.items():
            widen(self.spans, stream, first, last)
        self.known += more.known
        self.refused += more.refused


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
    lines = np.frombuffer(messages.lines, np.uint8)
    rows = numbers[decimals(lines, messages.subject_end)]
    bodies = messages.values
    low, high = (bodies.offset, bodies.offset + len(bodies)) if len(bodies) else (0, 0)
    at = np.frombuffer(bodies.buffers()[1], np.int32)
    joined = bodies.buffers()[2].to_pybytes()[at[low] : at[high]]
    first = bodies[0].as_py()
    prefix = first[: first.find(b'"seq":') + 6]
    alike = joined.count(prefix) == len(bodies) and b'"error"' not in joined and b'"duplicate"' not in joined
    acks = Acks(rows)
    if alike:
        a, b = json.loads(first), json.loads(bodies[-1].as_py())
        widen(acks.spans, a["stream"], min(a["seq"], b["seq"]), max(a["seq"], b["seq"]))
        return acks
    stored = []
    for row, body in zip(rows.tolist(), bodies.to_pylist(), strict=True):
        answer = parse(body)
        refused = refusal(row, answer)
        if refused:
            acks.refused.append(refused)
            continue
        stored.append(row)
        widen(acks.spans, answer["stream"], answer["seq"], answer["seq"])
        if answer.get("duplicate"):
            acks.known.append((row, answer["stream"], answer["seq"]))
    acks.rows = np.array(stored, np.int64)
    return acks


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
    last, sequence = data.rfind(start, 0, end), data.find(b'"seq":')
    if sequence < 0:
        return None
    a, b = _answer_at(data, 0, len(start)), _answer_at(data, last, len(start))
    alike = data[: sequence + 6].rpartition(b"\r\n")[2]
    if (
        b[0] - a[0] + 1 != count
        or data.count(b"\n" + start, 0, end) + 1 != count
        or data.count(alike, 0, end) != count
        or data.find(b'"error"', 0, end) >= 0
        or data.find(b'"duplicate"', 0, end) >= 0
    ):
        return None
    first_body, last_body = parse(a[1]), parse(b[1])
    low, high = sorted((first_body["seq"], last_body["seq"]))
    return Acks(numbers[a[0] : b[0] + 1], {first_body["stream"]: (low, high)}), end


def _answer_at(data: bytes, at: int, skip: int) -> tuple[int, bytes]:
    """The place of the row, and the body, of the answer at `at`."""
    line, body = data[at : data.index(b"\r\n", data.index(b"\r\n", at) + 2)].split(b"\r\n")
    return int(line[skip:].split(b" ", 1)[0]), body


def parse(body: bytes) -> dict[str, Any]:
    """One answer."""
    answer: dict[str, Any] = json.loads(body)
    return answer


def refusal(row: int, answer: dict[str, Any]) -> Refusal | None:
    """What an answer refuses, if it does."""
    error = answer.get("error")
    return Refusal(row, error.get("err_code", 0), error.get("description", "")) if error else None


def nothing() -> Ints:
    """No rows."""
    return np.empty(0, np.int64)
