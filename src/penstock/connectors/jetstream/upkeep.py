"""What a query leaves on the server: a durable that shows its position, and room where messages were kept for it.

Only interest streams depend on it: they forget what no consumer waits for, so there the durable must stand.
"""

import logging
from collections.abc import Mapping

from penstock.answers import field
from penstock.connectors.jetstream import api
from penstock.connectors.jetstream.admission import admit_position, admit_query
from penstock.connectors.jetstream.calls import ApiError, Calls
from penstock.connectors.jetstream.options import JetStreamOptions
from penstock.errors import DataLossError, Disconnected, OptionError
from penstock.offsets import Offsets

log = logging.getLogger("penstock")


class Upkeep:
    """Remembers what it told the server, so as not to tell it twice."""

    def __init__(self, options: JetStreamOptions):
        self.options, self.name, self.subjects = options, options.progress_consumer, options.subjects
        self._told: dict[str, int] = {}
        self._at: Offsets = {}
        self._held: dict[str, int] = {}  # streams that keep messages for us, and where they ended when we saw to it
        self._missed: dict[str, int] = {}  # streams that nobody kept messages of for a while, and where the query stood
        self._resumed: Mapping[str, str] = {}  # the streams of the checkpoint, with what was noted of them
        self.notes: dict[str, str] = {}  # of a work queue the filters, of an interest stream its durable's creation

    def resume(self, at: Offsets, notes: Mapping[str, str]) -> None:
        """The query goes on: these streams were held before."""
        self._resumed = {stream: notes.get(stream, "") for stream in at}

    def hold(self, calls: Calls, at: Offsets, streams: Mapping[str, api.StreamInfo]) -> None:
        """Make sure that streams which release messages keep those that the query still needs."""
        self._at = at
        for stream, position in at.items():
            info = streams.get(stream)
            if info is None or info.retention == "limits" or stream in self._held:
                continue
            admit_query(calls, self.options, info)
            if info.retention == "interest":
                self._stand(calls, info, self._resumed.get(stream))
            else:
                admit_position(calls, self.options, info, position.next, self._resumed.get(stream))
                self.notes[stream] = ",".join(sorted(self.subjects)) or ">"
            self._held[stream] = info.last

    def watch(self, calls: Calls, streams: Mapping[str, api.StreamInfo]) -> None:
        """Make sure of it again where messages came: somebody may have deleted the durable."""
        for stream, info in streams.items():
            if info.retention == "interest" and self._held.get(stream, info.last) != info.last:
                self._stand(calls, info, self.notes[stream])
                self._held[stream] = info.last
            if stream in self._missed:
                at = self._missed.pop(stream)
                self._lost(info.name, f"after {at - 1}, was deleted while the query read: some of them may be gone")

    def _stand(self, calls: Calls, info: api.StreamInfo, noted: str | None) -> None:
        """The durable stands, and did so since it was `noted`, or what was dropped meanwhile is loss. None: the query
        is new. Empty: a durable stood, but nobody noted which.
        """
        position = self._at[info.name]
        same = position.epoch == info.created  # of another life of the stream nothing can be missed
        at = position.next if same else info.first
        made = self._make(calls, info, at)
        created = field(calls.call(f"CONSUMER.INFO.{info.name}.{self.name}"), "created", str)
        self.notes[info.name] = created
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
        self._lost(info.name, f"for the query at {at}, was deleted: {gone}")

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

    def _make(self, calls: Calls, info: api.StreamInfo, at: int) -> bool:
        """Make the durable at a position; False where it exists. One of somebody else's is left alone."""
        assert self.name is not None
        try:
            there = calls.call(f"CONSUMER.INFO.{info.name}.{self.name}")
        except ApiError as error:
            if error.code != api.NO_CONSUMER:
                raise
        else:
            if field(there, "config", dict).get("description") != api.FOLLOWER:
                raise OptionError(
                    f"stream '{info.name}' has a consumer '{self.name}' that is not Penstock's, and moving it would "
                    "harm whoever uses it. Give progressConsumer another name."
                )
            return False
        holds = info.retention != "limits"
        body = api.follower(self.name, at, self.subjects, info.name, holds)
        calls.create(info.name, body, self.name)
        return True
