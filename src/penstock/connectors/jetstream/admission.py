"""What cannot be read as asked is refused before the first row, with the way out."""

from collections.abc import Mapping, Sequence

from penstock.connectors.jetstream.api import StreamInfo
from penstock.connectors.jetstream.calls import Calls
from penstock.connectors.jetstream.options import JetStreamOptions
from penstock.connectors.nats.subjects import intersect
from penstock.errors import OptionError


def filters_for(info: StreamInfo, filters: Sequence[str]) -> tuple[str, ...]:
    """The filters that can match messages of this stream."""
    if info.derived or not info.subjects:
        return tuple(filters)
    return tuple(text for text in filters if any(intersect(text, subject) for subject in info.subjects))


def admit(
    calls: Calls, options: JetStreamOptions, streams: Mapping[str, StreamInfo], new: Mapping[str, StreamInfo]
) -> None:
    """Refuse filters that match nothing, and `new` streams that cannot be read."""
    for text in () if options.is_narrowed else options.subjects:
        if not any(filters_for(info, [text]) for info in streams.values()):
            listed = sorted({subject for info in streams.values() for subject in info.subjects})
            raise OptionError(f"no message can match '{text}': the stream takes {', '.join(listed)}.")
    for name, info in new.items():
        if options.subjects and not filters_for(info, options.subjects):
            raise OptionError(
                f"no filter in 'subjects' matches stream '{name}', which takes {', '.join(info.subjects)}."
            )
        if info.retention != "limits" or options.read_engine == "direct":
            _needs_direct(calls, info)
        if info.retention == "limits":
            continue
        if options.read_engine == "consumer":
            raise OptionError(
                f"stream '{name}' has {info.retention} retention: a consumer would remove what it reads. "
                "Leave readEngine at auto."
            )


def admit_query(calls: Calls, options: JetStreamOptions, info: StreamInfo) -> None:
    """Refuse a streaming query, which releases what it has read, where it cannot or must not release it."""
    if info.retention == "interest":
        _needs_follower(calls, options, info)
    elif info.retention == "workqueue":
        _needs_queue_alone(calls, options, info)


def _needs_direct(calls: Calls, info: StreamInfo) -> None:
    if calls.connection.version() < (2, 11):
        raise OptionError(
            f"reading stream '{info.name}' this way needs DIRECT.GET in batches, which came with nats-server 2.11; "
            f"this is {calls.connection.info.get('version')}."
        )
    if not info.allow_direct:
        raise OptionError(
            f"reading stream '{info.name}' this way needs DIRECT.GET, which the stream does not allow. Allow it: "
            f"nats stream edit {info.name} --allow-direct"
        )


def _needs_follower(calls: Calls, options: JetStreamOptions, info: StreamInfo) -> None:
    if not options.progress_consumer:
        raise OptionError(
            f"stream '{info.name}' has interest retention and forgets what no consumer waits for. Set progressConsumer "
            "to a name for this query, and it keeps messages until Spark has them."
        )
    if calls.connection.version() < (2, 14):
        raise OptionError(
            f"stream '{info.name}' has interest retention: releasing messages after a commit needs nats-server 2.14, "
            f"and this is {calls.connection.info.get('version')}."
        )


def _needs_queue_alone(calls: Calls, options: JetStreamOptions, info: StreamInfo) -> None:
    if info.deny_purge:
        raise OptionError(
            f"work-queue stream '{info.name}' denies purging, so what Spark has read could not be released. Make it "
            "without deny_purge, or read a mirror of it."
        )
    ours = filters_for(info, options.subjects) or (">",)
    for config in calls.consumers(info.name):
        taken = config.get("filter_subjects") or [config.get("filter_subject") or ">"]
        if any(intersect(a, b) for a in taken for b in ours):
            raise OptionError(
                f"work-queue stream '{info.name}' has the consumer '{config.get('durable_name') or config.get('name')}'"
                " for the same messages, and a work queue gives each message to one reader. Delete it, or read other "
                "'subjects'."
            )
