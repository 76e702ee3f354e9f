"""What a stream already has of the query that writes to it, by the stamps in its records. Reads S2; writes nothing."""

import pyarrow.compute as pc

from penstock.clients.s2.calls import Calls, Last
from penstock.clients.s2.records import Records
from penstock.connectors.s2 import chain
from penstock.connectors.s2.chain import Stamp
from penstock.connectors.s2.options import S2SinkOptions
from penstock.kit.contract import Origin
from penstock.kit.lookback import Block, cannot_tell, look_back
from penstock.planning.positions import Offsets

# Records looked through at once.
BLOCK = 1000


class History:
    """Finds the stamps of earlier attempts.

    `began`: where streams ended when a `df.write` began; it has written nothing before that. `alone`: only stamps of
    this task are wanted, not those of other tasks in the batch.
    """

    def __init__(self, calls: Calls, options: S2SinkOptions, origin: Origin, began: Offsets, *, alone: bool):
        self.calls, self.options, self.origin, self.began, self.alone = calls, options, origin, began, alone

    def before(self, name: str, last: Last) -> list[Stamp]:
        """The stamps at the end of a stream, back to where older ones cannot matter.

        An error where that is not found, because records are missing or `lookBack` is too small.
        """
        stamps: list[Stamp] = []
        began = self.began.get(name)
        begins = began.next if began is not None and began.epoch == last.created else 0

        def look(low: int, high: int) -> Block:
            nonlocal stamps
            if high == last.tail:
                block, complete = stamps_of(last.record), bool(len(last.record))
            else:
                block, complete = self.between(name, low, high)
            stamps = block + stamps
            ours = any(stamp.origin.query == self.origin.query for stamp in block)
            return Block(ours, chain.settled(stamps, self.origin, alone=self.alone), complete)

        outcome = look_back(last.tail, lambda: begins, look, limit=self.options.look_back, block=BLOCK)
        everything = outcome.complete and outcome.at <= begins
        if not self.origin.may_be_first and not everything and not outcome.settled:
            why = (
                f"behind {self.options.look_back:,} records of others (lookBack) there is none of this query"
                if outcome.complete
                else f"of its {last.tail:,} records, those that could tell have been trimmed or have expired"
            )
            remedy = (
                "Let the stream keep records for longer than the query may rest, and give it a stream of its own, or "
                "a larger lookBack."
            )
            raise cannot_tell(self.origin, f"stream '{name}'", why, remedy)
        return stamps

    def between(self, name: str, low: int, high: int) -> tuple[list[Stamp], bool]:
        """The stamps of a range, and whether the stream has all of its records."""
        stamps: list[Stamp] = []
        at, complete = low, True
        while at < high:
            is_empty = True
            for records in self.calls.read(name, at, high - at):
                records = records.where(records.sequence < high)
                if len(records):
                    complete &= int(records.sequence[0]) == at
                    at, is_empty = int(records.sequence[-1]) + 1, False
                    stamps += stamps_of(records)
            if is_empty:  # a short answer has more behind it, an empty one has not
                return stamps, False
        return stamps, complete


def stamps_of(records: Records) -> list[Stamp]:
    """The stamps in the headers of records, in their order."""
    if not len(records.header_row):
        return []
    values = records.header_value.filter(pc.equal(records.header_name, chain.HEADER)).to_pylist()
    return [stamp for value in values if (stamp := Stamp.decode(value)) is not None]
