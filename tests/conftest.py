import contextlib
import functools
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

import class_archive
import iggy_servers
import s2_servers
from kafka_servers import KafkaAdmin
from nats_servers import Admin, server
from penstock.connectors.kinesis import cursor
from penstock.errors import PenstockError
from penstock.kit import retry
from penstock.spark.session import local_session
from penstock.testing.kafka import KafkaBroker, NoKafkaError, spark_kafka_jars
from penstock.testing.nats_server import NatsServer
from penstock.testing.s2_lite import NoS2LiteError, S2Lite
from penstock.testing.schema_registry import NoSchemaRegistryError

if TYPE_CHECKING:
    from kinesis_servers import Kinesis

_names = itertools.count(1)
# How the reasons begin for which tests are skipped.
WITHOUT = (
    "no s2-lite is here, nor cargo to build it with",
    "Kafka's jars are not here, nor mvn to fetch them with",
    "no Java is here to run Kafka with",
    "Apicurio's jars are not here, nor mvn to fetch them with",
    "no Java 21 is here to run a schema registry with",
    "no chromium is here, nor a chromedriver, to look at the page with",
)
retry.FIRST_WAIT = 0.01  # tests cut connections by the thousand
cursor.PAUSE = 0.0  # the double takes as many requests as one likes

# Whom the double of Kinesis believes. A table keeps no secret, so some tests have them from here.
os.environ.setdefault("AWS_ACCESS_KEY_ID", "testing")
os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "testing")

os.environ.setdefault("SPARK_LAUNCHER_OPTS", class_archive.SHORT_LIVED)
for variable in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS", "SPARK_EXECUTOR_OPTS"):
    os.environ.setdefault(variable, class_archive.java_options())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs S2 comes last: `make test` may still be building it."""
    items.sort(key=lambda item: "s2" in item.nodeid.lower())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With --dist loadscope, any process takes any test, but a file that sets something up for several stays whole."""
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if _is_whole(config.rootpath / file) else nodeid

    return Scheduling(config, log)


@functools.cache
def _is_whole(file: Path) -> bool:
    return 'scope="module"' in file.read_text()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    return (yield from _without_server_skipped())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    return (yield from _without_server_skipped())


def _without_server_skipped() -> Iterator[None]:
    try:
        yield
    except (NoS2LiteError, NoKafkaError, NoSchemaRegistryError) as error:
        pytest.skip(str(error))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for all tests that had no server: it is easily overlooked that they proved nothing."""
    skipped = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    for missing in WITHOUT:
        if without := sum(missing in reason for reason in skipped):
            terminalreporter.write_line(f"{without} tests did not run: {missing}")


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


@pytest.fixture(scope="session")
def s2() -> Iterator["S2Lite | s2_servers.Cloud"]:
    """One s2-lite in memory for all tests that do not harm it."""
    with s2_servers.server() as running:
        yield running


@pytest.fixture
def s2_admin(s2: "S2Lite | s2_servers.Cloud") -> s2_servers.S2Admin:
    return s2_servers.S2Admin(s2)


@pytest.fixture(scope="session")
def iggy() -> Iterator[iggy_servers.Server]:
    """One double of Iggy, or the server that IGGY_TEST_ADDRESS names, for all tests that do not harm it."""
    with iggy_servers.server() as running:
        yield running


@pytest.fixture
def iggy_admin(iggy: iggy_servers.Server) -> iggy_servers.IggyAdmin:
    return iggy_servers.IggyAdmin(iggy)


@pytest.fixture(scope="session")
def kinesis() -> "Iterator[Kinesis]":
    """One double of Kinesis for all tests, or AWS."""
    import kinesis_servers  # it takes a second

    with kinesis_servers.server() as running:
        yield running


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker]:
    """One broker for all tests that do not harm it. With it, the session of `spark` has format("kafka")."""
    spark_kafka_jars()  # it says why, where the session has none
    with KafkaBroker() as running:
        yield running


@pytest.fixture
def kafka_admin(kafka: KafkaBroker) -> Iterator[KafkaAdmin]:
    connection = KafkaAdmin(kafka)
    yield connection
    connection.close()


@pytest.fixture
def stream() -> str:
    """A stream name that no other test uses."""
    return f"S{next(_names)}T"  # not a digit: S4 with 2 behind it would be S42


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests that do not end it. Workers find the connectors under tests/ by PYTHONPATH."""
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
    warehouse = tmp_path_factory.mktemp("warehouse")
    conf = {"spark.sql.shuffle.partitions": "2", "spark.log.level": "ERROR", "spark.sql.warehouse.dir": str(warehouse)}
    conf["spark.sql.python.filterPushdown.enabled"] = "true"  # for those who ask for it by an option
    conf["spark.ui.liveUpdate.period"] = "0"  # who asks whether a task runs is told of what began just now, too
    session = local_session("penstock-tests", "local[2]", conf=conf | _kafka_format(request.session.items))
    yield session
    session.stop()


def _kafka_format(items: list[pytest.Item]) -> dict[str, str]:
    """What gives the session format("kafka"), where a test of this run needs it: about a second, and a fetch once.

    A session can have jars only from its start on. Where they cannot be had, the tests that need them say so.
    """
    if any("kafka" in getattr(item, "fixturenames", ()) for item in items):
        with contextlib.suppress(PenstockError):
            return {"spark.jars": ",".join(map(str, spark_kafka_jars()))}
    return {}
