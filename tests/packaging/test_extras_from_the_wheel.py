"""The wheel, installed by pip into empty environments: with each extra alone, without any, and without Spark.

What the wheel itself needs, Spark too, is 700 MB. It is shown to each environment by links to what runs these tests;
the wheel and the packages of its extra are installed by pip, with what they need, in the versions that we test with.
"""

import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import distribution, distributions
from pathlib import Path
from typing import Any

import nkeys
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import iggy_servers
import kinesis_servers
import s2_servers
from nats_servers import Admin
from penstock.testing import JournalLog, NatsServer, S2Lite

ROOT = Path(__file__).parents[2]
# What connectors import of others, by extra; the last are of those who develop it.
CLIENTS = {
    "nats": {"nkeys"}, "jetstream": {"nkeys"}, "s2": {"zstandard"}, "iggy": {"apache_iggy", "xxhash"},
    "kinesis": {"botocore"},
}  # fmt: skip
ALL_CLIENTS = {*set().union(*CLIENTS.values()), "nats", "s2_sdk", "pandas"}
# Long enough to be compressed.
VALUES = [str(i) * 5000 for i in range(3)]
WRITE_AND_READ = """
import json, sys, time
import pyarrow as pa
from penstock.cli.peek import newest
from penstock.connectors import connector
from penstock.kit.contract import Origin

name, given, columns, read, written = json.loads(sys.argv[1])
found = connector(name)
rows = pa.record_batch({key: pa.array(column) for key, column in columns.items()})
sink = found.open_sink(found.parse_sink(given | written), rows.schema)
origin = Origin(Origin.single(), 0, 0)
sink.check()
sink.commit([sink.write(iter([rows]), origin)], None)
sink.close()
deadline = time.monotonic() + 10
while len(kept := newest(found, given | read, 10)) < len(rows) and time.monotonic() < deadline:
    time.sleep(0.05)
print(json.dumps([row["value"].decode() for row in kept]))
"""
IMPORTABLE = (
    "import importlib.util, json, sys; print(json.dumps([m for m in sys.argv[1:] if importlib.util.find_spec(m)]))"
)


class Environment:
    """A Python of its own, and programs in it."""

    def __init__(self, folder: Path):
        self.python = folder / "bin" / "python"
        self.env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        self.env["PYSPARK_PYTHON"] = str(self.python)

    def run(self, program: str, *words: Any) -> str:
        """What a Python program printed."""
        return self._run(self.python, "-c", program, *words).stdout

    def penstock(self, *words: str) -> str:
        """What the command line printed."""
        return self._run(self.python.with_name("penstock"), *words).stdout

    def refusal(self, *words: str) -> str:
        """What the command line complained of."""
        return self._run(self.python.with_name("penstock"), *words, code=1).stderr

    def importable(self, modules: Iterable[str]) -> set[str]:
        return set(json.loads(self.run(IMPORTABLE, *modules)))

    def _run(self, *words: Any, code: int = 0) -> "subprocess.CompletedProcess[str]":
        where = self.python.parent  # not the sources, which a Python would find there
        ran = subprocess.run(words, capture_output=True, text=True, env=self.env, cwd=where, timeout=120, check=False)
        assert ran.returncode == code, ran.stdout + ran.stderr
        return ran


def needed(*packages: str) -> set[str]:
    """The packages, and all that they need in turn."""
    found: set[str] = set()
    todo = list(map(Requirement, packages))
    while todo:
        asked = todo.pop()
        if (name := canonicalize_name(asked.name)) not in found:
            found.add(name)
            more = map(Requirement, distribution(name).requires or [])
            todo += [one for one in more if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


def link(packages: Iterable[str], folder: Path) -> Path:
    """A folder for a Python's path that has these packages and no others, as links to those of this Python."""
    folder.mkdir()
    for package in packages:
        there = distribution(package)
        for top in {file.parts[0] for file in there.files or []} - {"..", "__pycache__"}:
            (folder / top).symlink_to(str(there.locate_file(top)))
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT, check=True)
    return next(folder.glob("penstock-*-py3-none-any.whl"))


@pytest.fixture(scope="module")
def install(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Environment]:
    folder = tmp_path_factory.mktemp("environments")
    metadata = next(iter(distributions(path=[str(wheel)]))).requires or []
    own = [text for text in metadata if "extra" not in text]
    assert not [text for text in own if "pyspark" in text]
    local = [text for text in metadata if "extra == 'local'" in text]
    with_spark = link(needed(*own, *(text.partition(";")[0] for text in local)), folder / "with-spark")
    without = link(needed(*own), folder / "without")
    here = {canonicalize_name(each.name): each.version for each in distributions()}
    constraints = folder / "constraints.txt"
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in here.items() if name != "penstock"))

    def made(extra: str | None, *, spark: bool = True) -> Environment:
        at = folder / f"{extra}-{spark}"
        venv.create(at, with_pip=False, symlinks=True)
        packages = next(at.glob("lib/python*/site-packages"))
        (packages / "shown.pth").write_text(f"{with_spark if spark else without}\n")
        found = Environment(at)
        words = [sys.executable, "-m", "pip", "--python", found.python, "install", "-q", "--no-compile"]
        subprocess.run(
            [*words, "-c", constraints, f"{wheel}[{extra}]" if extra else wheel], check=True, env=found.env, timeout=120
        )
        assert (packages / "penstock" / "__init__.py").is_file()
        return found

    return made


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A nats-server that asks for an NKey: its address, and the file with the seed."""
    folder = tmp_path_factory.mktemp("guarded")
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    file = folder / "seed"
    file.write_bytes(seed)
    user = nkeys.from_seed(bytearray(seed)).public_key.decode()
    config = f'jetstream {{ store_dir: "{folder}/data" }}\nauthorization {{ users: [ {{ nkey: {user} }} ] }}\n'
    with NatsServer(folder / "nats", config=config) as server:
        yield server.url, str(file)


def written_and_read(
    python: Environment,
    name: str,
    given: dict[str, str],
    columns: dict[str, list[str]],
    *,
    read: dict[str, str] | None = None,
    written: dict[str, str] | None = None,
) -> list[str]:
    """The values that are in a stream after some were written to it, all in that Python and without starting Spark."""
    said = python.run(WRITE_AND_READ, json.dumps([name, given, columns, read or {}, written or {}]))
    found: list[str] = json.loads(said)
    return found


def test_the_extra_nats_alone_writes_and_reads_core_nats_with_an_nkey(
    install: Callable[..., Environment], guarded: tuple[str, str]
) -> None:
    python = install("nats")
    assert python.importable(ALL_CLIENTS) == CLIENTS["nats"]
    url, seed = guarded
    admin = Admin(url, nkeySeedFile=seed)
    admin.create("CORE", "core.>")
    admin.close()
    reach = {"servers": url, "nkeySeedFile": seed}
    found = written_and_read(
        python,
        "nats",
        reach,
        {"value": VALUES},
        read={"subjects": "core.>", "capture": "true"},
        written={"subject": "core.x"},
    )
    assert found == VALUES


def test_the_extra_jetstream_alone_writes_and_reads_a_stream_with_an_nkey(
    install: Callable[..., Environment], guarded: tuple[str, str]
) -> None:
    python = install("jetstream")
    assert python.importable(ALL_CLIENTS) == CLIENTS["jetstream"]
    url, seed = guarded
    admin = Admin(url, nkeySeedFile=seed)
    admin.create("KEPT", "kept.>")
    admin.close()
    reach = {"servers": url, "nkeySeedFile": seed}
    found = written_and_read(
        python, "jetstream", reach, {"value": VALUES}, read={"stream": "KEPT"}, written={"subject": "kept.x"}
    )
    assert found == VALUES


def test_the_extra_s2_alone_writes_and_reads_a_stream_with_zstd(
    install: Callable[..., Environment], s2: "S2Lite | s2_servers.Cloud", s2_admin: s2_servers.S2Admin
) -> None:
    python = install("s2")
    assert python.importable(ALL_CLIENTS) == CLIENTS["s2"]
    s2_admin.make("from-the-wheel")
    reach = {**s2.options(), "stream": "from-the-wheel", "compression": "zstd"}
    assert written_and_read(python, "s2", reach, {"value": VALUES}) == VALUES


def test_the_extra_iggy_alone_writes_and_reads_a_topic_by_keys(
    install: Callable[..., Environment], iggy: iggy_servers.Server, iggy_admin: iggy_servers.IggyAdmin
) -> None:
    python = install("iggy")
    assert python.importable(ALL_CLIENTS) == CLIENTS["iggy"]
    iggy_admin.make("from-the-wheel", "orders", 2)
    reach = {**iggy_servers.options(iggy), "stream": "from-the-wheel", "topic": "orders"}
    found = written_and_read(
        python, "iggy", reach, {"value": VALUES, "key": ["a", "b", "c"]}, written={"partitioning": "key"}
    )
    assert sorted(found) == VALUES


def test_the_extra_kinesis_alone_writes_and_reads_a_stream(
    install: Callable[..., Environment], kinesis: "kinesis_servers.Kinesis"
) -> None:
    python = install("kinesis")
    assert python.importable(ALL_CLIENTS) == CLIENTS["kinesis"]
    kinesis.make("from-the-wheel")
    reach = kinesis.options("from-the-wheel")
    assert written_and_read(python, "kinesis", reach, {"value": VALUES}) == VALUES


def test_without_an_extra_spark_finds_the_formats_of_the_wheel_and_reads_one(
    install: Callable[..., Environment], tmp_path: Path
) -> None:
    python = install(None)
    assert python.importable(ALL_CLIENTS) == set()
    log = JournalLog(tmp_path / "logs")
    log.make("orders")
    log.append("orders", VALUES)
    said = python.run(
        "import sys; from penstock.session import local_session\n"
        "spark = local_session('wheel', 'local[1]', quiet=True)\n"
        "print('rows:', spark.read.format('journal').option('directory', sys.argv[1]).load().count())",
        tmp_path / "logs",
    )
    assert "rows: 3" in said


def test_without_spark_everything_that_needs_it_says_what_to_install(install: Callable[..., Environment]) -> None:
    python = install(None, spark=False)
    assert python.importable([*ALL_CLIENTS, "pyspark"]) == set()
    said = python.penstock("--version").splitlines()
    assert [line.split()[0] for line in said] == ["Penstock", "Spark", "Java", "Python"]
    assert said[1].split(maxsplit=1)[1].startswith("not installed: pip install 'penstock[local]'")
    for words in (("describe",), ("describe", "s2"), ("peek", "jetstream", "stream=X"), ("demo",)):
        said = python.refusal(*words)
        assert " ".join(said.split()).startswith("penstock: there is no Spark in this Python. Install it: pip install ")
        assert "Traceback" not in said
    says = python.run(
        "import penstock, penstock.session\n"
        "from importlib import import_module\n"
        "from penstock.connectors import FORMATS\n"
        "from penstock.errors import OptionError\n"
        "needs = [lambda m=m: import_module(m) for m in ('penstock.spark.connector', 'penstock.s2')]\n"
        "needs += [lambda f=f: import_module(f'penstock.connectors.{f}') for f in FORMATS]\n"
        "needs += [lambda: penstock.register(None), lambda: penstock.session.local_session('x')]\n"
        "for need in needs:\n"
        "    try:\n"
        "        need()\n"
        "    except ImportError as error:\n"
        "        assert isinstance(error, OptionError)\n"
        "        print(error)",
    ).splitlines()
    assert len(says) == 10
    assert all("pip install 'penstock[local]'" in said and "of a cluster" in said for said in says), says
