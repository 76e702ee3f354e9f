"""`penstock jetstream ...`: operating JetStream. One module for each command; knows typer and rich."""

import typer

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Declare, check, migrate to, measure and watch JetStream."
)
