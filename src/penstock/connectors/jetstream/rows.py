"""The rows of a sink as messages: subjects, header lines, bodies and ids. A row that cannot be published is refused
before anything is sent. Pure: knows columns and options, no server.
"""

import sys
import zlib
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.buffers import Ints, join, lengths, numbers, offsets
from penstock.clients.jetstream.publish import Chunk
from penstock.clients.nats.commands import COMMANDS, NEVER_OURS
from penstock.clients.nats.frames import Fault, bad_body, bad_header, bad_subject, bad_value, header_lines, size_of
from penstock.connectors.jetstream.options import JetStreamSinkOptions
from penstock.errors import OptionError
from penstock.kit import templates
from penstock.kit.contract import Origin
from penstock.kit.rows import BYTES, NAMED_VALUES, TEXT, WHOLE_NUMBER, Kind, is_count, is_text


def is_ttl(kind: pa.DataType) -> bool:
    """Whether a column of this type can be a time to live: seconds, or text such as 1h."""
    return is_text(kind) or is_count(kind)


TAKES = {
    "value": BYTES,
    "subject": TEXT,
    "headers": NAMED_VALUES,
    "id": TEXT,
    "ttl": Kind(is_ttl, "STRING or BIGINT"),
    "expectedLastSubjectSequence": WHOLE_NUMBER,
}
MESSAGE_ID = b"Nats-Msg-Id"
# The bytes of a chunk, which is sent whole, whatever the clock says. A link of 4 MB/s takes two seconds for this, and
# duplicate windows have minutes.
LARGEST = 8 << 20


def accept(options: JetStreamSinkOptions, columns: pa.Schema) -> None:
    """Refuse columns that are missing, have the wrong type, or would be left out."""
    templates.accept("jetstream", columns, options.subject, TAKES)


def parts(chunk: Chunk) -> Iterator[Chunk]:
    """The same rows in chunks of about LARGEST bytes."""
    sizes = np.cumsum(size_of(chunk.block, chunk.value) + lengths(chunk.subject))
    cuts = np.flatnonzero(np.diff(sizes // LARGEST)) + 1
    for low, high in pairwise([0, *cuts.tolist(), len(chunk)]):
        yield chunk.part(low, high)


def chunk(options: JetStreamSinkOptions, origin: Origin, batch: pa.RecordBatch, first: int) -> Chunk:
    """The rows of a batch, numbered from `first`, as messages. An OptionError for the first row that is not valid."""
    names = batch.schema.names
    number = np.arange(first, first + len(batch))
    value = _binary(batch.column("value"))
    subject = _binary(templates.names(options.subject, batch))
    fault = bad_body(None, value, sys.maxsize)  # `too_large` checks the size, which the server limits
    fault = fault or bad_subject(subject, partial(templates.missing, options.subject, batch))
    if fault is None and "headers" in names:
        fault = bad_header(batch.column("headers"))
    for name in ("id", "ttl"):
        if fault is None and name in names:
            fault = bad_value(name, batch.column(name).cast(pa.string()))
    if fault is not None:
        raise origin.cannot_write(first + fault.row, fault.why)
    ids = _ids(options, origin, batch, number)
    block = _block(options, batch, ids)
    conditional = "expectedLastSubjectSequence" in names or options.command_headers
    return Chunk(number, subject, block, value, np.zeros(len(batch), bool), ids, conditional=conditional)


def too_large(chunk: Chunk, origin: Origin, limit: int) -> OptionError | None:
    """The error for the first row with more bytes than the server's max_payload; None without one."""
    fault = bad_body(chunk.block, chunk.value, limit)
    return None if fault is None else chunk_error(origin, chunk, fault)


def chunk_error(origin: Origin, chunk: Chunk, fault: Fault) -> OptionError:
    """The error for a row of a chunk that cannot be published."""
    return origin.cannot_write(int(chunk.number[fault.row]), fault.why)


def checksum(chunk: Chunk, before: int) -> int:
    """The checksum of subjects and bodies, behind that of the rows `before`. The same however rows come in chunks."""
    joined = join(chunk.subject, b" ", chunk.value, b" ")
    return zlib.crc32(memoryview(joined.buffers()[2])[: offsets(joined)[-1]], before)


def _binary(column: pa.Array) -> pa.Array:
    return column.cast(pa.binary())


def _ids(options: JetStreamSinkOptions, origin: Origin, batch: pa.RecordBatch, number: Ints) -> pa.Array | None:
    """The id of each row: the user's, and with exactly_once one of ours where the user gives none."""
    user_ids = _binary(batch.column("id")) if "id" in batch.schema.names else None
    if options.delivery != "exactly_once":
        return user_ids
    our_ids = join(origin.id.encode(), numbers(number))
    return our_ids if user_ids is None else pc.coalesce(user_ids, our_ids)


def _block(options: JetStreamSinkOptions, batch: pa.RecordBatch, ids: pa.Array | None) -> pa.Array | None:
    """The header lines of each row; None where no row has headers."""
    names, lines = batch.schema.names, []
    if ids is not None:
        lines.append(_line(MESSAGE_ID, ids))
    if "ttl" in names:
        lines.append(_line(b"Nats-TTL", _binary(batch.column("ttl").cast(pa.string()))))
    if "expectedLastSubjectSequence" in names:
        expected = batch.column("expectedLastSubjectSequence").cast(pa.string())
        lines.append(_line(b"Nats-Expected-Last-Subject-Sequence", _binary(expected)))
    if "headers" in names and batch.column("headers").null_count < len(batch):
        without = NEVER_OURS if options.command_headers else COMMANDS
        lines.append(header_lines(batch.column("headers"), without))
    return join(*lines) if lines else None


def _line(name: bytes, column: pa.Array) -> pa.Array:
    """A header line of each row; empty where the column is null."""
    line = join(name + b": ", column, b"\r\n")
    return pc.fill_null(line, b"") if column.null_count else line
