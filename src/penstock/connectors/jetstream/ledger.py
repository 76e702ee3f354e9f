"""Who has tried to write what: a small stream in which each attempt of a task leaves a note before its first row.

A note has a subject of its own, <ledger>.<query>.<batch>.<partition>.<attempt>, and the stream refuses a second message
on any subject: so the note of the first attempt is left once, for ever, and whoever finds it knows that rows may be
there, and since when. The driver leaves one more when a batch is done, and purges those of the batches before it.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.connectors.jetstream import api
from penstock.connectors.jetstream.calls import ApiError, Calls
from penstock.connectors.nats.client import Denied
from penstock.connectors.nats.wire import Frame
from penstock.contract import Origin
from penstock.errors import ConnectError, Disconnected, OptionError


@dataclass(frozen=True)
class Claim:
    """What an attempt knows when it begins."""

    attempt: int  # 0: nobody has tried before
    since: float  # the monotonic clock: no row of this task was written before
    at: Mapping[str, int]  # the last sequence of streams then, as far as known; rows of this task lie behind it
    done: int | None = None  # the rows of this task, where its batch was done before


class Ledger:
    """The ledger on one connection."""

    def __init__(self, calls: Calls, name: str):
        self.calls, self.name = calls, name

    def claim(self, origin: Origin, last: Mapping[str, int]) -> Claim:
        """Leave a note. `last` may be old: it is where to begin looking for rows, should it come to that."""
        subject = self._subject(origin)
        sent = time.monotonic()
        mine, done = self._leave_and_look(f"{subject}.0", {"last": dict(last)}, origin.query)
        if done.get("batch", -1) > origin.batch:
            raise ConnectError(
                f"{origin} comes too late: batch {done['batch']} of this query is written already. If two drivers run "
                "on one checkpoint, stop the older one; if the checkpoint was set back on purpose, forget what was "
                f"written: nats stream purge {self.name} --subject='{self.name}.{origin.query}.>'"
            )
        if mine is not None:
            return Claim(0, sent, last)
        notes = self._notes(f"{subject}.*")
        while mine is None:
            sent = time.monotonic()
            mine = self._leave(f"{subject}.{len(notes)}", {})
            notes = self._notes(f"{subject}.*")
        first, own = notes[0], next(note for note in notes if note[0] == mine)
        age = (own[1] - first[1]) / 1e6  # both by the clock of the ledger's own server
        rows = done["rows"].get(str(origin.partition)) if done.get("batch") == origin.batch else None
        return Claim(len(notes) - 1, sent - age, first[2].get("last", {}), rows)

    def alone(self, origin: Origin) -> bool:
        """Whether nobody else has tried this task, up to now."""
        return len(self._notes(f"{self._subject(origin)}.*")) == 1

    def began(self, origin: Origin) -> int:
        """When the first attempt left its note, by the server's clock, in microseconds."""
        return self._notes(f"{self._subject(origin)}.*")[0][1]

    def done(self, query: str, batch: int, rows: Mapping[int, int]) -> None:
        """All rows of a batch are written: note it, and forget the batches before."""
        counted = {str(partition): count for partition, count in rows.items()}
        self._leave(f"{self.name}.{query}.{batch}.done", {"batch": batch, "rows": counted})
        first = self.calls.first_from(self.name, 1, (f"{self.name}.{query}.{batch}.>",))
        if first is not None:
            self._purge(f"{self.name}.{query}.>", first.sequence)

    def forget(self, query: str) -> None:
        """Nobody will ask for this query again."""
        self._purge(f"{self.name}.{query}.>")

    def _purge(self, subject: str, before: int | None = None) -> None:
        self.calls.call(f"STREAM.PURGE.{self.name}", {"filter": subject} | ({"seq": before} if before else {}))

    def _subject(self, origin: Origin) -> str:
        return f"{self.name}.{origin.query}.{origin.batch}.{origin.partition}"

    def _leave_and_look(self, subject: str, note: Mapping[str, Any], query: str) -> tuple[int | None, dict[str, Any]]:
        """Leave a note, and see which batch of the query was done last: in one round trip."""
        ask = self.calls.last_request(self.name, f"{self.name}.{query}.*.done")
        noted, found = self.calls.connection.requests([(subject, json.dumps(note).encode()), ask])
        last = self.calls.last_answer(found)
        return self._left(subject, note, noted), json.loads(last.body) if last is not None else {}

    def _leave(self, subject: str, note: Mapping[str, Any], made: bool = False) -> int | None:
        """The sequence of a new note; None where the subject has one."""
        answer = self.calls.connection.request(subject, json.dumps(note).encode())
        return self._left(subject, note, answer, made)

    def _left(self, subject: str, note: Mapping[str, Any], answer: Frame, made: bool = False) -> int | None:
        try:
            return self.calls.stored(subject, answer)
        except ApiError as error:
            if error.code == api.NO_LISTENER:
                if made:
                    raise Disconnected(f"the ledger '{self.name}' has no leader at the moment") from None
                self._make()
                return self._leave(subject, note, made=True)
            if error.code == api.STORE_FAILED:  # maximum messages per subject
                return None
            raise

    def _notes(self, subject: str) -> list[tuple[int, int, dict[str, Any]]]:
        """Sequence, time and content of all notes on a subject, in order."""
        found: list[tuple[int, int, dict[str, Any]]] = []
        while True:
            note = self.calls.first_from(self.name, found[-1][0] + 1 if found else 1, (subject,))
            if note is None:
                return found
            found.append((note.sequence, note.time, json.loads(note.body)))

    def check(self, replicas: int) -> api.StreamInfo:
        """The stream, made where there is none; one that would take a second note is refused."""
        info = self.calls.streams([self.name])[self.name]
        if info is None:
            self._make(replicas)
            info = self.calls.stream(self.name)
        if not info.one_per_subject:
            raise OptionError(
                f"stream '{self.name}' cannot be the ledger: it takes several messages on a subject. Name another one "
                "in the option 'ledger', or delete it, and it is made as it must be."
            )
        return info

    def _make(self, replicas: int = 1) -> None:
        config = {
            "name": self.name,
            "subjects": [f"{self.name}.>"],
            "description": "what Penstock's queries have tried to write, so that nothing is written twice",
            "max_msgs_per_subject": 1,
            "discard": "new",
            "discard_new_per_subject": True,
            "num_replicas": replicas,
        }
        try:
            self.calls.call(f"STREAM.CREATE.{self.name}", config)
        except (Denied, ApiError) as error:
            if isinstance(error, ApiError) and error.code == api.NAME_IN_USE:
                return
            raise OptionError(
                f"the ledger '{self.name}', which keeps exactly_once over restarts, cannot be made: {error} Let an "
                f"administrator make it, or allow $JS.API.STREAM.CREATE.{self.name}; or set ledger=none (exactly once "
                "within the stream's duplicate window) or delivery=at_least_once."
            ) from None
