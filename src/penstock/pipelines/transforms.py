"""Transforms: rows in, rows out. Those on fields work on columns, or inside of a VARIANT `payload`. Knows Spark's
functions; no servers.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.codecs import PAYLOAD
from penstock.errors import OptionError
from penstock.pipelines import model
from penstock.pipelines.functions import imported
from penstock.pipelines.pipeline import Transform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

META = "_meta"


def apply(df: "DataFrame", transforms: tuple[Transform, ...], file: Path) -> "DataFrame":
    """The rows after all transforms. An error names the file and the line of its transform."""
    for transform in transforms:
        try:
            if isinstance(transform.config, model.PythonFunction):
                (transform,) = imported((transform,), file)
                df = _called(df, transform)
            else:
                df = _STEPS[transform.kind](df, transform.config)
        except OptionError as error:
            raise OptionError(f"{file}:{transform.line}: {transform.kind}: {error}") from None
        except Exception as error:
            is_sparks = type(error).__module__.startswith("pyspark")
            if not is_sparks and not isinstance(transform.config, model.PythonFunction):
                raise
            text = (str(error).strip().splitlines() or [""])[0]
            text = text if is_sparks else f"{type(error).__name__}: {text}"
            raise OptionError(f"{file}:{transform.line}: {transform.kind}: {text}") from error
    return df


def _sql(df: "DataFrame", config: Any) -> "DataFrame":
    # A view of this name may be another pipeline's: the view is made anew, and the plan keeps what it read.
    df.createOrReplaceTempView("input")
    rows = df.sparkSession.sql(config.sql)
    if not rows.columns:
        raise OptionError("this statement gives no columns: write a SELECT.")
    return rows


def _called(df: "DataFrame", transform: Transform) -> "DataFrame":
    assert transform.function is not None
    rows = transform.function(df)
    if not hasattr(rows, "columns"):
        name = getattr(transform.config, "python", "")
        raise OptionError(f"{name} returned {type(rows).__name__}, and not a DataFrame.")
    return rows  # type: ignore[no-any-return] # it is the user's


def is_variant(df: "DataFrame") -> bool:
    """Whether rows are JSON without a schema."""
    return dict(df.dtypes).get(PAYLOAD) == "variant"


def fields(df: "DataFrame") -> list[str]:
    """The columns that are fields of a row: all but what the record brought along."""
    return [name for name in df.columns if name != META]


def _set_fields(df: "DataFrame", config: Any) -> "DataFrame":
    """add_fields and update_fields: the first has no conditions, so that it always sets."""
    from pyspark.sql import functions as f

    for each in config.fields:
        condition, value = getattr(each, "condition", "always"), _value(each, df)
        if is_variant(df):
            # What is not an object has no fields, and gives no map: the tests below may then be asked in any order.
            key, as_map = _quoted(each.key), f"try_variant_get({PAYLOAD}, '$', 'MAP<STRING, VARIANT>')"
            others = f"map_filter({as_map}, (k, v) -> k <> {key})"
            changed = f"to_variant_object(map_concat({others}, map({key}, ({value})::VARIANT)))"
            test = {"always": "", "key_exists": f"map_contains_key({as_map}, {key}) AND ",
                    "key_not_exists": f"NOT map_contains_key({as_map}, {key}) AND "}[condition]  # fmt: skip
            is_object = f"schema_of_variant({PAYLOAD}) LIKE 'OBJECT%'"
            df = df.withColumn(PAYLOAD, f.expr(f"CASE WHEN {test}{is_object} THEN {changed} ELSE {PAYLOAD} END"))
        elif condition == "always" or (condition == "key_exists") == (each.key in df.columns):
            df = df.withColumn(each.key, f.expr(value))
    return df


def _delete_fields(df: "DataFrame", config: Any) -> "DataFrame":
    if not is_variant(df):
        return df.drop(*(name for name in config.fields if name != META))
    names = ", ".join(map(_quoted, config.fields))
    return _keep(df, f"k NOT IN ({names})")


def _filter_fields(df: "DataFrame", config: Any) -> "DataFrame":
    from pyspark.sql import functions as f

    if not config.keep_fields and not config.patterns:
        return df
    keeps = ", ".join(map(_quoted, config.keep_fields)) or "''"
    if is_variant(df):
        any_of = " OR ".join(f"({_key_test(each, 'k')} AND {_variant_test(each, 'v')})" for each in config.patterns)
        return _keep(df, f"k IN ({keeps}) OR ({any_of or 'FALSE'}) = {str(config.include_matching).lower()}")
    types, columns = dict(df.dtypes), []
    for name in df.columns:
        column = f.col(f"`{name}`")
        if name == META or name in config.keep_fields:
            columns.append(column)
            continue
        tests = [_column_test(each, name, types[name]) for each in config.patterns]
        kept = f"({' OR '.join(tests) or 'FALSE'}) = {str(config.include_matching).lower()}"
        if not any(test not in ("TRUE", "FALSE") for test in tests):
            if ("TRUE" in tests) == config.include_matching:
                columns.append(column)
        else:  # a column cannot be left out of some rows: it is null there, and JSON leaves nulls out
            columns.append(f.expr(f"CASE WHEN coalesce({kept}, FALSE) THEN `{name}` END").alias(name))
    return df.select(*columns)


def _unwrap_envelope(df: "DataFrame", config: Any) -> "DataFrame":
    from pyspark.sql import functions as f

    if is_variant(df):
        inner = f"try_variant_get({PAYLOAD}, {_quoted(_path(config.field))}, 'VARIANT')"
        is_object = f"schema_of_variant({inner}) LIKE 'OBJECT%'"
        return df.withColumn(PAYLOAD, f.expr(f"CASE WHEN {is_object} THEN {inner} ELSE {PAYLOAD} END"))
    kind = dict(df.dtypes).get(config.field, "")
    if not kind.startswith("struct<"):
        raise OptionError(
            f"'{config.field}' must be a STRUCT, whose fields take the place of all, but is {kind or 'not there'}."
        )
    meta = [META] if META in df.columns else []
    return df.select(f"`{config.field}`.*", *meta)


def _keep(df: "DataFrame", test: str) -> "DataFrame":
    """The payload with the fields for which `test` holds, over `k` and `v`. What is not an object stays as it is."""
    from pyspark.sql import functions as f

    changed = f"to_variant_object(map_filter(CAST({PAYLOAD} AS MAP<STRING, VARIANT>), (k, v) -> {test}))"
    is_object = f"schema_of_variant({PAYLOAD}) LIKE 'OBJECT%'"
    return df.withColumn(PAYLOAD, f.expr(f"CASE WHEN {is_object} THEN {changed} ELSE {PAYLOAD} END"))


def row_id(df: "DataFrame") -> str:
    """SQL for what tells a row from all others, and is the same when a batch is run again."""
    if META in df.columns:
        place = f"{META}.origin.stream, {META}.origin.partition, {META}.origin.position"
        return f"coalesce(if({META}.origin.position IS NULL, NULL, concat_ws('/', {place})), {_content(df)})"
    return _content(df)


def _content(df: "DataFrame") -> str:
    """Where there is no position, what the row holds: equal rows are then not told apart."""
    columns = ", ".join(f"`{name}`" for name in df.columns if name != META)
    return f"to_json(struct({columns}))"


def now(df: "DataFrame") -> str:
    """SQL for the time at which Spark planned the batch: the same when the batch is run again."""
    return f"{META}.origin.planned" if META in df.columns else "current_timestamp()"


def _value(field: Any, df: "DataFrame") -> str:
    """SQL for a static or computed value. Computed ones are the same when a batch is run again."""
    computed = field.value.computed
    if computed is None:
        return literal(field.value.static)
    time = now(df)
    digest = f"sha2(concat({row_id(df)}, {_quoted('/' + field.key)}), 256)"
    tail = "substr(d, 14, 3), '-', hex(8 + ascii(substr(d, 17, 1)) % 4), substr(d, 18, 3), '-', substr(d, 21, 12)"
    millis = f"lpad(lower(hex(unix_millis({time}))), 12, '0')"

    def uuid(head: str) -> str:
        """The digest is named, so that it is computed once."""
        return f"lower(transform(array({digest}), d -> concat({head}, {tail}))[0])"

    return {
        "date_time": f"date_format({time}, \"yyyy-MM-dd'T'HH:mm:ss.SSSXXX\")",
        "timestamp_nanos": f"unix_micros({time}) * 1000",
        "timestamp_micros": f"unix_micros({time})",
        "timestamp_millis": f"unix_millis({time})",
        "timestamp_seconds": f"unix_seconds({time})",
        "uuid_v4": uuid("substr(d, 1, 8), '-', substr(d, 9, 4), '-4'"),
        "uuid_v7": uuid(f"substr({millis}, 1, 8), '-', substr({millis}, 9, 4), '-7'"),
    }[computed]


def literal(value: Any) -> str:
    """A constant of TOML, in SQL."""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int):
        return f"{value}L" if -(2**63) <= value < 2**63 else f"{value}BD"
    if isinstance(value, float):
        return f"{value!r}D" if math.isfinite(value) else f"double('{value}')"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, list | dict):
        return f"parse_json({_quoted(json.dumps(value, default=lambda each: each.isoformat()))})"
    return _quoted(value.isoformat())  # a date or a time


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _path(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace("'", "\\'")
    return f"$['{escaped}']"


def _key_matches(pattern: Any, name: str) -> bool:
    """Whether the name of a field matches."""
    key = pattern.key_pattern
    if key is None:
        return True
    (kind,) = key.model_fields_set
    text = getattr(key, kind)
    tests: Mapping[str, Callable[[], bool]] = {
        "exact": lambda: name == text,
        "starts_with": lambda: name.startswith(text),
        "ends_with": lambda: name.endswith(text),
        "contains": lambda: text in name,
        "regex": lambda: re.search(text, name) is not None,
    }
    return tests[kind]()


def _key_test(pattern: Any, name: str) -> str:
    """SQL: whether the name of a field matches."""
    key = pattern.key_pattern
    if key is None:
        return "TRUE"
    (kind,) = key.model_fields_set
    text = _quoted(getattr(key, kind))
    return {
        "exact": f"{name} = {text}", "starts_with": f"startswith({name}, {text})",
        "ends_with": f"endswith({name}, {text})", "contains": f"contains({name}, {text})",
        "regex": f"{name} RLIKE {text}",
    }[kind]  # fmt: skip


def _variant_test(pattern: Any, value: str) -> str:
    """SQL: whether the value of a field matches, by its type in the JSON."""
    test = pattern.value_pattern
    kind = f"schema_of_variant({value})"
    is_number = f"({kind} IN ('BIGINT', 'DOUBLE') OR {kind} LIKE 'DECIMAL%')"
    if test is None:
        return "TRUE"
    if isinstance(test, str):
        return {
            "is_null": f"is_variant_null({value})", "is_not_null": f"NOT is_variant_null({value})",
            "is_string": f"{kind} = 'STRING'", "is_number": is_number, "is_boolean": f"{kind} = 'BOOLEAN'",
            "is_object": f"{kind} LIKE 'OBJECT%'", "is_array": f"{kind} LIKE 'ARRAY%'",
        }[test]  # fmt: skip
    (name,) = test.model_fields_set
    wanted = getattr(test, name)
    if name == "equals":
        is_text = isinstance(wanted, str)
        same_kind = (
            f"{kind} = 'STRING'" if is_text else f"{kind} = 'BOOLEAN'" if isinstance(wanted, bool) else is_number
        )
        read = "STRING" if is_text else "BOOLEAN" if isinstance(wanted, bool) else "DOUBLE"
        return f"({same_kind} AND try_variant_get({value}, '$', '{read}') = {literal(wanted)})"
    if name in ("contains", "regex"):
        return f"({kind} = 'STRING' AND {_comparison(name, wanted, _get(value, 'STRING'))})"
    return f"({is_number} AND {_comparison(name, wanted, _get(value, 'DOUBLE'))})"


def _get(value: str, kind: str) -> str:
    return f"try_variant_get({value}, '$', '{kind}')"


def _comparison(name: str, wanted: Any, value: str) -> str:
    if name == "between":
        return f"{value} BETWEEN {literal(wanted[0])} AND {literal(wanted[1])}"
    return {
        "contains": lambda: f"contains({value}, {_quoted(wanted)})",
        "regex": lambda: f"{value} RLIKE {_quoted(wanted)}",
        "greater_than": lambda: f"{value} > {literal(wanted)}",
        "less_than": lambda: f"{value} < {literal(wanted)}",
        "equals": lambda: f"{value} = {literal(wanted)}",
    }[name]()  # fmt: skip


_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")


def _column_test(pattern: Any, name: str, kind: str) -> str:
    """SQL: whether a column matches. TRUE or FALSE where its name and type say so for all rows."""
    if not _key_matches(pattern, name):
        return "FALSE"
    test, is_number = pattern.value_pattern, kind.startswith(_NUMBERS)
    if test is None:
        return "TRUE"
    if isinstance(test, str):
        by_type = {
            "is_string": kind == "string", "is_number": is_number, "is_boolean": kind == "boolean",
            "is_object": kind.startswith(("struct", "map")), "is_array": kind.startswith("array"),
        }  # fmt: skip
        if test in by_type:
            return str(by_type[test]).upper()
        return f"`{name}` IS {'NOT ' if test == 'is_not_null' else ''}NULL"
    (what,) = test.model_fields_set
    wanted = getattr(test, what)
    fits = {"contains": kind == "string", "regex": kind == "string", "equals": True}.get(what, is_number)
    if what == "equals":
        fits = (
            (kind == "boolean")
            if isinstance(wanted, bool)
            else (kind == "string")
            if isinstance(wanted, str)
            else is_number
        )
    return f"coalesce({_comparison(what, wanted, f'`{name}`')}, FALSE)" if fits else "FALSE"


_STEPS: Mapping[str, Callable[["DataFrame", Any], "DataFrame"]] = {
    "sql": _sql,
    "add_fields": _set_fields,
    "update_fields": _set_fields,
    "delete_fields": _delete_fields,
    "filter_fields": _filter_fields,
    "unwrap_envelope": _unwrap_envelope,
}

__all__ = ["META", "apply", "fields", "is_variant", "now", "row_id"]
