"""What a query leaves on the server: a durable that shows its position, and the deletion of messages that Spark has.

A stream with limits retention does not need the durable. The others release messages, and depend on it: an interest
stream deletes what no consumer waits for, and a work queue gives each message to one reader. There the durable must
exist and belong to this query (ownership.py). Knows the server's API; reads no messages and plans nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.clients.answers import field
from penstock.clients.jetstream import api
from penstock.clients.jetstream.calls import ApiError, Calls
from penstock.connectors.jetstream.admission import admit, admit_position, admit_query, admit_reader
from penstock.connectors.jetstream.options import JetStreamOptions
from penstock.connectors.jetstream.ownership import Durable, Note, Ownership
from penstock.errors import ConnectError, Disconnected, OptionError
from penstock.kit.loss import LossReport
from penstock.planning.positions import Offsets, Position


class Upkeep:
    """The durables of one run. Remembers what the server was told, and does not repeat it."""

    def __init__(self, options: JetStreamOptions, losses: LossReport):
        self.options, self.subjects, self.losses = options, options.subjects, losses
        self.name = options.progress_consumer or api.queue_reader(self.subjects)
        self._ownership = Ownership(self.name, losses)
        self._shown: dict[str, int] = {}  # the position that each durable shows, on streams that do not depend on it
        self._positions: Offsets = {}
        self._resumed: Mapping[str, Note | None] = {}  # the streams of the checkpoint, and their notes
        self._notes: dict[str, Note] = {}  # the streams that are held, and their notes for the checkpoint
        self._ends: dict[str, int] = {}  # their last sequences when the durable was last checked
        self._unproven: set[str] = set()  # streams whose durable is new: what they dropped before is not reported yet
        self._missed: dict[str, int] = {}  # streams that had no durable for a while, and the query's position then

    def resume(self, at: Offsets, notes: Mapping[str, str]) -> None:
        """Continue the query of a checkpoint. Streams that have a note were held before."""
        self._resumed = {stream: Note.of(notes.get(stream, "")) for stream in at}
        self._ownership.resume(self._resumed.values())

    @property
    def notes(self) -> dict[str, str]:
        """The notes for the checkpoint, by stream."""
        return {stream: " ".join(note) for stream, note in self._notes.items()}

    def owns(self, stream: str) -> bool:
        """Whether only this query may release messages at or after its position in the stream."""
        return stream in self._resumed or stream in self._notes

    def hold(self, calls: Calls, at: Offsets, streams: Mapping[str, api.StreamInfo]) -> None:
        """Make sure that streams which release messages keep those that the query at `at` needs, and only for it."""
        self._positions = dict(at)
        for stream in at:
            info = streams.get(stream)
            if info is None or info.retention == "limits":
                continue
            if stream in self._notes:
                self._ensure(calls, info)
            else:
                self._begin(calls, info, is_new=stream not in self._resumed)

    def watch(self, calls: Calls, streams: Mapping[str, api.StreamInfo]) -> None:
        """Check the durables of streams that have new messages: somebody may have deleted one, or edited a stream."""
        for stream, info in streams.items():
            if info.retention == "limits" or stream not in self._positions:
                continue
            if stream not in self._notes:
                self._begin(calls, info, is_new=False)
            elif self._ends[stream] != info.last:
                self._check(calls, info, self._notes[stream], is_new=False)
            if stream in self._missed:
                at = self._missed.pop(stream)
                self._report_loss(
                    info.name, f"after {at - 1}, was deleted while the query read: some of them may be gone"
                )

    def _begin(self, calls: Calls, info: api.StreamInfo, *, is_new: bool) -> None:
        """Hold a stream from now on. `is_new`: the query has read nothing of it, so it has missed nothing."""
        noted, position = self._resumed.get(info.name), self._positions[info.name]
        admit(calls, self.options, {info.name: info})
        admit_query(calls, self.options, info)
        if info.retention == "workqueue" and position.epoch == info.created and (noted or is_new):
            admit_position(calls, self.options, info, position.next, noted.filters if noted else None)
        self._check(calls, info, noted, is_new=is_new)

    def _check(self, calls: Calls, info: api.StreamInfo, noted: Note | None, *, is_new: bool) -> None:
        """Make sure that the durable exists. Where it is not the one that was `noted`, or has released messages, what
        an interest stream has dropped is a loss.
        """
        stream, position = info.name, self._positions[info.name]
        durable = self._ensure(calls, info, noted=noted, starts=stream not in self._notes)
        if durable.was_created:
            self._unproven.add(stream)
        is_same = durable.note.created == noted.created if noted else stream not in self._unproven
        # In a stream that was created again nothing can be missed, and a work queue keeps messages without a durable.
        if info.retention == "interest" and position.epoch == info.created:
            if is_new:
                self._refuse_released(calls, stream, position, durable.floor)
            elif not is_same or durable.has_released(position.next, info.first, bool(self.subjects)):
                self._report_dropped(calls, stream, position)
        self._notes[stream], self._ends[stream] = durable.note, info.last
        self._unproven.discard(stream)

    def _refuse_released(self, calls: Calls, stream: str, position: Position, floor: int) -> None:
        """Refuse a durable that was used before and is ahead of where a new query starts. It is not moved back: the
        server would never release the messages in between again.
        """
        if floor < position.next:
            return
        counts = calls.direct_counts(stream, ">", [position.next, floor + 1])
        if counts and counts[0] > counts[1]:
            raise OptionError(
                f"the consumer '{self.name}' of stream '{stream}' was used before and keeps nothing up to {floor}, but "
                f"the query would start at {position.next}, with {counts[0] - counts[1]:,} messages in between that "
                "only others keep. Give progressConsumer a new name, or start behind them."
            )

    def _report_dropped(self, calls: Calls, stream: str, position: Position) -> None:
        """Report a loss where messages since the position are gone. No consumer waited for them for a while."""
        since = calls.stream(stream).last + 1 - position.next
        kept = calls.direct_counts(stream, ">", [position.next])
        if kept is None:
            raise Disconnected(f"a mirror of stream '{stream}' answers in its place")
        if kept[0] >= since:
            return
        gone = f"{since - kept[0]:,} of the {since:,} messages since then are gone"
        if self.subjects:
            gone += f", and nobody can tell whether 'subjects' ({', '.join(self.subjects)}) matched them"
        self._report_loss(stream, f"for the query at {position.next}, was deleted, moved, or not there yet: {gone}")

    def _report_loss(self, stream: str, how: str) -> None:
        self.losses.report(
            f"stream '{stream}' has interest retention, and its consumer '{self.name}', which keeps messages {how}",
            "Let nobody delete it, and set failOnDataLoss=false to go on with what is left.",
        )

    def follow(self, calls: Calls, at: Offsets, streams: Mapping[str, api.StreamInfo]) -> None:
        """Show the position `at` of the query, on streams that do not depend on the durable."""
        for stream, position in at.items():
            info = streams.get(stream)
            if info is None or info.retention != "limits" or self._shown.get(stream) == position.next:
                continue
            self._move(calls, info, position.next)
            self._shown[stream] = position.next

    def release(self, calls: Calls, stream: str, position: Position) -> None:
        """Let the server delete the messages before a position, which Spark has committed. Does nothing where the
        position is not of this stream as it is now: then the messages before it were never read.
        """
        info = calls.streams([stream])[stream]
        if info is None or info.retention == "limits":
            return
        if position.epoch != info.created or position.next > info.last + 1:
            return  # the stream was created again
        if not info.numbers_hold(position.next, position.mark):
            stored = calls.times({stream: position.next - 1}).get(stream)
            if str(stored) != position.mark:
                return  # a server that lost its memory counts from 1 again
        if stream in self._positions and self._positions[stream].next < position.next:
            self._positions[stream] = position  # the query does not need what the durable releases now
        if info.retention == "interest":
            # The durable existed when the next batch was planned. Messages of that batch may be gone before it is read.
            if self._move(calls, info, position.next) and info.last >= position.next:
                self._missed[stream] = position.next
            return
        self._ensure(calls, info)
        for subject in self.subjects or (None,):
            request: dict[str, Any] = {"seq": position.next}
            if subject:
                request["filter"] = subject
            calls.call(f"STREAM.PURGE.{stream}", request)

    def _move(self, calls: Calls, info: api.StreamInfo, at: int) -> bool:
        """Move the durable to a position. True where it did not exist, and was created there."""
        if self._ensure(calls, info, at).was_created:
            return True
        if calls.connection.version() >= (2, 14):
            calls.call(f"CONSUMER.RESET.{info.name}.{self.name}", {"seq": max(1, at)})
        else:  # without RESET the stream is one that does not depend on the durable: create it again
            calls.call(f"CONSUMER.DELETE.{info.name}.{self.name}")
            self._ensure(calls, info, at)
        return False

    def _ensure(
        self,
        calls: Calls,
        info: api.StreamInfo,
        at: int | None = None,
        *,
        noted: Note | None = None,
        starts: bool = False,
    ) -> Durable:
        """The durable, with the subjects that the query reads. Created where it does not exist: at `at`, or at the
        query's position. A consumer that is not Penstock's is refused. A run that `starts` takes over the durable of
        another query.
        """
        try:
            answer = calls.call(f"CONSUMER.INFO.{info.name}.{self.name}")
        except ApiError as error:
            if error.code != api.NO_CONSUMER:
                raise
            return self._ownership.durable(self._create(calls, info, at), self.subjects, was_created=True)
        config = field(answer, "config", dict)
        if config.get("description") != api.FOLLOWER:
            raise OptionError(
                f"stream '{info.name}' has a consumer '{self.name}' that is not Penstock's, and moving it would harm "
                "whoever uses it. Give progressConsumer another name."
            )
        metadata = field(config, "metadata", dict, {})
        others = {name: value for name, value in config.items() if not name.startswith("filter_subject")}
        wanted = others | api.filter_config(self.subjects)
        if info.retention != "limits":
            self._ownership.claim(info.name, metadata, noted, starts=starts)
            wanted["metadata"] = metadata | self._ownership.metadata()
        if wanted != config:
            answer = calls.create(info.name, api.consumer(info.name, wanted), self.name)
        return self._ownership.durable(answer, self.subjects, was_created=False)

    def _create(self, calls: Calls, info: api.StreamInfo, at: int | None) -> dict[str, Any]:
        """Create the durable, and delete those that this query had under former names."""
        stream, is_queue = info.name, info.retention == "workqueue"
        if is_queue:
            at = None
        elif at is None:
            position = self._positions[stream]
            at = position.next if position.epoch == info.created else info.first
        config = api.follower(self.name, at, self.subjects)
        if info.retention == "limits":
            return calls.create(stream, api.consumer(stream, config), self.name)
        config["metadata"] = self._ownership.metadata()
        former = []
        for other in calls.consumers(stream):
            if field(other, "metadata", dict, {}).get(api.OWNER) == self._ownership.query:
                former.append(field(other, "durable_name", str))
            elif is_queue:
                admit_reader(self.subjects, info, other)
        if is_queue:  # before: a work queue allows no second consumer of the same messages
            self._delete(calls, stream, former)
        try:
            answer = calls.create(stream, api.consumer(stream, config), self.name)
        except ApiError as error:
            if error.code not in api.TOO_MANY_CONSUMERS:
                raise
            raise ConnectError(
                f"stream '{stream}' has no room for the consumer '{self.name}', by which the query keeps its messages: "
                f"{error}. Raise max_consumers of the stream or the account, or delete a consumer that nobody uses."
            ) from None
        if not is_queue:  # after: without a consumer, an interest stream drops messages
            self._delete(calls, stream, former)
        return answer

    @staticmethod
    def _delete(calls: Calls, stream: str, durables: Sequence[str]) -> None:
        for durable in durables:
            calls.call(f"CONSUMER.DELETE.{stream}.{durable}")
