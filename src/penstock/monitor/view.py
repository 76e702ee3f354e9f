"""What is known of pipelines and queries, as JSON for programs and the page. Knows the Store, and pipelines by what
they tell of themselves. Shows no secrets: options come masked.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock import __version__
from penstock.kit.figures import Figures
from penstock.watch.progress import Batch, SourceProgress
from penstock.watch.store import Point, Store, Watched

STARTING, RUNNING, ENDED, FAILED = "starting", "running", "stopped", "failed"


@dataclass(frozen=True)
class Told:
    """A pipeline, as it tells of itself. `flow`: its parts, each with its options, without secrets."""

    key: str
    title: str
    state: str
    guarantee: str
    error: str = ""
    failures: int = 0
    restarts: int = 0
    errors: int = 0
    has_dead_letters: bool = False
    restarts_in: float | None = None  # seconds
    flow: Sequence[Mapping[str, Any]] = field(default_factory=list)
    log: Sequence[tuple[float, str]] = ()  # what was said of it, and when


class Pipelines(Protocol):
    """The pipelines of a program, which can be told to do something."""

    states: Sequence[str]

    def all(self) -> Sequence[Told]:
        """Every one, in the order of the files."""

    def do(self, verb: str, key: str, **given: Any) -> str:
        """Stop, start, restart or rewind one. What was done, in a sentence. An OptionError where it cannot be."""


def overview(store: Store, pipelines: Pipelines | None) -> list[dict[str, Any]]:
    """All pipelines, or all queries of a program without pipelines: what is wrong comes first."""
    listed = _told(store, pipelines)
    with store.lock:
        shown = [short(told, store, store.named(told.key)) for told in listed]
    return sorted(shown, key=lambda each: (_urgency(each), each["key"]))


def one(store: Store, pipelines: Pipelines | None, key: str) -> dict[str, Any] | None:
    """A pipeline or query with all that is known of it; None where there is none of that key."""
    told = next((each for each in _told(store, pipelines) if each.key == key), None)
    if told is None:
        return None
    with store.lock:
        query = store.named(key)
        more: dict[str, Any] = {
            "flow": list(told.flow),
            "log": [[round(at, 1), line] for at, line in told.log],
            "takes_orders": pipelines is not None,
        }
        if query is not None:
            more |= {
                "history": [_point(point) for point in query.points],
                "batches": [_batch(batch) for batch in reversed(query.recent)],
                "sources": [_source(source) for source in query.last.sources] if query.last else [],
                "figures": _figures(query.driver),
            }
        return short(told, store, query) | more


def short(told: Told, store: Store, query: Watched | None) -> dict[str, Any]:
    """What stands in a row of a table."""
    last = query.last if query is not None else None
    point = query.points[-1] if query is not None and query.points else None
    return {
        "key": told.key,
        "name": told.title,
        "state": told.state,
        "guarantee": told.guarantee,
        "sources": [part["type"] for part in told.flow if part["part"] == "source"],
        "error": told.error,
        "failures": told.failures,
        "restarts": told.restarts,
        "restarts_in": told.restarts_in,
        "batch": last.number if last is not None else None,
        "at": last.at if last is not None else None,
        "rate": round(query.rate, 1) if query is not None else 0.0,
        "lag": last.lag if last is not None else None,
        "lag_seconds": point.lag_seconds if point is not None else None,
        "batch_seconds": last.seconds.get("triggerExecution") if last is not None else None,
        # The words of the seed: docs/observing.md has all names.
        "messages_read": query.rows if query is not None else 0,
        "batches_processed": query.batches if query is not None else 0,
        "errors_count": max(told.errors, query.errors if query is not None else 0),
        "written": store.written(query) if query is not None else None,
        "query": query.id if query is not None else None,
        "run": query.run if query is not None else None,
    }


def _told(store: Store, pipelines: Pipelines | None) -> Sequence[Told]:
    """All of them. Pipelines may have a lock of their own, in which they tell the store: so not inside of its lock."""
    if pipelines is not None:
        return pipelines.all()
    with store.lock:
        queries = sorted(store.queries.values(), key=lambda query: query.began)
    return [
        Told(
            key=query.name,
            title=query.name,
            state=RUNNING if query.is_active else FAILED if query.error else ENDED,
            guarantee="",
            error=query.error,
            log=list(query.log),
            flow=[{"part": "source", "type": s.format} for s in query.last.sources] if query.last else [],
        )
        for query in queries
    ]


def _urgency(shown: Mapping[str, Any]) -> int:
    """What to look at first: failures, then what waits to start again, then what runs."""
    if shown["state"] == FAILED:
        return 0
    if shown["error"]:
        return 1
    return 2 if shown["state"] == RUNNING else 3


def _point(point: Point) -> list[float | None]:
    """A moment as a row: time, rows a second, lag, lag in seconds, seconds of the batch."""
    return [round(point.at, 1), round(point.rate, 1), point.lag, point.lag_seconds, round(point.seconds, 3)]


def _batch(batch: Batch) -> dict[str, Any]:
    return {
        "batch": batch.number,
        "at": batch.at,
        "rows": batch.rows,
        "errors": batch.errors,
        "seconds": {stage: round(seconds, 3) for stage, seconds in batch.seconds.items()},
        "ends": [dict(sorted((s.name, s.position) for s in source.shards[:20])) for source in batch.sources],
    }


def _source(source: SourceProgress) -> dict[str, Any]:
    largest = sorted(source.shards, key=lambda shard: (-(shard.lag or 0), shard.name))
    return {
        "format": source.format,
        "lag": source.lag,
        "lag_bytes": source.lag_bytes,
        "lag_seconds": source.lag_seconds,
        "shards": [list(shard) for shard in largest[:50]],
        "other_shards": max(0, len(largest) - 50),
    }


def _figures(figures: Figures) -> dict[str, float]:
    return figures.as_json()


def stats(store: Store, pipelines: Pipelines | None, began: float) -> dict[str, Any]:
    """The whole program, in the shape of Iggy's connectors runtime."""
    shown = overview(store, pipelines)
    return {
        "runtime": "penstock",
        "version": __version__,
        "process_id": os.getpid(),
        "run_time": round(time.time() - began, 1),
        "messages_read": sum(each["messages_read"] for each in shown),
        "errors_count": sum(each["errors_count"] for each in shown),
        "connectors": [
            {
                "key": each["key"],
                "name": each["name"],
                "connector_type": "pipeline",
                "status": each["state"],
                "enabled": True,
                "messages_produced": each["messages_read"],
                "messages_sent": each["written"] or 0,
                "errors": each["errors_count"],
                "last_error": each["error"],
            }
            for each in shown
        ],
    }
