"""The same query on a standalone cluster, through Spark Connect, and where the package is not installed."""

import os
import subprocess
import sys
import sysconfig
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from harness import Admin
from penstock.embedded import NatsServer, free_port
from spark.jobs import Job, descendants, kill, wait


@pytest.fixture
def options(nats: NatsServer, admin: Admin, stream: str) -> dict[str, str]:
    admin.create(stream)
    admin.numbers(stream, 5_000)
    return {"servers": nats.url, "stream": stream, "startingOffsets": "earliest", "minPartitions": "4"}


@contextmanager
def cluster(folder: Path, python: str) -> Iterator[str]:
    """A master and two workers; its address."""
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
            for n in (1, 2)
        ),
    ]  # fmt: skip
    running = []
    try:
        with (folder / "cluster.log").open("ab") as log:
            for each in commands:
                running.append(subprocess.Popen(each, env=env, stdout=log, stderr=log))

        def two_workers() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=2) as answer:
                    return answer.read().count(b'"state" : "ALIVE"') >= 2
            except OSError:
                return False

        wait(two_workers, seconds=60)
        yield address
    finally:
        for process in running:
            for pid in [*descendants(process.pid), process.pid]:
                kill(pid)
            process.wait()


def test_a_standalone_cluster_of_two_workers_reads_every_row_once(options: dict[str, str], tmp_path: Path) -> None:
    with cluster(tmp_path, sys.executable) as address:
        job = Job(tmp_path, options, master=address, conf={"spark.executor.memory": "512m"})
        job.run()
    assert sorted(job.values()) == list(range(5_000))
    executors = list((tmp_path / "work1").glob("app-*/*")) + list((tmp_path / "work2").glob("app-*/*"))
    assert len(executors) == 2, "both workers must have had an executor"


def test_registering_by_value_works_where_the_package_is_not_installed(options: dict[str, str], tmp_path: Path) -> None:
    """The cluster's Python has what Penstock needs, but not Penstock."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    site = next((bare / "lib").glob("python*/site-packages"))
    # A folder named in a .pth file joins the path; its own .pth files, by which Penstock is installed, do not count.
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = str(bare / "bin" / "python")
    absent = subprocess.run(
        [python, "-c", "import pyarrow, pydantic, pyspark; import penstock"], capture_output=True, text=True
    )
    assert "No module named 'penstock'" in absent.stderr
    with cluster(tmp_path, python) as address:
        job = Job(tmp_path, options, master=address, register=True, batch=True, conf={"spark.executor.memory": "512m"})
        job.run(PYSPARK_PYTHON=python, PYSPARK_DRIVER_PYTHON=sys.executable)
    assert sorted(job.values()) == list(range(5_000))


def test_spark_connect_reads_every_row_once(options: dict[str, str], tmp_path: Path) -> None:
    job = Job(tmp_path, options, remote="local[2]", batch=True)
    job.run(PYSPARK_PYTHON=sys.executable)
    assert sorted(job.values()) == list(range(5_000))
    assert '{"rows": 5000}' in job.log.read_text()
