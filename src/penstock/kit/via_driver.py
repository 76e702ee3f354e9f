"""Rows that a task hands to the driver, to be written there. Knows Arrow."""

from collections.abc import Iterator

import pyarrow as pa


def hold(batches: Iterator[pa.RecordBatch], most: int) -> tuple[list[pa.RecordBatch], bool]:
    """The rows of a task, up to about so many bytes, and whether these are all."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size > most:
            return held, False
    return held, True


def again(held: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What was held, and then the rest."""
    while held:
        yield held.pop(0)
    yield from rest


def pack(batches: list[pa.RecordBatch]) -> bytes | None:
    """Rows as bytes; None where there are none."""
    if not sum(map(len, batches)):
        return None
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batches[0].schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
        for batch in batches:
            stream.write_batch(batch)
    packed: bytes = out.getvalue().to_pybytes()
    return packed


def unpack(data: bytes) -> Iterator[pa.RecordBatch]:
    """The rows again."""
    return iter(pa.ipc.open_stream(data))
