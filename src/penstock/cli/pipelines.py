"""`penstock run` and `check`: pipelines from files. Knows typer and rich; all that it shows comes from the library."""

import contextlib
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.prompt import Prompt
from rich.table import Table

from penstock.cli.sentences import sentences
from penstock.errors import OptionError

if TYPE_CHECKING:  # Spark takes seconds to import, and other commands need none
    from penstock.monitor.server import Address
    from penstock.pipelines.new import Question
    from penstock.pipelines.runner import Runner

Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Pipeline files, or folders of them.")]


def run(
    files: Files,
    master: Annotated[str | None, typer.Option(help="Where Spark runs; local[*] by default.")] = None,
    remote: Annotated[str | None, typer.Option(help="A Spark Connect server, such as sc://host:15002.")] = None,
    http: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Serve metrics and a live page, such as at 127.0.0.1:8686.")
    ] = None,
    http_cert: Annotated[Path | None, typer.Option(help="A certificate, to serve them by TLS.")] = None,
    http_cert_key: Annotated[Path | None, typer.Option(help="The key of the certificate.")] = None,
) -> None:
    """Run pipelines, each until it is stopped or has read all that it should."""
    with sentences():
        from penstock.pipelines.application import session, stop
        from penstock.pipelines.load import load
        from penstock.pipelines.runner import Runner, State

        logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
        pipelines = load(files)
        enabled = [pipeline for pipeline in pipelines if pipeline.enabled]
        for pipeline in pipelines:
            if not pipeline.enabled:
                say(f"{pipeline.key}: not enabled")
        if not enabled:
            raise OptionError("no pipeline is enabled: there is nothing to run.")
        address = _address(http, http_cert, http_cert_key)
        spark = session(enabled, master=master, remote=remote, say=say)
        try:
            runner = Runner(spark, enabled, say)
            with _observed(runner, address):
                states = runner.run()
        finally:
            stop(spark)
    if any(each.state is State.FAILED for each in states):
        raise typer.Exit(1)


def _address(http: str | None, cert: Path | None, cert_key: Path | None) -> "Address | None":
    """Where to serve; None where nobody asked for it. An OptionError before Spark starts."""
    if http is None:
        if cert or cert_key:
            raise OptionError("--http-cert and --http-cert-key are for --http: say where to serve.")
        return None
    from penstock.monitor.needed import require

    require()
    from penstock.monitor.server import Address

    files = {name: str(file) if file else None for name, file in (("cert", cert), ("cert_key", cert_key))}
    return Address.parse(http, key=os.environ.get("PENSTOCK_API_KEY") or None, **files)


@contextlib.contextmanager
def _observed(runner: "Runner", address: "Address | None") -> Iterator[None]:
    """Serve what is known of the pipelines, while they run. A key that was made up is shown to a terminal only."""
    if address is None:
        yield
        return
    from penstock.cli.dead_letters import letters
    from penstock.monitor.observer import observe
    from penstock.monitor.pipelines import RunningPipelines

    with observe(runner.spark, address, pipelines=RunningPipelines(runner, letters)) as observer:
        if address.key is not None:
            say(f"serving {observer.url}")
        elif console().is_terminal:
            say(f"serving {observer.url}/#key={observer.key}")
        else:
            say(f"serving {observer.url}; set PENSTOCK_API_KEY to give orders there")
        yield


def check(
    files: Files,
    connect: Annotated[
        bool, typer.Option("--connect", help="Also try the servers, the schema and one batch, without writing.")
    ] = False,
) -> None:
    """Check pipeline files, and say what each promises."""
    with sentences():
        from penstock.pipelines.load import load

        pipelines = load(files)
        shown = Table("pipeline", "from", "to", "guarantee")
        for pipeline in pipelines:
            targets = ", ".join(sink.name for sink in pipeline.sinks)
            if pipeline.dead_letters is not None:
                targets += f" (dead letters: {pipeline.dead_letters.type})"
            off = "" if pipeline.enabled else " (not enabled)"
            shown.add_row(f"{pipeline.key}{off}", pipeline.source.type, targets, pipeline.guarantee())
        console().print(shown)
        if connect:
            from penstock.pipelines.trial import tried

            for line in tried(pipelines, say):
                say(line)


def console() -> Console:
    """Where commands print. Nobody can widen a pipe to see the rest of a line."""
    own = Console()
    return own if own.is_terminal else Console(width=200)


def say(text: str) -> None:
    """Print lines with the time before them."""
    for line in text.splitlines():
        console().print(f"{time.strftime('%H:%M:%S')} {line}", highlight=False, markup=False, soft_wrap=True)


def schema() -> None:
    """Print the JSON Schema of pipeline files, for editors: penstock schema > penstock.schema.json."""
    from penstock.pipelines.schema import json_schema

    print(json.dumps(json_schema(), indent=2))


def convert(
    file: Annotated[Path, typer.Argument(help="A configuration of the Flink source connector for Iggy.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where to write it, instead of here.")] = None,
) -> None:
    """Turn a configuration of the Flink source connector for Iggy into a pipeline file."""
    with sentences():
        from penstock.pipelines.convert import convert as converted

        try:
            given = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"{file} cannot be read: {error}.") from None
        try:
            result = converted(given, file.stem)
        except OptionError as error:
            raise OptionError(f"{file}: {error}") from None
        _put(result.text, output)
        for line in result.left_out:
            Console(stderr=True).print(f"left out: {line}", highlight=False, markup=False, soft_wrap=True)


def new(
    file: Annotated[Path, typer.Argument(help="The file to write.")] = Path("pipeline.toml"),
) -> None:
    """Ask a few questions, and write a first pipeline file."""
    with sentences():
        from penstock.pipelines import new as asked
        from penstock.pipelines.load import load

        if file.exists():
            raise OptionError(f"{file} is there already: name another.")
        source, sink = _answers("Read from", asked.SOURCES), _answers("Write to", asked.SINKS)
        records = _answers("The records are", asked.RECORDS) if source[0] != "rate" else None
        key = re.sub(r"[^A-Za-z0-9_-]", "-", file.stem)
        file.write_text(asked.text(key, source, sink, records if records != ("raw", {}) else None))
        for name in re.findall(r'env = "(\w+)"', file.read_text()):
            os.environ.setdefault(name, "unset")  # to check the rest; `run` wants it
            say(f"set the environment variable {name} before you run it")
        load([file])
        say(f"{file} is written. Try it: penstock check --connect {file}; then: penstock run {file}")


def _answers(what: str, kinds: "Mapping[str, tuple[Question, ...]]") -> tuple[str, dict[str, str]]:
    """One of several kinds, and what is asked for it."""
    kind = Prompt.ask(what, choices=list(kinds), default=next(iter(kinds)))
    return kind, {each.key: Prompt.ask(each.text, default=each.default) for each in kinds[kind]}


def _put(text: str, output: Path | None) -> None:
    if output is None:
        print(text, end="")
    elif output.exists():
        raise OptionError(f"{output} is there already: name another.")
    else:
        output.write_text(text)


def export(
    file: Annotated[Path, typer.Argument(help="The pipeline file.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the project.")],
    sdp: Annotated[
        bool, typer.Option("--sdp", help="A project of Spark Declarative Pipelines (the only kind).")
    ] = True,
) -> None:
    """Write a pipeline as a project of Spark Declarative Pipelines, for `spark-pipelines run`."""
    with sentences():
        from penstock.pipelines.load import load
        from penstock.pipelines.project import project

        (pipeline,) = load([file])
        if output.exists() and any(output.iterdir()):
            raise OptionError(f"there is something in {output} already: name an empty folder.")
        for name, text in project(pipeline, (output / "storage").resolve().as_uri()).items():
            place = output / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        say(f"{output} is written. Run it there: spark-pipelines run --spec spark-pipeline.yml")
