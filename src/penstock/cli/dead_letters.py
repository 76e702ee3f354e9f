"""`penstock dead-letters`: read them, and send them through again. Knows typer and rich."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from penstock.cli.peek import newest
from penstock.cli.pipelines import console, say
from penstock.cli.sentences import sentences
from penstock.connectors import FORMATS, connector
from penstock.errors import ConnectError, OptionError

if TYPE_CHECKING:  # Spark takes seconds to import, and other commands need none
    from penstock.pipelines.dead_letters import Letter
    from penstock.pipelines.pipeline import Pipeline

app = typer.Typer(no_args_is_help=True, help="Records that could not be decoded: read them, send them through again.")
File = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline file.")]
_WIDTH = 60


@app.command()
def show(
    file: File,
    count: Annotated[int, typer.Option("-n", min=1, help="How many, the newest.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON for each.")] = False,
) -> None:
    """Show the newest dead letters of a pipeline."""
    with sentences():
        from penstock.pipelines.load import load

        (pipeline,) = load([file])
        newest_letters = letters(pipeline, count)
    if as_json:
        for each in newest_letters:
            print(json.dumps({**each._asdict(), "value": each.value.decode(errors="replace")}))
        return
    if not newest_letters:
        console().print("no dead letters")
        return
    shown = Table("time", "stream", "position", "error", "record")
    for each in newest_letters:
        shown.add_row(each.time, each.stream, each.position, Text(each.error), Text(_text(each)))
    console().print(shown)


@app.command()
def replay(
    file: File,
    master: Annotated[str | None, typer.Option(help="Where Spark runs; local[*] by default.")] = None,
) -> None:
    """Send dead letters through the pipeline again, each once. What fails again becomes a new dead letter."""
    with sentences():
        from penstock.pipelines.application import session, stop
        from penstock.pipelines.dead_letters import source_of
        from penstock.pipelines.load import load
        from penstock.pipelines.replay import replayed
        from penstock.pipelines.runner import State

        (pipeline,) = load([file])
        source_of(pipeline)
        spark = session([pipeline], master=master, say=say)
        try:
            went = replayed(spark, pipeline, say)
        finally:
            stop(spark)
    if went.state is State.FAILED:
        raise typer.Exit(1)


def letters(pipeline: "Pipeline", count: int) -> "list[Letter]":
    """The newest dead letters, oldest first, without Spark. An OptionError where only Spark can read them."""
    from penstock.pipelines.dead_letters import letter, opened, source_of
    from penstock.pipelines.rows import DEAD_HEADERS

    source = source_of(pipeline)
    if source.kind.format in FORMATS:
        rows = newest(connector(source.kind.format), dict(source.options), count)
        return [opened(pipeline, row) for row in rows]
    if source.file_format != "parquet":
        raise OptionError(f"dead letters in '{source.type}' are read with its own tools, or by Spark.")
    from pyarrow import dataset

    try:
        rows = dataset.dataset(source.options["path"], format="parquet", partitioning="hive").to_table().to_pylist()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConnectError(f"'{source.options['path']}' cannot be read: {error}.") from None
    ordered = sorted(rows, key=lambda row: row["time"])[-count:]
    return [letter({name: str(row[name] or "") for name in DEAD_HEADERS}, row["value"]) for row in ordered]


def _text(each: "Letter") -> str:
    """The bytes of a letter, to look at."""
    try:
        text = each.value.decode()
    except UnicodeDecodeError:
        text = f"0x{each.value.hex()}"
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."
