"""Spark's progress events as values. Pure: JSON in, figures out."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from penstock.kit.figures import Figures
from penstock.planning.checkpoint import Checkpoint, is_ours

# How Spark's own sources describe themselves.
_DESCRIBED = (("Kafka", "kafka"), ("Rate", "rate"), ("FileStream", "files"))
OBSERVED = "penstock"  # the name under which a pipeline observes its records and errors


class Shard(NamedTuple):
    """A stream, partition or shard: the next position to read, and how many records are behind it; None: not known."""

    name: str
    position: int
    lag: int | None


@dataclass(frozen=True)
class SourceProgress:
    """One source of a query. `lag_seconds` is the age of the oldest unread record. What is not known is None."""

    format: str
    rows: int
    shards: tuple[Shard, ...] = ()
    lag: int | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    figures: Figures = field(default_factory=Figures)  # of the process that plans, since it began


@dataclass(frozen=True)
class Batch:
    """One progress event. `seconds`: what each stage took, by Spark's names; `triggerExecution` is the whole."""

    query: str
    run: str
    name: str
    number: int
    at: float  # seconds since 1970, when it began
    rows: int
    seconds: Mapping[str, float]
    sources: tuple[SourceProgress, ...]
    written: int | None  # rows that the sink took; None where Spark does not know
    errors: int = 0  # records that could not be decoded

    @property
    def lag(self) -> int | None:
        """Unread records of all sources; None where no source tells."""
        return _sum(source.lag for source in self.sources)

    @property
    def lag_seconds(self) -> float | None:
        """The age of the oldest unread record of all sources."""
        return max((s.lag_seconds for s in self.sources if s.lag_seconds is not None), default=None)


def parse(progress: Mapping[str, Any]) -> Batch:
    """A progress event of Spark, as its JSON."""
    number = progress["batchId"]
    observed = _observed(progress.get("observedMetrics", {}).get(OBSERVED))
    written = progress.get("sink", {}).get("numOutputRows", -1)
    return Batch(
        query=progress["id"],
        run=progress["runId"],
        name=progress.get("name") or progress["id"],
        number=number,
        at=datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00")).timestamp(),
        # Where records are decoded, they are counted then: Spark counts those twice that several sinks read.
        rows=observed.get("records", progress.get("numInputRows", 0)),
        seconds={stage: ms / 1000 for stage, ms in progress.get("durationMs", {}).items()},
        sources=tuple(map(source_of, progress.get("sources", []))),
        written=written if written >= 0 else None,
        errors=observed.get("errors", 0),
    )


def _observed(row: Any) -> Mapping[str, int]:
    """What a pipeline counts of a batch. Spark Connect has names and values apart."""
    if not isinstance(row, Mapping):
        return {}
    return dict(zip(("records", "errors"), row["values"], strict=False)) if "schema" in row else row


def source_of(source: Mapping[str, Any]) -> SourceProgress:
    """One source of a progress event. Its format is empty where nothing tells."""
    end, head = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    rows = source.get("numInputRows", 0)
    if is_ours(end) or is_ours(head):
        return _ours(end, head, rows)
    at, heads = _partitions(end), _partitions(head)
    shards = tuple(Shard(name, n, max(0, heads[name] - n) if name in heads else None) for name, n in at.items())
    described = str(source.get("description", ""))
    format = next((name for beginning, name in _DESCRIBED if described.startswith(beginning)), "")
    return SourceProgress(format, rows, shards, _sum(shard.lag for shard in shards))


def _ours(end: Mapping[str, Any], head: Mapping[str, Any], rows: int) -> SourceProgress:
    at = Checkpoint.decode(end).positions if is_ours(end) else {}
    heads = Checkpoint.decode(head).positions if is_ours(head) else {}
    told = head.get("metrics", {})
    shards = tuple(
        Shard(name, here.next, max(0, heads[name].next - here.next) if name in heads else None)
        for name, here in at.items()
    )
    age = told.get("lagMs")
    return SourceProgress(
        format=head.get("format", "penstock"),
        rows=rows,
        shards=shards,
        lag=told.get("lag", _sum(shard.lag for shard in shards)),
        lag_bytes=told.get("lagBytes", 0 if told.get("lag") == 0 else None),
        lag_seconds=None if age is None else age / 1000,
        figures=Figures.of_json(told),
    )


def _offsets(value: Any) -> Mapping[str, Any]:
    """An offset, which Spark writes as JSON or as text with JSON in it."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, Mapping) else {}


def _partitions(offset: Mapping[str, Any]) -> dict[str, int]:
    """Positions of Kafka: partitions of topics. Empty for all else."""
    return {
        f"{topic}/{partition}": at
        for topic, partitions in offset.items()
        if isinstance(partitions, Mapping)
        for partition, at in partitions.items()
        if isinstance(at, int)
    }


def _sum(values: Any) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
