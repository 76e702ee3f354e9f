"""The formats, by name. A connector is imported when it is asked for, and its client library when it is used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.errors import OptionError, nearest

if TYPE_CHECKING:
    from penstock.spark.connector import Connector

FORMATS = {
    "jetstream": "penstock.connectors.jetstream:JetStream",
    "nats": "penstock.connectors.nats:CoreNats",
    "s2": "penstock.connectors.s2:S2Streams",
    "iggy": "penstock.connectors.iggy:Iggy",
    "journal": "penstock.connectors.journal:Journal",
}


GUARANTEES = ("read", "write", "replayable", "exactly once")


def guarantees(name: str) -> tuple[str, ...]:
    """What a format can do and promises, under the words of GUARANTEES; a dash where there is nothing to promise."""
    c = connector(name)
    reads, writes = c.options_type is not None, c.sink_options_type is not None
    promises = (c.replayable if reads else "-", c.exactly_once if writes else "-")
    return ("yes" if reads else "no", "yes" if writes else "no", *map(str, promises))


def connector(name: str) -> "type[Connector[Any, Any]]":
    """The connector class of a format."""
    if name not in FORMATS:
        raise OptionError(f"there is no connector '{name}'. {nearest(name, FORMATS)}")
    module, _, attribute = FORMATS[name].partition(":")
    found: type[Connector[Any, Any]] = getattr(import_module(module), attribute)
    return found
