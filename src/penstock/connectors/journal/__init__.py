"""format("journal"): logs in a folder. The smallest connector, the one to copy: docs/add-a-connector.md builds it."""

import pyarrow as pa

from penstock.connectors.journal.options import JournalOptions, JournalSinkOptions
from penstock.connectors.journal.sink import JournalSink
from penstock.connectors.journal.source import JournalSource
from penstock.kit.contract import Guarantee, Sink, Source
from penstock.kit.rows import columns
from penstock.spark.connector import Connector


class Journal(Connector[JournalOptions, JournalSinkOptions]):
    """Logs in a folder that every machine of the cluster sees."""

    format = "journal"
    options_type = JournalOptions
    sink_options_type = JournalSinkOptions
    replayable = Guarantee.YES
    exactly_once = Guarantee.YES

    @classmethod
    def columns(cls, options: JournalOptions) -> pa.Schema:
        """The shared columns, and no more."""
        return columns(headers=options.include_headers)

    @classmethod
    def open_source(cls, options: JournalOptions) -> Source:
        """A source over all logs of the folder."""
        return JournalSource(options, cls.columns(options))

    @classmethod
    def open_sink(cls, options: JournalSinkOptions, columns: pa.Schema) -> Sink:
        """A sink for one log."""
        return JournalSink(options, columns)
