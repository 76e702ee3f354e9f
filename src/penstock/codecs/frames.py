"""Records with the id of their schema in front, as Confluent frames them: a zero, four bytes, and the record. Knows
registries; no format.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from penstock.arrow.buffers import offsets, segments
from penstock.codecs.cursors import together
from penstock.codecs.registry import NoSchemaError, Registered, Registry
from penstock.errors import OptionError

Framing = Literal["confluent", "none", "auto"]
Read = Callable[[Registered, pa.Array], tuple[pa.RecordBatch, Mapping[int, str]]]
FRAME = 5  # a zero, and an id of four bytes


def framed(
    values: pa.Array, registry: Registry, type: str, columns: pa.Schema, read: Read
) -> tuple[pa.RecordBatch, dict[int, str]]:
    """The columns, and why a record could not be read, by its number. Those of one schema are read together; an
    OptionError of `read` is one of all that have this schema.
    """
    ends = offsets(values) if len(values) else np.zeros(1, np.int64)
    data = values.buffers()[2] if len(values) and values.buffers()[2] is not None else pa.py_buffer(b"\0")
    octets = np.frombuffer(data, np.uint8)
    start = ends[:-1]
    is_framed = (ends[1:] - start >= FRAME) & (octets[np.minimum(start, len(octets) - 1)] == 0)
    errors = dict.fromkeys(
        np.flatnonzero(~is_framed).tolist(),
        "has no id of a schema in front: a zero, and four bytes, as Confluent writes",
    )
    places = np.minimum(start[:, None] + np.arange(1, FRAME), len(octets) - 1)
    ids = octets[places].astype(np.int64) @ np.array([1 << 24, 1 << 16, 1 << 8, 1])
    parts = []
    for number in np.unique(ids[is_framed]).tolist():
        of_it = np.flatnonzero(is_framed & (ids == number))
        try:
            written = registry.by_id(number)
        except NoSchemaError as error:
            errors |= dict.fromkeys(of_it.tolist(), f"has the schema id {number}: {error}")
            continue
        if written.type != type:
            errors |= dict.fromkeys(of_it.tolist(), f"has the schema id {number}, which is {written.type}")
            continue
        try:
            rows, faults = read(written, segments(data, start[of_it] + FRAME, ends[1:][of_it]))
        except OptionError as error:
            errors |= dict.fromkeys(of_it.tolist(), f"has the schema id {number}, which cannot be read: {error}")
            continue
        parts.append((of_it, rows))
        errors |= {int(of_it[n]): why for n, why in faults.items()}
    return merged(parts, len(values), columns), errors


def merged(parts: list[tuple[Any, pa.RecordBatch]], count: int, schema: pa.Schema) -> pa.RecordBatch:
    """One batch of several, whose rows belong at the given places."""
    arrays = [
        together([(places, rows.column(n)) for places, rows in parts], count, each.type)
        for n, each in enumerate(schema)
    ]
    return pa.record_batch(arrays, schema=schema)


def header(number: int) -> bytes:
    """What stands in front of records of a schema."""
    return b"\0" + number.to_bytes(4, "big")


def reader_schema(registry: Registry, type: str, schema_id: int | None, subject: str | None) -> Registered | None:
    """The schema of an id, or the newest one of a subject. An OptionError where it is not there, or of another type."""
    try:
        if schema_id is not None:
            found = registry.by_id(schema_id)
        elif subject is not None:
            found = registry.latest(subject)
        else:
            return None
    except NoSchemaError as error:
        raise OptionError(f"{error}.") from None
    if found.type != type:
        raise OptionError(f"the schema {found.id} of the registry at {registry.url} is {found.type}, not {type}.")
    return found


def id_of(registry: Registry, subject: str, type: str, text: str, *, register: bool) -> int:
    """The id of a schema in a subject, which gets it where it may. An OptionError where it may not, and has not."""
    try:
        return (registry.register if register else registry.lookup)(subject, type, text)
    except NoSchemaError as error:
        raise OptionError(f"{error}. Register the schema first, or let it be registered.") from None
