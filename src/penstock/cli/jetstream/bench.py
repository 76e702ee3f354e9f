"""`penstock jetstream bench`: a server measured, or embedded ones. Knows typer and rich; what is measured is in
operate/bench.
"""

import json
import os
import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.jetstream.asking import InJson, Words, asking, options_of
from penstock.cli.jetstream.bench_servers import Servers
from penstock.cli.lines import closed_pipe
from penstock.cli.pipelines import console
from penstock.cli.sentences import sentences
from penstock.errors import OptionError
from penstock.options.types import Bytes, Seconds

if TYPE_CHECKING:  # other commands need no numpy
    from penstock.operate.bench.matrix import Scenario
    from penstock.operate.bench.run import Outcome, Progress, Settings

QUICK = 0.3  # seconds of a phase in a quick run
# How long it takes besides measuring: to start servers, to make streams and to look whether all is stored.
STARTING, STARTING_CLUSTER = 1.0, 2.0


class Beside(StrEnum):
    """Programs to compare with."""

    NATS_BENCH = "nats-bench"


def bench(
    options: Words = None,
    only: Annotated[str | None, typer.Option(help="Scenarios whose name matches this regular expression.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Every combination. It takes days.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="One short round of fewer scenarios: under a minute.")] = False,
    seconds: Annotated[float | None, typer.Option(min=0.1, max=3600, help="Of each phase. Default: 2.")] = None,
    rounds: Annotated[
        int | None, typer.Option(min=0, max=100, help="Of each scenario, in turns. Default: 3. 0: only --soak.")
    ] = None,
    rate: Annotated[float, typer.Option(min=1, max=100_000, help="Messages a second, to measure latency.")] = 1000.0,
    most: Annotated[str, typer.Option(help="The most bytes of a scenario's streams.")] = "256mb",
    soak: Annotated[str | None, typer.Option(help="Then a constant rate for so long, such as 30m.")] = None,
    monitoring: Annotated[
        list[str] | None, typer.Option(help="Monitoring address of a given server, for its CPU and memory. Repeatable.")
    ] = None,
    beside: Annotated[Beside | None, typer.Option(help="Instead: in turns with another program.")] = None,
    against: Annotated[Path | None, typer.Option(help="The JSON of an earlier run, to compare with.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the report: JSON, Markdown and a page.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="Only list the scenarios.")] = False,
    in_json: InJson = False,
) -> None:
    """Measure JetStream: penstock jetstream bench, or with servers=nats://127.0.0.1:4222 that server.

    Without options of a connection it starts servers of its own. Exit code 1: a scenario failed, or a soak drifts.
    Ctrl-C ends it with 130, after a report of what is finished.
    """
    with sentences(), closed_pipe():
        from penstock.operate.bench import matrix, report
        from penstock.operate.bench.run import Settings

        settings = Settings(
            seconds=seconds or (QUICK if quick else 2.0),
            rounds=rounds if rounds is not None else 1 if quick else 3,
            rate=rate,
            most_bytes=_parsed(Bytes, most, "--most"),
        )
        length = _parsed(Seconds, soak, "--soak") if soak is not None else None
        earlier = report.loaded(against) if against is not None else None
        if monitoring and not options:
            raise OptionError("--monitoring is for a server that is given: add servers=nats://HOST:PORT.")
        chosen = matrix.only(matrix.scenarios(full=full, quick=quick), only)
        if settings.rounds == 0 and length is None:
            raise OptionError("--rounds 0 measures nothing: set --soak as well.")
        if beside is not None and length is not None:
            raise OptionError("--beside and --soak are two runs: leave one of them out.")
        if only is None and (beside is not None or settings.rounds == 0):
            chosen = chosen[:1]
        if listed:
            _list(chosen, in_json)
            return
        if out is not None:
            _writable(out)
        with Servers(options_of(options) if options else None, monitoring or ()) as servers:
            told = _measured(servers, chosen, settings, length, beside, in_json)
        if earlier is not None and against is not None:
            told["against"] = report.compared(told, earlier, against.name)
        told = report.settled(told)
        try:
            if in_json:
                print(report.as_json(told), end="", flush=True)
            else:
                _show(told)
        finally:  # also where nobody reads what is printed
            if out is not None:
                _written(told, out)
        if told.get("stopped"):
            raise KeyboardInterrupt
        drifts = any(each["verdict"] == "drifts" for each in told.get("soak", {}).get("verdicts", {}).values())
        if report.failures(told) or drifts:
            raise typer.Exit(1)


def _parsed(kind: Any, text: str, name: str) -> Any:
    """A size or a duration."""
    try:
        return TypeAdapter(kind).validate_python(text)
    except ValidationError as error:
        why = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise OptionError(f"{name} {why}, but is '{text}'.") from None


def _list(chosen: "Sequence[Scenario]", in_json: bool) -> None:
    if in_json:
        print(json.dumps([each.values() | {"name": each.name} for each in chosen]))
        return
    for each in chosen:
        console().print(each.name, highlight=False, markup=False, soft_wrap=True)


def _measured(
    servers: Servers,
    chosen: "list[Scenario]",
    settings: "Settings",
    length: float | None,
    beside: Beside | None,
    in_json: bool,
) -> dict[str, Any]:
    """Everything that was asked for, as a report."""
    from penstock.operate.bench import matrix, report
    from penstock.operate.bench.beside import beside as compare
    from penstock.operate.bench.beside import program
    from penstock.operate.bench.machine import described
    from penstock.operate.bench.run import Stopped, run
    from penstock.operate.bench.soak import soak

    machine, run_id, began = described(), secrets.token_hex(4), time.monotonic()
    if beside is not None:
        program()
    able, server = servers.able()
    kept, left_out = matrix.runnable(chosen, able)
    if not kept:
        raise OptionError(f"this server can run none of these scenarios: {next(iter(left_out.values()))}.")
    remarks = _prepared(servers, kept, settings) if servers.given is not None else []
    starting = lambda each: STARTING_CLUSTER if each.clustered else STARTING  # noqa: E731 - it is short
    needed = matrix.seconds_needed(kept, settings.rounds, settings.seconds, starting)
    file, memory = matrix.most_written(kept, settings.most_bytes)
    told: dict[str, Any] = {
        "format": report.FORMAT, "machine": machine, "server": server, "settings": settings.as_json(),
        "began": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "scenarios": [], "left_out": left_out,
        "remarks": remarks,
    }  # fmt: skip
    with _Showing() as showing:
        showing.say(
            f"{len(kept)} scenarios, {settings.rounds} rounds, about {_minutes(needed + (length or 0))}. At most "
            f"{file / 2**20:,.0f} MB in files and {memory / 2**20:,.0f} MB in memory are stored at a time, and deleted "
            "again."
        )
        for name, why in left_out.items():
            showing.say(f"left out: {name}: {why}")
        for text in remarks:
            showing.say(text)
        try:
            if beside is not None:
                with servers.open(kept[0]) as opened:
                    told["beside"] = compare(
                        kept, settings, run_id, opened, lambda name, phase: showing.say(f"{name}: {phase}")
                    )
            elif settings.rounds:
                outcomes = run(kept, settings, run_id, servers.open, showing.progress, needed)
                told["scenarios"] = [each.as_json() for each in outcomes]
            if length is not None:
                end = time.monotonic() + length
                with servers.open(kept[0]) as opened:
                    told["soak"] = soak(
                        kept[0], settings, run_id, opened, length, lambda phase, at: showing.soak(phase, end)
                    )
        except KeyboardInterrupt as stop:
            _stopped(told, stop.outcomes if isinstance(stop, Stopped) else [])
    told["took"] = time.monotonic() - began
    return told


def _stopped(told: dict[str, Any], outcomes: "Sequence[Outcome]") -> None:
    """The report of what was measured before Ctrl-C. KeyboardInterrupt where that is nothing."""
    for each in outcomes:
        if each.rounds or each.failed:
            told["scenarios"].append(each.as_json())
        else:
            told["left_out"][each.scenario.name] = "it was stopped before"
    if not told["scenarios"]:
        raise KeyboardInterrupt
    told["stopped"] = True
    told["remarks"].append("Ctrl-C stopped this run: these are the rounds that were finished.")


def _prepared(servers: Servers, kept: "Sequence[Scenario]", settings: "Settings") -> list[str]:
    """What earlier benchmarks left behind is deleted from the given server, and there must be room for this one."""
    from penstock.operate.bench import matrix, streams

    assert servers.given is not None
    said = []
    with asking(servers.given) as calls:
        for left in streams.leftovers(calls):
            if left.dead and not streams.delete(calls, [left.name]):
                said.append(f"deleted the stream '{left.name}' of an earlier benchmark: {left.why}")
            else:
                said.append(f"left alone the stream '{left.name}' of another benchmark: {left.why}")
        answer = calls.call("INFO")
        for storage in ("file", "memory"):
            for copies in (1, 3):
                some = [each for each in kept if each.storage == storage and each.copies == copies]
                need = max(matrix.most_written(some, settings.most_bytes)) if some else 0
                room = streams.room(answer, storage, copies)
                if need and room is not None and room < need:
                    raise OptionError(
                        f"the account may store {room / 2**20:,.0f} MB more in {storage}, and this benchmark may need "
                        f"{need / 2**20:,.0f} MB there. Set --most lower, or choose scenarios with --only."
                    )
    return said


class _Showing:
    """How far it is, on standard error: a line that changes in a terminal, else a line for each scenario."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, soft_wrap=True)
        self._status = self.console.status("") if self.console.is_terminal else None
        self._last = ""
        self._next = 0.0

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(text, highlight=False, markup=False)

    def progress(self, at: "Progress") -> None:
        """Show where a run is."""
        head = f"{at.number} of {at.total}: {at.scenario}"
        left = f"about {_minutes(at.seconds_left)} left"
        if self._status is not None:
            rate = f", {at.rate:,.0f} messages/s" if at.rate else ""
            self._status.update(Text(f"{head}: {at.phase}{rate}, {left}"))
        elif head != self._last:
            self.say(f"{head}, {left}")
        self._last = head

    def soak(self, phase: str, end: float) -> None:
        """Show where a soak is."""
        left = f"{phase}, about {_minutes(max(0.0, end - time.monotonic()))} left"
        if self._status is not None:
            self._status.update(Text(left))
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + 60
            self.say(left)


def _minutes(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:,.1f} h"


def _writable(out: Path) -> None:
    """Refuse a folder that cannot be written before hours were spent."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"--out '{out}' cannot be made: {error.strerror}.") from None
    if not os.access(out, os.W_OK):
        raise OptionError(f"--out '{out}' cannot be written to.")


def _written(told: dict[str, Any], out: Path) -> None:
    """The files of the report. An OptionError where they cannot be written."""
    from penstock.operate.bench import page, report

    try:
        for ending, text in (("json", report.as_json), ("md", report.markdown), ("html", page.html)):
            (out / f"{report.NAME}.{ending}").write_text(text(told), encoding="utf-8")
    except OSError as error:
        raise OptionError(
            f"the report cannot be written to '{out}': {error.strerror}. What was measured is printed above."
        ) from None
    said = f"written to {out / report.NAME}.json, .md and .html"
    Console(stderr=True, soft_wrap=True).print(said, highlight=False, markup=False)


def _show(told: dict[str, Any]) -> None:
    """The report on the terminal."""
    from penstock.operate.bench import report

    shown = console()
    for line in report.machine_lines(told):
        shown.print(line, highlight=False, markup=False, soft_wrap=True)
    parts: list[tuple[str, Sequence[str], Sequence[Sequence[str]]]] = []
    for table in report.TABLES:
        parts.append((table.title, *report.rows(told, table)))
    if "soak" in told:
        parts.append((report.soak_line(told["soak"]), report.SOAK_HEAD, report.soak_rows(told["soak"])))
    if "beside" in told:
        parts.append((told["beside"]["said"], report.BESIDE_HEAD, report.beside_rows(told["beside"])))
    if "against" in told:
        title = f"against {told['against']['with']}. {report.different(told['against'])}"
        parts.append((title, report.COMPARED_HEAD, report.compared_rows(told["against"])))
    for title, head, body in parts:
        if body:
            shown.print()
            shown.print(title, highlight=False, markup=False, soft_wrap=True)
            table_shown = Table(*head)
            for row in body:
                table_shown.add_row(*(Text(each) for each in row))
            shown.print(table_shown)
    for text in report.troubles(told):
        shown.print(text, highlight=False, markup=False, soft_wrap=True)
