"""Which streams and consumers to make, from what is published, who subscribes, and what is there. Pure: nothing is
asked, nothing is made.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.clients.nats.subjects import intersect, overlapping
from penstock.errors import OptionError
from penstock.kit.masking import harmless
from penstock.operate.migrate.durables import durables, free_name
from penstock.operate.migrate.filters import MOST_FILTERS, carve, grouped, is_private, is_within, prefix, widest
from penstock.operate.migrate.storage import DAY, Limits, daily_bytes, lacks, max_bytes
from penstock.operate.migrate.subscribers import Seen
from penstock.operate.migrate.traffic import Figures, Heard
from penstock.options.types import duration

Config = dict[str, Any]  # as a declaration file has it: the server's words, durations and sizes as text
DUPLICATES = 120.0  # seconds: the server's own default


class Existing(NamedTuple):
    """A stream that is there."""

    name: str
    subjects: tuple[str, ...]


@dataclass(frozen=True)
class Wish:
    """What the user asked for."""

    subjects: tuple[str, ...]
    layout: str = "one"  # or per-prefix
    name: str | None = None
    storage: str = "file"
    replicas: int | None = None
    max_age: float = 7 * DAY
    no_ack: bool = False  # store requests too, and answer nobody


@dataclass(frozen=True)
class World:
    """What was found."""

    heard: Heard
    seen: Seen = field(default_factory=Seen)
    has_monitoring: bool = False
    existing: tuple[Existing, ...] = ()
    services: Mapping[str, str] = field(default_factory=dict)  # subjects that a NATS service answers, and its name
    limits: Limits = field(default_factory=Limits)
    servers: int = 1  # of the cluster, as far as is known


class LeftOut(NamedTuple):
    """A subject that no stream may take, and why."""

    subject: str
    why: str


@dataclass(frozen=True)
class Proposal:
    """Streams with their consumers, and what to know of them."""

    streams: Mapping[str, Config]
    consumers: Mapping[str, Mapping[str, Config]]
    captured: tuple[Existing, ...] = ()  # streams that take some of the subjects already
    left_out: tuple[LeftOut, ...] = ()
    remarks: tuple[str, ...] = ()
    daily: Mapping[str, int] = field(default_factory=dict)  # bytes a day of each stream, one replica of it

    @property
    def filters(self) -> list[str]:
        """What the new streams take."""
        return [text for config in self.streams.values() for text in config["subjects"]]


def propose(wish: Wish, world: World) -> Proposal:
    """The proposal. An OptionError where the subjects cannot be captured at all."""
    if pair := overlapping(wish.subjects):
        raise OptionError(
            f"'{pair[0]}' and '{pair[1]}' overlap: a subject can be in one stream only. Name one of them."
        )
    for text in wish.subjects:
        if is_private(text):
            raise OptionError(
                f"'{text}' is of the server or of somebody's inbox, and must not be stored. Leave it out."
            )
    left_out = [*_left_out(wish, world), *_quiet(wish, world)]
    captured = [each for each in world.existing if _overlaps(each.subjects, wish.subjects)]
    avoided = [each.subject for each in left_out] + [text for each in captured for text in each.subjects]
    wanted = _wanted(wish, world, {each.subject for each in left_out})
    filters, remarks = _filters(wish, wanted, avoided)
    replicas = wish.replicas or (3 if world.servers >= 3 else 1)
    streams, daily = {}, {}
    taken = {each.name for each in world.existing}
    for name, subjects in _layout(wish, filters, wanted).items():
        free = free_name(name, taken)
        taken.add(free)
        daily[free] = daily_bytes(world.heard, subjects)
        streams[free] = _stream(wish, subjects, replicas)
        if world.limits.needs_max_bytes:
            streams[free]["max_bytes"] = max_bytes(daily[free], wish.max_age)
    consumers, told = durables(streams, world.seen.subscriptions)
    remarks += told + _doubts(wish, world, filters)
    kept = int(sum(daily.values()) * wish.max_age / DAY)
    remarks += lacks(kept, replicas, wish.storage, wish.max_age, world.limits, world.seen.servers)
    if world.limits.streams is not None and len(world.existing) + len(streams) > world.limits.streams:
        remarks.append(
            f"the account may have {world.limits.streams} streams, and there are {len(world.existing)}: "
            f"{len(streams)} more do not fit."
        )
    if replicas == 1 and world.servers > 1:
        remarks.append(
            f"the cluster has {world.servers} servers and the streams one replica: while its server is away, a stream "
            "stores nothing. Three replicas need three servers."
        )
    return Proposal(streams, consumers, tuple(captured), tuple(left_out), tuple(remarks), daily)


def _left_out(wish: Wish, world: World) -> list[LeftOut]:
    """The subjects on which answers are waited for: the stream's ack would be the first answer."""
    if wish.no_ack:
        return []
    found: dict[str, str] = {}
    for subject, service in world.services.items():
        if not is_private(subject) and _overlaps((subject,), wish.subjects):
            found[subject] = f"the service '{harmless(service)}' answers requests on it"
    stored = [text for each in world.existing for text in each.subjects]
    for subject, why in (*_responders(world), *_requested(world)):
        # Where a stream is already, a reply is a publisher's that waits for an ack.
        if _overlaps((subject,), wish.subjects) and not any(is_within(subject, text) for text in (*found, *stored)):
            found[subject] = why
    return [LeftOut(subject, why) for subject, why in found.items()]


def _responders(world: World) -> list[tuple[str, str]]:
    """Subscriptions on which nothing but requests came."""
    found = []
    for subject in sorted({each.subject for each in world.seen.subscriptions}):
        came = [figures for name, figures in world.heard.subjects.items() if is_within(name, subject)]
        requests, all_of_them = (sum(getattr(each, what) for each in came) for what in ("requests", "messages"))
        if requests and requests == all_of_them:
            found.append((subject, f"somebody subscribes to it, and {_requests(requests)} came, and nothing else"))
    return found


def _requested(world: World) -> list[tuple[str, str]]:
    return [
        (subject, f"of {_count(figures.messages, 'message')} on it, {figures.requests:,} had a reply subject")
        for subject, figures in sorted(world.heard.requested().items())
    ]


def _quiet(wish: Wish, world: World) -> list[LeftOut]:
    """Subscriptions on which nothing came: a responder looks the same while nobody asks it. Who names exactly such a
    subject has decided.
    """
    if wish.no_ack:
        return []
    stored = [text for each in world.existing for text in each.subjects]
    quiet = {
        each.subject
        for each in world.seen.subscriptions
        if _overlaps((each.subject,), wish.subjects)
        and each.subject not in wish.subjects
        and not any(is_within(each.subject, text) for text in stored)
        and not any(intersect(each.subject, subject) for subject in world.heard.subjects)
    }
    why = "somebody subscribes to it, and nothing came: it may answer requests. Listen longer, or name it to store it"
    return [LeftOut(subject, why) for subject in sorted(quiet)]


def _requests(number: int) -> str:
    return _count(number, "request")


def _wanted(wish: Wish, world: World, left_out: set[str]) -> list[str]:
    """The subjects and filters that are in use, by which a filter is split where it must be."""
    used = [*world.heard.subjects, *(each.subject for each in world.seen.subscriptions)]
    return [text for text in dict.fromkeys(used) if text not in left_out and _overlaps((text,), wish.subjects)]


def _filters(wish: Wish, wanted: Sequence[str], avoided: Sequence[str]) -> tuple[list[str], list[str]]:
    filters: list[str] = []
    remarks: list[str] = []
    for text in wish.subjects:
        if text.split(".")[0] not in ("*", ">") and any(is_within(text, other) for other in avoided):
            continue  # a stream has it, or it is left out as a whole
        kept = carve(text, wanted, avoided)
        filters += kept
        if kept != [text]:
            remarks.append(_split(text, kept))
    if len(filters) > MOST_FILTERS:
        raise OptionError(
            f"the subjects become {len(filters):,} filters, as requests, streams that exist and plain messages share "
            "their prefixes. Name narrower subjects."
        )
    return widest(filters), remarks


def _split(text: str, kept: Sequence[str]) -> str:
    if not kept:
        return f"of '{text}', nothing is left to store: streams have it already, or it is left out, or nobody uses it."
    shown = ", ".join(kept[:5]) + (", ..." if len(kept) > 5 else "")
    return (
        f"'{text}' becomes {shown}, by what was heard and is subscribed: NATS has no filter that leaves something out. "
        "A subject beside them that comes up later is not stored."
    )


def _layout(wish: Wish, filters: Sequence[str], wanted: Sequence[str]) -> dict[str, list[str]]:
    """The filters by the name of the stream that takes them."""
    if not filters:
        return {}
    if wish.layout == "one":
        shared = {prefix(text, 1) for text in filters}
        name = wish.name or (_stream_name(next(iter(shared))) if len(shared) == 1 else "EVENTS")
        return {name: list(filters)}
    named: dict[str, list[str]] = {}
    for key, group in grouped(filters, wanted).items():
        name = "_".join(filter(None, (wish.name, _stream_name(key))))
        named.setdefault(name, []).extend(group)
    return named


def _stream(wish: Wish, subjects: list[str], replicas: int) -> Config:
    config: Config = {
        "subjects": subjects,
        "storage": wish.storage,
        "num_replicas": replicas,
        "max_age": duration(wish.max_age),
        "duplicate_window": duration(min(DUPLICATES, wish.max_age)),
        "allow_direct": True,
    }
    return config | ({"no_ack": True} if wish.no_ack else {})


def _stream_name(words: Iterable[str]) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", "_".join(words)).upper() or "EVENTS"


def _doubts(wish: Wish, world: World, filters: Sequence[str]) -> list[str]:
    """What cannot be known."""
    told = []
    heard = world.heard
    if not world.has_monitoring:
        told.append(
            "without --monitoring nobody can tell who subscribes: consumers are not proposed, and a responder is seen "
            "only where a request came while this listened."
        )
    if heard.interruptions:
        told.append(f"listening was interrupted: {'; '.join(heard.interruptions)}. What came meanwhile is not counted.")
    if heard.others.messages:
        told.append(
            f"{heard.others.messages:,} messages came on subjects beyond the first {len(heard.subjects):,}: those are "
            "not told apart, and requests among them are not seen."
        )
    silent = [
        each.subject
        for each in world.seen.subscriptions
        if _overlaps((each.subject,), filters)
        and not any(intersect(each.subject, subject) for subject in heard.subjects)
    ]
    if silent and not wish.no_ack:
        shown = ", ".join(sorted(set(silent))[:5])
        told.append(
            f"nothing came on {_count(len(set(silent)), 'subject')} that somebody subscribes to ({shown}): if these "
            "answer requests, requesters would get the stream's ack in place of the answer. Listen longer, or leave "
            "them out."
        )
    if not heard.subjects:
        told.append(f"nothing was published on these subjects in {heard.seconds:.0f} s: storage cannot be estimated.")
    if wish.no_ack:
        told.append(
            "with no_ack the streams answer nobody: requests get their answers, publishers cannot wait for an ack, and "
            "a request that nobody answers times out, as the stream listens: before, the requester was told at once."
        )
    return told


def _overlaps(left: Iterable[str], right: Sequence[str]) -> bool:
    return any(intersect(a, b) is not None for a in left for b in right)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def rates(heard: Heard) -> list[tuple[str, Figures, float]]:
    """Subjects with their figures and messages a second, those with most first."""
    ranked = sorted(heard.subjects.items(), key=lambda item: (-item[1].messages, item[0]))
    return [(name, figures, figures.messages / max(heard.seconds, 0.001)) for name, figures in ranked]


def given(streams: Mapping[str, Config], consumers: Mapping[str, Mapping[str, Config]], world: World) -> Proposal:
    """A proposal that somebody else made, as the server's JSON: with what is to be known of it. An OptionError where a
    stream would answer requests.
    """
    subjects = tuple(text for config in streams.values() for text in config.get("subjects") or ())
    wish = Wish(subjects)
    left_out = _left_out(wish, world)
    for name, config in streams.items():
        takes = config.get("subjects") or ()
        wrong = [each for each in left_out if _overlaps((each.subject,), takes)]
        if wrong and not config.get("no_ack"):
            raise OptionError(
                f"stream '{name}' would take '{wrong[0].subject}', and {wrong[0].why}: requesters would get the "
                "stream's ack in place of the answer. Declare narrower subjects, or no_ack = true."
            )
    others = tuple(each for each in world.existing if each.name in streams)
    daily = {name: daily_bytes(world.heard, config.get("subjects") or ()) for name, config in streams.items()}
    return Proposal(streams, consumers, others, (), tuple(_doubts(wish, world, subjects)), daily)
