"""What a stream holds of the query that writes to it, by the stamps in its records. Asks S2; writes nothing."""

import pyarrow.compute as pc

from penstock.clients.s2.calls import Calls, Last
from penstock.clients.s2.wire import Records
from penstock.connectors.s2 import chain
from penstock.connectors.s2.chain import Stamp
from penstock.connectors.s2.options import S2SinkOptions
from penstock.errors import ConnectError
from penstock.kit.contract import Origin
from penstock.planning.positions import Offsets

# So many records are looked through at once.
BLOCK = 1000


class History:
    """What may have been written before the rows of a task.

    Of a single write, nothing lies before where streams ended when it `began`. `alone`: nobody asks for other tasks of
    the batch as well.
    """

    def __init__(self, calls: Calls, options: S2SinkOptions, origin: Origin, began: Offsets, *, alone: bool):
        self.calls, self.options, self.origin, self.began, self.alone = calls, options, origin, began, alone

    def before(self, name: str, last: Last) -> list[Stamp]:
        """The last stamps of a stream, from its end back to where it is clear that no older one matters."""
        stamps, tail = stamps_of(last.record), last.tail
        began = self.began.get(name)
        begins = began.next if began is not None and began.epoch == last.created else 0
        low, foreign, held = tail - 1, 0, bool(len(last.record))
        while held and low > begins and foreign < self.options.look_back:
            if chain.settled(stamps, self.origin, alone=self.alone):
                return stamps
            start = max(begins, low - BLOCK)
            block, held = self.between(name, start, low)
            of_mine = any(stamp.origin.query == self.origin.query for stamp in block)
            foreign = 0 if of_mine else foreign + BLOCK
            stamps, low = block + stamps, start
        whole = held and low <= begins
        if not self.origin.may_be_first and not whole and not chain.settled(stamps, self.origin, alone=self.alone):
            why = (
                f"behind {foreign:,} records of others (lookBack) there is none of this query"
                if held
                else f"of its {tail:,} records, those that could tell have been trimmed or have expired"
            )
            raise ConnectError(
                f"nobody can tell whether {self.origin} was written to stream '{name}' before: {why}. If it was not, "
                "set delivery=at_least_once for one run. Let the stream keep records for longer than the query may "
                "rest, and give it a stream of its own, or a larger lookBack."
            )
        return stamps

    def between(self, name: str, low: int, high: int) -> tuple[list[Stamp], bool]:
        """The stamps of a range, and whether all of its records are there."""
        stamps: list[Stamp] = []
        at, held = low, True
        while at < high:
            came = False
            for records in self.calls.read(name, at, high - at):
                records = records.where(records.sequence < high)
                if len(records):
                    held &= int(records.sequence[0]) == at
                    at, came = int(records.sequence[-1]) + 1, True
                    stamps += stamps_of(records)
            if not came:  # an answer may end early, but one from here on has nothing
                return stamps, False
        return stamps, held


def stamps_of(records: Records) -> list[Stamp]:
    """The stamps among some records, in their order."""
    if not len(records.header_row):
        return []
    values = records.header_value.filter(pc.equal(records.header_name, chain.HEADER)).to_pylist()
    return [stamp for value in values if (stamp := Stamp.decode(value)) is not None]
