"""Core NATS with `capture`: a stream keeps the messages, and is read in their place. An existing stream is used, or a
new one is created. Knows which streams have the subjects; must not know how they are read: format("jetstream") does.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

import pyarrow as pa

from penstock.clients.jetstream.api import StreamInfo
from penstock.clients.jetstream.calls import ApiError, Calls
from penstock.clients.nats.options import NatsOptions
from penstock.clients.nats.pool import connect, keep
from penstock.clients.nats.subjects import intersect
from penstock.connectors.nats.options import CoreOptions
from penstock.errors import OptionError, PenstockError
from penstock.kit.contract import Marking, Resuming, Source
from penstock.kit.loss import LossReport
from penstock.options import ReadOptions, alias
from penstock.planning.positions import Bounds, Offsets, Range
from penstock.spark.connector import Connector

# Options whose values are not what users write: milliseconds there, microseconds here.
MOMENTS = ("starting_timestamp", "ending_timestamp")


class Streams(Source, Marking, Resuming, Protocol):
    """The source of format("jetstream"), as far as it is used here."""

    def stream(self, name: str) -> StreamInfo:
        """The info of a stream, as of the last `bounds`."""


class CapturedSource:
    """A source of the streams that have the subjects. The driver finds or creates them at its first use. A task does
    not: its range names the stream.
    """

    def __init__(self, options: CoreOptions, jetstream: "type[Connector[Any, Any]]"):
        self.options, self.jetstream = options, jetstream
        self._source: Streams | None = None
        self._names: Sequence[str] = ()
        self.losses = LossReport(options)

    def check(self) -> None:
        """Refuse subjects that cannot be captured. Creates the stream where there is none."""
        self.bounds()

    def begin(self) -> None:
        """Begin on the streams."""
        self._streams().begin()

    def resume(self, at: Offsets, notes: Mapping[str, str]) -> None:
        """Read the streams of the checkpoint too, also those that no longer have the subjects."""
        before = self._streams()
        self._source = self._open(list(dict.fromkeys((*self._names, *at))))
        before.close()
        self._source.resume(at, notes)

    def notes(self, at: Offsets) -> Mapping[str, str]:
        """The notes of the streams."""
        return self._streams().notes(at)

    def bounds(self) -> Bounds:
        """Both ends of every stream. A loss where the streams no longer have all of the subjects."""
        source = self._streams()
        bounds = source.bounds()
        if bounds.keys() >= {*self._names}:  # a stream that is gone is reported with its position
            self._report_edited([source.stream(name) for name in bounds])
        return bounds

    def _report_edited(self, streams: Sequence[StreamInfo]) -> None:
        """Report a loss for each subject that no stream has any more: somebody has edited the streams."""
        for subject in self.options.subjects:
            if any(_takes(info, subject) for info in streams):
                continue
            taken = "; ".join(f"'{info.name}' takes {_described(info)}" for info in streams)
            loss = f"no stream keeps all of '{subject}' any more: {taken}. Messages that nobody keeps are lost"
            overlaps = any(intersect(text, subject) for info in streams for text in info.subjects)
            restart = "Start the query again, and it finds or makes a stream that keeps them."
            give_back = "Give the stream its subjects back, and start the query again."
            self.losses.report(loss, give_back if overlaps else restart, key=subject)

    def marks(self, at: Offsets) -> Mapping[str, str]:
        """The marks of the streams."""
        return self._streams().marks(at)

    def find(self, shard: str, timestamp: int) -> int:
        """The first position whose message was stored at or after `timestamp`, or the end."""
        return self._streams().find(shard, timestamp)

    def count(self, shard: str, positions: Sequence[int]) -> Sequence[int] | None:
        """How many messages are at or after each position, where the stream must count them; else None."""
        return self._streams().count(shard, positions)

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        """The rows of a range."""
        source = self._source or self._open([span.shard])
        self._source = source
        yield from source.read(span)

    def progress(self, at: Offsets) -> None:
        """Show the position on the streams."""
        self._streams().progress(at)

    def commit(self, end: Offsets) -> None:
        """Release messages on streams that keep them only until they are read."""
        self._streams().commit(end)

    def close(self) -> None:
        """Give the connections back."""
        if self._source is not None:
            self._source.close()

    def _streams(self) -> Streams:
        """The source of the streams, which are found or created at the first call."""
        if self._source is None:
            connection = connect(self.options)
            try:
                calls = Calls(connection, self.options)
                self._source = self._open(_find(calls, self.options) or [_create(calls, self.options)])
            except PenstockError:
                connection.close()
                raise
            keep(connection)
        return self._source

    def _open(self, streams: Sequence[str]) -> Streams:
        """A source of format("jetstream") for these streams, with the options that both formats have."""
        shared = {*NatsOptions.model_fields, *ReadOptions.model_fields}
        given = shared & self.options.model_fields_set
        moments = {name: getattr(self.options, name) for name in given if name in MOMENTS}
        set_by_user = {alias(name): getattr(self.options, name) for name in given if name not in MOMENTS}
        self._names = streams
        options = self.jetstream.parse(set_by_user | {"stream": tuple(streams), "subjects": self.options.subjects})
        return cast(Streams, self.jetstream.open_source(options.model_copy(update=moments)))


def _find(calls: Calls, options: CoreOptions) -> list[str]:
    """The names of the streams that have all of the subjects together; none where a subject has no stream. An
    OptionError where streams have only a part of a subject, or release messages.
    """
    names: dict[str, None] = {}
    for subject in options.subjects:
        infos = [info for info in calls.streams(calls.names(subject)).values() if info is not None]
        whole = [info.name for info in infos if _takes(info, subject)]
        if infos and not whole:
            raise OptionError(
                f"stream '{infos[0].name}' takes a part of '{subject}' ({', '.join(infos[0].subjects)}), and no other "
                "stream can take the rest. Read those subjects with format('jetstream'), or name other 'subjects'."
            )
        if not infos:
            return []
        for info in infos:
            if info.name in whole and info.retention != "limits":
                raise OptionError(
                    f"stream '{info.name}' takes '{subject}' and has {info.retention} retention: it releases what is "
                    "read, or what nobody waits for. If Spark is to read it all the same, use format('jetstream')."
                )
        names |= dict.fromkeys(whole)
    return list(names)


def _takes(info: StreamInfo, subject: str) -> bool:
    """Whether the stream stores all messages that `subject` matches, unchanged."""
    return info.takes and any(intersect(text, subject) == subject for text in info.subjects)


def _described(info: StreamInfo) -> str:
    """What the stream stores, in words."""
    return ", ".join(info.subjects) if info.takes else "nothing as it is published (sealed, a mirror, or transformed)"


def _create(calls: Calls, options: CoreOptions) -> str:
    """Create the stream that captures: its name. An OptionError where the server refuses it."""
    name = options.capture_stream
    try:
        calls.call(
            f"STREAM.CREATE.{name}",
            {
                "name": name,
                "subjects": list(options.subjects),
                "description": "keeps messages of Core NATS for Penstock",
                "max_age": int(options.capture_max_age * 1e9),
                "storage": options.capture_storage,
                "allow_direct": True,
            },
        )
    except ApiError as error:
        taken = {stream for subject in options.subjects for stream in calls.names(subject)}
        remedy = "Name another one in 'captureStream', or make it yourself"
        if taken:
            remedy = (
                f"The streams {', '.join(sorted(taken))} take a part of them: name other 'subjects', or read these "
                "with format('jetstream')"
            )
        raise OptionError(
            f"capture=true needs a stream on {', '.join(options.subjects)}, and '{name}' cannot be made: {error}. "
            f"{remedy}."
        ) from None
    return name
