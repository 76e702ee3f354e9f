"""Configurations compared and put together: a field that is left out is at its default, some orders do not matter, and
what the server adds by itself is no difference. Pure.
"""

import copy
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from penstock.operate.declared import values
from penstock.operate.declared.fields import CONSUMER_FIELDS, CONSUMER_NAMES, STREAM_FIELDS, STREAM_NAMES, Field
from penstock.operate.declared.model import Config
from penstock.operate.declared.values import Kind

SERVERS_OWN = "_nats."  # metadata that the server writes
QUERIES_OWN = "penstock."  # metadata of Penstock's running queries
_PULL = [
    "max_waiting",
    "max_batch",
    "max_bytes",
    "max_expires",
    "priority_policy",
    "priority_groups",
    "priority_timeout",
]
_PUSH = ["flow_control", "idle_heartbeat", "rate_limit_bps", "deliver_group"]
_FILTERS = ("filter_subject", "filter_subjects")


def normal(field: Field, value: Any) -> Any:
    """A value such that equal ones are equal: defaults filled in, sets sorted, empty tables None."""
    if value is None or value == "":
        value = field.default
    if field.kind is Kind.OBJECT:
        return (_object(field, value) or None) if value else None
    if field.kind is Kind.OBJECTS:
        if not value:
            return []
        return sorted((_object(field, each) for each in value), key=lambda each: json.dumps(each, sort_keys=True))
    if field.kind is Kind.WORDS:
        return {key: word for key, word in (value or {}).items() if not key.startswith((SERVERS_OWN, QUERIES_OWN))}
    if field.kind is Kind.MOMENT and isinstance(value, str):
        return values.moment(value)
    if field.limit and isinstance(value, int) and value <= 0:
        return -1
    return sorted(value) if field.is_set and value else value


def _object(field: Field, value: Any) -> Config:
    """The parts of a table that are not at their defaults. Parts of newer servers do not count."""
    found = {part.name: normal(part, (value or {}).get(part.name)) for part in field.parts}
    return {part.name: found[part.name] for part in field.parts if found[part.name] != normal(part, part.default)}


def filters(config: Mapping[str, Any]) -> list[str]:
    """The filters of a consumer, whichever of both fields has them."""
    one = config.get("filter_subject")
    return sorted([one] if one else config.get("filter_subjects") or [])


def canonical(fields: Mapping[str, Field], config: Mapping[str, Any]) -> Config:
    """All fields of a configuration, normal; those that are not known are as they are."""
    names = CONSUMER_NAMES if fields is CONSUMER_FIELDS else STREAM_NAMES
    found = {name: normal(field, config.get(name)) for name, field in fields.items()}
    if fields is CONSUMER_FIELDS:
        del found["filter_subject"]
        found["filter_subjects"] = filters(config)
    if fields is STREAM_FIELDS and not found["subjects"] and not found["mirror"] and not found["sources"]:
        found["subjects"] = [config["name"]] if "name" in config else []
    return found | {name: value for name, value in config.items() if name not in fields and name not in names}


def differences(fields: Mapping[str, Field], declared: Config, live: Config) -> dict[str, tuple[Any, Any]]:
    """The declared fields that are otherwise on the server: before and after, normal."""
    before, after = canonical(fields, live), canonical(fields, merged(fields, live, declared))
    names = [*dict.fromkeys("filter_subjects" if name in _FILTERS and fields is CONSUMER_FIELDS else name
                            for name in declared)]  # fmt: skip
    return {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}


def merged(fields: Mapping[str, Field], live: Config, declared: Config) -> Config:
    """The configuration of the server with the declared fields put in: all others stay, known or not."""
    config = copy.deepcopy(live)
    if fields is CONSUMER_FIELDS and set(_FILTERS) & declared.keys():
        for name in _FILTERS:
            config.pop(name, None)
    for name, value in declared.items():
        field = fields.get(name)
        if field is None:
            config[name] = value
        elif field.kind is Kind.WORDS:
            kept = {key: word for key, word in (live.get(name) or {}).items() if key.startswith(QUERIES_OWN)}
            config[name] = {**kept, **value}
        elif field.kind is Kind.OBJECT and value:
            config[name] = _newer_parts(field, live.get(name)) | value
        elif field.kind is Kind.OBJECTS:
            by_name = {each.get("name"): each for each in live.get(name) or []}
            config[name] = [_newer_parts(field, by_name.get(each.get("name"))) | each for each in value]
        else:
            config[name] = value
        if config[name] in ({}, [], "", None):
            del config[name]
    if isinstance(config.get("metadata"), dict):  # what the server adds to each answer
        config["metadata"] = {k: v for k, v in config["metadata"].items() if not k.startswith(SERVERS_OWN)}
    return config


def fitted(fields: Mapping[str, Field], config: Config, declared: Config) -> Config:
    """The configuration without what is left of the old one and does not go with what is declared: a start where the
    new policy has none, fields of a pull consumer in a push consumer, subjects in a mirror.
    """
    c = canonical(fields, config)
    left: list[str] = []
    if fields is CONSUMER_FIELDS:
        left += ["opt_start_seq"] * (c["deliver_policy"] != "by_start_sequence")
        left += ["opt_start_time"] * (c["deliver_policy"] != "by_start_time")
        left += _PULL if c["deliver_subject"] else _PUSH
        left += ["max_ack_pending", "ack_wait", "backoff"] * (c["ack_policy"] == "none")
        left += ["priority_groups", "priority_timeout"] * (c["priority_policy"] == "none")
        left += ["ack_wait"] * bool(c["backoff"])
    else:
        left += ["subjects", "first_seq", "sources"] if c["mirror"] else ["mirror_direct"]
    return {name: value for name, value in config.items() if name not in left or name in declared}


def _newer_parts(field: Field, value: Any) -> Config:
    known = {part.name for part in field.parts}
    return {name: part for name, part in (value or {}).items() if name not in known}


def digest(created: str, config: Config) -> str:
    """What tells one state of a stream or consumer from another: when it was made, and its configuration. Numbers of
    messages are no part of it, and neither is what servers of different versions add to answers.
    """
    bare = {k: v for k, v in config.items() if k != "metadata"}
    words = {k: v for k, v in (config.get("metadata") or {}).items() if not k.startswith(SERVERS_OWN)}
    text = json.dumps([created, bare, words], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
