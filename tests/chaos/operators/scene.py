"""What all parts of a round share, and what a source and a target of a round must offer. Knows no server."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from operators.engine import Checkpoint
from operators.model import Cause, Headers, Model, Record, Row
from penstock.errors import ConnectError, DataLossError, OptionError, PenstockError
from penstock.spark.connector import Connector

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
# A server or a way to it that failed for a while: any complaint about the connection is in order, and it goes on later.
AWAY: tuple[type[PenstockError], str] = (
    ConnectError, "connect|answer|closed|ended|nothing for|no more bytes|not ready|no leader|no server|busy|early",
)  # fmt: skip
LOSS: tuple[type[PenstockError], str] = (DataLossError, "")
# Rows were removed between two readings of one batch, so the second gives others: a sink may refuse to go on.
OTHER_ROWS: tuple[type[PenstockError], str] = (PenstockError, "with other rows")
DENIED = [(ConnectError, "permission|refuse|authori"), (OptionError, "permission|refuse|authori")]


class Operator(NamedTuple):
    """Something that people and servers do."""

    name: str
    act: Callable[[], None]
    weight: float = 1.0
    quiet: bool = False  # only while no task is at work


@dataclass
class Scene:
    """One round: its name, its dice, what happened, and what must come of it."""

    name: str
    dice: random.Random
    model: Model
    checkpoint: Checkpoint
    events: list[str] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)  # one operator at a time, so that the model is exact
    began: float = field(default_factory=time.monotonic)
    running: bool = False  # whether the query looks at its source
    disturbed: bool = False  # whether a connection may have broken
    read: set[int] = field(default_factory=set)  # the rows of batches that are done
    tried: set[int] = field(default_factory=set)  # every row that a task was given

    def note(self, event: str) -> None:
        self.events.append(f"{time.monotonic() - self.began:7.3f} {event}")

    def cause(self, name: str, *fits: tuple[type[PenstockError], str], final: bool = True, mend: Any = None) -> None:
        """From now on such an error is explained."""
        self.model.causes.append(Cause(name, fits, final, mend))

    def traces_are_gone(self) -> None:
        """Rows were deleted from the target. Before batch 1 is done, nothing else tells that they were written: they
        may be written again, as docs/guarantees.md says.
        """
        if 1 not in self.checkpoint.commits:
            self.model.may_repeat |= self.tried

    def chance(self, likely: float) -> bool:
        return self.dice.random() < likely

    def record(self, key: str, *, headers: bool = True) -> Record:
        """A new record, with its number in it, which is not published yet."""
        number = len(self.model.records)
        body = b"%d %s %s" % (number, key.encode(), b"-" * self.dice.choice([0, 10, 200]))
        given: Headers = ()
        if headers and self.chance(0.7):
            given = (*((("more", b"x" * (number % 7 + 1)),) if self.chance(0.3) else ()), ("n", b"%d" % number))
        return Record(number, key, body, given)

    def pace(self) -> dict[str, str]:
        """How fast a query reads, and in how many tasks."""
        given = {"failOnDataLoss": str(self.model.fail_on_loss).lower()}
        if self.chance(0.5):
            given["maxRecordsPerTrigger"] = str(self.dice.choice([7, 40, 100]))
        if self.chance(0.4):
            given["minPartitions"] = str(self.dice.choice([2, 3]))
        if self.chance(0.4):
            given["maxRecordsPerPartition"] = str(self.dice.choice([15, 40]))
        return given

    def take(self, records: Sequence[Record], why: str, *, silent: bool = False, always: bool = False) -> None:
        """Somebody removes records. The query may say so where it had not read them all, or `always`."""
        taken = self.model.take(records, why, silent=silent)
        unread = self.model.unread(taken, self.checkpoint.committed)
        if unread or always:
            self.cause(why, LOSS, OTHER_ROWS)


class Source(Protocol):
    """Where the query reads."""

    connector: type[Connector]
    options: dict[str, str]
    all: bool  # what it promises
    once: bool
    replayable: bool  # whether what was read once can be read again

    def publish(self, count: int) -> None:
        """Somebody writes to it, and the model knows."""

    def operators(self) -> Sequence[Operator]:
        """What may be done to it."""

    def rows(self, batch: pa.RecordBatch) -> list[Row]:
        """What the query reads."""

    def interrupted(self) -> None:
        """A run of the query has ended before its time, or a connection has broken."""

    def settle(self) -> None:
        """Mend what is broken: nothing more will befall it."""

    def drained(self) -> bool:
        """Whether nothing more can come."""

    def complaints(self) -> list[str]:
        """What of other people's is not as it was."""

    def close(self) -> None:
        """Leave nothing behind."""


class Target(Protocol):
    """Where the query writes."""

    connector: type[Connector]
    options: dict[str, str]
    columns: pa.Schema
    all: bool
    once: bool
    ordered: bool
    twins: bool  # whether two attempts of one task may be at work at once
    settles: float  # so long what a killed process sent may be on its way

    def operators(self) -> Sequence[Operator]:
        """What may be done to it."""

    def batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        """What the query writes."""

    def stored(self) -> list[Row]:
        """What is there, and what was there until somebody took it away."""

    def settle(self) -> None:
        """Mend what is broken."""

    def complaints(self, *, well: bool) -> list[str]:
        """What is wrong with it besides its rows. `well`: the query came to its end."""

    def close(self) -> None:
        """Leave nothing behind."""


def of_body(body: bytes, headers: Headers | None, key: str | None = None, **more: Any) -> Row:
    """A row by what is in its body."""
    number, _, rest = body.partition(b" ")
    return Row(int(number), key or rest.partition(b" ")[0].decode(), body, headers, **more)


def pairs(headers: Any) -> Headers:
    """The headers of a row of Spark's."""
    return tuple((each["key"], each["value"]) for each in headers or ())


def as_headers(rows: Sequence[Row]) -> pa.Array:
    """And back."""
    return pa.array([[{"key": k, "value": v} for k, v in row.headers or ()] or None for row in rows], HEADERS)
