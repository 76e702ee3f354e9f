"""The options of format("jetstream"), and which of them fit together. Knows no server."""

import re
from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import PrivateAttr, field_validator, model_validator

from penstock.clients.jetstream.api import LEDGER
from penstock.clients.nats.options import LEFT_OUT, NatsOptions, PublishOptions
from penstock.clients.nats.subjects import check_filters, problem
from penstock.options import STARTS, Bytes, Count, Csv, Positions, ReadOptions, Seconds, WriteOptions, alias, option


class JetStreamOptions(NatsOptions, ReadOptions):
    """The options to read: which streams and subjects, and how."""

    starting_offsets: Positions | None = option(
        None,
        doc=f"{STARTS} By default `earliest` in a batch read and of a work queue, else `latest`.",
        example='{"ORDERS": 17}',
    )
    stream: Csv = option((), doc="The stream to read, or a comma list.", example="ORDERS")
    stream_pattern: str | None = option(
        None,
        doc="Read every stream whose whole name matches this regular expression. Streams made later are found while "
        "the query runs and read from their beginning.",
        example="ORDERS_.*",
    )
    discovery_interval: Seconds = option(10.0, doc="How often `streamPattern` looks for new streams.")
    subjects: Csv = option(
        (),
        doc="Read only these subjects: a comma list of filters, which must not overlap. Without `stream`, the streams "
        "are found by them.",
        example="orders.eu.>,orders.us.>",
    )
    read_engine: Literal["auto", "consumer", "direct"] = option(
        "auto",
        doc="How tasks read: `consumer` (an ephemeral consumer, for large ranges), `direct` (DIRECT.GET, which needs "
        "no consumer), or whichever suits the stream and the range.",
    )
    progress_consumer: str | None = option(
        None,
        doc="Name of a durable consumer that follows the query, so that NATS tools show its lag. Required on streams "
        "with interest retention, where it also keeps messages until Spark has them.",
        example="spark-orders",
    )
    purge_unread: bool = option(
        False,
        doc="On a work queue: let a new query start behind messages that nobody has read. Its first commit deletes "
        "them. Likewise for a query that goes on with more `subjects` than before.",
    )

    ack: Literal["none", "explicit", "all"] = option(
        "none",
        doc="`none`: positions are Spark's, and reading is replayable. `explicit` and `all`: take messages from the "
        "existing durable `consumer` of that ack policy, shared with others, and acknowledge them when Spark has "
        "committed them: at least once.",
    )
    consumer: str | None = option(None, doc="The durable consumer for `ack`.", example="billing")
    max_buffer_bytes: Bytes = option(
        256 << 20, doc="With `ack`: how much may wait in the driver until Spark has committed it.", example="256mb"
    )

    # The user's `subjects`, where a query's WHERE has narrowed them. Then it is not an error that none matches.
    _user_subjects: tuple[str, ...] | None = PrivateAttr(None)

    def narrowed(self, subjects: tuple[str, ...]) -> Self:
        """A copy of the options with narrower `subjects` than the user's."""
        copy = self.model_copy(update={"subjects": subjects})
        copy._user_subjects = self.user_subjects
        return copy

    @property
    def user_subjects(self) -> tuple[str, ...]:
        """The user's `subjects`. Streams are found by these."""
        return self.subjects if self._user_subjects is None else self._user_subjects

    @property
    def is_narrowed(self) -> bool:
        """Whether `subjects` are narrower than the user's."""
        return self._user_subjects is not None

    @field_validator("stream")
    @classmethod
    def _names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if re.search(r"[\s.*>/\\]", name):
                raise ValueError(f"has '{name}', but a stream's name has no space, dot, slash, * or >")
        return names

    @field_validator("stream_pattern")
    @classmethod
    def _pattern(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"has '{pattern}', which is no regular expression: {error}") from None
        return pattern

    @field_validator("progress_consumer", "consumer")
    @classmethod
    def _durable(cls, name: str | None) -> str | None:
        if name is not None and (not name or re.search(r"[\s.*>/\\]", name)):
            raise ValueError("must be a consumer's name, without space, dot, slash, * or >")
        return name

    @field_validator("subjects")
    @classmethod
    def _filters(cls, filters: tuple[str, ...]) -> tuple[str, ...]:
        return check_filters(filters)

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if self.stream and self.stream_pattern:
            raise ValueError("set 'stream' or 'streamPattern', not both")
        for name in ("starting_offsets", "ending_offsets"):
            positions = getattr(self, name)
            if isinstance(positions, dict) and 0 in positions.values():
                raise ValueError(f"'{alias(name)}' has a 0, but the messages of a stream are numbered from 1")
        if not (self.stream or self.stream_pattern or self.subjects):
            raise ValueError("set 'stream', 'streamPattern' or 'subjects' to say what to read")
        return self

    @model_validator(mode="after")
    def _fits_a_durable(self) -> Self:
        if self.ack == "none":
            if self.consumer:
                raise ValueError("set 'ack' to explicit or all to take messages from a 'consumer'")
            return self
        if not self.consumer or len(self.stream) != 1:
            raise ValueError(f"ack={self.ack} needs one 'stream' and its 'consumer'")
        for name in ("subjects", "starting_offsets", "starting_timestamp", "progress_consumer"):
            if getattr(self, name):
                raise ValueError(f"'{alias(name)}' has no meaning with ack={self.ack}: the consumer says what comes")
        return self


class JetStreamSinkOptions(NatsOptions, PublishOptions, WriteOptions):
    """The options to write: where rows are published, and how surely."""

    command_headers: bool = option(
        False,
        doc="Whether headers that tell a server what to do (`Nats-Rollup`, `Nats-TTL`, `Nats-Expected-*`, "
        f"`Nats-Schedule*`, `Nats-Incr`, `Nats-Required-Api-Level`) are published as well. {LEFT_OUT} `Nats-Msg-Id`, "
        "`Nats-Batch-*`, `Nats-Stream-Source` and `Nats-Trace-*` are left out in any case: the sink gives its own, and "
        "an id of yours goes into the column `id`.",
    )
    subject: str | None = option(
        None,
        doc="The subject of rows that have none in a column `subject`: literal, or with columns in braces.",
        example="orders.{region}",
    )
    publish_mode: Literal["auto", "pipelined", "atomic", "fast"] = option(
        "auto",
        doc="`fast`: fast ingest, for streams with `allow_batched` (nats-server 2.14). `atomic`: batches of 1,000, for "
        "streams with `allow_atomic` (2.12). `pipelined`: one by one, with acks that overlap. `auto`: `fast` where the "
        "stream allows it, `atomic` where it allows that and is in memory, else `pipelined`.",
    )
    max_in_flight: Count = option(4000, doc="How many rows a task may have published without an ack, in `pipelined`.")
    ack_timeout: Seconds = option(10.0, doc="The longest wait for an ack before the connection is given up.")
    ledger: str = option(
        LEDGER,
        doc="The stream in which attempts to write are noted, so that `exactly_once` holds after any downtime; made if "
        "it is missing. `none`: rows are known again only within the duplicate window of the stream written to.",
    )

    no_options: ClassVar[Mapping[str, str]] = {
        "stream": "option 'stream' is for reading. A row is written to a subject, and the stream that takes it stores "
        "it: leave 'stream' out, and set 'subject' to one that stream '{value}' takes, or add a column 'subject'. "
        "Which it takes: nats stream info {value}"
    }

    @field_validator("subject")
    @classmethod
    def _template(cls, template: str | None) -> str | None:
        if template is not None and (why := problem(re.sub(r"\{[^{}]*\}", "x", template), wildcards=False)):
            raise ValueError(f"has '{template}', which {why}")
        return template

    @field_validator("ledger")
    @classmethod
    def _ledger(cls, name: str) -> str:
        if not name or re.search(r"[\s.*>/\\]", name):
            raise ValueError("must be a stream's name, without space, dot, slash, * or >, or none")
        return name
