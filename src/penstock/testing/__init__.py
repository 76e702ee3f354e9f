"""Servers, doubles and suites to test with. Each is imported when it is asked for: most need an extra."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.testing.conformance import Conformance, WriteConformance
    from penstock.testing.iggy_double import IggyDouble
    from penstock.testing.journal import JournalLog
    from penstock.testing.kafka import KafkaBroker, spark_kafka_jars
    from penstock.testing.kinesis import KinesisDouble
    from penstock.testing.nats_cluster import NatsCluster
    from penstock.testing.nats_server import NatsServer, free_port
    from penstock.testing.proxy import Proxy
    from penstock.testing.s2_lite import S2Lite
    from penstock.testing.schema_registry import SchemaRegistry

__all__ = [
    "Conformance",
    "IggyDouble",
    "JournalLog",
    "KafkaBroker",
    "KinesisDouble",
    "NatsCluster",
    "NatsServer",
    "Proxy",
    "S2Lite",
    "SchemaRegistry",
    "WriteConformance",
    "free_port",
    "spark_kafka_jars",
]

_HOMES = {
    "Conformance": "conformance",
    "WriteConformance": "conformance",
    "IggyDouble": "iggy_double",
    "JournalLog": "journal",
    "KafkaBroker": "kafka",
    "spark_kafka_jars": "kafka",
    "KinesisDouble": "kinesis",
    "NatsCluster": "nats_cluster",
    "NatsServer": "nats_server",
    "free_port": "nats_server",
    "Proxy": "proxy",
    "S2Lite": "s2_lite",
    "SchemaRegistry": "schema_registry",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _HOMES[name] == "conformance":
        import pytest

        # pytest explains what an assertion compared in files that it knows to hold tests.
        pytest.register_assert_rewrite(f"{__name__}.conformance")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
