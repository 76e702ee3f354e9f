"""The command line. Knows typer and rich; everything it shows comes from the library."""

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli import checkpoints, dead_letters, pipelines
from penstock.cli.peek import newest
from penstock.cli.sentences import sentences
from penstock.cli.versions import versions
from penstock.connectors import FORMATS, GUARANTEES, connector, guarantees
from penstock.errors import OptionError
from penstock.options import table

app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_show_locals=False
)
console = Console()
if not console.is_terminal:
    console = Console(width=200)  # nobody can widen a pipe to see the rest of a line


def _version(asked: bool) -> None:
    if asked:
        for name, version in versions().items():
            console.print(f"{name:<10}{version}", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit


@app.callback()
def main(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False) -> None:
    """NATS, JetStream, S2, Iggy and Kinesis streams for Apache Spark."""


for command in (pipelines.run, pipelines.check, pipelines.new, pipelines.convert, pipelines.export, pipelines.schema):
    app.command()(command)
app.add_typer(checkpoints.app, name="checkpoints")
app.add_typer(dead_letters.app, name="dead-letters")


@app.command()
def demo(
    records: Annotated[int, typer.Option(help="How many orders to make up.")] = 100_000,
    master: Annotated[str, typer.Option(help="Where Spark runs.")] = "local[*]",
) -> None:
    """Read a stream of made-up orders with Spark, on a server of its own, and prove that none is missing."""
    with sentences():
        from penstock.cli.demo import run

        run(console, records, master)


@app.command()
def describe(
    name: Annotated[str | None, typer.Argument(metavar="CONNECTOR", help="One connector; all without it.")] = None,
) -> None:
    """Show the connectors, or the options of one."""
    with sentences():
        if name is None:
            shown = Table("format", *GUARANTEES, title="connectors")
            for each in FORMATS:
                shown.add_row(each, *guarantees(each))
        else:
            shown = Table("option", "for", "default", "meaning", title=f"options of {name}", show_lines=False)
            reads, writes = (
                {option: (default, doc) for option, default, doc in table(model)} if model else {}
                for model in (connector(name).options_type, connector(name).sink_options_type)
            )
            for option, (default, doc) in (writes | reads).items():
                way = "both" if option in reads and option in writes else "read" if option in reads else "write"
                shown.add_row(option, way, default, Text(doc.replace("`", "")))
    console.print(shown)


@app.command()
def peek(
    name: Annotated[str, typer.Argument(metavar="CONNECTOR")],
    options: Annotated[list[str] | None, typer.Argument(metavar="OPTION=VALUE...")] = None,
    count: Annotated[int, typer.Option("-n", min=1, help="How many records.")] = 10,
) -> None:
    """Show the newest records, without starting Spark: penstock peek jetstream stream=ORDERS -n 10."""
    with sentences():
        raw = {}
        for text in options or []:
            key, equals, value = text.partition("=")
            if not equals:
                raise OptionError(f"'{text}' is no option: write name=value, such as stream=ORDERS.")
            raw[key] = value
        rows = newest(connector(name), raw, count)
    if not rows:
        console.print("nothing there yet")
        return
    shown = Table(*(column for column in rows[0]), title=f"the newest {len(rows)} of {name}")
    for row in rows:
        shown.add_row(*(Text(_cell(value)) for value in row.values()))  # Text: a body is no markup
    console.print(shown)


def _cell(value: Any) -> str:
    if isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = ""
        if not text.replace("\n", "").replace("\t", "").isprintable() or (value and not text):
            text = f"0x{value[:30].hex()}"  # Avro, Protobuf and the like: a terminal would act on it
        return text if len(text) <= 60 else f"{text[:57]}..."
    if isinstance(value, list):
        return ", ".join(f"{field['key']}: {_cell(field['value'])}" for field in value)
    return "" if value is None else str(value)
