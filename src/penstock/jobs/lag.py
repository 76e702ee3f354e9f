"""How far a query is behind, by positions and ends. Pure: knows positions, no server, no Spark, no files."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.checkpoints.entries import Offset
from penstock.planning.positions import END, Bounds, Loss, Offsets, settle

# How positions of a kind are called in sentences.
KINDS = {
    "penstock": "a source of Penstock",
    "kafka": "Kafka",
    "files": "files",
    "number": "a source that counts",
    "unknown": "a source that is not known here",
}


@dataclass(frozen=True)
class Standing:
    """Where a query stands in one shard. `position`: None where it has not begun to read the shard. `end`: None where
    the shard is gone. `records` and `seconds` behind: None where nobody can tell. `lost`: records that were deleted
    unread. `problem`: what is wrong, in a sentence. `resumes`: where it would read on.
    """

    source: str
    format: str
    shard: str
    position: int | None
    end: int | None
    records: int | None = None
    seconds: float | None = None
    lost: int = 0
    problem: str = ""
    resumes: int = 0


@dataclass(frozen=True)
class Report:
    """How far a query is behind: `batch` is the last one that it has finished, None where there is none. `remarks`:
    what could not be told, in sentences.
    """

    checkpoint: str
    query: str
    batch: int | None
    standings: Sequence[Standing] = ()
    remarks: Sequence[str] = field(default=())

    @property
    def records(self) -> int | None:
        """Records behind, of all shards where that is known; None where it is known of none."""
        known = [each.records for each in self.standings if each.records is not None]
        return sum(known) if known else None

    @property
    def seconds(self) -> float | None:
        """The age of the oldest unread record of all; 0 where all is read, None where nobody can tell."""
        known = [each.seconds for each in self.standings if each.seconds is not None]
        return max(known) if known else None

    @property
    def lost(self) -> int:
        """Records that were deleted unread."""
        return sum(each.lost for each in self.standings)

    def exceeds(self, records: int | None, seconds: float | None) -> list[str]:
        """Why this is too far behind, in sentences; none where it is not. What cannot be told, or was lost, is."""
        if records is None and seconds is None:
            return []
        why = list(dict.fromkeys(each.problem for each in self.standings if each.problem))
        if self.batch is None or not self.standings:
            why.append("how far the query is behind is not known")
        unknown = [each.shard for each in self.standings if each.records is None and each.end is not None]
        if records is not None and self.records is not None and self.records > records:
            why.append(f"the query is {self.records:,} records behind, which is more than {records:,}")
        elif records is not None and unknown:
            why.append(f"how many records the query is behind in '{unknown[0]}' is not known: ask by --max-seconds")
        if seconds is not None and self.seconds is not None and self.seconds > seconds:
            why.append(f"the oldest unread record is {self.seconds:,.0f} s old, which is more than {seconds:g}")
        elif seconds is not None and any(s.seconds is None and s.end is not None for s in self.standings):
            why.append("how old the oldest unread record is, is not known: ask by --max-records")
        return why

    def as_json(self) -> dict[str, Any]:
        """All of it, as JSON has it. Numbers of Kinesis are text: they have 56 digits."""
        shards = [
            {
                "source": each.source,
                "format": each.format,
                "shard": each.shard,
                "position": written(each.position),
                "end": written(each.end),
                "records": each.records,
                "seconds": None if each.seconds is None else round(each.seconds, 3),
                "lost": each.lost,
                "problem": each.problem or None,
            }
            for each in self.standings
        ]
        seconds = None if self.seconds is None else round(self.seconds, 3)
        return {
            "checkpoint": self.checkpoint, "query": self.query, "batch": self.batch, "records": self.records,
            "seconds": seconds, "lost": self.lost, "shards": shards, "remarks": list(self.remarks),
        }  # fmt: skip


def written(position: int | None) -> int | str | None:
    """A position for people and for JSON: a number, or text where it is too large for most programs."""
    if position is None:
        return None
    if position == END:
        return "closed"
    return position if position < 2**63 else str(position)


def stand(source: str, format: str, at: Offsets, bounds: Bounds, losses: Sequence[Loss]) -> list[Standing]:
    """Where a query stands in each shard, by numbers alone: how many records that is, and how old they are, is left to
    whoever can ask for them. Shards that the query has not begun count from their first record.
    """
    by_shard = {loss.shard: loss for loss in losses}
    settled = settle(at, bounds, [loss.shard for loss in losses if loss.kind == "renumbered"])
    standings = []
    for shard in sorted(at.keys() | bounds.keys()):
        bound, loss = bounds.get(shard), by_shard.get(shard)
        if bound is None and loss is None:
            continue  # a shard that has ended and expired, and was read to its end
        resumes = settled[shard].next if shard in settled else bound.first if bound is not None else 0
        standing = Standing(
            source, format, shard, at[shard].next if shard in at else None, None if bound is None else bound.next,
            lost=0 if loss is None else loss.records, problem="" if loss is None else str(loss), resumes=resumes,
        )  # fmt: skip
        standings.append(standing if bound is None else replace(standing, records=max(0, bound.next - resumes)))
    return standings


def chosen(
    offsets: Mapping[str, Offset | None], format: str, shards: Collection[str]
) -> tuple[dict[str, Offset], list[str]]:
    """The sources of a query that read a format, by the shape of their positions and by the names of shards, where
    there are several; and what could not be matched, in sentences. `shards`: those that the options name.

    Spark's files do not say which source is which.
    """
    kind = "kafka" if format == "kafka" else "penstock"
    found = {name: offset for name, offset in offsets.items() if offset is not None and offset.kind == kind}
    remarks = [
        f"source {name} was not compared, as it had not begun to read."
        if offset is None
        else f"source {name} was not compared: its positions are those of {KINDS[offset.kind]} ({_short(offset)})."
        for name, offset in offsets.items()
        if name not in found
    ]
    if len(found) < 2:
        return found, remarks
    mine = {name: offset for name, offset in found.items() if set(offset.positions or ()) & set(shards)}
    remarks += [
        f"source {name} was not compared: it reads {_short(offset)}, and the options name others. Ask for it by its "
        "own format and options."
        for name, offset in found.items()
        if name not in mine
    ]
    if len(mine) > 1:
        remarks.append(
            f"sources {', '.join(mine)} read streams that the options name, and are all compared with them: which one "
            "the options belong to is not written anywhere."
        )
    return mine, remarks


def _short(offset: Offset) -> str:
    if offset.positions is None:
        return offset.text[:60]
    names = sorted(offset.positions)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
