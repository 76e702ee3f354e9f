"""Spark's events into a Store: one listener for all queries of a session, classic or Connect. Knows listeners."""

import contextlib
import json
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.spark.said import said
from penstock.watch.progress import parse
from penstock.watch.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("penstock")


def listen(spark: "SparkSession", store: Store) -> Any:
    """Let a store know of all that the queries of a session do from now on. Returns the listener, to be removed."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Listener(StreamingQueryListener):
        """Hands events on, as Spark Connect has them."""

        def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
            store.started(str(event.id), str(event.runId), event.name or "")

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
            _progressed(store, event.progress.json)

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
            store.idle(str(event.id), str(event.runId))

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
            store.ended(str(event.id), str(event.runId), said(event.exception) if event.exception else "")

    listener = Listener()
    if not type(spark).__module__.startswith("pyspark.sql.connect"):
        from pyspark import SparkContext
        from pyspark.java_gateway import ensure_callback_server_started

        # What PySpark makes of this property asks Java for each value of an event in turn: 40 ms of Python's time and
        # 80 of Java's for each batch. The JSON of the whole takes 1.
        java = SparkContext._jvm.org.apache.spark.sql.streaming  # type: ignore[union-attr] # there is one
        ensure_callback_server_started(SparkContext._gateway)  # type: ignore[no-untyped-call] # it has no types
        listener._jlistenerobj = java.PythonStreamingQueryListenerWrapper(_Events(store))
    spark.streams.addListener(listener)
    return listener


class _Events:
    """What Java calls."""

    def __init__(self, store: Store):
        self.store = store

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        self.store.started(event.id().toString(), event.runId().toString(), event.name() or "")

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        _progressed(self.store, event.progress().json())

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        self.store.idle(event.id().toString(), event.runId().toString())

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        problem = event.exception()
        error = said(problem.get()) if problem.isDefined() else ""
        self.store.ended(event.id().toString(), event.runId().toString(), error)

    class Java:
        """The interface that this is, for Py4J."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


def _progressed(store: Store, text: str) -> None:
    """An event that cannot be understood is no reason to stop a query, or to miss the next."""
    try:
        store.progressed(parse(json.loads(text)))
    except Exception:
        log.exception("a progress event of Spark could not be read")


@contextlib.contextmanager
def watching(spark: "SparkSession", store: Store) -> Iterator[None]:
    """Let a store know of all that the queries of a session do in here."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped] # it ships no types
    from pyspark.errors import PySparkException

    listener = listen(spark, store)
    try:
        yield
    finally:
        with contextlib.suppress(Py4JError, PySparkException, OSError):  # Spark's JVM may be gone
            spark.streams.removeListener(listener)
