"""format("iggy"): its name, its guarantees, and how sources and sinks are opened. Sends nothing itself."""

from collections.abc import Sequence

import pyarrow as pa

from penstock.arrow.types import TIMESTAMP
from penstock.clients.iggy import wire
from penstock.connectors.iggy.options import IggySinkOptions, IggySourceOptions
from penstock.connectors.iggy.sink import IggySink
from penstock.connectors.iggy.source import IggySource
from penstock.kit.contract import Guarantee, Sink, Source
from penstock.kit.rows import columns
from penstock.spark.connector import Connector


class Iggy(Connector[IggySourceOptions, IggySinkOptions]):
    """Topics of Apache Iggy, read by offset."""

    format = "iggy"
    options_type = IggySourceOptions
    sink_options_type = IggySinkOptions
    replayable = Guarantee.YES
    exactly_once = Guarantee.ONE_ATTEMPT

    @classmethod
    def columns(cls, options: IggySourceOptions) -> pa.Schema:
        """The shared columns, then those of Iggy. With `typedHeaders`, each header has a kind."""
        schema = columns(
            pa.field("topic", pa.string()),
            pa.field("partition", pa.int32()),
            pa.field("id", pa.string()),
            pa.field("originTimestamp", TIMESTAMP),
            headers=options.include_headers,
        )
        if options.typed_headers and options.include_headers:
            schema = schema.set(schema.get_field_index("headers"), pa.field("headers", wire.TYPED_HEADERS))
        return schema

    @classmethod
    def open_source(cls, options: IggySourceOptions) -> Source:
        """A source that connects with its first request."""
        return IggySource(options, cls.columns(options))

    @classmethod
    def open_sink(cls, options: IggySinkOptions, columns: pa.Schema) -> Sink:
        """A sink that connects when the first row comes."""
        return IggySink(options, columns)

    @classmethod
    def servers_own(cls, options: IggySinkOptions) -> Sequence[str]:
        """Where a message is stored, and when it was sent and stored."""
        return ("timestamp", "stream", "sequence", "topic", "originTimestamp")
