"""What a query did and how far it is, as its user can ask for it: lag and figures. Knows Spark's progress events.

Spark has two places for figures of a Python source or sink. What the driver counts goes with each progress event, as
`sources[].latestOffset.metrics`. What tasks count goes into an accumulator, where the session has one: a session of
classic Spark that `penstock.register` has prepared.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from penstock.kit.figures import Figures

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

# Of each query and way, read or write, what its tasks counted. Batch reads and writes have no query: its id is empty.
Counted = dict[tuple[str, str], dict[str, float]]


class FiguresAccumulator(Protocol):
    """An accumulator of Spark: tasks add to it, and the driver has its value."""

    value: Counted

    def add(self, term: Counted) -> None:
        """Add what a task counted; it arrives when the task has succeeded."""


def lag(query: "StreamingQuery") -> list[dict[str, int]]:
    """For each source of a streaming query, how many positions of each stream lie ahead of it, by the last progress
    event. A position need not have a record: deleted records, and those that a filter leaves out, count as well.

    A source that is not ours has an empty entry. Before the first event the list is empty.
    """
    return [_ahead(_json(source.endOffset), _json(source.latestOffset)) for source in _sources(query)]


def figures(query: "StreamingQuery") -> dict[str, dict[str, float]]:
    """What a streaming query did: `driver`, by the last progress event, and `read` and `write`, its tasks since the
    session began, which is known where `penstock.register` has prepared the session. What is zero is left out.
    """
    driver = Figures()
    for source in _sources(query):
        driver += Figures.of_json(_json(source.latestOffset).get("metrics", {}))
    counted: Counted = _accumulators[-1].value if _accumulators else {}
    of_tasks = {way: counted.get((str(query.id), way), {}) for way in ("read", "write")}
    return {"driver": driver.as_json(), **of_tasks}


def accumulate(context: Any) -> FiguresAccumulator:
    """The accumulator of a SparkContext, made at the first call."""
    from pyspark.accumulators import AccumulatorParam

    class Adding(AccumulatorParam[Counted]):
        """Adds figure by figure."""

        def zero(self, value: Counted) -> Counted:
            return {}

        def addInPlace(self, value1: Counted, value2: Counted) -> Counted:  # noqa: N802 - Spark's name
            for key, more in value2.items():
                mine = value1.setdefault(key, {})
                for name, number in more.items():
                    mine[name] = mine.get(name, 0) + number
            return value1

    if not _accumulators or _contexts[-1] is not context:
        _contexts[:], _accumulators[:] = [context], [context.accumulator({}, Adding())]
    return _accumulators[-1]


# There is one SparkContext at a time.
_contexts: list[Any] = []
_accumulators: list[FiguresAccumulator] = []


def report(accumulator: FiguresAccumulator | None, way: str, counted: Mapping[str, float]) -> None:
    """Hand what a task counted to the driver, if somebody there adds it up. In the task."""
    if accumulator is None or not counted:
        return
    from pyspark import TaskContext

    task = TaskContext.get()
    query = task.getLocalProperty("sql.streaming.queryId") if task is not None else None
    accumulator.add({(query or "", way): dict(counted)})


def _sources(query: "StreamingQuery") -> list[Any]:
    progress = query.lastProgress
    return [] if progress is None else list(progress.sources)


def _json(text: str | None) -> dict[str, Any]:
    """An offset of a progress event; empty where it is not one of ours."""
    try:
        offset = json.loads(text or "")
    except ValueError:
        return {}
    return offset if isinstance(offset, dict) and isinstance(offset.get("next"), dict) else {}


def _ahead(end: Mapping[str, Any], head: Mapping[str, Any]) -> dict[str, int]:
    at = end.get("next", {})
    return {shard: max(0, latest - at[shard]) for shard, latest in head.get("next", {}).items() if shard in at}
