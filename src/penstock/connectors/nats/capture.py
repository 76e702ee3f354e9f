"""A stream that keeps what Core NATS would forget: found where there is one, made where there is none."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, cast

import pyarrow as pa

from penstock.clients.jetstream.api import StreamInfo
from penstock.clients.jetstream.calls import ApiError, Calls
from penstock.clients.nats.options import NatsOptions
from penstock.clients.nats.pool import connect, keep
from penstock.clients.nats.subjects import intersect
from penstock.connectors import connector
from penstock.connectors.nats.options import CoreOptions
from penstock.errors import OptionError, PenstockError
from penstock.kit.contract import Marking, Resuming, Source
from penstock.kit.loss import LossReport
from penstock.options import ReadOptions, alias
from penstock.planning.positions import Bounds, Offsets, Range

log = logging.getLogger("penstock")


class Streams(Source, Marking, Resuming, Protocol):
    """What format("jetstream") reads streams with."""

    def stream(self, name: str) -> StreamInfo:
        """How a stream was at the last look."""


class CapturedSource:
    """The streams that keep the subjects. The driver finds or makes them at its first question; a task needs neither,
    as its range names the stream.
    """

    def __init__(self, options: CoreOptions):
        self.options = options
        self._source: Streams | None = None
        self._names: Sequence[str] = ()
        self.losses = LossReport(options)

    def check(self) -> None:
        """Refuse what cannot be captured."""
        self.bounds()

    def begin(self) -> None:
        """As the streams do."""
        self._found().begin()

    def resume(self, at: Offsets, notes: Mapping[str, str]) -> None:
        """What was captured is read on, also by a stream that no longer takes the subjects."""
        before = self._found()
        self._source = self._reading(list(dict.fromkeys((*self._names, *at))))
        before.close()
        self._source.resume(at, notes)

    def notes(self) -> Mapping[str, str]:
        """As the streams do."""
        return self._found().notes()

    def bounds(self) -> Bounds:
        """Both ends of every stream. Together they must still take all of the subjects: what they do not, is lost."""
        source = self._found()
        bounds = source.bounds()
        if bounds.keys() >= {*self._names}:  # that one is gone is told better by its position
            self._refuse_edited([source.stream(name) for name in bounds])
        return bounds

    def _refuse_edited(self, streams: Sequence[StreamInfo]) -> None:
        """Somebody may have edited the streams since they were found."""
        for subject in self.options.subjects:
            if any(_takes(info, subject) for info in streams):
                continue
            taken = "; ".join(f"'{info.name}' takes {_said(info)}" for info in streams)
            loss = f"no stream keeps all of '{subject}' any more: {taken}. Messages that nobody keeps are lost"
            part = any(intersect(text, subject) for info in streams for text in info.subjects)
            restart = "Start the query again, and it finds or makes a stream that keeps them."
            give_back = "Give the stream its subjects back, and start the query again."
            self.losses.report(loss, give_back if part else restart, key=subject)

    def marks(self, at: Offsets) -> Mapping[str, str]:
        """As the streams do."""
        return self._found().marks(at)

    def find(self, shard: str, timestamp: int) -> int:
        """By the time at which a stream stored it."""
        return self._found().find(shard, timestamp)

    def count(self, shard: str, positions: Sequence[int]) -> Sequence[int] | None:
        """As the stream counts."""
        return self._found().count(shard, positions)

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        """The rows of a range."""
        source = self._source or self._reading([span.shard])
        self._source = source
        yield from source.read(span)

    def progress(self, at: Offsets) -> None:
        """Nothing to show."""
        self._found().progress(at)

    def commit(self, end: Offsets) -> None:
        """Release what a stream keeps for us, if it does."""
        self._found().commit(end)

    def close(self) -> None:
        """Let go of connections."""
        if self._source is not None:
            self._source.close()

    def _found(self) -> Streams:
        if self._source is None:
            connection = connect(self.options)
            try:
                calls = Calls(connection, self.options)
                self._source = self._reading(_find(calls, self.options) or [_make(calls, self.options)])
            except PenstockError:
                connection.close()
                raise
            keep(connection)
        return self._source

    def _reading(self, streams: Sequence[str]) -> Streams:
        """They are read as by format("jetstream"), with the options that both have."""
        jetstream = connector("jetstream")
        shared = {*NatsOptions.model_fields, *ReadOptions.model_fields}
        given = {alias(name): getattr(self.options, name) for name in shared & self.options.model_fields_set}
        self._names = streams
        options = jetstream.parse(given | {"stream": tuple(streams), "subjects": self.options.subjects})
        return cast(Streams, jetstream.open_source(options))


def _find(calls: Calls, options: CoreOptions) -> list[str]:
    """The streams that take all of the subjects together; none where one of the subjects is not taken whole."""
    found: dict[str, None] = {}
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
        found |= dict.fromkeys(whole)
    return list(found)


def _takes(info: StreamInfo, subject: str) -> bool:
    return info.takes and any(intersect(text, subject) == subject for text in info.subjects)


def _said(info: StreamInfo) -> str:
    return ", ".join(info.subjects) if info.takes else "nothing as it is published (sealed, a mirror, or transformed)"


def _make(calls: Calls, options: CoreOptions) -> str:
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
        remedy = (
            f"The streams {', '.join(sorted(taken))} take a part of them: name other 'subjects', or read these with "
            "format('jetstream')"
            if taken
            else "Name another one in 'captureStream', or make it yourself"
        )
        raise OptionError(
            f"capture=true needs a stream on {', '.join(options.subjects)}, and '{name}' cannot be made: {error}. "
            f"{remedy}."
        ) from None
    return name
