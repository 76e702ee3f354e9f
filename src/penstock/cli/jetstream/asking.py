"""The server that a command asks: its options on the command line, a connection, and what is shown meanwhile. Knows
typer, rich and the client.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand

from penstock.cli.formats import names_of, parsed
from penstock.clients.jetstream.calls import Calls
from penstock.clients.nats.client import Connection
from penstock.clients.nats.options import NatsOptions
from penstock.errors import OptionError
from penstock.kit.masking import harmless

# The exit code for a wrong command line, as sysexits.h has it, where 1 and 2 say something of the server.
USAGE = 64


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


@contextmanager
def telling() -> Iterator[Callable[[str], None]]:
    """Show what is being done, in one line of a terminal; elsewhere not at all, as nobody waits there."""
    out = Console(stderr=True)
    if not out.is_terminal:
        yield lambda text: None
        return
    with out.status("connecting") as status:
        yield lambda text: status.update(Text(f"{harmless(text)} ..."))


class UsageCommand(TyperCommand):
    """A command that ends with USAGE where its words or options are wrong."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does, with the other exit code."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if hasattr(error, "exit_code") and error.exit_code == 2:  # a UsageError, wherever typer has it from
                error.exit_code = USAGE
            raise


@contextmanager
def usage() -> Iterator[None]:
    """An OptionError is a sentence on the terminal, and ends the command with USAGE."""
    try:
        yield
    except OptionError as error:
        said = Console(stderr=True, soft_wrap=True)
        said.print(f"penstock: {error}", style="red", highlight=False, markup=False)
        raise typer.Exit(USAGE) from None
