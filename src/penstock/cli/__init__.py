"""The command line, `penstock`."""

from penstock.cli.commands import app

__all__ = ["app"]
