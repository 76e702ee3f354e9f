"""The JSON Schema of a pipeline file, for editors, and tables of its keys, for the documentation. Both derive from the
models and from the declared options. Knows no files and no Spark.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.options import Options
from penstock.options import json_schema as of_options
from penstock.pipelines import model, systems
from penstock.pipelines.sections import SHARED

_FROM_OUTSIDE = {"$ref": "#/$defs/secret"}
# Numbers and the like may be written as text, where they come from a variable.
_VARIABLE = {"type": "string", "pattern": r"\$\{"}
_SECRET = {
    "type": "object",
    "description": "From an environment variable, or from a file.",
    "properties": {"env": {"type": "string"}, "file": {"type": "string"}},
    "minProperties": 1,
    "maxProperties": 1,
    "additionalProperties": False,
}
_PROPERTIES = {"type": "object", "description": "Options of the format, passed on as they are written."}
# Keys whose text may be kept outside of the file.
_OUTSIDE = (
    "identifier", "location", "schema_file", "schema_registry_url", "schema_registry_username",
    "schema_registry_password", "schema_registry_token",
)  # fmt: skip
_TABLES: Mapping[str, type[model.Section]] = {
    "input_schema": model.Schema,
    "output_schema": model.Schema,
    "routing": model.Routing,
    "trigger": model.Trigger,
    "checkpoint": model.CheckpointTable,
    "errors": model.Errors,
    "restart": model.Restart,
    "spark": model.Spark,
}


def json_schema() -> dict[str, Any]:
    """The schema of a file. It knows names, types and choices; what fits together, only `penstock check` knows."""
    defs: dict[str, Any] = {"secret": _SECRET}
    sink = {"$ref": "#/$defs/sink"}
    defs["source"] = _end(model.Source, systems.SOURCES, {"source_type", "source_identifier", "input_schema"})
    defs["sink"] = _end(model.Sink, systems.SINKS, {"schema"})
    tables = {name: _section(kind, defs) for name, kind in _TABLES.items()}
    tables["errors"]["properties"]["sink"] = sink
    defs["schema"] = _either("string", tables["input_schema"]["properties"]["type"], tables["input_schema"])
    tables |= {name: {"$ref": "#/$defs/schema"} for name in ("input_schema", "output_schema")}
    steps = {name: _step(name, kind, defs) for name, kind in model.TRANSFORMS.items()}
    by_kind = {name: step for name, step in steps.items() if name in model.FIELD_TRANSFORMS}
    one = {"type": "object", "properties": steps, "minProperties": 1, "maxProperties": 1, "additionalProperties": False}
    top = _section(model.Top, defs)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A Penstock pipeline",
        "type": "object",
        "properties": {
            **top["properties"],
            "source": {"$ref": "#/$defs/source"},
            "sinks": _either("array", {"items": sink, "minItems": 1}, sink),
            "streams": {"type": "array", "items": {"type": "object"}, "description": "Topics of Iggy, for one end."},
            "transforms": _either(
                "array", {"items": one}, {"type": "object", "properties": by_kind, "additionalProperties": False}
            ),
            **tables,
            **{name: {"type": "object", "description": f"Options of every {name} in this file."} for name in SHARED},
        },
        "additionalProperties": False,
        "$defs": defs,
    }


def key_tables() -> Iterator[tuple[str, str, list[tuple[str, str, str]]]]:
    """Each table of a file: its name, what it is, and its keys with default and meaning."""
    yield "", model.Top.__doc__ or "", _keys(model.Top)
    yield "[source]", model.Source.__doc__ or "", _keys(model.Source)
    yield "[[sinks]]", model.Sink.__doc__ or "", _keys(model.Sink)
    for name, kind in _TABLES.items():
        if name != "output_schema":
            yield f"[{name}]", kind.__doc__ or "", _keys(kind)
    for name, kind in model.TRANSFORMS.items():
        yield f"transform {name}", kind.__doc__ or "", _keys(kind)


def _keys(kind: type[model.Section]) -> list[tuple[str, str, str]]:
    rows = []
    for name, field in kind.model_fields.items():
        if field.is_required():
            default = "required"
        elif field.default in (None, {}, ()) or field.default == []:
            default = ""
        else:
            is_time = "Seconds" in str(field.metadata) or name in ("backoff", "max_backoff", "reset_after")
            default = f"{field.default:g}s" if is_time else str(field.default).lower()
        rows.append((field.alias or name, default, field.description or ""))
    return rows


def _section(kind: type[model.Section], defs: dict[str, Any]) -> dict[str, Any]:
    raw = kind.model_json_schema(by_alias=True, ref_template="#/$defs/{model}")
    defs |= raw.pop("$defs", {})
    plain: dict[str, Any] = _plain(raw)
    plain["properties"] = {
        name: _or(each, _FROM_OUTSIDE) if name in _OUTSIDE else _or_variable(each)
        for name, each in plain["properties"].items()
    }
    return plain


def _or(schema: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Either of two; what describes the first describes both."""
    about = {key: schema[key] for key in ("description", "default") if key in schema}
    return about | {"anyOf": [{key: each for key, each in schema.items() if key not in about}, other]}


def _or_variable(schema: dict[str, Any]) -> dict[str, Any]:
    is_more_than_text = schema.get("type") in ("integer", "number", "boolean") or "pattern" in schema
    return _or(schema, _VARIABLE) if is_more_than_text else schema


def _either(kind: str, schema: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """`schema` for values of a kind, and `other` for the rest. Editors then show what is wrong inside of a value, where
    `anyOf` would only say that nothing fits.
    """
    return {"if": {"type": kind}, "then": schema, "else": other}


def _plain(schema: Any) -> Any:
    """Without titles and nulls: a key is left out instead."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema if each != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    kept = {
        key: ({name: _plain(value) for name, value in each.items()} if key == "properties" else _plain(each))
        for key, each in schema.items()
        if not (key == "title" and isinstance(each, str)) and not (key == "default" and each is None)
    }
    if len(kept.get("anyOf", ())) == 1:
        (only,) = kept.pop("anyOf")
        kept = only | kept
    return kept


def _step(name: str, kind: type[model.Section], defs: dict[str, Any]) -> Any:
    section = _section(kind, defs)
    return section if name in model.FIELD_TRANSFORMS else section["properties"][name]


def _end(kind: type[model.Section], kinds: Mapping[str, Any], more: set[str]) -> dict[str, Any]:
    """A source or a sink: its own keys, and by its type the options of the format, in either spelling."""
    section = _section(kind, {})
    own = section["properties"]
    own["type"] = {
        "description": own["type"].get("description", ""),
        "anyOf": [
            {"enum": list(kinds)},
            {"type": "object", "properties": {"custom": {"type": "string"}}, "required": ["custom"]},
        ],
    }
    own["properties"] = _PROPERTIES
    schema = {"$ref": "#/$defs/schema"}
    own |= {name: schema for name in ("input_schema", "output_schema", "schema") if name in more or name in own}
    own |= {name: {} for name in more if name not in own}
    by_type = [
        {
            "if": {"properties": {"type": {"const": name}}, "required": ["type"]},
            "then": {
                "properties": {**dict.fromkeys(own, True), **_options(each.options)},
                "additionalProperties": False,
            },
        }
        for name, each in kinds.items()
        if each.options is not None
    ]
    return {"type": "object", "description": kind.__doc__, "properties": own, "required": ["type"], "allOf": by_type}


def _options(declared: type[Options]) -> dict[str, Any]:
    """Options by both spellings. A value may also come from the environment or a file."""
    described = of_options(declared)["properties"]
    either: dict[str, Any] = {}
    for name, each in described.items():
        either[name] = either[snake(name)] = _or(_or_variable(each), _FROM_OUTSIDE)
    return either


def snake(name: str) -> str:
    """`startingOffsets` as `starting_offsets`."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
