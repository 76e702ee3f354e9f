"""`penstock jobs`: streaming queries found from outside. Knows typer and rich."""

import json
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.cli.pipelines import console
from penstock.cli.sentences import sentences

if TYPE_CHECKING:  # other commands need none of it
    from penstock.jobs.rows import Job

    Look = tuple[list[Job], list[Job], list[str], list[str]]  # all queries, those that match, problems, and remarks

EVERY = 2.0  # seconds between two looks


def jobs(
    id: Annotated[str, typer.Option(help="Only the query whose id begins so.")] = "",
    name: Annotated[str, typer.Option(metavar="REGEX", help="Only queries with such names.")] = "",
    source: Annotated[str, typer.Option(help="Only queries that read this, such as jetstream or kafka.")] = "",
    spark: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="A Spark UI or a history server; 4040 to 4049 here.")
    ] = None,
    master: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="The page of a standalone master, as http://host:8080.")
    ] = None,
    events: Annotated[list[str] | None, typer.Option(metavar="FOLDER", help="Event logs of Spark.")] = None,
    checkpoints: Annotated[
        list[str] | None, typer.Option(metavar="FOLDER", help="Checkpoints, at any depth below it.")
    ] = None,
    api: Annotated[list[str] | None, typer.Option(metavar="URL", help="The API of a runner of Penstock.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every 2 seconds, until Ctrl-C.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON array; with --watch, one object in each line.")
    ] = False,
) -> None:
    """Show streaming queries that run, ran, or left a checkpoint: penstock jobs --events /logs --name '^orders'."""
    with sentences():
        from penstock.jobs.places import Places
        from penstock.jobs.rows import Wanted

        wanted = Wanted(id, name, source)
        places = Places(spark or (), master or (), events or (), checkpoints or (), api or ())

        def look() -> "Look":
            everything, problems = places.look()
            found, unclear = wanted.select(everything)
            return everything, found, problems, [unclear] if unclear else []

        if watch:
            _watch(look, as_json=as_json)
            return
        everything, found, problems, remarks = look()
    if as_json:
        print(json.dumps([job.as_json() for job in found]))
    elif found:
        console().print(_table(found))
    elif not problems:
        console().print("no query was found there" if not everything else "no query that was found matches")
    _tell([*problems, *remarks])
    if problems:
        raise typer.Exit(1)


def _watch(look: "Callable[[], Look]", *, as_json: bool) -> None:
    """Look again and again. Ends with Ctrl-C, which is what ends it."""
    try:
        if as_json:
            while True:
                _, found, problems, remarks = look()
                for job in found:
                    print(json.dumps(job.as_json()), flush=True)
                _tell([*problems, *remarks])
                time.sleep(EVERY)
        with Live(console=console(), auto_refresh=False) as live:
            while True:
                _, found, problems, remarks = look()
                below = (Text(text, "red") for text in (*problems, *remarks))
                live.update(Group(_table(found), *below), refresh=True)
                time.sleep(EVERY)
    except KeyboardInterrupt:
        return


def _table(found: "Sequence[Job]") -> Table:
    shown = Table("name", "id", "application", "reads", "state", "batch", "when", "rows/s", "behind", "error")
    for job in found:
        behind = f"{job.lag:,}" if job.lag is not None else ""
        if job.lag_seconds is not None:
            behind = f"{job.lag_seconds:,.0f} s"
        shown.add_row(
            Text(job.name), job.id[:8], Text(job.application), Text(", ".join(job.sources)),
            job.state or "not known", "" if job.batch is None else f"{job.batch:,}", _ago(job.seen),
            "" if job.rate is None else f"{job.rate:,.0f}", behind, Text(_cut(job.error)),
        )  # fmt: skip
    return shown


def _ago(seen: datetime | None) -> str:
    if seen is None:
        return ""
    seconds = max(0, round((datetime.now(UTC) - seen).total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def _cut(error: str) -> str:
    return error if len(error) <= 200 else f"{error[:197]}..."


def _tell(texts: Sequence[str]) -> None:
    for text in texts:
        Console(stderr=True, soft_wrap=True).print(f"penstock: {text}", style="red", highlight=False, markup=False)
