"""How far a consumer with the ack policy `all` may be acknowledged. Pure: knows numbers, no server.

With this policy one acknowledgement covers every message up to it, also those that other clients got. A message whose
client died, or whose connection broke, is pending though nobody works on it: the server must deliver it again first.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.buffers import Ints
from penstock.errors import ProtocolError

# Columns that a row has from its delivery to its acknowledgement: the subject to acknowledge on, the consumer's
# sequence of the delivery, which is a part of that subject, and when it came, in seconds of a clock.
ACK, DELIVERY, CAME = "ack", "delivery", "came"


def with_acks(batch: pa.RecordBatch, replies: pa.Array, came: float = 0.0) -> pa.RecordBatch:
    """The rows with the columns ACK, DELIVERY and CAME. A ProtocolError where a reply subject has no number."""
    # The subject ends with the sequences of the stream and of the consumer, nanoseconds, and messages to come.
    number = pc.extract_regex(replies, r"\.(?P<delivery>\d{1,18})\.\d+\.\d+$").field(0).cast(pa.int64())
    if number.null_count:
        bad = replies.filter(pc.is_null(number))[0].as_py()
        raise ProtocolError(f"the server delivered a message to be acknowledged on {bad!r:.100}, which has no number.")
    times = pa.repeat(pa.scalar(came, pa.float64()), len(replies))
    return batch.append_column(ACK, replies).append_column(DELIVERY, number).append_column(CAME, times)


Floats = npt.NDArray[np.float64]


class Deliveries(NamedTuple):
    """Messages that were delivered: stream sequences, consumer sequences, subjects to acknowledge on, and when they
    came.
    """

    sequence: Ints
    delivery: Ints
    reply: pa.Array
    came: Floats

    @classmethod
    def of(cls, batches: Sequence[pa.RecordBatch]) -> Self:
        """From rows that `with_acks` returned."""
        if not batches:
            return cls(np.empty(0, np.int64), np.empty(0, np.int64), pa.array([], pa.string()), np.empty(0))
        rows = pa.Table.from_batches([batch.select(["sequence", DELIVERY, ACK, CAME]) for batch in batches])
        numbers = rows["sequence"].to_numpy(), rows[DELIVERY].to_numpy()
        return cls(*numbers, rows[ACK].combine_chunks(), rows[CAME].to_numpy())

    def __add__(self, other: "Deliveries") -> "Deliveries":  # type: ignore[override]  # not a tuple to its users
        sequence = np.concatenate([self.sequence, other.sequence])
        delivery = np.concatenate([self.delivery, other.delivery])
        reply = pa.chunked_array([self.reply, other.reply], pa.string()).combine_chunks()
        return Deliveries(sequence, delivery, reply, np.concatenate([self.came, other.came]))

    def after(self, sequence: int) -> "Deliveries":
        """The deliveries of messages after a sequence."""
        keep = np.flatnonzero(self.sequence > sequence)
        return Deliveries(self.sequence[keep], self.delivery[keep], self.reply.take(pa.array(keep)), self.came[keep])

    def rest(self, first: int) -> "Deliveries":
        """The deliveries from a place on."""
        return Deliveries(self.sequence[first:], self.delivery[first:], self.reply[first:], self.came[first:])

    def size(self) -> int:
        """How many deliveries; `len` is that of the tuple."""
        return len(self.sequence)


class Safe(NamedTuple):
    """What may be acknowledged: the row in `owed`, or None; and how many pending messages other clients have."""

    row: int | None
    foreign: int


def safe(owed: Deliveries, held: Deliveries, floor: tuple[int, int], pending: int) -> Safe:
    """The last of the `owed` messages that can be acknowledged: no message before it is another client's or still
    `held`.

    `floor` is the last acknowledged sequence of stream and consumer. `pending` is how many messages after it wait for
    an acknowledgement; the server must be asked after `held` is listed. If these are more than ours, those of others
    may be anywhere, and nothing can be acknowledged.
    """
    ours = owed + held
    is_owed = np.arange(ours.size()) < owed.size()
    fresh = np.flatnonzero(ours.sequence > floor[0])
    # A message that came twice counts once, with its last reply: the server ignores an acknowledgement of a delivery up
    # to the floor.
    order = fresh[np.lexsort((ours.delivery[fresh], ours.sequence[fresh]))]
    sequence, delivery = ours.sequence[order], ours.delivery[order]
    last = np.flatnonzero(np.append(sequence[1:] != sequence[:-1], True)) if len(order) else order
    foreign = pending - len(last)
    if foreign or not len(last):
        return Safe(None, foreign)
    committed = np.logical_and.accumulate(np.minimum.reduceat(is_owed[order], np.append(0, last[:-1] + 1)))
    delivery = delivery[last]
    # After an acknowledgement, deliveries with lower consumer sequences could never be acknowledged.
    lowest_after = np.append(np.minimum.accumulate(delivery[::-1])[::-1][1:], np.iinfo(np.int64).max)
    good = np.flatnonzero(committed & (delivery > floor[1]) & (delivery < lowest_after))
    return Safe(int(order[last[good[-1]]]) if len(good) else None, 0)
