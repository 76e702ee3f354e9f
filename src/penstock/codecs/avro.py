"""Records of Avro: bare, or with the id of their schema in front, as Confluent frames them. Travels to Spark's workers.
Knows schemas and registries; no Spark.
"""

import re
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from penstock.arrow.buffers import join, offsets, segments
from penstock.codecs.avro_read import Reader, TooLongError
from penstock.codecs.avro_types import Avro, of_columns
from penstock.codecs.avro_write import Writer
from penstock.codecs.cursors import together, with_errors
from penstock.codecs.registry import NoSchemaError, Registry
from penstock.errors import OptionError
from penstock.kit.process_cache import shared

Framing = Literal["confluent", "none", "auto"]
Text = tuple[str, tuple[tuple[str, str], ...]]  # a schema, and names and texts of those that it refers to
FRAME = 5  # a zero, and an id of four bytes


@dataclass(frozen=True)
class Decoder:
    """Bytes to columns. `reader`: the schema by which all records are read. Those in frames say by which one they were
    written; the others were by `writer`, or `reader` where that is not given.
    """

    reader: Text
    framing: Framing = "none"
    registry: Registry | None = None
    writer: Text | None = None

    @property
    def columns(self) -> pa.Schema:
        """The columns, as they are read."""
        return _reader(self.reader, self.reader).columns

    def __call__(self, values: pa.Array) -> pa.Array:
        """A struct for each record: the columns and `_error`."""
        return with_errors(values, self._decoded)

    def _decoded(self, values: pa.Array) -> tuple[pa.RecordBatch, dict[int, str]]:
        if self.framing == "confluent":
            return self._framed(values)
        rows, errors = _read(self.writer or self.reader, self.reader, values)
        errors = {number: f"is not Avro of the schema: it {why}" for number, why in errors.items()}
        if self.framing == "none" or not errors:
            return rows, errors
        places = np.array(sorted(n for n in errors if values[n].as_py()[:1] == b"\0"), np.int64)
        if not len(places):
            return rows, errors
        again, faults = self._framed(values.take(pa.array(places)))
        good = [n for n in range(len(places)) if n not in faults]
        for number in good:
            del errors[int(places[number])]
        rest = np.setdiff1d(np.arange(len(values)), places[good])
        parts = ((places[good], again.take(pa.array(good, pa.int64()))), (rest, rows.take(pa.array(rest))))
        return _merged(list(parts), len(values), rows.schema), errors

    def _framed(self, values: pa.Array) -> tuple[pa.RecordBatch, dict[int, str]]:
        """Records with the id of their schema in front: those of one schema are read together."""
        assert self.registry is not None
        ends = offsets(values) if len(values) else np.zeros(1, np.int64)
        data = values.buffers()[2] if len(values) and values.buffers()[2] is not None else pa.py_buffer(b"\0")
        octets = np.frombuffer(data, np.uint8)
        start = ends[:-1]
        framed = (ends[1:] - start >= FRAME) & (octets[np.minimum(start, len(octets) - 1)] == 0)
        errors = dict.fromkeys(
            np.flatnonzero(~framed).tolist(),
            "has no id of a schema in front: a zero, and four bytes, as Confluent writes",
        )
        places = np.minimum(start[:, None] + np.arange(1, FRAME), len(octets) - 1)
        ids = octets[places].astype(np.int64) @ np.array([1 << 24, 1 << 16, 1 << 8, 1])
        parts = []
        for number in np.unique(ids[framed]).tolist():
            of_it = np.flatnonzero(framed & (ids == number))
            try:
                written = self.registry.by_id(number)
            except NoSchemaError as error:
                errors |= dict.fromkeys(of_it.tolist(), f"has the schema id {number}: {error}")
                continue
            if written.type != "AVRO":
                errors |= dict.fromkeys(of_it.tolist(), f"has the schema id {number}, which is {written.type}")
                continue
            bodies = segments(data, start[of_it] + FRAME, ends[1:][of_it])
            try:
                rows, faults = _read((written.text, written.references), self.reader, bodies)
            except OptionError as error:
                errors |= dict.fromkeys(of_it.tolist(), f"has the schema id {number}, which cannot be read: {error}")
                continue
            parts.append((of_it, rows))
            errors |= {int(of_it[n]): f"is not Avro of the schema id {number}: it {why}" for n, why in faults.items()}
        return _merged(parts, len(values), self.columns), errors


@dataclass(frozen=True)
class Encoder:
    """Columns to bytes, by a schema; with its id in front where it has one."""

    schema: str = field(repr=False)
    id: int | None = None

    def __call__(self, rows: pa.Array) -> pa.Array:
        """The bytes of each row of a struct."""
        arrays = [rows.field(n) for n in range(rows.type.num_fields)]
        batch = pa.record_batch(arrays, schema=pa.schema(list(rows.type)))
        body = _writer(self.schema, batch.schema).write(batch)
        return body if self.id is None else join(b"\0" + self.id.to_bytes(4, "big"), body)


def decoder(
    schema: str | None, registry: Registry | None, schema_id: int | None, subject: str | None, framing: Framing | None
) -> Decoder:
    """A decoder, with the schema by which records are read. An OptionError where nothing says which one that is."""
    if registry is None:
        if schema is None or schema_id is not None or subject is not None or framing not in (None, "none"):
            raise OptionError("avro needs a schema, or a registry and with it an id or a subject.")
        Avro.parse(schema).arrow()
        return Decoder((schema, ()))
    try:
        by_id = registry.by_id(schema_id) if schema_id is not None else None
        newest = registry.latest(subject) if schema is None and by_id is None and subject is not None else None
    except NoSchemaError as error:
        raise OptionError(f"{error}.") from None
    registered = by_id or newest
    if schema is None and registered is None:
        raise OptionError(
            "avro needs to know by which schema records are read: set a schema, a schema_id or a subject."
        )
    if registered is not None and registered.type != "AVRO":
        raise OptionError(
            f"the schema {registered.id} of the registry at {registry.url} is {registered.type}, not Avro."
        )
    own = (registered.text, registered.references) if registered is not None else None
    reader = (schema, ()) if schema is not None else own
    assert reader is not None
    Avro.parse(*reader).arrow()
    chosen = framing or ("auto" if by_id is not None else "confluent")
    if chosen != "confluent" and by_id is None and schema is None:
        raise OptionError(
            f"framing is '{chosen}', so some records do not say by which schema they were written: set schema_id."
        )
    return Decoder(reader, chosen, registry, own if by_id is not None else None)


def encoder(
    columns: pa.Schema, schema: str | None, registry: Registry | None, subject: str | None, *, register: bool = True
) -> Encoder:
    """An encoder for these columns. An OptionError where they do not fit the schema, before a row is written."""
    if schema is None:
        name = re.sub(r"\W", "_", (subject or "Row").removesuffix("-value")) or "Row"
        schema = of_columns(columns, name if not name[0].isdigit() else f"_{name}")
    Writer(Avro.parse(schema), columns)
    if registry is None:
        return Encoder(schema)
    if subject is None:
        raise OptionError("a registry keeps schemas by subject: set one, such as 'orders-value'.")
    try:
        number = (registry.register if register else registry.lookup)(subject, "AVRO", schema)
    except NoSchemaError as error:
        raise OptionError(f"{error}. Register the schema first, or let it be registered.") from None
    return Encoder(schema, number)


def _reader(written: Text, wanted: Text) -> Reader:
    """Made once in a process for each pair of schemas."""
    readers = shared("avro_readers", dict[tuple[Text, Text], Reader])
    if (written, wanted) not in readers:
        readers[written, wanted] = Reader(Avro.parse(*written), Avro.parse(*wanted))
    return readers[written, wanted]


def _writer(schema: str, columns: pa.Schema) -> Writer:
    """Made once in a process for a schema and the columns that it is given."""
    writers = shared("avro_writers", dict[tuple[str, str], Writer])
    key = (schema, str(columns))
    if key not in writers:
        writers[key] = Writer(Avro.parse(schema), columns)
    return writers[key]


def _read(written: Text, wanted: Text, values: pa.Array) -> tuple[pa.RecordBatch, dict[int, str]]:
    reader = _reader(written, wanted)
    try:
        return reader.read(values)
    except TooLongError:
        pass
    # A record with a very long array is read by itself: its steps would be steps of all.
    parts: list[tuple[Any, pa.RecordBatch]] = []
    errors: dict[int, str] = {}
    for number in range(len(values)):
        rows, faults = _read(written, wanted, values.take(pa.array([number])))
        parts.append((np.array([number]), rows))
        errors.update((number, why) for why in faults.values())
    return _merged(parts, len(values), reader.columns), errors


def _merged(parts: list[tuple[Any, pa.RecordBatch]], count: int, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [
        together([(places, rows.column(n)) for places, rows in parts], count, each.type)
        for n, each in enumerate(schema)
    ]
    return pa.record_batch(arrays, schema=schema)
