"""What observing needs besides Penstock, and what to say without it."""

import importlib.util
import os

from penstock.errors import OptionError

PACKAGES = ("prometheus_client", "starlette", "uvicorn")
OTEL = ("opentelemetry.sdk.metrics", "opentelemetry.exporter.otlp.proto.http.metric_exporter")
ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def exports() -> bool:
    """Whether the environment names a collector of OpenTelemetry for metrics."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get("OTEL_METRICS_EXPORTER") == "none":
        return False
    return any(os.environ.get(name) for name in ENDPOINTS)


def require() -> None:
    """An OptionError that says what to install, where a package is missing, or what of OpenTelemetry is not here."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        listed = ", ".join(missing)
        raise OptionError(f"observing needs the packages {listed}. Install them with: pip install 'penstock[observe]'")
    if not exports():
        return
    try:
        has_otel = all(importlib.util.find_spec(name) for name in OTEL)
    except ModuleNotFoundError:  # the package around it
        has_otel = False
    if not has_otel:
        raise OptionError(
            "the environment names a collector of OpenTelemetry, and its packages are not here. Install them with: "
            "pip install 'penstock[otel]', or set OTEL_METRICS_EXPORTER=none."
        )
    protocol = next(filter(None, map(os.environ.get, PROTOCOLS)), "http/protobuf")
    if protocol != "http/protobuf":
        raise OptionError(f"OTEL_EXPORTER_OTLP_PROTOCOL is '{protocol}', and metrics are sent by http/protobuf only.")
