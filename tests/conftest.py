import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from harness import Admin, server
from penstock.embedded import NatsServer
from penstock.session import local_session

_names = itertools.count(1)


@pytest.fixture(scope="session")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """One server for all tests that do not harm it."""
    with server(tmp_path_factory.mktemp("nats")) as (running, _):
        yield running


@pytest.fixture
def admin(nats: NatsServer) -> Iterator[Admin]:
    connection = Admin(nats.url)
    yield connection
    connection.close()


@pytest.fixture
def stream() -> str:
    """A stream name that no other test uses."""
    return f"S{next(_names)}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests that do not end it. Workers find the connectors under tests/ by PYTHONPATH."""
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
    warehouse = tmp_path_factory.mktemp("warehouse")
    conf = {"spark.sql.shuffle.partitions": "2", "spark.log.level": "ERROR", "spark.sql.warehouse.dir": str(warehouse)}
    session = local_session("penstock-tests", "local[2]", conf=conf)
    yield session
    session.stop()
