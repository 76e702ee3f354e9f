"""`penstock jetstream ...`: operating JetStream. One module for each command; knows typer and rich."""

import typer

from penstock.cli.jetstream.asking import UsageCommand
from penstock.cli.jetstream.bench import bench
from penstock.cli.jetstream.declared import apply, diff, export, import_, plan
from penstock.cli.jetstream.doctor import doctor
from penstock.cli.jetstream.migrate import Migrate, migrate
from penstock.cli.jetstream.top import top

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Declare, check, migrate to, measure and watch JetStream."
)
app.command()(bench)
app.command(cls=UsageCommand)(doctor)
app.command()(top)
app.command()(plan)
app.command()(apply)
app.command("import")(import_)
app.command()(diff)
app.command()(export)
app.command(cls=Migrate)(migrate)
