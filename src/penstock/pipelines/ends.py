"""The tables of sources and sinks, as what Spark is given. Knows declarations; asks no server."""

from collections.abc import Mapping
from typing import Any

from penstock.errors import OptionError
from penstock.kit import templates
from penstock.options.documents import Place
from penstock.pipelines import model, systems
from penstock.pipelines.pipeline import SinkEnd, SourceEnd
from penstock.pipelines.sections import Sections, nearest

# Other words for keys, each the seed's or the runtime's.
ALIASES = {"source_type": "type", "source_identifier": "identifier"}


def ends(file: Sections) -> tuple[Any, list[tuple[Place, Any]]]:
    """The source and the sinks. `[[streams]]` of Iggy stand for the end that is missing."""
    source, sinks, streams = (file.values.get(name) for name in ("source", "sinks", "streams"))
    if isinstance(sinks, dict):
        sinks = [sinks]  # [sinks] for a single one
    listed: list[tuple[Place, Any]] = (
        [(("sinks", i), sink) for i, sink in enumerate(sinks)] if isinstance(sinks, list) else []
    )
    if streams is not None:
        as_ends: list[tuple[Place, Any]] = [
            (("streams", i), {"type": "iggy", **each} if isinstance(each, dict) else each)
            for i, each in enumerate(streams if isinstance(streams, list) else [streams])
        ]
        if source is not None and sinks is None and as_ends:
            return source, as_ends
        if source is None and len(as_ends) == 1 and listed:
            return as_ends[0][1], listed
        file.problem(("streams",), "[[streams]] are Iggy's, in place of [source] or [[sinks]]: leave one of them out.")
    if source is None:
        file.problem((), "there is no [source]: where do records come from?")
    if not listed:
        file.problem((), "there is no [[sinks]]: where do rows go?")
    return source, listed


def source(file: Sections, raw: Any) -> tuple[model.Source | None, SourceEnd | None]:
    """The source as its table has it, and as Spark is given it; None where it is wrong."""
    place: Place = ("source",) if "source" in file.values else ("streams", 0)
    if raw is None:
        return None, None
    given = {ALIASES.get(key, key): value for key, value in raw.items()} if isinstance(raw, dict) else raw
    own_schema = given.pop("input_schema", None) if isinstance(given, dict) else None
    schema = file.schema("input_schema", (*place, "input_schema"), own_schema)
    source = file.section(model.Source, place, given)
    if source is None:
        return None, None
    name = _type(file, source.type, place, systems.SOURCES)
    if name is None:
        return source, None
    kind = systems.SOURCES[name] if isinstance(source.type, str) else systems.custom_source(name)
    options, hidden = file.options(name, kind.options, place, source.model_extra or {}, source.properties, kind.renamed)
    if source.identifier is not None:
        _identify(file, place, kind.identifier, source.identifier, options, name)
    is_files = name == "file_system"
    file_format = _file_format(file, options, schema) if is_files else None
    for key, target in (("batch_size", kind.batch_size), ("parallelism", kind.parallelism)):
        value = getattr(source, key)
        if value is not None and target is None:
            file.problem((*place, key), f"'{key}' has no meaning for the source '{name}': leave it out.")
        elif value is not None and target is not None:
            options.setdefault(target, str(value))
    try:
        _start(file, source, kind, options)
    except OptionError as error:
        file.problem((*place, "initial_offset"), str(error))
    file.parse(name, kind.options, options, place, source.properties)
    file.place_paths(kind.options, options)
    if name == "kafka":
        options.setdefault("includeHeaders", "true")  # Spark's own default is false
    if is_files and "path" in options:
        options["path"] = file.path(options["path"])
    end = SourceEnd(name, name, options, hidden, kind=kind, schema=schema, file_format=file_format)
    return source, end


def _start(file: Sections, source: model.Source, kind: systems.SourceKind, options: dict[str, str]) -> None:
    if kind.start is None:
        if source.initial_offset is not None:
            raise OptionError("'initial_offset' has no meaning for this source, which has no positions to start at.")
        return
    is_set = any(option in options for option in ("startingOffsets", "startingTimestamp"))
    if source.initial_offset is not None and is_set:
        raise OptionError("set 'initial_offset' or 'starting_offsets', not both: they are one.")
    if not is_set and options.get("ack", "none") == "none":
        options |= kind.start("earliest" if source.initial_offset is None else source.initial_offset, options)


def _file_format(file: Sections, options: dict[str, str], schema: model.Schema | None) -> str:
    by_property = options.pop("file.format", None)
    options.pop("file.monitor.interval", None)  # see _shorthands
    name = options.pop("format", None) or by_property or (schema.type if schema and schema.type != "raw" else "json")
    if name not in ("json", "csv", "text", "parquet", "orc"):
        file.problem(("source",), f"files of the format '{name}' cannot be read: json, csv, text, parquet, orc can.")
    return name


def sink(file: Sections, place: Place, raw: Any) -> SinkEnd | None:
    """A sink as Spark is given it; None where it is wrong."""
    given = dict(raw) if isinstance(raw, dict) else raw
    of_type = given.pop("schema", None) if isinstance(given, dict) else None
    sink = file.section(model.Sink, place, given)
    if sink is None:
        return None
    name = _type(file, sink.type, place, systems.SINKS)
    if name is None:
        return None
    kind = systems.SINKS[name] if isinstance(sink.type, str) else systems.custom_sink(name)
    own_schema = {"type": of_type} if of_type is not None and sink.output_schema is None else sink.output_schema
    schema = file.schema("output_schema", (*place, "output_schema"), own_schema)
    options, hidden = file.options(name, kind.options, place, sink.model_extra or {}, sink.properties, kind.renamed)
    if sink.identifier is not None:
        _identify(file, place, kind.identifier, sink.identifier, options, name)
    file.parse(name, kind.options, options, place, sink.properties)
    file.place_paths(kind.options, options)
    if name in ("kafka", "iggy") and templates.columns(options.get("topic", "")):
        way = "fill 'topic' in [routing]" if name == "kafka" else "give each topic a sink, and fill 'sink' in [routing]"
        file.problem(place, f"the topic of {name.title()} is one name, without columns in braces: {way}.")
    partition_by = options.pop("partitionBy", "")
    if kind.options is systems.FileWriteOptions:
        if "path" not in options:
            file.problem(
                place, f"the sink '{name}' needs an 'identifier': {'the table' if name == 'iceberg' else 'the folder'}."
            )
        elif name != "iceberg":
            options["path"] = file.path(options["path"])
    if sink.envelope and schema is not None and schema.type != "json":
        file.problem((*place, "envelope"), f"an envelope is JSON, and the output_schema is {schema.type}: choose one.")
    if sink.envelope and not kind.messages:
        file.problem(
            (*place, "envelope"), f"'envelope' makes messages, and the sink '{name}' takes columns: leave it out."
        )
    headers = sink.headers or ("source" if name == "iggy" else "keep")
    return SinkEnd(
        sink.name or name, name, options, hidden, kind=kind, schema=schema, envelope=sink.envelope,
        headers=headers, partition_by=tuple(part.strip() for part in partition_by.split(",") if part.strip()),
    )  # fmt: skip


def _identify(file: Sections, place: Place, maps: Any, identifier: str, options: dict[str, str], name: str) -> None:
    if maps is None:
        file.problem((*place, "identifier"), f"'identifier' has no meaning for '{name}': leave it out.")
        return
    for key, value in maps(identifier).items():
        if options.setdefault(key, value) != value:
            file.problem((*place, "identifier"), f"'identifier' and '{key}' say two different things: set one of them.")


def _type(file: Sections, given: Any, place: Place, kinds: Mapping[str, Any]) -> str | None:
    if isinstance(given, dict) and list(given) == ["custom"] and isinstance(given["custom"], str):
        return given["custom"]
    if not isinstance(given, str):
        file.problem((*place, "type"), 'type must be a name, or { custom = "format" } for any other format of Spark.')
    elif given not in kinds:
        hint = nearest(given, list(kinds))
        what = "source" if kinds is systems.SOURCES else "sink"
        text = f"there is no {what} of the type '{given}'. {hint} For any other format of Spark write"
        file.problem((*place, "type"), f'{text} {{ custom = "{given}" }}.')
    else:
        return given
    return None
