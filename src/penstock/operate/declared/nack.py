"""Declarations as NACK's resources for Kubernetes, jetstream.nats.io/v1beta2, and back. NACK has other names for some
fields, and lacks others. Pure, but for reading a file.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from penstock.operate.declared import values
from penstock.operate.declared.fields import BUCKET, CONSUMER_FIELDS, STREAM_FIELDS, Field
from penstock.operate.declared.model import BUCKET_PREFIX, Config, Declared
from penstock.operate.declared.values import Kind
from penstock.options.documents import Document, FileError, Place, Problem

API = "jetstream.nats.io/v1beta2"
_BUCKET_FIELDS = {field.name: field for _, field in BUCKET}

# NACK's names where they are not ours in camelCase; None for what its resources (v1beta2, April 2026) do not have.
_STREAM: Mapping[str, str | None] = {
    "num_replicas": "replicas", "allow_rollup_hdrs": "allowRollup", "discard_new_per_subject": "discardPerSubject",
    "first_seq": "firstSequence", "allow_atomic": "allowAtomicPublish", "allow_batched": None,
}  # fmt: skip
_CONSUMER: Mapping[str, str | None] = {
    "num_replicas": "replicas", "idle_heartbeat": "heartbeatInterval", "max_batch": "maxRequestBatch",
    "max_expires": "maxRequestExpires", "max_bytes": "maxRequestMaxBytes", "priority_timeout": "pinnedTtl",
}  # fmt: skip
_BUCKET: Mapping[str, str | None] = {
    "num_replicas": "replicas", "metadata": None, "allow_msg_ttl": None, "allow_direct": None,
}  # fmt: skip
_PARTS: Mapping[str, Mapping[str, str | None]] = {
    "mirror": {"consumer": None},
    "sources": {"consumer": None},
    "subject_transform": {"src": "source"},
    "subject_transforms": {"src": "source"},
    "republish": {"src": "source", "dest": "destination", "headers_only": "headers_only"},
}
# NACK's own defaults are another storage, memory, and no acknowledgements: ours are written.
_OURS = {"ackPolicy": "explicit"}
_THEIRS: Mapping[str, Config] = {"Stream": {"storage": "memory"}, "Consumer": {"ack_policy": "none"}, "KeyValue": {}}
_KINDS = {"Stream": "streams", "Consumer": "consumers", "KeyValue": "buckets"}


class Exported(NamedTuple):
    """A file, and what it cannot say."""

    text: str
    left_out: tuple[str, ...]
    resources: tuple[dict[str, Any], ...]  # for programs, each by itself


def camel(name: str) -> str:
    """A name as Go's JSON has it there."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def export(declared: Declared) -> Exported:
    """The resources, one document each. What NACK cannot carry is a comment there, and in `left_out`."""
    documents: list[str] = []
    resources: list[dict[str, Any]] = []
    left_out: list[str] = []
    names: set[str] = set()

    def add(kind: str, name: str, spec: Config, lost: Iterable[str]) -> None:
        name = _dns(name, kind, names)
        documents.append(_resource(kind, name, spec, lost))
        resources.append({"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec})

    for stream in declared.streams.values():
        if stream.absent:
            left_out.append(f"{stream.title}: 'absent'; delete its resource instead")
            continue
        if stream.is_whole and stream.bucket:
            config = _bucket_words(stream.config, stream.bucket)
            spec, lost = _spec(_BUCKET_FIELDS, _BUCKET, config)
            add("KeyValue", stream.bucket, {"bucket": stream.bucket, **spec}, lost)
        elif stream.is_whole:
            spec, lost = _spec(STREAM_FIELDS, _STREAM, {"storage": "file", **stream.config})
            add("Stream", stream.name, {"name": stream.name, **spec}, lost)
        else:
            lost = []
        left_out += [f"{stream.title}: '{name}'" for name in lost]
        for consumer in stream.consumers.values():
            if consumer.absent:
                left_out.append(f"consumer '{consumer.name}': 'absent'; delete its resource instead")
                continue
            spec, lost = _spec(CONSUMER_FIELDS, _CONSUMER, consumer.config)
            spec = {"streamName": stream.name, "durableName": consumer.name, **_OURS, **spec}
            add("Consumer", f"{stream.name}-{consumer.name}", spec, lost)
            left_out += [f"consumer '{consumer.name}' of {stream.title}: '{name}'" for name in lost]
    return Exported("---\n".join(documents), tuple(left_out), tuple(resources))


def _bucket_words(config: Config, bucket: str) -> Config:
    """A bucket's stream in a bucket's words; origins without what NACK's controller adds by itself."""
    from penstock.operate.declared.buckets import plain_origins

    words = {stream: field.name for stream, field in BUCKET}
    found = {words.get(name, name): value for name, value in plain_origins(config, bucket).items()}
    if found.get("limit_marker_ttl"):
        found.pop("allow_msg_ttl", None)  # which goes with it by itself
    return found


def _spec(fields: Mapping[str, Field], names: Mapping[str, str | None], config: Config) -> tuple[Config, list[str]]:
    """The fields in NACK's words, and those that it lacks."""
    spec: Config = {}
    lost: list[str] = []
    for name, value in config.items():
        field = fields.get(name)
        theirs = names.get(name, camel(name)) if field is not None else None
        if field is None or theirs is None:
            lost.append(name)
        elif (name, value) == ("ack_policy", "flow_control"):
            lost.append(f"{name} = {value}")
        elif name == "deliver_policy":
            spec[theirs] = camel(value)
        elif field.kind in (Kind.OBJECT, Kind.OBJECTS):
            tables = [value] if field.kind is Kind.OBJECT else value
            said = [_part(field, each, lost) for each in tables]
            spec[theirs] = said[0] if field.kind is Kind.OBJECT else said
        elif fields is _BUCKET_FIELDS and name == "compression":
            spec[theirs] = value == "s2"
        elif fields is _BUCKET_FIELDS and name == "limit_marker_ttl":
            spec[theirs] = value  # a number of nanoseconds there
        else:
            spec[theirs] = _said(field, value)
    return spec, lost


def _part(field: Field, value: Config, lost: list[str]) -> Config:
    found: Config = {}
    names = _PARTS.get(field.name, {})
    known = {part.name: part for part in field.parts}
    for name, each in value.items():
        part = known.get(name)
        if name == "external":
            found |= {"externalApiPrefix": each.get("api", ""), "externalDeliverPrefix": each.get("deliver", "")}
        elif part is None or names.get(name, "") is None:
            lost.append(f"{field.name}.{name}")
        elif part.kind is Kind.OBJECTS:
            found[camel(name)] = [_part(part, one, lost) for one in each]
        else:
            found[names.get(name) or camel(name)] = _said(part, each)
    return found


def _said(field: Field, value: Any) -> Any:
    """A value as NACK takes it: durations as Go writes them."""
    if field.kind is Kind.DURATION:
        return _go(value)
    if field.kind is Kind.DURATIONS:
        return [_go(each) for each in value]
    return value


def _go(nanoseconds: int) -> str:
    text = values.duration(nanoseconds)
    return f"{int(text[:-1]) * 24}h" if text.endswith("d") else text


def _resource(kind: str, name: str, spec: Config, lost: Iterable[str]) -> str:
    lines = [f"apiVersion: {API}", f"kind: {kind}", "metadata:", f"  name: {json.dumps(name)}", "spec:"]
    lines += [f"  # NACK has no '{each}'." for each in lost]
    lines += _yaml(spec, "  ")
    return "\n".join(lines) + "\n"


def _dns(name: str, kind: str, taken: set[str]) -> str:
    """A name that Kubernetes takes, lower case, digits and dashes, and that no other resource of that kind has."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:240] or "x"
    found, number = plain, 1
    while f"{kind}/{found}" in taken:
        number += 1
        found = f"{plain}-{number}"
    taken.add(f"{kind}/{found}")
    return found


def _yaml(table: Mapping[str, Any], indent: str) -> list[str]:
    """A table in YAML's own layout; what is inside of a list is JSON, which YAML takes too."""
    lines: list[str] = []
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            lines += [f"{indent}{key}:", *_yaml({_scalar(str(k)): v for k, v in value.items()}, indent + "  ")]
        elif isinstance(value, list) and value:
            lines += [f"{indent}{key}:", *(f"{indent}  - {_scalar(each)}" for each in value)]
        else:
            lines.append(f"{indent}{key}: {_scalar(value)}")
    return lines


def _scalar(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", value) and value.lower() not in _NOT_TEXT:
        return value
    return json.dumps(value)


_NOT_TEXT = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")


def read(path: Path) -> Document:
    """NACK's resources of a file, as a declaration in our words. A FileError where they are none."""
    try:
        import yaml  # type: ignore[import-untyped,unused-ignore]
    except ModuleNotFoundError:
        raise FileError([Problem(path, 0, "YAML needs the package pyyaml: pip install pyyaml")]) from None
    try:
        found = [(each.start_mark.line + 1, _plain(each)) for each in yaml.compose_all(path.read_bytes()) if each]
    except OSError as error:
        raise FileError([Problem(path, 0, f"cannot be read: {error.strerror}.")]) from None
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", -1) + 1
        raise FileError([Problem(path, line, f"is not valid YAML: {getattr(error, 'problem', error)}.")]) from None
    return _document(path, found)


def _plain(node: Any) -> Any:
    import yaml

    return yaml.SafeLoader("").construct_document(node)


def _document(path: Path, found: Iterable[tuple[int, Any]]) -> Document:
    """Resources as the tables of a declaration; each value has the line of its resource."""
    tables: Config = {"streams": {}, "buckets": {}}
    lines: dict[Place, int] = {(): 1}
    problems: list[Problem] = []
    consumers: list[tuple[int, Config]] = []
    for line, resource in found:
        kind = resource.get("kind") if isinstance(resource, dict) else None
        spec = resource.get("spec") if isinstance(resource, dict) else None
        if kind not in _KINDS or not isinstance(spec, dict):
            problems.append(Problem(path, line, f"a {kind or 'document'} is no Stream, Consumer or KeyValue of NACK."))
        elif kind == "Consumer":
            consumers.append((line, spec))
        else:
            fields, names, own = (
                (STREAM_FIELDS, _STREAM, "name") if kind == "Stream" else (_BUCKET_FIELDS, _BUCKET, "bucket")
            )
            name = str(spec.get(own) or resource.get("metadata", {}).get("name", ""))
            tables[_KINDS[kind]][name] = _THEIRS[kind] | _ours(
                fields, names, {k: v for k, v in spec.items() if k != own}
            )
            lines[(_KINDS[kind], name)] = line
    for line, spec in consumers:
        stream, name = str(spec.get("streamName", "")), str(spec.get("durableName", ""))
        bucket = stream.removeprefix(BUCKET_PREFIX)
        above = (
            ("buckets", bucket)
            if stream.startswith(BUCKET_PREFIX) and bucket in tables["buckets"]
            else ("streams", stream)
        )
        rest = {k: v for k, v in spec.items() if k not in ("streamName", "durableName")}
        into = tables[above[0]].setdefault(above[1], {}).setdefault("consumers", {})
        into[name] = _THEIRS["Consumer"] | _ours(CONSUMER_FIELDS, _CONSUMER, rest)
        lines[(*above, "consumers", name)] = line
    if problems:
        raise FileError(problems)
    return Document(path, {key: value for key, value in tables.items() if value}, lines)


def _ours(fields: Mapping[str, Field], names: Mapping[str, str | None], spec: Config) -> Config:
    """NACK's fields in our words; what is not known stays as it is, and is told like any unknown field."""
    back = {theirs: name for name, field in fields.items() if (theirs := names.get(name, camel(field.name)))}
    found: Config = {}
    for theirs, value in spec.items():
        if theirs in _CONTROLLERS or (theirs, value) == ("ackWait", "1ns"):  # which is its word for the default
            continue
        name = back.get(theirs, theirs)
        field = fields.get(name)
        if field is not None and field.kind is Kind.OBJECT and isinstance(value, dict):
            value = _our_part(field, value)
        elif field is not None and field.kind is Kind.OBJECTS and isinstance(value, list):
            value = [_our_part(field, each) if isinstance(each, dict) else each for each in value]
        elif name == "deliver_policy" and isinstance(value, str):
            value = re.sub(r"([A-Z])", lambda match: f"_{match[1].lower()}", value)
        elif fields is _BUCKET_FIELDS and name == "compression" and isinstance(value, bool):
            value = "s2" if value else "none"
        elif fields is _BUCKET_FIELDS and name == "limit_marker_ttl" and isinstance(value, int):
            value = values.duration(value)
        found[name] = value
    return found


# Fields for NACK's controller: where its server is, and what it may do.
_CONTROLLERS = (
    "servers", "nkey", "creds", "tls", "tlsFirst", "account", "preventDelete", "preventUpdate", "jsDomain",
)  # fmt: skip


def _our_part(field: Field, value: Config) -> Config:
    names = _PARTS.get(field.name, {})
    back = {(names.get(part.name) or camel(part.name)): part for part in field.parts}
    found: Config = {}
    external = {
        name: value[theirs]
        for name, theirs in (("api", "externalApiPrefix"), ("deliver", "externalDeliverPrefix"))
        if value.get(theirs)
    }
    for theirs, each in value.items():
        part = back.get(theirs)
        if theirs in ("externalApiPrefix", "externalDeliverPrefix"):
            continue
        if part is not None and part.kind is Kind.OBJECTS and isinstance(each, list):
            each = [_our_part(part, one) for one in each]
        found[part.name if part is not None else theirs] = each
    return found | ({"external": external} if external else {})
