"""The options to read and to write Apache Iggy."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from penstock.clients.iggy.options import IggyOptions
from penstock.clients.iggy.wire import MOST_REQUEST
from penstock.options import Bytes, Count, Csv, ReadOptions, Seconds, WriteOptions, option


def _parse_numbers(value: Any) -> Any:
    """Numbers from text. What is not text is left to pydantic."""
    if not isinstance(value, str):
        return value
    try:
        return tuple(int(part) for part in value.split(",") if part.strip())
    except ValueError:
        raise ValueError("must be a comma list of whole numbers, such as 0,1,2") from None


Numbers = Annotated[tuple[int, ...], BeforeValidator(_parse_numbers)]


def _check_names(*names: str) -> None:
    for name in names:
        if name.isdigit():
            raise ValueError(f"'{name}' is all digits, and Iggy's clients take that for a number: use another name")
        if not 0 < len(name.encode()) <= 255:
            raise ValueError(f"'{name[:40]}' is no name of a stream or topic: it must have 1 to 255 bytes")


class TopicOptions(IggyOptions):
    """The options that name topics, for reading and for writing."""

    stream: str = option(doc="The stream.", example="telemetry")
    topic: str | None = option(None, doc="The topic, to read and to write.", example="orders")
    topics: Csv = option(
        (), doc="The topics to read, a comma list; a single one is also written to.", example="orders,returns"
    )

    @model_validator(mode="after")
    def _topic_and_topics_agree(self) -> Self:
        _check_names(self.stream, *self.names())
        if self.topic is not None and self.topics and self.topic not in self.topics:
            raise ValueError(
                f"'topic' is '{self.topic}', and 'topics' is '{','.join(self.topics)}': set one of both, or both to "
                "the same"
            )
        return self

    def names(self) -> tuple[str, ...]:
        """The topics."""
        return self.topics or ((self.topic,) if self.topic is not None else ())


class IggySourceOptions(TopicOptions, ReadOptions):
    """Which topics, and how they are read."""

    partitions: Numbers = option(
        (), doc="Read only these partitions. By default all; new ones are found while the query runs.", example="0,1"
    )
    poll_count: Annotated[int, Field(gt=0, le=1_000_000)] = option(
        10_000, doc="So many messages are asked for at once."
    )
    discovery_interval: Seconds = option(
        10.0, doc="How often it is looked up where partitions begin: what is before that has been deleted."
    )
    typed_headers: bool = option(False, doc="Whether `headers` says the kind of each value, such as `uint32`.")
    progress_consumer: str | None = option(
        None, doc="Name of a consumer whose offsets follow the query, for Iggy's own tools.", example="spark-orders"
    )

    @model_validator(mode="after")
    def _names_topics(self) -> Self:
        if not self.names():
            raise ValueError("set 'topic' or 'topics': which topics are to be read?")
        for name in self.names():
            if "/" in name:
                raise ValueError(f"topic '{name}' has a slash, which parts the names in positions: it cannot be read")
        if self.progress_consumer is not None:
            _check_names(self.progress_consumer)
        return self


class IggySinkOptions(TopicOptions, WriteOptions):
    """Where rows go, and how."""

    partitioning: Literal["auto", "balanced", "key", "partition"] = option(
        "auto",
        doc="Where a row goes: to the partition of the hash of its `key`, as Iggy's clients compute it; to the one in "
        "its column `partition`; or `balanced`, by turns. `auto` goes by the columns that there are, and by turns "
        "for a row whose `partition` is null.",
    )
    batch_length: Count = option(1000, doc="At most so many messages a request.")
    max_batch_bytes: Bytes = option(4 << 20, doc="At most so many bytes a request.", example="4mb")
    create_topic: bool = option(False, doc="Make stream and topic if they are not there, as the options below say.")
    topic_partitions: Count = option(1, doc="Number of partitions of a topic made here.")
    message_expiry: Seconds | None = option(
        None, doc="How long a topic made here keeps messages; by default as the server says.", example="7d"
    )
    max_topic_size: Bytes | None = option(None, doc="How large a topic made here may grow.", example="10gb")
    durability: Literal["replicated", "persisted"] | None = option(
        None, doc="When a topic made here confirms a message: `persisted` waits for the disk."
    )
    driver_bytes: Bytes = option(
        4 << 20,
        doc="With `delivery=exactly_once`, the rows of a task up to this size go through the driver, which writes them "
        "in the order of the tasks; larger ones are written by their task. All of a batch together must stay below "
        "`spark.driver.maxResultSize`.",
    )
    look_back: Count = option(
        10_000,
        doc="With `delivery=exactly_once`: so many messages of others are looked through in each partition for what "
        "this query wrote last. Where it is not among them, the query stops rather than guess; only its batches 0 "
        "and 1 are taken as new.",
    )
    settle_time: Seconds = option(
        1.0,
        doc="With `delivery=exactly_once`: after a request without an answer, once the server answers again, wait so "
        "long before looking whether it was stored.",
    )

    @model_validator(mode="after")
    def _names_one_topic(self) -> Self:
        if self.topic is None and len(self.topics) != 1:
            given = f", and 'topics' names {len(self.topics)}" if self.topics else ""
            raise ValueError(f"set 'topic': rows are written to one{given}")
        if self.max_batch_bytes > MOST_REQUEST:
            raise ValueError(f"maxBatchBytes must be at most {MOST_REQUEST:,}")
        if self.txn_version is not None and self.txn_version >= 2**32:
            raise ValueError(f"txnVersion must be below {2**32:,}: the id of a message has no room for more")
        return self

    @property
    def target(self) -> str:
        """The topic to write to."""
        return self.topics[0] if self.topic is None else self.topic
