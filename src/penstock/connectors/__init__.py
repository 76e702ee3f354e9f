"""The formats, by name. A connector is imported when it is asked for, and its client library when it is used."""

from importlib import import_module
from typing import Any

from penstock.errors import OptionError

FORMATS = {"jetstream": "penstock.connectors.jetstream:JetStream"}


def connector(name: str) -> Any:
    """The connector class of a format."""
    if name not in FORMATS:
        raise OptionError(f"there is no connector '{name}'. There are: {', '.join(FORMATS)}.")
    module, _, attribute = FORMATS[name].partition(":")
    return getattr(import_module(module), attribute)
