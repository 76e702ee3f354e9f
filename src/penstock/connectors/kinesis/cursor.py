"""A place in a shard, and the pages from there on. Knows the calls of Kinesis; plans nothing, and knows no rows.

Kinesis takes only sequence numbers that it has given out. A position is the number behind that of the last record that
was read, which no record may have. So a cursor asks for that last record again, and passes over it. This also tells
whether it is still there. If it is, nothing behind it has expired.
"""

import time
from bisect import bisect_left
from itertools import pairwise

from penstock.clients.kinesis.calls import Calls, ExpiredError, Page, RefusedError
from penstock.errors import Disconnected, OptionError, ProtocolError

# The most records that Kinesis gives at once.
MOST = 10_000
# Seconds between two requests for records of a shard. Kinesis allows five a second, for all readers together.
PAUSE = 0.2
# Milliseconds. Records are kept for a day at least. Where older ones are read, each page is asked for with the last
# record of the one before: an iterator that has been overtaken by the end of the retention time says nothing of it.
SURELY_KEPT = 23 * 3_600_000


class Cursor:
    """A place in a shard: at a position, where 0 is the oldest record that is kept, or `since` a time in milliseconds.

    `is_noted`: whether the position is known to have been the end of the shard once, also where it is 0.
    `has_expired`: the record before the position is gone, and perhaps others behind it. `is_stuck`: the last page was
    empty, and brought nobody closer to records that are there.
    """

    def __init__(self, calls: Calls, shard: str, at: int = 0, *, since: int | None = None, is_noted: bool = False):
        self.shard, self.at, self.since, self.is_noted = shard, at, since, is_noted
        self.has_expired = self.is_stuck = False
        self._behind = 0  # how far the last page was behind the end; 0 before the first one
        self._calls = calls
        self._iterator: str | None = None
        self._anchor: int | None = None  # the record before the position, until it has come

    def page(self, limit: int = MOST) -> Page:
        """The next records; perhaps none, though there are some. Nothing moves where this fails."""
        self._calls.pause(self.shard, PAUSE)
        try:
            page = self._ask(limit)
        except ExpiredError as error:
            self._iterator = None
            raise Disconnected(f"an iterator has expired: {error}") from None
        if page.next is None and not self._calls.is_closed(self.shard):
            self._iterator = None
            raise Disconnected(f"Kinesis says that '{self.shard}' has ended, and lists it as open")
        page = self._new(self._without_anchor(page))
        self.is_stuck = not page.numbers and 0 < self._behind <= page.behind
        self._behind = page.behind
        self._iterator = page.next
        if page.numbers:
            self.at, self.since = page.numbers[-1] + 1, None
            if page.next is not None and page.times[-1] < time.time_ns() // 1_000_000 - SURELY_KEPT:
                self._iterator = None
        return page

    def _ask(self, limit: int) -> Page:
        if self._iterator is None:
            self._iterator = self._open()
        return self._calls.page(self._iterator, min(MOST, limit + (self._anchor is not None)))

    def _open(self) -> str:
        self._anchor = None
        if self.since is not None:
            try:
                return self._calls.iterator(self.shard, "AT_TIMESTAMP", millis=self.since)
            except RefusedError:  # a time that is still to come there: our clock may be ahead
                return self._calls.iterator(self.shard, "LATEST")
        if self.at == 0:
            self.has_expired = self.is_noted  # nothing tells whether records have come and gone
            return self._calls.iterator(self.shard, "TRIM_HORIZON")
        try:
            iterator = self._calls.iterator(self.shard, "AT_SEQUENCE_NUMBER", number=self.at - 1)
            self._anchor = self.at - 1
        except RefusedError:  # a position that a user gave: it is that of a record
            try:
                iterator = self._calls.iterator(self.shard, "AT_SEQUENCE_NUMBER", number=self.at)
            except RefusedError as error:
                raise OptionError(
                    f"Kinesis does not take {self.at} as a position in '{self.shard}': {error} Positions in "
                    "startingOffsets are sequence numbers of records, or 0 for the oldest that is kept."
                ) from None
        return iterator

    def _new(self, page: Page) -> Page:
        """A page without records before the position. An error where its records are not in order."""
        if any(after <= before for before, after in pairwise(page.numbers)):
            raise ProtocolError(f"Kinesis gives records of '{self.shard}' that are not in the order of their numbers.")
        place = bisect_left(page.numbers, self.at)
        return page._replace(
            numbers=page.numbers[place:], values=page.values[place:], keys=page.keys[place:], times=page.times[place:]
        )

    def _without_anchor(self, page: Page) -> Page:
        if self._anchor is None or not (page.numbers or page.next is None or page.behind == 0):
            return page
        is_there = bool(page.numbers) and page.numbers[0] == self._anchor
        self.has_expired = not is_there and not (page.numbers and page.numbers[0] == self.at)
        self._anchor = None
        return page
