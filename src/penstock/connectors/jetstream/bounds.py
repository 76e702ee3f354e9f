"""What the info of a stream and the sequences of its messages say about positions. Pure: asks no server."""

import numpy as np
import pyarrow as pa

from penstock.clients.jetstream.api import StreamInfo
from penstock.planning.positions import Bound


def bound(info: StreamInfo, *, owned: bool = False) -> Bound:
    """Both ends. A work queue loses messages by design, except where it is `owned`: then only the query may release."""
    queue = info.retention == "workqueue"
    transient = info.compacts or info.retention == "interest" or (queue and not owned)
    return Bound(info.first, info.last + 1, info.created, info.size / max(1, info.messages), transient, queue)


def went_back(before: StreamInfo, now: StreamInfo) -> bool:
    """Whether the same stream ends at a lower sequence than before."""
    return before.created == now.created and now.last < before.last


def first_gap(sequence: pa.Array, start: int) -> int | None:
    """The first sequence from `start` on that is left out; None where they are consecutive, or there are none."""
    sequences = np.asarray(sequence)
    if not len(sequences):
        return None
    if sequences[0] != start:
        return start
    if sequences[-1] - sequences[0] == len(sequences) - 1:
        return None
    return int(sequences[np.argmax(np.diff(sequences) > 1)]) + 1
