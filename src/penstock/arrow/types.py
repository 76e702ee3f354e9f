"""Arrow types of columns that all connectors share."""

import pyarrow as pa

HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
# Spark calls the child of a list 'element', and a schema must match in every name.
HEADERS = pa.list_(pa.field("element", HEADER))
TIMESTAMP = pa.timestamp("us", tz="UTC")
