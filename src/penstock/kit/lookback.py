"""From the end of a log back to what a query wrote last: so a sink finds the rows of an earlier attempt.

Rows of others may lie between, so it looks back over `limit` of them, and no further. What it cannot tell, it does not
guess. Knows no server.
"""

from collections.abc import Callable
from typing import NamedTuple

from penstock.errors import ConnectError
from penstock.kit.contract import Origin


class Block(NamedTuple):
    """What some records in a row show."""

    ours: bool  # there are some of this query
    settles: bool  # what lies before them does not matter: there is one of an older batch
    complete: bool = True  # none of them has been deleted


class Outcome(NamedTuple):
    """How far back was looked."""

    at: int
    settled: bool  # what lies before `at` does not matter
    complete: bool  # no record from `at` on has been deleted


def look_back(
    end: int, first: Callable[[], int], look: Callable[[int, int], Block], *, limit: int, block: int
) -> Outcome:
    """Look at the last record before `end`, and then at one block of records after the other, back to the `first` one.

    Stops where a block settles it, where records are missing, and behind `limit` records of others without any of this
    query. `first` is asked only if the last record does not settle it.
    """
    at, begins, foreign = end, 0, 0
    while at > begins and foreign < limit:
        size = 1 if at == end else min(block, limit - foreign)
        low = max(begins, at - size)
        seen = look(low, at)
        if seen.settles or not seen.complete:
            return Outcome(low, seen.settles, seen.complete)
        foreign = 0 if seen.ours else foreign + at - low
        if at == end:
            begins = first()
        at = low
    return Outcome(at, False, True)


def cannot_tell(origin: Origin, where: str, why: str, remedy: str) -> ConnectError:
    """The error where nothing shows whether rows were written by an earlier attempt."""
    return ConnectError(
        f"cannot tell whether {origin} was written to {where} before: {why}. If it was not, set "
        f"delivery=at_least_once for one run. {remedy}"
    )
