"""`penstock jetstream doctor`: what works, what does not, and what mends it. Knows typer and rich."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from penstock.cli.jetstream.asking import InJson, Words, options_of, telling, usage
from penstock.cli.jetstream.durations import seconds_of
from penstock.cli.lines import closed_pipe
from penstock.cli.pipelines import console
from penstock.cli.sentences import sentences
from penstock.clients.nats.subjects import problem
from penstock.errors import OptionError
from penstock.kit.masking import harmless

if TYPE_CHECKING:
    from penstock.operate.doctor.findings import Finding

_COLOURS = {"error": "bold red", "warning": "yellow", "advice": "cyan", "not checked": "dim", "ok": "green"}


def doctor(
    options: Words = None,
    stream: Annotated[list[str] | None, typer.Option(help="Only this stream; may be repeated.")] = None,
    monitoring: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Where a server is monitored, such as http://HOST:8222; may be repeated."),
    ] = None,
    publish: Annotated[
        str | None, typer.Option(metavar="SUBJECT", help="A subject that will be written to. Nothing is stored.")
    ] = None,
    watch: Annotated[str, typer.Option(metavar="DURATION", help="How long to look, for rates.")] = "2s",
    in_json: InJson = False,
) -> None:
    """Check servers, account, permissions, streams and consumers: penstock jetstream doctor servers=nats://127.0.0.1:4222.

    Changes nothing, and takes no message from anybody. Exit code 0 where all is well or there is only advice, 1 where
    there are warnings, 2 where there are errors, 64 where this command line is wrong.
    """
    with sentences(), closed_pipe(), usage():
        from penstock.operate.doctor.collect import collect
        from penstock.operate.doctor.findings import exit_code
        from penstock.operate.doctor.judge import judge

        if publish is not None and (why := problem(publish, wildcards=False)):
            raise OptionError(f"--publish '{harmless(publish)}' {why}: name one subject, such as orders.eu.")
        given = options_of(options)
        with telling() as say:
            facts = collect(
                given,
                names=stream or (),
                monitoring=monitoring or (),
                publish=publish or "",
                seconds=seconds_of(watch, "--watch"),
                say=say,
            )
        findings = judge(facts)
        if in_json:
            print(json.dumps({"exit": exit_code(findings), "findings": [each.as_json() for each in findings]}))
        else:
            _show(findings)
    if code := exit_code(findings):
        raise typer.Exit(code)


def _show(findings: Sequence["Finding"]) -> None:
    out = console()
    counts: dict[str, int] = {}
    drawn = Table("", "check", "about", "finding, and what mends it")
    for each in findings:
        counts[each.level] = counts.get(each.level, 0) + 1
        text = Text(harmless(each.says))
        if each.mend:
            text.append(f"\n{harmless(each.mend)}", "dim" if each.level in ("ok", "not checked") else "bold")
        drawn.add_row(Text(each.level, _COLOURS[each.level]), each.check, Text(harmless(each.about)), text)
    out.print(drawn)
    out.print(", ".join(_counted(*each) for each in counts.items()), highlight=False, markup=False)


def _counted(level: str, count: int) -> str:
    return f"{count} {level}{'s' if count > 1 and level in ('error', 'warning') else ''}"
