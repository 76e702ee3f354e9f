"""The Arrow types of columns that every connector shares."""

import pyarrow as pa

HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
# Spark names the child of every list 'element', and compares schemas to the letter.
HEADERS = pa.list_(pa.field("element", HEADER))
TIMESTAMP = pa.timestamp("us", tz="UTC")
