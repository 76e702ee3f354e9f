"""A pipeline for `penstock export`: its source, its steps as SQL, and its sinks. What SQL alone cannot say is refused.
Pure: reads no file, and asks no server.
"""

import re
from collections.abc import Mapping

from penstock.codecs import PAYLOAD
from penstock.errors import OptionError
from penstock.kit import templates
from penstock.pipelines.export import Secret, Sink, Source, Value, declarative
from penstock.pipelines.pipeline import End, Pipeline, SinkEnd, SourceEnd
from penstock.pipelines.rows import headers_sql
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
    types = [schema.type for schema in (source.schema, *(sink.schema for sink in pipeline.sinks)) if schema is not None]
    faults = {
        "Only sql transforms can be exported.": any(each.kind != "sql" for each in pipeline.transforms),
        "Dead letters cannot be exported.": pipeline.dead_letters is not None,
        "Only one sink can be exported.": len(pipeline.sinks) != 1 or "sink" in pipeline.routing,
        "Files as a source cannot be exported.": source.file_format is not None,
        "Only json, text and raw can be exported.": any(each not in ("json", "text", "raw") for each in types),
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
    meta = f"struct({_origin(pipeline.source)} AS origin, *) AS {META}"
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


def _origin(source: SourceEnd) -> str:
    """SQL: where a record came from."""
    kind = source.kind
    places = (("stream", kind.stream), ("partition", kind.partition), ("position", kind.position))
    fields = "".join(f", '{name}', string({expression})" for name, expression in places)
    return f"named_struct('source', '{source.type}'{fields}, 'planned', current_timestamp())"


def _has_headers(source: SourceEnd) -> bool:
    is_asked = source.type == "kafka" and source.options.get("includeHeaders") == "true"
    return is_asked or source.type in ("jetstream", "nats", "s2", "iggy")


def _keeps_meta(sql: str) -> bool:
    """Whether a statement selects `_meta`: by its name, not only a field of it, or with all columns."""
    if re.search(rf"(?i)\bEXCEPT\s*\([^)]*\b{META}\b", sql):
        return False
    return bool(re.search(rf"(?i)(?:\bSELECT|,)\s*(?:\w+\.)?(?:\*|{META}\s*(?:,|\bFROM\b|$))", sql))


def _shaped(pipeline: Pipeline, sink: SinkEnd) -> str:
    """SQL: rows as the sink takes them."""
    is_plain = pipeline.source.schema is None or pipeline.source.schema.type in ("raw", "text")
    last = pipeline.transforms[-1] if pipeline.transforms else None
    has_meta = all(_keeps_meta(transform.config.sql) for transform in pipeline.transforms)  # type: ignore[attr-defined] # only sql is left
    rest = f"* EXCEPT ({META})" if has_meta else "*"
    if not sink.messages:
        return f"SELECT {rest} FROM input"
    routed = [f"{expression} AS {name}" for name, expression in pipeline.routing.items()]
    headers = headers_sql(sink, has_meta=has_meta, has_headers=has_meta and _has_headers(pipeline.source))
    if headers is not None and "headers" in sink.kind.takes and "headers" not in pipeline.routing:
        routed.append(f"{headers} AS headers")
    used = [
        f"`{name}`"
        for name in templates.columns(sink.options.get(sink.kind.template, ""))
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
