"""Pipelines into Delta Lake: jars that Spark does not bring, in a Spark of their own."""

import json
from pathlib import Path

import pyspark
import pytest

from penstock.errors import PenstockError
from penstock.testing.maven import jars
from spark.pipeline_runs import ONCE, Command, batches, written

ROWS = 60
# No version of Delta Lake is made for Spark 4.3 yet. 4.4.0, which is for 4.2, writes there, and cannot read what it
# wrote: NoSuchMethodError, LogicalRDD.<init>.
DELTA, SPARK = "4.4.0", "4.2"
COORDINATE = f"io.delta:delta-spark_{SPARK}_2.13:{DELTA}"
NEEDED = ("delta-", "RoaringBitmap", "shims", "unitycatalog")  # of what it depends on, Spark brings the rest


@pytest.fixture
def delta() -> str:
    """What a pipeline file says to have format("delta")."""
    if not pyspark.__version__.startswith(f"{SPARK}."):
        pytest.skip(f"Delta Lake {DELTA} is for Spark {SPARK}, and does not run on {pyspark.__version__}")
    try:
        files = jars(f"delta-{DELTA}", [COORDINATE], whose="Delta Lake's", why="for a test of pipelines")
    except PenstockError as error:
        pytest.skip(str(error))
    paths = ",".join(str(file) for file in files if file.name.startswith(NEEDED))
    return (
        f'[spark.conf]\n"spark.jars" = "{paths}"\n'
        '"spark.sql.extensions" = "io.delta.sql.DeltaSparkSessionExtension"\n'
        '"spark.sql.catalog.spark_catalog" = "org.apache.spark.sql.delta.catalog.DeltaCatalog"\n'
    )


def stored(table: Path) -> list[int]:
    """The ids in a Delta table, by its log: of every file that was added and not removed."""
    from pyarrow import parquet

    files: set[str] = set()
    for entry in sorted((table / "_delta_log").glob("*.json")):
        for line in entry.read_text().splitlines():
            action = json.loads(line)
            files |= {action["add"]["path"]} if "add" in action else set()
            files -= {action["remove"]["path"]} if "remove" in action else set()
    return sorted(id for file in files for id in parquet.read_table(table / file)["id"].to_pylist())


@pytest.mark.parametrize("more", ["", '[[sinks]]\ntype = "noop"\n'], ids=["alone", "beside another sink"])
def test_a_batch_that_is_run_again_is_in_a_delta_table_once(delta: str, folder: Path, more: str) -> None:
    """Alone, Spark and Delta Lake know the batch; beside another sink, it is known by txnAppId and txnVersion."""
    (folder / "in").mkdir()
    for number in range(3):
        lines = (json.dumps({"id": id}) for id in range(number * 20, number * 20 + 20))
        (folder / "in" / f"{number}.json").write_text("\n".join(lines))
    text = f"""
[source]
type = "file_system"
identifier = "in/*.json"
batch_size = 1
input_schema = {{ type = "json", schema = "id BIGINT" }}

[[sinks]]
type = "delta"
identifier = "out"
{more}
{delta}
"""
    command = Command(folder, written(folder, "to-delta", text + ONCE))
    location = folder / ".penstock" / "to-delta"
    assert command.run() == 0, command.said()
    assert batches(location) == (2, 2)
    assert stored(folder / "out") == list(range(ROWS))
    for file in (location / "commits").glob("*2*"):
        file.unlink()
    assert command.run() == 0, command.said()
    assert batches(location) == (2, 2), "the batch was not run again"
    assert stored(folder / "out") == list(range(ROWS))
