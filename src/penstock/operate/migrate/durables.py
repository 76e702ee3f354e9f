"""Which durable consumers take the place of subscriptions. Pure."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from penstock.clients.nats.subjects import intersect, overlapping
from penstock.operate.migrate.filters import is_within, widest
from penstock.operate.migrate.subscribers import Subscription

Config = dict[str, Any]
_Who = tuple[str, int]  # a connection: its server, and its number there


def durables(
    streams: Mapping[str, Config], subscriptions: Sequence[Subscription]
) -> tuple[dict[str, dict[str, Config]], list[str]]:
    """By stream, a durable for each queue group and for each subscriber with a name of its own; and what to say of all
    others.
    """
    made: dict[str, dict[str, Config]] = {}
    remarks: list[str] = []
    for stream, config in streams.items():
        takes = config["subjects"]
        mine = [each for each in subscriptions if any(intersect(each.subject, text) for text in takes)]
        found: dict[str, Config] = {}
        for name, subjects in (*_groups(mine), *_loners(mine)):
            filters = widest(both for subject in subjects for text in takes if (both := intersect(subject, text)))
            if pair := overlapping(filters):
                remarks.append(
                    f"'{name}' subscribes to '{pair[0]}' and to '{pair[1]}', which overlap, and gets what is in both "
                    "twice. The filters of a consumer cannot overlap: it gets no durable here."
                )
                continue
            found[free_name(durable_name(name), found)] = _durable(filters, takes)
        remarks += _others(mine)
        if found:
            made[stream] = dict(sorted(found.items()))
    return made, list(dict.fromkeys(remarks))


def durable_name(text: str) -> str:
    """What a durable may be called, from what somebody called a queue group or a connection."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_")[:60] or "consumer"


def free_name(name: str, taken: Collection[str]) -> str:
    """The name, with a number behind it where it is taken already."""
    return next(each for each in (name, *(f"{name}_{i}" for i in range(2, 100_000))) if each not in taken)


def _durable(filters: Sequence[str], takes: Sequence[str]) -> Config:
    config: Config = {"ack_policy": "explicit"}
    is_whole = all(any(is_within(text, own) for own in filters) for text in takes)
    return config if is_whole else config | {"filter_subjects": list(filters)}


def _groups(subscriptions: Sequence[Subscription]) -> list[tuple[str, list[str]]]:
    """Queue groups: name and subjects. In NATS a group is one of a subject: two subjects are one group's here only
    where the same connections have both.
    """
    members: dict[tuple[str, str], set[_Who]] = {}
    for each in subscriptions:
        if each.group:
            members.setdefault((each.group, each.subject), set()).add((each.server, each.connection))
    same: dict[tuple[str, frozenset[_Who]], list[str]] = {}
    for (group, subject), who in members.items():
        same.setdefault((group, frozenset(who)), []).append(subject)
    names = [group for group, _ in same]
    return [
        (group if names.count(group) == 1 else f"{group}-{min(subjects).replace('.', '-')}", sorted(subjects))
        for (group, _), subjects in same.items()
    ]


def _by_name(subscriptions: Sequence[Subscription]) -> dict[str, dict[_Who, set[str]]]:
    """The clients outside of queue groups: by name, the connections of that name and what each subscribes to."""
    named: dict[str, dict[_Who, set[str]]] = {}
    for each in subscriptions:
        if not each.group and each.kind == "client":
            named.setdefault(each.name, {}).setdefault((each.server, each.connection), set()).add(each.subject)
    return named


def _loners(subscriptions: Sequence[Subscription]) -> list[tuple[str, list[str]]]:
    """Clients outside of queue groups that have a name of their own."""
    return [
        (name, sorted(*connections.values()))
        for name, connections in _by_name(subscriptions).items()
        if name and len(connections) == 1
    ]


def _others(subscriptions: Sequence[Subscription]) -> list[str]:
    """What to say of subscribers that get no durable."""
    told = [
        f"'{each.subject}' has a subscriber that is {each.name}: who it is cannot be seen here."
        for each in subscriptions
        if each.kind != "client"
    ]
    for name, connections in _by_name(subscriptions).items():
        subjects = ", ".join(sorted(set().union(*connections.values())))
        count = len(connections)
        if not name:
            told.append(
                f"{count} {'connection' if count == 1 else 'connections'} without a name and without a queue group "
                f"subscribe to {subjects}: no durable is proposed. Give connections names, and run this again."
            )
        elif count > 1:
            told.append(
                f"{count} connections are called '{name}', and each gets every message of {subjects}. Members of one "
                "durable share messages: give each a consumer of its own, or make them a queue group if they should "
                "share."
            )
    return told
