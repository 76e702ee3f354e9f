"""`penstock checkpoints`: look into checkpoints, and set them back. Knows typer and rich."""

import json
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from penstock.checkpoints.log import Batch, Log
from penstock.checkpoints.plan import moment_of
from penstock.checkpoints.rewind import SinkMemory
from penstock.checkpoints.rewind import rewind as set_back
from penstock.cli.pipelines import console, say
from penstock.cli.sentences import sentences
from penstock.errors import OptionError

app = typer.Typer(no_args_is_help=True, help="Checkpoints: what is in them, and back to an earlier batch.")
Where = Annotated[str, typer.Argument(metavar="FILE|FOLDER", help="A pipeline file, or the folder of a checkpoint.")]
Json = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]


def _place(where: str) -> tuple[str, list[SinkMemory] | None]:
    """The checkpoint, and what its sinks remember; None where no file says so."""
    if not where.endswith(".toml"):
        return where, None
    from penstock.pipelines.load import load
    from penstock.pipelines.restore import memories

    (pipeline,) = load([Path(where)])
    return pipeline.location, memories(pipeline)


@app.command("list")
def list_batches(where: Where, as_json: Json = False) -> None:
    """List the batches that a checkpoint still knows."""
    with sentences():
        log = Log(_place(where)[0])
        batches = log.batches()
    if as_json:
        print(json.dumps([_as_json(batch) for batch in batches]))
        return
    shown = Table("batch", "planned", "committed", "records", "stands at")
    for batch in batches:
        ends = "; ".join(_short(span.end) for span in batch.sources.values())
        size = "" if batch.size is None else f"{batch.size:,}"
        shown.add_row(
            str(batch.number), _moment(batch.planned), "yes" if batch.committed else "no", size, batch.fault or ends
        )
    console().print(f"query {log.query_id}" + (", with state" if log.is_stateful else ""), highlight=False)
    console().print(shown)


@app.command()
def show(where: Where, batch: Annotated[int | None, typer.Argument(help="By default the last.")] = None) -> None:
    """Show one batch: where it began and ended, source by source, as JSON."""
    with sentences():
        log = Log(_place(where)[0])
        number = log.last_planned if batch is None else batch
        found = next((each for each in log.batches() if each.number == number), None)
        if found is None:
            raise OptionError(log.missing(number if number is not None else 0))
    print(json.dumps(_as_json(found), indent=2))


@app.command()
def diff(where: Where, first: int, second: int, as_json: Json = False) -> None:
    """Show what moved between the ends of two batches."""
    with sentences():
        moves = Log(_place(where)[0]).diff(first, second)
    if as_json:
        print(json.dumps([{**move._asdict(), "by": move.by} for move in moves]))
        return
    shown = Table("source", "stream", f"batch {first}", f"batch {second}", "moved by")
    for move in moves:
        shown.add_row(
            move.source, move.shard, str(move.before), str(move.after), "" if move.by is None else f"{move.by:,}"
        )
    console().print(shown)


@app.command()
def rewind(
    where: Where,
    batch: Annotated[int | None, typer.Option(help="Back to the end of this batch.")] = None,
    time: Annotated[
        str | None, typer.Option(help="Back to what was planned before, such as 2026-11-17T06:00:00Z.")
    ] = None,
    positions: Annotated[str | None, typer.Option(help='To these positions, as JSON: {"ORDERS": 17}.')] = None,
    new_query: Annotated[
        bool, typer.Option("--new-query", help="As a new query: sinks that know what they wrote write it again.")
    ] = False,
) -> None:
    """Set a checkpoint back, after a copy of it. The pipeline must be stopped."""
    with sentences():
        given = [each for each in (batch, time, positions) if each is not None]
        if len(given) != 1:
            raise OptionError("say where to: one of --batch, --time and --positions.")
        location, sinks = _place(where)
        if sinks is None:
            say("no pipeline file was given, so what its sinks remember is not known")
        went = set_back(
            location, moment_of(time) if time is not None else given[0], sinks=sinks or (), new_query=new_query
        )
    if went.copy is None:
        say(f"nothing to do: it stands at the end of batch {went.kept}")
        return
    first, *rest = went.removed or (None,)
    removed = (
        ""
        if first is None
        else f"batches {first} to {rest[-1]} are removed, "
        if rest
        else f"batch {first} is removed, "
    )
    following = (
        f"the query begins anew, with batch {went.next_batch}" if new_query else f"the next one is {went.next_batch}"
    )
    say(f"{removed}{following}. What was before is in {went.copy}")
    for source, offset in went.positions.items():
        say(f"source {source} stands at {_short(offset)}")


def _moment(planned: datetime | None) -> str:
    return "" if planned is None else f"{planned:%Y-%m-%d %H:%M:%S}Z"


def _as_json(batch: Batch) -> dict[str, Any]:
    return {
        "batch": batch.number,
        "planned": batch.planned.isoformat() if batch.planned else None,
        "committed": batch.committed,
        "records": batch.size,
        "sources": {
            name: {"start": _plain(span.start), "end": _plain(span.end)} for name, span in batch.sources.items()
        },
        **({"fault": batch.fault} if batch.fault else {}),
    }


def _plain(offset: Any) -> Any:
    """An offset as JSON has it."""
    if offset is None:
        return None
    return offset.text if offset.positions is None else dict(offset.positions)


def _short(offset: Any) -> str:
    text = json.dumps(_plain(offset))
    return text if len(text) <= 100 else f"{text[:97]}..."
