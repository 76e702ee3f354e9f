"""Bytes to columns: Avro and Protobuf by Penstock, beside Spark's own `from_avro` and `from_json`, on the same rows.

The bytes lie in a Parquet file. What is timed is a job that reads, decodes and throws the columns away. `bytes` reads
alone, and `through_python` sends the bytes to Python and takes them back as they are: nothing in Python can cost less.
Each way is the same in all but the decoding, and each round goes through all of them.

Spark's `from_avro` and `from_protobuf` are in jars that PySpark comes without. Versions of 4.1.1 work with 4.3, and are
in more mirrors of Maven than newer ones; the figures of one that cannot be had are left out.
"""

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from measure import cpu_seconds, median, processes, save
from penstock import codecs
from penstock.codecs.proto_files import compiled
from penstock.errors import PenstockError
from penstock.session import local_session
from penstock.testing import maven
from spark.jobs import descendants

ROUNDS = 7
JARS = {"avro": "org.apache.spark:spark-avro_2.13:4.1.1", "protobuf": "org.apache.spark:spark-protobuf_2.13:4.1.1"}
BESIDE = (
    ("avro", "from_avro"), ("through_python", "from_avro"), ("avro_beside", "from_avro_beside"), ("avro", "from_json"),
    ("protobuf", "from_protobuf"), ("protobuf", "from_json"),
)  # fmt: skip
AVRO = """{"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"}, {"name": "customer", "type": "string"}, {"name": "amount", "type": "double"},
    {"name": "quantity", "type": "int"}, {"name": "note", "type": ["null", "string"]},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "tags", "type": {"type": "array", "items": "string"}},
    {"name": "address", "type": {"type": "record", "name": "Address", "fields": [
        {"name": "street", "type": "string"}, {"name": "zip", "type": "int"}]}}]}"""
PROTO = """syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Order {
  int64 id = 1; string customer = 2; double amount = 3; int32 quantity = 4; optional string note = 5;
  google.protobuf.Timestamp at = 6; repeated string tags = 7; Address address = 8;
  message Address { string street = 1; int32 zip = 2; }
}"""
COLUMNS = """id BIGINT, customer STRING, amount DOUBLE, quantity INT, note STRING, at TIMESTAMP, tags ARRAY<STRING>,
    address STRUCT<street: STRING, zip: INT>"""
ROWS = (
    "id", "concat('customer-', id % 100000) AS customer", "id / 7 AS amount", "int(id % 90 + 1) AS quantity",
    "if(id % 3 = 0, NULL, concat('leave at the door ', id)) AS note", "timestamp_micros(1790000000000000 + id) AS at",
    "array('new', concat('tag-', id % 50)) AS tags",
    "named_struct('street', concat(id % 500, ' Main Street'), 'zip', int(10000 + id % 80000)) AS address",
)  # fmt: skip


def jars() -> dict[str, str]:
    """What can be had of Spark's own, by format."""
    paths = {}
    for format, coordinate in JARS.items():
        with contextlib.suppress(PenstockError):
            name = f"spark-{format}-4.1.1"
            (jar,) = maven.jars(name, [coordinate], whose="Spark's", why="to compare with", transitive=False)
            paths[format] = str(jar)
    return paths


def spark_seconds() -> float:
    """CPU time of this program, its Spark and its Python workers."""
    ours = set(processes("pyspark")) & set(descendants(os.getpid()))
    return cpu_seconds([os.getpid(), *ours])


def ways(spark: Any, folder: Path, own: set[str]) -> dict[str, Callable[[], Any]]:
    """Columns of each way to decode, made when they are asked for."""
    from pyspark.sql import functions as f

    files = {format: spark.read.parquet(str(folder / format)) for format in ("avro", "protobuf", "json")}
    descriptors = compiled(PROTO)
    mode = {"mode": "PERMISSIVE"}
    keyed = files["avro"].withColumn("key", f.substring("value", 1, 8))
    made: dict[str, Callable[[], Any]] = {
        "bytes": lambda: files["avro"],
        "through_python": lambda: files["avro"].mapInArrow(lambda batches: batches, "value BINARY"),
        "avro": lambda: codecs.decode(files["avro"], "avro", schema=AVRO),
        "avro_beside": lambda: codecs.decode(keyed, "avro", schema=AVRO),
        "protobuf": lambda: codecs.decode(files["protobuf"], "protobuf", descriptors=descriptors, message="Order"),
        "from_json": lambda: files["json"].select(f.from_json("value", COLUMNS).alias("row")).select("row.*"),
    }
    if "avro" in own:
        from pyspark.sql.avro.functions import from_avro

        made["from_avro"] = lambda: files["avro"].select(from_avro("value", AVRO, mode).alias("row")).select("row.*")
        made["from_avro_beside"] = lambda: keyed.select("key", from_avro("value", AVRO, mode).alias("row")).select(
            "key", "row.*"
        )
    if "protobuf" in own:
        from pyspark.sql.protobuf.functions import from_protobuf

        made["from_protobuf"] = lambda: (
            files["protobuf"]
            .select(from_protobuf("value", "Order", options=mode, binaryDescriptorSet=descriptors).alias("row"))
            .select("row.*")
        )
    return made


def write(spark: Any, folder: Path, rows: int) -> None:
    """The same rows in each format, in four files."""
    table = spark.range(0, rows, 1, 4).selectExpr(*ROWS)
    encoded = {
        "avro": codecs.encode(table, "avro", schema=AVRO),
        "protobuf": codecs.encode(table, "protobuf", schema=PROTO),
        "json": codecs.encode(table, "json"),
    }
    for format, values in encoded.items():
        values.write.option("compression", "none").parquet(str(folder / format))


def main() -> dict[str, Any]:
    rows = int(os.environ.get("COUNT", 1_000_000))
    own = jars()
    conf = {"spark.jars": ",".join(own.values())} if own else {}
    spark = local_session("bench", "local[2]", quiet=True, conf=conf)
    rates: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
            write(spark, Path(name), rows)
            each = ways(spark, Path(name), set(own))
            for turn in range(ROUNDS + 2):
                for way, columns in each.items():
                    used, began = spark_seconds(), time.monotonic()
                    columns().write.format("noop").mode("overwrite").save()
                    if turn > 1:  # the first ones are for warming up
                        rates.setdefault(way, []).append(rows / (time.monotonic() - began))
                        cpu.setdefault(way, []).append((spark_seconds() - used) / rows * 1e6)
                print({way: round(values[-1], 2) for way, values in cpu.items()}, flush=True)
    finally:
        spark.stop()
    result: dict[str, Any] = {"rows": rows, "rounds": ROUNDS}
    for way in rates:
        result |= {f"{way}_rate": round(median(rates[way])), f"{way}_us": round(median(cpu[way]), 3)}
    for way, other in BESIDE:
        if other in rates:
            pairs = zip(rates[way], rates[other], strict=True)
            result[f"{way}_of_{other}"] = round(median(ours / theirs for ours, theirs in pairs), 3)
            used = zip(cpu[way], cpu[other], strict=True)
            result[f"{way}_of_{other}_cpu"] = round(median(theirs / ours for ours, theirs in used), 3)
    return result


if __name__ == "__main__":
    save("codecs", main())
