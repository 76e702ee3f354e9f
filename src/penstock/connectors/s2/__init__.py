"""format("s2"): its name, its guarantees, and how sources and sinks are opened. Sends nothing itself."""

from collections.abc import Sequence

import pyarrow as pa

from penstock.clients.s2.calls import beginning
from penstock.connectors.s2.options import S2SinkOptions, S2SourceOptions
from penstock.connectors.s2.sink import S2Sink
from penstock.connectors.s2.source import S2Source
from penstock.connectors.s2.upserts import ChangesSource
from penstock.kit.contract import Guarantee, Predicate, Sink, Source
from penstock.kit.rows import columns
from penstock.spark.connector import Connector
from penstock.tables import changes


class S2Streams(Connector[S2SourceOptions, S2SinkOptions]):
    """S2 streams, read by sequence number."""

    format = "s2"
    options_type = S2SourceOptions
    sink_options_type = S2SinkOptions
    replayable = Guarantee.YES
    exactly_once = Guarantee.YES

    @classmethod
    def columns(cls, options: S2SourceOptions) -> pa.Schema:
        """The shared columns. With mode=upsert, the columns of the table."""
        if options.mode == "upsert":
            changes.accept(options.table, options.key_columns, written=False)
            return options.table
        return columns(headers=options.include_headers)

    @classmethod
    def shaped(cls, options: S2SourceOptions, asked: pa.Schema) -> S2SourceOptions:
        """With mode=upsert, the table has the columns of the user's schema."""
        return options.shaped(asked) if options.mode == "upsert" else options

    @classmethod
    def only_batches(cls, options: S2SourceOptions) -> str | None:
        """A snapshot shows the table at one moment, so it cannot be streamed."""
        return "leave out 'snapshot' and use penstock.s2.materialize" if options.snapshot else None

    @classmethod
    def open_source(cls, options: S2SourceOptions) -> Source:
        """A source that connects with its first request."""
        if options.mode == "upsert":
            return ChangesSource(options, cls.columns(options))
        return S2Source(options, cls.columns(options))

    @classmethod
    def open_sink(cls, options: S2SinkOptions, columns: pa.Schema) -> Sink:
        """A sink that connects when the first row comes."""
        return S2Sink(options, columns)

    @classmethod
    def servers_own(cls, options: S2SinkOptions) -> Sequence[str]:
        """The sequence number of a record. With mode=upsert, every column belongs to the table."""
        return () if options.mode == "upsert" else ("sequence",)

    @classmethod
    def pushes(cls, options: S2SourceOptions) -> bool:
        """With mode=upsert, a column named `stream` belongs to the table, so nothing is pushed down."""
        return options.mode != "upsert"

    @classmethod
    def narrow(cls, options: S2SourceOptions, predicates: Sequence[Predicate]) -> S2SourceOptions | None:
        """Fewer streams, by predicates on `stream`; there may still be too many. None where no stream is left."""
        if any(isinstance(offsets, dict) for offsets in (options.starting_offsets, options.ending_offsets)):
            return options  # these offsets name streams, so all of them must be read
        for column, test, value in predicates:
            if column != "stream" or test not in ("=", "in", "startswith"):
                continue
            wanted = tuple(value) if test == "in" else (value,)
            if options.names:
                if test == "startswith":
                    names = tuple(name for name in options.names if name.startswith(wanted))
                else:
                    names = tuple(name for name in options.names if name in wanted)
                if not names:
                    return None
                options = options.model_copy(update={"streams": names})
                continue
            prefix, common = options.stream_prefix or "", beginning(wanted)
            if common.startswith(prefix):
                options = options.model_copy(update={"stream_prefix": common})
            elif not prefix.startswith(common):
                return None
        return options
