"""One batch of a pipeline, read and transformed, but not written. Knows Spark; asks servers only through connectors."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.codecs import ERROR
from penstock.connectors import FORMATS, connector
from penstock.errors import OptionError
from penstock.kit.retry import at_once
from penstock.pipelines import rows as steps
from penstock.pipelines.application import session, stop
from penstock.pipelines.pipeline import Pipeline, SinkEnd
from penstock.pipelines.runner import count_of, sentence
from penstock.pipelines.transforms import apply

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS = 100  # enough to see whether they can be decoded


def tried(pipelines: Sequence[Pipeline], say: Callable[[str], None]) -> Iterator[str]:
    """What became of a trial of each pipeline, a line each. An OptionError with all that failed, at the end."""
    spark = session(pipelines, say=say)
    problems = []
    try:
        for pipeline in pipelines:
            try:
                yield f"{pipeline.key}: {_try(spark, pipeline)}"
            except Exception as problem:
                said = sentence(problem)
                problems.append(said if said.startswith(str(pipeline.file)) else f"{pipeline.file}: {said}")
    finally:
        stop(spark)
    if problems:
        raise OptionError("\n".join(problems))


def _try(spark: "SparkSession", pipeline: Pipeline) -> str:
    source = pipeline.source
    reads = source.type not in ("nats", "rate") and not source.is_shared
    records = steps.records(spark, source, streaming=not reads)
    decoded = steps.decoded(records.limit(RECORDS) if reads else records, source)
    transformed = apply(steps.good(decoded, pipeline.errors.mode), pipeline.transforms, pipeline.file)
    count = 0
    for sink in pipeline.sinks:
        rows = steps.shaped(transformed, sink, pipeline)
        _reach(rows, sink)
        if reads:
            count = len(rows.collect()) if sink is pipeline.sinks[0] else count  # a count would not transform
    if pipeline.dead_letters is not None and ERROR in decoded.columns:
        _reach(steps.dead_rows(steps.dead(decoded, pipeline), pipeline.dead_letters), pipeline.dead_letters)
    if not reads:
        return "its source and sinks answer. What it would read can be seen only by running it"
    said = f"its source and sinks answer. {count_of(count, 'row')} of the first {RECORDS} records would be written"
    errors = decoded.where(f"{ERROR} IS NOT NULL").count() if ERROR in decoded.columns else 0
    way = "a dead letter" if pipeline.dead_letters is not None else "left out"
    return f"{said}; {count_of(errors, 'record')} cannot be decoded, each of which is {way}" if errors else said


def _reach(rows: "DataFrame", sink: SinkEnd) -> None:
    """Ask a sink of ours whether it takes rows of these columns, and its server whether it is there."""
    if sink.kind.format not in FORMATS:
        return
    from penstock.spark.schema import arrow_schema

    cls = connector(sink.kind.format)
    opened = cls.open_sink(cls.parse_sink(sink.options), arrow_schema(rows.schema))
    try:
        at_once(opened.check)
    finally:
        opened.close()
