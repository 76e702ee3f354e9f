"""Dead letters: shown, and sent through their pipeline again once the cause is mended. Knows what a dead letter holds;
servers only through connectors.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import OptionError
from penstock.options import alias, shown
from penstock.pipelines import model, systems
from penstock.pipelines.pipeline import FILES, Pipeline, SinkEnd, SourceEnd
from penstock.pipelines.rows import DEAD_HEADERS, DOCUMENT, HEADER, TIMES
from penstock.pipelines.transforms import META

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class Letter(NamedTuple):
    """One dead letter."""

    time: str
    stream: str
    position: str
    error: str
    value: bytes


def source_of(pipeline: Pipeline) -> SourceEnd:
    """The sink of dead letters, as a source. An OptionError where it cannot be read."""
    sink = pipeline.dead_letters
    if sink is None:
        raise OptionError(f'{pipeline.file}: it has no dead letters: set mode = "dead_letter" in [errors].')
    kind = systems.SOURCES.get("file_system" if sink.type in FILES else sink.type)
    if kind is None or kind.options is None or (sink.type in FILES and sink.type != "parquet"):
        raise OptionError(
            f"{pipeline.file}: dead letters in '{sink.type}' cannot be read back here. Look into them with what reads "
            f"{sink.type}, or send them to a stream, a topic or parquet."
        )
    options = _read_options(sink, kind)
    file_format = sink.type if sink.type in FILES else None
    return SourceEnd("dead-letters", sink.type, options, sink.hidden, kind=kind, file_format=file_format)


def _read_options(sink: SinkEnd, kind: systems.SourceKind) -> dict[str, str]:
    """The options of a sink that reading has as well, and where to read what it wrote."""
    assert kind.options is not None
    known = {shown(kind.options, name) for name in kind.options.model_fields}
    known |= {alias(name) for name in kind.options.model_fields}
    passed = {key: value for key, value in sink.options.items() if key in known or key.startswith("kafka.")}
    if sink.type in FILES:
        return {"path": sink.options["path"]}
    if sink.type in ("jetstream", "nats"):
        passed["subjects"] = sink.options["subject"]
    elif sink.type == "kafka":
        passed["subscribe"] = sink.options["topic"]
    return passed


def fields(headers: Any) -> dict[str, str]:
    """What the headers of a dead letter tell."""
    return {
        each["key"].removeprefix(HEADER): (each["value"] or b"").decode(errors="replace")
        for each in headers or ()
        if each["key"].startswith(HEADER)
    }


def is_document(pipeline: Pipeline) -> bool:
    """Whether dead letters are JSON, because messages of their sink have no headers."""
    sink = pipeline.dead_letters
    return sink is not None and sink.messages and "headers" not in sink.kind.takes


def opened(pipeline: Pipeline, message: Mapping[str, Any]) -> Letter:
    """A message as the dead letter that it is. What is none has its bytes and nothing else."""
    if not is_document(pipeline):
        return letter(fields(message["headers"]), message["value"])
    try:
        told = json.loads(message["value"])
        return letter(told, base64.b64decode(told.get("value", "")))
    except (ValueError, AttributeError, TypeError):
        return letter({}, message["value"])


def letter(told: Mapping[str, Any], value: bytes | None) -> Letter:
    """A dead letter by what is told of it."""
    time, stream, position, error = (told.get(name, "") for name in ("time", "stream", "position", "error"))
    if "cut" in told:
        error = f"(cut: the record has {int(told['cut']):,} bytes) {error}"
    return Letter(time, stream, position, error, b"" if told.get("empty") == "true" else value or b"")


def again(pipeline: Pipeline) -> Pipeline:
    """The pipeline with its dead letters in place of its source. It has a checkpoint of its own: each letter is sent
    through once, and what fails again becomes a new dead letter.
    """
    letters = source_of(pipeline)
    once = model.Trigger(available_now=True)
    return replace(
        pipeline, key=f"{pipeline.key}-dead-letters", location=f"{pipeline.location}.dead-letters", trigger=once,
        source=replace(pipeline.source, options=letters.options, kind=letters.kind), checkpoint=model.CheckpointTable(),
    )  # fmt: skip


def _schema(spark: "SparkSession", path: str) -> "StructType":
    from pyspark.errors import AnalysisException

    try:
        return spark.read.parquet(path).schema
    except AnalysisException:
        raise OptionError(f"'{path}' has no dead letters yet.") from None


def records(spark: "SparkSession", pipeline: Pipeline, of_source: "StructType") -> "DataFrame":
    """Dead letters as the records that they were: `value`, and `_meta` with what the letters tell of them.

    `of_source`: the type of `_meta` in the pipeline.
    """
    from pyspark.sql import functions as f

    source = source_of(pipeline)
    reader = spark.readStream.options(**source.options)
    if source.file_format is not None:
        schema = _schema(spark, source.options["path"])
        stored = reader.format(source.file_format).schema(schema).load()
    else:
        stored = reader.format(source.kind.format).option("startingOffsets", "earliest").load()
        if is_document(pipeline):
            document = f.from_json(f.col("value").cast("string"), DOCUMENT)
            stored = stored.select(document.alias("letter")).select("letter.*").where("cut IS NULL")
    if "error" in stored.columns:
        told = {name: f.col(name).cast("string") for name in (*DEAD_HEADERS, "meta")}
        kept = f.col("headers")
    else:
        own = f"filter(headers, h -> startswith(h.key, '{HEADER}'))"
        pair = f"struct(substr(h.key, {len(HEADER) + 1}), string(h.value))"
        by_name = f.expr(f"map_from_entries(transform({own}, h -> {pair}))")
        stored = stored.where(by_name["cut"].isNull())  # half a record is none
        told = {name: by_name[name] for name in (*DEAD_HEADERS, "meta", "empty")}
        kept = f.expr(f"filter(headers, h -> NOT startswith(h.key, '{HEADER}'))")
    value = f.when(told.get("empty", f.lit(None)) == "true", f.lit(None).cast("binary")).otherwise(f.col("value"))
    meta = f.from_json(told["meta"], of_source, TIMES)
    places = (told[name].alias(name) for name in ("source", "stream", "partition", "position"))
    origin = f.struct(*places, f.current_timestamp().alias("planned"))
    fields = []
    for field in of_source.fields:
        if field.name == "origin":
            column = origin
        elif field.name == "value":
            column = value.cast(field.dataType)
        elif field.name == "headers":
            column = kept.cast(field.dataType)
        else:
            column = meta[field.name]
        fields.append(column.alias(field.name))
    of_this = stored.where(told["pipeline"].isin(pipeline.key, again(pipeline).key))  # others may use the same place
    return of_this.select(value.alias("value"), f.struct(*fields).alias(META))
