"""Who may import whom, read from the sources, imports inside functions included."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock.connectors import FORMATS

SRC = Path(penstock.__file__).parents[1]
# What each package may import of ours, besides itself; what is inside of a package with a rule of its own has both.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "arrow": {"errors"},
    "options": {"errors", "kit.retry"},
    "planning": {"errors", "options", "kit.contract", "kit.loss", "kit.retry"},
    "kit": {"errors", "arrow", "options", "planning.positions"},
    "clients.answers": {"errors"},
    "clients.pages": {"errors", "kit.masking"},
    "clients.nats": {"errors", "arrow", "options", "kit.process_cache", "clients.answers"},
    "clients.jetstream": {"errors", "arrow", "options", "clients.answers", "clients.nats"},
    "clients.s2": {"errors", "arrow", "options", "kit.process_cache", "clients.answers"},
    "clients.iggy": {"errors", "arrow", "options", "kit.process_cache", "kit.retry"},
    "clients.kinesis": {"errors", "options", "kit.process_cache"},
    "tables": {"errors", "arrow", "kit", "spark.needed"},
    "spark": {"errors", "arrow", "options", "planning", "kit"},
    "connectors": {"errors", "arrow", "options", "planning", "kit", "tables", "clients", "spark.connector"},
    "codecs": {"errors", "arrow", "kit", "spark.process", "spark.schema"},
    "checkpoints": {"errors", "planning"},
    "watch": {"errors", "planning", "kit", "spark.said"},
    "jobs": {"errors", "planning", "kit", "clients.pages", "connectors", "checkpoints", "spark.said", "watch.progress"},
    "operate": {"errors", "options", "kit", "clients"},
    "pipelines": {"errors", "options", "planning", "kit", "connectors", "spark", "codecs", "checkpoints", "watch"},
    "monitor": {
        "errors",
        "planning",
        "kit",
        "clients.answers",
        "clients.nats.options",
        "connectors",
        "spark",
        "checkpoints",
        "pipelines",
        "watch",
        "operate.figures",
        "operate.watching",
    },
}
# Programs, short names for users, and what others test with: they may import anything.
MAY_IMPORT_ALL = {"cli", "testing", "session", "embedded", "s2"}
# These have no Spark behind them, in whatever way they are imported.
WITHOUT_SPARK = ("errors", "options", "arrow", "planning", "kit", "clients", "checkpoints", "operate")
# The adapter is Spark's; programs and `penstock.register` load it when they are called. All else works without.
IS_SPARKS_OWN = {
    "penstock.tables.latest", "penstock.spark.connector", "penstock.spark.reading", "penstock.spark.writing",
    "penstock.spark.catalog", "penstock.spark.schema", "penstock.testing.conformance",
}  # fmt: skip
MAY_IMPORT_PYSPARK = IS_SPARKS_OWN | {
    "penstock",
    "penstock.codecs",
    "penstock.codecs.columnar",
    "penstock.watch.listener",
    "penstock.monitor.observer",
    "penstock.pipelines.application",
    "penstock.pipelines.dead_letters",
    "penstock.pipelines.functions",
    "penstock.pipelines.replay",
    "penstock.pipelines.job",
    "penstock.pipelines.rows",
    "penstock.pipelines.runner",
    "penstock.pipelines.transforms",
    "penstock.pipelines.trial",
    "penstock.spark.progress",
    "penstock.spark.session",
    "penstock.spark.terminal",
    "penstock.spark.warm",
}
MAY_OPEN_SOCKETS = {
    "penstock.clients.nats.dial", "penstock.clients.nats.client", "penstock.clients.s2.http",
    "penstock.codecs.registry", "penstock.monitor.app", "penstock.monitor.server", "penstock.clients.pages",
    "penstock.clients.iggy.client", "penstock.testing.nats_server", "penstock.testing.s2_lite",
    "penstock.testing.iggy_double", "penstock.testing.proxy",
    "penstock.testing.schema_registry",
    "penstock.spark.warm", "penstock.spark.lean.sitecustomize",
}  # fmt: skip
SOCKET_MODULES = {"socket", "ssl", "select", "selectors", "asyncio", "socketserver", "http", "urllib.request"}


def module_name(file: Path) -> str:
    parts = file.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def statements(node: ast.AST, *, at_once: bool) -> Iterator[ast.AST]:
    """Everything below `node`; `at_once` leaves out what an import of the module does not run."""
    for child in ast.iter_child_nodes(node):
        typing = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if not at_once or not (typing or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)):
            yield child
            yield from statements(child, at_once=at_once)


def imports_of(file: Path, *, at_once: bool = False) -> Iterator[str]:
    """The full names of what a file imports; of `from a import b` both a and a.b, as b may be a module."""
    package = module_name(file) if file.name == "__init__.py" else module_name(file).rpartition(".")[0]
    for node in statements(ast.parse(file.read_text(), str(file)), at_once=at_once):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            yield base
            yield from (f"{base}.{name.name}" for name in node.names)


FILES = {module_name(file): file for file in sorted(SRC.rglob("*.py")) if "penstock" in str(file.relative_to(SRC))}
IMPORTS = {name: set(imports_of(file)) for name, file in FILES.items()}
SHIMS = sorted(name for name in IMPORTS if name.startswith("pyspark_penstock_"))


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def test_the_sources_were_found() -> None:
    assert {f"penstock.{name}" for name in MAY_IMPORT} <= IMPORTS.keys()
    assert "pyarrow" in IMPORTS["penstock.kit.rows"]
    assert "penstock.clients.nats.wire" in IMPORTS["penstock.clients.jetstream.columns"]
    assert "nkeys" in IMPORTS["penstock.clients.nats.credentials"], "inside a function"
    assert "nkeys" not in set(imports_of(FILES["penstock.clients.nats.credentials"], at_once=True))
    assert "pyspark_penstock_jetstream" in SHIMS


def inside(name: str, packages: Iterable[str]) -> bool:
    return any(within(name, f"penstock.{package}") for package in packages)


OURS = sorted(name for name in IMPORTS if within(name, "penstock"))
PACKAGES = {name for name, file in FILES.items() if file.name == "__init__.py"}


@pytest.mark.parametrize("module", [name for name in OURS if not inside(name, MAY_IMPORT_ALL) and name != "penstock"])
def test_imports_go_one_way(module: str) -> None:
    own = [package for package in MAY_IMPORT if inside(module, [package])]
    if not own:  # the packages above those with rules import nothing
        assert module in PACKAGES
        assert not [name for name in IMPORTS[module] if within(name, "penstock")]
        return
    allowed = set(own).union(*(MAY_IMPORT[package] for package in own))
    # `from penstock.kit import retry` imports both; that the package is no more than a name is seen above.
    wrong = [name for name in IMPORTS[module] & set(OURS) - PACKAGES if not inside(name, allowed)]
    assert not wrong, f"{module} imports {', '.join(wrong)}"


@pytest.mark.parametrize("package", WITHOUT_SPARK)
def test_what_has_no_spark_behind_it_stays_so(package: str) -> None:
    # Also through what it imports.
    reached: set[str] = set()
    todo = {name for name in OURS if inside(name, [package])}
    while todo:
        module = todo.pop()
        reached.add(module)
        assert not [name for name in IMPORTS[module] if within(name, "pyspark")], module
        todo |= (IMPORTS[module] & set(OURS)) - reached - {"penstock"}
    assert not [name for name in reached if inside(name, ["connectors", "spark"])]


def test_only_the_adapter_and_the_programs_import_pyspark() -> None:
    users = {name for name, found in IMPORTS.items() if any(within(i, "pyspark") for i in found)}
    assert users >= IS_SPARKS_OWN
    assert users <= MAY_IMPORT_PYSPARK


def test_only_the_adapter_imports_pyspark_by_being_imported() -> None:
    at_once = {name: set(imports_of(file, at_once=True)) for name, file in FILES.items()}
    assert {name for name, found in at_once.items() if any(within(i, "pyspark") for i in found)} == IS_SPARKS_OWN


def test_only_the_adapter_imports_the_data_source_interface() -> None:
    users = {
        name
        for name, found in IMPORTS.items()
        if any("datasource" in i.split(".") for i in found if within(i, "pyspark"))
    }
    assert users == {"penstock.spark.connector", "penstock.spark.reading", "penstock.spark.writing"}


def connector_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[2] if parts[:2] == ["penstock", "connectors"] and len(parts) > 2 else None


def test_connectors_do_not_import_each_other() -> None:
    known = {connector_of(name) for name in IMPORTS} - {None}
    assert {"jetstream", "nats", "journal"} <= known
    crossing = {
        (name, i)
        for name, imported in IMPORTS.items()
        for i in imported
        if connector_of(name) and connector_of(i) in known and connector_of(name) != connector_of(i)
    }
    assert not crossing


def test_only_these_files_touch_sockets() -> None:
    users = {
        name for name, found in IMPORTS.items() if any(within(i, module) for i in found for module in SOCKET_MODULES)
    }
    assert users == MAY_OPEN_SOCKETS


@pytest.mark.parametrize(
    "name",
    [
        "clients.nats.wire",
        "clients.nats.frames",
        "clients.nats.headers",
        "clients.nats.subjects",
        "clients.nats.options",
        "clients.jetstream.acks",
        "clients.jetstream.api",
        "clients.jetstream.columns",
        "clients.s2.appends",
        "clients.s2.frames",
        "clients.s2.records",
        "clients.s2.varints",
        "clients.s2.options",
        "clients.iggy.wire",
        "clients.iggy.options",
        "clients.iggy.faults",
        "connectors.jetstream.bounds",
        "connectors.jetstream.rows",
        "connectors.jetstream.options",
        "connectors.s2.chain",
        "connectors.s2.rows",
        "tables.changes",
        "connectors.s2.options",
        "connectors.iggy.rows",
        "connectors.iggy.options",
        "pipelines.export",
        "watch.progress",
        "jobs.events",
        "jobs.rows",
        "jobs.lag",
        "jobs.spark_ui",
    ],
)
def test_what_is_pure_stays_pure(name: str) -> None:
    found = IMPORTS[f"penstock.{name}"]
    impure = SOCKET_MODULES | {"time", "threading", "subprocess", "penstock.clients.nats.client"}
    assert not [i for i in found if any(within(i, module) for module in impure)]


def loaded_by(*modules: str) -> set[str]:
    """What a fresh Python has loaded after importing these."""
    code = f"import sys, json, {', '.join(modules)}; print(json.dumps(sorted(sys.modules)))"
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=60, check=True)
    return set(json.loads(done.stdout))


def test_a_shim_loads_no_client_library_and_no_command_line() -> None:
    # Spark imports the shims of all connectors in each of its Python processes, whether they are used or not.
    loaded = loaded_by(*SHIMS)
    assert set(SHIMS) <= loaded
    assert (
        loaded & {"nkeys", "nats", "typer", "rich", "zstandard", "s2_sdk", "apache_iggy", "xxhash", "botocore"} == set()
    )


def test_clients_and_planning_run_without_spark() -> None:
    without = [name for name in OURS if inside(name, WITHOUT_SPARK)]
    loaded = loaded_by(*without)
    assert set(without) <= loaded
    assert loaded & {"pyspark", "nkeys", "nats", "typer", "rich", "apache_iggy"} == set()


@pytest.mark.parametrize("format", FORMATS)
def test_a_connector_can_be_sent_to_a_python_that_has_it_not(format: str) -> None:
    """As `penstock.register` sends it: made in a process of its own, as what it leaves in cloudpickle stays."""
    write = (
        "import sys, penstock; from pyspark import cloudpickle; from penstock.connectors import connector\n"
        "cloudpickle.register_pickle_by_value(penstock)\n"
        f"sys.stdout.buffer.write(cloudpickle.dumps(connector({format!r})))"
    )
    given = {"directory": ".", "stream": "s", "subjects": "s", "basin": "some-basin", "topic": "t", "password": "p"}
    read = (
        "import pickle, sys; sys.modules['penstock'] = None\nconnector = pickle.load(sys.stdin.buffer)\n"
        f"given = {given!r}\nmodel = connector.options_type\n"
        "given = {name: given[name] for name in given if name in model.model_fields}\n"
        "source = connector.open_source(connector.parse(given))\n"
        "if 'capture' in model.model_fields:\n"
        "    connector.open_source(connector.parse(given | {'capture': 'true'}))._open(['S'])\n"
        "print(connector.name())"
    )
    sent = subprocess.run([sys.executable, "-c", write], capture_output=True, check=True).stdout
    arrived = subprocess.run([sys.executable, "-c", read], input=sent, capture_output=True, check=False)
    assert arrived.stdout.decode().strip() == format, arrived.stderr.decode()[-1000:]


def test_queries_are_found_without_spark() -> None:
    loaded = loaded_by("penstock.jobs.places", "penstock.cli.jobs")
    assert loaded & {"pyspark", "kafka", "botocore", "penstock.connectors.jetstream"} == set()
