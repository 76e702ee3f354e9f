"""Which attempts have begun to write: a small stream in which each attempt of a task leaves a note before its rows.

The subject of a note is <ledger>.<query>.<batch>.<partition>.<attempt>, and the stream refuses a second message on any
subject. So the first attempt leaves its note once; a later attempt finds it, and knows that rows may be stored, and
since when. When a batch is done, also an empty one, the driver replaces its notes by one that says so. A batch that
does not find this note of the batch before knows that the ledger has lost notes. Knows notes; must not know rows.
"""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from penstock.clients.answers import field
from penstock.clients.jetstream import api
from penstock.clients.jetstream.calls import ApiError, Calls, Stored
from penstock.clients.nats.client import Denied
from penstock.clients.nats.wire import Frame
from penstock.errors import ConnectError, Disconnected, OptionError, PenstockError, ProtocolError
from penstock.kit.contract import Origin

# How long the notes of a `df.write` that failed stay. None of its tasks is retried after that.
MONTH = b"NATS/1.0\r\nNats-TTL: 720h\r\n\r\n"


@dataclass(frozen=True)
class Claim:
    """What an attempt knows when it begins."""

    attempt: int  # 0 for the first one
    since: float  # on the monotonic clock: no row of this task was written before
    at: Mapping[str, int]  # the last sequences of streams then, as far as known: rows of this task are after these
    lives: Mapping[str, str]  # the lives of these streams then (Targets says what a life is)
    done: int | None = None  # how many rows this task had, where its batch is done already
    digest: str = ""  # of these rows; empty where it was not noted


class Ledger:
    """The ledger on one connection."""

    def __init__(self, calls: Calls, name: str):
        self.calls, self.name = calls, name

    def claim(self, origin: Origin, last: Mapping[str, int], lives: Mapping[str, str], ages: bool = False) -> Claim:
        """Leave a note, which expires if it `ages`. The claim has what the note of the first attempt says. `last` and
        `lives` may be old: a later attempt looks for rows after `last`. Refuses a task of a batch that is over, or that
        comes after a batch which is not noted.
        """
        subject, note = self._subject(origin), {"last": dict(last), "lives": dict(lives)}
        sent = time.monotonic()
        sequence, done = self._leave_and_look(f"{subject}.0", note, origin.query, ages)
        if error := self._refused(origin, done):
            if sequence is not None:  # nothing is written, so a later attempt must not find the note
                with suppress(PenstockError):
                    self._purge(f"{subject}.0")
            raise error
        rows, digest = None, ""
        if done.get("batch") == origin.batch:
            rows = int(done["rows"].get(str(origin.partition), 0))
            digest = str(done["digests"].get(str(origin.partition), ""))
        if sequence is not None:
            return Claim(0, sent, last, lives, rows, digest)
        notes = self._notes(f"{subject}.*")
        while sequence is None:
            sent = time.monotonic()
            number = 1 + max((int(stored.subject.rpartition(".")[2]) for stored in notes), default=-1)
            sequence = self._leave(f"{subject}.{number}", note, ages)
            notes = self._notes(f"{subject}.*")
        first, ours = notes[0], next(stored for stored in notes if stored.sequence == sequence)
        age = (ours.time - first.time) / 1e6  # both times are from the clock of the ledger's server
        content = _parsed(first)
        return Claim(len(notes) - 1, sent - age, content.get("last", {}), content.get("lives", {}), rows, digest)

    def has_one_attempt(self, origin: Origin) -> bool:
        """Whether only one attempt of this task has begun, up to now."""
        return len(self._notes(f"{self._subject(origin)}.*")) == 1

    def began(self, origin: Origin) -> int:
        """When the first attempt left its note, by the server's clock, in microseconds. A ConnectError where the batch
        is done meanwhile.
        """
        notes = self._notes(f"{self._subject(origin)}.*")
        if not notes:  # they are deleted when the batch is done
            raise origin.overtaken(origin.batch)
        return notes[0].time

    def missing(self, query: str, batch: int, rows: Mapping[int, int]) -> set[int]:
        """The partitions of a batch that an attempt has begun or finished to write, and that are not in `rows`."""
        body = {"subjects_filter": f"{self.name}.{query}.{batch}.*.0"}
        try:
            state = field(self.calls.call(f"STREAM.INFO.{self.name}", body), "state", dict)
            subjects = field(state, "subjects", dict, {})
        except ApiError as error:
            if error.code != api.NO_STREAM:
                raise
            return set()
        begun = {int(subject.split(".")[-2]) for subject in subjects}
        if begun <= rows.keys():
            return set()
        done = self._done(query, batch)  # where the batch was done, later attempts have written nothing
        return (begun if done is None else set(done)) - rows.keys()

    def done(self, query: str, batch: int, rows: Mapping[int, int], digests: Mapping[int, str]) -> set[int]:
        """Note that all rows of a batch are written, and delete all notes before. Where that was noted before: the
        partitions that had rows then and are not in `rows`.
        """
        note: dict[str, Any] = {"batch": batch, "rows": {str(partition): count for partition, count in rows.items()}}
        if digests:
            note["digests"] = {str(partition): digest for partition, digest in digests.items()}
        sequence = self._leave(f"{self.name}.{query}.{batch}.done", note)
        if sequence is not None:
            self._purge(f"{self.name}.{query}.>", sequence)
            return set()
        return set(self._done(query, batch) or ()) - rows.keys()

    def _done(self, query: str, batch: int) -> dict[int, int] | None:
        """How many rows each partition of a batch has; None where the batch is not done."""
        note = self.calls.last_of(self.name, f"{self.name}.{query}.{batch}.done")
        if note is None:
            return None
        return {int(partition): rows for partition, rows in _parsed(note)["rows"].items()}

    def forget(self, query: str) -> None:
        """Delete all notes of a query."""
        self._purge(f"{self.name}.{query}.>")

    def _purge(self, subject: str, before: int | None = None) -> None:
        body: dict[str, Any] = {"filter": subject}
        if before:
            body["seq"] = before
        self.calls.call(f"STREAM.PURGE.{self.name}", body)

    def _subject(self, origin: Origin) -> str:
        return f"{self.name}.{origin.query}.{origin.batch}.{origin.partition}"

    def _refused(self, origin: Origin, done: Mapping[str, Any]) -> PenstockError | None:
        """The error where this task must not be written; None where it may. `done` is the newest note of a batch of its
        query that is done, empty without one.
        """
        query, before = f"{self.name}.{origin.query}", origin.batch - 1
        begin = f'nats pub {query}.{before}.done \'{{"batch": {before}, "rows": {{}}}}\''
        if done.get("batch", -1) > origin.batch:
            return ConnectError(
                f"{origin} comes too late: batch {done['batch']} of this query is written already. If two drivers run "
                "on one checkpoint, stop the older one; if the checkpoint was set back on purpose, forget what was "
                f"written: nats stream purge {self.name} --subject='{query}.>' && {begin}{origin.rules}"
            )
        if done.get("batch", -1) < before:
            last = f"ends with batch {done['batch']} of this query" if done else "has no note of this query"
            return OptionError(
                f"the ledger '{self.name}' {last}, which has come to batch {origin.batch}: notes were deleted, or set "
                "back to an older state (then messages of the streams may be missing as well), or the query did not "
                "write exactly once or used another ledger until now. Spark has the batches before as complete, but "
                f"Penstock cannot tell which rows of batch {origin.batch} are stored already. If none are, or if "
                f"duplicates are acceptable, run this and start again: {begin}{origin.rules}"
            )
        return None

    def _leave_and_look(
        self, subject: str, note: Mapping[str, Any], query: str, ages: bool
    ) -> tuple[int | None, dict[str, Any]]:
        """Leave a note, and read which batch of the query was done last, in one round trip: the result of `_leave`, and
        the content of the note of that batch, empty without one.
        """
        last_request = self.calls.last_request(self.name, f"{self.name}.{query}.*.done")
        answer, last_reply = self.calls.connection.requests([_publish(subject, note, ages), last_request])
        last = self.calls.last_answer(last_reply)
        return self._left(subject, note, ages, answer), _parsed(last) if last is not None else {}

    def _leave(self, subject: str, note: Mapping[str, Any], ages: bool = False, created: bool = False) -> int | None:
        """Leave a note: its sequence, or None where the subject has one already. `created`: the ledger was just created
        for it.
        """
        [answer] = self.calls.connection.requests([_publish(subject, note, ages)])
        return self._left(subject, note, ages, answer, created)

    def _left(
        self, subject: str, note: Mapping[str, Any], ages: bool, answer: Frame, created: bool = False
    ) -> int | None:
        """The result of `_leave`, from the answer. Where the ledger does not exist, it is created, and the note is left
        again.
        """
        try:
            return self.calls.stored(subject, answer)
        except ApiError as error:
            if error.code == api.NO_LISTENER:
                if created:
                    self.check(None)
                    raise Disconnected(f"the ledger '{self.name}' has no leader at the moment") from None
                self._create()
                return self._leave(subject, note, ages, created=True)
            if error.code != api.STORE_FAILED:
                raise
            if "per subject" in str(error):
                return None
            raise ConnectError(
                f"the ledger '{self.name}' takes no note: {error}. Raise its limits, or those of the account; what "
                f"queries have left that will never run again can go: nats stream purge {self.name} --subject="
                f"'{self.name}.QUERY.>'"
            ) from None

    def _notes(self, subject: str) -> list[Stored]:
        """All notes on a subject, in order."""
        notes: list[Stored] = []
        sequence = 1
        while True:
            note = self.calls.first_from(self.name, sequence, (subject,))
            if note is None:
                return notes
            notes.append(note)
            sequence = note.sequence + 1

    def check(self, replicas: int | None) -> api.StreamInfo:
        """The info of the ledger, which is created where it does not exist. An OptionError where the stream allows two
        notes on a subject, or may lose notes.
        """
        info = self.calls.streams([self.name])[self.name]
        if info is None:
            self._create(replicas)
            info = self.calls.stream(self.name)
        if why := api.unfit_for_ledger(info):
            raise OptionError(
                f"stream '{self.name}' cannot be the ledger: it {why}. Change that, or name another one in the option "
                "'ledger': one that does not exist is made as it must be."
            )
        return info

    def _create(self, replicas: int | None = None) -> None:
        """Create the stream, with three replicas in a cluster where `replicas` is None, or one where that fails."""
        connection = self.calls.connection
        config = {
            "name": self.name,
            "subjects": [f"{self.name}.>"],
            "description": "what Penstock's queries have tried to write, so that nothing is written twice",
            "max_msgs_per_subject": 1,
            "discard": "new",
            "discard_new_per_subject": True,
            "num_replicas": replicas or (3 if connection.info.get("cluster") else 1),
            "allow_msg_ttl": connection.version() >= (2, 11),
        }
        try:
            self.calls.call(f"STREAM.CREATE.{self.name}", config)
        except (Denied, ApiError) as error:
            if isinstance(error, ApiError):
                if error.code == api.NAME_IN_USE:
                    return
                if replicas is None and config["num_replicas"] != 1:
                    self._create(1)
                    return
            raise OptionError(
                f"the ledger '{self.name}', which keeps exactly_once over restarts, cannot be made: {error} Let an "
                f"administrator make it, or allow $JS.API.STREAM.CREATE.{self.name}; or set ledger=none (exactly once "
                "within the stream's duplicate window) or delivery=at_least_once."
            ) from None


def _publish(subject: str, note: Mapping[str, Any], ages: bool) -> tuple[str, bytes] | tuple[str, bytes, bytes]:
    body = json.dumps(note).encode()
    return (subject, body, MONTH) if ages else (subject, body)


def _parsed(note: Stored) -> dict[str, Any]:
    """The content of a note; a ProtocolError where Penstock did not write it."""
    try:
        content: dict[str, Any] = {"batch": -1, "rows": {}, "digests": {}} | json.loads(note.body)
        are_counts = all(type(rows) is int for rows in content["rows"].values())
        if type(content["batch"]) is int and are_counts and isinstance(content["digests"], dict):
            return content
    except (ValueError, TypeError, AttributeError):
        pass
    raise ProtocolError(
        f"the note '{note.subject}' in the ledger is not what Penstock writes: {note.body[:80]!r}. Take it away with "
        "nats stream purge, and follow what the next error says."
    )
