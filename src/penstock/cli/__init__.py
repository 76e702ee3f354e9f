"""The command line: `penstock demo`, `describe` and `peek`."""

from penstock.cli.commands import app

__all__ = ["app"]
