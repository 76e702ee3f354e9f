"""What a query leaves on the server: a durable that shows its position, and room where messages were kept for it.

No row depends on any of this, except that a work queue or an interest stream keeps what is not released.
"""

from collections.abc import Mapping

from penstock.connectors.jetstream import api
from penstock.connectors.jetstream.admission import filters_for
from penstock.connectors.jetstream.calls import ApiError, Calls
from penstock.connectors.jetstream.options import JetStreamOptions
from penstock.offsets import Offsets


class Upkeep:
    """Remembers what it told the server, so as not to tell it twice."""

    def __init__(self, options: JetStreamOptions):
        self.name, self.subjects = options.progress_consumer, options.subjects
        self._told: dict[str, int] = {}

    def follow(self, calls: Calls, at: Offsets, streams: Mapping[str, api.StreamInfo]) -> None:
        """Show that the query stands at `at`. On an interest stream only make sure that the durable is there."""
        for stream, position in at.items():
            info = streams.get(stream)
            if info is None or info.retention == "workqueue" or self._told.get(stream) == position.next:
                continue
            if info.retention == "limits":
                self._move(calls, info, position.next)
            elif stream not in self._told:
                self._make(calls, info, position.next)
            self._told[stream] = position.next

    def release(self, calls: Calls, end: Offsets, streams: Mapping[str, api.StreamInfo]) -> None:
        """Let the server delete what lies before `end`, which Spark has for good."""
        for stream, position in end.items():
            info = streams.get(stream)
            if info is None or info.retention == "limits":
                continue
            if info.retention == "interest":
                self._move(calls, info, position.next)
                continue
            for text in filters_for(info, self.subjects) or (None,):
                calls.call(f"STREAM.PURGE.{stream}", {"seq": position.next} | ({"filter": text} if text else {}))

    def _move(self, calls: Calls, info: api.StreamInfo, at: int) -> None:
        made = self._make(calls, info, at)
        if made:
            return
        if calls.connection.version() >= (2, 14):
            calls.call(f"CONSUMER.RESET.{info.name}.{self.name}", {"seq": max(1, at)})
        else:  # before RESET, on a stream that does not depend on it: made anew
            calls.call(f"CONSUMER.DELETE.{info.name}.{self.name}")
            self._make(calls, info, at)

    def _make(self, calls: Calls, info: api.StreamInfo, at: int) -> bool:
        """Make the durable at a position; False where it exists."""
        assert self.name is not None
        try:
            calls.call(f"CONSUMER.INFO.{info.name}.{self.name}")
            return False
        except ApiError as error:
            if error.code != api.NO_CONSUMER:
                raise
        holds = info.retention != "limits"
        body = api.follower(self.name, at, filters_for(info, self.subjects), info.name, holds)
        calls.create(info.name, body, self.name)
        return True
