"""Key-value buckets: the stream that each one is, as NATS' clients make it (ADR-8). Pure."""

from dataclasses import replace
from typing import Any

from penstock.operate.declared.configs import canonical, normal
from penstock.operate.declared.fields import BUCKET, STREAM_FIELDS
from penstock.operate.declared.model import BUCKET_PREFIX, Config, DeclaredStream

_WORDS = {field.name: stream for stream, field in BUCKET}
_FIELDS = {stream: field.name for stream, field in BUCKET}
_WINDOW = STREAM_FIELDS["duplicate_window"].default
MOST_HISTORY = 64


def subjects(bucket: str) -> str:
    """The subjects of its keys."""
    return f"$KV.{bucket}.>"


def stream_of(declared: DeclaredStream) -> DeclaredStream:
    """The stream that a declared bucket is: its words are the stream's, and a new one has what clients rely on."""
    bucket = declared.name
    config = {_WORDS.get(name, name): value for name, value in declared.config.items()}
    for name in ("mirror", "sources"):
        if config.get(name):
            origins = [config[name]] if name == "mirror" else config[name]
            named = [_origin(bucket, each, renames=name == "sources") for each in origins]
            config[name] = named[0] if name == "mirror" else named
    if config.get("subject_delete_marker_ttl"):
        config["allow_msg_ttl"] = True
    initial = _new(bucket, config)
    return replace(declared, name=f"{BUCKET_PREFIX}{bucket}", bucket=bucket, config=config, initial=initial)


def _origin(bucket: str, origin: Config, *, renames: bool) -> Config:
    """A bucket to copy from, named as its stream; keys of a source are renamed into keys of this bucket."""
    name = str(origin.get("name", "")).removeprefix(BUCKET_PREFIX)
    origin = {**origin, "name": f"{BUCKET_PREFIX}{name}"}
    if renames and "subject_transforms" not in origin and "filter_subject" not in origin:
        origin["subject_transforms"] = [{"src": subjects(name), "dest": subjects(bucket)}]
    return origin


def _new(bucket: str, config: Config) -> Config:
    """The fields of a new bucket that no file says."""
    made: Config = {
        "max_msgs_per_subject": 1, "discard": "new", "allow_rollup_hdrs": True, "deny_delete": True,
        "allow_direct": True, "max_msgs": -1, "max_consumers": -1,
    }  # fmt: skip
    if config.get("mirror"):
        made["mirror_direct"] = True
    else:
        age = config.get("max_age") or _WINDOW
        made |= {"subjects": [subjects(bucket)], "duplicate_window": min(_WINDOW, age)}
    return {name: value for name, value in made.items() if name not in config}


def plain_origins(config: Config, bucket: str) -> Config:
    """The configuration with buckets to copy from by their own names, without the renaming that each of them has."""
    config = dict(config)
    if config.get("mirror"):
        config["mirror"] = _named(config["mirror"])
    if config.get("sources"):
        config["sources"] = [_without_renaming(bucket, each) for each in config["sources"]]
    return config


def word(stream_field: str) -> str:
    """What a bucket calls a field of its stream."""
    return _FIELDS.get(stream_field, stream_field)


def bucket_of(config: Config) -> tuple[str, Config] | None:
    """The bucket that a stream is, and its fields in a bucket's words; None where a bucket's words do not say all of
    the stream.
    """
    name = str(config.get("name", ""))
    bucket = name.removeprefix(BUCKET_PREFIX)
    if not name.startswith(BUCKET_PREFIX) or not bucket:
        return None
    plain = plain_origins(config, bucket)
    words: Config = {_FIELDS[field]: plain[field] for field in _FIELDS if plain.get(field) not in (None, "", [], {})}
    if not 1 <= words.get("history", -1) <= MOST_HISTORY:
        return None
    declared = DeclaredStream(bucket, words, _NOWHERE)
    made = stream_of(declared)
    again: Any = canonical(STREAM_FIELDS, {"name": name} | made.initial | made.config)
    is_same = all(
        normal(field, config.get(key)) == again.get(key)
        for key, field in STREAM_FIELDS.items()
        if key not in ("subjects", "metadata", "mirror_direct")
    )
    has_its_subjects = bool(config.get("mirror")) or config.get("subjects") == [subjects(bucket)]
    return (bucket, words) if is_same and has_its_subjects and config.keys() <= {*STREAM_FIELDS, "name"} else None


def _named(origin: Config) -> Config:
    return {**origin, "name": str(origin.get("name", "")).removeprefix(BUCKET_PREFIX)}


def _without_renaming(bucket: str, origin: Config) -> Config:
    """A source without the renaming that every source of a bucket has."""
    named = _named(origin)
    usual = [{"src": subjects(named["name"]), "dest": subjects(bucket)}]
    return {k: v for k, v in named.items() if k != "subject_transforms" or v != usual}


_NOWHERE: Any = None
