"""The metrics for OpenTelemetry: the same ones that Prometheus gets, pushed to a collector. Set up by the environment
variables of OpenTelemetry itself. Knows its data model; no queries.
"""

import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from prometheus_client.core import Metric as Family

from penstock import __version__
from penstock.monitor.metrics import Metrics
from penstock.monitor.needed import ENDPOINTS

log = logging.getLogger("penstock")
EVERY = 60_000  # milliseconds, as OpenTelemetry has it
LAST = 3.0  # seconds for what is sent at the end


class Export:
    """Sends all metrics every minute, or as often as OTEL_METRIC_EXPORT_INTERVAL says, and once more at its end. A
    collector that is away costs nothing else: it is logged once, and what it missed is in the next totals.
    """

    def __init__(self, metrics: Metrics):
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.resources import Resource

        self.metrics, self.began = metrics, time.time_ns()
        self.exporter = OTLPMetricExporter()
        named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        self.resource = Resource.create({} if named else {"service.name": "penstock"})
        self.every = int(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL") or EVERY) / 1000
        self._over, self._failed = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="penstock-otel", daemon=True)

    def start(self) -> "Export":
        """Begin to send."""
        # The exporter tells of each attempt, with a traceback: once, in a sentence, is enough.
        logging.getLogger("opentelemetry.exporter.otlp.proto.http.metric_exporter").setLevel(logging.CRITICAL)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Send what there is, and end."""
        self._over.set()
        self._thread.join(LAST)
        self.exporter.shutdown()

    def _run(self) -> None:
        while not self._over.wait(self.every):
            self._send()
        self._send()

    def _send(self) -> None:
        from opentelemetry.sdk.metrics.export import MetricExportResult

        try:
            went = self.exporter.export(self._data(), timeout_millis=5_000) is MetricExportResult.SUCCESS
        except Exception:
            went = False
        if not went and not self._failed:
            where = next((os.environ[name] for name in ENDPOINTS if os.environ.get(name)), "")
            log.warning("the collector of OpenTelemetry at %s does not take metrics. No query is affected", where)
        self._failed = not went

    def _data(self) -> Any:
        from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        now = time.time_ns()
        families = [converted for family in self.metrics.collect() for converted in self._converted(family, now)]
        scope = ScopeMetrics(InstrumentationScope("penstock", __version__), families, "")
        return MetricsData([ResourceMetrics(self.resource, [scope], "")])

    def _converted(self, family: Family, now: int) -> Iterator[Any]:
        """A family of Prometheus as a metric of OpenTelemetry. One without values is left out."""
        from opentelemetry.sdk.metrics.export import AggregationTemporality as Temporality
        from opentelemetry.sdk.metrics.export import Gauge, Histogram, Metric, NumberDataPoint, Sum

        if not family.samples:
            return
        data: Any
        if family.type == "histogram":
            data = Histogram(list(self._histograms(family, now)), Temporality.CUMULATIVE)
        else:
            points = [NumberDataPoint(each.labels, self.began, now, each.value) for each in family.samples]
            is_counter = family.type == "counter"
            data = Sum(points, Temporality.CUMULATIVE, is_monotonic=True) if is_counter else Gauge(points)
        unit = "s" if family.name.endswith("_seconds") else "By" if "_bytes" in family.name else "1"
        yield Metric(family.name, family.documentation, unit, data)

    def _histograms(self, family: Family, now: int) -> Iterator[Any]:
        from opentelemetry.sdk.metrics.export import HistogramDataPoint

        series: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
        for sample in family.samples:
            labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
            one = series.setdefault(labels, {"ends": [], "totals": [], "sum": 0.0})
            if sample.name.endswith("_bucket"):
                one["ends"].append(float(sample.labels["le"]))
                one["totals"].append(int(sample.value))
            elif sample.name.endswith("_sum"):
                one["sum"] = sample.value
        for labels, one in series.items():
            totals = one["totals"]
            counts = [total - before for total, before in zip(totals, [0, *totals[:-1]], strict=True)]
            bounds = [end for end in one["ends"] if end != float("inf")]
            yield HistogramDataPoint(
                dict(labels), self.began, now, totals[-1], one["sum"], counts, bounds, float("nan"), float("nan")
            )
