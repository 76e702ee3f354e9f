"""The formats, by name.

Imports a connector only when it is asked for. Client libraries are imported when a connector uses them.
"""

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
    "kinesis": "penstock.connectors.kinesis:Kinesis",
    "journal": "penstock.connectors.journal:Journal",
}

GUARANTEES = ("read", "write", "replayable", "exactly once")


def guarantees(name: str) -> tuple[str, ...]:
    """One value for each name in GUARANTEES. "-" where the format does not read, or does not write."""
    cls = connector(name)
    reads, writes = cls.options_type is not None, cls.sink_options_type is not None
    return (
        "yes" if reads else "no",
        "yes" if writes else "no",
        str(cls.replayable) if reads else "-",
        str(cls.exactly_once) if writes else "-",
    )


def connector(name: str) -> "type[Connector[Any, Any]]":
    """The connector class of a format. An OptionError where there is no such format."""
    if name not in FORMATS:
        raise OptionError(f"there is no connector '{name}'. {nearest(name, FORMATS)}")
    module, _, attribute = FORMATS[name].partition(":")
    cls: type[Connector[Any, Any]] = getattr(import_module(module), attribute)
    return cls
