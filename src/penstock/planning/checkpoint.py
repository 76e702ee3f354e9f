"""The JSON in Spark's offset log for the end of a batch. Only this module reads and writes it. Pure: knows no server,
no Spark.

Spark compares these entries as text, so the same content is always the same text. A query that an earlier Penstock
began must go on: a new field must be optional, and the meaning of a field never changes within a version.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import OptionError
from penstock.planning.positions import Offsets, Position, Range, tasks

VERSION = 1


@dataclass(frozen=True)
class Checkpoint:
    """The positions at the end of a batch, and how the batch is cut into tasks, so that a replay has the same tasks.

    `fresh`: where a new query starts, which is not in Spark's log yet. `per_task`: the most positions of a task, in
    shards that have no `cuts`; None where the batch reads nothing. `begins`: where reading begins in shards whose
    records before that are gone. `notes`: what a source must know of a shard besides its position.
    """

    positions: Offsets
    fresh: bool = False
    per_task: int | None = None
    cuts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    begins: Mapping[str, int] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> dict[str, Any]:
        """The JSON, in the order of its keys. `next` can be pasted into startingOffsets."""
        at = {shard: self.positions[shard] for shard in sorted(self.positions)}
        body: dict[str, Any] = {
            "begins": dict(sorted(self.begins.items())),
            "cuts": {shard: list(self.cuts[shard]) for shard in sorted(self.cuts)},
            "epochs": {shard: position.epoch for shard, position in at.items() if position.epoch},
            "fresh": self.fresh,
            "marks": {shard: position.mark for shard, position in at.items() if position.mark},
            "next": {shard: position.next for shard, position in at.items()},
            "notes": dict(sorted(self.notes.items())),
            "perTask": self.per_task,
            "version": VERSION,
        }
        always = ("epochs", "next", "version")
        return {name: value for name, value in body.items() if value or name in always}

    @classmethod
    def decode(cls, body: Mapping[str, Any]) -> "Checkpoint":
        """From the JSON. An OptionError where a later Penstock wrote it, or where it was damaged."""
        if not isinstance(body, Mapping):
            raise _damaged({"": body}, "it is not a JSON object")
        version = body.get("version")
        if type(version) is not int or version != VERSION:
            raise OptionError(
                f"the checkpoint has positions of version {version}, and this Penstock reads version {VERSION}. "
                "Upgrade Penstock to the version that wrote it, or start with a new checkpointLocation."
            )
        try:
            epochs, marks = body["epochs"], body.get("marks", {})
            positions = {
                shard: Position(_whole(at), epochs.get(shard, ""), marks.get(shard, ""))
                for shard, at in body["next"].items()
            }
            return cls(
                positions,
                bool(body.get("fresh")),
                _whole(body["perTask"]) if "perTask" in body else None,
                {shard: [_whole(at) for at in inner] for shard, inner in body.get("cuts", {}).items()},
                {shard: _whole(at) for shard, at in body.get("begins", {}).items()},
                body.get("notes", {}),
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise _damaged(body, repr(error)) from None

    def tasks_until(self, end: "Checkpoint") -> list[tuple[Range, ...]]:
        """What each task of the batch from here to `end` reads. Always the same for the same two checkpoints."""
        if self.fresh:
            return []
        planned = tasks(self.positions, end.positions, end.per_task or 1, end.cuts, end.begins, self.notes)
        if planned and not end.per_task:
            raise _damaged(end.encode(), "it has rows to read, and no 'perTask'")
        at: dict[str, int] = {}
        for span in (span for spans in planned for span in spans):
            if at.setdefault(span.shard, span.start) != span.start:
                raise _damaged(end.encode(), f"'cuts' of '{span.shard}' do not ascend")
            at[span.shard] = span.end
        if any(last != end.positions[shard].next for shard, last in at.items()):
            raise _damaged(end.encode(), "'cuts' go beyond the end")
        return planned


def is_ours(body: Any) -> bool:
    """Whether this is an entry of ours, in the version that is read here."""
    return isinstance(body, Mapping) and "next" in body and body.get("version") == VERSION


def distance(end: Any, head: Any) -> dict[str, int]:
    """How many positions of each shard lie between two entries. Empty where one of them is not ours."""
    if not is_ours(end) or not is_ours(head):
        return {}
    at, heads = Checkpoint.decode(end).positions, Checkpoint.decode(head).positions
    return {shard: max(0, latest.next - at[shard].next) for shard, latest in heads.items() if shard in at}


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is not a position")
    return value


def _damaged(body: Mapping[str, Any], why: str) -> OptionError:
    return OptionError(
        f"the checkpoint has a position that no Penstock writes ({why}): {str(dict(body))[:300]}. If somebody has "
        "edited it, put back what was there; otherwise start with a new checkpointLocation."
    )
