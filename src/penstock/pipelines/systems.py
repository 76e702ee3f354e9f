"""The systems that a pipeline can read and write: what a file calls them, what Spark calls them, and what they promise.
Knows the declarations of options; no files, no servers.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.connectors import connector
from penstock.errors import OptionError
from penstock.kit.contract import Guarantee
from penstock.options import Bytes, Count, Csv, Options, Seconds, option

Text = dict[str, str]  # options as Spark takes them


class KafkaReadOptions(Options):
    """Options of Spark's Kafka source. All of `kafka.*` go into `properties`."""

    bootstrap_servers: str | None = option(
        None, doc="The brokers: `kafka.bootstrap.servers`.", example="localhost:9092"
    )
    subscribe: Csv = option((), doc="The topics; `identifier` says the same.")
    subscribe_pattern: str | None = option(None, doc="A regular expression of topics.")
    assign: str | None = option(None, doc="JSON of topics and partitions.")
    starting_offsets: str | None = option(None, doc="`earliest`, `latest`, or JSON; `initial_offset` says the same.")
    starting_timestamp: Count | None = option(None, doc="Milliseconds since 1970.")
    max_offsets_per_trigger: Count | None = option(None, doc="`batch_size` says the same.")
    min_offsets_per_trigger: Count | None = option(None, doc="Wait until so many records are there.")
    max_trigger_delay: str | None = option(None, doc="The longest wait for them.")
    min_partitions: Count | None = option(None, doc="`parallelism` says the same.")
    max_records_per_partition: Count | None = option(None, doc="At most so many records a task.")
    fail_on_data_loss: bool = option(True, doc="Stop when unread records were deleted.")
    include_headers: bool = option(True, doc="Whether records have their headers.")
    group_id_prefix: str | None = option(None, doc="Prefix of the consumer groups that Spark makes up.")


class KafkaWriteOptions(Options):
    """Options of Spark's Kafka sink. All of `kafka.*` go into `properties`."""

    bootstrap_servers: str | None = option(
        None, doc="The brokers: `kafka.bootstrap.servers`.", example="localhost:9092"
    )
    topic: str | None = option(None, doc="The topic; `identifier` says the same.")
    include_headers: bool = option(True, doc="Whether `headers` are written.")


class FileReadOptions(Options):
    """Options of Spark's file sources."""

    format: Literal["json", "csv", "text", "parquet", "orc"] | None = option(
        None,
        doc="The format of files; also `file.format` in `properties`. By default that of `input_schema`, or `json`.",
    )
    max_files_per_trigger: Count | None = option(None, doc="`batch_size` says the same.")
    max_bytes_per_trigger: Bytes | None = option(None, doc="At most about this many bytes a batch.")
    latest_first: bool | None = option(None, doc="Read the newest files first.")
    max_file_age: str | None = option(None, doc="Files older than this are passed over.", example="7d")
    clean_source: Literal["archive", "delete", "off"] | None = option(None, doc="What becomes of files that are read.")
    source_archive_dir: str | None = option(None, doc="Where `cleanSource=archive` puts them.")
    recursive_file_lookup: bool | None = option(None, doc="Look into folders.")
    path_glob_filter: str | None = option(None, doc="Only files with such names.", example="*.json")
    whole_text: bool | None = option(None, doc="A file is one record, not a line.")


class FileWriteOptions(Options):
    """Options of Spark's file sinks."""

    path: str | None = option(None, doc="The folder; `identifier` says the same.")
    partition_by: Csv = option((), doc="Columns that become folders.", example="region")
    compression: str | None = option(None, doc="How files are compressed.", example="zstd")


class RateOptions(Options):
    """Options of Spark's `rate` source, which makes up rows."""

    rows_per_second: Count = option(1, doc="How many rows a second.")
    ramp_up_time: Seconds | None = option(None, doc="How long it takes until it is that fast.")
    num_partitions: Count | None = option(None, doc="`parallelism` says the same.")


class ConsoleOptions(Options):
    """Options of Spark's `console` sink, which prints rows."""

    num_rows: Count = option(20, doc="How many rows of a batch.")
    truncate: bool = option(True, doc="Cut long values.")


class NoOptions(Options):
    """No options."""


@dataclass(frozen=True)
class SourceKind:
    """One `type` of a source."""

    format: str
    options: type[Options] | None  # None: any option
    identifier: Callable[[str], Text] | None
    start: Callable[[Any, Text], Text] | None = None  # initial_offset, and the options so far
    batch_size: str | None = None
    parallelism: str | None = None
    replayable: Guarantee = Guarantee.YES
    ours: bool = False
    # SQL over the columns of the source: what the shard is called, and the position in it.
    partition: str = "CAST(NULL AS STRING)"
    position: str = "CAST(NULL AS STRING)"
    stream: str = "CAST(NULL AS STRING)"
    columns: tuple[str, ...] = ()  # those that say where a copy of a record may go
    renamed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SinkKind:
    """One `type` of a sink."""

    format: str
    options: type[Options] | None  # None: any option
    identifier: Callable[[str], Text] | None
    exactly_once: Guarantee = Guarantee.NO
    messages: bool = False  # takes a column `value` with bytes; else columns as they are
    place: str | None = None  # the column that says where a row goes
    key: str | None = None  # the column by which rows are spread, where an option of that name may stand for it
    takes: tuple[str, ...] = ()  # columns besides `value` that [routing] may fill
    ours: bool = False
    txn: bool = False  # knows a batch again by txnAppId and txnVersion
    renamed: Mapping[str, str] = field(default_factory=dict)

    @property
    def template(self) -> str:
        """The option whose text may name columns; empty where there is none."""
        return self.place or self.key or ""


def _one(name: str) -> Callable[[str], Text]:
    return lambda identifier: {name: identifier}


def _stream_and_topic(identifier: str) -> Text:
    stream, slash, topic = identifier.partition("/")
    return {"stream": stream, "topic": topic} if slash else {"topic": identifier}


def _start_by_name(name: str) -> Callable[[Any, Text], Text]:
    """Positions for sources of ours: one number is for the one stream that is named in the option `name`."""

    def start(value: Any, options: Text) -> Text:
        if isinstance(value, int):
            streams = [part.strip() for part in options.get(name, "").split(",") if part.strip()]
            if len(streams) != 1:
                raise OptionError(
                    f"initial_offset is one number, and this reads {len(streams) or 'an unknown number of'} streams. "
                    "Write a table: { NAME = 42 }."
                )
            value = {streams[0]: value}
        return {"startingOffsets": json.dumps(value) if isinstance(value, dict) else value}

    return start


def _start_iggy(value: Any, options: Text) -> Text:
    """Positions of partitions: a table may name them by number alone, as the seed does, where there is one topic."""
    topic = options.get("topic") or options.get("topics", "")
    if isinstance(value, int):
        raise OptionError("initial_offset is one number, and a topic has partitions. Write a table: { 0 = 42 }.")
    if isinstance(value, dict):
        value = {(f"{topic}/{key}" if key.isdigit() else key): number for key, number in value.items()}
    return {"startingOffsets": json.dumps(value) if isinstance(value, dict) else value}


def _start_kinesis(value: Any, options: Text) -> Text:
    if isinstance(value, int):
        raise OptionError(
            "initial_offset is one number, and a stream of Kinesis has shards. Write a table: "
            '{ "shardId-000000000000" = 0 }.'
        )
    return {"startingOffsets": json.dumps(value) if isinstance(value, dict) else value}


def _start_kafka(value: Any, options: Text) -> Text:
    if isinstance(value, int):
        raise OptionError("initial_offset is one number, and a topic has partitions. Write a table: { 0 = 42 }.")
    if isinstance(value, dict):
        topics = options.get("subscribe", "")
        if not topics or "," in topics:
            raise OptionError("initial_offset has partitions, and this does not read one topic. Set startingOffsets.")
        return {"startingOffsets": json.dumps({topics: value})}
    return {"startingOffsets": value}


KAFKA = {"bootstrapServers": "kafka.bootstrap.servers"}
_STREAM = {"stream": "stream", "partition": "stream", "position": "string(sequence)"}


def _source(name: str, names: str, **more: Any) -> SourceKind:
    cls = connector(name)
    given: dict[str, Any] = {"identifier": _one(names), "start": _start_by_name(names), "parallelism": "minPartitions"}
    return SourceKind(
        name, cls.options_type, batch_size="maxRecordsPerTrigger", replayable=cls.replayable, ours=True,
        **given | _STREAM | more,
    )  # fmt: skip


def _sink(name: str, names: str, **more: Any) -> SinkKind:
    cls = connector(name)
    given: dict[str, Any] = {"identifier": _one(names), **more}
    is_once = cls.exactly_once is not Guarantee.NO
    return SinkKind(
        name, cls.sink_options_type, exactly_once=cls.exactly_once, messages=True, ours=True, txn=is_once, **given
    )


def _sources() -> dict[str, SourceKind]:
    return {
        "jetstream": _source("jetstream", "stream", columns=("subject", "stream")),
        "nats": _source("nats", "subjects", start=None, stream="subject", partition="subject", columns=("subject",)),
        "s2": _source("s2", "stream", columns=("stream",)),
        "iggy": _source("iggy", "topic", identifier=_stream_and_topic, start=_start_iggy,
                        stream="concat(stream, '/', topic)", partition="string(partition)",
                        columns=("stream", "topic")),
        "kinesis": _source("kinesis", "stream", start=_start_kinesis, parallelism=None, partition="shard",
                           position="sequence", columns=("stream",)),
        "journal": _source("journal", "directory"),
        "kafka": SourceKind("kafka", KafkaReadOptions, _one("subscribe"), _start_kafka, "maxOffsetsPerTrigger",
                            "minPartitions", stream="topic", partition="string(partition)", position="string(offset)",
                            columns=("topic",), renamed=KAFKA),
        "file_system": SourceKind("text", FileReadOptions, _one("path"), None, "maxFilesPerTrigger",
                                  stream="_file.file_path", partition="_file.file_path"),
        "rate": SourceKind("rate", RateOptions, None, None, None, "numPartitions", position="string(value)"),
    }  # fmt: skip


def _sinks() -> dict[str, SinkKind]:
    files = {
        name: SinkKind(name, FileWriteOptions, _one("path"), Guarantee.YES)
        for name in ("parquet", "orc", "json", "csv", "text")
    }
    return {
        "jetstream": _sink("jetstream", "subject", place="subject",
                           takes=("subject", "headers", "id", "ttl", "expectedLastSubjectSequence")),
        "nats": _sink("nats", "subject", place="subject", takes=("subject", "headers", "reply")),
        "s2": _sink("s2", "stream", place="stream", takes=("stream", "headers", "timestamp")),
        "iggy": _sink("iggy", "topic", identifier=_stream_and_topic, takes=("headers", "id", "key", "partition")),
        "kinesis": _sink("kinesis", "stream", key="partitionKey", takes=("partitionKey", "explicitHashKey")),
        "journal": _sink("journal", "directory"),
        "kafka": SinkKind("kafka", KafkaWriteOptions, _one("topic"), messages=True, place="topic",
                          takes=("topic", "key", "partition", "headers"), renamed=KAFKA),
        **files,
        "delta": SinkKind("delta", FileWriteOptions, _one("path"), Guarantee.YES, txn=True),
        "iceberg": SinkKind("iceberg", FileWriteOptions, _one("path"), Guarantee.YES),
        "console": SinkKind("console", ConsoleOptions, None),
        "noop": SinkKind("noop", NoOptions, None),
    }  # fmt: skip


SOURCES, SINKS = _sources(), _sinks()


def custom_source(format: str) -> SourceKind:
    """Any other format of Spark. What it promises is not known."""
    return SOURCES[format] if format in SOURCES else SourceKind(format, None, _one("path"))


def custom_sink(format: str) -> SinkKind:
    """Any other format of Spark. What it promises is not known."""
    return SINKS[format] if format in SINKS else SinkKind(format, None, _one("path"))


def tables() -> Mapping[str, type[Options] | None]:
    """The options of every type, for the documentation and the JSON Schema: those of sources, then of sinks."""
    named = {f"source {name}": kind.options for name, kind in SOURCES.items()}
    return named | {f"sink {name}": kind.options for name, kind in SINKS.items()}


__all__ = ["SINKS", "SOURCES", "SinkKind", "SourceKind", "custom_sink", "custom_source", "tables"]
