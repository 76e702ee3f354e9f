"""NATS, JetStream, S2 and Iggy streams for Apache Spark."""

from typing import TYPE_CHECKING, Any

from penstock.errors import (
    ConnectError,
    DataLossError,
    Disconnected,
    Interrupted,
    OptionError,
    PenstockError,
    ProtocolError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.monitor.observer import Observer

__version__ = "0.1.0"
__all__ = [
    "ConnectError",
    "DataLossError",
    "Disconnected",
    "Interrupted",
    "OptionError",
    "PenstockError",
    "ProtocolError",
    "errors_last",
    "figures",
    "lag",
    "register",
]


def register(spark: Any) -> None:
    """Make every format known to a session by value, for a cluster where Penstock is not installed.

    Only our code travels: the cluster's Python needs pyarrow, numpy and pydantic, and nkeys for NKeys. Also
    lets Spark hide more names of secrets than it knows by itself, and shows errors of ours last, as `errors_last`
    does. And lets tasks report what they did, for `penstock.figures`: not with Spark Connect, which has no
    accumulators.
    """
    from penstock.spark.installed import require_spark

    require_spark()
    from pyspark import cloudpickle

    import penstock
    from penstock.connectors import FORMATS, connector
    from penstock.spark.progress import accumulate
    from penstock.spark.session import hide_secrets

    cloudpickle.register_pickle_by_value(penstock)  # type: ignore[no-untyped-call] # pyspark does not type it
    accumulator = accumulate(spark.sparkContext) if hasattr(spark, "sparkContext") else None
    for name in FORMATS:
        known = connector(name)
        known.accumulator = accumulator
        spark.dataSource.register(known)
    hide_secrets(spark)
    errors_last()


def errors_last(is_on: bool = True) -> None:
    """Show errors of ours that nobody catches as a sentence, last on the terminal: see spark/terminal.py."""
    from penstock.spark import terminal

    terminal.errors_last(is_on)


def lag(query: "StreamingQuery") -> list[dict[str, int]]:
    """For each source of a query, how many positions of each stream lie ahead of it: see spark/progress.py."""
    from penstock.spark import progress

    return progress.lag(query)


def figures(query: "StreamingQuery") -> dict[str, dict[str, float]]:
    """What a streaming query did, in numbers: see spark/progress.py."""
    from penstock.spark import progress

    return progress.figures(query)


def observe(spark: Any, address: str = "127.0.0.1:0", *, jetstream: "Mapping[str, Any] | None" = None) -> "Observer":
    """Watch all streaming queries of a session, from now on: metrics for Prometheus, JSON, and a live page at `.url`.

    `address` is where it listens: `host:port`, or a port of this machine; 0 takes one that is free. Off loopback,
    everybody must send the key that the environment variable PENSTOCK_API_KEY has. With Spark Connect, tasks report
    no bytes, retries and reconnects. `jetstream`: the options of a connection, such as `{"servers": "nats://a:4222"}`,
    to show the streams and consumers there as well. Needs the extra `observe`.
    """
    import os

    from penstock.monitor.needed import require

    require()
    from penstock.clients.nats.options import NatsOptions
    from penstock.monitor.observer import observe as observed
    from penstock.monitor.server import Address

    place = Address.parse(address, key=os.environ.get("PENSTOCK_API_KEY") or None)
    return observed(spark, place, jetstream=[NatsOptions.parse("jetstream", jetstream)] if jetstream else [])
