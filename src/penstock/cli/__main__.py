"""`python -m penstock.cli`."""

from penstock.cli import app

app()
