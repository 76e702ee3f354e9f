"""A pipeline as files for spark-pipelines. That they run is seen in tests/spark/test_declarative.py."""

import ast
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.pipelines.cli import load_pipeline_spec

from penstock.connectors import FORMATS, connector
from penstock.errors import OptionError
from penstock.options import alias, secrets, shown
from penstock.pipelines.export import Secret, Sink, Source, Value, declarative

ORDERS = Source("jetstream", {"servers": "nats://127.0.0.1:4222", "stream": "ORDERS"})
COPIES = Sink("copies", "jetstream", {"subject": "copy.orders"})
STORAGE = "file:///tmp/storage"


def module(*statements: str, name: str = "orders", source: Source = ORDERS, sinks: tuple[Sink, ...] = (COPIES,)) -> str:
    files = declarative(name, source, statements, sinks, storage=STORAGE)
    (python,) = [text for file, text in files.items() if file.endswith(".py")]
    return python


def calls(python: str, function: str) -> list[ast.Call]:
    found = [node for node in ast.walk(ast.parse(python)) if isinstance(node, ast.Call)]
    return [call for call in found if ast.unparse(call.func).endswith(function)]


def test_a_project_is_a_spec_and_a_module_that_spark_pipelines_finds(tmp_path: Path) -> None:
    name = 'big: "orders" \N{SNOWMAN}'
    given: dict[str, Any] = {"storage": STORAGE, "configuration": {"spark.sql.shuffle.partitions": "2", "a": "no"}}
    files = declarative(name, ORDERS, [], [COPIES], **given)
    assert list(files) == ["spark-pipeline.yml", "transformations/big___orders___.py"]
    (tmp_path / "spark-pipeline.yml").write_text(files["spark-pipeline.yml"])
    spec = load_pipeline_spec(tmp_path / "spark-pipeline.yml")
    assert (spec.name, spec.storage, spec.configuration) == (name, STORAGE, given["configuration"])
    assert [library.include for library in spec.libraries] == ["transformations/**/*"]


def test_each_step_reads_the_one_before_and_each_sink_the_last() -> None:
    python = module("SELECT 1 FROM input", "SELECT 2 FROM input;", sinks=(COPIES, Sink("b", "parquet", {"path": "/b"})))
    first, second = (ast.literal_eval(call.args[0]) for call in calls(python, ".sql"))
    assert " ".join(first.split()) == (
        "WITH input AS (SELECT * FROM STREAM orders_source) SELECT * FROM ( SELECT 1 FROM input )"
    )
    assert "FROM STREAM orders_step_1)" in second
    assert ";" not in second
    assert [ast.literal_eval(call.args[0]) for call in calls(python, ".table")] == ["orders_step_2"] * 2
    assert [ast.literal_eval(call.args[0]) for call in calls(python, ".create_sink")] == ["copies", "b"]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT split(subject, '\\\\.')[1] AS region FROM input",
        'SELECT """ AS quotes, \'\\\' AS backslash FROM input',
        "SELECT 1 -- the end\nFROM input",
        "SELECT\t'\r' AS controls FROM input",
        "WITH a AS (SELECT * FROM input) SELECT '\N{SNOWMAN}' FROM a",
    ],
)
def test_a_statement_arrives_as_it_was(statement: str) -> None:
    (call,) = calls(module(statement), ".sql")
    assert f"\n{statement}\n" in ast.literal_eval(call.args[0])


def test_names_that_python_would_not_take_are_changed() -> None:
    python = module(name="2-class", sinks=(Sink("spark", "parquet", {"path": "/p"}),))
    functions = [node.name for node in ast.parse(python).body if isinstance(node, ast.FunctionDef)]
    assert functions == ["_2_class_source", "_2_class_to_spark"]


def everything(format: str) -> list[tuple[str, str]]:
    cls = connector(format)
    return sorted({(f, shown(m, f)) for m in (cls.options_type, cls.sink_options_type) for f in secrets(m)})


@pytest.mark.parametrize("format", FORMATS)
def test_no_secret_of_ours_is_written_or_given_to_spark_connect_as_an_option(format: str) -> None:
    given: dict[str, Value] = {name: Secret(f"MY_{field.upper()}") for field, name in everything(format)}
    for spelt in [name for _, name in everything(format)] + [alias(field) for field, _ in everything(format)]:
        for where in (
            {"source": Source(format, {spelt: "hunter2"})},
            {"sinks": (Sink("a", format, {spelt: "hunter2"}),)},
        ):
            with pytest.raises(OptionError, match=f"option '{spelt}' of {format} is a secret") as caught:
                module(**where)
            assert "hunter2" not in str(caught.value)
    python = module(source=Source(format, given), sinks=(Sink("a", format, given),))
    for field, name in everything(format):
        assert python.count(f'"{alias(field)}File": secret_file(os.environ["MY_{field.upper()}"])') == 2
        assert f'"{name}":' not in python
        for model in (connector(format).options_type, connector(format).sink_options_type):
            assert field not in secrets(model) or f"{field}_file" in model.model_fields


def test_a_secret_of_another_format_and_a_hidden_address_come_from_the_environment() -> None:
    kafka = Sink("k", "kafka", {"kafka.ssl.key.password": Secret("KEY"), "topic": "t"})
    python = module(source=Source("jetstream", {"servers": Secret("NATS"), "stream": "S"}), sinks=(kafka,))
    assert '"kafka.ssl.key.password": os.environ["KEY"],' in python
    assert '"servers": os.environ["NATS"],' in python
    assert "secret_file" not in python
    assert "\nimport os\n" in python
    with pytest.raises(OptionError, match=r"'kafka\.ssl\.key\.password' of kafka is a secret"):
        module(sinks=(Sink("k", "kafka", {"kafka.ssl.key.password": "hunter2"}),))


def test_the_file_of_a_secret_is_the_users_alone_and_goes_at_the_end(tmp_path: Path) -> None:
    python = module(sinks=(Sink("a", "jetstream", {"subject": "s", "password": Secret("MINE")}),))
    (function,) = [node for node in ast.parse(python).body if getattr(node, "name", "") == "secret_file"]
    program = "import atexit, os, tempfile\n" + ast.unparse(function) + "\nimport sys\n"
    program += "path = secret_file('hunter2')\nprint(path, oct(os.stat(path).st_mode), open(path).read())"
    env = os.environ | {"TMPDIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env)
    path, mode, text = ran.stdout.split()
    assert (stat.S_IMODE(int(mode, 8)), text) == (0o600, "hunter2")
    assert Path(path).parent == tmp_path
    assert not Path(path).exists()


@pytest.mark.parametrize(
    ("sinks", "storage", "said"),
    [
        ((), STORAGE, "has no sink"),
        ((COPIES, COPIES), STORAGE, "two sinks of one name in copies, copies"),
        ((Sink("--", "parquet", {}),), STORAGE, "'--' has no letter"),
        ((COPIES,), "storage", "'storage' is 'storage', and Spark wants an address with a scheme"),
    ],
)
def test_what_cannot_be_a_project_is_refused(sinks: tuple[Sink, ...], storage: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        declarative("orders", ORDERS, [], sinks, storage=storage)
