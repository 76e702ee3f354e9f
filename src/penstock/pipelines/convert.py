"""The configuration of the Flink source connector for Iggy, as a pipeline file. Keys that mean nothing here are named,
each with the reason. Pure: text in, text out.
"""

import json
import tomllib
from typing import Any, NamedTuple

from penstock.errors import OptionError

# Keys of `[source.config]` that have the same name and meaning here.
_SAME = ("batch_size", "poll_interval_ms", "initial_offset", "skip_errors", "parallelism")
_FOREIGN = "it asks a Flink cluster, and here Spark itself reads the source"
_MEANINGLESS = {
    "flink_cluster_url": f"{_FOREIGN}: where Spark runs is said by --master or [spark]",
    "connection_timeout_secs": f"{_FOREIGN}: sources and sinks have timeouts of their own",
    "auth": f"{_FOREIGN}: sources and sinks have credentials of their own",
    "job_id": f"{_FOREIGN}: this pipeline is the job, and its key is its name",
    "job_name_pattern": f"{_FOREIGN}: this pipeline is the job, and its key is its name",
    "enable_checkpointing": "every batch is a checkpoint, always",
    "checkpoint_interval_secs": "every batch is a checkpoint: poll_interval_ms says how often",
}
_OWN_TASKS = {
    "file_system": "Spark reads files with as many tasks as they need",
    "kinesis": "each shard is read by one task",
}
_PROPERTIES = {
    "queryable.state.name": "Flink's state cannot be queried here",
    "state.backend": "Flink's setting: a stateful query of Spark has [spark.conf] "
    '"spark.sql.streaming.stateStore.providerClass"',
    "kafka.group.id": "the checkpoint has the position, and there is no consumer group",
}
_IGGY = """
[[sinks]]
type = "iggy"
address = "127.0.0.1:8090"
username = "iggy"
password = { env = "IGGY_PASSWORD" }
stream = "STREAM"  # set both
topic = "TOPIC"
"""


class Converted(NamedTuple):
    """A pipeline file, and what of the other file has no place in it."""

    text: str
    left_out: list[str]


def convert(text: str, key: str) -> Converted:
    """A pipeline file from the seed's. An OptionError where it is not one."""
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise OptionError(f"this is not valid TOML: {error}.") from None
    source = given.get("source", given)
    config = source.get("config", source) if isinstance(source, dict) else None
    if not isinstance(config, dict) or not any(name in config for name in ("source_type", "flink_cluster_url")):
        raise OptionError(
            "this is not a configuration of the Flink source: there is no [source.config] with source_type."
        )
    left_out = [f"{name}: {why}." for name, why in _MEANINGLESS.items() if name in config]
    known = {*_SAME, *_MEANINGLESS, "source_type", "source_identifier", "properties", "input_schema", "output_schema",
             "restore_from_checkpoint"}  # fmt: skip
    left_out += [f"{name}: not a key that is known here." for name in config if name not in known]
    kind = config.get("source_type", "kafka")
    properties = dict(config.get("properties", {}))
    left_out += [f"properties.{name}: {why}." for name, why in _PROPERTIES.items() if name in properties]
    kept = {name: value for name, value in properties.items() if name not in _PROPERTIES}
    lines = [f"key = {_toml(key)}", "", "[source]", f"type = {_toml(kind)}"]
    if "source_identifier" in config:
        lines.append(f"identifier = {_toml(config['source_identifier'])}")
    if isinstance(kind, str) and kind in _OWN_TASKS and "parallelism" in config:
        left_out.append(f"parallelism: {_OWN_TASKS[kind]}.")
    for name in _SAME:
        if name in config and not (isinstance(kind, str) and kind in _OWN_TASKS and name == "parallelism"):
            value = config[name]
            if name == "initial_offset" and isinstance(value, str) and value.isdigit():
                value = {"0": int(value)}
            lines.append(f"{name} = {_toml(value)}")
    if kind == "kafka" and "kafka.bootstrap.servers" not in kept:
        lines.append('bootstrap_servers = "localhost:9092"  # the other file leaves it to the Flink job')
    if kept:
        lines += ["", "[source.properties]", *(f"{_toml(name)} = {_toml(value)}" for name, value in kept.items())]
    for name in ("input_schema", "output_schema"):
        if name in config:
            place = f"source.{name}" if name == "input_schema" else name
            lines += ["", f"[{place}]", *(f"{key} = {_toml(value)}" for key, value in config[name].items())]
    if "restore_from_checkpoint" in config:
        left_out.append(
            f"restore_from_checkpoint: '{config['restore_from_checkpoint']}' is a checkpoint of Flink, which Spark "
            "cannot read. Say where to start with initial_offset."
        )
    comments = [f"# Left out. {line}" for line in left_out]
    return Converted("\n".join([*comments, *([""] if comments else []), *lines, ""]) + _IGGY, left_out)


def _toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(name)} = {_toml(each)}" for name, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() else json.dumps(name)
