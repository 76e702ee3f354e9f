"""How large the records ahead are, from a look at a few of them: S2 tells no sizes. Pure."""

from collections.abc import Sequence

import numpy as np

# So many records are looked at in each place, and each place is so many times as far ahead as the one before.
BLOCK = APART = 8


def places(ahead: int) -> list[int]:
    """How far ahead to look: the next records are in the batch for sure, those far away perhaps. And at the end, lest a
    change of sizes behind the last place go unseen.
    """
    found = [0]
    while (further := max(APART, found[-1] * APART)) < ahead:
        found.append(further)
    return found if ahead - BLOCK <= found[-1] else [*found, ahead - BLOCK]


def average(sizes: Sequence[float], ahead: int, limit: int) -> float:
    """The average size of as many of the next records as make `limit` bytes, or of all that are `ahead`, given their
    sizes at the places to look: from one to the next, sizes are taken to change evenly.
    """
    at = np.array([*places(ahead), ahead])
    each = np.array([*sizes, sizes[-1]])
    total = np.cumsum([0, *(np.diff(at) * (each[1:] + each[:-1]) / 2)])
    rows = float(np.interp(limit, total, at))
    return min(limit, float(total[-1])) / max(1.0, rows)
