"""What a topic has, compared with what its stream has, partition by partition. Pure: offsets and checksums in, verdicts
out.

Kafka's offsets have gaps: compaction removes records, and transactions leave markers. So a record counts that a
consumer of Kafka gets now, and no number in between. What the stream has and Kafka has no more is no fault either.
"""

from array import array
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

EXAMPLES = 10
_Numbers = npt.NDArray[np.int64]


@dataclass
class Side:
    """The records of one partition, in the order in which they came: 16 bytes each."""

    offsets: "array[int]" = field(default_factory=lambda: array("q"))
    checksums: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, offset: int, checksum: int) -> None:
        """One record."""
        self.offsets.append(offset)
        self.checksums.append(checksum)

    def up_to(self, end: int) -> tuple[_Numbers, _Numbers]:
        """Offsets and checksums of the records before `end`."""
        offsets, checksums = np.array(self.offsets, np.int64), np.array(self.checksums, np.int64)
        keep = offsets < end
        return offsets[keep], checksums[keep]


@dataclass(frozen=True)
class PartitionVerdict:
    """What is true of one partition, up to the end that it had when the proof began."""

    topic: str
    partition: int
    end: int
    in_kafka: int = 0
    in_stream: int = 0  # different records
    missing: int = 0
    missing_offsets: tuple[int, ...] = ()  # examples, as all that follow
    twice: int = 0
    twice_offsets: tuple[int, ...] = ()
    different: int = 0
    different_offsets: tuple[int, ...] = ()
    no_longer_in_kafka: int = 0
    in_order: bool = True

    @property
    def holds(self) -> bool:
        """Whether the stream has every record once, as it is, and in order."""
        return not (self.missing or self.twice or self.different) and self.in_order


def compare(topic: str, partition: int, kafka: Side, stream: Side, end: int) -> PartitionVerdict:
    """The verdict on one partition."""
    theirs, their_sums = kafka.up_to(end)
    ours, our_sums = stream.up_to(end)
    known, first, counts = np.unique(ours, return_index=True, return_counts=True)
    missing = np.setdiff1d(theirs, known)
    twice = known[counts > 1]
    both, in_kafka, in_known = np.intersect1d(theirs, known, assume_unique=False, return_indices=True)
    different = both[their_sums[in_kafka] != our_sums[first[in_known]]]
    return PartitionVerdict(
        topic,
        partition,
        end,
        len(theirs),
        len(known),
        len(missing),
        _examples(missing),
        len(twice),
        _examples(twice),
        len(different),
        _examples(different),
        len(known) - len(both),
        bool((np.diff(ours[np.sort(first)]) > 0).all()),
    )


def _examples(numbers: _Numbers) -> tuple[int, ...]:
    return tuple(int(number) for number in numbers[:EXAMPLES])


def sentence(verdict: PartitionVerdict, stream: str) -> str:
    """One partition, in one sentence."""
    where = f"{verdict.topic}, partition {verdict.partition}, up to offset {verdict.end:,}"
    gone = (
        f"; {verdict.no_longer_in_kafka:,} more are in the stream, and no longer in Kafka"
        if verdict.no_longer_in_kafka
        else ""
    )
    if verdict.holds:
        return f"{where}: {verdict.in_kafka:,} records, '{stream}' has each of them once, equal and in order{gone}."
    faults = [
        f"{count:,} {what} (offsets {', '.join(map(str, shown))}{', ...' if count > len(shown) else ''})"
        for count, what, shown in (
            (verdict.missing, "are missing", verdict.missing_offsets),
            (verdict.twice, "are there twice", verdict.twice_offsets),
            (verdict.different, "differ", verdict.different_offsets),
        )
        if count
    ]
    if not verdict.in_order:
        faults.append("they are in another order")
    return f"{where}: NOT PROVEN. Of {verdict.in_kafka:,} records in '{stream}', {'; '.join(faults)}{gone}."
