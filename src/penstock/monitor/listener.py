"""Spark's events into a Store: one listener for all queries of a session, classic or Connect. Knows listeners."""

import json
import logging
from typing import TYPE_CHECKING, Any

from penstock.monitor.progress import parse
from penstock.monitor.store import Store
from penstock.pipelines.failures import sentence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("penstock")


def listen(spark: "SparkSession", store: Store) -> Any:
    """Let a store know of all that the queries of a session do from now on. Returns the listener, to be removed."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Listener(StreamingQueryListener):
        """Hands events on. An event that cannot be understood is no reason to stop a query, or to miss the next."""

        def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
            store.started(str(event.id), str(event.runId), event.name or "")

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
            try:
                store.progressed(parse(json.loads(event.progress.json)))
            except Exception:
                log.exception("a progress event of Spark could not be read")

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
            """Nothing new: the last event still holds."""

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
            store.ended(str(event.id), sentence(RuntimeError(event.exception)) if event.exception else "")

    listener = Listener()
    spark.streams.addListener(listener)
    return listener
