"""Search a log from its end back to what a query wrote last. So a sink finds the rows of an earlier attempt.

Up to `limit` records of others may lie between. Where nothing shows what was written, it does not guess. Knows no
server.
"""

from collections.abc import Callable
from typing import NamedTuple

from penstock.errors import ConnectError
from penstock.kit.contract import Origin


class Block(NamedTuple):
    """What a block of consecutive records shows."""

    ours: bool  # the query wrote some of them
    settles: bool  # older records need not be searched: one is of an older batch
    complete: bool = True  # none of them was deleted


class Outcome(NamedTuple):
    """How far back the log was searched."""

    at: int
    settled: bool  # older records need not be searched
    complete: bool  # no record from `at` on was deleted


def look_back(
    end: int, first: Callable[[], int], look: Callable[[int, int], Block], *, limit: int, block: int
) -> Outcome:
    """Look at the last record before `end`, then at one block after the other, back to the `first` record.

    Stops where a block settles it, where records are missing, and after `limit` records of others in a row. `first` is
    called only if the last record does not settle it.
    """
    at, begins, foreign = end, 0, 0
    while at > begins and foreign < limit:
        size = 1 if at == end else min(block, limit - foreign)
        low = max(begins, at - size)
        shown = look(low, at)
        if shown.settles or not shown.complete:
            return Outcome(low, shown.settles, shown.complete)
        foreign = 0 if shown.ours else foreign + at - low
        if at == end:
            begins = first()
        at = low
    return Outcome(at, False, True)


def cannot_tell(origin: Origin, where: str, why: str, remedy: str) -> ConnectError:
    """The error where nothing shows whether an earlier attempt wrote rows."""
    return ConnectError(
        f"cannot tell whether {origin} was written to {where} before: {why}. If it was not, set "
        f"delivery=at_least_once for one run. {remedy}{origin.rules}"
    )
