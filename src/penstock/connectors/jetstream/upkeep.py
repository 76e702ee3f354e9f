"""What a query leaves on the server: a durable that shows its position, and room where messages were kept for it.

Streams that release messages depend on the durable. An interest stream forgets what no consumer waits for, and a work
queue gives each message to one reader. So there it must stand, and be this query's: it carries a name of the query,
which the query keeps in its checkpoint. A new query takes it over, and the one before stops and deletes nothing more.
"""

import logging
import uuid
from collections.abc import Mapping

from penstock.answers import field
from penstock.connectors.jetstream import api
from penstock.connectors.jetstream.admission import admit_position, admit_query, admit_reader
from penstock.connectors.jetstream.calls import ApiError, Calls
from penstock.connectors.jetstream.options import JetStreamOptions
from penstock.errors import DataLossError, Disconnected, OptionError
from penstock.offsets import Offsets

log = logging.getLogger("penstock")


class Upkeep:
    """Remembers what it told the server, so as not to tell it twice."""

    def __init__(self, options: JetStreamOptions):
        self.options, self.subjects = options, options.subjects
        self.name = options.progress_consumer or api.queue_reader(self.subjects)
        self._owner = uuid.uuid4().hex
        self._told: dict[str, int] = {}
        self._at: Offsets = {}
        self._held: dict[str, int] = {}  # streams that keep messages for us, and where they ended when we saw to it
        self._missed: dict[str, int] = {}  # streams that nobody kept messages of for a while, and where the query stood
        self._resumed: Mapping[str, str] = {}  # the streams of the checkpoint, with what was noted of them
        self._noted: dict[str, str] = {}  # of a work queue the filters, of an interest stream its durable's creation

    def resume(self, at: Offsets, notes: Mapping[str, str]) -> None:
        """The query goes on: these streams were held before."""
        self._resumed = {stream: notes.get(stream, "").partition(" ")[2] for stream in at}
        self._owner = next((note.partition(" ")[0] for note in notes.values()), self._owner)

    @property
    def notes(self) -> dict[str, str]:
        """The name of the query, and what the next run must know of each stream."""
        return {stream: f"{self._owner} {noted}" for stream, noted in self._noted.items()}

    def owns(self, stream: str) -> bool:
        """Whether nobody else can have released messages of this stream behind the query's position."""
        return stream in self._resumed or stream in self._held

    def hold(self, calls: Calls, at: Offsets, streams: Mapping[str, api.StreamInfo]) -> None:
        """Make sure that streams which release messages keep those that the query still needs."""
        self._at = at
        for stream in at:
            info = streams.get(stream)
            if info is not None and info.retention != "limits" and stream not in self._held:
                self._begin(calls, info, self._resumed.get(stream))

    def watch(self, calls: Calls, streams: Mapping[str, api.StreamInfo]) -> None:
        """Make sure of it again where messages came: somebody may have deleted the durable, or edited the stream."""
        for stream, info in streams.items():
            if info.retention == "limits" or stream not in self._at:
                continue
            if stream not in self._held:
                self._begin(calls, info, "")
            elif self._held[stream] != info.last:
                self._stand(calls, info, self._noted[stream])
                self._held[stream] = info.last
            if stream in self._missed:
                at = self._missed.pop(stream)
                self._lost(info.name, f"after {at - 1}, was deleted while the query read: some of them may be gone")

    def _begin(self, calls: Calls, info: api.StreamInfo, noted: str | None) -> None:
        """Hold a stream from now on. None: the query is new. Empty: it is not, but nobody noted anything."""
        admit_query(calls, self.options, info)
        position = self._at[info.name]
        if info.retention == "workqueue" and position.epoch == info.created:
            admit_position(calls, self.options, info, position.next, noted)
        self._stand(calls, info, noted)
        self._held[info.name] = info.last

    def _stand(self, calls: Calls, info: api.StreamInfo, noted: str | None) -> None:
        """The durable stands, and did so since it was `noted`, or what an interest stream dropped meanwhile is loss."""
        position = self._at[info.name]
        same = position.epoch == info.created  # of another life of the stream nothing can be missed
        at = position.next if same else info.first
        made = self._make(calls, info, at, is_new=noted is None)
        if info.retention == "workqueue":  # which keeps messages for a reader that is still to come
            self._noted[info.name] = ",".join(sorted(self.subjects)) or ">"
            return
        created = field(calls.call(f"CONSUMER.INFO.{info.name}.{self.name}"), "created", str)
        self._noted[info.name] = created
        stood = noted == created or (noted == "" and not made)
        if noted is None or stood or not same:
            return
        since = calls.stream(info.name).last + 1 - at
        kept = calls.direct_counts(info.name, ">", [at])
        if kept is None:
            raise Disconnected(f"a mirror of stream '{info.name}' answers in its place")
        if kept[0] >= since:
            return
        gone = f"{since - kept[0]:,} of the {since:,} messages since then are gone"
        if self.subjects:
            gone += f", and nobody can tell whether 'subjects' ({', '.join(self.subjects)}) matched them"
        self._lost(info.name, f"for the query at {at}, was deleted, or was not there yet: {gone}")

    def _lost(self, stream: str, how: str) -> None:
        loss = f"stream '{stream}' has interest retention, and its consumer '{self.name}', which keeps messages {how}"
        if self.options.fail_on_data_loss:
            raise DataLossError(
                f"{loss}. Let nobody delete it, and set failOnDataLoss=false to go on with what is left."
            )
        log.warning("failOnDataLoss=false, going on: %s", loss)

    def follow(self, calls: Calls, at: Offsets, streams: Mapping[str, api.StreamInfo]) -> None:
        """Show that the query stands at `at`, on streams that do not depend on it."""
        for stream, position in at.items():
            info = streams.get(stream)
            if info is None or info.retention != "limits" or self._told.get(stream) == position.next:
                continue
            self._move(calls, info, position.next)
            self._told[stream] = position.next

    def release(self, calls: Calls, end: Offsets) -> None:
        """Let the server delete what lies before `end`, which Spark has for good."""
        for stream, info in calls.streams(list(end)).items():
            position = end[stream]
            if info is None or info.retention == "limits":
                continue
            if position.epoch != info.created or position.next > info.last + 1:
                continue  # of another life of the stream: what lies before it in this one was never read
            if not info.numbers_hold(position.next, position.mark):
                stored = calls.times({stream: position.next - 1}).get(stream)
                if str(stored) != position.mark:
                    continue  # the same: a server that lost its memory counts from 1 again
            if info.retention == "interest":
                # It stood when the next batch was planned, and what it kept may be gone before that is read.
                if self._move(calls, info, position.next) and info.last >= position.next:
                    self._missed[stream] = position.next
                continue
            self._make(calls, info, position.next)
            for text in self.subjects or (None,):
                calls.call(f"STREAM.PURGE.{stream}", {"seq": position.next} | ({"filter": text} if text else {}))

    def _move(self, calls: Calls, info: api.StreamInfo, at: int) -> bool:
        """Move the durable to a position; True where it was not there, and was made."""
        if self._make(calls, info, at):
            return True
        if calls.connection.version() >= (2, 14):
            calls.call(f"CONSUMER.RESET.{info.name}.{self.name}", {"seq": max(1, at)})
        else:  # before RESET, on a stream that does not depend on it: made anew
            calls.call(f"CONSUMER.DELETE.{info.name}.{self.name}")
            self._make(calls, info, at)
        return False

    def _make(self, calls: Calls, info: api.StreamInfo, at: int, is_new: bool = False) -> bool:
        """Make the durable at a position; False where it exists. One of somebody else's is left alone, and one of
        another query on a stream that depends on it is taken over by a new query only.
        """
        name, queue = self.name, info.retention == "workqueue"
        try:
            config = field(calls.call(f"CONSUMER.INFO.{info.name}.{name}"), "config", dict)
        except ApiError as error:
            if error.code != api.NO_CONSUMER:
                raise
            if queue:
                self._leave_former(calls, info)
            body = api.follower(name, None if queue else at, self.subjects, self._owner)
            calls.create(info.name, api.consumer(info.name, body), name)
            return True
        if config.get("description") != api.FOLLOWER:
            raise OptionError(
                f"stream '{info.name}' has a consumer '{name}' that is not Penstock's, and moving it would harm "
                "whoever uses it. Give progressConsumer another name."
            )
        metadata = field(config, "metadata", dict, {})
        owner = metadata.get(api.OWNER)
        if info.retention == "limits" or owner == self._owner:
            return False
        if owner and not is_new:
            raise OptionError(
                f"another query has taken over the consumer '{name}' of stream '{info.name}', and two queries would "
                f"delete each other's messages. Let one of them read it, or give each its own 'subjects'"
                f"{'' if queue else ' and progressConsumer'}. To go on with this one, stop the other, and run: "
                f"nats consumer rm {info.name} {name}"
            )
        if owner:
            log.warning(
                "a new query takes over the consumer '%s' of stream '%s'; the one before it stops, if it still runs",
                name, info.name,
            )  # fmt: skip
        config = config | {"metadata": metadata | {api.OWNER: self._owner}}
        calls.create(info.name, api.consumer(info.name, config), name)
        return False

    def _leave_former(self, calls: Calls, info: api.StreamInfo) -> None:
        """Refuse a work queue with a reader for the same messages, unless it is this query's, under a former name."""
        for config in calls.consumers(info.name):
            if field(config, "metadata", dict, {}).get(api.OWNER) == self._owner:
                calls.call(f"CONSUMER.DELETE.{info.name}.{config.get('durable_name')}")
            else:
                admit_reader(self.subjects, info, config)
