"""Refuses streams, filters and positions that cannot be read as the options say, before the first row, with a remedy.
Knows options and what streams allow; reads no rows and changes nothing on the server.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from penstock.clients.jetstream.api import FOLLOWER, StreamInfo
from penstock.clients.jetstream.calls import Calls
from penstock.clients.jetstream.counting import before
from penstock.clients.nats.subjects import intersect
from penstock.connectors.jetstream.options import JetStreamOptions
from penstock.errors import OptionError


def listed(info: StreamInfo, filters: Sequence[str]) -> bool:
    """Whether one of the filters matches a subject that the stream lists now.

    A stream that was edited may also hold subjects that it listed before. So this may choose streams for a new query,
    but not decide what is read or released.
    """
    return info.derived or any(intersect(text, subject) for text in filters for subject in info.subjects or (">",))


def admit(calls: Calls, options: JetStreamOptions, streams: Mapping[str, StreamInfo]) -> None:
    """Refuse streams that cannot be read with this readEngine, or at all."""
    for name, info in streams.items():
        if info.retention != "limits" or options.read_engine == "direct":
            _needs_direct(calls, info)
        if info.retention != "limits" and options.read_engine == "consumer":
            raise OptionError(
                f"stream '{name}' has {info.retention} retention: a consumer would remove what it reads. "
                "Leave readEngine at auto."
            )


def admit_filters(calls: Calls, filters: Sequence[str], streams: Mapping[str, StreamInfo]) -> None:
    """Refuse the filters where none of them can match a message in the streams, stored or to come."""
    infos = list(streams.values())
    if infos and filters and not _may_hold(calls, infos, filters):
        _refuse(", ".join(filters), infos)


def admit_each_filter(calls: Calls, filters: Sequence[str], streams: Mapping[str, StreamInfo]) -> None:
    """Refuse a filter that can match no message, and a stream that no filter can match. For a new query."""
    infos = list(streams.values())
    for text in filters if infos else ():
        if not _may_hold(calls, infos, [text]):
            _refuse(text, infos)
    for info in infos if filters else ():
        if not _may_hold(calls, [info], filters):
            raise OptionError(
                f"no filter in 'subjects' matches stream '{info.name}', which takes {', '.join(info.subjects)}."
            )


def _may_hold(calls: Calls, infos: Sequence[StreamInfo], filters: Sequence[str]) -> bool:
    """Whether one of the filters matches a message in the streams, stored or to come."""
    if any(listed(info, filters) for info in infos):
        return True
    return any(calls.first_from(info.name, info.first, filters) is not None for info in infos)


def _refuse(filters: str, infos: Sequence[StreamInfo]) -> NoReturn:
    taken = sorted({subject for info in infos for subject in info.subjects})
    raise OptionError(
        f"no message can match '{filters}': the stream takes {', '.join(taken)}, and none is stored from before."
    )


def admit_query(calls: Calls, options: JetStreamOptions, info: StreamInfo) -> None:
    """Refuse a streaming query where it could not release what it has read, or would lose messages."""
    if info.retention == "interest":
        _needs_follower(calls, options, info)
    elif info.retention == "workqueue":
        _needs_purge(info)


def admit_position(calls: Calls, options: JetStreamOptions, info: StreamInfo, at: int, noted: str | None) -> None:
    """Refuse a position in a work queue with unread messages before it, which a commit would delete.

    `noted` are the filters with which the query has read the stream until now; None for a new query.
    """
    if options.purge_unread:
        return
    wanted = options.subjects or (">",)
    read_before = noted.split(",") if noted else []
    read = [both for a in wanted for b in read_before if (both := intersect(a, b))]
    unread = before(calls, info, wanted, at) - before(calls, info, read, at)
    if unread <= 0:
        return
    if noted is None:
        raise OptionError(
            f"the query would start at {at} of the work queue '{info.name}', and its first commit would delete the "
            f"{unread:,} messages before that, which nobody has read. Start at earliest, or set purgeUnread=true to "
            "let them go."
        )
    raise OptionError(
        f"the query read '{noted}' of the work queue '{info.name}' until now, and 'subjects' asks for more, of which "
        f"{unread:,} messages lie before its position {at}: its next commit would delete them unread. Go back to the "
        "subjects of before, start with a new checkpointLocation, or set purgeUnread=true to let them go."
    )


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
    if info.most_idle < float("inf"):
        raise OptionError(
            f"stream '{info.name}' has interest retention and deletes consumers that nobody pulls from for "
            f"{info.most_idle:g}s, which nobody does from a progressConsumer. Take consumer_limits.inactive_threshold "
            "off the stream, or read a mirror of it."
        )
    if calls.connection.version() < (2, 14):
        raise OptionError(
            f"stream '{info.name}' has interest retention: releasing messages after a commit needs nats-server 2.14, "
            f"and this is {calls.connection.info.get('version')}."
        )


def _needs_purge(info: StreamInfo) -> None:
    if info.deny_purge:
        raise OptionError(
            f"work-queue stream '{info.name}' denies purging, so what Spark has read could not be released. Make it "
            "without deny_purge, or read a mirror of it."
        )


def admit_reader(subjects: Sequence[str], info: StreamInfo, config: Mapping[str, Any]) -> None:
    """Refuse a work queue with another consumer, where that takes messages which the query reads. `config` is the
    consumer's.
    """
    taken = config.get("filter_subjects") or [config.get("filter_subject") or ">"]
    # A consumer without acknowledgements, such as a mirror's before nats-server 2.14, takes nothing away.
    if config.get("ack_policy") == "none" or not any(intersect(a, b) for a in taken for b in subjects or (">",)):
        return
    name = config.get("durable_name") or config.get("name")
    if re.match("JS_(MIRROR|SRC)_", str(name)):
        raise OptionError(
            f"work-queue stream '{info.name}' feeds another stream (its consumer '{name}'), which takes messages away "
            "as soon as it has them. Read that stream, or let it be fed by one that is no work queue."
        )
    whose = " of another Penstock query" if config.get("description") == FOLLOWER else ""
    raise OptionError(
        f"work-queue stream '{info.name}' has the consumer '{name}'{whose} for the same messages, and a work queue "
        f"gives each message to one reader. If nobody uses it, delete it: nats consumer rm {info.name} {name}; or read "
        "other 'subjects'."
    )
