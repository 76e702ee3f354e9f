"""Who may import whom, read from the sources, imports inside functions included."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.connectors import FORMATS

SRC = Path(penstock.__file__).parents[1]
CORE = [
    "errors", "options", "offsets", "record", "contract", "plan", "templates", "held", "columns", "pool", "retry",
    "ahead", "jsontext", "ddl", "cargo", "answers", "cuts",
]  # fmt: skip
# The adapter is Spark's; programs and `penstock.register` load it when they are called. All else works without.
IS_SPARKS_OWN = {
    f"penstock.{name}" for name in ("spark", "spark.arrow", "spark.reading", "spark.tables", "spark.writing", "s2")
}
MAY_IMPORT_PYSPARK = IS_SPARKS_OWN | {"penstock", "penstock.session", "penstock.cli", "penstock.demo"}
MAY_OPEN_SOCKETS = {
    "penstock.connectors.nats.dial", "penstock.connectors.nats.client", "penstock.connectors.s2.http",
    "penstock.connectors.s2.lite", "penstock.connectors.iggy.client", "penstock.embedded",
}  # fmt: skip
SOCKET_MODULES = {"socket", "ssl", "select", "selectors", "asyncio", "socketserver", "http", "urllib.request"}
CONNECTORS_THAT_BUILD_ON = {("jetstream", "nats"), ("core", "nats"), ("core", "jetstream")}


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
    assert {f"penstock.{name}" for name in CORE} <= IMPORTS.keys()
    assert "pyarrow" in IMPORTS["penstock.record"]
    assert "penstock.connectors.nats.wire" in IMPORTS["penstock.connectors.jetstream.api"]
    assert "nkeys" in IMPORTS["penstock.connectors.nats.credentials"], "inside a function"
    assert "nkeys" not in set(imports_of(FILES["penstock.connectors.nats.credentials"], at_once=True))
    assert "pyspark_penstock_jetstream" in SHIMS


@pytest.mark.parametrize("name", CORE)
def test_the_core_knows_neither_spark_nor_connectors(name: str) -> None:
    # Also through what it imports.
    reached, todo = set(), {f"penstock.{name}"}
    while todo:
        module = todo.pop()
        reached.add(module)
        found = IMPORTS.get(module, set())
        assert not [i for i in found if within(i, "pyspark") or within(i, "penstock.connectors")], module
        todo |= {i for i in found if i in IMPORTS} - reached
    assert reached <= {"penstock", *(f"penstock.{core}" for core in CORE)}


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
    assert users == {"penstock.spark", "penstock.spark.reading", "penstock.spark.writing"}


def connector_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[2] if parts[:2] == ["penstock", "connectors"] and len(parts) > 2 else None


def test_connectors_do_not_import_each_other() -> None:
    known = {connector_of(name) for name in IMPORTS} - {None}
    assert {"jetstream", "nats"} <= known
    crossing = {
        (connector_of(name), connector_of(i))
        for name, found in IMPORTS.items()
        for i in found
        if connector_of(name) and connector_of(i) in known and connector_of(name) != connector_of(i)
    }
    assert crossing == CONNECTORS_THAT_BUILD_ON & crossing
    assert ("jetstream", "nats") in crossing


def test_only_these_files_touch_sockets() -> None:
    users = {
        name for name, found in IMPORTS.items() if any(within(i, module) for i in found for module in SOCKET_MODULES)
    }
    assert users == MAY_OPEN_SOCKETS


@pytest.mark.parametrize(
    "name",
    [
        "nats.wire",
        "nats.frames",
        "jetstream.acks",
        "jetstream.rows",
        "nats.headers",
        "nats.subjects",
        "nats.options",
        "jetstream.api",
        "jetstream.options",
        "s2.wire",
        "s2.chain",
        "s2.rows",
        "s2.upsert",
        "s2.options",
        "iggy.wire",
        "iggy.rows",
        "iggy.options",
        "iggy.faults",
    ],
)
def test_what_is_pure_stays_pure(name: str) -> None:
    found = IMPORTS[f"penstock.connectors.{name}"]
    impure = SOCKET_MODULES | {"time", "threading", "subprocess", "penstock.connectors.nats.client"}
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
    assert loaded & {"nkeys", "nats", "typer", "rich", "zstandard", "s2_sdk", "apache_iggy", "xxhash"} == set()


def test_the_core_runs_without_spark() -> None:
    pure = [f"penstock.{name}" for name in CORE] + [
        f"penstock.connectors.nats.{n}" for n in ("wire", "subjects", "options")
    ]
    loaded = loaded_by(*pure)
    assert set(pure) <= loaded
    assert loaded & {"pyspark", "nkeys", "nats", "typer", "rich"} == set()


@pytest.mark.parametrize("format", FORMATS)
def test_a_connector_can_be_sent_to_a_python_that_has_it_not(format: str) -> None:
    """As `penstock.register` sends it: made in a process of its own, as what it leaves in cloudpickle stays."""
    write = (
        "import sys, penstock; from pyspark import cloudpickle; from penstock.connectors import connector\n"
        "cloudpickle.register_pickle_by_value(penstock)\n"
        f"sys.stdout.buffer.write(cloudpickle.dumps(connector({format!r})))"
    )
    read = "import pickle, sys; sys.modules['penstock'] = None\nprint(pickle.load(sys.stdin.buffer).name())"
    sent = subprocess.run([sys.executable, "-c", write], capture_output=True, check=True).stdout
    arrived = subprocess.run([sys.executable, "-c", read], input=sent, capture_output=True, check=False)
    assert arrived.stdout.decode().strip() == format, arrived.stderr.decode()[-1000:]
