"""Messages of Protocol Buffers: bare, or with the id of their schema in front, as Confluent frames them. Travels to
Spark's workers. Knows descriptors and registries; no Spark.

Behind the id stands which message of the file it is: the number of a message at the top, and then of one inside of it.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.arrow.buffers import join, segments
from penstock.codecs.cursors import Cursors, with_errors
from penstock.codecs.frames import Framing, framed, header, id_of, merged, reader_schema
from penstock.codecs.proto_files import compiled
from penstock.codecs.protobuf_read import read
from penstock.codecs.protobuf_types import Message, message, message_names, unreadable
from penstock.codecs.protobuf_write import Writer
from penstock.codecs.registry import Registered, Registry
from penstock.codecs.row_bytes import varints, zigzag
from penstock.errors import OptionError
from penstock.kit.process_cache import shared

Rows = tuple[pa.RecordBatch, dict[int, str]]
DEEPEST = 32  # messages inside of messages
NEEDS = "protobuf needs a schema, descriptors or a registry, and the name of a message, such as shop.Order."


@dataclass(frozen=True)
class Decoder:
    """Bytes to columns. `descriptors`: a descriptor set, as protoc writes it; `name`: of the message by which all are
    read, with its package. Those in frames say by which file they were written.
    """

    descriptors: bytes = field(repr=False)
    name: str
    framing: Framing = "none"
    registry: Registry | None = None

    @property
    def columns(self) -> pa.Schema:
        """The columns of the message."""
        return _known(self.descriptors, self.name).arrow()

    def __call__(self, values: pa.Array) -> pa.Array:
        """A struct for each message: the columns and `_error`."""
        return with_errors(values, self._decoded)

    def _decoded(self, values: pa.Array) -> Rows:
        if self.framing == "none":
            return self._bare(values)
        if self.framing == "confluent":
            return self._framed(values)
        # A bare message does not begin with a zero: no field has this number.
        is_framed = np.array([value[:1] == b"\0" for value in values.to_pylist()], np.bool_)
        errors: dict[int, str] = {}
        parts = []
        for places, work in ((np.flatnonzero(is_framed), self._framed), (np.flatnonzero(~is_framed), self._bare)):
            rows, faults = work(values.take(pa.array(places)))
            parts.append((places, rows))
            errors |= {int(places[n]): why for n, why in faults.items()}
        return merged(parts, len(values), self.columns), errors

    def _bare(self, values: pa.Array) -> Rows:
        rows, errors = read(_known(self.descriptors, self.name), values)
        return rows, {number: f"is no message '{self.name}': it {why}" for number, why in errors.items()}

    def _framed(self, values: pa.Array) -> Rows:
        assert self.registry is not None
        return framed(values, self.registry, "PROTOBUF", self.columns, self._read)

    def _read(self, written: Registered, values: pa.Array) -> Rows:
        """Records of one schema: those of the wanted message are read by it, field by field of the same number."""
        file = compiled(written.text, written.references)
        indexes, bodies, errors = _unindexed(values)
        names = message_names(file)
        wanted = next((path for path, name in names.items() if name == self.name), None)
        if file != self.descriptors and wanted is not None:
            why = unreadable(_known(file, self.name), _known(self.descriptors, self.name))
            if why:
                raise OptionError(why)
        for number, path in enumerate(indexes):
            if path != wanted and number not in errors:
                other = names.get(path)
                what = f"message '{other}'" if other else "message that its schema does not have"
                errors[number] = f"is a {what}, and '{self.name}' is read"
        rows, faults = self._bare(bodies)
        return rows, faults | errors


def _unindexed(values: pa.Array) -> tuple[list[tuple[int, ...]], pa.Array, dict[int, str]]:
    """Which message of its file each one is, what is behind that, and why that cannot be said."""
    cursors = Cursors.over(values)
    counts = cursors.zigzag()
    wrong = (counts < 0) | (counts > DEEPEST)
    if wrong.any():
        cursors.fail(wrong, "does not say which message of its schema it is")
        counts = np.where(wrong, 0, counts)
    paths: list[tuple[int, ...]] = [(0,)] * len(values)
    places = np.flatnonzero(counts)
    if len(places):
        table = np.zeros((len(places), counts.max()), np.int64)
        for depth in range(counts.max()):
            deeper = np.flatnonzero(counts[places] > depth)
            part = cursors.part(places[deeper])
            table[deeper, depth] = part.zigzag()
            cursors.join(part, places[deeper])
        for number, row in zip(places.tolist(), table.tolist(), strict=True):
            paths[number] = tuple(row[: counts[number]])
    return paths, segments(cursors.data, cursors.at, cursors.end), dict(cursors.errors)


@dataclass(frozen=True)
class Encoder:
    """Columns to bytes of a message. `prefix`: the id of its schema, and which message of it this is."""

    descriptors: bytes = field(repr=False)
    name: str
    prefix: bytes = b""

    def __call__(self, rows: pa.Array) -> pa.Array:
        """The bytes of each row of a struct."""
        arrays = [rows.field(n) for n in range(rows.type.num_fields)]
        batch = pa.record_batch(arrays, schema=pa.schema(list(rows.type)))
        body = self.writer(batch.schema).write(batch)
        return join(self.prefix, body) if self.prefix else body

    def writer(self, columns: pa.Schema) -> Writer:
        """What writes these columns. An OptionError where they do not fit the message."""
        writers = shared("protobuf_writers", dict[tuple[bytes, str, str], Writer])
        key = (self.descriptors, self.name, str(columns))
        if key not in writers:
            writers[key] = Writer(_known(self.descriptors, self.name), columns)
        return writers[key]


def decoder(
    descriptors: bytes | None,
    name: str | None,
    *,
    schema: str | None = None,
    registry: Registry | None = None,
    schema_id: int | None = None,
    subject: str | None = None,
    framing: Framing | None = None,
) -> Decoder:
    """A decoder. An OptionError where the message is not there, or Spark has no columns for it. Without a name it is
    the first message of a file.
    """
    if schema is not None:
        descriptors = compiled(schema)
    if registry is None:
        if descriptors is None or (name is None and schema is None) or schema_id is not None or subject is not None:
            raise OptionError(NEEDS)
        if framing not in (None, "none"):
            raise OptionError(f"framing is '{framing}', and no registry has the schemas of such records.")
    elif descriptors is None:
        registered = reader_schema(registry, "PROTOBUF", schema_id, subject)
        if registered is None:
            raise OptionError(
                "protobuf needs to know by which message records are read: set a schema, a schema_id or a subject."
            )
        descriptors = compiled(registered.text, registered.references)
    chosen = framing or ("none" if registry is None else "auto" if schema_id is not None else "confluent")
    made = Decoder(descriptors, name or _first(descriptors), chosen, registry)
    _ = made.columns
    return made


def encoder(
    columns: pa.Schema,
    descriptors: bytes | None,
    name: str | None,
    *,
    schema: str | None = None,
    registry: Registry | None = None,
    subject: str | None = None,
    register: bool = True,
    use_latest: bool = False,
) -> Encoder:
    """An encoder for these columns. An OptionError where they do not fit the message, before a row is written."""
    newest = None
    if registry is not None and subject is None:
        raise OptionError("a registry keeps schemas by subject: set one, such as 'orders-value'.")
    if use_latest:
        if registry is None or schema is not None or descriptors is not None:
            raise OptionError("use_latest takes the newest schema of a subject: set a registry, and no schema.")
        newest = reader_schema(registry, "PROTOBUF", None, subject)
        assert newest is not None
        descriptors = compiled(newest.text, newest.references)
    elif registry is not None and schema is None:
        raise OptionError("a registry takes the text of a .proto file: give it as schema, or set use_latest.")
    elif schema is not None:
        descriptors = compiled(schema)
    if descriptors is None or (name is None and registry is None and schema is None):
        raise OptionError(NEEDS)
    name = name or _first(descriptors)
    bare = Encoder(descriptors, name)
    bare.writer(columns)
    if registry is None or subject is None:
        return bare
    path = next((path for path, each in message_names(descriptors).items() if each == name), None)
    if path is None:
        raise OptionError(f"the message '{name}' is in a file that is imported, and a registry takes one of its own.")
    number = newest.id if newest is not None else None
    if number is None:
        assert schema is not None
        number = id_of(registry, subject, "PROTOBUF", schema, register=register)
    return Encoder(descriptors, name, header(number) + _index(path))


def _index(path: tuple[int, ...]) -> bytes:
    """Which message of a file it is. The first one is a single zero."""
    numbers: Any = [0] if path == (0,) else [len(path), *path]
    return b"".join(varints(zigzag(np.array(numbers, np.int64))).to_pylist())


def _first(descriptors: bytes) -> str:
    names = message_names(descriptors)
    if not names:
        raise OptionError("the .proto file has no message.")
    return names[0,]


def _known(descriptors: bytes, name: str) -> Message:
    """Made once in a process."""
    messages = shared("protobuf_messages", dict[tuple[bytes, str], Message])
    if (descriptors, name) not in messages:
        messages[descriptors, name] = message(descriptors, name)
    return messages[descriptors, name]
