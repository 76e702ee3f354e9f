"""Configurations of a server as a declaration file: what is at its default is left out, what is not known goes into
`extra`. Pure.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock.clients.jetstream import api
from penstock.operate.declared import buckets, values
from penstock.operate.declared.configs import SERVERS_OWN, filters, normal
from penstock.operate.declared.fields import (
    BUCKET,
    CONSUMER_FIELDS,
    CONSUMER_NAMES,
    STREAM_FIELDS,
    STREAM_NAMES,
    Field,
)
from penstock.operate.declared.model import Config, Live, LiveConsumer, LiveStream
from penstock.operate.declared.values import Kind

_BUCKET_FIELDS = {field.name: field for _, field in BUCKET}


def toml(streams: Iterable[Config], consumers: Mapping[str, Iterable[Config]] | None = None) -> str:
    """A declaration file of streams, each as the server's JSON has its configuration, and of consumers by the names of
    their streams. Streams that are key-value buckets become buckets. Consumers without a durable name are left out.
    """
    blocks = []
    for config in streams:
        found = buckets.bucket_of(config)
        name = str(config["name"])
        if found is not None:
            path, said = ("buckets", found[0]), spoken(_BUCKET_FIELDS, found[1], ())
        else:
            path, said = ("streams", name), spoken(STREAM_FIELDS, _without_usual_window(config), STREAM_NAMES)
        blocks.append(table(path, said))
        for each in (consumers or {}).get(name, ()):
            if each.get("durable_name"):
                said = spoken(CONSUMER_FIELDS, _one_filter(each), CONSUMER_NAMES)
                blocks.append(table((*path, "consumers", str(each["durable_name"])), said))
    return "\n".join(blocks)


def of_live(live: Live, names: Iterable[str] | None = None) -> str:
    """What a server has, as a declaration file. Penstock's ledger is left out, and so are consumers that follow a
    query: they are the query's.
    """
    wanted = [live.streams[name] for name in (live.streams if names is None else names) if name != api.LEDGER]
    return of_streams(wanted)


def of_streams(streams: Sequence[LiveStream]) -> str:
    """Streams with their consumers, as a declaration file; without consumers that follow a query."""
    consumers = {
        each.name: [one.config for one in (each.consumers or {}).values() if not _is_followers(one.config)]
        for each in streams
    }
    return toml([each.config for each in streams], consumers)


def of_consumer(stream: str, consumer: LiveConsumer) -> str:
    """One consumer, durable or not, as a declaration file."""
    said = spoken(CONSUMER_FIELDS, _one_filter(consumer.config), CONSUMER_NAMES)
    return table(("streams", stream, "consumers", consumer.name), said)


def _is_followers(config: Config) -> bool:
    return config.get("description") == api.FOLLOWER or bool((config.get("metadata") or {}).get(api.OWNER))


def _without_usual_window(config: Config) -> Config:
    """A stream with the duplicate window left out where the server would make it by itself."""
    window = STREAM_FIELDS["duplicate_window"].default
    usual = min(window, config.get("max_age") or window)
    if config.get("mirror") or config.get("sources"):
        usual = 0
    if config.get("duplicate_window", 0) == usual:
        config = {name: value for name, value in config.items() if name != "duplicate_window"}
    return config


def _one_filter(config: Config) -> Config:
    """A consumer with its filters in one field, and without an ack_wait that its backoff says."""
    rest = {k: v for k, v in config.items() if k not in ("filter_subject", "filter_subjects")}
    if rest.get("backoff"):
        rest.pop("ack_wait", None)
    return rest | ({"filter_subjects": found} if (found := filters(config)) else {})


def spoken(fields: Mapping[str, Field], config: Config, names: Iterable[str]) -> dict[str, Any]:
    """The fields of a configuration as a user writes them, in the order of their declaration."""
    said: dict[str, Any] = {}
    for name, field in fields.items():
        if name in config and normal(field, config[name]) != normal(field, None):
            value = _spoken(field, config[name])
            if value not in ({}, None):
                said[name] = value
    extra = {k: v for k, v in config.items() if k not in fields and k not in names}
    return said | ({"extra": extra} if extra else {})


def _spoken(field: Field, value: Any) -> Any:
    if field.kind is Kind.OBJECT:
        return spoken({part.name: part for part in field.parts}, value, ())
    if field.kind is Kind.OBJECTS:
        return [spoken({part.name: part for part in field.parts}, each, ()) for each in value]
    if field.kind is Kind.WORDS:
        return {key: word for key, word in value.items() if not key.startswith((SERVERS_OWN, "penstock."))}
    return values.shown(field.kind, value)


def table(path: tuple[str, ...], said: Mapping[str, Any]) -> str:
    """A table of TOML: its head, and a line for each value."""
    lines = [f"[{'.'.join(map(_key, path))}]", *(f"{_key(name)} = {_value(value)}" for name, value in said.items())]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name, is_key=True)


def _text(value: str, *, is_key: bool = False) -> str:
    """Text as TOML has it; `${` would be a variable."""
    quoted = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return quoted if is_key else quoted.replace("${", "$${")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_key(str(k))} = {_value(v)}' for k, v in value.items())} }}" if value else "{}"
    return str(value)
