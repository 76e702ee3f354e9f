"""`penstock run` on a standalone cluster, and through Spark Connect."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from nats_servers import Admin
from penstock.testing.nats_server import NatsServer
from spark.pipeline_runs import ONCE, Command, bodies, written
from spark.test_places import EXECUTOR, cluster

ROWS = 500
DOUBLE = """
def rows(df):
    return df.mapInArrow(doubled, "id BIGINT, twice BIGINT")

def doubled(batches):
    import pyarrow as pa
    for batch in batches:
        ids = batch.column("id").to_pylist()
        yield pa.record_batch({"id": ids, "twice": [2 * i for i in ids]})
"""


@pytest.fixture
def orders(admin: Admin, stream: str) -> Iterator[str]:
    """A stream of orders, one of which is not JSON, and streams for copies and dead letters."""
    for name in (stream, f"{stream}OUT", f"{stream}DEAD"):
        admin.create(name)
    values = [json.dumps({"id": i}).encode() for i in range(ROWS)]
    values[41] = b"{bad"
    admin.publish((f"{stream}.n", value) for value in values)
    yield stream
    for name in (stream, f"{stream}OUT", f"{stream}DEAD"):
        admin.delete(name)


def to_all(nats: NatsServer, stream: str) -> str:
    """A pipeline with two sinks and dead letters, and a function in a module beside it."""
    return f"""
[jetstream]
servers = "{nats.url}"

[source]
type = "jetstream"
identifier = "{stream}"
batch_size = 200
parallelism = 2
input_schema = {{ type = "json", schema = "id BIGINT" }}

[[transforms]]
python = "double:rows"

[[sinks]]
type = "jetstream"
subject = "{stream}OUT.x"

[[sinks]]
type = "parquet"
identifier = "files"

[errors]
mode = "dead_letter"
sink = {{ type = "jetstream", subject = "{stream}DEAD.x" }}
{ONCE}"""


def check(command: Command, nats: NatsServer, stream: str, folder: Path) -> None:
    """Every row is there, once in each sink."""
    assert f"orders: done, {ROWS} records, 1 error" in command.said()
    expected = [(i, 2 * i) for i in range(ROWS) if i != 41]
    found = [json.loads(body) for body in bodies(nats, f"{stream}OUT")]
    assert sorted((each["id"], each["twice"]) for each in found) == expected
    rows = ds.dataset(str(folder / "files"), format="parquet").to_table(["id", "twice"]).to_pylist()
    assert sorted((row["id"], row["twice"]) for row in rows) == expected
    assert bodies(nats, f"{stream}DEAD") == [b"{bad"]


def test_a_standalone_cluster_runs_a_pipeline_with_two_sinks(nats: NatsServer, orders: str, folder: Path) -> None:
    (folder / "double.py").write_text(DOUBLE)
    conf = "\n".join(f'"{name}" = "{value}"' for name, value in EXECUTOR.items())
    file = written(folder, "orders", f"{to_all(nats, orders)}\n[spark.conf]\n{conf}\n")
    with cluster(folder, sys.executable, 2) as address:
        command = Command(folder, file, more=("--master", address))
        assert command.run() == 0, command.said()
        executors = set(folder.glob("work*/app-*/*"))
    check(command, nats, orders, folder)
    assert len({path.parts[len(folder.parts)] for path in executors}) == 2, "both workers must have had an executor"


def test_spark_connect_runs_a_pipeline_with_two_sinks(nats: NatsServer, orders: str, folder: Path) -> None:
    (folder / "double.py").write_text(DOUBLE)
    file = written(folder, "orders", to_all(nats, orders))
    command = Command(folder, file, more=("--remote", "local[2]"))
    assert command.run(PYSPARK_PYTHON=sys.executable, SPARK_TESTING="1") == 0, command.said()
    check(command, nats, orders, folder)
