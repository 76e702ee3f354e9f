"""format("kinesis"): its name, its guarantees, and how sources and sinks are opened. Sends nothing itself."""

from collections.abc import Sequence

import pyarrow as pa

from penstock.connectors.kinesis.options import KinesisSinkOptions, KinesisSourceOptions
from penstock.connectors.kinesis.sink import KinesisSink
from penstock.connectors.kinesis.source import KinesisSource
from penstock.kit.contract import Guarantee, Sink, Source
from penstock.kit.rows import columns
from penstock.spark.connector import Connector


class Kinesis(Connector[KinesisSourceOptions, KinesisSinkOptions]):
    """A stream of Amazon Kinesis, read by sequence number."""

    format = "kinesis"
    options_type = KinesisSourceOptions
    sink_options_type = KinesisSinkOptions
    replayable = Guarantee.YES
    exactly_once = Guarantee.NO

    @classmethod
    def columns(cls, options: KinesisSourceOptions) -> pa.Schema:
        """The shared columns, then those of Kinesis. Its numbers are too large for a BIGINT, so they are text."""
        schema = columns(
            pa.field("shard", pa.string()), pa.field("partitionKey", pa.string()), headers=options.include_headers
        )
        return schema.set(schema.get_field_index("sequence"), pa.field("sequence", pa.string()))

    @classmethod
    def open_source(cls, options: KinesisSourceOptions) -> Source:
        """A source that connects with its first request."""
        return KinesisSource(options, cls.columns(options))

    @classmethod
    def open_sink(cls, options: KinesisSinkOptions, columns: pa.Schema) -> Sink:
        """A sink that connects when the first row comes."""
        return KinesisSink(options, columns)

    @classmethod
    def pushes(cls, options: KinesisSourceOptions) -> bool:
        """No: a number in a filter need not be that of a record."""
        return False

    @classmethod
    def servers_own(cls, options: KinesisSinkOptions) -> Sequence[str]:
        """Where a record is stored, and when it was."""
        return ("timestamp", "stream", "sequence", "shard")
