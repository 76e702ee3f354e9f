"""The options of format("nats"), and which of them fit together. Knows no server."""

import re
from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import field_validator, model_validator

from penstock.clients.nats.options import NatsOptions, PublishOptions
from penstock.clients.nats.subjects import check_filters, problem
from penstock.options import Bytes, Csv, ReadOptions, Seconds, alias, option

# Options that need messages which are kept.
POSITIONS = ("starting_offsets", "starting_timestamp", "ending_offsets", "ending_timestamp", "max_records")
# Options of the stream that `capture` makes.
CAPTURING = ("capture_stream", "capture_max_age", "capture_storage")


class CoreOptions(NatsOptions, ReadOptions):
    """The options to read: which subjects, how much waits for Spark, and whether a stream captures them."""

    subjects: Csv = option(
        doc="The subjects to listen to: a comma list of filters, which must not overlap.", example="sensors.>"
    )
    queue: str | None = option(
        None, doc="Queue group: each message goes to one member of the group, which others may share."
    )
    max_buffer_bytes: Bytes = option(
        256 << 20,
        doc="How much may wait in the driver until Spark has committed it. What arrives beyond that is dropped, and "
        "counted.",
        example="256mb",
    )
    capture: bool = option(
        False,
        doc="Let a JetStream stream keep the messages, and read that instead: publishers change nothing, and reading "
        "becomes replayable. A stream that takes the subjects is used if there is one; else one is made.",
    )
    capture_stream: str = option("PENSTOCK_CAPTURE", doc="Name of the stream that `capture` makes.")
    capture_max_age: Seconds = option(3600.0, doc="How long that stream keeps messages.", example="1h")
    capture_storage: Literal["file", "memory"] = option("file", doc="Where that stream keeps messages.")

    @field_validator("subjects")
    @classmethod
    def _filters(cls, filters: tuple[str, ...]) -> tuple[str, ...]:
        if not filters:
            raise ValueError("must name at least one subject")
        return check_filters(filters)

    @field_validator("queue")
    @classmethod
    def _group(cls, name: str | None) -> str | None:
        if name is not None and (why := problem(name, wildcards=False)):
            raise ValueError(f"has '{name}', which {why}")
        return name

    @field_validator("capture_stream")
    @classmethod
    def _stream(cls, name: str) -> str:
        if not name or re.search(r"[\s.*>/\\]", name):
            raise ValueError("must be a stream's name, without space, dot, slash, * or >")
        return name

    @model_validator(mode="after")
    def _fits_capture(self) -> Self:
        if self.capture and self.queue:
            raise ValueError("set 'queue' or 'capture', not both: a stream takes every message")
        for name in POSITIONS:
            if not self.capture and getattr(self, name) is not None:
                raise ValueError(f"'{alias(name)}' needs capture=true: Core NATS keeps nothing to go back to")
        for name in CAPTURING:
            if not self.capture and name in self.model_fields_set:
                raise ValueError(
                    f"'{alias(name)}' is about the stream that capture=true makes, and nothing is captured here. Set "
                    f"capture=true, or leave '{alias(name)}' out"
                )
        return self


class CoreSinkOptions(NatsOptions, PublishOptions):
    """The options to write: where rows are published."""

    subject: str | None = option(
        None,
        doc="The subject of rows that have none in a column `subject`: literal, or with columns in braces.",
        example="alerts.{region}",
    )

    no_options: ClassVar[Mapping[str, str]] = {
        name.lower(): f"option '{name}' is for sinks that know a write again, and Core NATS keeps nothing to know it "
        "by: a batch that is run again is published again. Leave it out, or write to format('jetstream')."
        for name in ("txnAppId", "txnVersion")
    }
