"""A program with three streaming queries, for those who look at them from outside: `orders` runs, `broken` has failed,
and one without a name makes up rows. It says where its UI is, and ends with its input.
"""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException

from penstock.connectors import connector
from penstock.session import local_session


def fail(frame: Any, batch: int) -> None:
    if frame.count():
        raise RuntimeError("no room at postgres://me:hunter2@host")


def main(folder: Path) -> None:
    conf = {
        "spark.ui.enabled": "true", "spark.ui.port": "0", "spark.log.level": "OFF", "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(folder / "events"), "spark.eventLog.compress": "true",
    }  # fmt: skip
    spark = local_session("observed", "local[2]", conf=conf, quiet=True)
    spark.dataSource.register(connector("journal"))
    rows = spark.readStream.format("journal").options(directory=str(folder / "log"), startingOffsets="earliest")
    orders = rows.option("maxRecordsPerTrigger", 20).load().writeStream.format("noop").queryName("orders")
    queries = [orders.option("checkpointLocation", str(folder / "checkpoints" / "orders")).start()]
    rate = spark.readStream.format("rate").load().writeStream.format("noop").trigger(processingTime="1 second")
    queries.append(rate.option("checkpointLocation", str(folder / "checkpoints" / "deep" / "rate")).start())
    broken = rows.load().writeStream.foreachBatch(fail).queryName("broken")
    with suppress(PySparkException):
        broken.option("checkpointLocation", str(folder / "checkpoints" / "broken")).start().awaitTermination()
    queries[0].processAllAvailable()
    print(spark.sparkContext.uiWebUrl, flush=True)
    sys.stdin.read()
    for query in queries:
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
