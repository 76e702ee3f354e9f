"""Declarations as resources of Terraform's provider nats-io/jetstream. Written only: Terraform has a state of its own.
Pure.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from penstock.operate.declared.buckets import plain_origins
from penstock.operate.declared.fields import BUCKET, CONSUMER_FIELDS, STREAM_FIELDS, Field
from penstock.operate.declared.model import Config, Declared
from penstock.operate.declared.nack import Exported
from penstock.operate.declared.values import Kind

# The provider's names where they are not ours; None for what it (July 2026) does not have.
_STREAM: Mapping[str, str | None] = {"num_replicas": "replicas", "sealed": None}
_CONSUMER: Mapping[str, str | None] = {
    "num_replicas": "replicas", "deliver_subject": "delivery_subject", "deliver_group": "delivery_group",
    "max_deliver": "max_delivery", "idle_heartbeat": "heartbeat", "rate_limit_bps": "ratelimit",
    "mem_storage": "memory", "opt_start_seq": "stream_sequence", "opt_start_time": "start_time",
    "pause_until": None,
}  # fmt: skip
_BUCKET: Mapping[str, str | None] = {
    "num_replicas": "replicas", "max_bytes": "max_bucket_size", "compression": None, "mirror": None, "sources": None,
    "republish": None, "allow_msg_ttl": None, "allow_direct": None, "metadata": None,
}  # fmt: skip
_BUCKET_FIELDS = {field.name: field for _, field in BUCKET}
_ORIGIN = {"opt_start_seq": "start_seq", "opt_start_time": "start_time"}


def export(declared: Declared) -> Exported:
    """The resources. What the provider cannot carry is a comment there, and in `left_out`."""
    resources: list[dict[str, Any]] = []
    left_out: list[str] = []
    taken: set[str] = set()

    def add(kind: str, label: str, lines: list[str], lost: list[str]) -> None:
        resources.append({"type": kind, "label": label, "text": _block(kind, label, lines, lost)})

    for stream in declared.streams.values():
        if stream.absent:
            left_out.append(f"{stream.title}: 'absent'; take its resource away instead")
            continue
        kind = "jetstream_kv_bucket" if stream.bucket else "jetstream_stream"
        label, lost = _label(stream.bucket or stream.name, kind, taken), list[str]()
        if stream.is_whole and stream.bucket:
            words = {name: field.name for name, field in BUCKET}
            config = {words.get(k, k): v for k, v in plain_origins(stream.config, stream.bucket).items()}
            lines = [f"name = {json.dumps(stream.bucket)}", *_lines(_BUCKET_FIELDS, _BUCKET, config, lost)]
            add(kind, label, lines, lost)
        elif stream.is_whole:
            lines = [f"name = {json.dumps(stream.name)}", *_lines(STREAM_FIELDS, _STREAM, stream.config, lost)]
            add(kind, label, lines, lost)
        left_out += [f"{stream.title}: '{name}'" for name in lost]
        for consumer in stream.consumers.values():
            if consumer.absent:
                left_out.append(f"consumer '{consumer.name}': 'absent'; take its resource away instead")
                continue
            lost = []
            own = stream.is_whole and not stream.bucket
            stream_id = f"jetstream_stream.{label}.id" if own else json.dumps(stream.name)
            lines = [f"stream_id = {stream_id}", f"durable_name = {json.dumps(consumer.name)}"]
            lines += _lines(CONSUMER_FIELDS, _CONSUMER, consumer.config, lost)
            one = _label(f"{stream.name}_{consumer.name}", "jetstream_consumer", taken)
            add("jetstream_consumer", one, lines, lost)
            left_out += [f"consumer '{consumer.name}' of {stream.title}: '{name}'" for name in lost]
    return Exported("\n".join(each["text"] for each in resources), tuple(left_out), tuple(resources))


def _label(name: str, kind: str, taken: set[str]) -> str:
    """A name that Terraform takes, and that no other resource of that kind has."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    plain = plain if re.match(r"[A-Za-z_]", plain) else f"_{plain}"
    label, number = plain, 1
    while f"{kind}/{label}" in taken:
        number += 1
        label = f"{plain}_{number}"
    taken.add(f"{kind}/{label}")
    return label


def _block(kind: str, label: str, lines: list[str], lost: list[str]) -> str:
    told = [f"# The provider has no '{name}'." for name in lost]
    return "\n".join([f'resource "{kind}" "{label}" {{', *(f"  {line}" for line in [*told, *lines]), "}", ""])


def _lines(fields: Mapping[str, Field], names: Mapping[str, str | None], config: Config, lost: list[str]) -> list[str]:
    lines: list[str] = []
    for name, value in config.items():
        field, theirs = fields.get(name), names.get(name, name)
        if field is None or theirs is None:
            lost.append(name)
        elif name in _SPECIAL and value:
            lines += _SPECIAL[name](value, lost)
        elif name not in _SPECIAL:
            lines.append(f"{theirs} = {_value(field, value, name, lost)}")
    return lines


def _value(field: Field, value: Any, name: str, lost: list[str]) -> str:
    if field.kind is Kind.DURATION:
        return _seconds(value, name, lost)
    if field.kind is Kind.DURATIONS:
        return f"[{', '.join(_seconds(each, name, lost) for each in value)}]"
    return _json(value)


def _json(value: Any) -> str:
    """A value of HCL; `${` and `%{` would be templates."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_json(k)} = {_json(v)}' for k, v in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_json, value))}]"
    text = json.dumps(value, ensure_ascii=False)
    return text.replace("${", "$${").replace("%{", "%%{") if isinstance(value, str) else text


def _seconds(value: int, name: str, lost: list[str]) -> str:
    """The provider takes whole seconds."""
    if value % 1_000_000_000:
        lost.append(f"{name} in parts of a second")
    return str(-(-value // 1_000_000_000))


def _origin(word: str) -> Callable[[Any, list[str]], list[str]]:
    def lines(value: Any, lost: list[str]) -> list[str]:
        found = []
        for each in value if isinstance(value, list) else [value]:
            found.append(f"{word} {{")
            for name, part in each.items():
                if name in ("external", "consumer"):
                    found += [f"  {name} {{", *(f"    {k} = {_json(v)}" for k, v in part.items()), "  }"]
                elif name == "subject_transforms":
                    found += [f"  {line}" for one in part for line in _transform(one, lost)]
                else:
                    found.append(f"  {_ORIGIN.get(name, name)} = {_json(part)}")
            found.append("}")
        return found

    return lines


def _republish(value: Any, lost: list[str]) -> list[str]:
    names = {"src": "republish_source", "dest": "republish_destination", "headers_only": "republish_headers_only"}
    return [f"{names[name]} = {_json(part)}" for name, part in value.items() if name in names]


def _transform(value: Any, lost: list[str]) -> list[str]:
    names = (("src", "source"), ("dest", "destination"))
    parts = [f"  {theirs} = {_json(value.get(ours, ''))}" for ours, theirs in names]
    return ["subject_transform {", *parts, "}"]


def _limits(value: Any, lost: list[str]) -> list[str]:
    found = [f"max_ack_pending = {value['max_ack_pending']}"] if "max_ack_pending" in value else []
    if "inactive_threshold" in value:
        found.append(f"inactive_threshold = {_seconds(value['inactive_threshold'], 'inactive_threshold', lost)}")
    return found


def _policy(value: Any, lost: list[str]) -> list[str]:
    """Where a consumer starts: a flag each; a sequence or a time says it by itself."""
    return [] if value in ("by_start_sequence", "by_start_time") else [f"deliver_{value} = true"]


_SPECIAL: Mapping[str, Callable[[Any, list[str]], list[str]]] = {
    "mirror": _origin("mirror"),
    "sources": _origin("source"),
    "placement": lambda value, lost: [f"placement_{name} = {_json(part)}" for name, part in value.items()],
    "subject_transform": _transform,
    "republish": _republish,
    "consumer_limits": _limits,
    "no_ack": lambda value, lost: [f"ack = {_json(not value)}"],
    "deliver_policy": _policy,
    "sample_freq": lambda value, lost: [f"sample_freq = {str(value).removesuffix('%')}"],
}
