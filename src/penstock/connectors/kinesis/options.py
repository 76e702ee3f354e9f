"""The options of format("kinesis"), and which of them make no sense for it. Knows no server."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import model_validator

from penstock.clients.kinesis.options import KinesisOptions
from penstock.options import ReadOptions, Seconds, alias, option

# Options of other sources that cannot be had here, and why.
_NO_NUMBERS = "Kinesis does not tell how many records lie between two sequence numbers"
_WORDS = {"TRIM_HORIZON": "earliest", "LATEST": "latest"}
_NOT_HERE = {
    "min_records_per_trigger": f"{_NO_NUMBERS}: a trigger with a processing time does the same",
    "min_partitions": "a shard is read by one task, as Kinesis gives out 2 MB a second of it and no more",
    "max_records_per_partition": "a shard is read by one task. Set 'maxRecordsPerTrigger'",
}


class KinesisSourceOptions(KinesisOptions, ReadOptions):
    """The options to read."""

    poll_interval: Seconds = option(
        1.0,
        doc="How often the driver asks each shard for new records. Kinesis allows five requests a second to a shard, "
        "for all of its readers together.",
    )
    discovery_interval: Seconds = option(
        60.0, doc="How often shards are listed. A split or merge of a shard that is read is noticed at once."
    )

    @model_validator(mode="before")
    @classmethod
    def _words_of_kinesis(cls, given: Any) -> Any:
        """`TRIM_HORIZON`, `LATEST` and `AT_TIMESTAMP ...` say what `earliest`, `latest` and `startingTimestamp` do."""
        words = str(given.get("startingOffsets", "")).split(maxsplit=1) if isinstance(given, dict) else []
        if words and words[0].upper() in _WORDS:
            given = given | {"startingOffsets": _WORDS[words[0].upper()]}
        elif words and words[0].upper() == "AT_TIMESTAMP":
            if len(words) < 2:
                raise ValueError("AT_TIMESTAMP needs a time behind it, as in AT_TIMESTAMP 2026-11-15T12:00:00Z")
            given = {key: value for key, value in given.items() if key != "startingOffsets"}
            given["startingTimestamp"] = words[1]
        return given

    @model_validator(mode="after")
    def _can_be_had(self) -> Self:
        for name, why in _NOT_HERE.items():
            if name in self.model_fields_set:
                raise ValueError(f"'{alias(name)}' cannot be had for kinesis: {why}")
        return self


class KinesisSinkOptions(KinesisOptions):
    """The options to write."""

    partition_key: str | None = option(
        None,
        doc="The partition key of rows that have none in a column `partitionKey`: literal, or with columns in braces. "
        "By default each row has one of its own, so that rows are spread over all shards.",
        example="{customer}",
    )

    no_options: ClassVar[Mapping[str, str]] = {
        name.lower(): f"option '{name}' is for sinks that know a write again. Kinesis keeps nothing to know it by: a "
        "batch that is run again is stored again. Leave it out, and let readers tell copies by a key of their own."
        for name in ("txnAppId", "txnVersion", "delivery")
    }
