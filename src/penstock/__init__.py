"""NATS, JetStream, S2 and Iggy streams for Apache Spark."""

from typing import Any

__version__ = "0.1.0"


def register(spark: Any) -> None:
    """Make every format known to a session by value, for a cluster where Penstock is not installed.

    Only our code travels: the cluster's Python needs pyarrow, numpy and pydantic, and nkeys for NKeys. Also
    turns on that filters of batch reads are pushed down, which Spark has off by default, and lets Spark hide more
    names of secrets than it knows by itself.
    """
    from pyspark import cloudpickle

    import penstock
    from penstock.connectors import FORMATS, connector
    from penstock.spark.session import hide_secrets

    cloudpickle.register_pickle_by_value(penstock)  # type: ignore[no-untyped-call] # pyspark does not type it
    for name in FORMATS:
        spark.dataSource.register(connector(name))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    hide_secrets(spark)
