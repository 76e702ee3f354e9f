"""Who has tried to write what: a small stream in which each attempt of a task leaves a note before its first row.

A note has a subject of its own, <ledger>.<query>.<batch>.<partition>.<attempt>, and the stream refuses a second message
on any subject: so the note of the first attempt is left once, for ever, and whoever finds it knows that rows may be
there, and since when. When a batch is done, also an empty one, the driver leaves a note that says so in their place: a
batch that does not find the note of the one before it knows that the ledger has lost notes.
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

# How long the notes of one `df.write` stay where nobody takes them away. No task of it is retried after that.
MONTH = b"NATS/1.0\r\nNats-TTL: 720h\r\n\r\n"


@dataclass(frozen=True)
class Claim:
    """What an attempt knows when it begins."""

    attempt: int  # 0: nobody has tried before
    since: float  # the monotonic clock: no row of this task was written before
    at: Mapping[str, int]  # the last sequence of streams then, as far as known; rows of this task lie behind it
    lives: Mapping[str, str]  # who led these streams then, and since when
    done: int | None = None  # the rows of this task, where its batch was done before


class Ledger:
    """The ledger on one connection."""

    def __init__(self, calls: Calls, name: str):
        self.calls, self.name = calls, name

    def claim(self, origin: Origin, last: Mapping[str, int], lives: Mapping[str, str], ages: bool = False) -> Claim:
        """Leave a note, which goes away by itself if it `ages`. `last` and `lives` may be old: where to begin looking
        for rows, should it come to that, and whom to trust.
        """
        subject, note = self._subject(origin), {"last": dict(last), "lives": dict(lives)}
        sent = time.monotonic()
        mine, done = self._leave_and_look(f"{subject}.0", note, origin.query, ages)
        if why := self._refused(origin, done):
            if mine is not None:  # nothing is written: whoever comes next shall not look for it
                with suppress(PenstockError):
                    self._purge(f"{subject}.0")
            raise why
        rows = int(done["rows"].get(str(origin.partition), 0)) if done.get("batch") == origin.batch else None
        if mine is not None:
            return Claim(0, sent, last, lives, rows)
        notes = self._notes(f"{subject}.*")
        while mine is None:
            sent = time.monotonic()
            number = 1 + max((int(note.subject.rpartition(".")[2]) for note in notes), default=-1)
            mine = self._leave(f"{subject}.{number}", note, ages)
            notes = self._notes(f"{subject}.*")
        first, own = notes[0], next(note for note in notes if note.sequence == mine)
        age = (own.time - first.time) / 1e6  # both by the clock of the ledger's own server
        then = _parsed(first)
        return Claim(len(notes) - 1, sent - age, then.get("last", {}), then.get("lives", {}), rows)

    def alone(self, origin: Origin) -> bool:
        """Whether nobody else has tried this task, up to now."""
        return len(self._notes(f"{self._subject(origin)}.*")) == 1

    def began(self, origin: Origin) -> int:
        """When the first attempt left its note, by the server's clock, in microseconds."""
        notes = self._notes(f"{self._subject(origin)}.*")
        if not notes:  # taken away when the batch was done
            raise origin.overtaken(origin.batch)
        return notes[0].time

    def missing(self, query: str, batch: int, rows: Mapping[int, int]) -> set[int]:
        """The partitions of a batch that somebody has begun to write, or has written, and that have no rows now."""
        asked = {"subjects_filter": f"{self.name}.{query}.{batch}.*.0"}
        try:
            state = field(self.calls.call(f"STREAM.INFO.{self.name}", asked), "state", dict)
            subjects = field(state, "subjects", dict, {})
        except ApiError as error:
            if error.code != api.NO_STREAM:
                raise
            return set()
        tried = {int(subject.split(".")[-2]) for subject in subjects}
        if tried <= rows.keys():
            return set()
        done = self._done(query, batch)  # then those that have tried since have written nothing
        return (tried if done is None else set(done)) - rows.keys()

    def done(self, query: str, batch: int, rows: Mapping[int, int]) -> set[int]:
        """All rows of a batch are written: note it, and forget all before. Where that was noted before, the partitions
        that had rows then and have none now.
        """
        note = {"batch": batch, "rows": {str(partition): count for partition, count in rows.items()}}
        sequence = self._leave(f"{self.name}.{query}.{batch}.done", note)
        if sequence is not None:
            self._purge(f"{self.name}.{query}.>", sequence)
            return set()
        return set(self._done(query, batch) or ()) - rows.keys()

    def _done(self, query: str, batch: int) -> dict[int, int] | None:
        """The rows of each partition of a batch that is done."""
        note = self.calls.last_of(self.name, f"{self.name}.{query}.{batch}.done")
        return None if note is None else {int(partition): rows for partition, rows in _parsed(note)["rows"].items()}

    def forget(self, query: str) -> None:
        """Nobody will ask for this query again."""
        self._purge(f"{self.name}.{query}.>")

    def _purge(self, subject: str, before: int | None = None) -> None:
        self.calls.call(f"STREAM.PURGE.{self.name}", {"filter": subject} | ({"seq": before} if before else {}))

    def _subject(self, origin: Origin) -> str:
        return f"{self.name}.{origin.query}.{origin.batch}.{origin.partition}"

    def _refused(self, origin: Origin, done: Mapping[str, Any]) -> PenstockError | None:
        """Why this task must not be written, given the last batch of its query that is known to be done."""
        query, before = f"{self.name}.{origin.query}", origin.batch - 1
        begin = f'nats pub {query}.{before}.done \'{{"batch": {before}, "rows": {{}}}}\''
        if done.get("batch", -1) > origin.batch:
            return ConnectError(
                f"{origin} comes too late: batch {done['batch']} of this query is written already. If two drivers run "
                "on one checkpoint, stop the older one; if the checkpoint was set back on purpose, forget what was "
                f"written: nats stream purge {self.name} --subject='{query}.>' && {begin}"
            )
        if done.get("batch", -1) < before:
            last = f"ends with batch {done['batch']} of this query" if done else "has no note of this query"
            return OptionError(
                f"the ledger '{self.name}' {last}, which has come to batch {origin.batch}: notes were deleted, or set "
                "back to an older state (then messages of the streams may be missing as well), or the query did not "
                "write exactly once or used another ledger until now. Spark has the batches before as complete, but "
                f"Penstock cannot tell which rows of batch {origin.batch} are stored already. If none are, or if "
                f"duplicates are acceptable, run this and start again: {begin}"
            )
        return None

    def _leave_and_look(
        self, subject: str, note: Mapping[str, Any], query: str, ages: bool
    ) -> tuple[int | None, dict[str, Any]]:
        """Leave a note, and see which batch of the query was done last: in one round trip."""
        ask = self.calls.last_request(self.name, f"{self.name}.{query}.*.done")
        noted, found = self.calls.connection.requests([_publish(subject, note, ages), ask])
        last = self.calls.last_answer(found)
        return self._left(subject, note, ages, noted), _parsed(last) if last is not None else {}

    def _leave(self, subject: str, note: Mapping[str, Any], ages: bool = False, made: bool = False) -> int | None:
        """The sequence of a new note; None where the subject has one."""
        [answer] = self.calls.connection.requests([_publish(subject, note, ages)])
        return self._left(subject, note, ages, answer, made)

    def _left(self, subject: str, note: Mapping[str, Any], ages: bool, answer: Frame, made: bool = False) -> int | None:
        try:
            return self.calls.stored(subject, answer)
        except ApiError as error:
            if error.code == api.NO_LISTENER:
                if made:
                    self.check(None)
                    raise Disconnected(f"the ledger '{self.name}' has no leader at the moment") from None
                self._make()
                return self._leave(subject, note, ages, made=True)
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
        found: list[Stored] = []
        while True:
            note = self.calls.first_from(self.name, found[-1].sequence + 1 if found else 1, (subject,))
            if note is None:
                return found
            found.append(note)

    def check(self, replicas: int | None) -> api.StreamInfo:
        """The stream, made where there is none; one that would take a second note or forget one is refused."""
        info = self.calls.streams([self.name])[self.name]
        if info is None:
            self._make(replicas)
            info = self.calls.stream(self.name)
        if why := _unfit(info):
            raise OptionError(
                f"stream '{self.name}' cannot be the ledger: it {why}. Change that, or name another one in the option "
                "'ledger': one that does not exist is made as it must be."
            )
        return info

    def _make(self, replicas: int | None = None) -> None:
        """As many replicas as the streams that are written have, or three where these are not known yet."""
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
                    self._make(1)
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
    try:
        content: dict[str, Any] = {"batch": -1, "rows": {}} | json.loads(note.body)
        if type(content["batch"]) is int and all(type(rows) is int for rows in content["rows"].values()):
            return content
    except (ValueError, TypeError, AttributeError):
        pass
    raise ProtocolError(
        f"the note '{note.subject}' in the ledger is not what Penstock writes: {note.body[:80]!r}. Take it away with "
        "nats stream purge, and follow what the next error says."
    )


def _unfit(info: api.StreamInfo) -> str:
    """Why a stream cannot be the ledger."""
    if f"{info.name}.>" not in info.subjects:
        return f"does not take '{info.name}.>'"
    if not info.one_per_subject:
        return "takes several messages on a subject"
    if info.max_age:
        return f"forgets notes after {info.max_age:g}s (max_age)"
    if info.retention != "limits":
        return f"has {info.retention} retention, and forgets what is consumed"
    if info.derived:
        return "is fed by other streams, or changes subjects"
    return "is kept in memory, and forgets all when its server restarts" if info.in_memory else ""
