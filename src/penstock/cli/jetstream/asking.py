"""The server that a command asks: its options on the command line, and a connection. Knows typer and the client."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from penstock.cli.formats import names_of, parsed
from penstock.clients.jetstream.calls import Calls
from penstock.clients.nats.client import Connection
from penstock.clients.nats.options import NatsOptions


def completed(ctx: typer.Context, incomplete: str) -> list[str]:
    """For the shell: the options of a connection that begin so."""
    return names_of(NatsOptions, ctx.params.get("options") or (), incomplete)


# How each command takes the options of its connection.
Words = Annotated[list[str] | None, typer.Argument(metavar="OPTION=VALUE...", autocompletion=completed)]
InJson = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]


def options_of(words: Sequence[str] | None, **more: Any) -> NatsOptions:
    """The options of the connection, from words such as servers=nats://127.0.0.1:4222."""
    return NatsOptions.parse("jetstream", parsed(words or ()) | more)


@contextmanager
def asking(options: NatsOptions) -> Iterator[Calls]:
    """The calls of JetStream on a connection, which is closed at the end."""
    connection = Connection(options)
    try:
        yield Calls(connection, options)
    finally:
        connection.close()
