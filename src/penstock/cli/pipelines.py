"""Commands about pipeline files. Knows typer and rich; all that they show comes from the library."""

import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.prompt import Prompt
from rich.table import Table

from penstock.cli.sentences import sentences
from penstock.errors import OptionError

if TYPE_CHECKING:  # Spark takes seconds to import, and other commands need none
    from penstock.pipelines.new import Question

Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Pipeline files, or folders of them.")]


def check(
    files: Files,
    connect: Annotated[
        bool, typer.Option("--connect", help="Also try the servers, the schema and one batch, without writing.")
    ] = False,
) -> None:
    """Check pipeline files, and say what each promises."""
    with sentences():
        from penstock.pipelines.load import load

        pipelines = load(files)
        shown = Table("pipeline", "from", "to", "guarantee")
        for pipeline in pipelines:
            targets = ", ".join(sink.name for sink in pipeline.sinks)
            if pipeline.dead_letters is not None:
                targets += f" (dead letters: {pipeline.dead_letters.type})"
            off = "" if pipeline.enabled else " (not enabled)"
            shown.add_row(f"{pipeline.key}{off}", pipeline.source.type, targets, pipeline.guarantee())
        console().print(shown)
        if connect:
            from penstock.pipelines.trial import tried

            for line in tried(pipelines, say):
                say(line)


def console() -> Console:
    """Where commands print. Nobody can widen a pipe to see the rest of a line."""
    own = Console()
    return own if own.is_terminal else Console(width=200)


def say(text: str) -> None:
    """Print lines with the time before them."""
    for line in text.splitlines():
        console().print(f"{time.strftime('%H:%M:%S')} {line}", highlight=False, markup=False, soft_wrap=True)


def schema() -> None:
    """Print the JSON Schema of pipeline files, for editors: penstock schema > penstock.schema.json."""
    from penstock.pipelines.schema import json_schema

    print(json.dumps(json_schema(), indent=2))


def convert(
    file: Annotated[Path, typer.Argument(help="A configuration of the Flink source connector for Iggy.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where to write it, instead of here.")] = None,
) -> None:
    """Turn a configuration of the Flink source connector for Iggy into a pipeline file."""
    with sentences():
        from penstock.pipelines.convert import convert as converted

        try:
            given = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"{file} cannot be read: {error}.") from None
        try:
            result = converted(given, file.stem)
        except OptionError as error:
            raise OptionError(f"{file}: {error}") from None
        _put(result.text, output)
        for line in result.left_out:
            Console(stderr=True).print(f"left out: {line}", highlight=False, markup=False, soft_wrap=True)


def new(
    file: Annotated[Path, typer.Argument(help="The file to write.")] = Path("pipeline.toml"),
) -> None:
    """Ask a few questions, and write a first pipeline file."""
    with sentences():
        from penstock.pipelines import new as asked
        from penstock.pipelines.load import load

        if file.exists():
            raise OptionError(f"{file} is there already: name another.")
        source, sink = _answers("Read from", asked.SOURCES), _answers("Write to", asked.SINKS)
        records = _answers("The records are", asked.RECORDS) if source[0] != "rate" else None
        key = re.sub(r"[^A-Za-z0-9_-]", "-", file.stem)
        file.write_text(asked.text(key, source, sink, records if records != ("raw", {}) else None))
        for name in re.findall(r'env = "(\w+)"', file.read_text()):
            os.environ.setdefault(name, "unset")  # to check the rest; `run` wants it
            say(f"set the environment variable {name} before you run it")
        load([file])
        say(f"{file} is written. Try it: penstock check --connect {file}; then: penstock run {file}")


def _answers(what: str, kinds: "Mapping[str, tuple[Question, ...]]") -> tuple[str, dict[str, str]]:
    """One of several kinds, and what is asked for it."""
    kind = Prompt.ask(what, choices=list(kinds), default=next(iter(kinds)))
    return kind, {each.key: Prompt.ask(each.text, default=each.default) for each in kinds[kind]}


def _put(text: str, output: Path | None) -> None:
    if output is None:
        print(text, end="")
    elif output.exists():
        raise OptionError(f"{output} is there already: name another.")
    else:
        output.write_text(text)


def export(
    file: Annotated[Path, typer.Argument(help="The pipeline file.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the project.")],
    sdp: Annotated[
        bool, typer.Option("--sdp", help="A project of Spark Declarative Pipelines (the only kind).")
    ] = True,
) -> None:
    """Write a pipeline as a project of Spark Declarative Pipelines, for `spark-pipelines run`."""
    with sentences():
        from penstock.pipelines.load import load
        from penstock.pipelines.project import project

        (pipeline,) = load([file])
        if output.exists() and any(output.iterdir()):
            raise OptionError(f"there is something in {output} already: name an empty folder.")
        for name, text in project(pipeline, (output / "storage").resolve().as_uri()).items():
            place = output / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        say(f"{output} is written. Run it there: spark-pipelines run --spec spark-pipeline.yml")
