"""A session that is watched, with metrics and a page about its queries. Knows how the parts go together."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from penstock.clients.nats.options import NatsOptions
from penstock.connectors import FORMATS, connector
from penstock.monitor import otel
from penstock.monitor.app import Access, Api
from penstock.monitor.jetstream import JetStreams
from penstock.monitor.metrics import Metrics
from penstock.monitor.needed import exports
from penstock.monitor.server import Address, Server, new_key
from penstock.monitor.view import Pipelines
from penstock.operate.watching import Watching
from penstock.spark.progress import accumulate, counted
from penstock.watch.listener import listen
from penstock.watch.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Observer:
    """Watches the queries of a session until it is stopped. `key` is what orders must name. `server`: None where
    metrics are only sent away.
    """

    spark: "SparkSession"
    store: Store
    server: Server | None
    key: str
    _listener: Any
    _reporting: Sequence[Any]  # formats as they were before their tasks reported
    _export: otel.Export | None = None
    _jetstream: JetStreams | None = None

    @property
    def url(self) -> str:
        """Where the page is."""
        assert self.server is not None
        return self.server.url

    def stop(self) -> None:
        """Watch no longer. The queries go on, and tasks of those that start from now on report nothing."""
        from py4j.protocol import Py4JError  # type: ignore[import-untyped] # it ships no types

        if self._export is not None:
            self._export.stop()
        if self.server is not None:
            self.server.stop()
        if self._jetstream is not None:
            self._jetstream.close()
        with suppress(Py4JError, OSError):  # a signal may have ended Spark's JVM as well
            if self._listener is not None:
                self.spark.streams.removeListener(self._listener)
            for known in self._reporting:
                self.spark.dataSource.register(known)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *what: object) -> None:
        self.stop()


def observe(
    spark: "SparkSession",
    address: str | Address | None = "127.0.0.1:0",
    *,
    pipelines: Pipelines | None = None,
    store: Store | None = None,
    jetstream: Sequence[NatsOptions | Watching] = (),
) -> Observer:
    """Watch all streaming queries of a session: metrics, JSON and a page at `.url`. See `penstock.observe`. A `store`
    that is given has somebody who fills it. Without an address nothing is served: metrics go to the collector of
    OpenTelemetry that the environment names. `jetstream`: servers whose streams and consumers are shown as well.
    """
    place = Address.parse(address) if isinstance(address, str) else address
    key = (place.key if place is not None else None) or new_key()
    own, store = store is None, store or Store()
    store.counted = counted
    streams = JetStreams(jetstream) if jetstream else None
    measured, server = Metrics(store, pipelines, streams), None
    if place is not None:
        api = Api(store, pipelines, measured, Access(place.host, key), streams)
        server = Server(api.app(), place, api.end).start()
    reporting = [] if _is_connect(spark) else _let_tasks_report(spark)
    export = otel.Export(measured).start() if exports() else None
    return Observer(spark, store, server, key, listen(spark, store) if own else None, reporting, export, streams)


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
