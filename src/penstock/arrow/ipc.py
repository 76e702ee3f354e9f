"""Rows as bytes, in Arrow's own format, to travel between Spark's processes. Knows Arrow."""

from collections.abc import Iterator, Sequence

import pyarrow as pa


def pack(batches: Sequence[pa.RecordBatch], *, compressed: bool = True) -> bytes | None:
    """Rows as bytes; None where there are none."""
    if not sum(map(len, batches)):
        return None
    out = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4" if compressed else None)
    with pa.ipc.new_stream(out, batches[0].schema, options=options) as stream:
        for batch in batches:
            stream.write_batch(batch)
    packed: bytes = out.getvalue().to_pybytes()
    return packed


def unpack(data: bytes) -> Iterator[pa.RecordBatch]:
    """The opposite of `pack`."""
    return iter(pa.ipc.open_stream(data))
