"""`penstock run`. Knows typer; how the parts go together."""

import contextlib
import os
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.pipelines import Files, console
from penstock.cli.sentences import sentences
from penstock.cli.showing import Display, Log
from penstock.errors import OptionError

if TYPE_CHECKING:  # Spark takes seconds to import, and other commands need none
    from penstock.monitor.pipelines import RunningPipelines
    from penstock.monitor.server import Address
    from penstock.operate.watching import Watching
    from penstock.pipelines.pipeline import Pipeline

PORT = 8686  # where the address names none


def run(
    files: Files,
    master: Annotated[str | None, typer.Option(help="Where Spark runs; local[*] by default.")] = None,
    remote: Annotated[str | None, typer.Option(help="A Spark Connect server, such as sc://host:15002.")] = None,
    http: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Serve metrics and a live page, such as at 127.0.0.1:8686.")
    ] = None,
    http_cert: Annotated[Path | None, typer.Option(help="A certificate, to serve them by TLS.")] = None,
    http_cert_key: Annotated[Path | None, typer.Option(help="The key of the certificate.")] = None,
    jetstream: Annotated[
        bool, typer.Option(help="With --http, also show the streams and consumers of the pipelines' JetStream servers.")
    ] = True,
    log: Annotated[
        Log, typer.Option(help="A live table, plain lines or lines of JSON; auto is a table in a terminal, else plain.")
    ] = Log.AUTO,
) -> None:
    """Run pipelines, each until it is stopped or has read all that it should."""
    with sentences():
        from penstock.cli.dead_letters import letters
        from penstock.monitor.pipelines import RunningPipelines
        from penstock.monitor.view import overview
        from penstock.pipelines.application import session, stop
        from penstock.pipelines.load import load
        from penstock.pipelines.runner import Runner, State

        pipelines = load(files)
        enabled = [pipeline for pipeline in pipelines if pipeline.enabled]
        display = Display(_style(log, enabled), console(), [pipeline.key for pipeline in pipelines])
        for pipeline in pipelines:
            if not pipeline.enabled:
                display.say(f"{pipeline.key}: not enabled")
        if not enabled:
            raise OptionError("no pipeline is enabled: there is nothing to run.")
        address = address_of(http, http_cert, http_cert_key)
        is_observed = address is not None or _exports()
        spark = session(enabled, master=master, remote=remote, say=display.say)
        try:
            runner = Runner(spark, enabled, display.say)
            shown = RunningPipelines(runner, letters)
            with contextlib.ExitStack() as stack:
                if is_observed:
                    stack.enter_context(
                        _observed(shown, address, display, _servers(enabled) if jetstream and address else [])
                    )
                stack.enter_context(display.showing(lambda: overview(runner.store, shown)))
                states = runner.run()
        finally:
            stop(spark)
    if any(each.state is State.FAILED for each in states):
        raise typer.Exit(1)


def address_of(http: str | None, cert: Path | None, cert_key: Path | None) -> "Address | None":
    """Where to serve; None where nobody asked for it. An OptionError before Spark starts."""
    if http is None:
        if cert or cert_key:
            raise OptionError("--http-cert and --http-cert-key are for --http: say where to serve.")
        return None
    from penstock.monitor.needed import require

    require()
    from penstock.monitor.server import Address

    if not http.isdecimal() and ":" not in http.rpartition("]")[2]:
        http = f"{http}:{PORT}"
    files = {name: str(file) if file else None for name, file in (("cert", cert), ("cert_key", cert_key))}
    address = Address.parse(http, key=os.environ.get("PENSTOCK_API_KEY") or None, **files)
    address.require_free()
    return address


def _exports() -> bool:
    """Whether metrics go to a collector. An OptionError where they cannot."""
    from penstock.monitor.needed import exports, require

    wanted = exports()
    if wanted:
        require()
    return wanted


def _style(log: Log, pipelines: "list[Pipeline]") -> Log:
    """Rows that a sink prints would go through a table: there are lines then."""
    prints = any(sink.type == "console" for pipeline in pipelines for sink in pipeline.sinks)
    return Log.PLAIN if log is Log.AUTO and prints else log


def _servers(pipelines: "Sequence[Pipeline]") -> "list[Watching]":
    """The JetStream servers that pipelines read and write, each once for each user there. Where all of them name their
    streams, only these are looked at.
    """
    from penstock.clients.nats.options import NatsOptions
    from penstock.clients.nats.pool import key
    from penstock.operate.watching import Watching
    from penstock.options import ConnectionOptions, spellings

    known = spellings(NatsOptions)
    # What does not change whom a connection is with, or as whom.
    alike = {name: field.default for name, field in ConnectionOptions.model_fields.items()} | {"connection_name": ""}
    found: dict[Hashable, NatsOptions] = {}
    streams: dict[Hashable, list[tuple[str, ...]]] = {}
    for pipeline in pipelines:
        ends = [pipeline.source, *pipeline.sinks, *([pipeline.dead_letters] if pipeline.dead_letters else [])]
        for end in ends:
            if end.type in ("jetstream", "nats"):
                given = {name: value for name, value in end.options.items() if name.lower() in known}
                options = NatsOptions.parse("jetstream", given)
                same = key(options.model_copy(update=alike))
                found.setdefault(same, options)
                streams.setdefault(same, []).append(_streams(end.options))
    return [
        Watching(options, tuple(dict.fromkeys(name for names in streams[same] for name in names)))
        if all(streams[same])
        else Watching(options)
        for same, options in found.items()
    ]


def _streams(options: "Mapping[str, str]") -> tuple[str, ...]:
    """The streams that an end of a pipeline names; none where it names a subject or a pattern."""
    text = next((value for name, value in options.items() if name.lower() == "stream"), "")
    return tuple(name.strip() for name in text.split(",") if name.strip())


@contextlib.contextmanager
def _observed(
    shown: "RunningPipelines", address: "Address | None", display: Display, jetstream: "Sequence[Watching]"
) -> Iterator[None]:
    """Serve or send away what is known of the pipelines, while they run. A key that was made up is shown to a terminal
    only.
    """
    from penstock.monitor.observer import observe

    runner = shown.runner
    with observe(runner.spark, address, pipelines=shown, store=runner.store, jetstream=jetstream) as observer:
        if address is None:
            pass
        elif address.key is not None:
            display.say(f"serving {observer.url}")
        elif sys.stdout.isatty():
            display.say(f"serving {observer.url}/#key={observer.key}")
        else:
            display.say(f"serving {observer.url}; set PENSTOCK_API_KEY to give orders there")
        yield
