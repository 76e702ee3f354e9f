"""What the server would refuse of one stream or consumer, told before anything is sent: combinations of fields, fields
of newer servers. Pure; what is wrong between streams is in between.py.

The list follows what the server checks (2.10 to 2.15). What it refuses besides is shown when it does.
"""

from collections.abc import Iterator, Mapping

from penstock.clients.nats import subjects as subject
from penstock.operate.declared import buckets, values
from penstock.operate.declared.configs import canonical, filters, normal
from penstock.operate.declared.fields import CONSUMER_FIELDS, STREAM_FIELDS, Field, Version
from penstock.operate.declared.model import Config, Live, LiveStream

_HUNDRED_MS = 100_000_000
_SECOND = 1_000_000_000
MOST_REPLICAS = 5
_MOST_DESCRIPTION, _MOST_METADATA = 4096, 128 * 1024


def newer(fields: Mapping[str, Field], declared: Config, version: Version, server: str) -> Iterator[str]:
    """Declared fields and choices that this server does not know. At their defaults they say nothing new."""
    for name, value in declared.items():
        field = fields.get(name)
        if field is None or normal(field, value) == normal(field, None):
            continue
        if version < field.since:
            yield f"'{name}' needs server {_dotted(field.since)}; this is {server}."
        elif isinstance(value, str) and version < field.newer.get(value, (0, 0)):
            yield f"{name} = '{value}' needs server {_dotted(field.newer[value])}; this is {server}."
        for part in field.parts:
            tables = value if isinstance(value, list) else [value or {}]
            if version < part.since and any(each.get(part.name) for each in tables):
                yield f"'{part.name}' in '{name}' needs server {_dotted(part.since)}; this is {server}."


def known(fields: Mapping[str, Field], declared: Config, version: Version) -> Config:
    """The declared fields that this server knows: others are at their defaults, or `newer` has told of them."""
    return {name: value for name, value in declared.items() if name not in fields or fields[name].since <= version}


def _dotted(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


def stream(config: Config, live: Live, *, is_new: bool) -> Iterator[str]:
    """What the server refuses of a stream's whole configuration, in sentences."""
    c = canonical(STREAM_FIELDS, config)
    yield from _described(c)
    yield from _subjects(c)
    yield from _times(c, config)
    yield from _flags(c, is_new=is_new)
    yield from _origins(c, config)
    yield from _cluster(c, live)


def _described(c: Config) -> Iterator[str]:
    if len((c["description"] or "").encode()) > _MOST_DESCRIPTION:
        yield f"'description' has more than {_MOST_DESCRIPTION} bytes."
    if sum(len(k.encode()) + len(v.encode()) for k, v in c["metadata"].items()) > _MOST_METADATA:
        yield f"'metadata' has more than {_MOST_METADATA} bytes."


def _subjects(c: Config) -> Iterator[str]:
    for text in c["subjects"]:
        if why := subject.problem(text, wildcards=True):
            yield f"the subject '{text}' {why}."
        elif text == ">" and not (c["no_ack"] and c["num_replicas"] == 1):
            yield "the subject '>' takes everything, also JetStream's own: that needs no_ack = true and one replica."
        elif not c["no_ack"] and any(
            subject.intersect(text, own) and not _within(text, allowed)
            for own, allowed in (("$JS.>", "$JS.EVENT.>"), ("$JSC.>", ""), ("$NRG.>", ""), ("$SYS.>", "$SYS.ACCOUNT.>"))
        ):
            yield f"the subject '{text}' has subjects of the server itself: that needs no_ack = true."
    if pair := subject.overlapping(c["subjects"]):
        yield f"the subjects '{pair[0]}' and '{pair[1]}' overlap: a message would be stored twice."
    to = (c["republish"] or {}).get("dest")
    if to is not None and any(subject.intersect(to, text) for text in c["subjects"]):
        yield f"'republish' publishes on '{to}', which the stream stores itself: that would never end."


def _within(text: str, wider: str) -> bool:
    return bool(wider) and subject.intersect(text, wider) == text


def _times(c: Config, config: Config) -> Iterator[str]:
    age, window = c["max_age"], c["duplicate_window"]
    copies = c["mirror"] or c["sources"]
    if 0 < age < _HUNDRED_MS:
        yield f"'max_age' is {values.duration(age)}: at least 100ms, or 0."
    if config.get("duplicate_window") == 0 and not copies:
        yield "'duplicate_window' cannot be 0 in a stream of its own: the server would make 2m of it. At least 100ms."
    elif 0 < window < _HUNDRED_MS:
        yield f"'duplicate_window' is {values.duration(window)}: at least 100ms."
    if age and "duplicate_window" in config and window > age:
        yield (
            f"'duplicate_window' is {values.duration(window)}, which is longer than max_age, {values.duration(age)}: "
            "ids of messages cannot be remembered longer than the messages."
        )
    if 0 < c["subject_delete_marker_ttl"] < _SECOND:
        yield "'subject_delete_marker_ttl' must be at least 1s, or 0."


def _flags(c: Config, *, is_new: bool) -> Iterator[str]:
    if c["discard_new_per_subject"] and (c["discard"] != "new" or c["max_msgs_per_subject"] < 1):
        yield "'discard_new_per_subject' needs discard = 'new' and a max_msgs_per_subject."
    if c["deny_purge"] and c["allow_rollup_hdrs"] and not c["sealed"]:
        yield "'allow_rollup_hdrs' purges, and 'deny_purge' forbids that."
    if c["sealed"] and is_new:
        yield "a new stream cannot be sealed: nothing could ever come in. Create it, fill it, then seal it."
    if c["subject_delete_marker_ttl"]:
        for name in ("allow_msg_ttl", "allow_rollup_hdrs"):
            if not c[name]:
                yield f"'subject_delete_marker_ttl' needs {name} = true."
        if c["mirror"]:
            yield "'subject_delete_marker_ttl' is not for mirrors: markers would be messages that the origin lacks."
    if c["allow_msg_counter"]:
        for wrong, words in (
            (c["discard"] == "new", "discard = 'new'"), (c["allow_msg_ttl"], "'allow_msg_ttl'"),
            (c["allow_msg_schedules"], "'allow_msg_schedules'"), (c["retention"] != "limits", "this 'retention'"),
        ):  # fmt: skip
            if wrong:
                yield f"'allow_msg_counter' does not go with {words}."
    if c["allow_msg_schedules"]:
        if c["discard"] == "new":
            yield "'allow_msg_schedules' does not go with discard = 'new'."
        if not c["allow_rollup_hdrs"]:
            yield "'allow_msg_schedules' needs allow_rollup_hdrs = true."
        if c["sources"]:
            yield "'allow_msg_schedules' does not go with 'sources'."
    if c["persist_mode"] == "async":
        for wrong, words in (
            (c["storage"] != "file", "memory"), (c["num_replicas"] > 1, "replicas"),
            (c["allow_atomic"], "'allow_atomic'"),
        ):  # fmt: skip
            if wrong:
                yield f"persist_mode = 'async' does not go with {words}."


def _origins(c: Config, config: Config) -> Iterator[str]:
    if c["mirror"]:
        for name in (
            "sources",
            "first_seq",
            "allow_atomic",
            "allow_batched",
            "allow_msg_counter",
            "allow_msg_schedules",
        ):
            if c[name]:
                yield f"'{name}' does not go with 'mirror': a mirror has what its origin has."
        if config.get("subjects"):
            yield "'subjects' does not go with 'mirror': a mirror has what its origin has."
    for origin in [*([c["mirror"]] if c["mirror"] else []), *c["sources"]]:
        name = origin.get("name", "")
        if origin.get("filter_subject") and origin.get("subject_transforms"):
            yield f"of '{name}': 'filter_subject' or 'subject_transforms', not both."
        if origin.get("consumer") and {"opt_start_seq", "opt_start_time", "filter_subject"} & origin.keys():
            yield f"of '{name}': with 'consumer', the consumer says where to start and what to copy."
        if pair := subject.overlapping(each.get("src") or ">" for each in origin.get("subject_transforms", ())):
            yield f"of '{name}': 'subject_transforms' has '{pair[0]}' and '{pair[1]}', which overlap."
    if len(c["sources"]) != len({str(sorted(each.items(), key=str)) for each in c["sources"]}):
        yield "'sources' has the same source twice."


def _cluster(c: Config, live: Live) -> Iterator[str]:
    replicas = c["num_replicas"]
    if replicas > MOST_REPLICAS:
        yield f"'num_replicas' is {replicas}: at most {MOST_REPLICAS}."
    elif live.is_clustered is False and replicas > 1:
        yield f"'num_replicas' is {replicas}, but this server is no part of a cluster: it can only be 1."


def few_servers(config: Config, live: Live) -> Iterator[str]:
    """More replicas than servers, as far as can be seen: several servers may share one address."""
    replicas = normal(STREAM_FIELDS["num_replicas"], config.get("num_replicas"))
    if live.servers is not None and live.servers < replicas <= MOST_REPLICAS:
        yield f"The cluster seems to have {live.servers} servers: the server refuses {replicas} replicas then."


def consumer(config: Config, stream: Config, declared: Config) -> Iterator[str]:
    """What the server refuses of a consumer's whole configuration; `declared`: the fields that a file says."""
    c, s = canonical(CONSUMER_FIELDS, config), canonical(STREAM_FIELDS, stream)
    yield from _described(c)
    yield from _starts(c)
    yield from (_push(c, s, config) if c["deliver_subject"] else _pull(c, s, declared))
    for text in c["filter_subjects"]:
        if why := subject.problem(text, wildcards=True):
            yield f"the filter '{text}' {why}."
    inner = [(a, b) for a in c["filter_subjects"] for b in c["filter_subjects"] if a != b and _within(a, b)]
    if inner or len(set(c["filter_subjects"])) < len(c["filter_subjects"]):
        a, b = inner[0] if inner else (c["filter_subjects"][0],) * 2
        yield f"the filter '{a}' is a part of '{b}': leave one of both out."
    yield from _acks(c, s, config, declared)
    replicas = c["num_replicas"]
    if replicas > s["num_replicas"]:
        yield f"'num_replicas' is {replicas}, but the stream has {s['num_replicas']}."
    elif replicas and replicas != s["num_replicas"] and s["retention"] != "limits":
        yield f"'num_replicas' must be that of the stream, {s['num_replicas']}, as its retention is {s['retention']}."
    yield from _priorities(c)


def _starts(c: Config) -> Iterator[str]:
    policy = c["deliver_policy"]
    for name, wanted in (("opt_start_seq", "by_start_sequence"), ("opt_start_time", "by_start_time")):
        if policy == wanted and not c[name]:
            yield f"deliver_policy = '{policy}' needs '{name}'."
        elif policy != wanted and c[name]:
            yield f"'{name}' needs deliver_policy = '{wanted}', but it is '{policy}'."
    if policy == "last_per_subject" and not c["filter_subjects"]:
        yield "deliver_policy = 'last_per_subject' needs a filter; '>' is one."


def _push(c: Config, s: Config, config: Config) -> Iterator[str]:
    to = c["deliver_subject"]
    if config.get("max_waiting"):
        yield "'max_waiting' is for pull consumers, and 'deliver_subject' makes this a push consumer."
    if c["ack_policy"] == "none" and config.get("max_ack_pending", 0) > 0:
        yield "'max_ack_pending' needs an 'ack_policy': a push consumer without acknowledgements waits for none."
    if why := subject.problem(to, wildcards=False):
        yield f"'deliver_subject' is '{to}', which {why}."
    elif any(subject.intersect(to, text) for text in s["subjects"]):
        yield f"'deliver_subject' is '{to}', which the stream stores itself: that would never end."
    if c["flow_control"] and not c["idle_heartbeat"]:
        yield "'flow_control' needs 'idle_heartbeat'."
    if 0 < c["idle_heartbeat"] < _HUNDRED_MS:
        yield "'idle_heartbeat' must be at least 100ms."
    if c["priority_policy"] != "none":
        yield "'priority_policy' is for pull consumers, and 'deliver_subject' makes this a push consumer."


def _pull(c: Config, s: Config, declared: Config) -> Iterator[str]:
    for name in ("flow_control", "idle_heartbeat", "rate_limit_bps"):
        if c[name]:
            yield f"'{name}' is for push consumers: it needs 'deliver_subject'."
    if declared.get("max_waiting") == 0:
        yield "'max_waiting' cannot be 0 in a pull consumer: the server would make 512 of it."


def _acks(c: Config, s: Config, config: Config, declared: Config) -> Iterator[str]:
    backoff = c["backoff"]
    if backoff and "ack_wait" in declared and c["ack_wait"] != backoff[0]:
        yield (
            f"'ack_wait' is {values.duration(c['ack_wait'])}, but with 'backoff' the server takes the first of it, "
            f"{values.duration(backoff[0])}."
        )
    if backoff and 0 < c["max_deliver"] < len(backoff):
        yield f"'backoff' has {len(backoff)} waits, but 'max_deliver' is {c['max_deliver']}."
    if declared.get("max_ack_pending") == 0 and c["ack_policy"] != "none":
        yield "'max_ack_pending' cannot be 0: the server would take its default. -1 is no limit."
    if s["retention"] == "workqueue" and c["ack_policy"] not in ("explicit", "flow_control"):
        yield "a consumer of a work queue must acknowledge each message: ack_policy = 'explicit'."
    if s["retention"] == "workqueue" and c["deliver_policy"] != "all":
        yield "a consumer of a work queue gets all of it: deliver_policy = 'all'."
    limits = s["consumer_limits"] or {}
    if limits.get("inactive_threshold") and declared.get("inactive_threshold") == 0:
        yield "'inactive_threshold' cannot be 0 here: the server would take that of the stream's consumer_limits."
    if limits.get("max_ack_pending") and c["deliver_subject"] and c["ack_policy"] == "none":
        yield "a push consumer without acknowledgements does not go with max_ack_pending in consumer_limits."
    for name in ("max_ack_pending", "inactive_threshold"):
        most = limits.get(name, 0)
        if most and config.get(name, 0) > most:
            yield f"'{name}' is more than the stream's consumer_limits allow."
    if c["ack_policy"] == "flow_control" and not c["deliver_subject"]:
        yield "ack_policy = 'flow_control' is for push consumers: it needs 'deliver_subject'."
    freq = str(c["sample_freq"] or "0").removesuffix("%")
    if not freq.isdigit():
        yield f"'sample_freq' is '{c['sample_freq']}', which is no percentage."


def _priorities(c: Config) -> Iterator[str]:
    if c["priority_policy"] == "none":
        for name in ("priority_groups", "priority_timeout"):
            if c[name]:
                yield f"'{name}' needs a 'priority_policy'."
    elif not c["priority_groups"]:
        yield f"priority_policy = '{c['priority_policy']}' needs 'priority_groups'."


def idle_filters(config: Config, stream: Config) -> Iterator[str]:
    """Filters that match nothing of the stream, which the server takes. A stream that copies or renames may hold
    subjects that it does not list.
    """
    s = canonical(STREAM_FIELDS, stream)
    if s["mirror"] or s["sources"] or s["subject_transform"]:
        return
    for text in filters(config):
        if not any(subject.intersect(text, own) for own in s["subjects"]):
            yield f"The filter '{text}' matches no subject of the stream, which has {', '.join(s['subjects'])}."


def queue(stream: Config, consumers: Mapping[str, Config]) -> Iterator[tuple[str, str]]:
    """In a work queue no message may have two consumers: pairs that would, each with a sentence."""
    if canonical(STREAM_FIELDS, stream)["retention"] != "workqueue":
        return
    names = sorted(name for name, each in consumers.items() if not (each.get("direct") or each.get("sourcing")))
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            mine, its = filters(consumers[one]) or [">"], filters(consumers[other]) or [">"]
            if any(subject.intersect(a, b) for a in mine for b in its):
                words = (
                    f"consumers '{one}' and '{other}' of a work queue would get the same messages: give them filters."
                )
                yield one, words
                yield other, words


def limits_of_consumers(config: Config, stream: LiveStream, version: Version) -> Iterator[str]:
    """Consumers that are there and exceed the stream's new limits for consumers. Servers before 2.14 take a limit that
    is not set for 0, if the other one changes.
    """
    names = ("max_ack_pending", "inactive_threshold")
    after, before = config.get("consumer_limits") or {}, stream.config.get("consumer_limits") or {}
    if all(after.get(name, 0) == before.get(name, 0) for name in names):
        return
    for name in names:
        most = after.get(name, 0)
        if (most and most != before.get(name, 0)) or version < (2, 14):
            for each in (stream.consumers or {}).values():
                if each.config.get(name, 0) > most:
                    yield f"consumer '{each.name}' has a larger {name} than consumer_limits allow then: lower it first."


def bucket(config: Config) -> Iterator[str]:
    """What NATS' clients refuse of a bucket."""
    if config.get("max_msgs_per_subject", 1) > buckets.MOST_HISTORY:
        yield f"'history' is at most {buckets.MOST_HISTORY}."
