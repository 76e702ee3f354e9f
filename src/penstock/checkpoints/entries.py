"""What Spark's files of one batch say: `offsets/N` and `commits/N`, by their text. Pure: opens no file.

The positions of our own sources are read by `planning.checkpoint`, their only owner. Those of Kafka, of files and of
sources that count are known; any other text is kept as it is.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from penstock.errors import OptionError, nearest
from penstock.planning.checkpoint import Checkpoint

# The newest formats that Spark 4.3 writes.
OFFSETS_VERSION, COMMITS_VERSION = 2, 3
NO_OFFSET = "-"


@dataclass(frozen=True)
class Offset:
    """Where a batch ends in one source. `kind` is penstock, kafka, files, number or unknown.

    `positions`: by shard, which is a stream, or a topic and its partition. None where only the source can tell.
    """

    text: str
    kind: str
    positions: Mapping[str, int] | None

    @classmethod
    def parse(cls, text: str) -> "Offset":
        """From the text in Spark's log. What nobody here knows is kept as it is."""
        try:
            body = json.loads(text)
        except ValueError:
            return cls(text, "unknown", None)
        if type(body) is int:
            return cls(text, "number", {"offset": body})
        if isinstance(body, dict) and {"version", "next", "epochs"} <= body.keys():
            try:
                return cls(text, "penstock", {s: at.next for s, at in Checkpoint.decode(body).positions.items()})
            except OptionError:  # of a later version
                return cls(text, "unknown", None)
        if isinstance(body, dict) and body.keys() == {"logOffset"} and type(body["logOffset"]) is int:
            return cls(text, "files", dict(body))
        if is_kafka(body):
            return cls(text, "kafka", {f"{topic}-{part}": at for topic in body for part, at in body[topic].items()})
        return cls(text, "unknown", None)


def is_kafka(body: Any) -> bool:
    """Whether this is how Kafka's source writes positions: {"orders": {"0": 17}}."""
    return (
        isinstance(body, dict)
        and bool(body)
        and all(isinstance(parts, dict) for parts in body.values())
        and all(str(part).isdigit() and type(at) is int for parts in body.values() for part, at in parts.items())
    )


def set_back(text: str, to: Mapping[str, Any]) -> str:
    """An offset with some of its positions set back; what is not named stays. An OptionError where that cannot be."""
    offset = Offset.parse(text)
    if offset.kind == "kafka":
        if not is_kafka(to):
            raise OptionError(f'positions in Kafka are written as {{"orders": {{"0": 17}}}}, not as {json.dumps(to)}.')
        body = json.loads(text)
        _check_back({f"{t}-{part}": at for t in to for part, at in to[t].items()}, offset.positions or {})
        moved = {topic: body[topic] | to.get(topic, {}) for topic in body}
        return text if moved == body else json.dumps(moved, separators=(",", ":"))  # as Kafka's source writes it
    if offset.kind == "unknown" and '"epochs"' in text:
        Checkpoint.decode(json.loads(text))  # says which version it needs
    if offset.kind != "penstock":
        raise OptionError(
            f"positions can be set in sources of Penstock and of Kafka, and the source has this: {text[:100]}. Go back "
            "to a batch or a time."
        )
    if not all(type(at) is int and at >= 0 for at in to.values()):
        raise OptionError(f'positions are written as {{"ORDERS": 17}}, not as {json.dumps(to)}.')
    _check_back(to, offset.positions or {})
    now = Checkpoint.decode(json.loads(text))
    moved_to = {shard: at for shard, at in to.items() if at != now.positions[shard].next}
    if not moved_to:
        return text
    # The mark is of the record before the old position, and cuts are for a batch that reads something.
    moved = {shard: now.positions[shard]._replace(next=at, mark="") for shard, at in moved_to.items()}
    return json.dumps(Checkpoint(now.positions | moved, notes=now.notes).encode())


def _check_back(to: Mapping[str, int], now: Mapping[str, int]) -> None:
    for shard, at in to.items():
        if shard not in now:
            raise OptionError(f"the query reads no '{shard}'. {nearest(shard, now)}")
        if at > now[shard]:
            raise OptionError(
                f"position {at} of '{shard}' is ahead of {now[shard]}, where the query stands: records between would "
                "be skipped. A rewind only goes back."
            )


class Span(NamedTuple):
    """What a batch reads of one source. `start` is None where the batch before is not known, or there is none; `size`,
    in positions, is None where it cannot be computed.
    """

    start: Offset | None
    end: Offset | None
    size: int | None


class Move(NamedTuple):
    """How far a shard moved between the ends of two batches. None: it is not there. Text: it has no numbers."""

    source: str
    shard: str
    before: int | str | None
    after: int | str | None

    @property
    def by(self) -> int | None:
        """The difference; None where there is none to compute."""
        if isinstance(self.before, int) and isinstance(self.after, int):
            return self.after - self.before
        return None


@dataclass(frozen=True)
class Entry:
    """What `offsets/N` says: a version, the planning of the batch, and a line for each source."""

    version: int
    planning: str
    lines: Mapping[str, str]

    @classmethod
    def parse(cls, content: bytes) -> "Entry":
        """From the file. A ValueError that says what is wrong with it."""
        version, lines = versioned(content, OFFSETS_VERSION)
        if len(lines) < 2:
            raise ValueError("is not whole")
        planning, *offsets = lines
        if version == 1:
            entry = cls(version, planning, {str(number): text for number, text in enumerate(offsets)})
        else:
            named = [line.partition(":") for line in offsets]
            if not all(colon for _, colon, _ in named):
                raise ValueError("has a source without a name")
            entry = cls(version, planning, {name: text for name, _, text in named})
        if cut := [text for text in (planning, *entry.lines.values()) if _is_cut_off(text)]:
            raise ValueError(f"has a line that is not whole: {cut[0][-60:]}")
        return entry

    def write(self) -> bytes:
        """The file, as Spark writes it."""
        named = self.version > 1
        lines = [f"{name}:{text}" if named else text for name, text in self.lines.items()]
        return "\n".join([f"v{self.version}", self.planning, *lines]).encode()

    @property
    def planned(self) -> datetime | None:
        """When the batch was planned, by the driver's clock."""
        try:
            millis = json.loads(self.planning)["batchTimestampMs"]
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=millis)
        except (ValueError, KeyError, TypeError, OverflowError):
            return None

    def offsets(self) -> dict[str, Offset | None]:
        """Where the batch ends in each source; None where a source had not begun."""
        return {name: None if text == NO_OFFSET else Offset.parse(text) for name, text in self.lines.items()}


def _is_cut_off(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return text.startswith(("{", "["))
    return False


def versioned(content: bytes, newest: int) -> tuple[int, list[str]]:
    """The version of a file, and the lines behind it. A ValueError that says what is wrong with it."""
    if not content:
        raise ValueError("is empty: its writing was cut off")
    try:
        first, *lines = content.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError:
        raise ValueError("is no text") from None
    version = re.fullmatch(r"v(\d+)", first.strip())
    if version is None:
        raise ValueError(f"does not begin with a version but with '{first[:20]}'")
    if int(version[1]) > newest:
        raise ValueError(
            f"has format {first}, and this Penstock reads up to v{newest}: a newer Spark wrote it. Upgrade Penstock"
        )
    return int(version[1]), lines


def span(number: int, start: Offset | None, end: Offset | None) -> Span:
    """What a batch reads of a source between two offsets."""
    if end is not None and end.kind == "penstock":
        if number == 0:
            return Span(start, end, 0)  # the first batch of ours only writes down where it starts
        if start is not None and start.kind == "penstock":
            return Span(start, end, _planned_size(start, end))
    return Span(start, end, _distance(start, end))


def _planned_size(start: Offset, end: Offset) -> int | None:
    first, last = (Checkpoint.decode(json.loads(offset.text)) for offset in (start, end))
    try:
        total = sum(span.length for spans in first.tasks_until(last) for span in spans)
    except OptionError:
        return None
    return total if total < 2**63 else None  # numbers of Kinesis count no records


def _distance(start: Offset | None, end: Offset | None) -> int | None:
    """None where a shard is new: where that begins is not written anywhere."""
    if start is None or end is None or start.positions is None or end.positions is None:
        return None
    if end.positions.keys() - start.positions.keys():
        return None
    return sum(max(0, at - start.positions[shard]) for shard, at in end.positions.items())


def moves(a: Mapping[str, Offset | None], b: Mapping[str, Offset | None]) -> list[Move]:
    """What moved between two ends, source by source and shard by shard."""
    return [
        Move(source, shard, was, now)
        for source in _in_order(a, b)
        for shard, was, now in _compared(a.get(source), b.get(source))
        if was != now
    ]


def _compared(a: Offset | None, b: Offset | None) -> list[tuple[str, int | str | None, int | str | None]]:
    if any(offset is not None and offset.positions is None for offset in (a, b)):
        return [("", a.text if a else None, b.text if b else None)]
    before: Mapping[str, int] = (a.positions if a else None) or {}
    after: Mapping[str, int] = (b.positions if b else None) or {}
    return [(shard, before.get(shard), after.get(shard)) for shard in _in_order(before, after)]


def _in_order(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    return [*a, *(name for name in b if name not in a)]
