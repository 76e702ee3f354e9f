"""`penstock lag`: how far a query is behind. Knows typer and rich."""

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.formats import parsed
from penstock.cli.pipelines import console
from penstock.cli.sentences import sentences
from penstock.errors import OptionError

if TYPE_CHECKING:  # connectors take a second to import, and other commands need none
    from penstock.jobs.lag import Report


def lag(
    where: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="Its folder, or the file of a pipeline.")],
    format: Annotated[str | None, typer.Argument(metavar="FORMAT", help="What the query reads.")] = None,
    options: Annotated[list[str] | None, typer.Argument(metavar="OPTION=VALUE...")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
    max_records: Annotated[
        int | None, typer.Option(min=0, help="Exit code 1 if it is more records behind, or that cannot be told.")
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option(min=0, help="Exit code 1 if the oldest unread record is older.")
    ] = None,
) -> None:
    """Show how far a query is behind, running or not: penstock lag /checkpoints/orders jetstream stream=ORDERS."""
    with sentences():
        from penstock.jobs.measure import measure

        location, name, given = _asked(where, format, options or [])
        with _quiet():  # what is gone is told below
            report = measure(location, name, given)
    if as_json:
        print(json.dumps(report.as_json()))
    else:
        _show(report)
    if why := report.exceeds(max_records, max_seconds):
        _complain(why)
        raise typer.Exit(1)


@contextmanager
def _quiet() -> Iterator[None]:
    """Let sources log errors only."""
    log = logging.getLogger("penstock")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _asked(where: str, format: str | None, words: Sequence[str]) -> tuple[str, str | None, dict[str, str]]:
    """The checkpoint, the format and the options: of the command line, or of the file of a pipeline."""
    if not where.endswith(".toml"):
        return where, format, parsed(words)
    if format is not None:
        raise OptionError(f"'{where}' says what its pipeline reads: leave out '{format}' and the options.")
    from penstock.pipelines.load import load

    (pipeline,) = load([Path(where)])
    return pipeline.location, pipeline.source.kind.format, dict(pipeline.source.options)


def _show(report: "Report") -> None:
    from penstock.jobs.lag import written

    out = console()
    if report.standings:
        shown = Table("source", "stream", "position", "end", "records behind", "seconds behind")
        for each in report.standings:
            shown.add_row(
                f"{each.source} {each.format}",
                Text(each.shard),
                "not begun" if each.position is None else str(written(each.position)),
                ("gone" if " is gone" in each.problem else "not known") if each.end is None else str(written(each.end)),
                "" if each.records is None else f"{each.records:,}",
                _age(each.seconds),
            )
        if len(report.standings) > 1:
            records = "" if report.records is None else f"{report.records:,}"
            shown.add_row("all", "", "", "", records, _age(report.seconds))
        out.print(f"query {report.query}, at the end of batch {report.batch}", highlight=False)
        out.print(shown)
    problems = dict.fromkeys(f"{each.problem.rstrip('.')}." for each in report.standings if each.problem)
    for text in [*problems, *report.remarks]:
        out.print(text, highlight=False, markup=False, soft_wrap=True)
    if sum(bool(each.lost) for each in report.standings) > 1:
        out.print(f"{report.lost:,} records were deleted unread.", highlight=False)


def _age(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:,.1f}" if 0 < seconds < 10 else f"{seconds:,.0f}"


def _complain(why: Sequence[str]) -> None:
    for text in why:
        Console(stderr=True, soft_wrap=True).print(f"penstock: {text}", style="red", highlight=False, markup=False)
