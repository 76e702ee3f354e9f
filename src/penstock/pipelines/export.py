"""A pipeline as a project of Spark Declarative Pipelines: text from values, and nothing else.

Knows how `spark-pipelines` wants its files, and which options are secrets. Writes no file, and reads no environment:
a secret is named in what it writes, and read when the project runs.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.connectors import FORMATS, connector
from penstock.errors import OptionError
from penstock.options import alias, secrets, spellings

# Options of formats that are not ours: Spark's own words for what it hides.
_LOOKS_SECRET = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)
_SECRET_FILE = '''

def secret_file(value):
    """A file that only this user can read. Spark Connect writes options into its log, so a secret goes by its path."""
    handle, path = tempfile.mkstemp()
    with os.fdopen(handle, "w") as file:
        file.write(value)
    atexit.register(os.unlink, path)
    return path

'''


@dataclass(frozen=True)
class Secret:
    """The value of an option that is in an environment variable when the project runs, and in no file."""

    env: str


Value = str | Secret


@dataclass(frozen=True)
class Source:
    """What is read: a format and its options."""

    format: str
    options: Mapping[str, Value]


@dataclass(frozen=True)
class Sink:
    """Where rows go: a name that is unique in the pipeline, a format and its options."""

    name: str
    format: str
    options: Mapping[str, Value]


def declarative(
    name: str,
    source: Source,
    statements: Sequence[str],
    sinks: Sequence[Sink],
    *,
    storage: str,
    configuration: Mapping[str, str] | None = None,
    input_name: str = "input",
) -> dict[str, str]:
    """The files of a project for `spark-pipelines`, by their names: rows of the source, through SQL, to each sink.

    Each statement is a SELECT from a table called `input_name`: the rows of the statement before it, or of the source.
    `storage` is where Spark keeps checkpoints, an address with a scheme. Each sink reads the source by itself, from a
    checkpoint of its own. `configuration` is for settings that a running session may change.

    A secret of ours reaches Spark as the path of a file, which the project makes when it runs: Spark Connect writes
    options down, so our formats refuse a secret there. Only a Connect server on the same machine can read that file;
    for another one, give the `...File` option with a path that it has. An OptionError where a secret would be written
    into a file, where two sinks have one name, and where there is no sink.
    """
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", storage):
        raise OptionError(
            f"'storage' is '{storage}', and Spark wants an address with a scheme: file:///path, s3a://..."
        )
    own = _identifier(name)
    names = [_identifier(sink.name) for sink in sinks]
    if not names:
        raise OptionError(f"pipeline '{name}' has no sink, so Spark would run none of it. Name one.")
    if len(set(names)) < len(names):
        raise OptionError(f"pipeline '{name}' has two sinks of one name in {', '.join(names)}. Give each its own.")
    before = f"{own}_source"
    options = _options(source.format, source.options)
    parts = [
        f"@dp.temporary_view\ndef {before}():\n"
        f"    return spark.readStream.format({_literal(source.format)}).options(**{_indented(options)}).load()\n"
    ]
    for number, statement in enumerate(statements, 1):
        view = f"{own}_step_{number}"
        parts.append(
            f"@dp.temporary_view\ndef {view}():\n    return spark.sql({_query(statement, before, input_name)})\n"
        )
        before = view
    for sink, target in zip(sinks, names, strict=True):
        options = _options(sink.format, sink.options)
        parts.append(f"dp.create_sink({_literal(target)}, {_literal(sink.format)}, {options})\n")
        parts.append(
            f"@dp.append_flow(target={_literal(target)})\ndef {own}_to_{target}():\n"
            f"    return spark.readStream.table({_literal(before)})\n"
        )
    return {
        "spark-pipeline.yml": _spec(name, storage, configuration or {}),
        f"transformations/{own}.py": _module(name, "\n\n".join(parts)),
    }


def _module(name: str, body: str) -> str:
    """The Python file: what it imports, depends on what is in it."""
    lines = [f'"""{json.dumps(name)[1:-1]}: a pipeline for spark-pipelines."""', ""]
    has_files = "secret_file(" in body
    imports = ["import atexit"] * has_files + ["import os"] * ("os.environ" in body) + ["import tempfile"] * has_files
    lines += [*imports, ""] if imports else []
    lines += ["from pyspark import pipelines as dp", "from pyspark.sql import SparkSession", ""]
    lines += ["spark = SparkSession.active()", ""]
    return "\n".join(lines) + (_SECRET_FILE if has_files else "") + "\n" + body


def _spec(name: str, storage: str, configuration: Mapping[str, str]) -> str:
    """The YAML file. A text in JSON is one in YAML too."""
    settings = [f"  {_quoted(key)}: {_quoted(value)}" for key, value in configuration.items()]
    lines = [f"name: {_quoted(name)}", f"storage: {_quoted(storage)}"]
    lines += ["configuration:", *settings] if settings else []
    lines += ["libraries:", "  - glob:", "      include: transformations/**"]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _query(statement: str, before: str, input_name: str) -> str:
    """A statement as a Python literal. Rows of the step before stand in front of it, so its text stays as it is."""
    text = f"WITH {input_name} AS (SELECT * FROM STREAM {before})\nSELECT * FROM (\n{statement.strip().rstrip(';')}\n)"
    if '"""' in text or not text.replace("\n", "").isprintable():
        return repr(text)
    return f'{"r" if chr(92) in text else ""}"""\n{text}\n"""'


def _options(format: str, options: Mapping[str, Value]) -> str:
    """The options as a Python literal. An OptionError where a secret would stand in it."""
    lines = []
    for key, value in options.items():
        field = _secret(format, key)
        if field is not None and not isinstance(value, Secret):
            raise OptionError(
                f"option '{key}' of {format} is a secret, and would be written into the project. Put it into an "
                "environment variable, and give its name."
            )
        written = f"os.environ[{_literal(value.env)}]" if isinstance(value, Secret) else _literal(value)
        if field is not None and format in FORMATS:
            key, written = alias(f"{field}_file"), f"secret_file({written})"
        lines.append(f"    {_literal(key)}: {written},\n")
    return "{\n" + "".join(lines) + "}" if lines else "{}"


def _secret(format: str, key: str) -> str | None:
    """The field of an option that is a secret; None where it is none."""
    if format not in FORMATS:
        return key if _LOOKS_SECRET.search(key) else None
    cls = connector(format)
    for model in (cls.options_type, cls.sink_options_type):
        field = spellings(model).get(key.lower()) if model is not None else None
        if model is not None and field in secrets(model):
            return field
    return None


def _literal(text: str) -> str:
    """A text as Python writes it, in the quotes of a formatter where there is nothing to escape."""
    return f'"{text}"' if re.fullmatch(r"[ !#-\[\]-~]*", text) else repr(text)


def _indented(text: str) -> str:
    return text.replace("\n", "\n    ")


def _identifier(name: str) -> str:
    """A name that Python and SQL take: what they do not take becomes an underscore."""
    found = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if not found.strip("_"):
        raise OptionError(f"'{name}' has no letter or digit, so no part of a pipeline can be called so.")
    return f"_{found}" if found[0].isdigit() else found
