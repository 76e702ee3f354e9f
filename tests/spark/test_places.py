"""A query and a pipeline on a standalone cluster, through Spark Connect, and where the package is not installed."""

import json
import os
import subprocess
import sys
import sysconfig
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.dataset as ds
import pyspark
import pytest

from nats_servers import Admin
from penstock.testing.nats_server import NatsServer, free_port
from spark.jobs import Job, descendants, kill, wait
from spark.pipeline_runs import ONCE, Command, bodies, written

EXECUTOR = {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"]}


@pytest.fixture
def options(nats: NatsServer, admin: Admin, stream: str) -> dict[str, str]:
    admin.create(stream)
    admin.numbers(stream, 5_000)
    return {"servers": nats.url, "stream": stream, "startingOffsets": "earliest", "minPartitions": "4"}


@contextmanager
def cluster(folder: Path, python: str, workers: int) -> Iterator[str]:
    """A master and its workers; its address."""
    home = Path(pyspark.__file__).parent
    port, page = free_port(), free_port()
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {
        "PYSPARK_PYTHON": python,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    spark_class = str(home / "bin" / "spark-class")
    address = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    commands = [
        [spark_class, f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page)],
        *(
            [spark_class, f"{deploy}.worker.Worker", "--host", "127.0.0.1", "-c", "1", "-m", "1g",
             "--webui-port", str(free_port()), "-d", str(folder / f"work{n}"), address]
            for n in range(workers)
        ),
    ]  # fmt: skip
    running = []
    try:
        with (folder / "cluster.log").open("ab") as log:
            for each in commands:
                running.append(subprocess.Popen(each, env=env, stdout=log, stderr=log))

        def all_workers() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=2) as answer:
                    return answer.read().count(b'"state" : "ALIVE"') >= workers
            except OSError:
                return False

        wait(all_workers)
        yield address
    finally:
        for process in running:
            for pid in [*descendants(process.pid), process.pid]:
                kill(pid)
            process.wait()


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A cluster for the tests that need nothing special of it, and the folder where its workers work."""
    folder = tmp_path_factory.mktemp("cluster")
    with cluster(folder, sys.executable, 2) as address:
        yield address, folder


def test_a_standalone_cluster_of_two_workers_reads_every_row_once(
    standalone: tuple[str, Path], options: dict[str, str], tmp_path: Path
) -> None:
    address, folder = standalone
    before = set(folder.glob("work*/app-*/*"))
    job = Job(tmp_path, options, master=address, conf=EXECUTOR)
    job.run()
    assert sorted(job.values()) == list(range(5_000))
    executors = set(folder.glob("work*/app-*/*")) - before
    assert len({path.parts[len(folder.parts)] for path in executors}) == 2, "both workers must have had an executor"


def test_a_batch_of_core_nats_may_be_larger_than_what_spark_sends_to_a_task(
    standalone: tuple[str, Path], tmp_path: Path
) -> None:
    """170 MB in one batch, which would be one task: Spark sends none that is larger than 128 MB."""
    rows, padding = 170, b"x" * 1_000_000
    with NatsServer(tmp_path / "nats", config="max_pending: 536870912\n") as running:
        options = {"servers": running.url, "subjects": "big", "maxBufferBytes": "512mb"}
        job = Job(
            tmp_path,
            options | {"minRecordsPerTrigger": str(rows)},
            format="nats",
            master=standalone[0],
            select=["string(substring(value, 1, 6)) AS value"],
            available_now=False,
            conf=EXECUTOR,
        )
        with job.running() as process:
            wait(lambda: job.batch_done(0), process)  # it listens from now on
            publisher = Admin(running.url).connection
            for i in range(rows):
                publisher.send(b"PUB big %d\r\n%06d%s\r\n" % (6 + len(padding), i, padding))
                publisher.flush()
            wait(lambda: job.batch_done(1), process)
            publisher.close()
    assert sorted(job.values()) == list(range(rows))


def test_registering_by_value_works_where_the_package_is_not_installed(options: dict[str, str], tmp_path: Path) -> None:
    """The cluster's Python has what Penstock needs, but not Penstock."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    site = next((bare / "lib").glob("python*/site-packages"))
    # A folder named in a .pth file joins the path; its own .pth files, by which Penstock is installed, do not count.
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = str(bare / "bin" / "python")
    absent = subprocess.run(
        [python, "-c", "import pyarrow, pydantic, pyspark; import penstock"], capture_output=True, text=True, env={}
    )
    assert "No module named 'penstock'" in absent.stderr
    with cluster(tmp_path, python, 1) as address:
        job = Job(tmp_path, options, master=address, register=True, batch=True, conf=EXECUTOR)
        job.run(PYSPARK_PYTHON=python, PYSPARK_DRIVER_PYTHON=sys.executable)
    assert sorted(job.values()) == list(range(5_000))


@pytest.fixture(scope="module")
def connected(nats: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A client of Spark Connect that asks for what is refused, and then reads: most of the time is Spark's start."""
    admin = Admin(nats.url)
    admin.create("CONNECT")
    admin.numbers("CONNECT", 5_000)
    admin.close()
    options = {"servers": nats.url, "stream": "CONNECT", "startingOffsets": "earliest", "minPartitions": "4"}
    refused = options | {"user": "ann", "password": "hunter2"}
    job = Job(tmp_path_factory.mktemp("connect"), options, remote="local[2]", batch=True, refused=refused)
    job.run(PYSPARK_PYTHON=sys.executable, SPARK_TESTING="1")  # a port of its own, and not the one of every other
    return job


def test_spark_connect_reads_every_row_once(connected: Job) -> None:
    assert sorted(connected.values()) == list(range(5_000))
    assert '{"rows": 5000}' in connected.log.read_text()


def test_spark_connect_is_told_no_secret_that_it_would_write_down(connected: Job) -> None:
    said = " ".join(connected.log.read_text().partition("refused: ")[2].split())
    assert "Spark Connect writes what a query is made of into its event log" in said
    assert "Name a file on its server in 'passwordFile'" in said


# --- pipelines ---

ORDERS = 500
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
    values = [json.dumps({"id": i}).encode() for i in range(ORDERS)]
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
    assert f"orders: done, {ORDERS} records, 1 error" in command.said()
    expected = [(i, 2 * i) for i in range(ORDERS) if i != 41]
    found = [json.loads(body) for body in bodies(nats, f"{stream}OUT")]
    assert sorted((each["id"], each["twice"]) for each in found) == expected
    rows = ds.dataset(str(folder / "files"), format="parquet").to_table(["id", "twice"]).to_pylist()
    assert sorted((row["id"], row["twice"]) for row in rows) == expected
    assert bodies(nats, f"{stream}DEAD") == [b"{bad"]


def test_a_standalone_cluster_runs_a_pipeline_with_two_sinks(
    standalone: tuple[str, Path], nats: NatsServer, orders: str, folder: Path
) -> None:
    (folder / "double.py").write_text(DOUBLE)
    conf = "\n".join(f'"{name}" = "{value}"' for name, value in EXECUTOR.items())
    file = written(folder, "orders", f"{to_all(nats, orders)}\n[spark.conf]\n{conf}\n")
    address, place = standalone
    before = set(place.glob("work*/app-*/*"))
    command = Command(folder, file, more=("--master", address))
    assert command.run() == 0, command.said()
    check(command, nats, orders, folder)
    executors = set(place.glob("work*/app-*/*")) - before
    assert len({path.parts[len(place.parts)] for path in executors}) == 2, "both workers must have had an executor"


def test_spark_connect_runs_a_pipeline_with_two_sinks(nats: NatsServer, orders: str, folder: Path) -> None:
    (folder / "double.py").write_text(DOUBLE)
    file = written(folder, "orders", to_all(nats, orders))
    command = Command(folder, file, more=("--remote", "local[2]"))
    assert command.run(PYSPARK_PYTHON=sys.executable, SPARK_TESTING="1") == 0, command.said()
    check(command, nats, orders, folder)
