"""The row: the columns every connector shares, as an Arrow schema. Knows Arrow; knows no server, no Spark."""

import pyarrow as pa

HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
# Spark names the child of every list 'element', and compares schemas to the letter.
HEADERS = pa.list_(pa.field("element", HEADER))
TIMESTAMP = pa.timestamp("us", tz="UTC")


def columns(*own: pa.Field, headers: bool = True) -> pa.Schema:
    """The shared columns in their order, then those that only this system has."""
    shared = [
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
        pa.field("timestamp", TIMESTAMP),
        pa.field("stream", pa.string()),
        pa.field("sequence", pa.int64()),
    ]
    return pa.schema([field for field in shared if headers or field.name != "headers"] + list(own))
