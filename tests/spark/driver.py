"""A driver program of its own, so that tests can kill it: reads a stream into parquet or another stream. Takes JSON."""

import json
import sys
from typing import Any

from penstock.spark.session import local_session


def start(spark: Any, job: dict[str, Any]) -> Any:
    """The query that a job tells of, on a session."""
    format = job.get("format", "jetstream")
    rows = spark.readStream.format(format).options(**job["options"]).load()
    if job.get("select"):
        rows = rows.selectExpr(*job["select"])
    if job.get("sink"):
        query = rows.select("value").writeStream.format(format).options(**job["sink"])
    else:
        query = rows.writeStream.format("parquet").option("path", job["out"])
    query = query.option("checkpointLocation", job["checkpoint"])
    if job.get("available_now", True):
        query = query.trigger(availableNow=True)
    return query.start()


def main(job: dict[str, Any]) -> None:
    format = job.get("format", "jetstream")
    if job.get("remote"):
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.remote(job["remote"]).getOrCreate()
    else:
        spark = local_session("driver", job.get("master", "local[2]"), conf=job.get("conf"))
    if job.get("register"):
        import penstock

        penstock.register(spark)
    if job.get("refused"):
        try:
            spark.read.format(format).options(**job["refused"]).load().count()
        except Exception as error:  # whatever it is, the test reads it
            print(f"refused: {error}", flush=True)
    if job.get("batch"):
        frame = spark.read.format(format).options(**job["options"]).load()
        print(json.dumps({"rows": frame.count()}), flush=True)
    start(spark, job).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
