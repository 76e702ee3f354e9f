"""The log of a streaming query in its checkpoint: which batches were planned and committed, and where each ends. Reads
only. Knows the files of a checkpoint; what is in them is known to `entries.py`. Knows no Spark, no server.

A batch is planned when `offsets/N` is there, and committed when `commits/N` is. Spark deletes old ones, so the log
begins with any number. What is damaged is shown with the reason, as a rewind may be what mends it.
"""

import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime

from penstock.checkpoints import storage
from penstock.checkpoints.entries import COMMITS_VERSION, Entry, Move, Offset, Span, moves, span, versioned
from penstock.errors import OptionError

INTENT = "penstock.rewind"  # the file of a rewind that is under way


@dataclass(frozen=True)
class Batch:
    """A batch in the log. `sources`: by number, or by name where the query names them. `fault`: why it cannot be read,
    in a sentence; empty where it can.
    """

    number: int
    committed: bool
    planned: datetime | None = None
    sources: Mapping[str, Span] = field(default_factory=dict)
    fault: str = ""

    @property
    def size(self) -> int | None:
        """Positions that it reads, over all sources; None where it cannot be computed."""
        sizes = [span.size for span in self.sources.values()]
        return None if self.fault or None in sizes else sum(size for size in sizes if size is not None)


class Log:
    """The log in a checkpoint, as it was when this was made. An OptionError where there is none at the location."""

    def __init__(self, location: str):
        self.folder = storage.folder(location)
        names = self.folder.names()
        if not {"metadata", "offsets", "commits"} & set(names):
            raise OptionError(self._no_checkpoint(names))
        if INTENT in names and "metadata" not in names:
            raise OptionError(
                f"a rewind of checkpoint '{self.where}' was cut off. Call rewind on it again: that finishes it."
            )
        self.files = {**self.folder.files("offsets"), **self.folder.files("commits")}
        self.planned, self.committed = self._numbers("offsets"), self._numbers("commits")
        self.is_stateful = "state" in names and bool(self.folder.files("state"))

    @property
    def where(self) -> str:
        """The location, as messages show it."""
        return self.folder.location

    def _no_checkpoint(self, names: list[str]) -> str:
        if not self.folder.exists() and not names:
            return f"there is no checkpoint at '{self.where}': no such folder. A query makes it when it first starts."
        if others := [name for name in names if "penstock.lease" not in name]:
            has = ", ".join(others[:5])
            return f"'{self.where}' is no checkpoint: it has no 'metadata' and no 'offsets', but {has}."
        return f"the checkpoint '{self.where}' is empty: no query has begun there."

    def _numbers(self, folder: str) -> list[int]:
        """The batches in a folder. Drafts and checksums are files whose names are no numbers."""
        return sorted(int(found[1]) for name in self.files if (found := re.fullmatch(rf"{folder}/(\d+)", name)))

    @property
    def query_id(self) -> str:
        """The id of the query, which it keeps over restarts."""
        content = self.folder.read("metadata")
        if content is None:
            raise OptionError(
                f"the checkpoint '{self.where}' has no file 'metadata', where the id of its query is, and Spark does "
                "not start from it. Put the file back from a copy, or start with a new checkpointLocation."
            )
        try:
            return str(json.loads(content)["id"])
        except (ValueError, KeyError, TypeError):
            raise OptionError(
                f"the file 'metadata' of checkpoint '{self.where}' is damaged: {content[:60]!r}. Put it back from a "
                "copy, or start with a new checkpointLocation."
            ) from None

    @property
    def known_from(self) -> int | None:
        """The first batch that is still in the log; None before the first batch of all."""
        return self.planned[0] if self.planned else None

    @property
    def last_planned(self) -> int | None:
        """The last batch that was begun."""
        return self.planned[-1] if self.planned else None

    @property
    def last_committed(self) -> int | None:
        """The last batch that was finished: the query goes on behind it."""
        return max((number for number in self.planned if self.is_committed(number)), default=None)

    def is_committed(self, number: int) -> bool:
        """Whether a batch was finished. A commit whose writing was cut off is none."""
        return bool(self.files.get(f"commits/{number}"))

    def batches(self) -> list[Batch]:
        """Every batch that is still known, in order."""
        with ThreadPoolExecutor(storage.THREADS) as pool:
            entries = dict(zip(self.planned, pool.map(self._entry, self.planned), strict=True))
        return [self._batch(number, entry, entries.get(number - 1)) for number, entry in entries.items()]

    def entry(self, number: int) -> Entry:
        """What the log has of a batch. An OptionError where that is damaged."""
        entry = self._entry(number)
        if isinstance(entry, str):
            raise OptionError(entry)
        return entry

    def commit(self, number: int) -> bytes:
        """The commit of a batch, as Spark wrote it. An OptionError where it is not there or is damaged."""
        content = self.folder.read(f"commits/{number}")
        try:
            if content is None:
                raise ValueError("is not there")
            versioned(content, COMMITS_VERSION)
        except ValueError as error:
            raise OptionError(self._fault(f"commits/{number}", error)) from None
        return content

    def diff(self, a: int, b: int) -> list[Move]:
        """What moved between the ends of two batches, source by source and shard by shard."""
        return moves(self._ends(a), self._ends(b))

    def _ends(self, number: int) -> dict[str, Offset | None]:
        if number not in self.planned:
            raise OptionError(self.missing(number))
        return self.entry(number).offsets()

    def missing(self, number: int) -> str:
        """Why a batch is not in the log."""
        if not self.planned:
            return f"the checkpoint '{self.where}' has no batch yet."
        if number < self.planned[0]:
            return (
                f"batch {number} is no longer in the checkpoint '{self.where}', which is known from batch "
                f"{self.planned[0]} on: Spark keeps the last spark.sql.streaming.minBatchesToRetain of them."
            )
        return (
            f"batch {number} is not in the checkpoint '{self.where}', which has batches {self.planned[0]} to "
            f"{self.planned[-1]}."
        )

    def _entry(self, number: int) -> Entry | str:
        """What the log has of a batch, or what is wrong with it."""
        content = self.folder.read(f"offsets/{number}")
        try:
            if content is None:
                raise ValueError("is not there any more: a query runs on it")
            return Entry.parse(content)
        except ValueError as error:
            return self._fault(f"offsets/{number}", error)

    def _fault(self, name: str, error: ValueError) -> str:
        return f"the file {name} of checkpoint '{self.where}' {error}."

    def _batch(self, number: int, entry: Entry | str, before: Entry | str | None) -> Batch:
        committed = self.is_committed(number)
        if isinstance(entry, str):
            return Batch(number, committed, fault=entry)
        starts = before.offsets() if isinstance(before, Entry) else {}
        spans = {name: span(number, starts.get(name), end) for name, end in entry.offsets().items()}
        return Batch(number, committed, entry.planned, spans)
