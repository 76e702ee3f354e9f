"""Rows on their way: from what a source gives to columns, and from columns to what a sink takes. Knows Spark's
functions; of servers, how large a message may be, through connectors.
"""

import contextlib
import functools
import io
import re
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock import codecs
from penstock.connectors import connector
from penstock.errors import OptionError
from penstock.kit import templates
from penstock.kit.contract import Bounded
from penstock.kit.retry import at_once
from penstock.pipelines import schemas
from penstock.pipelines.pipeline import Pipeline, SinkEnd, SourceEnd
from penstock.pipelines.transforms import META, fields, is_variant, now, row_id

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Operators that look at one row at a time. Anything else in a plan may remember rows from batch to batch.
_ROW_WISE = {
    "Project", "Filter", "SubqueryAlias", "View", "Generate", "MapInArrow", "MapInPandas", "ArrowEvalPython",
    "BatchEvalPython", "CollectMetrics", "StreamingRelationV2", "StreamingRelation", "StreamingDataSourceV2Relation",
    "LogicalRelation", "Relation", "WithCTE", "CTERelationDef", "CTERelationRef", "RelationV2", "DataSourceV2Relation",
    "LocalRelation", "OneRowRelation",
}  # fmt: skip
_TASKS = 8  # of a batch that is put into an order; another number would give rows to other tasks on a replay
_MOST_FIELDS = "spark.sql.debug.maxToStringFields"  # the rest of a long operator is not shown
# Functions of SQL that ask what time it is.
_TIME = re.compile(r"\b(?:current_timestamp|current_date|current_time|localtimestamp|now)\(")
# A query inside of an expression, which becomes a join.
_SUBQUERY = re.compile(r"\b(?:list|exists|scalar-subquery|lateral-subquery)#\d")
# How many characters of an error a dead letter has; and bytes that a header of Iggy has room for, with one to spare
# for a letter that is cut.
_MOST_ERROR, _MOST_HEADER = 250, 250
_SPARE = 1024  # bytes of a dead letter that are left to headers of the sink


def records(spark: "SparkSession", source: SourceEnd, *, streaming: bool = True) -> "DataFrame":
    """The records as the source gives them, and all of it once more in `_meta`, with where each came from."""
    from pyspark.sql import functions as f

    reader = spark.readStream if streaming else spark.read
    options = dict(source.options)
    if source.file_format is not None:
        path = options.pop("path")
        if source.file_format in ("parquet", "orc"):
            schema = source.schema.fields if source.schema and source.schema.fields else None
            found = schema or spark.read.format(source.file_format).options(**options).load(path).schema
            rows = reader.format(source.file_format).schema(found).options(**options).load(path)
        else:
            rows = reader.format("text").options(**options).load(path)
        rows = rows.select("*", f.col("_metadata").alias("_file"))
    else:
        rows = reader.format(source.kind.format).options(**options).load()
    origin = f.struct(
        f.lit(source.type).alias("source"),
        f.expr(source.kind.stream).cast("string").alias("stream"),
        f.expr(source.kind.partition).cast("string").alias("partition"),
        f.expr(source.kind.position).cast("string").alias("position"),
        # In a streaming query this is when Spark planned the batch, as its log has it. Inside of a batch it is not.
        f.current_timestamp().alias("planned"),
    )
    meta = f.struct(origin.alias("origin"), *(f.col(f"`{name}`") for name in rows.columns))
    return rows.select("*", meta.alias(META)).drop("_file")


def decoded(rows: "DataFrame", source: SourceEnd) -> "DataFrame":
    """Records with their columns in place of their bytes, and `_error` where they cannot be decoded. Without a schema
    of the source they stay as they are, and nothing can fail.
    """
    from pyspark.sql import functions as f

    schema = source.schema
    format = schema.type if schema is not None else None
    if source.file_format in ("parquet", "orc"):
        return rows
    if format is None and source.file_format in ("json", "csv", "text"):
        format = source.file_format  # type: ignore[assignment] # one of the three
    if format is None:
        return rows
    if "value" not in rows.columns:
        raise OptionError(f"the source '{source.type}' has no column 'value' to decode: leave input_schema out.")
    if schema is not None and schema.type in schemas.BINARY:
        return codecs.decode(rows.select("value", META), schema.type, **schemas.to_decode(schema, source.topic))
    declared = schema.fields if schema is not None else None
    settings = {key: str(value) for key, value in schema.properties.items()} if schema is not None else {}
    if source.file_format in ("json", "csv"):
        rows = rows.where(f.trim("value") != "")  # blank lines of a file are no records
    if format == "csv" and schema is not None and schema.header and declared:
        names = settings.get("sep", settings.get("delimiter", ",")).join(codecs.columns(declared))
        rows = rows.where(~_bare(f.col("value")).eqNullSafe(_bare(f.lit(names))))
    return codecs.decode(rows.select("value", META), format, schema=declared, options=settings)


def _bare(line: "Column") -> "Column":
    """A line of names without what tools write around them: quotes, spaces, and a mark at the start of a file."""
    from pyspark.sql import functions as f

    return f.lower(f.regexp_replace(line.cast("string"), "[\"'\\s\ufeff]", ""))


def whereabouts() -> str:
    """SQL: a record in words, by what `_meta` has of it."""
    at = f"{META}.origin"
    return (
        f"concat_ws(' ', 'a record', if({at}.position IS NULL, NULL, concat('at ', {at}.position)), "
        f"if({at}.stream IS NULL, NULL, concat('of \\'', {at}.stream, '\\'')), {codecs.ERROR})"
    )


def good(rows: "DataFrame", mode: str) -> "DataFrame":
    """The rows without errors. With `fail` the first error is one of the query."""
    from pyspark.sql import functions as f

    if codecs.ERROR not in rows.columns:
        return rows
    if mode == "fail":
        way_out = '. Mend it, or set mode = "skip" or "dead_letter" in [errors].'
        text = f"substr({whereabouts()}, 1, 600)"
        test = f"CASE WHEN {codecs.ERROR} IS NULL THEN TRUE ELSE raise_error(concat({text}, '{way_out}')) END"
        return rows.where(f.expr(test)).drop(codecs.ERROR)
    return rows.where(f.col(codecs.ERROR).isNull()).drop(codecs.ERROR)


def dead(rows: "DataFrame", pipeline: Pipeline) -> "DataFrame":
    """The records that cannot be decoded: original bytes, the error, and where each came from."""
    from pyspark.sql import functions as f

    at = f"{META}.origin"
    headers = f"{META}.headers" if _has(rows, "headers") else "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>)"
    return rows.where(f.col(codecs.ERROR).isNotNull()).select(
        f.expr(f"CAST({META}.value AS BINARY)").alias("value"),
        f.expr(f"substr({whereabouts()}, 1, {_MOST_ERROR})").alias("error"),
        f.lit(pipeline.key).alias("pipeline"),
        *(f.expr(f"{at}.{name}").alias(name) for name in ("source", "stream", "partition", "position")),
        f.expr(f"{at}.planned").alias("time"),
        f.expr(headers).alias("headers"),
        _other_columns(rows).alias("meta"),
    )


def _other_columns(rows: "DataFrame") -> "Column":
    """What else the source said of a record, as JSON: its subject, its time."""
    from pyspark.sql import functions as f

    meta = next(field for field in rows.schema.fields if field.name == META)
    others = [name for name in meta.dataType.fieldNames() if name not in ("origin", "value", "headers")]  # type: ignore[attr-defined] # it is a struct
    return f.to_json(f.struct(*(f.col(f"{META}.`{name}`") for name in others)), TIMES) if others else f.lit(None)


DEAD_HEADERS = ("error", "pipeline", "source", "stream", "partition", "position", "time")
HEADER = "penstock-"  # begins the headers of a dead letter
TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
_UTC = "date_format(to_utc_timestamp(time, current_timezone()), \"yyyy-MM-dd'T'HH:mm:ss.SSS'Z'\")"
# A dead letter where messages have no headers.
DOCUMENT = (
    ", ".join(f"{name} STRING" for name in (*DEAD_HEADERS, "meta"))
    + ", cut BIGINT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, value BINARY"
)


def dead_rows(letters: "DataFrame", sink: SinkEnd) -> "DataFrame":
    """Dead letters as a sink takes them: columns, a message with the original bytes and headers `penstock-...`, or a
    document where messages have no headers.
    """
    if not sink.messages:
        return letters
    if "headers" not in sink.kind.takes:
        return _documents(letters, most_bytes(sink))
    texts = {name: f"string({name})" for name in DEAD_HEADERS} | {"time": _UTC}
    texts["meta"] = "meta" if sink.type != "iggy" else f"if(octet_length(meta) > {_MOST_HEADER}, NULL, meta)"
    is_empty = "coalesce(length(value), 0) = 0"
    if sink.type == "iggy":
        texts["empty"] = f"if({is_empty}, 'true', NULL)"  # Iggy has no empty messages
    pairs = ", ".join(
        f"if(coalesce({text}, '') = '', NULL, named_struct('key', '{HEADER}{name}', 'value', {_one_line(text, sink)}))"
        for name, text in texts.items()
    )
    own = f"array_compact(array({pairs}))"
    if sink.type == "iggy":
        return letters.selectExpr(f"if({is_empty}, CAST(' ' AS BINARY), value) AS value", f"{own} AS headers")
    whole = letters.selectExpr("value", f"concat({own}, coalesce(headers, array())) AS headers")
    room = most_bytes(sink)
    return whole if room is None else _cut(whole, room)


def _documents(letters: "DataFrame", room: int | None) -> "DataFrame":
    """Dead letters as JSON, with bytes in base64. One that does not fit into `room` bytes is cut, as by `_cut`."""
    told = [f"{_UTC if name == 'time' else f'string({name})'} AS {name}" for name in (*DEAD_HEADERS, "meta")]
    texts = letters.selectExpr(*told, "headers", "value")
    if room is not None:
        without = ", ".join(name for name in texts.columns if name != "value")
        left = f"greatest(0, ({room - _SPARE} - octet_length(to_json(struct({without})))) DIV 4 * 3)"
        texts = texts.selectExpr("*", f"octet_length(value) > {left} AS is_large").selectExpr(
            *DEAD_HEADERS,
            "if(is_large, NULL, meta) AS meta",
            "if(is_large, octet_length(value), NULL) AS cut",
            "if(is_large, NULL, headers) AS headers",
            f"if(is_large, substring(value, 1, {room - _SPARE} DIV 2), value) AS value",
        )
    return texts.selectExpr(f"CAST(to_json(struct({', '.join(texts.columns)})) AS BINARY) AS value")


def _cut(letters: "DataFrame", room: int) -> "DataFrame":
    """Dead letters that fit into `room` bytes: one that does not has the beginning of its bytes, the headers that tell
    what happened, and how many bytes the record has.
    """
    size = "aggregate({}, 0, (sum, h) -> sum + octet_length(h.key) + coalesce(octet_length(h.value), 0) + 4)"
    told = f"filter(headers, h -> startswith(h.key, '{HEADER}') AND h.key != '{HEADER}meta')"
    flag = f"named_struct('key', '{HEADER}cut', 'value', CAST(string(octet_length(value)) AS BINARY))"
    is_large = f"coalesce(octet_length(value), 0) + {size.format('headers')} > {room - _SPARE}"
    measured = letters.selectExpr("*", f"{is_large} AS is_large", f"concat({told}, array({flag})) AS told")
    return measured.selectExpr(
        f"if(is_large, substring(value, 1, greatest(0, {room - _SPARE} - {size.format('told')})), value) AS value",
        "if(is_large, told, headers) AS headers",
    )


def most_bytes(sink: SinkEnd) -> int | None:
    """The most bytes that a message may have in this sink; None where that is not known. Asks the server, once. Kafka's
    is what its client sends, by the option of Kafka or its default.
    """
    if sink.type == "kafka":
        return int(sink.options.get("kafka.max.request.size", 1 << 20))
    return _most_bytes(sink.kind.format, tuple(sorted(sink.options.items()))) if sink.kind.ours else None


@functools.cache
def _most_bytes(format: str, options: tuple[tuple[str, str], ...]) -> int | None:
    cls = connector(format)
    opened = cls.open_sink(cls.parse_sink(dict(options)), pa.schema([("value", pa.binary())]))
    try:
        return at_once(opened.most_bytes) if isinstance(opened, Bounded) else None
    finally:
        opened.close()


def ordered(rows: "DataFrame", *, by_content: bool = False, is_placed: bool = False) -> "DataFrame":
    """The rows of a batch in an order that is the same each time. A partition of the source is always in the task of
    the same number, and in order there. Where it is not known what a row came from (`by_content`), rows are in the
    order of a checksum. `is_placed`: they are in the same tasks each time.
    """
    from pyspark.sql import functions as f

    at = f"{META}.origin"
    if by_content or META not in rows.columns:
        content = f.to_json(f.struct(*(f.col(f"`{name}`") for name in rows.columns)), TIMES)
        tasks = rows if is_placed else rows.repartition(_TASKS, content)
        return tasks.sortWithinPartitions(f.xxhash64(content), content)
    # Lines of a file have no position. They come in its order, and a sort leaves those alone that are equal to it.
    position = f"{META}._file.file_block_start" if _has(rows, "_file") else f"CAST({at}.position AS BIGINT)"
    numbered = rows.repartition(_TASKS, f"{at}.stream", f"{at}.partition")
    return numbered.sortWithinPartitions(f"{at}.stream", f"{at}.partition", f.expr(position))


def _one_line(text: str, sink: SinkEnd) -> str:
    """SQL: text as the value of a header. A record may have any bytes, and headers of NATS end with the line."""
    line = f"CAST(regexp_replace({text}, '[\\\\x00-\\\\x1f\\\\x7f]', ' ') AS BINARY)"
    if sink.type != "iggy":
        return line
    return f"CAST(make_valid_utf8(CAST(substr({line}, 1, {_MOST_HEADER}) AS STRING)) AS BINARY)"


def is_row_wise(rows: "DataFrame", origin: "DataFrame") -> bool:
    """Whether every row comes from one row of `origin`, by what is in that: a batch can then be transformed by itself,
    and gives the same rows when it is run again.
    """
    asks_the_time = len(_TIME.findall(_analyzed(rows))) > len(_TIME.findall(_analyzed(origin)))
    return not is_mixed(rows) and not asks_the_time


def is_mixed(rows: "DataFrame") -> bool:
    """Whether rows may come from several records, or in any order: a window, a join, a repartition."""
    plan = _analyzed(rows)
    names = re.findall(r"^[\s:+|~-]*([A-Z]\w*)", plan, re.MULTILINE)  # ~ before what is streaming
    return not names or any(name not in _ROW_WISE for name in names) or bool(_SUBQUERY.search(plan))


def _analyzed(rows: "DataFrame") -> str:
    """The plan as Spark understood it, an operator in each line. Before it stands a line with the columns."""
    conf, text = rows.sparkSession.conf, io.StringIO()
    before = conf.get(_MOST_FIELDS)
    conf.set(_MOST_FIELDS, "100000")
    try:
        with contextlib.redirect_stdout(text):
            rows.explain(extended=True)
    finally:
        conf.set(_MOST_FIELDS, str(before))
    analyzed = text.getvalue().partition("== Analyzed Logical Plan ==")[2].partition("== Optimized Logical Plan ==")[0]
    return analyzed.partition("\n")[2].partition("\n")[2]


def shaped(rows: "DataFrame", sink: SinkEnd, pipeline: Pipeline) -> "DataFrame":
    """Rows as a sink takes them."""
    if not sink.messages:
        return rows.select(*(f"`{name}`" for name in fields(rows)))
    return _messages(rows, sink, pipeline)


def _messages(rows: "DataFrame", sink: SinkEnd, pipeline: Pipeline) -> "DataFrame":
    """`value`, the columns that [routing] fills, and those that a template of the sink names."""
    from pyspark.sql import functions as f

    is_plain = pipeline.source.schema is None and pipeline.source.file_format is None
    format = sink.schema.type if sink.schema else _default(rows, is_plain)
    template = sink.options.get(sink.kind.template, "")
    used = [name for name in templates.columns(template) if not (sink.type == "s2" and name == "partition")]
    templates.check(
        sink.kind.template, re.sub(r"\{partition\}", "", template) if sink.type == "s2" else template, rows.columns
    )
    settings = {key: str(value) for key, value in sink.schema.properties.items()} if sink.schema else {}
    names = ["value"] if format in ("raw", "text") and "value" in rows.columns else fields(rows)
    how = schemas.to_encode(sink.schema, sink.topic) if sink.schema and sink.schema.type in schemas.BINARY else {}
    value = codecs.value_of(rows, format, names, settings, **how)
    if sink.envelope:
        value = _envelope(rows, value if format in ("json",) else None)
    columns = {"value": value}
    for name in sink.kind.takes:
        if name in pipeline.routing:
            columns[name] = f.expr(pipeline.routing[name])
        elif name == "headers":
            headers = _headers(rows, sink)
            if headers is not None:
                columns[name] = headers
        elif is_plain and name in rows.columns and (name == "key" or (name == sink.kind.template and not template)):
            columns[name] = f.col(name)
    columns |= {name: f.col(f"`{name}`") for name in used if name not in columns}
    return rows.select(*(column.alias(name) for name, column in columns.items()))


def _default(rows: "DataFrame", is_plain: bool) -> codecs.Format:
    """What rows become where no schema says: bytes that came as they are go as they are, all else is JSON."""
    has_bytes = dict(rows.dtypes).get("value") in ("string", "binary")
    return "raw" if has_bytes and (is_plain or fields(rows) == ["value"]) else "json"


def _has(rows: "DataFrame", name: str) -> bool:
    """Whether the record came with a column of this name."""
    meta = next((field for field in rows.schema.fields if field.name == META), None)
    return meta is not None and name in meta.dataType.fieldNames()  # type: ignore[attr-defined] # it is a struct


def _headers(rows: "DataFrame", sink: SinkEnd) -> "Column | None":
    """Headers of a message as its sink wants them; None where there are none."""
    from pyspark.sql import functions as f

    text = headers_sql(sink, has_meta=META in rows.columns, has_headers=_has(rows, "headers"))
    return None if text is None else f.expr(text)


def headers_sql(sink: SinkEnd, *, has_meta: bool, has_headers: bool) -> str | None:
    """SQL: headers of a message, by `_meta`: those of the record, where it came from, both, or None for none."""
    kept = f"{META}.headers" if sink.headers in ("keep", "both") and has_headers else None
    if sink.headers not in ("source", "both") or not has_meta:
        return kept
    own, of_record = _plain_origin(), "{}"
    if sink.type == "iggy":
        own = _typed_origin()
        of_record = "transform({}, h -> named_struct('key', h.key, 'value', h.value, 'kind', 'raw'))"
    return own if kept is None else f"concat({of_record.format(f'coalesce({kept}, array())')}, {own})"


def _plain_origin() -> str:
    at = f"{META}.origin"
    pairs = (("source", "source"), ("partition", "partition"), ("offset", "position"))
    listed = ", ".join(
        f"if({at}.{field} IS NULL, NULL, named_struct('key', '{name}', 'value', CAST({at}.{field} AS BINARY)))"
        for name, field in pairs
    )
    return f"array_compact(array({listed}))"


def _typed_origin() -> str:
    """As Iggy has headers: numbers are uint32 and uint64, in little-endian order, and all else is text."""
    at = f"{META}.origin"

    def header(name: str, field: str, kind: str, width: int) -> str:
        digits = f"lpad(hex(CAST({at}.{field} AS BIGINT)), {width * 2}, '0')"
        swapped = ", ".join(f"substr({digits}, {2 * i + 1}, 2)" for i in reversed(range(width)))
        number = f"named_struct('key', '{name}', 'value', unhex(concat({swapped})), 'kind', '{kind}')"
        text = f"named_struct('key', '{name}', 'value', CAST({at}.{field} AS BINARY), 'kind', 'string')"
        is_number = f"{at}.{field} RLIKE '^[0-9]{{1,{9 if width == 4 else 18}}}$'"
        return f"if({at}.{field} IS NULL OR {at}.{field} = '', NULL, if({is_number}, {number}, {text}))"

    source = f"named_struct('key', 'source', 'value', CAST({at}.source AS BINARY), 'kind', 'string')"
    partition, offset = header("partition", "partition", "uint32", 4), header("offset", "position", "uint64", 8)
    return f"array_compact(array({source}, {partition}, {offset}))"


def _envelope(rows: "DataFrame", payload: "Column | None") -> "Column":
    """One JSON document: id, timestamp in milliseconds, headers and payload."""
    from pyspark.sql import functions as f

    digest = f"sha2({row_id(rows)}, 256)"
    parts = f"substr({digest}, 1, 8), substr({digest}, 9, 4), concat('4', substr({digest}, 14, 3))"
    identity = f"concat_ws('-', {parts}, concat('8', substr({digest}, 18, 3)), substr({digest}, 21, 12))"
    stamp = f"unix_millis({f'{META}.timestamp' if _has(rows, 'timestamp') else now(rows)})"
    at = f"{META}.origin"
    origin = f"named_struct('source', {at}.source, 'partition', {at}.partition, 'offset', {at}.position)"
    inner = f"`{codecs.PAYLOAD}`" if is_variant(rows) else f"struct({', '.join(f'`{n}`' for n in fields(rows))})"
    if payload is None:
        inner = "string(`value`)"
    headers = f", 'headers', {origin}" if META in rows.columns else ""
    return f.expr(f"to_json(named_struct('id', {identity}, 'timestamp', {stamp}{headers}, 'payload', {inner}))")
