"""The command line. Knows typer and rich; everything it shows comes from the library."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli import checkpoints, dead_letters, jetstream, pipelines
from penstock.cli.formats import format_names, options_to_read, parsed
from penstock.cli.jobs import jobs
from penstock.cli.lag import lag
from penstock.cli.lines import cell
from penstock.cli.peek import newest
from penstock.cli.put import WithValues, put
from penstock.cli.run import run
from penstock.cli.sentences import sentences
from penstock.cli.streams import streams
from penstock.cli.tail import tail
from penstock.cli.versions import versions
from penstock.connectors import FORMATS, GUARANTEES, connector, guarantees
from penstock.options import table

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_show_locals=False)
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


for command in (run, pipelines.check, pipelines.new, pipelines.convert, pipelines.export, pipelines.schema):
    app.command()(command)
app.command()(streams)
app.command()(tail)
app.command(cls=WithValues)(put)
app.command()(jobs)
app.command()(lag)
app.add_typer(jetstream.app, name="jetstream")
app.add_typer(checkpoints.app, name="checkpoints")
app.add_typer(dead_letters.app, name="dead-letters")


@app.command()
def demo(
    records: Annotated[int, typer.Option(help="How many orders to make up.")] = 100_000,
    master: Annotated[str, typer.Option(help="Where Spark runs.")] = "local[*]",
) -> None:
    """Read a stream of made-up orders with Spark, on a server of its own, and prove that none is missing."""
    with sentences():
        from penstock.cli.demo import run as run_demo

        run_demo(console, records, master)


@app.command()
def describe(
    name: Annotated[
        str | None,
        typer.Argument(metavar="CONNECTOR", help="One connector; all without it.", autocompletion=format_names),
    ] = None,
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
    name: Annotated[str, typer.Argument(metavar="CONNECTOR", autocompletion=format_names)],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="OPTION=VALUE...", autocompletion=options_to_read)
    ] = None,
    count: Annotated[int, typer.Option("-n", min=1, help="How many records.")] = 10,
) -> None:
    """Show the newest records, without starting Spark: penstock peek jetstream stream=ORDERS -n 10."""
    with sentences():
        rows = newest(connector(name), parsed(options or ()), count)
    if not rows:
        console.print("nothing there yet")
        return
    shown = Table(*(column for column in rows[0]), title=f"the newest {len(rows)} of {name}")
    for row in rows:
        shown.add_row(*(Text(cell(value, 60)) for value in row.values()))  # Text: a body is no markup
    console.print(shown)
