"""A session that is watched, with metrics and a page about its queries. Knows how the parts go together."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from penstock.connectors import FORMATS, connector
from penstock.monitor.app import Access, Api
from penstock.monitor.listener import listen
from penstock.monitor.metrics import Metrics
from penstock.monitor.server import Address, Server, new_key
from penstock.monitor.store import Store
from penstock.monitor.view import Pipelines
from penstock.spark.progress import accumulate, counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Observer:
    """Watches the queries of a session until it is stopped. `key` is what orders must name."""

    spark: "SparkSession"
    store: Store
    server: Server
    key: str
    _listener: Any
    _reporting: Sequence[Any]  # formats as they were before their tasks reported

    @property
    def url(self) -> str:
        """Where the page is."""
        return self.server.url

    def stop(self) -> None:
        """Watch no longer. The queries go on, and tasks of those that start from now on report nothing."""
        from py4j.protocol import Py4JError  # type: ignore[import-untyped] # it ships no types

        self.server.stop()
        with suppress(Py4JError, OSError):  # a signal may have ended Spark's JVM as well
            self.spark.streams.removeListener(self._listener)
            for known in self._reporting:
                self.spark.dataSource.register(known)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *what: object) -> None:
        self.stop()


def observe(
    spark: "SparkSession", address: str | Address = "127.0.0.1:0", *, pipelines: Pipelines | None = None
) -> Observer:
    """Watch all streaming queries of a session: metrics, JSON and a page at `.url`. See `penstock.observe`."""
    place = Address.parse(address) if isinstance(address, str) else address
    store, key = Store(), place.key or new_key()
    reporting = [] if _is_connect(spark) else _let_tasks_report(spark)
    measured = Metrics(store, pipelines, counted)
    api = Api(store, pipelines, measured, Access(place.host, key))
    server = Server(api.app(), place, api.end).start()
    return Observer(spark, store, server, key, listen(spark, store), reporting)


def _let_tasks_report(spark: "SparkSession") -> list[Any]:
    """Register each format with an accumulator. Of the class that Spark pickles, only this much is new: the rest is
    imported where the task runs. Not where `penstock.register` has done so already. Returns the classes as they were.
    """
    accumulator = accumulate(spark.sparkContext)
    silent = [known for known in map(connector, FORMATS) if known.accumulator is None]
    for known in silent:
        spark.dataSource.register(type(known.__name__, (known,), {"accumulator": accumulator}))
    return silent


def _is_connect(spark: Any) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")
