"""One batch of a pipeline, read and transformed, but not written. Knows Spark; asks servers only through connectors."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.codecs import ERROR
from penstock.connectors import FORMATS, connector
from penstock.errors import OptionError
from penstock.kit.retry import at_once
from penstock.pipelines import rows as steps
from penstock.pipelines.application import session, stop
from penstock.pipelines.failures import sentence
from penstock.pipelines.pipeline import Pipeline, SinkEnd
from penstock.pipelines.runner import count_of
from penstock.pipelines.transforms import apply

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS = 100  # enough to see whether they can be decoded


def tried(pipelines: Sequence[Pipeline], say: Callable[[str], None]) -> Iterator[str]:
    """What became of a trial of each pipeline, a line each. An OptionError with all that failed, at the end."""
    spark = session(pipelines, say=say)
    problems: list[str] = []
    try:
        for pipeline in pipelines:
            try:
                yield f"{pipeline.key}: {_try(spark, pipeline)}"
            except Exception as problem:
                lines = problem.lines if isinstance(problem, _Several) else [sentence(problem)]
                file = str(pipeline.file)
                problems += [said if said.startswith(file) else f"{file}: {said}" for said in lines]
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
    parts = [(f"sink '{sink.name}'", sink, steps.shaped(transformed, sink, pipeline)) for sink in pipeline.sinks]
    problems: list[str] = []
    for name, sink, rows in parts:
        with _noted(problems, name):
            _reach(rows, sink)
    if pipeline.dead_letters is not None and ERROR in decoded.columns:
        with _noted(problems, "dead letters"):
            _reach(steps.dead_rows(steps.dead(decoded, pipeline), pipeline.dead_letters), pipeline.dead_letters)
    count = 0
    with _noted(problems, "source"):
        count = len(parts[0][2].collect()) if reads else 0  # a count would not transform
    if problems:
        raise _Several(problems)
    if not reads:
        return "its source and sinks answer. What it would read can be seen only by running it"
    said = f"its source and sinks answer. {count_of(count, 'row')} of the first {RECORDS} records would be written"
    errors = decoded.where(f"{ERROR} IS NOT NULL").count() if ERROR in decoded.columns else 0
    way = "a dead letter" if pipeline.dead_letters is not None else "left out"
    return f"{said}; {count_of(errors, 'record')} cannot be decoded, each of which is {way}" if errors else said


class _Several(Exception):  # noqa: N818 - what it holds
    """All that is wrong with one pipeline, a line each."""

    def __init__(self, lines: list[str]):
        super().__init__("\n".join(lines))
        self.lines = lines


@contextlib.contextmanager
def _noted(problems: list[str], part: str) -> Iterator[None]:
    """Note what goes wrong with a part, and go on with the next."""
    try:
        yield
    except Exception as problem:
        problems.append(f"{part}: {sentence(problem)}")


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
