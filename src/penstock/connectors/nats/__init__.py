"""format("nats"): the name of Core NATS, its guarantees, and how its sources and sinks are opened."""

from collections.abc import Sequence

import pyarrow as pa

from penstock.arrow.types import HEADERS, TIMESTAMP
from penstock.connectors import connector
from penstock.connectors.nats.capture import CapturedSource
from penstock.connectors.nats.options import CoreOptions, CoreSinkOptions
from penstock.connectors.nats.sink import CoreSink
from penstock.connectors.nats.source import CoreSource
from penstock.kit.contract import Guarantee, Sink, Source
from penstock.kit.rows import columns
from penstock.spark.connector import Connector

# Captured messages are read by this format. It is looked up now, not in a task: `penstock.register` sends it along to
# a Python that has no Penstock.
JETSTREAM = connector("jetstream")


class CoreNats(Connector[CoreOptions, CoreSinkOptions]):
    """Core NATS subjects, read as messages arrive."""

    format = "nats"
    options_type = CoreOptions
    sink_options_type = CoreSinkOptions
    replayable = Guarantee.NO
    exactly_once = Guarantee.NO

    @classmethod
    def columns(cls, options: CoreOptions) -> pa.Schema:
        """The columns of a message as it arrives; with `capture`, those of a stream."""
        if options.capture:
            return columns(pa.field("subject", pa.string()), headers=options.include_headers)
        fields = [
            pa.field("value", pa.binary()),
            pa.field("headers", HEADERS),
            pa.field("timestamp", TIMESTAMP),
            pa.field("subject", pa.string()),
            pa.field("reply", pa.string()),
        ]
        return pa.schema([field for field in fields if options.include_headers or field.name != "headers"])

    @classmethod
    def open_source(cls, options: CoreOptions) -> Source:
        """A source that listens from its first use on; with `capture`, one that reads a stream."""
        if options.capture:
            return CapturedSource(options, JETSTREAM)
        return CoreSource(options, cls.columns(options))

    @classmethod
    def open_sink(cls, options: CoreSinkOptions, columns: pa.Schema) -> Sink:
        """A sink that connects for the first row."""
        return CoreSink(options, columns)

    @classmethod
    def servers_own(cls, options: CoreSinkOptions) -> Sequence[str]:
        """The columns that a source sets: when a message arrived and, with `capture`, where it is stored."""
        return ("timestamp", "stream", "sequence")

    @classmethod
    def only_streams(cls, options: CoreOptions) -> str | None:
        """What to do in a batch read, as Core NATS keeps no messages; None with `capture`."""
        return None if options.capture else "Core NATS keeps no message. Set capture=true to keep them in a stream"
