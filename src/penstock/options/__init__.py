"""Options: declared once, as fields of a model; parsing, masking, documentation and JSON Schema derive from them."""

from penstock.options.model import (
    SECRET,
    Options,
    alias,
    json_schema,
    option,
    places,
    secrets,
    shown,
    spellings,
    table,
)
from penstock.options.shared import STARTS, ConnectionOptions, CountedRetryOptions, ReadOptions, WriteOptions
from penstock.options.types import Bytes, Count, Csv, Micros, Positions, Seconds

__all__ = [
    "SECRET",
    "STARTS",
    "Bytes",
    "ConnectionOptions",
    "Count",
    "CountedRetryOptions",
    "Csv",
    "Micros",
    "Options",
    "Positions",
    "ReadOptions",
    "Seconds",
    "WriteOptions",
    "alias",
    "json_schema",
    "option",
    "places",
    "secrets",
    "shown",
    "spellings",
    "table",
]
