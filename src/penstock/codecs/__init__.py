"""Bytes as columns, and columns as bytes, for plain DataFrames and for pipelines. Knows Spark's functions; no servers.

A record that cannot be decoded does not fail its task: it gets a sentence in the column `_error`, and nulls elsewhere.
"""

import difflib
import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

from penstock.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from penstock.codecs.frames import Framing
    from penstock.codecs.registry import Registry

Format = Literal["json", "csv", "text", "raw", "avro", "protobuf"]
ERROR = "_error"
# The one column of JSON without a schema.
PAYLOAD = "payload"
_CORRUPT = "_corrupt"
# Behind a } or ] comes something else than JSON allows there, or it is inside of a string.
_AFTER_THE_END = r"[}\]]\s*[^\s,}\]]"
_MORE = "goes on after the end of its JSON: "
_MOST_SHOWN = 80


def require(format: str) -> None:
    """An OptionError where there is no such format, or where it needs a package that is not there: what to install."""
    known = get_args(Format)
    if format not in known:
        close = difflib.get_close_matches(str(format).lower(), known, n=1)
        hint = f"Did you mean '{close[0]}'?" if close else f"There are: {', '.join(known)}."
        raise OptionError(f"unknown format '{format}'. {hint}")
    package = {"avro": "fastavro", "protobuf": "google.protobuf"}.get(format)
    try:
        is_there = package is None or importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the package around it
        is_there = False
    if not is_there:
        raise OptionError(f"{format} needs the package {package}. Install it with: pip install 'penstock[{format}]'")


def decode(
    df: "DataFrame",
    format: Format,
    *,
    schema: str | None = None,
    value: str = "value",
    options: Mapping[str, str] | None = None,
    registry: "Registry | None" = None,
    schema_id: int | None = None,
    subject: str | None = None,
    framing: "Framing | None" = None,
    descriptors: bytes | None = None,
    message: str | None = None,
) -> "DataFrame":
    """`df` with the decoded columns and `_error` in place of the column `value`. The other columns stay.

    `schema`: columns as SQL writes them; of `avro`, a schema of Avro. `csv` needs it; JSON without it becomes one
    VARIANT, `payload`. `text` and `raw` leave one column, `value`. A null value is decoded as nulls, without an error:
    it stands for a deletion. Records whose schemas are in a `registry` say by an id which one it was; they are read by
    `schema`, by that of `schema_id`, or by the newest one of `subject`. The `schema` of `protobuf` is a .proto file;
    `descriptors`, a descriptor set of protoc, may stand for it. `message` is the name of one in it.
    """
    from pyspark.sql import functions as f

    require(format)
    if value not in df.columns:
        raise OptionError(f"there is no column '{value}' to decode, but: {', '.join(df.columns)}. Name one: value=...")
    if format == "avro":
        from penstock.codecs import avro, columnar

        return columnar.decoded(df, avro.decoder(schema, registry, schema_id, subject, framing), value)
    if format == "protobuf":
        from penstock.codecs import columnar, protobuf

        reader = protobuf.decoder(
            descriptors, message,
            schema=schema, registry=registry, schema_id=schema_id, subject=subject, framing=framing,
        )  # fmt: skip
        return columnar.decoded(df, reader, value)
    others = [f.col(name) for name in df.columns if name not in (value, ERROR)]
    given = f.col(value)
    if format == "raw":
        return df.select(*others, given.cast("binary").alias("value"), f.lit(None).cast("string").alias(ERROR))
    is_binary = dict(df.dtypes)[value] == "binary"
    text = given.cast("string")
    is_text = f.expr(f"is_valid_utf8(string(`{value}`))") if is_binary else f.lit(True)
    if format == "text":
        error = f.when(given.isNotNull() & ~is_text, f.lit("is not UTF-8"))
        return df.select(*others, f.when(error.isNull(), text).alias("value"), error.alias(ERROR))
    if format == "json" and schema is None:
        return _variant(df, others, text, is_text)
    if schema is None:
        raise OptionError("csv needs a schema, such as 'id BIGINT, amount DOUBLE': lines do not name their columns.")
    fields = columns(schema)
    for name in (ERROR, _CORRUPT, *(n for n in df.columns if n != value)):
        if name in fields:
            raise OptionError(f"the schema has a column '{name}', which is there already: call it otherwise.")
    extended = f"{schema}, {_CORRUPT} STRING"
    settings = {"columnNameOfCorruptRecord": _CORRUPT, **(options or {})}
    parse = f.from_json(text, extended, settings) if format == "json" else f.from_csv(text, extended, settings)
    decoded = df.select(*others, given.alias("__value"), is_text.alias("__text"), parse.alias("__row"))
    what = "JSON" if format == "json" else "CSV"
    text = f.col("__value").cast("string")
    shown = f.substring(text, 1, _MOST_SHOWN)
    error = (
        f.when(f.col("__value").isNull(), None)
        .when(~f.col("__text"), f.lit("is not UTF-8"))
        .when(f.col("__row").isNull() | (text == ""), f.lit("is empty"))
        .when(
            f.col(f"__row.{_CORRUPT}").isNotNull(),
            f.concat(f.lit(f"is not {what} of the schema ({schema}): "), shown),
        )
    )
    if format == "json":
        error = f.coalesce(error, f.when(_goes_on(text, settings), f.concat(f.lit(_MORE), shown)))
    kept = [f.col(name) for name in df.columns if name not in (value, ERROR)]
    return decoded.select(*kept, *(f.col(f"__row.`{name}`").alias(name) for name in fields), error.alias(ERROR))


def _variant(df: "DataFrame", others: "list[Column]", text: "Column", is_text: "Column") -> "DataFrame":
    from pyspark.sql import functions as f

    decoded = df.select(*others, text.alias("__text"), is_text.alias("__valid"), f.try_parse_json(text).alias(PAYLOAD))
    shown = f.substring("__text", 1, _MOST_SHOWN)
    error = (
        f.when(f.col("__text").isNull(), None)
        .when(~f.col("__valid"), f.lit("is not UTF-8"))
        .when(f.col(PAYLOAD).isNull(), f.concat(f.lit("is not JSON: "), shown))
        .when(_goes_on(f.col("__text")), f.concat(f.lit(_MORE), shown))
    )
    return decoded.select(*(f.col(n) for n in df.columns if n in decoded.columns), PAYLOAD, error.alias(ERROR))


def _goes_on(text: "Column", options: dict[str, str] | None = None) -> "Column":
    """Whether text goes on behind the end of its JSON. Spark's parsers do not look there, and a second document would
    be lost. Only what looks like it is parsed once more, inside of an array, which ends where it must.
    """
    from pyspark.sql import functions as f

    looks_like_it = text.rlike(_AFTER_THE_END) | text.rlike(r"^\s*[^\s{\[]")
    inside = f.from_json(f.concat(f.lit("["), text, f.lit("\n]")), "ARRAY<STRING>", options)
    return looks_like_it & (f.coalesce(f.size(inside), f.lit(-1)) != 1)


def encode(
    df: "DataFrame",
    format: Format,
    *,
    columns: "list[str] | None" = None,
    keep: "list[str] | None" = None,
    options: Mapping[str, str] | None = None,
    schema: str | None = None,
    registry: "Registry | None" = None,
    subject: str | None = None,
    register: bool = True,
    use_latest: bool = False,
    descriptors: bytes | None = None,
    message: str | None = None,
) -> "DataFrame":
    """`df` with a column `value` made of `columns` (by default all), and the columns `keep` beside it.

    `json`: an object of the columns, nulls left out; a single VARIANT `payload` is written as it is. `text` and `raw`
    take a single column. `avro`: by `schema`, or by one that is made of the columns. With a `registry` each record has
    the id of its schema in front, which `subject` has, or gets where it may (`register`); with `use_latest` that is the
    newest one of `subject`. `protobuf`: as a `message` of `schema`, a .proto file, or of `descriptors`.
    """
    from pyspark.sql import functions as f

    names = columns if columns is not None else list(df.columns)
    value = value_of(
        df, format, names, options, schema=schema, registry=registry, subject=subject, register=register,
        use_latest=use_latest, descriptors=descriptors, message=message,
    )  # fmt: skip
    return df.select(value.alias("value"), *(f.col(name) for name in keep or []))


def value_of(
    df: "DataFrame", format: Format, names: list[str], options: Mapping[str, str] | None = None, **how: Any
) -> "Column":
    """The bytes or text of each row, as a column. `how`: what `encode` takes for `avro` and `protobuf`."""
    from pyspark.sql import functions as f

    require(format)
    if format in ("avro", "protobuf"):
        return _by_columns(df, format, names, **how)
    types = dict(df.dtypes)
    settings = dict(options) if options else None  # Spark Connect takes no empty ones
    if format in ("text", "raw"):
        name = "value" if "value" in names else names[0] if len(names) == 1 else None
        if name is None or types[name] not in ("string", "binary"):
            listed = ", ".join(f"{each} {types[each]}" for each in names)
            raise OptionError(
                f"'{format}' writes one column of text or bytes, and there are: {listed}."
                " Make one with a transform, called 'value', or write json."
            )
        return f.col(f"`{name}`")
    if format == "json" and names == [PAYLOAD] and types[PAYLOAD] == "variant":
        return f.to_json(f.col(PAYLOAD), settings)
    row = f.struct(*(f.col(f"`{name}`") for name in names))
    return (f.to_json if format == "json" else f.to_csv)(row, settings)


def _by_columns(
    df: "DataFrame", format: Format, names: list[str], *, descriptors: bytes | None = None, message: str | None = None,
    **how: Any,
) -> "Column":  # fmt: skip
    from penstock.codecs import avro, columnar, protobuf
    from penstock.spark.schema import arrow_schema

    types = arrow_schema(df.select(*(f"`{name}`" for name in names)).schema)
    if format == "avro":
        return columnar.encoded(df, avro.encoder(types, **how), names)
    return columnar.encoded(df, protobuf.encoder(types, descriptors, message, **how), names)


def columns(schema: str) -> list[str]:
    """The names of the columns of a schema, or an OptionError where it is not one."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        parsed = StructType.fromDDL(schema)
    except PySparkException as error:
        why = str(error).strip().splitlines()[0]
        raise OptionError(f"'{schema}' is not a schema such as 'id BIGINT, amount DOUBLE': {why}") from None
    assert isinstance(parsed, StructType)
    return parsed.fieldNames()
