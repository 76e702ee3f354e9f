"""Records of Avro: bare, or with the id of their schema in front, as Confluent frames them. Travels to Spark's workers.
Knows schemas and registries; no Spark.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.arrow.buffers import join
from penstock.codecs.avro_read import Reader, TooLongError
from penstock.codecs.avro_types import Avro, of_columns
from penstock.codecs.avro_write import Writer
from penstock.codecs.cursors import with_errors
from penstock.codecs.frames import Framing, framed, header, id_of, merged, reader_schema
from penstock.codecs.registry import Registered, Registry
from penstock.errors import OptionError
from penstock.kit.process_cache import shared

Text = tuple[str, tuple[tuple[str, str], ...]]  # a schema, and names and texts of those that it refers to


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
        return merged(list(parts), len(values), rows.schema), errors

    def _framed(self, values: pa.Array) -> tuple[pa.RecordBatch, dict[int, str]]:
        assert self.registry is not None

        def read(written: Registered, bodies: pa.Array) -> tuple[pa.RecordBatch, dict[int, str]]:
            rows, faults = _read((written.text, written.references), self.reader, bodies)
            return rows, {n: f"is not Avro of the schema id {written.id}: it {why}" for n, why in faults.items()}

        return framed(values, self.registry, "AVRO", self.columns, read)


@dataclass(frozen=True)
class Encoder:
    """Columns to bytes, by a schema; with its id in front where it has one."""

    schema: Text = field(repr=False)
    id: int | None = None

    def __call__(self, rows: pa.Array) -> pa.Array:
        """The bytes of each row of a struct."""
        arrays = [rows.field(n) for n in range(rows.type.num_fields)]
        batch = pa.record_batch(arrays, schema=pa.schema(list(rows.type)))
        body = _writer(self.schema, batch.schema).write(batch)
        return body if self.id is None else join(header(self.id), body)


def decoder(
    schema: str | None, registry: Registry | None, schema_id: int | None, subject: str | None, framing: Framing | None
) -> Decoder:
    """A decoder, with the schema by which records are read. An OptionError where nothing says which one that is."""
    if registry is None:
        if schema is None or schema_id is not None or subject is not None or framing not in (None, "none"):
            raise OptionError("avro needs a schema, or a registry and with it an id or a subject.")
        Avro.parse(schema).arrow()
        return Decoder((schema, ()))
    by_id = reader_schema(registry, "AVRO", schema_id, None)
    registered = by_id or (reader_schema(registry, "AVRO", None, subject) if schema is None else None)
    if schema is None and registered is None:
        raise OptionError(
            "avro needs to know by which schema records are read: set a schema, a schema_id or a subject."
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
    columns: pa.Schema,
    schema: str | None,
    registry: Registry | None,
    subject: str | None,
    *,
    register: bool = True,
    use_latest: bool = False,
) -> Encoder:
    """An encoder for these columns. An OptionError where they do not fit the schema, before a row is written."""
    if registry is not None and subject is None:
        raise OptionError("a registry keeps schemas by subject: set one, such as 'orders-value'.")
    if use_latest:
        if registry is None or schema is not None:
            raise OptionError("use_latest takes the newest schema of a subject: set a registry, and no schema.")
        newest = reader_schema(registry, "AVRO", None, subject)
        assert newest is not None
        _writer((newest.text, newest.references), columns)
        return Encoder((newest.text, newest.references), newest.id)
    if schema is None:
        name = re.sub(r"\W", "_", (subject or "Row").removesuffix("-value")) or "Row"
        schema = of_columns(columns, name if not name[0].isdigit() else f"_{name}")
    _writer((schema, ()), columns)
    if registry is None or subject is None:
        return Encoder((schema, ()))
    return Encoder((schema, ()), id_of(registry, subject, "AVRO", schema, register=register))


def _reader(written: Text, wanted: Text) -> Reader:
    """Made once in a process for each pair of schemas."""
    readers = shared("avro_readers", dict[tuple[Text, Text], Reader])
    if (written, wanted) not in readers:
        readers[written, wanted] = Reader(Avro.parse(*written), Avro.parse(*wanted))
    return readers[written, wanted]


def _writer(schema: Text, columns: pa.Schema) -> Writer:
    """Made once in a process for a schema and the columns that it is given."""
    writers = shared("avro_writers", dict[tuple[Text, str], Writer])
    key = (schema, str(columns))
    if key not in writers:
        writers[key] = Writer(Avro.parse(*schema), columns)
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
    return merged(parts, len(values), reader.columns), errors
