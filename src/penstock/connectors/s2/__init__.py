"""format("s2"): what it is called, what it promises, and how it is opened."""

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
        """The shared ones, or those of the table that was upserted."""
        if options.mode == "upsert":
            changes.accept(options.table, options.key_columns, written=False)
            return options.table
        return columns(headers=options.include_headers)

    @classmethod
    def shaped(cls, options: S2SourceOptions, asked: pa.Schema) -> S2SourceOptions:
        """A table that was upserted has the columns that the user says."""
        return options.shaped(asked) if options.mode == "upsert" else options

    @classmethod
    def only_batches(cls, options: S2SourceOptions) -> str | None:
        """A snapshot is of one moment."""
        return "leave out 'snapshot' and use penstock.s2.materialize" if options.snapshot else None

    @classmethod
    def open_source(cls, options: S2SourceOptions) -> Source:
        """A source that connects at its first question."""
        if options.mode == "upsert":
            return ChangesSource(options, cls.columns(options))
        return S2Source(options, cls.columns(options))

    @classmethod
    def open_sink(cls, options: S2SinkOptions, columns: pa.Schema) -> Sink:
        """A sink that connects when the first row comes."""
        return S2Sink(options, columns)

    @classmethod
    def servers_own(cls, options: S2SinkOptions) -> Sequence[str]:
        """The number of a record. The columns of a table of changes are all its own."""
        return () if options.mode == "upsert" else ("sequence",)

    @classmethod
    def pushes(cls, options: S2SourceOptions) -> bool:
        """The columns of a table are its own, whatever their names."""
        return options.mode != "upsert"

    @classmethod
    def narrow(cls, options: S2SourceOptions, predicates: Sequence[Predicate]) -> S2SourceOptions | None:
        """Fewer streams, where a predicate on `stream` says which; it may still be too many."""
        if any(isinstance(at, dict) for at in (options.starting_offsets, options.ending_offsets)):
            return options  # they name streams, which must be there
        for column, test, value in predicates:
            if column != "stream" or test not in ("=", "in", "startswith"):
                continue
            wanted = tuple(value) if test == "in" else (value,)
            if options.names:
                left = [n for n in options.names if (n.startswith(wanted) if test == "startswith" else n in wanted)]
                if not left:
                    return None
                options = options.model_copy(update={"streams": tuple(left)})
                continue
            prefix, common = options.stream_prefix or "", beginning(wanted)
            if common.startswith(prefix):
                options = options.model_copy(update={"stream_prefix": common})
            elif not prefix.startswith(common):
                return None
        return options
