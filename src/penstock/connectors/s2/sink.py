"""Rows into S2 streams, each exactly once: from tasks, or from the driver for small ones. The writing is task.py's."""

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from functools import partial

import pyarrow as pa

from penstock.clients.s2.appends import MOST_BYTES
from penstock.clients.s2.calls import Calls
from penstock.connectors.s2 import rows
from penstock.connectors.s2.chain import ROOM
from penstock.connectors.s2.options import S2SinkOptions
from penstock.connectors.s2.task import Seen, Task
from penstock.errors import PenstockError
from penstock.kit import via_driver
from penstock.kit.contract import Origin, Receipt
from penstock.planning.positions import Offsets, Position

log = logging.getLogger("penstock")


class S2Sink:
    """A sink that connects when the first row comes."""

    def __init__(self, options: S2SinkOptions, columns: pa.Schema):
        rows.accept(options, columns)
        self.options, self.columns = options, columns
        self.before: Offsets = {}  # where streams ended before a `df.write` began

    def most_bytes(self) -> int:
        """What S2 takes in one append, less what the sink adds to it."""
        return MOST_BYTES - ROOM

    def write(self, batches: Iterator[pa.RecordBatch], origin: Origin) -> Receipt:
        """Append the rows that are not stored yet. Where tasks share a stream, the driver does so for small ones."""
        if self.options.direct():
            return self._append(batches, origin)
        return via_driver.write(batches, origin, self.options.driver_bytes, self._append)

    def commit(self, receipts: Sequence[Receipt], batch: int | None) -> None:
        """Write the rows that tasks handed to the driver, in the order of the tasks. An error where rows of this batch
        are there from a partition that has none now.
        """
        seen: dict[str, Seen] = {}
        partitions = {receipt.origin.partition for receipt in receipts if receipt.rows}
        for receipt in via_driver.commit(receipts, partial(self._append, seen=seen, partitions=partitions)):
            if receipt.rows:
                log.info("%s", receipt)

    def check(self) -> None:
        """Reach the basin."""
        with closing(Calls(self.options)) as calls:
            calls.reach()

    def ends(self) -> Offsets:
        """Where the streams end that rows may go to. Empty where there are too many of them to ask for."""
        if self.options.delivery != "exactly_once":
            return {}
        name = self.options.target
        prefix = "" if name is None or "stream" in self.columns.names else name.partition("{")[0]
        with closing(Calls(self.options)) as calls:
            created = calls.named([prefix]) if prefix == name else calls.few(prefix)
            return {stream: Position(tail, created[stream]) for stream, tail in calls.tails(list(created)).items()}

    def begin(self, ends: Offsets) -> None:
        """The rows to come are those of a `df.write`, before which streams ended at `ends`."""
        self.before = ends

    def close(self) -> None:
        """Nothing to close: every write closes its connections."""

    def _append(
        self,
        batches: Iterator[pa.RecordBatch],
        origin: Origin,
        seen: dict[str, Seen] | None = None,
        partitions: Collection[int] = (),
    ) -> Receipt:
        task = Task(self.options, origin, self.before, seen, partitions)
        try:
            for batch in batches:
                if len(batch):
                    task.put(batch)
            return task.finish()
        except PenstockError as error:
            task.spans.explain(error, known_again=self.options.delivery == "exactly_once")
            raise
        finally:
            task.close()
