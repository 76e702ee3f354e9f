"""What is known of every query: its state, totals, the last batches, and figures of the last hour. In memory, and
bounded: of queries that have ended, the newest hundred. Knows progress events as values; no Spark, no HTTP.
"""

import bisect
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.kit.figures import Figures
from penstock.kit.masking import masked
from penstock.watch.progress import Batch

HOUR = 3600.0
# A query of 0.1 s a batch has 36,000 batches in an hour: the figures of the last hour are of so many moments at most.
POINTS = 720
BATCHES = 100
ENDED = 100
# Upper ends of what batches take, in seconds, for histograms.
BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Point(NamedTuple):
    """A moment of a query: rows since the moment before, in how many seconds, lag, and seconds of the longest batch."""

    at: float
    rows: int
    span: float
    lag: int | None
    lag_seconds: float | None
    seconds: float

    @property
    def rate(self) -> float:
        """Rows a second, of the time that passed: a query also waits between batches."""
        return self.rows / max(self.span, 1e-3)


@dataclass
class Histogram:
    """How often a stage took how long."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one more."""
        self.counts[bisect.bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds


@dataclass
class Watched:
    """A query, over all of its runs in this program. One that begins anew under the same name is the same: it has
    another id, and its totals go on.
    """

    id: str
    name: str
    ids: list[str] = field(default_factory=list)  # all that it had
    run: str = ""
    told: float = 0.0  # when it last told of itself
    is_active: bool = True
    error: str = ""
    began: float = field(default_factory=time.time)
    runs: int = 0
    batches: int = 0  # with rows
    rows: int = 0
    written: int | None = None  # where Spark knows it
    errors: int = 0
    last: Batch | None = None
    log: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=BATCHES))
    recent: deque[Batch] = field(default_factory=lambda: deque(maxlen=BATCHES))
    points: deque[Point] = field(default_factory=deque)
    stages: dict[str, Histogram] = field(default_factory=dict)
    # Counters of the processes that planned: of runs that have ended, and of the current one.
    planned_before: Figures = field(default_factory=Figures)
    planned: Figures = field(default_factory=Figures)
    # When the position that is unread now was first seen to be there, by source and shard: for sources without ages.
    unread_since: dict[tuple[int, str], tuple[int, float]] = field(default_factory=dict)

    @property
    def driver(self) -> Figures:
        """What planning did since this program began: retries, reconnects, records that were skipped."""
        return self.planned_before + self.planned

    @property
    def rate(self) -> float:
        """Rows a second in the last ten seconds, or in the last batch where that took longer."""
        last = self.points[-1] if self.points else None
        if last is None or time.time() - last.at > max(10.0, 2 * last.seconds):
            return 0.0
        rows, span = 0, 0.0
        for point in reversed(self.points):
            rows, span = rows + point.rows, span + point.span
            if span >= 10.0:
                break
        return rows / max(span, 1e-3)


class Store:
    """Every query that was seen, by its id. Any thread may ask and tell."""

    def __init__(self, clock: Callable[[], float] = time.time):
        self.clock, self.lock = clock, threading.RLock()
        self.queries: dict[str, Watched] = {}
        # What tasks have counted, by the id of the query and "read" or "write"; empty where they do not report.
        self.counted: Callable[[], Mapping[tuple[str, str], Mapping[str, float]]] = dict
        self.changes = 0  # grows with each event: who waits for news compares
        self._news = threading.Condition(self.lock)

    def started(self, id: str, run: str, name: str) -> None:
        """A run of a query has begun."""
        with self.lock:
            query = self._named(name or id) or self.queries.get(id) or Watched(id, name or id)
            if query.id != id:
                del self.queries[query.id]
                query.id, query.last, query.unread_since = id, None, {}
            self.queries[id] = query
            query.ids = [*dict.fromkeys((*query.ids, id))]
            query.name, query.run, query.is_active, query.error = name or id, run, True, ""
            query.began = query.told = self.clock()
            query.runs += 1
            self._forget()
            query.log.append((self.clock(), f"run {run} begins"))
            query.planned_before, query.planned = query.driver, Figures()
            self._tell()

    def progressed(self, batch: Batch) -> None:
        """A query has told of a batch, or of a look that found nothing new."""
        with self.lock:
            first = Watched(batch.query, batch.name, [batch.query], batch.run)
            query = self.queries.setdefault(batch.query, first)
            if query.run != batch.run:
                return  # of a run before: Spark tells of starts at once, and of all else when it comes to it
            query.told = self.clock()
            is_new = query.last is None or (batch.run, batch.number) != (query.last.run, query.last.number)
            query.last, query.error = batch, ""
            query.planned = sum((source.figures for source in batch.sources), Figures())
            took = batch.seconds.get("triggerExecution", 0.0)
            if batch.rows or (is_new and "addBatch" in batch.seconds):
                query.recent.append(batch)
                query.batches += bool(batch.rows)
                query.rows += batch.rows
                if batch.written is not None:
                    query.written = (query.written or 0) + batch.written
                query.errors += batch.errors
                for stage, seconds in batch.seconds.items():
                    query.stages.setdefault(stage, Histogram()).add(seconds)
            lag_seconds = batch.lag_seconds if batch.lag_seconds is not None else self._age(query, batch)
            at = batch.at + took
            since = max(query.points[-1].at if query.points else 0.0, query.began)
            self._point(query, Point(at, batch.rows, max(at - since, took), batch.lag, lag_seconds, took))
            self._tell()

    def idle(self, id: str, run: str) -> None:
        """A query has told that there is nothing new."""
        with self.lock:
            if (query := self.queries.get(id)) and query.run == run:
                query.told = self.clock()

    def ended(self, id: str, run: str, error: str) -> None:
        """A run has ended, by itself or by an error."""
        error = masked(error)
        with self.lock:
            if (query := self.queries.get(id)) and query.run == run:
                query.is_active, query.error = False, error
                query.log.append((self.clock(), f"failed: {error}" if error else "ended"))
            self._tell()

    def wait_for_end(self, run: str, seconds: float) -> None:
        """Wait until a run is known to have ended, or so long. Until then it may still tell of batches."""
        with self._news:
            self._news.wait_for(lambda: any(q.run == run and not q.is_active for q in self.queries.values()), seconds)

    def totals(self, name: str) -> tuple[int, int]:
        """Rows and errors of the query of that name."""
        with self.lock:
            query = self._named(name)
            return (query.rows, query.errors) if query is not None else (0, 0)

    def named(self, name: str) -> Watched | None:
        """The query of that name."""
        with self.lock:
            return self._named(name)

    def by_tasks(self, query: Watched, way: str) -> Figures:
        """What tasks of a query have counted: of all that it did, or nothing."""
        counted = self.counted()
        return sum((Figures.of_json(counted.get((id, way), {})) for id in query.ids), Figures())

    def written(self, query: Watched) -> int | None:
        """Rows that sinks took, by Spark or by tasks; None where neither tells, as with files in Spark Connect."""
        by_tasks = self.by_tasks(query, "write").rows
        return max(query.written or 0, by_tasks) if by_tasks or query.written is not None else None

    def _named(self, name: str) -> Watched | None:
        return next((query for query in self.queries.values() if query.name == name), None)

    def _forget(self) -> None:
        """Keep only the newest of those that have ended."""
        ended = sorted((query for query in self.queries.values() if not query.is_active), key=lambda query: query.told)
        for query in ended[: -ENDED or None]:
            del self.queries[query.id]

    def _tell(self) -> None:
        self.changes += 1
        self._news.notify_all()

    def _point(self, query: Watched, point: Point) -> None:
        """Add a moment. Moments that are close together become one, so that an hour fits."""
        points = query.points
        if points and points[-1].span < HOUR / POINTS:
            last = points[-1]
            rows, span, seconds = last.rows + point.rows, last.span + point.span, max(last.seconds, point.seconds)
            points[-1] = point._replace(rows=rows, span=span, seconds=seconds)
        else:
            points.append(point)
        while points and points[0].at < point.at - HOUR:
            points.popleft()

    def _age(self, query: Watched, batch: Batch) -> float | None:
        """How long the oldest unread position has been seen to be there, of sources that tell no ages, as Kafka."""
        now, ages, known = self.clock(), list[float](), query.unread_since
        query.unread_since = {}
        for number, source in enumerate(batch.sources):
            for shard in source.shards:
                if shard.lag is None:
                    continue
                head = shard.position + shard.lag
                before = known.get((number, shard.name))
                if not shard.lag:
                    ages.append(0.0)
                elif before is not None and shard.position < before[0]:
                    query.unread_since[number, shard.name] = before  # what was there then is still not all read
                    ages.append(now - before[1])
                else:
                    query.unread_since[number, shard.name] = (head, now)
                    ages.append(0.0)
        return max(ages, default=None)
