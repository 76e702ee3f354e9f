"""What a query leaves on the server: a durable that shows its position, and room where messages were kept for it.

Streams that release messages depend on the durable. An interest stream forgets what no consumer waits for, and a work
queue gives each message to one reader. So there it must stand, and be this query's: it carries a name of the query,
which the query keeps in its checkpoint. A new query takes it over, and the one before stops and deletes nothing more.
"""

import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from penstock.clients.answers import field
from penstock.clients.jetstream import api
from penstock.clients.jetstream.calls import ApiError, Calls
from penstock.connectors.jetstream.admission import admit, admit_position, admit_query, admit_reader
from penstock.connectors.jetstream.options import JetStreamOptions
from penstock.errors import ConnectError, Disconnected, OptionError
from penstock.kit.loss import LossReport
from penstock.planning.positions import Offsets, Position

log = logging.getLogger("penstock")


class Note(NamedTuple):
    """What the next run must know of a stream that releases messages."""

    owner: str  # the name of this query on the server
    filters: str  # what it reads of the stream, with commas
    created: str  # when the durable was made

    @classmethod
    def of(cls, text: str) -> Self | None:
        """From the checkpoint; None where that says something else, or nothing."""
        parts = text.split(" ")
        return cls(*parts) if len(parts) == len(cls._fields) else None


class Durable(NamedTuple):
    """The durable as it is now."""

    note: Note
    was_made: bool  # just now
    floor: int  # what lies up to here, it keeps no more

    def has_let_go(self, at: int, first: int, filtered: bool) -> bool:
        """Whether it keeps less than the query at `at` still needs. With filters, the server moves it up to the first
        message that is left when there is none before that it could keep: that is no sign.
        """
        return self.floor >= at and (self.floor >= first or not filtered)


class Upkeep:
    """Remembers what it told the server, so as not to tell it twice."""

    def __init__(self, options: JetStreamOptions, losses: LossReport):
        self.options, self.subjects, self.losses = options, options.subjects, losses
        self.name = options.progress_consumer or api.queue_reader(self.subjects)
        self._owner, self._run = uuid.uuid4().hex, uuid.uuid4().hex
        self._told: dict[str, int] = {}
        self._at: Offsets = {}
        self._resumed: Mapping[str, Note | None] = {}  # the streams of the checkpoint, with what was noted of them
        self._notes: dict[str, Note] = {}  # the streams that are held, with what is to be noted of them
        self._ends: dict[str, int] = {}  # where these ended when the durable was last looked at
        self._unproven: set[str] = set()  # streams whose durable was just made: what they dropped before is to be told
        self._missed: dict[str, int] = {}  # streams that nobody kept messages of for a while, and where the query stood

    def resume(self, at: Offsets, notes: Mapping[str, str]) -> None:
        """The query goes on: these streams were held before, as far as it is noted."""
        self._resumed = {stream: Note.of(notes.get(stream, "")) for stream in at}
        self._owner = next((note.owner for note in self._resumed.values() if note), self._owner)

    @property
    def notes(self) -> dict[str, str]:
        """For the checkpoint."""
        return {stream: " ".join(note) for stream, note in self._notes.items()}

    def owns(self, stream: str) -> bool:
        """Whether nobody else can have released messages of this stream behind the query's position."""
        return stream in self._resumed or stream in self._notes

    def hold(self, calls: Calls, at: Offsets, streams: Mapping[str, api.StreamInfo]) -> None:
        """Make sure that streams which release messages keep those that the query still needs, and for it alone."""
        self._at = dict(at)
        for stream in at:
            info = streams.get(stream)
            if info is None or info.retention == "limits":
                continue
            if stream in self._notes:
                self._make(calls, info)
            else:
                self._begin(calls, info, is_new=stream not in self._resumed)

    def watch(self, calls: Calls, streams: Mapping[str, api.StreamInfo]) -> None:
        """Make sure of it again where messages came: somebody may have deleted the durable, or edited the stream."""
        for stream, info in streams.items():
            if info.retention == "limits" or stream not in self._at:
                continue
            if stream not in self._notes:
                self._begin(calls, info, is_new=False)
            elif self._ends[stream] != info.last:
                self._stand(calls, info, self._notes[stream], is_new=False)
            if stream in self._missed:
                at = self._missed.pop(stream)
                self._lost(info.name, f"after {at - 1}, was deleted while the query read: some of them may be gone")

    def _begin(self, calls: Calls, info: api.StreamInfo, *, is_new: bool) -> None:
        """Hold a stream from now on. `is_new`: the query has read nothing of it, and missed nothing."""
        noted, position = self._resumed.get(info.name), self._at[info.name]
        admit(calls, self.options, {info.name: info})
        admit_query(calls, self.options, info)
        if info.retention == "workqueue" and position.epoch == info.created and (noted or is_new):
            admit_position(calls, self.options, info, position.next, noted.filters if noted else None)
        self._stand(calls, info, noted, is_new=is_new)

    def _stand(self, calls: Calls, info: api.StreamInfo, noted: Note | None, *, is_new: bool) -> None:
        """The durable stands, and did so since it was `noted`, or what an interest stream dropped meanwhile is loss."""
        stream, position = info.name, self._at[info.name]
        durable = self._make(calls, info, noted=noted, starts=stream not in self._notes)
        if durable.was_made:
            self._unproven.add(stream)
        stood = durable.note.created == noted.created if noted else stream not in self._unproven
        # Of another life of the stream nothing can be missed, and a work queue keeps messages for a reader to come.
        if info.retention == "interest" and position.epoch == info.created:
            if is_new:
                self._refuse_released(calls, stream, position, durable.floor)
            elif not stood or durable.has_let_go(position.next, info.first, bool(self.subjects)):
                self._refuse_dropped(calls, stream, position)
        self._notes[stream], self._ends[stream] = durable.note, info.last
        self._unproven.discard(stream)

    def _refuse_released(self, calls: Calls, stream: str, position: Position, floor: int) -> None:
        """A durable that somebody used before may stand behind where a new query starts. It is not moved back: the
        server would never release again what lies between.
        """
        counts = calls.direct_counts(stream, ">", [position.next, floor + 1]) if floor >= position.next else [0, 0]
        if counts and counts[0] > counts[1]:
            raise OptionError(
                f"the consumer '{self.name}' of stream '{stream}' was used before and keeps nothing up to {floor}, but "
                f"the query would start at {position.next}, with {counts[0] - counts[1]:,} messages in between that "
                "only others keep. Give progressConsumer a new name, or start behind them."
            )

    def _refuse_dropped(self, calls: Calls, stream: str, position: Position) -> None:
        """Nobody waited for messages from a position on, for a while. Are they there all the same?"""
        since = calls.stream(stream).last + 1 - position.next
        kept = calls.direct_counts(stream, ">", [position.next])
        if kept is None:
            raise Disconnected(f"a mirror of stream '{stream}' answers in its place")
        if kept[0] >= since:
            return
        gone = f"{since - kept[0]:,} of the {since:,} messages since then are gone"
        if self.subjects:
            gone += f", and nobody can tell whether 'subjects' ({', '.join(self.subjects)}) matched them"
        self._lost(stream, f"for the query at {position.next}, was deleted, moved, or not there yet: {gone}")

    def _lost(self, stream: str, how: str) -> None:
        self.losses.report(
            f"stream '{stream}' has interest retention, and its consumer '{self.name}', which keeps messages {how}",
            "Let nobody delete it, and set failOnDataLoss=false to go on with what is left.",
        )

    def follow(self, calls: Calls, at: Offsets, streams: Mapping[str, api.StreamInfo]) -> None:
        """Show that the query stands at `at`, on streams that do not depend on it."""
        for stream, position in at.items():
            info = streams.get(stream)
            if info is None or info.retention != "limits" or self._told.get(stream) == position.next:
                continue
            self._move(calls, info, position.next)
            self._told[stream] = position.next

    def release(self, calls: Calls, stream: str, position: Position) -> None:
        """Let the server delete what lies before a position, which Spark has for good."""
        info = calls.streams([stream])[stream]
        if info is None or info.retention == "limits":
            return
        if position.epoch != info.created or position.next > info.last + 1:
            return  # of another life of the stream: what lies before it in this one was never read
        if not info.numbers_hold(position.next, position.mark):
            stored = calls.times({stream: position.next - 1}).get(stream)
            if str(stored) != position.mark:
                return  # the same: a server that lost its memory counts from 1 again
        if stream in self._at and self._at[stream].next < position.next:
            self._at[stream] = position  # what the durable keeps no more from now on, is read
        if info.retention == "interest":
            # It stood when the next batch was planned, and what it kept may be gone before that is read.
            if self._move(calls, info, position.next) and info.last >= position.next:
                self._missed[stream] = position.next
            return
        self._make(calls, info)
        for text in self.subjects or (None,):
            calls.call(f"STREAM.PURGE.{stream}", {"seq": position.next} | ({"filter": text} if text else {}))

    def _move(self, calls: Calls, info: api.StreamInfo, at: int) -> bool:
        """Move the durable to a position; True where it was not there, and was made."""
        if self._make(calls, info, at).was_made:
            return True
        if calls.connection.version() >= (2, 14):
            calls.call(f"CONSUMER.RESET.{info.name}.{self.name}", {"seq": max(1, at)})
        else:  # before RESET, on a stream that does not depend on it: made anew
            calls.call(f"CONSUMER.DELETE.{info.name}.{self.name}")
            self._make(calls, info, at)
        return False

    def _make(
        self,
        calls: Calls,
        info: api.StreamInfo,
        at: int | None = None,
        *,
        noted: Note | None = None,
        starts: bool = False,
    ) -> Durable:
        """The durable for what the query reads, made where there is none: at a position, or where the query stands.
        One of somebody else's is left alone, and one of another query is taken over by a run that `starts`.
        """
        try:
            durable = calls.call(f"CONSUMER.INFO.{info.name}.{self.name}")
        except ApiError as error:
            if error.code != api.NO_CONSUMER:
                raise
            return self._durable(self._create(calls, info, at), was_made=True)
        config = field(durable, "config", dict)
        if config.get("description") != api.FOLLOWER:
            raise OptionError(
                f"stream '{info.name}' has a consumer '{self.name}' that is not Penstock's, and moving it would harm "
                "whoever uses it. Give progressConsumer another name."
            )
        metadata = field(config, "metadata", dict, {})
        others = {name: value for name, value in config.items() if not name.startswith("filter_subject")}
        wanted = others | api.filter_config(self.subjects)
        if info.retention != "limits":
            self._claim(info, metadata, noted, starts=starts)
            wanted["metadata"] = metadata | self._claimed()
        if wanted != config:
            durable = calls.create(info.name, api.consumer(info.name, wanted), self.name)
        return self._durable(durable, was_made=False)

    def _claimed(self) -> dict[str, str]:
        """What the metadata of a durable say of this run."""
        return {api.OWNER: self._owner, api.RUN: self._run}

    def _claim(self, info: api.StreamInfo, metadata: Mapping[str, Any], noted: Note | None, *, starts: bool) -> None:
        """Whether the durable is this run's, or becomes it as the run `starts`. What another query has released since
        it was `noted` may be loss.
        """
        owner, run = metadata.get(api.OWNER, ""), metadata.get(api.RUN, "")
        if not owner or (owner, run) == (self._owner, self._run) or (starts and owner == self._owner):
            return
        what, other = f"the consumer '{self.name}' of stream '{info.name}'", "another query"
        if not starts:
            who = "another run of this query" if owner == self._owner else other
            raise OptionError(
                f"{who} has taken over {what}, and two would delete each other's messages. Let one of them read it, or "
                "give each its own 'subjects' and progressConsumer."
            )
        if noted is not None:
            self.losses.report(
                f"{other} has used {what} since this one did, and may have released messages that it has not read",
                "Start with a new checkpointLocation, or set failOnDataLoss=false to go on with what is left; and let "
                "only one of them run.",
            )
        log.warning("this query takes over %s from another one, which stops if it still runs", what)

    def _create(self, calls: Calls, info: api.StreamInfo, at: int | None) -> dict[str, Any]:
        """Make the durable, and leave none of this query's under a former name."""
        stream, queue = info.name, info.retention == "workqueue"
        if at is None and not queue:
            position = self._at[stream]
            at = position.next if position.epoch == info.created else info.first
        body = api.follower(self.name, None if queue else at, self.subjects)
        if info.retention == "limits":
            return calls.create(stream, api.consumer(stream, body), self.name)
        body["metadata"] = self._claimed()
        former = []
        for config in calls.consumers(stream):
            if field(config, "metadata", dict, {}).get(api.OWNER) == self._owner:
                former.append(field(config, "durable_name", str))
            elif queue:
                admit_reader(self.subjects, info, config)
        if queue:  # which lets no second one stand beside it; an interest stream must not be without one
            self._delete(calls, stream, former)
        try:
            durable = calls.create(stream, api.consumer(stream, body), self.name)
        except ApiError as error:
            if error.code not in api.TOO_MANY_CONSUMERS:
                raise
            raise ConnectError(
                f"stream '{stream}' has no room for the consumer '{self.name}', by which the query keeps its messages: "
                f"{error}. Raise max_consumers of the stream or the account, or delete a consumer that nobody uses."
            ) from None
        if not queue:
            self._delete(calls, stream, former)
        return durable

    @staticmethod
    def _delete(calls: Calls, stream: str, durables: Sequence[str]) -> None:
        for durable in durables:
            calls.call(f"CONSUMER.DELETE.{stream}.{durable}")

    def _durable(self, answer: dict[str, Any], *, was_made: bool) -> Durable:
        note = Note(self._owner, ",".join(sorted(self.subjects)) or ">", field(answer, "created", str))
        return Durable(note, was_made, field(field(answer, "ack_floor", dict, {}), "stream_seq", int, 0))
