"""A Kafka broker of our own, and the jars of Spark's Kafka connector: for tests that go from or to Kafka."""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

from penstock.errors import ConnectError, OptionError
from penstock.testing import maven
from penstock.testing.nats_server import free_port
from penstock.testing.server import ServerProcess

VERSION = "4.3.1"
# Without the second it logs nothing.
BROKER = (f"org.apache.kafka:kafka_2.13:{VERSION}", "org.slf4j:slf4j-simple:1.7.36")
# Written and read with PySpark 4.2 and 4.3. Their own versions of the first two are not in every mirror of Maven.
CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
# No broker of a test lives long enough to earn back what the optimising compiler costs.
QUICK = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
LOGS = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
)
STARTED = b"Kafka Server started"
CLUSTER = "penstock-test-cluster0"  # any 22 letters
CONFIG = """process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller}
log.dirs={data}
auto.create.topics.enable=false
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=3000
group.initial.rebalance.delay.ms=0
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""


class NoKafkaError(OptionError):
    """There is none, and nothing to fetch or run it with."""


def spark_kafka_jars() -> list[Path]:
    """The jars that give PySpark 4.2 and 4.3 `format("kafka")`: for `spark.jars`, before the session starts."""
    return _jars("spark-kafka-4.2.0", CONNECTOR, "for format kafka, which PySpark comes without", transitive=False)


def _jars(name: str, coordinates: tuple[str, ...], why: str, *, transitive: bool) -> list[Path]:
    try:
        return maven.jars(name, coordinates, whose="Kafka's", why=why, transitive=transitive)
    except maven.NoMavenError as error:
        raise NoKafkaError(str(error)) from None


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        raise NoKafkaError("no Java is here to run Kafka with. Install a JDK 17 or 21, or point JAVA_HOME at it")
    return java


class KafkaBroker(ServerProcess):
    """A broker, and its controller in the same process, that keeps its topics in `folder`; stopped and started again it
    has them still. Topics are made by whoever needs them, not by the first message.

    Without a folder they are kept in one that goes when the broker object does. Its log is `server.log` in there.
    """

    def __init__(self, folder: Path | None = None, *, port: int | None = None):
        self._java = _java()
        self._jars = _jars(f"kafka-{VERSION}", BROKER, "for a broker to test with", transitive=True)
        self._temporary = tempfile.TemporaryDirectory(prefix="penstock-kafka-") if folder is None else None
        self.folder = Path(self._temporary.name) if self._temporary else Path(folder or ".")
        self.port, self.controller_port = port or free_port(), free_port()

    @property
    def bootstrap(self) -> str:
        """Its address, for `kafka.bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Start it, unless it runs, and wait until it takes topics and messages."""
        if self.process is not None and self.process.poll() is None:
            return self  # a second one would find its ports taken, and the first would be nobody's to stop
        self.folder.mkdir(parents=True, exist_ok=True)
        file, log, data = self.folder / "server.properties", self.folder / "server.log", self.folder / "data"
        file.write_text(CONFIG.format(port=self.port, controller=self.controller_port, data=data))
        if not (data / "meta.properties").exists():
            self._format(file)
        with log.open("ab") as out:
            began = out.tell()  # what is before is of an earlier start
            self.process = subprocess.Popen([*self._command("kafka.Kafka"), str(file)], stdout=out, stderr=out)
        try:
            if self._started(log, began):
                return self
        except BaseException:  # whoever is interrupted here has no broker to stop yet
            self.kill()
            raise
        self.kill()
        raise ConnectError(f"Kafka did not start on port {self.port}: {_gist(log.read_bytes()[began:].decode())}")

    def _format(self, config: Path) -> None:
        command = [*self._command("kafka.tools.StorageTool"), "format", "-t", CLUSTER, "-c", str(config)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise ConnectError(f"Kafka could not prepare {self.folder}: {_gist(ran.stdout + ran.stderr)}")

    def _command(self, main: str) -> list[str]:
        return [self._java, *QUICK, *LOGS, "-cp", os.pathsep.join(map(str, self._jars)), main]

    def _started(self, log: Path, began: int) -> bool:
        """By its own word: its port is open earlier, when it has no place yet for the partitions of a topic."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process is not None and self.process.poll() is None:
            if STARTED in log.read_bytes()[began:]:
                return True
            time.sleep(0.02)
        return False


def _gist(said: str) -> str:
    """The end of what a JVM said, without the places in its code."""
    return "\n".join(line for line in said.splitlines() if not line.startswith("\t"))[-1000:]
