"""How far a consumer with the ack policy `all` may be acknowledged. Pure: knows numbers, no server.

One acknowledgement there is one of every message up to it, whoever got them. A message that was delivered to somebody
who died, or over a connection that was cut, is pending and in nobody's hands: it must be delivered again first.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.buffers import Ints
from penstock.errors import ProtocolError

# Columns that travel with a message from its delivery to its acknowledgement: the subject to acknowledge on, and the
# number of the delivery, which is a part of it.
ACK, DELIVERY = "ack", "delivery"


def with_acks(batch: pa.RecordBatch, replies: pa.Array) -> pa.RecordBatch:
    """Rows with what is needed to acknowledge them."""
    # The subject ends with the sequence in the stream, the number of the delivery, nanoseconds, and messages to come.
    number = pc.extract_regex(replies, r"\.(?P<delivery>\d{1,18})\.\d+\.\d+$").field(0).cast(pa.int64())
    if number.null_count:
        bad = replies.filter(pc.is_null(number))[0].as_py()
        raise ProtocolError(f"the server delivered a message to be acknowledged on {bad!r:.100}, which has no number.")
    return batch.append_column(ACK, replies).append_column(DELIVERY, number)


class Deliveries(NamedTuple):
    """Messages as they were delivered: their sequences, the numbers of the deliveries, and where to acknowledge."""

    sequence: Ints
    delivery: Ints
    reply: pa.Array

    @classmethod
    def of(cls, batches: Sequence[pa.RecordBatch]) -> Self:
        """From rows that have what `with_acks` gave them."""
        if not batches:
            return cls(np.empty(0, np.int64), np.empty(0, np.int64), pa.array([], pa.string()))
        rows = pa.Table.from_batches([batch.select(["sequence", DELIVERY, ACK]) for batch in batches])
        return cls(rows["sequence"].to_numpy(), rows[DELIVERY].to_numpy(), rows[ACK].combine_chunks())

    def __add__(self, other: "Deliveries") -> "Deliveries":  # type: ignore[override]  # not a tuple to its users
        both = pa.chunked_array([self.reply, other.reply], pa.string()).combine_chunks()
        return Deliveries(
            np.concatenate([self.sequence, other.sequence]), np.concatenate([self.delivery, other.delivery]), both
        )

    def after(self, sequence: int) -> "Deliveries":
        """Those of messages behind one."""
        keep = np.flatnonzero(self.sequence > sequence)
        return Deliveries(self.sequence[keep], self.delivery[keep], self.reply.take(pa.array(keep)))

    def size(self) -> int:
        """How many they are; `len` is that of the tuple."""
        return len(self.sequence)


class Safe(NamedTuple):
    """What may be acknowledged: the row in `owed`, None where nothing may; and how many messages others have."""

    row: int | None
    foreign: int


def safe(owed: Deliveries, held: Deliveries, floor: tuple[int, int], pending: int) -> Safe:
    """The last of the `owed` messages that can be acknowledged: none before it is somebody else's, or still `held`.

    `floor` is the last acknowledged sequence and delivery, `pending` how many messages behind it wait for an
    acknowledgement, as the server said after the deliveries were listed. If these are more than ours, the others may
    lie anywhere.
    """
    ours = owed + held
    is_owed = np.arange(ours.size()) < owed.size()
    fresh = np.flatnonzero(ours.sequence > floor[0])
    # A message that came twice counts once. Of its replies the last one: the server ignores an acknowledgement of a
    # delivery that is not behind the floor's.
    order = fresh[np.lexsort((ours.delivery[fresh], ours.sequence[fresh]))]
    sequence, delivery = ours.sequence[order], ours.delivery[order]
    last = np.flatnonzero(np.append(sequence[1:] != sequence[:-1], True)) if len(order) else order
    foreign = pending - len(last)
    if foreign or not len(last):
        return Safe(None, foreign)
    committed = np.logical_and.accumulate(np.minimum.reduceat(is_owed[order], np.append(0, last[:-1] + 1)))
    delivery = delivery[last]
    # Behind an acknowledgement, deliveries with lower numbers than its own could never be acknowledged any more.
    lowest_after = np.append(np.minimum.accumulate(delivery[::-1])[::-1][1:], np.iinfo(np.int64).max)
    good = np.flatnonzero(committed & (delivery > floor[1]) & (delivery < lowest_after))
    return Safe(int(order[last[good[-1]]]) if len(good) else None, 0)
