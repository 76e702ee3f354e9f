"""What a change does to messages, consumers and running Penstock queries, in plain sentences. Pure."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from penstock.clients.jetstream import api
from penstock.clients.nats import subjects as subject
from penstock.operate.declared import values
from penstock.operate.declared.configs import canonical, filters, normal
from penstock.operate.declared.fields import CONSUMER_FIELDS, STREAM_FIELDS
from penstock.operate.declared.model import Config, LiveConsumer, LiveStream

Changes = Mapping[str, tuple[Any, Any]]


def queries(stream: LiveStream) -> dict[str, str]:
    """Penstock's queries that have a durable on a stream, by the name of that durable."""
    found = {}
    for name, each in (stream.consumers or {}).items():
        owner = (each.config.get("metadata") or {}).get(api.OWNER)
        if owner or each.config.get("description") == api.FOLLOWER:
            found[name] = str(owner or name)
    return found


def of_update(stream: LiveStream, changes: Changes, after: Config, now: int) -> Iterator[str]:
    """What changes of a stream do, in place."""
    for name, (before, to) in _judged(changes, after).items():
        if (tell := _UPDATES.get(name)) is not None:
            yield from tell(stream, before, to, after, now)
    mine = queries(stream)
    if mine and (
        slower := [name for name in ("allow_direct", "allow_atomic", "allow_batched") if _is_off(changes, name)]
    ):
        words = " and ".join(f"'{name}'" for name in slower)
        yield f"Penstock's queries on it get slower without {words}: {listed(mine.values())}."


def deletes_messages(stream: LiveStream, changes: Changes, after: Config, now: int) -> bool:
    """Whether an update in place deletes messages at once."""
    refuses = after.get("discard") == "new"  # then what is too much stays
    names = {"max_age", "max_msgs_per_subject", "retention"} | (set() if refuses else {"max_msgs", "max_bytes"})
    judged = _judged(changes, after)
    return any(True for name in names & judged.keys() for _ in _UPDATES[name](stream, *judged[name], after, now))


def _judged(changes: Changes, after: Config) -> Changes:
    """The changes; where old messages go at a limit from now on, also the limits that stay as they are."""
    if changes.get("discard", ("", ""))[1] != "old":
        return changes
    same = {name: normal(STREAM_FIELDS[name], after.get(name)) for name in ("max_msgs", "max_bytes")}
    return {**{name: (value, value) for name, value in same.items()}, **changes}


def filters_delete_messages(stream: LiveStream, changes: Changes, retention: str) -> bool:
    """Whether other filters of a consumer delete messages at once: in a stream with this retention, those that no
    consumer wants any more.
    """
    if retention != "interest" or not stream.messages or "filter_subjects" not in changes:
        return False
    before, after = changes["filter_subjects"]
    wide = after or [">"]
    return any(all(subject.intersect(text, each) != text for each in wide) for text in before or [">"])


def _is_off(changes: Changes, name: str) -> bool:
    return name in changes and not changes[name][1]


def _fewer(stream: LiveStream, count: int, why: str) -> Iterator[str]:
    """The oldest `count` messages go: who has not read them?"""
    count = min(count, stream.messages)
    if count <= 0:
        return
    yield f"{why} deletes about {count:,} of {stream.messages:,} messages at once."
    span = max(1, stream.last - stream.first + 1)
    end = stream.first + round(
        count / stream.messages * span
    )  # sequences before this one go, if they are spread evenly
    owners = queries(stream)
    for name, each in (stream.consumers or {}).items():
        unread = min(end - max(stream.first, each.ack_floor + 1), count)
        if unread <= 0:
            continue
        some = "up to " if filters(each.config) or stream.messages < span else "about "
        who = f"Penstock's query '{owners[name]}' (consumer '{name}')" if name in owners else f"Consumer '{name}'"
        yield f"{who} has not acknowledged {some}{unread:,} of them: they are lost to it."


def _max_msgs(stream: LiveStream, before: int, after: int, config: Config, now: int) -> Iterator[str]:
    if 0 <= after < stream.messages:
        if config.get("discard") == "new":
            yield f"It has {stream.messages:,} messages, more than {after:,}: none goes, but new ones are refused."
        else:
            yield from _fewer(stream, stream.messages - after, f"max_msgs = {after:,}")


def _max_bytes(stream: LiveStream, before: int, after: int, config: Config, now: int) -> Iterator[str]:
    if 0 <= after < stream.size:
        if config.get("discard") == "new":
            yield f"It has {stream.size:,} bytes, more than {after:,}: nothing is deleted, but new ones are refused."
        else:
            mean = stream.size / max(1, stream.messages)
            yield from _fewer(stream, round((stream.size - after) / mean + 0.5), f"max_bytes = {after:,}")


def _max_age(stream: LiveStream, before: int, after: int, config: Config, now: int) -> Iterator[str]:
    oldest = now - after // 1000
    if after and stream.messages and stream.first_time < oldest:
        if stream.last_time <= oldest:
            old = stream.messages
        else:  # as if they had come evenly
            spread = (oldest - stream.first_time) / max(1, stream.last_time - stream.first_time)
            old = max(1, round(spread * stream.messages))
        yield from _fewer(stream, old, f"max_age = {values.duration(after)}")


def _per_subject(stream: LiveStream, before: int, after: int, config: Config, now: int) -> Iterator[str]:
    if after > 0 and (before < 0 or after < before) and stream.messages:
        surely = stream.messages - after * stream.subjects
        least = f": at least {surely:,} messages" if stream.subjects and surely > 0 else ""
        yield f"Subjects with more than {after:,} messages lose their oldest at once{least}."


def _max_msg_size(stream: LiveStream, before: int, after: int, config: Config, now: int) -> Iterator[str]:
    if after > 0:
        yield f"Larger messages than {after:,} bytes are refused from now on; those that are stored stay."


def _max_consumers(stream: LiveStream, before: int, after: int, config: Config, now: int) -> Iterator[str]:
    if 0 <= after < stream.consumer_count:
        have = stream.consumer_count
        yield f"It has {have} consumers already: they stay, but no new one can be made, not by queries either."


def _retention(stream: LiveStream, before: str, after: str, config: Config, now: int) -> Iterator[str]:
    if after == "interest" and stream.messages:
        if not stream.consumer_count:
            yield f"No consumer wants its {stream.messages:,} messages: with retention = 'interest' all of them go."
        else:
            yield "Messages that every consumer has acknowledged are deleted, and so are those that none wants."


def _discard(stream: LiveStream, before: str, after: str, config: Config, now: int) -> Iterator[str]:
    if after == "new":
        yield "At a limit, publishers get an error from now on; before, the oldest messages went."
    else:
        yield "At a limit, the oldest messages go from now on, read or not; before, publishers got an error."


def _window(stream: LiveStream, before: int, after: int, config: Config, now: int) -> Iterator[str]:
    if after < before:
        yield (
            f"A message that is published twice with one id is stored twice if more than {values.duration(after)} lie "
            "between: Spark queries that write here must be back by then."
        )


def _subjects(stream: LiveStream, before: list[str], after: list[str], config: Config, now: int) -> Iterator[str]:
    gone = [text for text in before if not any(subject.intersect(text, wide) == text for wide in after)]
    if gone:
        yield f"What is published on {listed(gone)} is no longer stored here, as far as no other subject matches it."
        if stream.messages:
            yield "Messages that are stored stay."


def _replicas(stream: LiveStream, before: int, after: int, config: Config, now: int) -> Iterator[str]:
    if after == 1:
        yield "With one replica, a lost disk is lost data, and a server that is away stops the stream."
    elif after > before:
        yield f"{after - before} more servers copy {stream.size:,} bytes in the background."


def _direct(stream: LiveStream, before: bool, after: bool, config: Config, now: int) -> Iterator[str]:
    if not after and config.get("retention") in ("interest", "workqueue"):
        yield f"Penstock's queries on it stop: they need 'allow_direct' with retention = '{config['retention']}'."


def _rename(stream: LiveStream, before: Any, after: Any, config: Config, now: int) -> Iterator[str]:
    yield "Messages that are stored keep their subjects; those of consumers and queries may not match new ones."


def _mirror(stream: LiveStream, before: Any, after: Any, config: Config, now: int) -> Iterator[str]:
    if before and not after:
        yield f"It no longer follows '{before.get('name')}': what comes there from now on does not come here."


def _sources(stream: LiveStream, before: list[Any], after: list[Any], config: Config, now: int) -> Iterator[str]:
    gone = [each["name"] for each in before if each.get("name") not in [one.get("name") for one in after]]
    if gone:
        yield f"It no longer takes messages of {listed(gone)}; those that it has stay."


def _sealed(stream: LiveStream, before: bool, after: bool, config: Config, now: int) -> Iterator[str]:
    yield "Nothing can be published to it or deleted any more, and that cannot be undone."


def _for_good(stream: LiveStream, before: bool, after: bool, config: Config, now: int) -> Iterator[str]:
    if after:
        yield "That cannot be switched off again."


def _purge(stream: LiveStream, before: bool, after: bool, config: Config, now: int) -> Iterator[str]:
    yield from _for_good(stream, before, after, config, now)
    if config.get("retention") == "workqueue":
        yield "Penstock's queries release what they have read of a work queue by purging: they stop."


def _first_seq(stream: LiveStream, before: int, after: int, config: Config, now: int) -> Iterator[str]:
    yield "It counts only when a stream is created: nothing changes but what the server shows."


def _compression(stream: LiveStream, before: str, after: str, config: Config, now: int) -> Iterator[str]:
    yield "What is stored is compressed, or not, as its files are written anew; reading stays the same."


_UPDATES: dict[str, Callable[[LiveStream, Any, Any, Config, int], Iterator[str]]] = {
    "max_msgs": _max_msgs, "max_bytes": _max_bytes, "max_age": _max_age, "max_msgs_per_subject": _per_subject,
    "max_msg_size": _max_msg_size, "max_consumers": _max_consumers, "retention": _retention, "discard": _discard,
    "duplicate_window": _window, "subjects": _subjects, "num_replicas": _replicas, "allow_direct": _direct,
    "subject_transform": _rename, "mirror": _mirror, "sources": _sources, "sealed": _sealed, "deny_purge": _purge,
    "deny_delete": _for_good, "allow_msg_ttl": _for_good, "allow_msg_schedules": _for_good, "first_seq": _first_seq,
    "compression": _compression,
}  # fmt: skip


def of_deletion(stream: LiveStream, again: set[str] | None) -> Iterator[str]:
    """What goes with a stream; `again`: the consumers that files declare, if the stream is created anew."""
    yield (
        f"It loses its {stream.messages:,} messages ({stream.size:,} bytes) for good."
        if stream.messages
        else "It is empty."
    )
    if again is not None:
        yield "What is published until it is there again is not stored."
    owners = queries(stream)
    for query in sorted(set(owners.values())):
        yield f"Penstock's query '{query}' reads it, and stops: its checkpoint is of the stream that is deleted."
    others = [name for name in stream.consumers or {} if name not in (again or ()) and name not in owners]
    if others:
        declared = " No file declares them, so they do not come back." if again is not None else ""
        yield f"Consumers {listed(others)} go with it.{declared}"
    if stream.name == api.LEDGER:
        yield "Penstock's sinks remember there what they have written: running queries may write rows twice."


def of_consumer_update(consumer: LiveConsumer, changes: Changes, stream: LiveStream, retention: str) -> Iterator[str]:
    """What changes of a consumer do, in place; `retention` is that of its stream by then."""
    if filters_delete_messages(stream, changes, retention):
        yield (
            f"With retention = 'interest', those of the stream's {stream.messages:,} messages that only its old "
            "filters match are deleted at once."
        )
    if "filter_subjects" in changes:
        yield (
            f"It goes on behind message {consumer.delivered:,}: older ones that the new filters match do not come, and "
            "those that wait for an acknowledgement may come again."
        )
    if "max_deliver" in changes and changes["max_deliver"][1] > 0 and consumer.ack_pending:
        yield f"Of {consumer.ack_pending:,} unacknowledged messages, those delivered so often do not come again."
    if "inactive_threshold" in changes and changes["inactive_threshold"][1]:
        unused = values.duration(changes["inactive_threshold"][1])
        yield f"Unused for {unused}, it is deleted, and forgets what it has consumed."
    if "deliver_subject" in changes:
        yield "Subscribers of the old subject get nothing more."
    if "pause_until" in changes:
        yield "It delivers nothing until then." if changes["pause_until"][1] else "It delivers again at once."
    if "mem_storage" in changes:
        yield "It counts only when a consumer is created: nothing changes but what the server shows."
    yield from _of_query(consumer, "changes")


def of_consumer_deletion(consumer: LiveConsumer, stream: LiveStream, after: Config | None) -> Iterator[str]:
    """What a consumer forgets; `after` is its new configuration, if it is created anew."""
    if after is None:
        yield f"It has acknowledged all up to message {consumer.ack_floor:,}, and {consumer.pending:,} wait for it."
        if stream.config.get("retention") in ("interest", "workqueue"):
            yield "Messages that only it wants are deleted, or wait for a new consumer."
    else:
        yield from _forgotten(consumer, stream, canonical(CONSUMER_FIELDS, after))
    yield from _of_query(consumer, "is deleted")


def _forgotten(consumer: LiveConsumer, stream: LiveStream, new: Config) -> Iterator[str]:
    floor, policy = consumer.ack_floor, new["deliver_policy"]
    waiting = consumer.pending + consumer.ack_pending
    yield f"It forgets what it has consumed: all up to message {floor:,} of {stream.last:,}."
    start = {"all": stream.first, "by_start_sequence": new["opt_start_seq"]}.get(policy)
    if start is not None:
        again = min(floor, stream.last) - max(start, stream.first) + 1
        some = "up to " if new["filter_subjects"] else "about "
        if again > 0 and stream.config.get("retention") != "workqueue":
            yield f"With deliver_policy = '{policy}' it gets {some}{again:,} messages again."
        if start > floor + 1 and waiting:
            yield f"With opt_start_seq = {start:,} it never gets what lies between {floor:,} and that."
    elif policy == "new" and waiting:
        yield f"With deliver_policy = 'new' it never gets the {waiting:,} messages that it has not acknowledged."
    elif waiting:
        yield f"With deliver_policy = '{policy}' it may skip some of {waiting:,} messages that it has not acknowledged."


def _of_query(consumer: LiveConsumer, what: str) -> Iterator[str]:
    owner = (consumer.config.get("metadata") or {}).get(api.OWNER)
    if owner or consumer.config.get("description") == api.FOLLOWER:
        query = owner or consumer.name
        yield f"It belongs to Penstock's query '{query}', which notices that it {what}: stop the query first."


def listed(names: Any) -> str:
    """Names with quotes; not more than ten."""
    found = list(names)
    more = f" and {len(found) - 10:,} more" if len(found) > 10 else ""
    return ", ".join(f"'{name}'" for name in found[:10]) + more
