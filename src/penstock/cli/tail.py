"""`penstock tail`: the newest records of a stream, and those that come. Knows typer; takes no message from anybody."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console

from penstock.cli.following import Following
from penstock.cli.formats import format_names, options_to_read, parsed, plain
from penstock.cli.lines import Lines, as_json, as_text, closed_pipe, show
from penstock.cli.peek import last, refuse_places, refuse_unkept
from penstock.cli.sentences import sentences
from penstock.errors import OptionError
from penstock.kit.retry import at_once

# How often a follower looks for new streams, unless the user says so.
_DISCOVERY = 1.0


def tail(
    name: Annotated[str, typer.Argument(metavar="FORMAT", autocompletion=format_names)],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="OPTION=VALUE...", autocompletion=options_to_read)
    ] = None,
    count: Annotated[int, typer.Option("-n", min=0, help="How many records to begin with.")] = 10,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what comes, until Ctrl-C.")] = False,
    in_json: Annotated[bool, typer.Option("--json", help="A JSON object a line, with all columns.")] = False,
) -> None:
    """Show the newest records, a line each, and with -f those that come: penstock tail jetstream stream=ORDERS -f."""
    with sentences(), closed_pipe(), told_on_stderr():
        format = plain(name)
        given = _given(format, parsed(options or ()), follow)
        try:
            _tail(format, given, count, follow, as_json if in_json else as_text)
        except KeyboardInterrupt:  # the way to end it, so nothing is said
            raise typer.Exit(130) from None


def _tail(format: Any, options: Any, count: int, follow: bool, lines: Lines) -> None:
    source = format.open_source(options)
    try:
        bounds = at_once(source.bounds)
        if _only_listens(format, options):
            tell(f"listening to {', '.join(options.subjects)}")
        else:
            newest = last(format, options, source, bounds, count)
            _show(newest.to_batches(), lines)
            if count and not len(newest) and not follow:
                tell("nothing there yet")
        if follow:
            _show(Following(source, options, bounds, tell).batches(), lines)
    finally:
        source.close()


def _show(batches: Any, lines: Lines) -> None:
    for batch in batches:
        for low in range(0, len(batch), 10_000):
            show(lines(batch.slice(low, 10_000)))


def _given(format: Any, raw: dict[str, str], follow: bool) -> Any:
    """The options. Refuses what would take messages from others, and what keeps none unless it is followed."""
    options = format.parse(raw)
    if _only_listens(format, options) and follow:
        if options.queue is not None:
            raise OptionError(
                f"tail would take messages from the other members of the queue group '{options.queue}'. Leave 'queue' "
                "out, and it gets a copy of each."
            )
    elif _only_listens(format, options):
        raise OptionError(
            f"tail reads the end of what is stored, and cannot do so here: {format.only_streams(options)}, or add -f "
            "to see what is published from now on."
        )
    else:
        refuse_unkept(format, options, "tail")
        refuse_places(options, "tail")
    changes: dict[str, object] = {}
    if "fail_on_data_loss" not in options.model_fields_set:
        changes["fail_on_data_loss"] = False  # what was deleted is told, and the rest is shown
    if "discovery_interval" in type(options).model_fields and "discovery_interval" not in options.model_fields_set:
        changes["discovery_interval"] = _DISCOVERY
    return options.model_copy(update=changes)


def _only_listens(format: Any, options: Any) -> bool:
    """Whether this is Core NATS, which keeps nothing: all that can be had is what is published from now on."""
    return bool(format.format == "nats" and not options.capture)


def tell(sentence: str) -> None:
    """A sentence beside the records, on the terminal and not in a pipe."""
    Console(stderr=True, soft_wrap=True).print(f"penstock: {sentence}", highlight=False, markup=False)


@contextmanager
def told_on_stderr() -> Iterator[None]:
    """What sources and sinks log, such as a server that is away, as sentences on the terminal."""

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            tell(record.getMessage())

    log, handler = logging.getLogger("penstock"), Told(logging.WARNING)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
