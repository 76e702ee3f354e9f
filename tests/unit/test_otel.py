"""Metrics for a collector of OpenTelemetry, over real HTTP. No Spark."""

import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from penstock.errors import OptionError
from penstock.monitor import needed
from penstock.monitor.metrics import Metrics, text
from penstock.monitor.otel import Export
from penstock.watch.progress import Batch, Shard, SourceProgress
from penstock.watch.store import Store

service = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")


class Collector:
    """Takes what is sent to it."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = service.ExportMetricsServiceRequest()
                request.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
                outer.got.append((self.path, request))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *what: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    running = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", running.url)
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "600000")
    yield running
    running.server.shutdown()
    running.server.server_close()


@pytest.fixture
def metrics() -> Metrics:
    store = Store()
    store.started("id", "run", "orders")
    source = SourceProgress("jetstream", 1000, (Shard("ORDERS", 17, 3),), 3, 60, 0.5)
    for number, seconds in enumerate((0.2, 0.3, 70.0)):
        took = {"triggerExecution": seconds, "addBatch": seconds}
        store.progressed(Batch("id", "run", "orders", number, 1000.0 + number, 1000, took, (source,), 1000))
    return Metrics(store)


def test_a_collector_gets_the_same_figures_as_prometheus(collector: Collector, metrics: Metrics) -> None:
    Export(metrics).start().stop()
    ((path, request),) = collector.got
    assert path == "/v1/metrics"
    (resource,) = request.resource_metrics
    assert {each.key: each.value.string_value for each in resource.resource.attributes}["service.name"] == "penstock"
    (scope,) = resource.scope_metrics
    sent = {each.name: each for each in scope.metrics}
    (read,) = sent["penstock_records_read"].sum.data_points
    assert (read.as_double or read.as_int, read.attributes[0].value.string_value) == (3000, "orders")
    assert sent["penstock_records_read"].sum.is_monotonic
    (lag,) = sent["penstock_lag_records"].gauge.data_points
    assert (lag.as_double or lag.as_int) == 3
    whole = next(
        each
        for each in sent["penstock_batch_duration_seconds"].histogram.data_points
        if "triggerExecution" in [attribute.value.string_value for attribute in each.attributes]
    )
    assert (whole.count, whole.sum, sum(whole.bucket_counts)) == (3, 70.5, 3)
    assert len(whole.bucket_counts) == len(whole.explicit_bounds) + 1
    shown = text(metrics).decode()
    assert all(name in shown for name in sent)


def test_a_collector_that_is_away_is_told_once(
    collector: Collector, metrics: Metrics, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    export = Export(metrics)
    with caplog.at_level(logging.WARNING, "penstock"):
        export._send()
        export._send()
    assert [record.message for record in caplog.records if record.name == "penstock"] == [
        "the collector of OpenTelemetry at http://127.0.0.1:9 does not take metrics. No query is affected"
    ]


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4318/v1/metrics"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_METRICS_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_the_environment_says_whether_metrics_are_sent(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], wanted: bool
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert needed.exports() is wanted


def test_a_protocol_that_is_not_spoken_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(OptionError, match="is 'grpc', and metrics are sent by http/protobuf only"):
        needed.require()


def test_missing_packages_are_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318")
    monkeypatch.setattr(needed, "OTEL", ("opentelemetry.no_such_thing",))
    with pytest.raises(OptionError, match=r"penstock\[otel\]"):
        needed.require()
