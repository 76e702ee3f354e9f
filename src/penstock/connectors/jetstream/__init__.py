"""format("jetstream"): what it is called, what it promises, and how it is opened."""

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

# A consumer takes many filters, but each costs on every message.
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
        """The shared ones and the subject."""
        return columns(pa.field("subject", pa.string()), headers=options.include_headers)

    @classmethod
    def open_source(cls, options: JetStreamOptions) -> Source:
        """A source that connects at its first question."""
        if options.ack != "none":
            return DurableSource(options, cls.columns(options))
        return JetStreamSource(options, cls.columns(options))

    @classmethod
    def open_sink(cls, options: JetStreamSinkOptions, columns: pa.Schema) -> Sink:
        """A sink that connects when the first row comes."""
        return JetStreamSink(options, columns)

    @classmethod
    def servers_own(cls, options: JetStreamSinkOptions) -> Sequence[str]:
        """When and where a message was stored."""
        return ("timestamp", "stream", "sequence")

    @classmethod
    def only_streams(cls, options: JetStreamOptions) -> str | None:
        """A consumer that others share gives each message once."""
        return None if options.ack == "none" else "leave 'ack' at none to look at a stream"

    @classmethod
    def narrow(cls, options: JetStreamOptions, predicates: Sequence[Predicate]) -> JetStreamOptions | None:
        """Fewer subjects, where a predicate on `subject` can be said in filters; it may still match too much."""
        for column, test, value in predicates:
            if column != "subject" or test not in ("=", "in", "startswith"):
                continue
            if test == "startswith":
                prefix = prefix_filter(value)
                asked = [prefix] if prefix else [">"]
            else:
                asked = list(dict.fromkeys(value if test == "in" else [value]))
                if any(problem(subject, wildcards=False) for subject in asked):
                    continue  # servers do store messages on subjects such as 'a.*', which no filter can name
            both = [f for a in asked for b in options.subjects or (">",) if (f := intersect(a, b))]
            if not both:
                return None
            if len(both) <= MOST_SUBJECTS and both != [">"]:
                options = options.narrowed(tuple(dict.fromkeys(both)))
        return options
