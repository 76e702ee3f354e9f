"""The options that all sources or all sinks share. Knows no server and no Spark."""

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from penstock.kit.retry import Retry
from penstock.options.model import Options, option
from penstock.options.types import Bytes, Count, Micros, Positions, Seconds

STARTS = (
    "Where a new query starts: `earliest`, `latest`, or JSON of positions (a name left out starts at its earliest). A "
    "restarted query goes on from its checkpoint."
)
STARTS_AT = "By default `earliest` in a batch read, else `latest`."

# What takes the place of options of Spark's Kafka source.
_KAFKA = {
    "kafka.bootstrap.servers": "Set 'servers' (NATS, JetStream), 'basin' and 'endpoint' (S2), 'address' (Iggy)",
    "subscribe": "Set 'stream' for JetStream and S2, 'stream' and 'topics' for Iggy, 'subjects' for NATS",
    "subscribePattern": "Set 'streamPattern' for JetStream, 'streamPrefix' for S2",
    "assign": "Set 'partitions' for Iggy, 'subjects' for some subjects of JetStream",
    "maxOffsetsPerTrigger": "Set 'maxRecordsPerTrigger'",
    "minOffsetsPerTrigger": "Set 'minRecordsPerTrigger'",
    "startingOffsetsByTimestamp": "Set 'startingTimestamp', one for all streams",
    "endingOffsetsByTimestamp": "Set 'endingTimestamp', one for all streams",
    "groupIdPrefix": "Leave it out: Spark's checkpoint has the position, and there are no consumer groups",
    "kafka.group.id": "Leave it out: Spark's checkpoint has the position, and there are no consumer groups",
}


class ReadOptions(Options):
    """How any log is read; the names and meanings are those of Spark's Kafka source where it has them."""

    starting_offsets: Positions | None = option(None, doc=f"{STARTS} {STARTS_AT}", example='{"ORDERS": 17}')
    starting_timestamp: Micros | None = option(
        None,
        doc="Start at the first record not older than this: milliseconds since 1970, or ISO 8601 with a zone. Wins "
        "over `startingOffsets`.",
        example="2026-11-15T12:00:00Z",
    )
    ending_offsets: Positions | None = option(
        None,
        doc="Batch reads only: where to stop, exclusive: `latest` (the default) or JSON of positions.",
        example='{"ORDERS": 5000}',
    )
    ending_timestamp: Micros | None = option(
        None, doc="Batch reads only: stop before the first record not older than this."
    )
    max_records: Count | None = option(None, doc="Batch reads only: at most this many records, from the start.")
    max_records_per_trigger: Count | None = option(
        None,
        doc="At most this many records a micro-batch, shared fairly among the streams that are read (Iggy: "
        "among the partitions).",
    )
    max_bytes_per_trigger: Bytes | None = option(
        None, doc="At most about this many bytes a micro-batch, by the average size of a record.", example="64mb"
    )
    min_records_per_trigger: Count | None = option(
        None, doc="Wait until this many records are there, or `maxTriggerDelay` has passed."
    )
    max_trigger_delay: Seconds = option(900.0, doc="The longest wait for `minRecordsPerTrigger`.", example="15m")
    min_partitions: Count | None = option(None, doc="Cut a batch into at least this many tasks.")
    max_records_per_partition: Count = option(100_000, doc="Cut a batch so that no task reads more than this.")
    fail_on_data_loss: bool = option(
        True,
        doc="Stop the query when unread data was deleted. With `false` it goes on from what is left and logs what "
        "was skipped.",
    )
    include_headers: bool = option(True, doc="Whether the rows have the column `headers`.")
    push_filters: bool = option(
        False,
        doc="Batch reads only: let filters on `stream`, `sequence` and `timestamp` narrow what is read, where the "
        "session has `spark.sql.python.filterPushdown.enabled=true`. Only for a DataFrame or table that is used once "
        "in a session: Spark gives the filters of one use to all later ones, which then lack rows.",
    )

    no_options: ClassVar[Mapping[str, str]] = {
        name.lower(): f"option '{name}' is Kafka's. {instead}. docs/coming-from-kafka.md has all of them side by side."
        for name, instead in _KAFKA.items()
    }

    @model_validator(mode="after")
    def _positions_are_known_words(self) -> Self:
        if isinstance(self.starting_offsets, str) and self.starting_offsets not in ("earliest", "latest"):
            raise ValueError(f"startingOffsets must be earliest, latest or JSON, but is '{self.starting_offsets}'")
        if isinstance(self.ending_offsets, str) and self.ending_offsets != "latest":
            raise ValueError(f"endingOffsets must be latest or JSON, but is '{self.ending_offsets}'")
        return self


class ConnectionOptions(Options):
    """How long to wait for any server."""

    connect_timeout: Seconds = option(5.0, doc="The longest wait for a connection, per address.")
    request_timeout: Seconds = option(10.0, doc="The longest wait for an answer, or for the next bytes of one.")
    reconnect_timeout: Seconds = option(
        60.0,
        doc="How long a running query waits for a server that is away or busy, without any progress in between, before "
        "it fails: on the driver, in tasks that read, and in tasks that write.",
    )

    def retry(self, what: str) -> Retry:
        """Allows tries for as long as `reconnectTimeout` says."""
        return Retry(what, timeout=self.reconnect_timeout)


class CountedRetryOptions(ConnectionOptions):
    """Retired options of S2 and Iggy: `reconnectTimeout` takes their place."""

    max_retries: Annotated[int, Field(ge=0)] | None = option(
        None,
        doc="How often a lost connection is tried again without any progress in between.",
        instead="reconnectTimeout",
    )
    retry_delay: Seconds | None = option(
        None, doc="The wait before the first retry; it doubles up to two seconds.", instead="reconnectTimeout"
    )

    def retry(self, what: str) -> Retry:
        """Allows tries for as long as `reconnectTimeout` says, or as many as `maxRetries` where only that is given."""
        counted = self.max_retries is not None and "reconnect_timeout" not in self.model_fields_set
        return Retry(
            what,
            timeout=float("inf") if counted else self.reconnect_timeout,
            attempts=self.max_retries if counted and self.max_retries is not None else float("inf"),
            delay=self.retry_delay,
        )


class WriteOptions(Options):
    """How any log is written."""

    delivery: Literal["exactly_once", "at_least_once"] = option(
        "exactly_once",
        doc="`exactly_once`: a retried task or a replayed batch leaves no row twice. `at_least_once`: it may, and "
        "writing is cheaper.",
    )
    txn_app_id: str | None = option(
        None,
        doc="Only `df.write`, such as one inside `foreachBatch`: a name for this write, with letters, digits, `-` and "
        "`_`. What was written with the same `txnAppId` and `txnVersion` before is not written again. Two writes to "
        "one server need two names. Needs `txnVersion`.",
        example="orders-main",
    )
    txn_version: Annotated[int, Field(ge=0, lt=2**63)] | None = option(
        None,
        doc="Only `df.write`: the number of the batch that `foreachBatch` is called with. Versions count from 0 and "
        "leave none out. Needs `txnAppId`.",
    )

    @field_validator("txn_app_id")
    @classmethod
    def _txn_app_id_is_a_name(cls, name: str | None) -> str | None:
        # It goes into subjects, headers and stamps, where other characters part names.
        if name is not None and not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", name):
            raise ValueError("must be 1 to 100 letters, digits, - or _")
        return name

    @model_validator(mode="after")
    def _txn_has_both(self) -> Self:
        if (self.txn_app_id is None) != (self.txn_version is None):
            there, missing = ("txnVersion", "txnAppId") if self.txn_app_id is None else ("txnAppId", "txnVersion")
            raise ValueError(
                f"'{there}' needs '{missing}' beside it: a write is known again by both. Inside foreachBatch, the "
                "version is the number of the batch"
            )
        return self
