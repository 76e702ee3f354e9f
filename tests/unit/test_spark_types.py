"""Columns of types that Spark cannot hand to Python: a sink names them, with all others that it does not take."""

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    YearMonthIntervalType,
)

from penstock.connectors import connector
from penstock.errors import OptionError

MONTHS, NOTHING = YearMonthIntervalType(0, 1), ArrayType(NullType(), containsNull=False)  # array() is of the latter
S2 = {"endpoint": "http://127.0.0.1:1", "basin": "some-basin", "stream": "x"}
NATS = {"servers": "nats://127.0.0.1:1", "subject": "a"}
WHERE = {
    "jetstream": NATS,
    "nats": NATS,
    "s2": S2,
    "kinesis": {"stream": "s", "region": "us-east-1"},
    "iggy": {"address": "127.0.0.1:1", "stream": "a", "topic": "t", "username": "u", "password": "p"},
}


def refusal(format: str, options: dict[str, str], **columns: DataType) -> str:
    """What is said when such rows are about to be written."""
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    with pytest.raises(OptionError) as caught:
        connector(format)(options).streamWriter(schema, overwrite=False)
    return str(caught.value)


@pytest.mark.parametrize("format", WHERE)
def test_columns_that_spark_cannot_hand_over_are_named_with_the_others_that_a_sink_does_not_take(format: str) -> None:
    columns = {"value": StringType(), "age": MONTHS, "none": NOTHING, "x": LongType()}
    said = refusal(format, WHERE[format], **columns)
    assert f"{format} cannot write the columns 'age', 'none', 'x'" in said
    assert "drop('age', 'none', 'x')" in said


@pytest.mark.parametrize("format", [format for format in WHERE if format != "kinesis"])  # which takes no headers
def test_columns_that_a_sink_takes_must_be_cast_where_spark_cannot_hand_them_over(format: str) -> None:
    said = refusal(format, WHERE[format], value=MONTHS, headers=NOTHING)
    assert "column 'value' must be STRING or BINARY, but is interval. Cast it" in said
    assert "Column 'headers' must be ARRAY<STRUCT<key STRING, value BINARY>>" in said
    assert "but is list<element: null>. Make it one of names and values." in said


def test_a_table_of_changes_says_how_they_are_written_otherwise() -> None:
    upsert = {**S2, "mode": "upsert", "keyColumns": "id"}
    empty = MapType(NullType(), NullType(), valueContainsNull=False)
    deep = StructType([StructField("a", ArrayType(MONTHS))])
    said = refusal("s2", upsert, id=LongType(), age=MONTHS, none=NOTHING, empty=empty, deep=deep, v=LongType())
    assert (
        '.selectExpr("* EXCEPT (`age`, `none`, `empty`, `deep`)", "string(`age`) AS `age`", '
        '"to_json(`none`) AS `none`", "to_json(`empty`) AS `empty`", "to_json(`deep`) AS `deep`")' in said
    )
    assert "'age' (month_day_nano_interval), 'none' (list<element: null>)" in said


@pytest.mark.parametrize(
    ("format", "options"),
    [("jetstream", {**NATS, "subject": "a.{age}.{b}"}), ("s2", {**S2, "stream": "a.{age}.{b}"})],
)
def test_columns_of_a_template_must_be_cast_where_spark_cannot_hand_them_over(
    format: str, options: dict[str, str]
) -> None:
    said = refusal(format, options, value=StringType(), age=MONTHS, b=MONTHS)
    assert said == (
        "Spark cannot hand these columns to a sink: 'age' (interval year to month), 'b' (interval year to month). "
        'Write them otherwise: .selectExpr("* EXCEPT (`age`, `b`)", "string(`age`) AS `age`", "string(`b`) AS `b`"), '
        "or leave them out with drop('age', 'b')."
    )


def test_such_a_column_cannot_be_asked_for_either() -> None:
    schema = StructType([StructField("value", MONTHS)])
    with pytest.raises(OptionError, match="column 'value' of jetstream is binary, not month_day_nano_interval"):
        connector("jetstream")({"servers": "nats://127.0.0.1:1", "stream": "S"}).reader(schema)
    upserted = {**S2, "mode": "upsert", "keyColumns": "id"}
    both = StructType([StructField("id", LongType()), StructField("age", MONTHS)])
    with pytest.raises(OptionError, match=r"'age' .*name the types that were written"):
        connector("s2")(upserted).reader(both)
