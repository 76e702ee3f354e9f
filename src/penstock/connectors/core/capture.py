"""A stream that keeps what Core NATS would forget: found where there is one, made where there is none."""

from penstock.connectors.core.options import CoreOptions
from penstock.connectors.jetstream.calls import ApiError, Calls
from penstock.connectors.jetstream.options import JetStreamOptions
from penstock.connectors.nats.options import NatsOptions
from penstock.connectors.nats.pool import connect, keep
from penstock.connectors.nats.subjects import intersect
from penstock.contract import ReadOptions
from penstock.errors import OptionError


def captured(options: CoreOptions) -> JetStreamOptions:
    """The options to read the captured messages with; makes the stream if need be."""
    connection = connect(options)
    calls = Calls(connection, options)
    streams = _find(calls, options) or [_make(calls, options)]
    keep(connection)
    shared = {*NatsOptions.model_fields, *ReadOptions.model_fields}
    given = {name: getattr(options, name) for name in shared if name in options.model_fields_set}
    return JetStreamOptions(**given, stream=tuple(streams), subjects=options.subjects)


def _find(calls: Calls, options: CoreOptions) -> list[str]:
    """The streams that take all of the subjects together; none where one of the subjects is not taken whole."""
    found: dict[str, None] = {}
    for subject in options.subjects:
        infos = [info for info in calls.streams(calls.names(subject)).values() if info is not None]
        whole = [i.name for i in infos if any(intersect(text, subject) == subject for text in i.subjects)]
        if infos and not whole:
            raise OptionError(
                f"stream '{infos[0].name}' takes a part of '{subject}' ({', '.join(infos[0].subjects)}), and no other "
                "stream can take the rest. Read those subjects with format('jetstream'), or name other 'subjects'."
            )
        if not infos:
            return []
        found |= dict.fromkeys(whole)
    return list(found)


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
        raise OptionError(
            f"capture=true needs a stream on {', '.join(options.subjects)}, and '{name}' cannot be made: {error}. Name "
            "another one in 'captureStream', or make it yourself."
        ) from None
    return name
