"""A table's options are for the table: not for what is read from it, and not for what its rows are written to."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from nats_servers import Admin, server
from penstock.testing.nats_server import NatsServer

COLUMNS = "value BINARY, headers ARRAY<STRUCT<key STRING, value BINARY>>, timestamp TIMESTAMP, stream STRING, " \
          "sequence BIGINT, subject STRING"  # fmt: skip


class Tables:
    """Two servers with a stream each, and a table for each: `src` on one, with three rows, and `dst` on the other."""

    def __init__(self, spark: SparkSession, here: NatsServer, there: NatsServer, admins: dict[str, Admin]):
        self.spark, self.here, self.there, self.admins = spark, here, there, admins

    def sql(self, text: str) -> Any:
        return self.spark.sql(text)

    def counts(self) -> tuple[int, int]:
        """How many messages are on either server."""
        here, there = (self.admins[name].calls.stream(name.upper()).messages for name in ("src", "dst"))
        return here, there


@pytest.fixture
def tables(spark: SparkSession, nats: NatsServer, tmp_path: Path) -> Iterator[Tables]:
    here = Admin(nats.url)
    with server(tmp_path / "there") as (there, admin):
        here.create("SRC", "src.>")
        here.numbers("SRC", 3, subject="src.n")
        admin.create("DST", "dst.>", "src.>")
        for name, url in (("src", nats.url), ("dst", there.url)):
            options = f"servers '{url}', stream '{name.upper()}', subject '{name}.table', connectTimeout '1s'"
            spark.sql(f"CREATE TABLE {name} USING jetstream OPTIONS ({options})")
        yield Tables(spark, nats, there, {"src": here, "dst": admin})
        for name in ("src", "dst", "listed", "copied", "made"):
            spark.sql(f"DROP TABLE IF EXISTS {name}")
        here.delete("SRC")
    here.close()


def test_columns_of_a_table_take_none_of_its_options_to_another_write(tables: Tables) -> None:
    rows = tables.spark.table("src").select("value")
    with pytest.raises(PySparkException, match="rows have no subject"):  # and not src.table
        rows.write.format("jetstream").option("servers", tables.there.url).mode("append").save()
    rows.write.format("jetstream").option("servers", tables.there.url).option("subject", "dst.x").mode("append").save()
    with pytest.raises(PySparkException, match="given no options, so it does not know where to write"):
        rows.write.format("jetstream").mode("append").save()
    assert tables.counts() == (3, 3)


def test_all_columns_of_a_table_are_refused_in_one_sentence_before_any_task(tables: Tables) -> None:
    writer = tables.spark.table("src").write.format("jetstream").option("servers", tables.there.url)
    with pytest.raises(PySparkException) as caught:
        writer.option("subject", "dst.x").mode("append").save()
    assert "cannot write the columns 'timestamp', 'stream', 'sequence': it writes" in str(caught.value)
    assert "drop('timestamp', 'stream', 'sequence')" in str(caught.value)
    assert "in data_source_write_func" not in str(caught.value), "that is the trace of a task"
    assert tables.counts() == (3, 0)


def test_an_insert_goes_to_the_table_that_it_names_whatever_the_rows_come_from(tables: Tables) -> None:
    tables.sql("INSERT INTO dst (value) SELECT value FROM src")
    tables.sql("INSERT INTO dst BY NAME SELECT value, subject FROM src")
    tables.sql("INSERT INTO dst (value, subject) SELECT value, concat('dst.', sequence) FROM src")
    assert tables.counts() == (3, 9)
    # Rows that fit the table as they are, with another table's metadata: Spark does not say which table is meant.
    typed = "SELECT value, headers, CAST(NULL AS TIMESTAMP) timestamp, CAST(NULL AS STRING) stream, " \
            "CAST(NULL AS BIGINT) sequence, subject FROM src"  # fmt: skip
    sentence = r"does not say which table.*INSERT INTO t \(value, subject\) SELECT value, subject FROM"
    for statement in (f"INSERT INTO dst {typed}", "INSERT INTO dst SELECT * FROM src"):
        with pytest.raises(PySparkException, match=sentence):
            tables.sql(statement)
    with pytest.raises(PySparkException, match=sentence):
        tables.spark.table("src").writeTo("dst").append()
    assert tables.counts() == (3, 9)
    # What the sentence says works.
    tables.sql("INSERT INTO dst (value, subject) SELECT value, subject FROM src")
    tables.sql(f"INSERT INTO dst {typed.replace('SELECT value,', 'SELECT value AS new_value,')}")
    assert tables.counts() == (3, 15)


def test_an_insert_that_fills_what_the_server_gives_is_refused_in_one_sentence(tables: Tables) -> None:
    sentence = "jetstream cannot write the columns 'timestamp', 'sequence', which the server gives. Name the columns"
    with pytest.raises(PySparkException, match=sentence):  # seen at once: these are never null
        tables.sql("INSERT INTO dst (value, timestamp, sequence) VALUES (binary('x'), now(), 7)")
    with pytest.raises(PySparkException, match=sentence):  # seen in the rows
        tables.sql("INSERT INTO dst (value, timestamp, sequence) SELECT value, timestamp, sequence FROM src")
    assert tables.counts() == (3, 0)


def test_an_insert_may_be_known_again_but_a_table_gives_no_name_to_all_of_its_inserts(tables: Tables) -> None:
    rows = tables.spark.table("src").selectExpr("value", "'dst.y' AS subject")
    for version in (0, 0, 1, 1):
        rows.writeTo("dst").option("txnAppId", "to-dst").option("txnVersion", version).append()
        tables.sql(f"INSERT INTO dst WITH (txnAppId 'by-sql', txnVersion '{version}') (value) SELECT value FROM src")
    assert tables.counts() == (3, 12)
    options = f"servers '{tables.there.url}', stream 'DST', subject 'dst.x', txnAppId 'a', txnVersion '0'"
    with pytest.raises(PySparkException, match=r"belong to one write.*Give them with the write: df\.writeTo"):
        tables.sql(f"CREATE TABLE made USING jetstream OPTIONS ({options})")


def test_a_table_of_core_nats_takes_an_insert(tables: Tables) -> None:
    options = f"servers '{tables.there.url}', subjects 'dst.>', subject 'dst.core'"
    tables.sql(f"CREATE TABLE made USING nats OPTIONS ({options})")
    tables.sql("INSERT INTO made (value) VALUES (binary('x'))")
    assert tables.counts() == (3, 1)


def test_a_stream_into_a_table_says_that_it_needs_options(tables: Tables, tmp_path: Path) -> None:
    rows = tables.spark.readStream.option("startingOffsets", "earliest").table("src").select("value", "subject")

    def run(name: str, **options: str) -> None:
        writer = rows.writeStream.option("checkpointLocation", str(tmp_path / name)).options(**options)
        writer.trigger(availableNow=True).toTable("dst").awaitTermination()

    with pytest.raises(PySparkException, match=r"add them as well: writeStream\.option\(\.\.\.\)\.toTable\('t'\)"):
        run("a")
    assert tables.counts() == (3, 0)
    run("b", servers=tables.there.url)
    assert tables.counts() == (3, 3)


def test_a_table_reads_itself_and_takes_more_options_but_no_other_server(tables: Tables) -> None:
    assert tables.sql("SELECT * FROM src").count() == 3
    assert tables.sql("SELECT * FROM src WITH (maxRecords '2')").count() == 2
    assert tables.sql(f"SELECT * FROM src WITH (servers '{tables.here.url}')").count() == 3
    with pytest.raises(PySparkException, match="'servers' is not that of the table whose columns these are"):
        tables.sql(f"SELECT * FROM src WITH (servers '{tables.there.url}')").count()
    with pytest.raises(PySparkException, match="'servers' is not that of the table whose columns these are"):
        tables.sql(f"INSERT INTO src WITH (servers '{tables.there.url}') (value) VALUES (binary('x'))")
    reader = tables.spark.read.format("jetstream").options(servers=tables.there.url, stream="DST")
    with pytest.raises(PySparkException, match="Leave it out, or give the columns as text"):
        reader.schema(tables.spark.table("src").schema).load().count()
    assert reader.schema("value BINARY").load().count() == 0


def test_a_copy_of_a_table_holds_its_options_but_nobody_acts_on_them(tables: Tables) -> None:
    tables.sql("CREATE TABLE copied USING parquet AS SELECT * FROM src")
    files = [path.removeprefix("file:") for path in tables.spark.table("copied").inputFiles()]
    footer = json.loads(pq.read_schema(files[0]).metadata[b"org.apache.spark.sql.parquet.row.metadata"])
    held = footer["fields"][0]["metadata"]["penstock.options"]
    assert set(json.loads(held)) == {"servers", "stream", "subject", "connecttimeout"}  # never a secret
    for rows in (tables.spark.table("copied"), tables.spark.read.parquet(*files)):
        with pytest.raises(PySparkException, match="given no options, so it does not know where to write"):
            rows.write.format("jetstream").mode("append").save()
    with pytest.raises(PySparkException, match="that lists columns or has AS SELECT"):
        tables.sql(f"CREATE TABLE made USING jetstream OPTIONS (servers '{tables.there.url}') AS SELECT * FROM src")
    assert not tables.spark.catalog.tableExists("made")
    assert tables.counts() == (3, 0)


def test_a_table_with_its_columns_listed_says_that_spark_forgot_its_options(tables: Tables) -> None:
    options = f"servers '{tables.there.url}', stream 'DST', subject 'dst.x'"
    tables.sql(f"CREATE TABLE listed ({COLUMNS}) USING jetstream OPTIONS ({options})")
    for statement in ("SELECT * FROM listed", "INSERT INTO listed (value) VALUES (binary('x'))"):
        with pytest.raises(
            PySparkException,
            match=r"lists columns or has AS SELECT: Spark drops all options of .* come by themselves",
        ):
            tables.sql(statement).collect()


def test_a_stream_can_be_copied_with_the_drop_that_the_error_says(tables: Tables, tmp_path: Path) -> None:
    rows = tables.spark.readStream.format("jetstream").option("servers", tables.here.url).option("stream", "SRC")
    frame = rows.option("startingOffsets", "earliest").load()

    def copy(frame: Any) -> None:
        writer = frame.writeStream.format("jetstream").option("servers", tables.there.url)
        writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
        writer.start().awaitTermination()

    with pytest.raises(PySparkException, match="cannot write the columns") as caught:
        copy(frame.withColumn("extra", frame.sequence))
    assert "in data_source_write_func" not in str(caught.value), "that is the trace of a task"
    drop = str(caught.value).partition("out with ")[2].partition(", or put")[0]
    assert drop == "drop('timestamp', 'stream', 'sequence', 'extra')"
    copy(eval(f"frame.{drop}", {"frame": frame.withColumn("extra", frame.sequence)}))
    assert tables.counts() == (3, 3)
