"""The ends of the streams that a query reads, asked of their servers by the sources of our own formats. Knows the
contract of sources; knows no server, no Spark.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

import pyarrow as pa

from penstock.connectors import connector
from penstock.errors import DataLossError, OptionError, PenstockError
from penstock.jobs.lag import Standing, stand
from penstock.kit.contract import Resuming, Source, Sparse
from penstock.kit.retry import at_once
from penstock.planning.checkpoint import Checkpoint
from penstock.planning.planner import Planner
from penstock.planning.positions import END, Bound, Bounds, Range, lost

# Records among which the oldest one is looked for, at first; each further look goes so many times further.
REACH, FURTHER = 1, 64


class Heads(Protocol):
    """What can be asked for the ends of streams."""

    def shards(self) -> set[str]:
        """The shards that the options name. Nothing where none of them is there."""

    def compare(self, source: str, at: Checkpoint) -> tuple[list[Standing], list[str]]:
        """Where a query stands that has read up to `at`, and what could not be told, in sentences."""


class OurHeads:
    """The ends of the streams of one of our formats. An OptionError where the format keeps nothing to be compared."""

    def __init__(self, format: str, given: Mapping[str, str]):
        self.format, self.connector = format, connector(format)
        self.options: Any = self.connector.parse(dict(given))
        why = self.connector.only_streams(self.options)
        if why is not None:
            raise OptionError(
                f"the checkpoint of a query on '{format}' has no positions that could be compared with the server: "
                f"{why}."
            )

    def shards(self) -> set[str]:
        """The shards that the options name. Nothing where none of them is there."""
        source = self.connector.open_source(self.options)
        try:
            return set(at_once(source.bounds))
        except OptionError:
            return set()
        finally:
            source.close()

    def compare(self, source: str, at: Checkpoint) -> tuple[list[Standing], list[str]]:
        """Where a query stands, by one look at the server. Nothing is changed there."""
        try:
            return self._compare(source, at, self.options), []
        except (DataLossError, OptionError) as error:
            # Records are gone, as Kinesis tells only to those who read on; or one of several streams is.
            told, problem = str(error), isinstance(error, DataLossError)
        try:
            standings = self._compare(source, at, self.options.model_copy(update={"fail_on_data_loss": False}))
        except OptionError as error:  # nothing is left of what the options name, or only the query itself may look
            nothing = stand(source, self.format, at.positions, {}, lost(at.positions, {}))
            return [replace(each, problem=str(error)) for each in nothing], []
        if not problem:
            return standings, []
        named = next((each for each in standings if f"'{each.shard}'" in told), standings[0] if standings else None)
        return [replace(each, problem=told) if each is named else each for each in standings], []

    def _compare(self, source: str, at: Checkpoint, options: Any) -> list[Standing]:
        opened = self.connector.open_source(options)
        try:
            if isinstance(opened, Resuming):  # so that streams which are gone are no mistake in the options
                opened.resume(at.positions, at.notes)
            bounds = at_once(opened.bounds)
            losses = Planner(opened, options, "earliest").missing(at.positions, bounds)
            standings = stand(source, self.format, at.positions, bounds, losses)
            return [self._asked(opened, each, bounds, at.notes) for each in standings]
        finally:
            opened.close()

    def _asked(self, source: Source, standing: Standing, bounds: Bounds, notes: Mapping[str, str]) -> Standing:
        """The records that are behind, counted where positions have gaps, and the age of the oldest."""
        bound = bounds.get(standing.shard)
        if bound is None:
            return standing
        start = standing.resumes
        is_sparse = isinstance(source, Sparse)
        if start >= bound.next:
            return replace(standing, records=None if is_sparse else 0, seconds=0.0)
        if is_sparse:
            standing = replace(standing, records=None)
        else:
            counted = source.count(standing.shard, [start])
            standing = replace(standing, records=counted[0] if counted else bound.next - start)
        if standing.records == 0:  # what lies ahead is left out by a filter, or deleted
            return replace(standing, seconds=0.0)
        note = notes.get(standing.shard, "") if start == standing.position else ""
        moment = None
        with suppress(PenstockError):  # some streams cannot be read but by their query
            moment = _oldest(source, standing.shard, start, bound, note)
        if moment is None:
            return standing
        return replace(standing, seconds=max(0.0, time.time() - moment))


def _oldest(source: Source, shard: str, start: int, bound: Bound, note: str) -> float | None:
    """When the first record of a range was stored, in seconds since 1970; None where rows do not tell."""
    end = bound.next
    reach = end - start if isinstance(source, Sparse) or end == END else REACH
    while start < end:
        stop = min(end, start + reach)
        for batch in source.read(Range(shard, start, stop, bound.epoch, note=note)):
            if len(batch):
                return _moment(batch)
        start, reach = stop, reach * FURTHER
    return None


def _moment(batch: pa.RecordBatch) -> float | None:
    name = next((name for name in ("timestamp", "_timestamp") if name in batch.schema.names), None)
    if name is None:
        return None
    micros = batch.column(name).cast(pa.int64())[0].as_py()
    return None if micros is None else micros / 1_000_000
