"""Every field of streams, consumers and buckets, declared once: its name in JetStream's JSON, its kind, its default,
the server that knows it, and what that can change in place. Parsing, plans and documentation derive from it. Pure.

Long, as it is a list. What each server refuses was tried on 2.10 to 2.15 (tests/server/test_operate_declared*.py).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.operate.declared.values import Kind, shown

Version = tuple[int, int]
# Why the server cannot change a value into another in place; empty where it can.
Refusal = Callable[[Any, Any, Version], str]


def anything(before: Any, after: Any, version: Version) -> str:
    """Every change can be made in place."""
    return ""


def never(before: Any, after: Any, version: Version) -> str:
    """No change can."""
    return "cannot be changed in place"


def only_on(before: Any, after: Any, version: Version) -> str:
    """It can be switched on, but not off again."""
    return "" if after else "cannot be switched off again"


def _retention(before: Any, after: Any, version: Version) -> str:
    return "can only change between limits and interest in place" if "workqueue" in (before, after) else ""


def _mirror(before: Any, after: Any, version: Version) -> str:
    if after:
        return "cannot be changed in place"
    return "" if version >= (2, 12) else "can be taken away in place only since server 2.12"


def _since(least: Version) -> Refusal:
    return lambda before, after, version: (
        "" if version >= least else f"can be changed in place only since server {least[0]}.{least[1]}"
    )


def _memory(before: Any, after: Any, version: Version) -> str:
    return never(before, after, version) if version >= (2, 14) else ""


def _push(before: Any, after: Any, version: Version) -> str:
    return "" if before and after else "cannot turn a pull consumer into a push consumer, or back"


@dataclass(frozen=True)
class Field:
    """One field. `default` is what the server makes of a field that is left out, in its JSON."""

    name: str
    kind: Kind
    meaning: str
    default: Any = None
    choices: tuple[str, ...] = ()
    since: Version = (2, 10)
    newer: Mapping[str, Version] = field(default_factory=dict)  # choices that only later servers know
    change: Refusal = anything
    parts: tuple["Field", ...] = ()
    limit: bool = False  # a number where the server makes -1, no limit, of 0 and less
    is_set: bool = False  # a list whose order does not matter
    least: int | None = None

    @property
    def in_place(self) -> str:
        """What the server can change in place, for documentation."""
        words: dict[Any, str] = {
            anything: "yes", never: "no", only_on: "only on", _retention: "limits and interest", _push: "push subject",
            _mirror: "only away, since 2.12", _memory: "no",
        }  # fmt: skip
        return words.get(self.change, "since 2.12")


K = Kind
_PAIR = (
    Field("src", K.TEXT, "Subjects to rename; empty for all.", ""),
    Field("dest", K.TEXT, "What they become, such as `orders.{{wildcard(1)}}`."),
)
_ORIGIN = (
    Field("name", K.TEXT, "The stream to copy from."),
    Field("opt_start_seq", K.NUMBER, "The first sequence to copy.", 0, least=0),
    Field("opt_start_time", K.MOMENT, "Copy from this time on."),
    Field("filter_subject", K.TEXT, "Copy only this.", ""),
    Field("subject_transforms", K.OBJECTS, "What to copy, and what its subjects become.", [], parts=_PAIR),
    Field(
        "external", K.OBJECT, "Where the stream is, if in another account or domain.",
        parts=(
            Field("api", K.TEXT, "Prefix of its JetStream API."),
            Field("deliver", K.TEXT, "Prefix of the subjects for delivery.", ""),
        ),
    ),
    Field(
        "consumer", K.OBJECT, "A durable consumer of the origin to copy by.", since=(2, 14),
        parts=(
            Field("name", K.TEXT, "Its name."),
            Field("deliver_subject", K.TEXT, "Where it delivers."),
        ),
    ),
)  # fmt: skip
_PLACEMENT = (
    Field("cluster", K.TEXT, "Name of the cluster.", ""),
    Field("tags", K.TEXTS, "Tags that the servers must have.", []),
)
_REPUBLISH = (
    Field("src", K.TEXT, "Which subjects; `>` for all.", ">"),
    Field("dest", K.TEXT, "On what they are published."),
    Field("headers_only", K.BOOL, "Without bodies.", False),
)
_LIMITS = (
    Field("inactive_threshold", K.DURATION, "The longest that consumers may ask for.", 0),
    Field("max_ack_pending", K.NUMBER, "The most that consumers may ask for.", 0, least=0),
)
_WINDOW = 120_000_000_000  # the server's own duplicate window, where nothing is said

STREAM: tuple[Field, ...] = (
    Field("description", K.TEXT, "What it is for.", ""),
    Field("subjects", K.TEXTS, "What it stores. Without a mirror or sources: its own name.", [], is_set=True),
    Field("storage", K.CHOICE, "Where messages are.", "file", ("file", "memory"), change=never),
    Field("num_replicas", K.NUMBER, "On how many servers of a cluster, 1 to 5.", 1, least=1),
    Field("retention", K.CHOICE, "When a message may go: by limits, when no consumer wants it, when one has it.",
          "limits", ("limits", "interest", "workqueue"), change=_retention),
    Field("max_msgs", K.NUMBER, "The most messages; -1 is no limit.", -1, limit=True),
    Field("max_bytes", K.SIZE, "The most bytes; -1 is no limit.", -1, limit=True),
    Field("max_age", K.DURATION, "How long a message stays; 0 is no limit.", 0),
    Field("max_msg_size", K.SIZE, "The largest message; -1 is no limit.", -1, limit=True),
    Field("max_msgs_per_subject", K.NUMBER, "The most messages of one subject; -1 is no limit.", -1, limit=True),
    Field("max_consumers", K.NUMBER, "The most consumers; -1 is no limit.", -1, limit=True, change=_since((2, 12))),
    Field("discard", K.CHOICE, "What happens at a limit: old messages go, or new ones are refused.", "old",
          ("old", "new")),
    Field("discard_new_per_subject", K.BOOL, "`discard = \"new\"` for each subject by itself.", False),
    Field("duplicate_window", K.DURATION, "How long message ids are remembered. At most `max_age`.", _WINDOW),
    Field("compression", K.CHOICE, "How files are compressed.", "none", ("none", "s2")),
    Field("mirror", K.OBJECT, "The stream that it is a copy of; `{}` is none.", parts=_ORIGIN, change=_mirror),
    Field("sources", K.OBJECTS, "Streams whose messages it takes too.", [], parts=_ORIGIN),
    Field("placement", K.OBJECT, "Which servers hold it; `{}` is any.", parts=_PLACEMENT),
    Field("subject_transform", K.OBJECT, "Renames subjects before messages are stored; `{}` is none.", parts=_PAIR),
    Field("republish", K.OBJECT, "Publishes stored messages again; `{}` is none.", parts=_REPUBLISH),
    Field("allow_direct", K.BOOL, "Lets any replica answer reads. Penstock reads faster with it.", False),
    Field("mirror_direct", K.BOOL, "Lets a mirror answer reads of its origin. The server takes the origin's "
          "`allow_direct`.", False),
    Field("allow_msg_ttl", K.BOOL, "Lets a message say how long it lives.", False, since=(2, 11), change=only_on),
    Field("subject_delete_marker_ttl", K.DURATION, "How long a marker stays for a subject whose last message went by "
          "age.", 0, since=(2, 11)),
    Field("allow_atomic", K.BOOL, "Takes batches that are stored as a whole or not at all. Penstock's sink uses it.",
          False, since=(2, 12)),
    Field("allow_batched", K.BOOL, "Takes fast batches. Penstock's sink uses it.", False, since=(2, 14)),
    Field("allow_msg_counter", K.BOOL, "Its messages are counters that the server adds up.", False, since=(2, 12),
          change=never),
    Field("allow_msg_schedules", K.BOOL, "Takes messages for later.", False, since=(2, 12), change=only_on),
    Field("persist_mode", K.CHOICE, "Whether an acknowledged message is in a file already.", "default",
          ("default", "async"), since=(2, 12), change=never),
    Field("allow_rollup_hdrs", K.BOOL, "Lets a message take the place of all before it.", False),
    Field("deny_delete", K.BOOL, "No message can be deleted by name.", False, change=only_on),
    Field("deny_purge", K.BOOL, "No purging. Penstock then cannot release what it read of a work queue.", False,
          change=only_on),
    Field("sealed", K.BOOL, "Closed for good: nothing comes in, nothing goes. Only for a stream that exists.", False,
          change=only_on),
    Field("no_ack", K.BOOL, "Publishers get no answer.", False),
    Field("first_seq", K.NUMBER, "The sequence of the first message; counts only when the stream is created.", 0,
          least=0),
    Field("consumer_limits", K.OBJECT, "What consumers may ask for at most, and get by default.", parts=_LIMITS),
    Field("metadata", K.WORDS, "Words for programs. Keys of the server (`_nats.`) and of Penstock's queries "
          "(`penstock.`) stay.", {}),
)  # fmt: skip

CONSUMER: tuple[Field, ...] = (
    Field("description", K.TEXT, "What it is for.", ""),
    Field("ack_policy", K.CHOICE, "Whether each message is acknowledged, all up to one, or none. Explicit by default, "
          "as in NATS' clients.", "explicit", ("explicit", "all", "none", "flow_control"),
          newer={"flow_control": (2, 14)}, change=never),
    Field("deliver_policy", K.CHOICE, "Where it starts.", "all",
          ("all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"), change=never),
    Field("opt_start_seq", K.NUMBER, "With `by_start_sequence`.", 0, change=never, least=0),
    Field("opt_start_time", K.MOMENT, "With `by_start_time`.", change=never),
    Field("ack_wait", K.DURATION, "After how long a message comes again.", 30_000_000_000),
    Field("max_deliver", K.NUMBER, "How often a message comes at most; -1 is no limit.", -1, limit=True),
    Field("backoff", K.DURATIONS, "`ack_wait` for the first delivery, the second, and so on.", []),
    Field("filter_subject", K.TEXT, "Only this of the stream.", ""),
    Field("filter_subjects", K.TEXTS, "Only these; they must not overlap.", [], is_set=True),
    Field("max_ack_pending", K.NUMBER, "The most messages that wait for an acknowledgement; -1 is no limit.", 1000),
    Field("replay_policy", K.CHOICE, "At full speed, or as they came.", "instant", ("instant", "original"),
          change=never),
    Field("headers_only", K.BOOL, "Without bodies.", False),
    Field("sample_freq", K.TEXT, "Percentage of acknowledgements that are observed, as text.", ""),
    Field("inactive_threshold", K.DURATION, "Unused for so long, it is deleted; 0 is never.", 0),
    Field("num_replicas", K.NUMBER, "On how many servers; 0 is as the stream.", 0, least=0),
    Field("mem_storage", K.BOOL, "Its state is in memory, whatever the stream's storage is.", False, change=_memory),
    Field("max_waiting", K.NUMBER, "Pull: the most pulls that wait.", 512, change=never, least=0),
    Field("max_batch", K.NUMBER, "Pull: the most messages of one pull; 0 is no limit.", 0, least=0),
    Field("max_bytes", K.SIZE, "Pull: the most bytes of one pull; 0 is no limit.", 0, least=0),
    Field("max_expires", K.DURATION, "Pull: the longest a pull waits; 0 is no limit.", 0),
    Field("deliver_subject", K.TEXT, "Push: where messages go.", "", change=_push),
    Field("deliver_group", K.TEXT, "Push: the queue group that shares them.", ""),
    Field("flow_control", K.BOOL, "Push: the server waits for the subscriber.", False, change=never),
    Field("idle_heartbeat", K.DURATION, "Push: a sign of life when nothing comes.", 0, change=never),
    Field("rate_limit_bps", K.NUMBER, "Push: bits per second.", 0, least=0),
    Field("priority_policy", K.CHOICE, "Pull: which client comes first.", "none",
          ("none", "overflow", "pinned_client", "prioritized"), since=(2, 11), newer={"prioritized": (2, 12)}),
    Field("priority_groups", K.TEXTS, "Pull: names of the groups of clients.", [], since=(2, 11)),
    Field("priority_timeout", K.DURATION, "Pull: how long a pinned client may be silent.", 0, since=(2, 11)),
    Field("pause_until", K.MOMENT, "Delivers nothing until then.", since=(2, 11)),
    Field("metadata", K.WORDS, "Words for programs; see streams.", {}),
)  # fmt: skip

# Words of key-value buckets, and the field of the stream that each one is.
BUCKET: tuple[tuple[str, Field], ...] = (
    ("description", Field("description", K.TEXT, "What it is for.", "")),
    ("max_msgs_per_subject", Field("history", K.NUMBER, "Values kept of a key, 1 to 64.", 1, least=1)),
    ("max_age", Field("ttl", K.DURATION, "How long a value stays; 0 is for ever.", 0)),
    ("max_bytes", Field("max_bytes", K.SIZE, "The most bytes; -1 is no limit.", -1, limit=True)),
    ("max_msg_size", Field("max_value_size", K.SIZE, "The largest value; -1 is no limit.", -1, limit=True)),
    ("storage", Field("storage", K.CHOICE, "Where values are.", "file", ("file", "memory"), change=never)),
    ("num_replicas", Field("num_replicas", K.NUMBER, "On how many servers of a cluster, 1 to 5.", 1, least=1)),
    ("compression", Field("compression", K.CHOICE, "How files are compressed.", "none", ("none", "s2"))),
    ("mirror", Field("mirror", K.OBJECT, "The bucket that it is a copy of.", parts=_ORIGIN, change=_mirror)),
    ("sources", Field("sources", K.OBJECTS, "Buckets whose values it takes too.", [], parts=_ORIGIN)),
    ("placement", Field("placement", K.OBJECT, "Which servers hold it.", parts=_PLACEMENT)),
    ("republish", Field("republish", K.OBJECT, "Publishes new values again.", parts=_REPUBLISH)),
    ("subject_delete_marker_ttl", Field("limit_marker_ttl", K.DURATION, "How long a marker stays for a key whose value "
     "went by `ttl`.", 0, since=(2, 11))),
    ("allow_msg_ttl", Field("allow_msg_ttl", K.BOOL, "Lets a value say how long it lives.", False, since=(2, 11),
     change=only_on)),
    ("allow_direct", Field("allow_direct", K.BOOL, "Lets any replica answer reads.", True)),
    ("metadata", Field("metadata", K.WORDS, "Words for programs; see streams.", {})),
)  # fmt: skip

STREAM_FIELDS = {each.name: each for each in STREAM}
CONSUMER_FIELDS = {each.name: each for each in CONSUMER}
# Fields that say who something is, and that the file says by the name of its table; and the server's own marks.
STREAM_NAMES = ("name",)
CONSUMER_NAMES = ("name", "durable_name")


def table(fields: Iterable[Field]) -> str:
    """The table of the documentation."""
    rows = []
    for each in fields:
        default = "" if each.default in (None, "", [], {}) else str(shown(each.kind, each.default))
        default = default.lower() if isinstance(each.default, bool) else default
        choices = f" One of {', '.join(f'`{word}`' for word in each.choices)}." if each.choices else ""
        since = f"{each.since[0]}.{each.since[1]}"
        cells = [f"`{each.name}`", default and f"`{default}`", since, each.in_place, f"{each.meaning}{choices}"]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(["| field | default | since | in place | meaning |", "|---|---|---|---|---|", *rows])
