"""Rows as messages of Iggy: the partition, the id and the headers of each. Refuses rows that Iggy would not take.
Pure: the SDK's own objects are made elsewhere.
"""

import hashlib
import uuid
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.buffers import Ints, lengths
from penstock.clients.iggy.wire import KINDS, MOST_HEADER, MOST_PAYLOAD, TYPED_HEADERS, Words
from penstock.connectors.iggy.options import IggySinkOptions
from penstock.errors import OptionError
from penstock.kit.contract import Origin
from penstock.kit.rows import BYTES, NAMED_VALUES, WHOLE_NUMBER, Kind, accept, is_bytes, is_count, is_headers

# The bits of an id of ours: a hash of the query, then the batch, the task and the row.
_QUERY, _BATCH, _TASK, _ROW = 48, 32, 20, 28


def is_typed_headers(kind: pa.DataType) -> bool:
    """Whether a column can be `headers` with kinds. What SQL makes of constants is never null, and says so: that is no
    other type.
    """
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    return [(each.name, each.type) for each in kind.value_type] == [
        (each.name, each.type) for each in TYPED_HEADERS.value_type
    ]


def is_any_headers(kind: pa.DataType) -> bool:
    """Whether a column can be `headers`, with or without kinds."""
    return is_headers(kind) or is_typed_headers(kind)


def is_id(kind: pa.DataType) -> bool:
    """Whether a column can be an id: decimal or UUID as text, 16 bytes, or a whole number."""
    return bool(is_bytes(kind) or is_count(kind) or pa.types.is_decimal(kind))


TAKES = {
    "value": BYTES,
    "headers": Kind(is_any_headers, f"{NAMED_VALUES.in_sql}, or with a third field `kind STRING`"),
    "id": Kind(is_id, "STRING, BINARY or a whole number"),
    "key": BYTES,
    "partition": WHOLE_NUMBER,
}
WIDTHS = {"bool": 1} | {f"{kind}{bits}": bits // 8 for kind in ("int", "uint") for bits in (8, 16, 32, 64, 128)}
WIDTHS |= {"float32": 4, "float64": 8}
MOST_HEADERS = 99_000  # bytes of all headers of a message, with some room for their lengths


class Name(NamedTuple):
    """What the ids of a task have in common: the upper 64 bits, and the lower 64 bits with the row as 0."""

    high: int
    low: int


def name(origin: Origin) -> Name:
    """What the ids of a task have in common. An error where its batch or partition does not fit."""
    query = int.from_bytes(hashlib.blake2b(origin.query.encode(), digest_size=6).digest(), "big")
    if origin.batch >> _BATCH or origin.partition >> _TASK:
        raise OptionError(f"{origin} is beyond what an id has room for. Use fewer tasks, or delivery=at_least_once.")
    whole = (((query << _BATCH) | origin.batch) << _TASK | origin.partition) << _ROW
    return Name(whole >> 64, whole & (2**64 - 1))


def rows_of(task: Name, high: Words, low: Words) -> tuple[npt.NDArray[np.bool_], Ints]:
    """Which ids belong to a task, and the numbers of their rows."""
    mine = (high == np.uint64(task.high)) & (low & ~np.uint64(2**_ROW - 1) == np.uint64(task.low))
    return mine, (low[mine] & np.uint64(2**_ROW - 1)).astype(np.int64)


def of_batch(task: Name, high: Words, low: Words) -> npt.NDArray[np.bool_]:
    """Which ids belong to the query and batch of a task."""
    mine: npt.NDArray[np.bool_] = (high == np.uint64(task.high)) & (low >> np.uint64(48) == np.uint64(task.low >> 48))
    return mine


def tasks_of(low: Words) -> set[int]:
    """The tasks of ids of ours."""
    return set(np.unique(low >> np.uint64(_ROW) & np.uint64(2**_TASK - 1)).tolist())


def batches_of(query: Name, high: Words, low: Words) -> Ints:
    """The batch of each id that belongs to the query; ids of others are left out."""
    mine = (high >> np.uint64(16)) == np.uint64(query.high >> 16)
    upper, lower = high[mine] & np.uint64(0xFFFF), low[mine] >> np.uint64(48)
    batches: Ints = ((upper << np.uint64(16)) | lower).astype(np.int64)
    return batches


def _partitioning(options: IggySinkOptions, columns: pa.Schema) -> str:
    """How partitions are chosen: by the column of that name, or "balanced"."""
    if options.partitioning != "auto":
        return options.partitioning
    return next((name for name in ("partition", "key") if name in columns.names), "balanced")


def check(options: IggySinkOptions, columns: pa.Schema) -> None:
    """Refuse columns that are missing, have the wrong type, or would be dropped."""
    accept("iggy", columns, TAKES)
    chosen = _partitioning(options, columns)
    if chosen != "balanced" and chosen not in columns.names:
        raise OptionError(f"partitioning={chosen} needs a column '{chosen}'. There are: {', '.join(columns.names)}.")


class Rows(NamedTuple):
    """Rows ready to be sent. `ids` is None where rows have no ids of their own."""

    number: Ints
    partition: Ints
    value: list[Any]
    size: Ints
    ids: list[int] | None
    headers: list[Any] | None
    crc_of: pa.Array


def prepare(options: IggySinkOptions, origin: Origin, batch: pa.RecordBatch, first: int, partitions: int) -> Rows:
    """Rows ready to be sent, numbered from `first`. An error where Iggy would not take a row."""
    names = batch.schema.names
    value = batch.column("value")
    size = _sizes(origin, first, value)
    if first + len(batch) >> _ROW and "id" not in names:
        raise OptionError(f"{origin} has more than {2**_ROW:,} rows, which an id has no room for. Use more tasks.")
    partition = _partitions(options, origin, batch, first, partitions)
    number = np.arange(first, first + len(batch))
    ids = None
    if "id" in names and batch.column("id").null_count < len(batch):
        ids = _ids(origin, first, batch.column("id"))
    headers = _headers(origin, first, batch)
    if headers is not None:
        size = size + np.array([sum(10 + len(k.encode()) + len(v) for k, _, v in row) for row in headers], np.int64)
    return Rows(number, partition, _payloads(value), size, ids, headers, value.cast(pa.binary()))


def _payloads(value: pa.Array) -> list[Any]:
    """Values as text where all are UTF-8, as the SDK takes text nine times as fast."""
    try:
        payloads: list[Any] = value.cast(pa.string()).to_pylist()
    except pa.ArrowInvalid:
        payloads = value.to_pylist()
    return payloads


def _sizes(origin: Origin, first: int, value: pa.Array) -> Ints:
    """The size of each value. An error where one is null, empty or too large."""
    if value.null_count:
        raise origin.cannot_write(
            first + pc.index(pc.is_null(value), True).as_py(),
            "has no value (null), and Iggy has no empty messages",
        )
    size = lengths(value.cast(pa.binary()))
    if not len(size):
        return size
    if size.min() == 0:
        raise origin.cannot_write(first + int(np.argmin(size)), "has an empty value, and Iggy has no empty messages")
    if size.max() > MOST_PAYLOAD:
        at = int(np.argmax(size))
        raise origin.cannot_write(first + at, f"has {int(size[at]):,} bytes, and Iggy takes {MOST_PAYLOAD:,}")
    return size


def _partitions(options: IggySinkOptions, origin: Origin, batch: pa.RecordBatch, first: int, count: int) -> Ints:
    """The partition of each row, out of `count`."""
    chosen = _partitioning(options, batch.schema)
    turns: Ints = (np.arange(first, first + len(batch)) // options.batch_length + origin.partition) % count
    if chosen == "balanced":
        return turns
    column = batch.column(chosen)
    if chosen == "partition" and options.partitioning == "auto":  # an INSERT leaves null what it does not name
        column = pc.coalesce(column.cast(pa.int64()), pa.array(turns))
    if column.null_count:
        raise origin.cannot_write(first + pc.index(pc.is_null(column), True).as_py(), f"has no {chosen} (null)")
    if chosen == "partition":
        numbers: Ints = column.to_numpy(zero_copy_only=False).astype(np.int64)
        if len(numbers) and (numbers.min() < 0 or numbers.max() >= count):
            at = int(np.argmax((numbers < 0) | (numbers >= count)))
            raise origin.cannot_write(first + at, f"has partition {numbers[at]}, and the topic has 0 to {count - 1}")
        return numbers
    encoded = column.cast(pa.binary()).dictionary_encode()
    keys = encoded.dictionary.to_pylist()
    for i, key in enumerate(keys):
        if not 0 < len(key) <= 255:
            at = pc.index(encoded.indices, i).as_py()
            raise origin.cannot_write(first + at, f"has a key of {len(key)} bytes, and Iggy takes 1 to 255")
    import xxhash

    hashed = np.array([xxhash.xxh32_intdigest(key) % count for key in keys], np.int64)
    partitions: Ints = hashed[np.asarray(encoded.indices)]
    return partitions


def _ids(origin: Origin, first: int, column: pa.Array) -> list[int]:
    ids = []
    for i, value in enumerate(column.to_pylist()):
        number = _number(value)
        if number is None or not 0 < number < 2**128:
            raise origin.cannot_write(
                first + i,
                f"has the id {str(value)[:60]!r}, which is no number from 1 to 2^128 - 1, UUID or 16 bytes",
            )
        ids.append(number)
    return ids


def _number(value: Any) -> int | None:
    """An id from a number, 16 bytes, digits or a UUID; None where it is none of these."""
    if isinstance(value, bytes):
        return int.from_bytes(value, "big") if len(value) == 16 else None
    if isinstance(value, str):
        try:
            return int(value) if value.isdigit() else uuid.UUID(value).int
        except ValueError:
            return None
    return None if value is None else int(value)


def _headers(origin: Origin, first: int, batch: pa.RecordBatch) -> list[Any] | None:
    """The headers of each row as triples of key, kind and value; None where the column is null in every row."""
    if "headers" not in batch.schema.names or batch.column("headers").null_count == len(batch):
        return None
    column = batch.column("headers")
    typed, plain = is_typed_headers(column.type), "raw"
    if not typed and column.type.value_type.field(1).type == pa.string():
        plain = "string"
    headers: list[Any] = []
    for i, row in enumerate(column.to_pylist()):
        triples = []
        for header in row or ():
            key, value = header["key"], header["value"]
            kind = (header["kind"] or "raw") if typed else plain
            data = value.encode() if isinstance(value, str) else value
            if not key or len(key.encode()) > MOST_HEADER:
                raise origin.cannot_write(
                    first + i, f"has a header named {str(key)[:40]!r}: a name has 1 to {MOST_HEADER} bytes"
                )
            if not data or len(data) > MOST_HEADER:
                raise origin.cannot_write(
                    first + i,
                    f"has a header '{key[:40]}' of {len(data or b'')} bytes, and Iggy takes 1 to {MOST_HEADER}",
                )
            if kind not in KINDS:
                raise origin.cannot_write(
                    first + i, f"has a header '{key[:40]}' of the kind '{kind}'; there are: {', '.join(KINDS)}"
                )
            if len(data) != WIDTHS.get(kind, len(data)):
                why = f"has a header '{key[:40]}' of the kind {kind} with {len(data)} bytes: it has {WIDTHS[kind]}"
                raise origin.cannot_write(first + i, why)
            if kind == "string" and not _is_text(data):
                raise origin.cannot_write(first + i, f"has a header '{key[:40]}' of the kind string that is no UTF-8")
            triples.append((key, kind, data))
        if len({key for key, _, _ in triples}) < len(triples):
            raise origin.cannot_write(first + i, "has two headers of the same name, and Iggy keeps one")
        if sum(len(key.encode()) + len(data) for key, _, data in triples) > MOST_HEADERS:
            raise origin.cannot_write(
                first + i, f"has more than {MOST_HEADERS:,} bytes of headers, which Iggy does not take"
            )
        headers.append(triples)
    return headers


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
