"""What is known of queries as metrics of Prometheus. Knows names and types of metrics; asks a Store when it is scraped,
so that nothing is paid for while nobody looks.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock import __version__
from penstock.kit.figures import Figures
from penstock.watch.store import BUCKETS, Store, Watched

if TYPE_CHECKING:
    from penstock.monitor.jetstream import JetStreams
    from penstock.monitor.view import Pipelines

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# So many shards of a query have figures of their own, those that are behind most; the others are added up as one.
SHARDS = 50
REST = "(other shards)"


class Figure(NamedTuple):
    """A counter of `kit/figures.py` as a metric."""

    name: str
    text: str


# Counters of what tasks and planning did, by their names in Figures.
FIGURES = {
    "retries": Figure("penstock_retries", "Requests that were made again after a lost connection."),
    "waited": Figure("penstock_retry_wait_seconds", "Seconds that were waited before requests were made again."),
    "reconnects": Figure("penstock_reconnects", "Lost connections after which it worked again."),
    "redelivered": Figure("penstock_records_redelivered", "Messages that a consumer was given before."),
    "skipped": Figure("penstock_records_skipped", "Records that were lost before they were read, or that are no rows."),
    "dropped": Figure("penstock_records_dropped", "Messages for which the buffer had no room."),
    "already_there": Figure("penstock_records_already_there", "Rows that an earlier attempt had written."),
    "acks": Figure("penstock_acks", "Messages of a consumer that were acknowledged."),
    "ack_delay": Figure("penstock_ack_delay_seconds", "Seconds from their delivery to that, of all together."),
    "writes": Figure("penstock_writes", "Partitions of batches that tasks have written."),
    "write_time": Figure("penstock_write_seconds", "Seconds that these took, of all together."),
}
# What others call the same, for those who come from there: see docs/observing.md.
ALIASES = {
    "messages_read": "penstock_records_read_total",
    "bytes_read": "penstock_bytes_read_total",
    "batches_processed": "penstock_batches_total",
    "errors_count": "penstock_errors_total",
    "last_offset": "penstock_position",
    "lag": "penstock_lag_records",
    "iggy_connector_messages_produced_total": "penstock_records_read_total",
    "iggy_connector_messages_sent_total": "penstock_records_written_total",
    "iggy_connector_messages_consumed_total": "penstock_records_read_total",
    "iggy_connector_messages_processed_total": "penstock_records_written_total",
    "iggy_connector_errors_total": "penstock_errors_total",
    "iggy_connector_stage_duration_seconds": "penstock_batch_duration_seconds",
}


@dataclass(frozen=True)
class Metrics(Collector):
    """Metrics of all queries of a program, of its pipelines where it has any, and of JetStream servers."""

    store: Store
    pipelines: "Pipelines | None" = None
    jetstream: "JetStreams | None" = None

    def collect(self) -> Iterator[Metric]:
        """All metrics, as they are now."""
        with self.store.lock:
            queries = list(self.store.queries.values())
            yield from self._of_queries(queries)
            yield from _shards(queries)
            yield _stages(queries)
        if self.pipelines is not None:
            yield from _of_pipelines(self.pipelines)
        if self.jetstream is not None:
            yield from self.jetstream.collect()
        info = GaugeMetricFamily("penstock_build_info", "The version of Penstock; the value is 1.", labels=["version"])
        info.add_metric([__version__], 1)
        yield info

    def _of_queries(self, queries: list[Watched]) -> Iterator[Metric]:
        by_tasks = {(query.id, way): self.store.by_tasks(query, way) for query in queries for way in ("read", "write")}

        def read(query: Watched) -> Figures:
            return by_tasks[query.id, "read"]

        def written(query: Watched) -> Figures:
            return by_tasks[query.id, "write"]

        counters: dict[str, tuple[str, Callable[[Watched], float | None]]] = {
            "penstock_records_read": ("Records that batches have read.", lambda q: q.rows),
            "penstock_bytes_read": ("Bytes of records, as columns in memory.", lambda q: read(q).bytes),
            "penstock_records_written": ("Rows that sinks took, where that is known.", self.store.written),
            "penstock_bytes_written": ("Bytes of rows that sinks took.", lambda q: written(q).bytes),
            "penstock_batches": ("Batches with records that are done.", lambda q: q.batches),
            "penstock_errors": ("Records that could not be decoded.", lambda q: q.errors),
            "penstock_runs": ("Runs of the query that this program has begun.", lambda q: q.runs),
        }
        for name, (text, value) in counters.items():
            counter = CounterMetricFamily(name, text, labels=["pipeline"])
            for query in queries:
                if (total := value(query)) is not None:
                    counter.add_metric([query.name], total)
            yield counter
        for field, figure in FIGURES.items():
            counter = CounterMetricFamily(figure.name, figure.text, labels=["pipeline", "part"])
            for query in queries:
                counter.add_metric([query.name, "driver"], getattr(query.driver, field))
                for way in ("read", "write"):
                    counter.add_metric([query.name, way], getattr(by_tasks[query.id, way], field))
            yield counter
        gauges: dict[str, tuple[str, Callable[[Watched], float | None]]] = {
            "penstock_up": ("1 while a query runs.", lambda q: int(q.is_active)),
            "penstock_records_per_second": ("Rows a second, of late.", lambda q: q.rate),
            "penstock_last_batch": ("The number of the last batch.", lambda q: q.last.number if q.last else None),
            "penstock_last_progress_timestamp_seconds": (
                "When it last told of itself, also that there is nothing new.",
                lambda q: q.told or None,
            ),
        }
        for name, (text, gauge) in gauges.items():
            family = GaugeMetricFamily(name, text, labels=["pipeline"])
            for query in queries:
                if (now := gauge(query)) is not None:
                    family.add_metric([query.name], now)
            yield family


def _shards(queries: list[Watched]) -> Iterator[Metric]:
    labels = ["pipeline", "source", "shard"]
    position = GaugeMetricFamily("penstock_position", "The next position to read.", labels=labels)
    lag = GaugeMetricFamily("penstock_lag_records", "Records that are there and not read.", labels=labels)
    size = GaugeMetricFamily("penstock_lag_bytes", "Bytes of these, where the server tells sizes.", labels=labels[:2])
    age = GaugeMetricFamily("penstock_lag_seconds", "Age of the oldest unread record.", labels=labels[:2])
    for query in queries:
        names: list[str] = []
        for source in query.last.sources if query.last else ():
            names.append(source.format)
            same = names.count(source.format)
            of_source = [query.name, source.format if same == 1 else f"{source.format} ({same})"]
            largest = sorted(source.shards, key=lambda shard: (-(shard.lag or 0), shard.name))
            for shard in largest[:SHARDS]:
                position.add_metric([*of_source, shard.name], shard.position)
                if shard.lag is not None:
                    lag.add_metric([*of_source, shard.name], shard.lag)
            if rest := largest[SHARDS:]:
                lag.add_metric([*of_source, REST], sum(shard.lag or 0 for shard in rest))
            if source.lag_bytes is not None:
                size.add_metric(of_source, source.lag_bytes)
            seconds = source.lag_seconds
            if seconds is None and len(query.last.sources) == 1 and query.points:  # type: ignore[union-attr] # there is one
                seconds = query.points[-1].lag_seconds
            if seconds is not None:
                age.add_metric(of_source, seconds)
    yield from (position, lag, size, age)


def _stages(queries: list[Watched]) -> Metric:
    family = HistogramMetricFamily(
        "penstock_batch_duration_seconds",
        "What batches took, by stage; triggerExecution is the whole.",
        labels=["pipeline", "stage"],
    )
    for query in queries:
        for stage, histogram in query.stages.items():
            total, buckets = 0, []
            for end, count in zip((*map(str, BUCKETS), "+Inf"), histogram.counts, strict=True):
                total += count
                buckets.append((end, total))
            family.add_metric([query.name, stage], buckets, histogram.total)
    return family


def _of_pipelines(pipelines: "Pipelines") -> Iterator[Metric]:
    state = GaugeMetricFamily("penstock_pipeline_state", "1 for the state it is in.", labels=["pipeline", "state"])
    restarts = CounterMetricFamily("penstock_restarts", "Restarts after failures.", labels=["pipeline"])
    letters = CounterMetricFamily("penstock_dead_letters", "Records sent to dead letters.", labels=["pipeline"])
    for each in pipelines.all():
        for name in pipelines.states:
            state.add_metric([each.key, name], int(each.state == name))
        restarts.add_metric([each.key], each.restarts)
        if each.has_dead_letters:
            letters.add_metric([each.key], each.errors)
    yield from (state, restarts, letters)


def text(metrics: Metrics) -> bytes:
    """All of them, in Prometheus' format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    return generate_latest(registry)
