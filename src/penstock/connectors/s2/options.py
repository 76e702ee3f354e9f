"""The options to read and to write S2."""

import re
from typing import Literal, Self

import pyarrow as pa
from pydantic import PrivateAttr, model_validator

from penstock.arrow import ddl
from penstock.clients.s2.options import S2Options
from penstock.errors import OptionError
from penstock.kit import templates
from penstock.options import Bytes, Count, Csv, ReadOptions, Seconds, WriteOptions, option


class StreamOptions(S2Options):
    """The options that name streams, for reading and for writing."""

    stream: str | None = option(
        None,
        doc="The stream, to read and to write. To write it may be a template over columns, where `{partition}` is the "
        "number of the task, so that each has a stream of its own; and a column `stream` that is not null wins.",
        example="events/{partition}",
    )
    streams: Csv = option(
        (), doc="The streams to read, a comma list; a single one is also written to.", example="orders/eu,orders/us"
    )

    @model_validator(mode="after")
    def _stream_and_streams_agree(self) -> Self:
        stream, streams = self.stream, self.streams
        if stream is not None and streams and not _is_template(stream) and stream not in streams:
            raise ValueError(
                f"'stream' is '{stream}', and 'streams' is '{','.join(streams)}': set one of both, or both to the same"
            )
        return self

    def naming(self, stream: str) -> str:
        """The option that names a stream."""
        return "streams" if stream in self.streams else "stream"


def _is_template(stream: str) -> bool:
    return bool(templates.columns(stream))


def _keys_fit_the_mode(mode: str, keys: tuple[str, ...]) -> None:
    if mode == "upsert" and not keys:
        raise ValueError("mode=upsert needs 'keyColumns', a comma list of the columns that make the key")
    if mode != "upsert" and keys:
        raise ValueError("'keyColumns' is for mode=upsert")


class S2SourceOptions(StreamOptions, ReadOptions):
    """Which streams, and how they are read."""

    _table: pa.Schema | None = PrivateAttr(None)

    stream_prefix: str | None = option(
        None,
        doc="Read every stream whose name begins so; an empty one means all. Streams made later are found while the "
        "query runs and read from their beginning.",
        example="orders/",
    )
    discovery_interval: Seconds = option(
        10.0,
        doc="How often the query asks for the first record of each stream, which changes when records are trimmed or "
        "expire. Which streams there are is asked before every batch, whatever this option says.",
    )
    include_command_records: bool = option(
        False, doc="Whether fence and trim records are rows too; their one header has an empty key."
    )
    mode: Literal["records", "upsert"] = option(
        "records",
        doc="`upsert`: rows are what an upsert sink wrote: the columns of the key, those of the value, and `_action`. "
        "Give the columns by `.schema(...)`, or by `columns`.",
    )
    columns: str | None = option(
        None,
        doc="With `mode=upsert`: the columns, for SQL. `_action`, `_stream`, `_sequence` and `_timestamp` are of the "
        "record, not of the table.",
        example="id STRING, amount INT, _action STRING",
        lines=True,
    )
    key_columns: Csv = option((), doc="With `mode=upsert`: the columns of the key.", example="id")
    snapshot: bool = option(
        False,
        doc="With `mode=upsert`, in a batch read: only the latest row of each key, without those deleted. Each stream "
        "is read by one task.",
    )
    strict: bool = option(
        False,
        doc="With `mode=upsert`: stop at a record that no upsert sink wrote; otherwise it is skipped and counted.",
    )

    @model_validator(mode="after")
    def _names_streams(self) -> Self:
        if self.stream_prefix is not None:
            self._prefix_fits(self.stream_prefix)
        elif not self.streams and self.stream is None:
            raise ValueError("set 'stream', 'streams' or 'streamPrefix': which streams are to be read?")
        elif not self.streams and self.stream is not None and _is_template(self.stream):
            raise ValueError(
                f"'stream' is the template '{self.stream}', which rows are written by. To read what they went to, set "
                f"'streamPrefix' to '{self.stream.partition('{')[0]}' besides"
            )
        _keys_fit_the_mode(self.mode, self.key_columns)
        if self.mode != "upsert" and (self.snapshot or self.columns):
            raise ValueError("'snapshot' and 'columns' are for mode=upsert")
        return self

    def _prefix_fits(self, prefix: str) -> None:
        if self.streams:
            raise ValueError("set 'streams' or 'streamPrefix', one of both")
        if self.stream is None:
            return
        is_template = _is_template(self.stream)
        fixed = self.stream.partition("{")[0] if is_template else self.stream
        if not fixed.startswith(prefix) and not (is_template and prefix.startswith(fixed)):
            raise ValueError(
                f"'stream' is '{self.stream}', which does not begin with the 'streamPrefix' '{prefix}': set one of both"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The streams to read, where they are named. A `stream` beside a prefix says only where rows are written."""
        if self.stream_prefix is not None:
            return ()
        return self.streams or ((self.stream,) if self.stream is not None else ())

    def shaped(self, table: pa.Schema) -> Self:
        """The same options, for rows of these columns. With `snapshot`, one task reads a whole stream."""
        # The latest row of a key is known only to a task that sees all of its changes.
        undivided = {"max_records_per_partition": 1 << 62, "min_partitions": None} if self.snapshot else {}
        options = self.model_copy(update=undivided)
        options._table = table
        return options

    @property
    def table(self) -> pa.Schema:
        """The columns of the rows in mode=upsert."""
        if self._table is not None:
            return self._table
        if self.columns is None:
            raise OptionError(
                "mode=upsert needs the columns: add .schema('id STRING, amount INT, _action STRING') before .load(), "
                "or the option 'columns'."
            )
        return ddl.columns(self.columns)


class S2SinkOptions(StreamOptions, WriteOptions):
    """Where rows go, and how."""

    mode: Literal["append", "upsert"] = option(
        "append", doc="`upsert`: rows are changes to a table, told apart by `keyColumns`."
    )
    key_columns: Csv = option((), doc="With `mode=upsert`: the columns of the key.", example="id")
    version_column: str | None = option(
        None,
        doc="With `mode=upsert`: the column whose values must not go down from row to row, in each task of a batch, or "
        "the write is refused: rows that a shuffle has mixed would leave old values in the table. Equal values are "
        "taken. Rows of other tasks and of other batches are not compared.",
        example="version",
    )
    max_unacked_bytes: Bytes = option(32 << 20, doc="So much may be on its way to a stream without an answer.")
    append_session: bool = option(
        True,
        doc="Batches overlap in one request a stream. `false`: one request a batch, for proxies that hold a request "
        "back until it has ended.",
    )
    driver_bytes: Bytes = option(
        4 << 20,
        doc="Without `{partition}` in `stream`, the rows of a task up to this size go through the driver, which writes "
        "them in the order of the tasks; larger ones are written by their task. All of a batch together must stay "
        "below `spark.driver.maxResultSize`. With `delivery=exactly_once` only.",
    )
    look_back: Count = option(
        10_000,
        doc="With `delivery=exactly_once`: so many records of others are looked through for what this query wrote "
        "last. Where it is not among them, the query stops rather than guess; only its batches 0 and 1 are taken as "
        "new.",
    )
    append_retry_policy: Literal["all", "no_side_effects"] = option(
        "all",
        doc="With `delivery=at_least_once`: `all` sends again what may have arrived, `no_side_effects` fails instead. "
        "Exactly once needs no choice: what arrived is found.",
    )
    fencing_token: str | None = option(
        None, doc="Append only while this is the fencing token of the stream, up to 36 bytes."
    )
    writer_headers: bool = option(
        False, doc="Give each record a header `@writer` that names the query and the task, for streams with several."
    )
    ensure_stream: bool = option(False, doc="Make a stream that is not there, as the options below say.")
    retention: str | None = option(
        None, doc="How long a stream made here keeps records: a duration, or `infinite`.", example="7d"
    )
    storage_class: Literal["standard", "express"] | None = option(None, doc="Storage class of a stream made here.")
    timestamping: Literal["client-prefer", "client-require", "arrival"] | None = option(
        None, doc="Whose clock stamps the records of a stream made here."
    )

    @model_validator(mode="after")
    def _options_fit_together(self) -> Self:
        _keys_fit_the_mode(self.mode, self.key_columns)
        if self.mode != "upsert" and self.version_column is not None:
            raise ValueError("'versionColumn' is for mode=upsert")
        if self.retention is not None and not re.fullmatch(r"infinite|\d+[smhd]", self.retention):
            raise ValueError(f"retention must be infinite or a duration such as 12h or 7d, but is '{self.retention}'")
        if self.stream is None and len(self.streams) > 1:
            raise ValueError(f"rows go to one stream, and 'streams' names {len(self.streams)}: set 'stream'")
        if self.target is not None and not (0 < len(self.target.encode()) <= 512):
            raise ValueError("stream must have 1 to 512 bytes")
        if self.fencing_token is not None and len(self.fencing_token.encode()) > 36:
            raise ValueError("fencingToken must have at most 36 bytes")
        return self

    @property
    def target(self) -> str | None:
        """The name or the template of the streams to write to."""
        return self.stream if self.stream is not None else next(iter(self.streams), None)

    def direct(self) -> bool:
        """True where each task has a stream of its own, or with delivery=at_least_once."""
        has_own_stream = self.target is not None and "partition" in templates.columns(self.target)
        return has_own_stream or self.delivery != "exactly_once"

    def stream_config(self) -> dict[str, object]:
        """The configuration of a stream made here, as S2's API has it."""
        config: dict[str, object] = {}
        if self.retention == "infinite":
            config["retention_policy"] = {"infinite": {}}
        elif self.retention is not None:
            unit = {"s": 1, "m": 60, "h": 3600, "d": 86400}[self.retention[-1]]
            config["retention_policy"] = {"age": int(self.retention[:-1]) * unit}
        if self.storage_class is not None:
            config["storage_class"] = self.storage_class
        if self.timestamping is not None:
            config["timestamping"] = {"mode": self.timestamping}
        return config
