"""What a rewind would do to a checkpoint, decided from the files that are there; and what is refused. Changes nothing.
Knows the log of a checkpoint; knows no Spark, no server.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from penstock.checkpoints.entries import Entry, set_back
from penstock.checkpoints.log import Log
from penstock.checkpoints.pieces import Piece, pieces, stores_without
from penstock.errors import OptionError, nearest

# A batch, a time, or positions, which may be JSON: {"ORDERS": 17}, or Kafka's {"orders": {"0": 17}}.
Target = int | datetime | str | Mapping[str, Any]


@dataclass(frozen=True)
class SinkMemory:
    """What a sink does with rows that are written again, of batches that it had before.

    "again": it writes them. "remembers": it knows batches of this query, and would skip or refuse them. "skips-files":
    Spark's sink of files, whose _spark_metadata skips batches by their numbers, whichever query they are of.
    "by-batch": files in a folder for each batch of this query, which the batch of that number takes the place of.
    """

    name: str
    kind: Literal["again", "remembers", "skips-files", "by-batch"]


@dataclass(frozen=True)
class Plan:
    """What is to be done: files to remove, and where the query stands then. `is_moved`: that is no end of a batch."""

    kept: int
    pieces: Sequence[Piece]
    end: Entry
    commit: bytes
    is_moved: bool
    new_query: bool
    query_id: str

    @property
    def removed(self) -> tuple[int, ...]:
        """The batches whose files are removed."""
        return tuple(sorted({p.batch for p in self.pieces if p.rank != 1 and not p.is_checksum}))

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.pieces or self.is_moved or self.new_query)


def plan(log: Log, to: Target, source: str | None, sinks: Sequence[SinkMemory], new_query: bool) -> Plan:
    """What is to be done, decided from what is there. An OptionError where it must not be done."""
    to = _positions(to) if isinstance(to, str) else to
    names = [*log.folder.files()]
    kept = _kept(log, to)
    later = pieces(names, above=kept)
    if isinstance(to, datetime) and all(batch.planned and batch.planned < to for batch in log.batches()):
        later = []  # a batch that was planned before and not committed stays too
    if log.is_stateful:
        _refuse_state(log, names, kept, new_query or isinstance(to, Mapping))
    if not new_query:
        _refuse_first(log, kept)
    stands = log.entry(kept)
    end = _set_back(log, stands, source, to) if isinstance(to, Mapping) else stands
    decided = Plan(kept, later, end, log.commit(kept), end != stands, new_query, log.query_id)
    if not decided.is_done:
        _refuse_sinks(sinks, new_query)
    return decided


def _kept(log: Log, to: int | datetime | Mapping[str, Any]) -> int:
    """The last batch that stays."""
    last = log.last_committed
    if last is None:
        raise OptionError(
            f"the checkpoint '{log.where}' has no batch that was committed: there is nothing to go back to."
        )
    if isinstance(to, Mapping):
        return last
    if isinstance(to, datetime):
        return _planned_before(log, to)
    if to not in log.planned:
        raise OptionError(f"{log.missing(to)} {_all_again(log)}")
    if not log.is_committed(to):
        raise OptionError(
            f"batch {to} of the checkpoint '{log.where}' is not committed: it was planned, and not finished. The last "
            f"one that can be kept is {last}."
        )
    return to


def _planned_before(log: Log, moment: datetime) -> int:
    if moment.tzinfo is None:
        raise OptionError(f"the time {moment} has no zone. Write it as 2026-11-15T12:00:00Z.")
    batches = log.batches()
    if before := [b.number for b in batches if b.committed and b.planned is not None and b.planned < moment]:
        return max(before)
    first = f"batch {batches[0].number}, planned at {batches[0].planned}"
    raise OptionError(
        f"no committed batch of the checkpoint '{log.where}' was planned before {moment}: the first that is known is "
        f"{first}. {_all_again(log)}"
    )


def _all_again(log: Log) -> str:
    if log.known_from == 0:
        return "To read everything again, start with a new checkpointLocation."
    return "To read from further back, start with a new checkpointLocation and startingOffsets."


def _refuse_state(log: Log, names: Sequence[str], kept: int, without_batch: bool) -> None:
    if without_batch:
        raise OptionError(
            f"the query of checkpoint '{log.where}' has state (of aggregations, joins or duplicates), which belongs to "
            "a batch. It can go back to a batch or a time, not to positions, and not as a new query."
        )
    if gone := stores_without(names, kept):
        there = [n for n in log.planned if log.is_committed(n) and not stores_without(names, n)]
        can = f"It is there for batches {there[0]} to {there[-1]}." if there else "It is there for no batch."
        raise OptionError(
            f"the state of the query as it was after batch {kept} is no longer in the checkpoint '{log.where}' "
            f"({gone[0]}). {can}"
        )


def _refuse_first(log: Log, kept: int) -> None:
    """Spark reads the batch before the last one, too."""
    if kept == 0:
        return
    if kept - 1 not in log.planned:
        after = [n for n in log.planned if n - 1 in log.planned and log.is_committed(n)]
        earliest = f"The earliest that can be kept is batch {after[0]}." if after else "None can be kept."
        raise OptionError(
            f"batch {kept} is the first that is known of the checkpoint '{log.where}', and Spark needs the batch "
            f"before it to start. {earliest}"
        )
    log.entry(kept - 1)


_NEW_QUERY = (
    "With --new-query the query gets another id, and rows that it reads again are written as new ones, beside what is "
    "there."
)


def _refuse_sinks(sinks: Sequence[SinkMemory], new_query: bool) -> None:
    for sink in sinks:
        if sink.kind == "skips-files":
            raise OptionError(
                f"sink '{sink.name}' is Spark's sink of files: its _spark_metadata skips every batch whose number it "
                "has, so rows that are read again would be lost. Give the sink another path, or delete its files and "
                "its _spark_metadata first."
            )
        if sink.kind == "remembers" and not new_query:
            raise OptionError(
                f"sink '{sink.name}' remembers the batches that this query wrote, and would skip or refuse them. "
                f"{_NEW_QUERY}"
            )
        if sink.kind == "by-batch" and not new_query:
            raise OptionError(
                f"sink '{sink.name}' has a folder for each batch of this query. Rows that are read again may fall into "
                "other batches, and would lie there beside those of batches that were written before. "
                f"{_NEW_QUERY}"
            )


def _positions(text: str) -> Mapping[str, Any]:
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise OptionError(f'positions must be JSON such as {{"ORDERS": 17}} or {{"orders": {{"0": 17}}}}, not: {text}')
    return body


def _set_back(log: Log, end: Entry, source: str | None, to: Mapping[str, Any]) -> Entry:
    """The end of a batch, with positions of one source set back."""
    if source is None:
        if len(end.lines) != 1:
            raise OptionError(
                f"the query has several sources: say of which the positions are. {nearest('', end.lines)}"
            )
        source = next(iter(end.lines))
    if source not in end.lines:
        raise OptionError(
            f"the query of checkpoint '{log.where}' has no source '{source}'. {nearest(source, end.lines)}"
        )
    return replace(end, lines={**end.lines, source: set_back(end.lines[source], to)})


def moment_of(text: str) -> datetime:
    """A time with its zone, from text. An OptionError where it is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(f"'{text}' is not a time such as 2026-11-17T06:00:00Z.") from None
    if moment.tzinfo is None:
        raise OptionError(f"'{text}' has no zone: write {text}Z for UTC.")
    return moment
