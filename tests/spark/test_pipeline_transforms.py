"""Transforms of pipelines: what each does to records with a schema, and to those without. No servers."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from penstock import codecs
from penstock.errors import OptionError
from penstock.pipelines import rows as steps
from penstock.pipelines.functions import imported
from penstock.pipelines.load import load
from penstock.pipelines.transforms import apply
from spark.pipeline_runs import ONCE, done, written

RECORD: dict[str, Any] = {
    "id": 7, "name": "ann", "price": 12.5, "ok": True, "note": None, "tags": ["a"], "inner": {"x": 1, "y": "z"},
}  # fmt: skip
SCHEMA = (
    "id BIGINT, name STRING, price DOUBLE, ok BOOLEAN, note STRING, tags ARRAY<STRING>, "
    "inner STRUCT<x: BIGINT, y: STRING>"
)


def only(*names: str) -> dict[str, Any]:
    return {name: RECORD[name] for name in names}


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in RECORD.items() if name not in names}


def matching(pattern: str) -> str:
    return f"filter_fields = {{ patterns = [{{ {pattern} }}] }}"


# A transform, and what becomes of the record.
CASES: list[tuple[str, dict[str, Any]]] = [
    (
        r"""add_fields.fields = [{ key = "it's", value.static = 'a\b' }, { key = "a.b", value.static = 3 }]""",
        RECORD | {"it's": "a\\b", "a.b": 3},
    ),
    (
        "add_fields.fields = [{ key = 'half', value.static = 0.5 }, { key = 'ok', value.static = false }]",
        RECORD | {"half": 0.5, "ok": False},
    ),
    (
        "add_fields.fields = [{ key = 'list', value.static = [1, 'a'] }, { key = 'map', value.static = { k = 1 } }]",
        RECORD | {"list": [1, "a"], "map": {"k": 1}},
    ),
    ("add_fields.fields = [{ key = 'day', value.static = 2024-01-02 }]", RECORD | {"day": "2024-01-02"}),
    ("update_fields.fields = [{ key = 'name', value.static = 5 }]", RECORD | {"name": 5}),
    (
        "update_fields.fields = [{ key = 'id', value.static = 1, condition = 'key_exists' },"
        " { key = 'zip', value.static = 1, condition = 'key_exists' }]",
        RECORD | {"id": 1},
    ),
    (
        "update_fields.fields = [{ key = 'id', value.static = 1, condition = 'key_not_exists' },"
        " { key = 'zip', value.static = 1, condition = 'key_not_exists' }]",
        RECORD | {"zip": 1},
    ),
    ("delete_fields.fields = ['id', 'inner', 'unknown']", without("id", "inner")),
    ("unwrap_envelope.field = 'inner'", {"x": 1, "y": "z"}),
    ("filter_fields = {}", RECORD),
    ("filter_fields.keep_fields = ['id']", only("id")),
    (matching("key_pattern.exact = 'id'"), only("id")),
    (matching("key_pattern.starts_with = 'n'"), only("name", "note")),
    (matching("key_pattern.ends_with = 'e'"), only("name", "note", "price")),
    (matching("key_pattern.contains = 'a'"), only("name", "tags")),
    (matching("key_pattern.regex = '^.{2}$'"), only("id", "ok")),
    (matching("value_pattern = 'is_string'"), only("name")),
    (matching("value_pattern = 'is_number'"), only("id", "price")),
    (matching("value_pattern = 'is_boolean'"), only("ok")),
    (matching("value_pattern = 'is_object'"), only("inner")),
    (matching("value_pattern = 'is_array'"), only("tags")),
    (matching("value_pattern = 'is_null'"), only("note")),
    (matching("value_pattern = 'is_not_null'"), without("note")),
    (matching("value_pattern.equals = 'ann'"), only("name")),
    (matching("value_pattern.equals = 7"), only("id")),
    (matching("value_pattern.equals = true"), only("ok")),
    (matching("value_pattern.contains = 'nn'"), only("name")),
    (matching("value_pattern.regex = '^a.n$'"), only("name")),
    (matching("value_pattern.greater_than = 7"), only("price")),
    (matching("value_pattern.less_than = 12"), only("id")),
    (matching("value_pattern.between = [7, 12.5]"), only("id", "price")),
    (matching("key_pattern.exact = 'id', value_pattern.greater_than = 7"), {}),
    (
        "filter_fields = { patterns = [{ key_pattern.starts_with = 'n' }], include_matching = false }",
        without("name", "note"),
    ),
    (
        "filter_fields = { patterns = [{ value_pattern.greater_than = 7 }], include_matching = false }",
        without("price"),
    ),
    (
        "filter_fields = { keep_fields = ['price'], patterns = [{ value_pattern = 'is_number' }],"
        " include_matching = false }",
        without("id"),
    ),
]


def transformed(rows: DataFrame, folder: Path, *transforms: str) -> DataFrame:
    text = "".join(f"[[transforms]]\n{transform}\n" for transform in transforms)
    file = written(folder, "t", f'[source]\ntype = "rate"\n[[sinks]]\ntype = "noop"\n{text}')
    return apply(rows, load([file])[0].transforms, file)


@pytest.fixture(scope="module")
def records(spark: SparkSession) -> dict[str, DataFrame]:
    """The record, once with its columns and once as a VARIANT."""
    rows = spark.createDataFrame([(json.dumps(RECORD).encode(),)], "value BINARY")
    decoded = {"columns": codecs.decode(rows, "json", schema=SCHEMA), "payload": codecs.decode(rows, "json")}
    return {name: each.drop(codecs.ERROR) for name, each in decoded.items()}


@pytest.mark.parametrize("kind", ["columns", "payload"])
def test_transforms_of_fields_do_the_same_with_a_schema_and_without(
    records: dict[str, DataFrame], folder: Path, kind: str
) -> None:
    for transform, expected in CASES:
        (row,) = codecs.encode(transformed(records[kind], folder, transform), "json").collect()
        kept = {name: value for name, value in expected.items() if kind == "payload" or value is not None}
        assert json.loads(row.value) == kept, f"{transform}; JSON of columns has no nulls"


COMPUTED = {
    "date_time": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z",
    "timestamp_nanos": r"\d{19}",
    "timestamp_micros": r"\d{16}",
    "timestamp_millis": r"\d{13}",
    "timestamp_seconds": r"\d{10}",
    "uuid_v4": "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}",
    "uuid_v7": "[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}",
}


@pytest.mark.parametrize("kind", ["columns", "payload"])
def test_computed_fields_have_their_forms(records: dict[str, DataFrame], folder: Path, kind: str) -> None:
    fields = ", ".join(f"{{ key = '{name}', value.computed = '{name}' }}" for name in COMPUTED)
    (row,) = codecs.encode(transformed(records[kind], folder, f"add_fields.fields = [{fields}]"), "json").collect()
    found = json.loads(row.value)
    for name, form in COMPUTED.items():
        assert re.fullmatch(form, str(found[name])), (name, found[name])


def test_what_is_no_object_passes_through_transforms_of_fields(spark: SparkSession, folder: Path) -> None:
    rows = codecs.decode(spark.createDataFrame([("[1, 2]",), ("5",), ("null",)], "value STRING"), "json").drop("_error")
    steps = ["add_fields.fields = [{ key = 'a', value.static = 1 }]", "delete_fields.fields = ['b']",
             "filter_fields.keep_fields = ['a']", "unwrap_envelope.field = 'a'"]  # fmt: skip
    found = codecs.encode(transformed(rows, folder, *steps), "json").collect()
    assert [row.value for row in found] == ["[1,2]", "5", "null"]


def test_an_envelope_of_columns_must_be_a_struct(records: dict[str, DataFrame], folder: Path) -> None:
    with pytest.raises(OptionError, match=r"t.toml:6: unwrap_envelope: 'name' must be a STRUCT, .* but is string"):
        transformed(records["columns"], folder, "unwrap_envelope.field = 'name'")


TIMES = {
    "fields": 'add_fields = { fields = [{ key = "at", value = { computed = "timestamp_micros" } }] }',
    "sql": 'sql = "SELECT id, unix_micros(current_timestamp()) AS at FROM input"',
}


@pytest.mark.parametrize("transform", TIMES.values(), ids=list(TIMES))
def test_the_time_of_a_batch_is_one_in_all_sinks_and_the_same_when_it_is_run_again(
    spark: SparkSession, transform: str, folder: Path
) -> None:
    (folder / "in").mkdir()
    (folder / "in" / "a.json").write_text('{"id": 1}\n{"id": 2}\nbad\n')
    text = f"""
[source]
type = "file_system"
identifier = "in"
input_schema = {{ type = "json", schema = "id BIGINT" }}

[[transforms]]
{transform}

[[sinks]]
type = "parquet"
name = "one"
identifier = "one"

[[sinks]]
type = "parquet"
name = "other"
identifier = "other"

[errors]
mode = "dead_letter"
sink = {{ type = "parquet", identifier = "letters" }}
"""
    file = written(folder, "times", text + ONCE)

    def times() -> set[int]:
        found = [row.at for name in ("one", "other") for row in spark.read.parquet(str(folder / name)).collect()]
        assert len(found) == 4
        letters = spark.read.parquet(str(folder / "letters")).selectExpr("unix_micros(time) AS at").collect()
        assert len(letters) == 1
        return {*found, *(row.at for row in letters)}

    done(spark, file)
    before = times()
    assert len(before) == 1
    for commit in (folder / ".penstock" / "times" / "commits").iterdir():
        commit.unlink()  # as if it had died before it noted that all is written
    done(spark, file)
    assert times() == before


SQL = {
    "SELECT value + 1 AS v FROM input WHERE value > 3": True,
    "SELECT explode(array(value, 7)) AS v FROM input": True,
    "WITH big AS (SELECT * FROM input) SELECT _meta.value AS v FROM big": True,
    "SELECT DISTINCT value FROM input": False,
    "SELECT count(*) AS n FROM input GROUP BY window(timestamp, '1 minute')": False,
    "SELECT value FROM input UNION ALL SELECT value FROM input": False,
    "SELECT i.value FROM input i JOIN range(3) r ON i.value = r.id": False,
    "SELECT value FROM input WHERE CAST(value AS BIGINT) IN (SELECT id FROM range(3))": False,
    "SELECT value, now() AS at FROM input": False,
    f"SELECT {', '.join(f'value + {i} AS v{i}' for i in range(40))}, current_date() AS day FROM input": False,
}


def test_only_what_looks_at_one_row_at_a_time_is_left_to_the_batch(spark: SparkSession, folder: Path) -> None:
    """The rest is part of the streaming query, which remembers rows and the time of the batch."""
    for kind, more in {"rate": "", "file_system": f'identifier = "{folder}"\ninput_schema = "text"\n'}.items():
        for each, expected in SQL.items():
            sql = each if kind == "rate" else each.replace("timestamp", "_meta.origin.planned")
            text = f'[source]\ntype = "{kind}"\n{more}[[sinks]]\ntype = "noop"\n[[transforms]]\nsql = "{sql}"\n'
            (pipeline,) = load([written(folder, "t", text)])
            rows = steps.decoded(steps.records(spark, pipeline.source), pipeline.source).drop(codecs.ERROR)
            assert steps.is_row_wise(apply(rows, pipeline.transforms, pipeline.file), rows) is expected, (kind, sql)


def test_lines_of_files_are_in_one_order_however_spark_packs_files_into_tasks(
    spark: SparkSession, folder: Path
) -> None:
    for number in range(12):
        (folder / f"{number}.txt").write_text("".join(f"{number}/{line}\n" for line in range(20 * (number % 3))))
    text = f'[source]\ntype = "file_system"\nformat = "text"\nidentifier = "{folder}/*.txt"\n[[sinks]]\ntype = "noop"\n'
    (pipeline,) = load([written(folder, "t", text)])
    orders = []
    for tasks in ("1", "8"):
        spark.conf.set("spark.sql.files.minPartitionNum", tasks)
        try:
            rows = steps.decoded(steps.records(spark, pipeline.source, streaming=False), pipeline.source)
            orders.append(steps.ordered(rows).selectExpr("spark_partition_id() AS task", "value").collect())
        finally:
            spark.conf.unset("spark.sql.files.minPartitionNum")
    assert orders[0] == orders[1]
    values = [row.value for row in orders[0] if row.value.startswith("1/")]
    assert values == [f"1/{line}" for line in range(20)], "lines of a file stay in its order"


def test_rows_that_spark_has_mixed_are_in_one_order_each_time(spark: SparkSession) -> None:
    rows = spark.range(50).selectExpr("id % 7 AS id", "map('a', id) AS m", "timestamp_micros(id) AS t").coalesce(1)
    one, other = (
        steps.ordered(rows.sortWithinPartitions(key), by_content=True, is_placed=True).collect()
        for key in (rows.t.asc(), rows.t.desc())
    )
    assert one == other
    assert len(one) == 50


def test_what_remembers_rows_of_files_goes_together_with_dead_letters(spark: SparkSession, folder: Path) -> None:
    (folder / "in").mkdir()
    for name in "ab":
        (folder / "in" / f"{name}.json").write_text('{"region": "eu"}\n{"region": "us"}\nbad\n')
    (folder / "once.py").write_text("def regions(rows):\n    return rows.select('region').dropDuplicates()\n")
    text = """
[source]
type = "file_system"
identifier = "in"
batch_size = 1
input_schema = { type = "json", schema = "region STRING" }

[[transforms]]
python = "once:regions"

[[sinks]]
type = "parquet"
identifier = "regions"

[errors]
mode = "dead_letter"
sink = { type = "parquet", identifier = "letters" }
"""
    went = done(spark, written(folder, "regions", text + ONCE))
    assert (went.rows, went.errors) == (6, 2)
    rows = spark.read.parquet(str(folder / "regions")).collect()
    assert sorted(row.region for row in rows) == ["eu", "us"], "once over both batches"
    assert spark.read.parquet(str(folder / "letters")).count() == 2


def test_a_function_of_a_module_beside_the_file_travels_with_the_pipeline(folder: Path) -> None:
    """As to the server of Spark Connect, which has no such folder."""
    (folder / "travels.py").write_text("import helps\n\ndef twice(rows):\n    return helps.double(rows)\n")
    (folder / "helps.py").write_text("def double(rows):\n    return 2 * rows\n")
    text = '[source]\ntype = "rate"\n[[sinks]]\ntype = "noop"\n[[transforms]]\npython = "travels:twice"\n'
    (pipeline,) = load([written(folder, "t", text)])
    pickled = cloudpickle.dumps(imported(pipeline.transforms, pipeline.file))
    for name in ("travels", "helps"):
        (folder / f"{name}.py").unlink()
        del sys.modules[name]
    (transform,) = cloudpickle.loads(pickled)
    assert transform.function(3) == 6


def test_a_module_whose_name_is_taken_is_refused(folder: Path) -> None:
    """As the one of another pipeline, or of Python: the wrong function would run without a word."""
    for name in ("one", "other"):
        (folder / name).mkdir()
        (folder / name / "same_name.py").write_text(f"def rows(df):\n    return '{name}'\n")
        (folder / name / "json.py").write_text("def loads(df):\n    return df\n")
    text = '[source]\ntype = "rate"\n[[sinks]]\ntype = "noop"\n[[transforms]]\npython = "{}"\n'
    (one,) = load([written(folder / "one", "a", text.format("same_name:rows"))])
    assert imported(one.transforms, one.file)
    for name in ("same_name:rows", "json:loads"):
        (other,) = load([written(folder / "other", "b", text.format(name))])
        with pytest.raises(OptionError, match=r"is taken by .*: call .*/other/.*.py otherwise"):
            imported(other.transforms, other.file)
