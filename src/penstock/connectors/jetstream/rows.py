"""The rows of a sink as what is published: subjects, header lines, bodies and ids. Pure: a row that cannot be sent is
refused before anything is.
"""

import sys
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.buffers import Ints, join, lengths, numbers
from penstock.clients.jetstream.publish import Chunk
from penstock.clients.nats.commands import COMMANDS, NEVER_OURS
from penstock.clients.nats.frames import Fault, bad_body, bad_header, bad_subject, bad_value, header_lines, size_of
from penstock.connectors.jetstream.options import JetStreamSinkOptions
from penstock.errors import OptionError
from penstock.kit import templates
from penstock.kit.contract import Origin
from penstock.kit.rows import BYTES, NAMED_VALUES, TEXT, WHOLE_NUMBER, Kind, is_count, is_text


def is_ttl(kind: pa.DataType) -> bool:
    """Whether a column can be a time to live: seconds, or text such as 1h."""
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
# A chunk is sent without a look at the clock: a link of 4 MB/s takes two seconds for this, of a window of minutes.
LARGEST = 8 << 20


def accept(options: JetStreamSinkOptions, columns: pa.Schema) -> None:
    """Refuse columns that are missing, of the wrong type, or would be dropped."""
    templates.accept("jetstream", columns, options.subject, TAKES)


def parts(made: Chunk) -> Iterator[Chunk]:
    """The same rows in chunks of about LARGEST bytes: on a slow link, one may take long enough."""
    sizes = np.cumsum(size_of(made.block, made.value) + lengths(made.subject))
    cuts = np.flatnonzero(np.diff(sizes // LARGEST)) + 1
    for low, high in pairwise([0, *cuts.tolist(), len(made)]):
        yield made.part(low, high)


def chunk(options: JetStreamSinkOptions, origin: Origin, batch: pa.RecordBatch, first: int) -> Chunk:
    """The rows of a batch, numbered from `first`, ready to be published."""
    names = batch.schema.names
    number = np.arange(first, first + len(batch))
    value = _binary(batch.column("value"))
    subject = _binary(templates.names(options.subject, batch))
    fault = bad_body(None, value, sys.maxsize)  # how large it may be, only the server knows
    fault = fault or bad_subject(subject, partial(templates.missing, options.subject, batch))
    if fault is None and "headers" in names:
        fault = bad_header(batch.column("headers"))
    for name in ("id", "ttl"):
        if fault is None and name in names:
            fault = bad_value(name, batch.column(name).cast(pa.string()))
    if fault is not None:
        raise refuse(origin, first, fault)
    ids = _ids(options, origin, batch, number)
    block = _block(options, batch, ids)
    conditional = "expectedLastSubjectSequence" in names or options.command_headers
    return Chunk(number, subject, block, value, np.zeros(len(batch), bool), ids, conditional=conditional)


def too_large(made: Chunk, origin: Origin, limit: int) -> OptionError | None:
    """The error for the first row that the server would cut the connection for."""
    fault = bad_body(made.block, made.value, limit)
    return None if fault is None else of_chunk(origin, made, fault)


def of_chunk(origin: Origin, made: Chunk, fault: Fault) -> OptionError:
    """The error for a row of a chunk that cannot be published."""
    return refuse(origin, 0, Fault(int(made.number[fault.row]), fault.why))


def refuse(origin: Origin, first: int, fault: Fault) -> OptionError:
    """The error for a row that cannot be published."""
    return OptionError(f"row {first + fault.row} of {origin} {fault.why}.")


def _binary(column: pa.Array) -> pa.Array:
    return column.cast(pa.binary())


def _ids(options: JetStreamSinkOptions, origin: Origin, batch: pa.RecordBatch, number: Ints) -> pa.Array | None:
    given = _binary(batch.column("id")) if "id" in batch.schema.names else None
    if options.delivery != "exactly_once":
        return given
    made = join(origin.id.encode(), numbers(number))
    return made if given is None else pc.coalesce(given, made)


def _block(options: JetStreamSinkOptions, batch: pa.RecordBatch, ids: pa.Array | None) -> pa.Array | None:
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
    """A header line of each row; empty where it is null."""
    line = join(name + b": ", column, b"\r\n")
    return pc.fill_null(line, b"") if column.null_count else line
