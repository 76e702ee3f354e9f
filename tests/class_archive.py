"""Spark's classes as an archive that a JVM maps into its memory: one starts in half the time then, and the tests start
some fifty. Made once for a Java and a Spark, by a program that loads what tests load: python tests/class_archive.py.
A JVM that it does not fit, as one of another Spark, starts without.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

CACHE = Path(__file__).parent.parent / ".cache"
# No JVM of the tests lives long enough to earn back what its optimising compiler costs: 40 % of its time.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def archive() -> Path:
    """Where the archive is, or would be."""
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r"\(build ([^)]+)\)", java)
    return CACHE / f"spark-{pyspark.__version__}-java-{version[1] if version else 'unknown'}.jsa"


def java_options() -> str:
    """What the JVMs of tests are started with. The archive need not be there yet, and need not fit: Java would say so
    in the midst of what a program prints.
    """
    return f"{SHORT_LIVED} -XX:SharedArchiveFile={archive()} -Xlog:disable"


def load_classes() -> None:
    """Do a little of what tests do, and wait until Java has written the archive."""
    from penstock.spark.session import local_session

    spark = local_session("classes", "local[2]", conf={"spark.sql.shuffle.partitions": "2"})
    with tempfile.TemporaryDirectory() as name:
        rows = spark.range(100).selectExpr("to_json(struct(id)) AS value")
        rows.write.format("journal").option("directory", f"{name}/journal").mode("append").save()
        stream = spark.readStream.format("journal").option("directory", f"{name}/journal").load()
        stream = stream.selectExpr("from_json(string(value), 'id BIGINT') AS v").select("v.*")
        query = stream.writeStream.option("checkpointLocation", f"{name}/checkpoint").trigger(availableNow=True)
        query.format("parquet").start(f"{name}/out").awaitTermination()
    java = spark.sparkContext._gateway.proc  # type: ignore[union-attr] # there is one
    spark.stop()
    java.stdin.close()
    java.wait()


if __name__ == "__main__":
    target = archive()
    if not target.exists():
        target.parent.mkdir(exist_ok=True)
        draft = target.with_suffix(f".{os.getpid()}")
        os.environ["SPARK_SUBMIT_OPTS"] = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={draft} -Xlog:disable"
        load_classes()
        if draft.exists():
            draft.rename(target)
        else:
            print("Java wrote no archive of classes: tests will take longer.", file=sys.stderr)
