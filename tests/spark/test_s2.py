"""S2 under Spark: kill it in the middle; changes to a table written, read back, kept; SQL."""

import itertools
import re
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from s2_sdk import Record

from penstock import s2 as tables
from penstock.connectors.s2 import S2Streams
from penstock.testing.proxy import Proxy
from penstock.testing.s2_lite import S2Lite
from s2_servers import Cloud, S2Admin, lite
from spark.jobs import Job, kill_application, wait

_names = itertools.count(1)
Server = S2Lite | Cloud
ROWS = 40_000
TABLE = "_action STRING, amount INT, id STRING, note STRING"


@pytest.fixture
def name(spark: SparkSession) -> str:
    spark.dataSource.register(S2Streams)
    return f"spark-{time.time_ns()}-{next(_names)}"


def _numbers(admin: S2Admin, prefix: str) -> list[int]:
    return [int(body) for stream in admin.names(prefix) for body in admin.bodies(stream)]


@pytest.mark.parametrize("target", ["{name}-out", "{name}-out/{{partition}}"])
def test_a_driver_killed_in_mid_batch_leaves_every_row_once(
    spark: SparkSession, s2: Server, s2_admin: S2Admin, name: str, tmp_path: Path, target: str
) -> None:
    s2_admin.make(name)
    s2_admin.append(name, [b"%d" % i for i in range(ROWS)])
    job = Job(
        tmp_path,
        {**s2.options(), "streams": name, "startingOffsets": "earliest", "maxRecordsPerTrigger": "8000",
         "minPartitions": "2"},
        sink={**s2.options(), "stream": target.format(name=name), "ensureStream": "true", "driverBytes": "200000"},
        master="local[2,4]",
        format="s2",
    )  # fmt: skip
    with job.running() as process:
        wait(lambda: job.in_batch(3), process)
        time.sleep(0.05)
        kill_application(process)
    before = len(_numbers(s2_admin, f"{name}-out"))
    assert 0 < before < ROWS, "it was killed too early or too late to prove anything"
    job.go_on(spark)
    assert sorted(_numbers(s2_admin, f"{name}-out")) == list(range(ROWS))
    for stream in s2_admin.names(f"{name}-out/"):
        found = [int(body) for body in s2_admin.bodies(stream)]
        assert found == sorted(found), "a task has its stream to itself, and its rows are in order"


def _options(s2: Server, name: str, **more: Any) -> dict[str, Any]:
    return {**s2.options(), "mode": "upsert", "keyColumns": "id", **more}


def _changes(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(
        [("u", 1, "a", "x"), ("u", 2, "b", None), ("u", 3, "a", "y"), ("d", None, "b", None), ("u", 4, "c", "z")],
        TABLE,
    ).coalesce(1)


def test_changes_are_written_read_back_and_kept(
    spark: SparkSession, s2: Server, s2_admin: S2Admin, name: str, tmp_path: Path
) -> None:
    s2_admin.make(name)
    _changes(spark).write.format("s2").options(**_options(s2, name, stream=name)).mode("append").save()
    s2_admin.append(name, [Record(b"not ours")])
    raw = [(dict(record.headers).get(b"@key"), dict(record.headers).get(b"@action"), record.body)
           for record in s2_admin.read(name)]  # fmt: skip
    assert raw == [
        (b'{"id":"a"}', b"u", b'{"amount":1,"note":"x"}'),
        (b'{"id":"b"}', b"u", b'{"amount":2,"note":null}'),
        (b'{"id":"a"}', b"u", b'{"amount":3,"note":"y"}'),
        (b'{"id":"b"}', b"d", b""),
        (b'{"id":"c"}', b"u", b'{"amount":4,"note":"z"}'),
        (None, None, b"not ours"),
    ]
    reader = spark.read.format("s2").options(**_options(s2, name, streams=name))
    # Keys first or last, all or some: the schema says which column is what.
    for columns in (TABLE, "id STRING, amount INT, _action STRING", "amount INT, _sequence BIGINT, id STRING"):
        rows = [row.asDict() for row in reader.schema(columns).load().collect()]
        assert [row["id"] for row in rows] == ["a", "b", "a", "b", "c"]
        assert [row["amount"] for row in rows] == [1, 2, 3, None, 4]
    now = reader.schema("id STRING, note STRING, amount INT").option("snapshot", "true").load()
    assert sorted(map(tuple, now.collect())) == [("a", "y", 3), ("c", "z", 4)]
    with pytest.raises(PySparkException, match=r"record 5 of stream .* is no change to a table"):
        reader.schema(TABLE).option("strict", "true").load().collect()


def test_a_shuffle_leaves_no_old_values_where_its_rows_are_sorted_by_version(
    spark: SparkSession, s2: Server, name: str
) -> None:
    """Versions that come in another order than the tasks before the shuffle, as they may on any cluster."""
    rows = spark.range(4000, numPartitions=8).selectExpr(
        "id % 50 AS id", "(id + 2000) % 4000 AS version", "IF(id % 50 = 7 AND id = 1957, 'd', 'u') AS _action"
    )
    latest = {row.id: row.version for row in rows.groupBy("id").max("version").toDF("id", "version").collect()}
    latest.pop(7)  # its last change deletes it
    mixed = rows.repartition(3, "id")

    def table(frame: DataFrame, stream: str, **options: str) -> dict[int, int]:
        given = {**_options(s2, name), "stream": f"{name}/{stream}/{{partition}}"}
        frame.write.format("s2").options(**given, **options, ensureStream="true").mode("append").save()
        reader = spark.read.format("s2").options(**given, streamPrefix=f"{name}/{stream}/", snapshot="true")
        found = reader.schema("id BIGINT, version BIGINT").load().collect()
        assert len({row.id for row in found}) == len(found), "a key is in one stream only"
        return {row.id: row.version for row in found}

    ordered = mixed.sortWithinPartitions("version", "id")
    assert table(ordered, "ordered", versionColumn="version") == latest
    assert table(mixed, "mixed") != latest, "this shuffle kept the order, so nothing was proven"
    with pytest.raises(PySparkException, match=r"has an older 'version' \(versionColumn\) than the row before it"):
        table(mixed, "refused", versionColumn="version")


def test_a_wide_table_of_every_type_comes_back_as_it_was(
    spark: SparkSession, s2: Server, s2_admin: S2Admin, name: str
) -> None:
    s2_admin.make(name)
    rows = spark.range(4).selectExpr(
        "id", "date_add(date'0001-01-01', int(id * 1217000)) AS day", "id % 2 = 0 AS flag", "tinyint(id - 128) AS i1",
        "smallint(id + 32764) AS i2", "int(id) AS i4", "float(0.1) AS f", "1 / (id + 3) AS d",
        "CASE id WHEN 0 THEN double('NaN') WHEN 1 THEN double('-Infinity') WHEN 2 THEN -0.0D END AS odd",
        "12345678901234567.123456789BD * (id - 1) AS number",
        "CAST('98765432101234567890.123456789012345678' AS DECIMAL(38,18)) AS exact",
        """concat('quote " and \\\\ and é', char(10), id) AS text""", "unhex('00ff80') AS bytes",
        "timestamp'0001-01-01 00:00:00.000001Z' AS early", "timestamp'9999-12-31 23:59:59.999999Z' AS late",
        "timestamp_ntz'0999-02-03 04:05:06.7' AS local",
        "array(date'2026-11-15', NULL) AS days", "IF(id = 0, NULL, CAST(array() AS ARRAY<INT>)) AS none",
        "map('a', 1.10BD, 'b', NULL) AS amounts", "map('x', map('y', unhex('01'))) AS deep",
        "named_struct('b', unhex('ff'), 'when', array(named_struct('at', timestamp'2026-11-15 12:00:00Z'))) AS nested",
        "IF(id = 1, NULL, named_struct('n', 0.0000001BD)) AS small",
        *(f"IF(id = {i % 4}, NULL, id + {i}) AS c{i}" for i in range(100)),
    )  # fmt: skip
    options = {**s2.options(), "stream": name, "mode": "upsert", "keyColumns": "id,day"}
    rows.coalesce(1).write.format("s2").options(**options).mode("append").save()
    reader = spark.read.format("s2").options(**options).schema(rows.schema)
    everything = "to_json(struct(*), map('ignoreNullFields', 'false')) AS row"
    expected = sorted(row.row for row in rows.selectExpr(everything).collect())
    for snapshot in ("false", "true"):
        back = reader.option("snapshot", snapshot).load()
        assert sorted(row.row for row in back.selectExpr(everything).collect()) == expected


def test_columns_that_would_not_come_back_are_refused_together_and_what_is_told_works(
    spark: SparkSession, s2: Server, s2_admin: S2Admin, name: str
) -> None:
    s2_admin.make(name)
    rows = spark.sql(
        "SELECT 'a' AS id, map(1, 'x') AS codes, INTERVAL '1 2:3:4' DAY TO SECOND AS span, NULL AS nothing, "
        "array(INTERVAL '1' DAY) AS spans, timestamp'2026-11-15 12:00:00Z' AS _timestamp, 5 AS timestamp, 7 AS v"
    )
    options = {**s2.options(), "stream": name, "mode": "upsert", "keyColumns": "id"}
    with pytest.raises(PySparkException) as told:
        rows.write.format("s2").options(**options).mode("append").save()
    paste = re.search(r"Write them otherwise: (\.selectExpr\(.*\))", str(told.value))
    assert paste is not None, str(told.value)
    other = eval(f"rows{paste[1]}", {"rows": rows})
    other.write.format("s2").options(**options).mode("append").save()
    back = spark.read.format("s2").options(**options).schema(other.schema).load().first()
    assert back == other.first()
    assert (back.codes[0].key, back.timestamp, back.v) == (1, 5, 7)
    late = spark.sql("SELECT 'a' AS id, make_date(10000, 1, 1) AS day")
    with pytest.raises(PySparkException, match=r"row 0 of .* has a day outside of the years 1 to 9999 in 'day'"):
        late.write.format("s2").options(**options).mode("append").save()


def test_a_table_is_kept_in_a_stream_by_sparks_state(
    spark: SparkSession, s2: Server, s2_admin: S2Admin, name: str, tmp_path: Path
) -> None:
    s2_admin.make(name)
    _changes(spark).write.format("s2").options(**_options(s2, name, stream=name)).mode("append").save()
    stream = (
        spark.readStream.format("s2")
        .options(**_options(s2, name, streams=name), startingOffsets="earliest", maxRecordsPerTrigger=2)
        .schema(f"{TABLE}, _sequence BIGINT")
        .load()
    )
    kept: list[dict[str, int]] = []

    def keep(frame: DataFrame, batch: int) -> None:
        kept.append({row.id: row.amount for row in tables.current(frame).collect()})

    query = (
        tables.materialize(stream, "id")  # as ["id"]
        .writeStream.outputMode("complete")
        .foreachBatch(keep)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert kept[-1] == {"a": 3, "c": 4}
    assert {"a": 1, "b": 2} in kept
    with pytest.raises(PySparkException, match="leave out 'snapshot' and use"):
        spark.readStream.format("s2").options(**_options(s2, name, streams=name), snapshot="true").schema(
            TABLE
        ).load().writeStream.format("noop").option(
            "checkpointLocation", str(tmp_path / "c2")
        ).start().awaitTermination()


def test_tables_of_records_and_of_changes_in_sql(spark: SparkSession, s2: Server, s2_admin: S2Admin, name: str) -> None:
    s2_admin.make(name)
    s2_admin.make(f"{name}-changes")
    where = ", ".join(f"{key} '{value}'" for key, value in s2.options().items())
    table = name.replace("-", "_")
    spark.sql(f"CREATE TABLE {table} USING s2 OPTIONS ({where}, stream '{name}')")
    spark.sql(
        f"CREATE TABLE {table}_changes USING s2 OPTIONS ({where}, streams '{name}-changes', "
        "mode 'upsert', keyColumns 'id', columns 'id STRING, amount INT, _action STRING')"
    )
    try:
        spark.sql(f"INSERT INTO {table} (value) VALUES (binary('one')), (binary('two'))")
        found = spark.sql(f"SELECT string(value) AS v FROM {table} WHERE sequence >= 1").collect()
        assert [row.v for row in found] == ["two"]
        spark.sql(f"INSERT INTO {table}_changes VALUES ('a', 1, 'u'), ('b', 2, 'u')")
        spark.sql(f"INSERT INTO {table}_changes VALUES ('a', NULL, 'd')")
        assert spark.sql(f"SELECT * FROM {table}_changes").count() == 3
        now = spark.sql(f"SELECT id, amount FROM {table}_changes WITH (snapshot 'true')").collect()
        assert [tuple(row) for row in now] == [("b", 2)]
    finally:
        spark.sql(f"DROP TABLE {table}")
        spark.sql(f"DROP TABLE {table}_changes")


def test_a_change_is_stored_as_the_seed_shows_it(spark: SparkSession, s2: Server, s2_admin: S2Admin, name: str) -> None:
    s2_admin.make(name)
    # The last record of a batch has a stamp besides.
    rows = spark.createDataFrame([("265", 4), ("266", 5)], "index STRING, content INT").coalesce(1)
    options = {**s2.options(), "mode": "upsert", "keyColumns": "index", "stream": name}
    rows.write.format("s2").options(**options).mode("append").save()
    record = s2_admin.read(name)[0]
    assert record.headers == [(b"@key", b'{"index":"265"}'), (b"@action", b"u")]
    assert record.body == b'{"content":4}'


def test_a_single_write_reads_nothing_that_was_there_before(
    spark: SparkSession, s2: Server, s2_admin: S2Admin, name: str
) -> None:
    s2_admin.make(name)
    s2_admin.append(name, [b"x" * 1000] * 2000)
    rows = spark.range(3, numPartitions=1).selectExpr("string(id) AS value")
    with Proxy(lite(s2).port) as proxy:
        for driver_bytes in ("1", "4mb"):  # by its task, and by the driver
            options = {**s2.options(), "endpoint": f"http://127.0.0.1:{proxy.port}", "stream": name}
            rows.write.format("s2").options(**options, driverBytes=driver_bytes).mode("append").save()
        assert proxy.passed < 50_000
    assert s2_admin.bodies(name)[2000:] == [b"0", b"1", b"2"] * 2


def test_a_wrong_port_is_told_at_once_when_writing(spark: SparkSession, name: str, tmp_path: Path) -> None:
    options = {"basin": "some-basin", "endpoint": "http://127.0.0.1:1", "stream": "x", "reconnectTimeout": "10m"}
    with pytest.raises(PySparkException, match=r"cannot connect to 127.0.0.1:1"):
        spark.range(3).selectExpr("string(id) AS value").write.format("s2").options(**options).mode("append").save()
    rate = spark.readStream.format("rate").option("rowsPerSecond", 10).load().selectExpr("string(value) AS value")
    query = rate.writeStream.format("s2").options(**options, checkpointLocation=str(tmp_path)).start()
    with pytest.raises(PySparkException, match=r"cannot connect to 127.0.0.1:1"):
        query.awaitTermination(60)


def test_many_small_streams_are_packed_into_few_tasks(
    spark: SparkSession, s2: Server, s2_admin: S2Admin, name: str
) -> None:
    s2_admin.make_all([f"{name}/{i:03}" for i in range(60)])
    rows = spark.range(600, numPartitions=1).selectExpr(
        "string(id) AS value", f"concat('{name}/', lpad(id % 60, 3, '0')) AS stream"
    )
    rows.write.format("s2").options(**s2.options()).mode("append").save()
    frame = spark.read.format("s2").options(**s2.options(), streamPrefix=f"{name}/").load()
    assert frame.rdd.getNumPartitions() == 1
    assert sorted(int(row.value) for row in frame.collect()) == list(range(600))
    some = spark.read.format("s2").options(**s2.options(), streamPrefix=f"{name}/", maxRecordsPerPartition=100).load()
    assert some.rdd.getNumPartitions() == 6


def test_a_predicate_on_the_stream_reads_only_that(
    spark: SparkSession, s2: Server, s2_admin: S2Admin, name: str
) -> None:
    for suffix in ("a", "ab", "b"):
        s2_admin.make(f"{name}/{suffix}")
        s2_admin.append(f"{name}/{suffix}", [suffix.encode()])
    frame = spark.read.format("s2").options(**s2.options(), streamPrefix=f"{name}/").load()
    for condition, found in (
        (f"stream = '{name}/a'", ["a"]),
        (f"stream IN ('{name}/a', '{name}/b')", ["a", "b"]),
        (f"stream LIKE '{name}/a%'", ["a", "ab"]),
        ("stream = 'elsewhere'", []),
    ):
        assert sorted(row.value.decode() for row in frame.where(condition).collect()) == found, condition
