"""How large the next records are, estimated from a few of them, as S2 reports no sizes. Pure: knows no server."""

from collections.abc import Sequence

import numpy as np

# Records looked at in each place.
BLOCK = 8
# How much further ahead each place is than the one before.
APART = 8


def places(ahead: int) -> list[int]:
    """How far ahead to look. Places are dense near the position, as those records are in the next batch for sure. The
    last place is the end, so that a change of sizes before it is seen.
    """
    distances = [0]
    while (further := max(APART, distances[-1] * APART)) < ahead:
        distances.append(further)
    if ahead - BLOCK > distances[-1]:
        distances.append(ahead - BLOCK)
    return distances


def average(sizes: Sequence[float], ahead: int, limit: int) -> float:
    """The average size of the next records, up to `limit` bytes of them or to the end.

    `sizes` are those at `places(ahead)`. Between two places, sizes are taken to change evenly.
    """
    at = np.array([*places(ahead), ahead])
    each = np.array([*sizes, sizes[-1]])
    total = np.cumsum([0, *(np.diff(at) * (each[1:] + each[:-1]) / 2)])
    rows = float(np.interp(limit, total, at))
    return min(limit, float(total[-1])) / max(1.0, rows)
