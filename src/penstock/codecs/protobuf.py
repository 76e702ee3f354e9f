"""Messages of Protocol Buffers, bare. Travels to Spark's workers. Knows descriptors; no Spark."""

from dataclasses import dataclass, field

import pyarrow as pa

from penstock.codecs.cursors import with_errors
from penstock.codecs.protobuf_read import read
from penstock.codecs.protobuf_types import Message, message
from penstock.errors import OptionError
from penstock.kit.process_cache import shared


@dataclass(frozen=True)
class Decoder:
    """Bytes to columns. `descriptors`: a descriptor set, as protoc writes it; `name`: of the message, with its
    package.
    """

    descriptors: bytes = field(repr=False)
    name: str

    @property
    def columns(self) -> pa.Schema:
        """The columns of the message."""
        return self._message().arrow()

    def __call__(self, values: pa.Array) -> pa.Array:
        """A struct for each message: the columns and `_error`."""
        return with_errors(values, self._read)

    def _read(self, values: pa.Array) -> tuple[pa.RecordBatch, dict[int, str]]:
        rows, errors = read(self._message(), values)
        return rows, {number: f"is no message '{self.name}': it {why}" for number, why in errors.items()}

    def _message(self) -> Message:
        """Made once in a process."""
        known = shared("protobuf_messages", dict[tuple[bytes, str], Message])
        key = (self.descriptors, self.name)
        if key not in known:
            known[key] = message(*key)
        return known[key]


def decoder(descriptors: bytes | None, name: str | None) -> Decoder:
    """A decoder. An OptionError where the message is not there, or Spark has no columns for it."""
    if descriptors is None or name is None:
        raise OptionError("protobuf needs a descriptor set and the name of a message, such as shop.Order.")
    made = Decoder(descriptors, name)
    _ = made.columns
    return made
