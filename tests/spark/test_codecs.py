"""Bytes as columns: what is decoded, and what is said of bytes that cannot be."""

import pytest
from google.protobuf import descriptor_pb2
from pyspark.sql import SparkSession

from penstock import codecs
from penstock.codecs.avro_types import of_columns
from penstock.errors import OptionError
from penstock.spark.schema import arrow_schema

SCHEMA = "id BIGINT, s STRING"
WRONG = f"of the schema ({SCHEMA}): "
# A value; its columns, or what is wrong with it.
JSON: list[tuple[bytes | None, tuple[int | None, str | None] | str]] = [
    (b'{"id": 1, "s": "a"}', (1, "a")),
    (b'{"id": 1, "more": 2}', (1, None)),
    (b'{"s": {"a": 1}}', (None, '{"a":1}')),
    (b'{"s": "} x", "id": 1}', (1, "} x")),
    (b"{'s': '} x', 'id': 1}", (1, "} x")),  # Spark takes either quotes
    (None, (None, None)),
    (b"", "is empty"),
    (b"\xff", "is not UTF-8"),
    (b'{"s": "\xff"}', "is not UTF-8"),
    (b"{no", f"is not JSON {WRONG}{{no"),
    (b'{"id": "x"}', f'is not JSON {WRONG}{{"id": "x"}}'),
    (b'{"id": 1.5}', f'is not JSON {WRONG}{{"id": 1.5}}'),
    (b'[{"id": 1}]', f'is not JSON {WRONG}[{{"id": 1}}]'),
    (b"5", f"is not JSON {WRONG}5"),
    (b'{"id": 1} {"id": 2}', 'goes on after the end of its JSON: {"id": 1} {"id": 2}'),
    (b'{"id": 1}\n{"id": 2}', 'goes on after the end of its JSON: {"id": 1}\n{"id": 2}'),
    (b'{"id": 1} x', 'goes on after the end of its JSON: {"id": 1} x'),
]
CSV: list[tuple[bytes | None, tuple[int | None, str | None] | str]] = [
    (b"1,a", (1, "a")),
    (b'1,"a,b"', (1, "a,b")),
    (b",", (None, None)),
    (None, (None, None)),
    (b"", "is empty"),
    (b"\xff,a", "is not UTF-8"),
    (b"x,a", f"is not CSV {WRONG}x,a"),
    (b"1", f"is not CSV {WRONG}1"),
    (b"1,a,b", f"is not CSV {WRONG}1,a,b"),
]


@pytest.mark.parametrize(("format", "cases"), [("json", JSON), ("csv", CSV)])
def test_values_become_columns_or_a_sentence(spark: SparkSession, format: codecs.Format, cases: list) -> None:  # type: ignore[type-arg]
    values = spark.createDataFrame([(value,) for value, _ in cases], "value BINARY").coalesce(1)
    rows = codecs.decode(values, format, schema=SCHEMA).collect()
    for row, (value, expected) in zip(rows, cases, strict=True):
        assert (row._error or (row.id, row.s)) == expected, value


def test_a_misspelt_format_and_a_missing_column_are_said(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("x",)], "value STRING")
    with pytest.raises(OptionError, match=r"unknown format 'Avor'\. Did you mean 'avro'\?"):
        codecs.decode(rows, "Avor")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"unknown format 'xml'\. There are: json, csv, text, raw, avro, protobuf"):
        codecs.encode(rows, "xml")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="there is no column 'body' to decode, but: value"):
        codecs.decode(rows, "text", value="body")


def test_json_without_a_schema_is_a_variant(spark: SparkSession) -> None:
    cases = {
        b'{"a": [1, {"b": null}]}': '{"a":[1,{"b":null}]}', b"5": "5", b"null": "null", b'"} x"': '"} x"',
        b"": "is not JSON: ", b"\xff": "is not UTF-8", b"{no": "is not JSON: {no",
        b'{"a": 1} {"a": 2}': 'goes on after the end of its JSON: {"a": 1} {"a": 2}',
        b"5 6": "goes on after the end of its JSON: 5 6",
    }  # fmt: skip
    values = spark.createDataFrame([(value,) for value in cases], "value BINARY").coalesce(1)
    rows = codecs.decode(values, "json").selectExpr("coalesce(_error, to_json(payload)) AS found").collect()
    assert [row.found for row in rows] == list(cases.values())


def test_options_of_the_parser_hold_behind_the_end_too(spark: SparkSession) -> None:
    values = spark.createDataFrame([('{"id": 1} // one',)], "value STRING")
    (row,) = codecs.decode(values, "json", schema="id BIGINT", options={"allowComments": "true"}).collect()
    assert (row.id, row._error) == (1, None)


def test_other_columns_stay_and_rows_become_the_same_bytes_again(spark: SparkSession) -> None:
    values = spark.createDataFrame([("k", b'{"id":1,"s":"a"}'), ("n", None)], "key STRING, value BINARY").coalesce(1)
    decoded = codecs.decode(values, "json", schema=SCHEMA)
    assert decoded.columns == ["key", "id", "s", "_error"]
    encoded = codecs.encode(decoded, "json", columns=["id", "s"], keep=["key"]).collect()
    assert [tuple(row) for row in encoded] == [('{"id":1,"s":"a"}', "k"), ("{}", "n")]


def test_rows_of_every_kind_of_column_come_back_through_avro(spark: SparkSession) -> None:
    rows = spark.range(20).selectExpr(
        "id", "if(id % 3 = 0, NULL, string(id)) AS s", "id / 3 AS d", "array(id, NULL) AS a", "map('k', int(id)) AS m",
        "named_struct('x', id, 'y', date'2026-01-01') AS r", "timestamp_micros(id) AS t", "decimal(id) / 7 AS n",
        "cast(s AS BINARY) AS b",
    )  # fmt: skip
    encoded = codecs.encode(rows, "avro", columns=rows.columns, keep=["id"])
    schema = of_columns(arrow_schema(rows.schema), "Row")
    back = codecs.decode(encoded.withColumnRenamed("id", "number"), "avro", schema=schema)
    assert back.columns == ["number", *rows.columns, "_error"]
    assert back.where("_error IS NOT NULL").count() == 0
    assert sorted(back.select(*rows.columns).collect()) == sorted(rows.collect())


def test_columns_beside_come_through_as_they_were(spark: SparkSession) -> None:
    rows = spark.range(3).selectExpr(
        "id", "named_struct('at', timestamp'2026-11-17 10:00:00', 'tags', array('a', null)) AS meta",
        "map('k', 1.50) AS m", "decimal(2.25) AS d", "date'2026-11-17' AS day", "x'ff00' AS raw",
        "cast(null AS STRING) AS nothing",
    )  # fmt: skip
    kept = [name for name in rows.columns if name != "id"]
    encoded = codecs.encode(rows, "avro", columns=["id"], keep=[f"`{name}`" for name in kept])
    schema = of_columns(arrow_schema(rows.select("id").schema), "R")
    decoded = codecs.decode(encoded, "avro", schema=schema)
    assert decoded.columns == [*kept, "id", "_error"]
    assert [field.dataType for field in decoded.schema][: len(kept)] == [rows.schema[name].dataType for name in kept]
    named = [f"`{name}`" for name in (*kept, "id")]
    assert sorted(map(str, decoded.select(*named).collect())) == sorted(map(str, rows.select(*named).collect()))


def test_a_watermark_and_types_that_arrow_has_not_stay_beside_what_is_decoded(spark: SparkSession) -> None:
    schema = of_columns(arrow_schema(spark.range(1).schema), "R")
    rows = codecs.encode(spark.range(3), "avro", schema=schema)
    decoded = codecs.decode(rows.selectExpr("value", "parse_json('{\"a\": 1}') AS `v.w`"), "avro", schema=schema)
    assert [row[0] for row in decoded.selectExpr("to_json(`v.w`)").collect()] == ['{"a":1}'] * 3
    stream = spark.readStream.format("rate").load().selectExpr("timestamp AS at", "binary(string(value)) AS value")
    decoded = codecs.decode(stream.withWatermark("at", "3 seconds"), "avro", schema=schema)
    assert decoded.schema["at"].metadata == {"spark.watermarkDelayMs": 3000}


def test_what_is_no_avro_has_an_error_in_its_row_alone(spark: SparkSession) -> None:
    schema = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
    rows = spark.createDataFrame([(1, b"\x02"), (2, b"\xff"), (3, None)], "n INT, value BINARY")
    found = codecs.decode(rows, "avro", schema=schema).sort("n").collect()
    assert [(row.n, row.id, row._error) for row in found] == [
        (1, 1, None), (2, None, "is not Avro of the schema: it breaks off"), (3, None, None),
    ]  # fmt: skip


def test_a_message_of_protobuf_becomes_columns_and_back(spark: SparkSession) -> None:
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="shop.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    message.field.add(name="id", number=1, type=3, label=1)
    message.field.add(name="tags", number=2, type=9, label=3)
    rows = spark.createDataFrame([(b"\x08\x07\x12\x01a\x12\x01b",), (b"\x0a\x00",)], "value BINARY")
    decoded = codecs.decode(rows, "protobuf", descriptors=files.SerializeToString(), message="shop.Order")
    assert decoded.dtypes == [("id", "bigint"), ("tags", "array<string>"), ("_error", "string")]
    assert [(row.id, row.tags, row._error) for row in decoded.collect()] == [
        (7, ["a", "b"], None),
        (None, None, "is no message 'shop.Order': it has a field 'id' of another type than its message says"),
    ]
    rows = decoded.where("_error IS NULL").drop("_error")
    encoded = codecs.encode(rows, "protobuf", descriptors=files.SerializeToString(), message="shop.Order")
    assert [bytes(row.value) for row in encoded.collect()] == [b"\x08\x07\x12\x01a\x12\x01b"]
    with pytest.raises(OptionError, match=r"the message .shop\.Order. has no field 'n', which is a column"):
        codecs.encode(spark.range(1).toDF("n"), "protobuf", descriptors=files.SerializeToString(), message="shop.Order")
