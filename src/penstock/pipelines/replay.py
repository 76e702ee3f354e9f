"""Dead letters on their way again: a run of the pipeline with them in place of its source. Knows Spark; no servers."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.pipelines import dead_letters, job, rows
from penstock.pipelines.pipeline import Pipeline
from penstock.pipelines.runner import Runner, Running
from penstock.pipelines.transforms import META

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def replayed(spark: "SparkSession", pipeline: Pipeline, say: Callable[[str], None]) -> Running:
    """Send every dead letter through once that no replay has sent before. How it went."""
    from pyspark.sql.types import StructType

    of_source = rows.records(spark, pipeline.source).schema[META].dataType
    assert isinstance(of_source, StructType)
    once = dead_letters.again(pipeline)
    records = dead_letters.records(spark, pipeline, of_source)
    return Runner(spark, [once], say, start=lambda spark, each: job.start(spark, each, records)).run()[0]
