"""format("iggy"): what it is called, what it promises, and how it is opened."""

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
        """The shared ones, and what only Iggy has; `headers` may say their kinds."""
        made = columns(
            pa.field("topic", pa.string()),
            pa.field("partition", pa.int32()),
            pa.field("id", pa.string()),
            pa.field("originTimestamp", TIMESTAMP),
            headers=options.include_headers,
        )
        if options.typed_headers and options.include_headers:
            made = made.set(made.get_field_index("headers"), pa.field("headers", wire.TYPED_HEADERS))
        return made

    @classmethod
    def open_source(cls, options: IggySourceOptions) -> Source:
        """A source that connects at its first question."""
        return IggySource(options, cls.columns(options))

    @classmethod
    def open_sink(cls, options: IggySinkOptions, columns: pa.Schema) -> Sink:
        """A sink that connects when the first row comes."""
        return IggySink(options, columns)

    @classmethod
    def servers_own(cls, options: IggySinkOptions) -> Sequence[str]:
        """When and where a message was sent and stored."""
        return ("timestamp", "stream", "sequence", "topic", "originTimestamp")
