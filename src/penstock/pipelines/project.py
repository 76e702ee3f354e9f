"""A pipeline for `penstock export`: its source, its steps as SQL, and its sinks. What SQL alone cannot say is refused.
Pure: reads no file, and asks no server.
"""

from collections.abc import Mapping

from penstock.codecs import PAYLOAD
from penstock.errors import OptionError
from penstock.kit import templates
from penstock.pipelines.export import Secret, Sink, Source, Value, declarative
from penstock.pipelines.pipeline import End, Pipeline, SinkEnd
from penstock.pipelines.transforms import META


def project(pipeline: Pipeline, storage: str) -> dict[str, str]:
    """The files of a project for `spark-pipelines`, by their names. An OptionError with what has no place in it."""
    refused = list(_without_a_place(pipeline))
    if refused:
        raise OptionError(f"{pipeline.file}: {' '.join(refused)} Take it out, or run the file with penstock run.")
    steps = [_decoded(pipeline), *(transform.config.sql for transform in pipeline.transforms)]  # type: ignore[attr-defined] # only sql is left
    sinks = pipeline.sinks
    if len(sinks) == 1:
        steps.append(_shaped(pipeline, sinks[0]))
    return declarative(
        pipeline.key,
        Source(pipeline.source.kind.format, _options(pipeline.source)),
        steps,
        [Sink(sink.name, sink.kind.format, _options(sink)) for sink in sinks],
        storage=storage,
    )


def _without_a_place(pipeline: Pipeline) -> list[str]:
    """What a project of SQL cannot hold, each in a sentence."""
    source = pipeline.source
    schema_type = source.schema.type if source.schema else "raw"
    faults = {
        "Only sql transforms can be exported.": any(each.kind != "sql" for each in pipeline.transforms),
        "Dead letters cannot be exported.": pipeline.dead_letters is not None,
        "Only one sink can be exported.": len(pipeline.sinks) != 1 or "sink" in pipeline.routing,
        "Files as a source cannot be exported.": source.file_format is not None,
        "Only json, text and raw can be exported.": schema_type == "csv",
        "An envelope cannot be exported.": any(sink.envelope for sink in pipeline.sinks),
    }
    return [text for text, is_so in faults.items() if is_so]


def _options(end: End) -> Mapping[str, Value]:
    missing = [key for key, env in end.hidden.items() if env is None]
    if missing:
        raise OptionError(
            f"'{missing[0]}' of {end.name} is a secret: give it as {{ env = \"NAME\" }}, to be read there too."
        )
    return {key: Secret(env) if (env := end.hidden.get(key)) else value for key, value in end.options.items()}


def _decoded(pipeline: Pipeline) -> str:
    """SQL: records with their columns in place of their bytes, and the record in `_meta`."""
    schema, mode = pipeline.source.schema, pipeline.errors.mode
    meta = f"struct(*) AS {META}"
    if schema is None or schema.type == "raw":
        return f"SELECT *, {meta} FROM input"
    if schema.type == "text":
        return f"SELECT string(value) AS value, {meta} FROM input"
    if schema.fields is None:
        parse = "try_parse_json" if mode == "skip" else "parse_json"
        decoded = f"SELECT {parse}(string(value)) AS {PAYLOAD}, {meta} FROM input"
        return f"SELECT * FROM ({decoded}) WHERE {PAYLOAD} IS NOT NULL" if mode == "skip" else decoded
    fields = schema.fields.replace("'", "\\'")
    if mode == "skip":
        wider = f"'{fields}, _corrupt STRING', map('columnNameOfCorruptRecord', '_corrupt')"
        rows = f"SELECT from_json(string(value), {wider}) AS row, {meta} FROM input"
        return f"SELECT row.* EXCEPT (_corrupt), {META} FROM ({rows}) WHERE row IS NOT NULL AND row._corrupt IS NULL"
    rows = f"SELECT from_json(string(value), '{fields}', map('mode', 'FAILFAST')) AS row, {meta} FROM input"
    return f"SELECT row.*, {META} FROM ({rows})"


def _shaped(pipeline: Pipeline, sink: SinkEnd) -> str:
    """SQL: rows as the sink takes them."""
    is_plain = pipeline.source.schema is None or pipeline.source.schema.type in ("raw", "text")
    last = pipeline.transforms[-1] if pipeline.transforms else None
    rest = f"* EXCEPT ({META})" if last is None or META in last.config.sql else "*"  # type: ignore[attr-defined] # only sql is left
    if not sink.messages:
        return f"SELECT {rest} FROM input"
    routed = [f"{expression} AS {name}" for name, expression in pipeline.routing.items()]
    used = [
        f"`{name}`"
        for name in templates.columns(sink.options.get(sink.kind.place or "", ""))
        if name not in pipeline.routing
    ]
    is_variant = (
        pipeline.source.schema is not None
        and pipeline.source.schema.type == "json"
        and not pipeline.source.schema.fields
    )
    if (is_plain and sink.schema is None) or (sink.schema is not None and sink.schema.type in ("text", "raw")):
        value = "value"
    elif is_variant and last is None:
        value = f"to_json({PAYLOAD}) AS value"
    else:
        value = "to_json(row) AS value"
        inner = f"SELECT *, struct({rest}) AS row FROM input"
        return f"SELECT {', '.join([value, *routed, *used])} FROM ({inner})"
    return f"SELECT {', '.join([value, *routed, *used])} FROM input"
