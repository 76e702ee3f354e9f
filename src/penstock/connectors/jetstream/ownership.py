"""Which query owns the durable of a stream that releases messages, and what the checkpoint notes about it.

The durable names its query and its run in its metadata. A new query takes it over; the one before then stops, and
deletes nothing more. Knows notes and metadata; sends nothing to a server.
"""

import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from penstock.clients.answers import field
from penstock.clients.jetstream import api
from penstock.errors import OptionError
from penstock.kit.loss import LossReport

log = logging.getLogger("penstock")


class Note(NamedTuple):
    """What the checkpoint keeps about a stream that releases messages."""

    owner: str  # the name of this query on the server
    filters: str  # the subjects that it reads, with commas
    created: str  # when the durable was created

    @classmethod
    def of(cls, text: str) -> Self | None:
        """From the checkpoint; None where the text is not a note."""
        parts = text.split(" ")
        return cls(*parts) if len(parts) == len(cls._fields) else None


class Durable(NamedTuple):
    """The state of the durable."""

    note: Note
    was_created: bool  # by the call that returned this
    floor: int  # its ack floor: it keeps no message up to this sequence

    def has_released(self, at: int, first: int, filtered: bool) -> bool:
        """Whether it no longer keeps messages that the query at `at` still needs. `first` is the stream's first
        message. With filters, the server moves the ack floor up to `first` where no earlier message matches: that
        releases nothing.
        """
        return self.floor >= at and (self.floor >= first or not filtered)


class Ownership:
    """The claim of one run of a query on its durables, which are called `consumer` in every stream."""

    def __init__(self, consumer: str, losses: LossReport):
        self.consumer, self.losses = consumer, losses
        self.query, self._run = uuid.uuid4().hex, uuid.uuid4().hex

    def resume(self, notes: Iterable[Note | None]) -> None:
        """Take the query's name from the first note, where there is one."""
        for note in notes:
            if note:
                self.query = note.owner
                return

    def metadata(self) -> dict[str, str]:
        """The metadata by which a durable is this run's."""
        return {api.OWNER: self.query, api.RUN: self._run}

    def durable(self, answer: dict[str, Any], subjects: Sequence[str], *, was_created: bool) -> Durable:
        """The durable in an answer of CONSUMER.INFO or CONSUMER.CREATE."""
        note = Note(self.query, ",".join(sorted(subjects)) or ">", field(answer, "created", str))
        return Durable(note, was_created, field(field(answer, "ack_floor", dict, {}), "stream_seq", int, 0))

    def claim(self, stream: str, metadata: Mapping[str, Any], noted: Note | None, *, starts: bool) -> None:
        """Check by its metadata that this run may use the durable. A run that `starts` takes it over from another query
        or run; a run that is under way stops with an OptionError. What the other query has released since the durable
        was `noted` may be a loss, and is reported.
        """
        owner, run = metadata.get(api.OWNER, ""), metadata.get(api.RUN, "")
        if not owner or (owner, run) == (self.query, self._run) or (starts and owner == self.query):
            return
        consumer = f"the consumer '{self.consumer}' of stream '{stream}'"
        if not starts:
            who = "another run of this query" if owner == self.query else "another query"
            raise OptionError(
                f"{who} has taken over {consumer}, and two would delete each other's messages. Let one of them read "
                "it, or give each its own 'subjects' and progressConsumer."
            )
        if noted is not None:
            self.losses.report(
                f"another query has used {consumer} since this one did, and may have released messages that it has not "
                "read",
                "Start with a new checkpointLocation, or set failOnDataLoss=false to go on with what is left; and let "
                "only one of them run.",
            )
        log.warning("this query takes over %s from another one, which stops if it still runs", consumer)
