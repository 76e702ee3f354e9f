"""Lag and figures of a query, for its user. Knows Spark's progress events and accumulators; no server.

Spark has two places for figures of a Python source or sink. What the driver counts goes with each progress event, as
`sources[].latestOffset.metrics`. What tasks count goes into an accumulator, where the session has one: a session of
classic Spark that `penstock.register` has prepared.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from penstock.kit.figures import Figures
from penstock.planning.checkpoint import distance, is_ours

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

# Counters of tasks, by the id of their query and "read" or "write". The id is empty for batch reads and `df.write`.
Counted = dict[tuple[str, str], dict[str, float]]


class FiguresAccumulator(Protocol):
    """An accumulator of Spark: tasks add to it, and the driver reads its value."""

    value: Counted

    def add(self, term: Counted) -> None:
        """Add what a task counted. Spark delivers it only if the task succeeds."""


def lag(query: "StreamingQuery") -> list[dict[str, int]]:
    """How many positions of each stream are still unread, for each source of a streaming query. Positions of deleted
    records and of records that a filter leaves out count as well.

    By the last progress event that tells it: that of a batch which Spark runs again does not. The entry of a source
    that is not ours is empty. Before the first event the list is empty.
    """
    lags: list[dict[str, int]] = []
    for progress in query.recentProgress:
        sources = progress.sources
        behind = [distance(_json(source.endOffset), _json(source.latestOffset)) for source in sources]
        known = lags if len(lags) == len(behind) else behind
        lags = [new or old for new, old in zip(behind, known, strict=True)]
    return lags


def figures(query: "StreamingQuery") -> dict[str, dict[str, float]]:
    """What a streaming query did. `driver`: by the last progress event. `read` and `write`: by its tasks since the
    session began; empty unless `penstock.register` has prepared the session. Counters that are zero are left out.
    """
    driver = Figures()
    for source in _sources(query):
        driver += Figures.of_json(_json(source.latestOffset).get("metrics", {}))
    of_tasks = {way: counted().get((str(query.id), way), {}) for way in ("read", "write")}
    return {"driver": driver.as_json(), **of_tasks}


def counted() -> Counted:
    """What tasks of this program have reported."""
    return next((accumulator.value for accumulator in _accumulators.values()), {})


def accumulate(context: Any) -> FiguresAccumulator:
    """The accumulator of a SparkContext, made at the first call."""
    from pyspark.accumulators import AccumulatorParam

    class Adding(AccumulatorParam[Counted]):
        """Adds figure by figure."""

        def zero(self, value: Counted) -> Counted:
            return {}

        def addInPlace(self, value1: Counted, value2: Counted) -> Counted:  # noqa: N802 - Spark's name
            for key, more in value2.items():
                totals = value1.setdefault(key, {})
                for name, number in more.items():
                    totals[name] = totals.get(name, 0) + number
            return value1

    if context not in _accumulators:
        _accumulators.clear()  # there is one SparkContext at a time
        _accumulators[context] = context.accumulator({}, Adding())
    return _accumulators[context]


# The accumulator of the SparkContext that was last prepared.
_accumulators: dict[Any, FiguresAccumulator] = {}


def report(accumulator: FiguresAccumulator | None, way: str, counted: Mapping[str, float]) -> None:
    """In a task: send what it counted to the driver, if there is an accumulator."""
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
    return offset if is_ours(offset) else {}
