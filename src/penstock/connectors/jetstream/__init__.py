"""format("jetstream"): its name, its guarantees, and how its sources and sinks are opened."""

from collections.abc import Sequence

import pyarrow as pa

from penstock.clients.nats.subjects import intersect, prefix_filter, problem
from penstock.connectors.jetstream.durable import DurableSource
from penstock.connectors.jetstream.options import JetStreamOptions, JetStreamSinkOptions
from penstock.connectors.jetstream.sink import JetStreamSink
from penstock.connectors.jetstream.source import JetStreamSource
from penstock.kit.contract import Guarantee, Predicate, Sink, Source
from penstock.kit.rows import columns
from penstock.spark.connector import Connector

# A consumer takes many filters, but each one costs time for every message.
MOST_SUBJECTS = 64


class JetStream(Connector[JetStreamOptions, JetStreamSinkOptions]):
    """NATS JetStream streams, read by sequence."""

    format = "jetstream"
    options_type = JetStreamOptions
    sink_options_type = JetStreamSinkOptions
    replayable = Guarantee.YES
    exactly_once = Guarantee.YES

    @classmethod
    def columns(cls, options: JetStreamOptions) -> pa.Schema:
        """The columns that all connectors share, and the subject."""
        return columns(pa.field("subject", pa.string()), headers=options.include_headers)

    @classmethod
    def open_source(cls, options: JetStreamOptions) -> Source:
        """A source that connects when it is first used."""
        if options.ack != "none":
            return DurableSource(options, cls.columns(options))
        return JetStreamSource(options, cls.columns(options))

    @classmethod
    def open_sink(cls, options: JetStreamSinkOptions, columns: pa.Schema) -> Sink:
        """A sink that connects for the first row."""
        return JetStreamSink(options, columns)

    @classmethod
    def servers_own(cls, options: JetStreamSinkOptions) -> Sequence[str]:
        """The columns that the server sets: when and where a message was stored."""
        return ("timestamp", "stream", "sequence")

    @classmethod
    def only_streams(cls, options: JetStreamOptions) -> str | None:
        """What to do in a batch read with `ack`, where each message comes once; None where batch reads are possible."""
        return None if options.ack == "none" else "leave 'ack' at none to look at a stream"

    @classmethod
    def narrow(cls, options: JetStreamOptions, predicates: Sequence[Predicate]) -> JetStreamOptions | None:
        """The options with fewer subjects, where filters can express a predicate on `subject`; they may match too much.
        None where no subject is left.
        """
        for column, test, value in predicates:
            if column != "subject" or test not in ("=", "in", "startswith"):
                continue
            if test == "startswith":
                prefix = prefix_filter(value)
                wanted = [prefix] if prefix else [">"]
            else:
                wanted = list(dict.fromkeys(value if test == "in" else [value]))
                if any(problem(subject, wildcards=False) for subject in wanted):
                    continue  # servers do store messages on subjects such as 'a.*', which no filter can name
            filters = [both for a in wanted for b in options.subjects or (">",) if (both := intersect(a, b))]
            if not filters:
                return None
            if len(filters) <= MOST_SUBJECTS and filters != [">"]:
                options = options.narrowed(tuple(dict.fromkeys(filters)))
        return options
