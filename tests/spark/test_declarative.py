"""The project of docs/declarative-pipelines.md, run twice by the `spark-pipelines` of the Spark that is installed.

The first run has the page's files and no others. Before the second, new orders come, and an exported pipeline is added.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

import penstock
from nats_servers import Admin
from penstock.cli.peek import newest
from penstock.connectors.jetstream import JetStream
from penstock.pipelines.load import load
from penstock.pipelines.project import project
from penstock.testing.nats_server import NatsServer, free_port
from projects import DECLARATIVE, files
from spark.jobs import committed, descendants, kill

LEAN = Path(penstock.__file__).parent / "spark" / "lean"
GUARDED = 'authorization {{ user: "ann", password: "hunter2" }}\njetstream {{ store_dir: "{}" }}\n'
ADDED = 200


@dataclass
class Run:
    """What a run said, and what there is after it."""

    said: str
    orders: list[tuple[int, str, float]]
    sums: dict[str, int]
    eu: list[int]
    large: list[tuple[str, int]]


@dataclass
class Runs:
    """Both runs, and what the exported pipeline wrote in the second."""

    first: Run
    second: Run
    exported: list[tuple[str, int]]
    project: Path


def block(language: str) -> str:
    """The first block of the page in a language."""
    found = re.search(rf"^```{language}\n(.*?)^```", DECLARATIVE.read_text(), re.DOTALL | re.MULTILINE)
    assert found
    return found[1]


@contextmanager
def serving(folder: Path) -> Iterator[None]:
    """The page's server with its orders."""
    command = [sys.executable, str(folder / "server.py")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin
    assert process.stdout
    try:
        assert process.stdout.readline().startswith("1000 orders are there")
        yield
    finally:
        process.communicate("\n", timeout=30)


def run(folder: Path, command: str, servers: str, **env: str) -> Run:
    """The page's command in the project's folder, to its end."""
    own = {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(LEAN), os.environ.get("PYTHONPATH", "")])),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_TESTING": "1",  # a port of its own, and not the one of every other
    }
    with (folder / "run.log").open("w") as log:
        process = subprocess.Popen(
            ["bash", "-c", command], cwd=folder, stdout=log, stderr=log, env=os.environ | own | env
        )
    try:
        code = process.wait(900)
    finally:
        for pid in [*descendants(process.pid), process.pid]:
            kill(pid)
        process.wait()
    said = (folder / "run.log").read_text()
    assert code == 0, said[-5000:]
    warehouse = folder / "spark-warehouse"
    orders, eu = (ds.dataset(committed(warehouse / name)).to_table() for name in ("orders", "eu_orders"))
    sums = ds.dataset(warehouse / "sums", format="parquet").to_table()
    return Run(
        said=said,
        orders=list(zip(*(orders[name].to_pylist() for name in ("id", "region", "amount")), strict=True)),
        sums=dict(zip(sums["region"].to_pylist(), sums["orders"].to_pylist(), strict=True)),
        eu=[json.loads(body)["id"] for body in eu["body"].to_pylist()],
        large=numbers("ORDERS", servers=servers, subjects="orders.*.large"),
    )


def numbers(stream: str, **options: str) -> list[tuple[str, int]]:
    """Subject and body of each message, oldest first. Bodies are numbers."""
    rows = newest(JetStream, {"stream": stream, **options}, 10_000)
    return [(row["subject"], int(row["value"])) for row in rows]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder, port = tmp_path_factory.mktemp("project"), free_port()
    servers = f"nats://127.0.0.1:{port}"
    for name, text in files(DECLARATIVE).items():
        here = text.replace("port=4222", f"port={port}").replace("nats://127.0.0.1:4222", servers)
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(here.replace("/tmp/", f"{folder}/"))
    command = block("sh")
    with serving(folder), NatsServer(folder / "far", config=GUARDED.format(folder / "far" / "data")) as far:
        first = run(folder, command, servers)
        ann = {"user": "ann", "password": "hunter2"}
        with closing(Admin(servers)) as admin, closing(Admin(far.url, **ann)) as owner:
            orders = (json.dumps({"id": 1000 + i, "amount": 300 + i}).encode() for i in range(ADDED))
            admin.publish((f"orders.{'eu' if i % 2 else 'us'}", order) for i, order in enumerate(orders))
            owner.create("FAR", "far.>")
        export(folder, servers, far.url)
        command = command.rstrip().replace(" run", " run --spec exported.yml")
        second = run(folder, command, servers, FAR_PASSWORD="hunter2")
        return Runs(first, second, numbers("FAR", servers=far.url, **ann), folder)


PIPELINE = """
key = "large-orders"

[source]
type = "jetstream"
servers = "{near}"
identifier = "ORDERS"
subjects = "orders.*"

[source.input_schema]
type = "json"
schema = "id INT, amount DOUBLE"

[[transforms]]
sql = "SELECT string(id) AS value, split(_meta.subject, '[.]')[1] AS region FROM input WHERE amount > 400"

[[sinks]]
name = "far"
type = "jetstream"
servers = "{far}"
subject = "far.{{region}}"
user = "ann"
password = {{ env = "FAR_PASSWORD" }}
schema = "text"
"""


def export(folder: Path, near: str, far: str) -> None:
    """Put an exported pipeline into the project: large orders, to a server with a password."""
    file = folder / "large-orders.toml"
    file.write_text(PIPELINE.format(near=near, far=far))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAR_PASSWORD", "hunter2")
        files = project(load([file])[0], f"file://{folder}/orders-storage")
    assert not any("hunter2" in text for text in files.values())
    (folder / "exported.yml").write_text(files.pop("spark-pipeline.yml"))
    for name, text in files.items():
        (folder / name).write_text(text)


def large(orders: list[tuple[int, str, float]]) -> list[tuple[str, int]]:
    return [(f"orders.{region}.large", number) for number, region, amount in orders if amount > 400]


def test_the_first_run_has_every_order_once(runs: Runs) -> None:
    ran = runs.first
    assert sorted(number for number, _, _ in ran.orders) == list(range(1000))
    assert ran.sums == Counter(region for _, region, _ in ran.orders)
    assert sorted(ran.eu) == sorted(number for number, region, _ in ran.orders if region == "eu")
    assert sorted(ran.large) == sorted(large(ran.orders))
    assert ran.large


def test_the_second_run_adds_what_is_new_and_doubles_nothing(runs: Runs) -> None:
    ran = runs.second
    assert sorted(number for number, _, _ in ran.orders) == list(range(1000 + ADDED))
    assert ran.sums == Counter(region for _, region, _ in ran.orders)
    assert sorted(ran.eu) == sorted(number for number, region, _ in ran.orders if region == "eu")
    assert ran.large[: len(runs.first.large)] == runs.first.large
    assert sorted(ran.large) == sorted(large(ran.orders))
    assert len(ran.large) == len(runs.first.large) + ADDED // 2 - 1  # of amounts 300 to 499, those over 400


def test_an_exported_pipeline_runs_and_its_secret_reaches_the_server(runs: Runs) -> None:
    expected = [(f"far.{region}", number) for number, region, amount in runs.second.orders if amount > 400]
    assert sorted(runs.exported) == sorted(expected)
    for file in runs.project.rglob("*"):
        if file.suffix in (".py", ".yml", ".log"):
            assert "hunter2" not in file.read_text(), file


def test_the_page_shows_what_a_run_prints(runs: Runs) -> None:
    """But not each line must have come: Spark may end before it has told that a flow is complete."""
    dated = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d: (.*)$", re.MULTILINE)
    shown, said = dated.findall(block("text")), dated.findall(runs.first.said)
    known = {line.replace("/tmp/orders-pipeline", str(runs.project)) for line in shown}
    assert set(said) <= known
    assert "Flow large_orders is RUNNING." in said
    assert said[-1] == shown[-1] == "Run is COMPLETED."


def test_a_table_in_the_catalog_is_a_stream_in_sql(
    spark: SparkSession, admin: Admin, nats: NatsServer, stream: str
) -> None:
    admin.create(stream)
    admin.numbers(stream, 20)
    name = f"declared_{stream}"
    spark.sql(f"CREATE TABLE {name} USING jetstream OPTIONS (servers '{nats.url}', stream '{stream}')")
    try:
        rows = spark.sql(f"SELECT string(value) AS n FROM STREAM {name} WITH (startingOffsets = 'earliest')")
        query = rows.writeStream.format("memory").queryName(f"read_{name}").trigger(availableNow=True).start()
        query.awaitTermination()
        assert sorted(int(row.n) for row in spark.table(f"read_{name}").collect()) == list(range(20))
    finally:
        spark.sql(f"DROP TABLE {name}")
        admin.delete(stream)
