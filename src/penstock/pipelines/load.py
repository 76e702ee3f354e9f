"""Files as pipelines. Every problem of every file is told at once, with its line. Knows files and declarations; starts
nothing, and asks no server.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.kit import templates
from penstock.options.documents import FileError, Place, Problem, read
from penstock.pipelines import model
from penstock.pipelines.ends import ends, sink, source
from penstock.pipelines.pipeline import Pipeline, SinkEnd, SourceEnd, Transform
from penstock.pipelines.sections import SHARED, Sections, nearest

TABLES = ("source", "sinks", "streams", "input_schema", "output_schema", "transforms", "routing", "trigger",
          "checkpoint", "errors", "restart", "spark")  # fmt: skip


def load(paths: Sequence[Path]) -> list[Pipeline]:
    """The pipelines of files, and of all `*.toml` in folders. A FileError with all that is wrong in any of them."""
    pipelines: list[Pipeline] = []
    problems: list[Problem] = []
    for path in _files(paths, problems):
        try:
            pipelines.append(_pipeline(Sections(read(path))))
        except FileError as error:
            problems += error.problems
    for key, group in _by(pipelines, "key").items():
        problems += [
            Problem(one.file, 1, f"key '{key}' is also that of {group[0].file}: give each its own.")
            for one in group[1:]
        ]
    for location, group in _by(pipelines, "location").items():
        problems += [
            Problem(one.file, 1, f"its checkpoint '{location}' is also that of {group[0].file}: give each its own.")
            for one in group[1:]
        ]
    if problems:
        raise FileError(problems)
    return pipelines


def _by(pipelines: Iterable[Pipeline], attribute: str) -> dict[str, list[Pipeline]]:
    groups: dict[str, list[Pipeline]] = {}
    for pipeline in pipelines:
        groups.setdefault(getattr(pipeline, attribute), []).append(pipeline)
    return groups


def _files(paths: Sequence[Path], problems: list[Problem]) -> Iterable[Path]:
    for path in paths:
        if path.is_dir():
            files = sorted(path.glob("*.toml"))
            if not files:
                problems.append(Problem(path, 1, "this folder has no *.toml files."))
            yield from files
        else:
            yield path


def _pipeline(file: Sections) -> Pipeline:
    """The pipeline of one file, or a FileError."""
    scalars = {key: value for key, value in file.values.items() if key not in (*TABLES, *SHARED)}
    top = file.section(model.Top, (), scalars, TABLES)
    checkpoint = file.table(model.CheckpointTable, "checkpoint")
    trigger, restart = file.table(model.Trigger, "trigger"), file.table(model.Restart, "restart")
    spark, errors = file.table(model.Spark, "spark"), file.table(model.Errors, "errors")
    routing = file.table(model.Routing, "routing")
    raw_source, raw_sinks = ends(file)
    source_table, source_end = source(file, raw_source)
    placed = [(place, end) for place, raw in raw_sinks if (end := sink(file, place, raw)) is not None]
    sinks = [end for _, end in placed]
    transforms = _transforms(file)
    if source_table is not None and errors is not None and trigger is not None:
        errors, trigger = _shorthands(file, source_table, errors, trigger)
    dead_letters = _dead_letters(file, errors)
    expressions = _routing(file, routing, placed, dead_letters, is_whole=len(placed) == len(raw_sinks))
    if source_end is not None and not transforms:
        for place, each in placed:
            _check_place(file, place, each, source_end, expressions)
    sinks = [_without_own_ids(each) if "id" in expressions else each for each in sinks]
    key = (
        (top.key if top else None) or re.sub(r"[^A-Za-z0-9_-]", "-", file.document.path.stem).strip("-_") or "pipeline"
    )
    if (
        file.problems
        or file.document.missing
        or not (top and checkpoint and trigger and restart and spark and errors and source_end)
    ):
        unknown = {
            problem.line for problem in file.document.missing
        }  # what else is said of these lines follows from it
        others = [problem for problem in file.problems if problem.line not in unknown]
        raise FileError([*file.document.missing, *others])
    location = file.path(checkpoint.location or f".penstock/{key}")
    return Pipeline(
        key, top.name or key, file.document.path, top.enabled, source_end, tuple(transforms), expressions, tuple(sinks),
        errors, dead_letters, trigger, checkpoint, location, restart, spark,
    )  # fmt: skip


def _transforms(file: Sections) -> list[Transform]:
    """The transforms in the order of the file: `[[transforms]]`, or the runtime's `[transforms.KIND]`."""
    given = file.values.get("transforms", [])
    steps: list[tuple[Place, str, Any]] = []
    if isinstance(given, dict):
        steps = [(("transforms", kind), kind, value) for kind, value in given.items()]
    elif isinstance(given, list):
        for i, step in enumerate(given):
            if not isinstance(step, dict) or len(step) != 1:
                file.problem(
                    ("transforms", i), f"a transform has one key, its kind. {nearest('', list(model.TRANSFORMS))}"
                )
                continue
            steps += [(("transforms", i, kind), kind, value) for kind, value in step.items()]
    else:
        file.problem(("transforms",), "transforms must be tables: [[transforms]].")
    transforms = []
    for place, kind, value in steps:
        if kind not in model.TRANSFORMS:
            file.problem(place, f"there is no transform '{kind}'. {nearest(kind, list(model.TRANSFORMS))}")
            continue
        values = value if kind in model.FIELD_TRANSFORMS else {kind: value}
        config = file.section(model.TRANSFORMS[kind], place, values)
        if config is not None and getattr(config, "enabled", True):
            _check_values(file, place, config)
            transforms.append(Transform(kind, config, file.document.line(place)))
    return transforms


def _check_values(file: Sections, place: Place, config: model.Section) -> None:
    """What models cannot say: a value is static or computed, and patterns must be regular expressions."""
    if isinstance(config, model.AddFields | model.UpdateFields):
        for i, each in enumerate(config.fields):
            if len(each.value.model_fields_set) != 1:
                file.problem(
                    (*place, "fields", i), f"the value of '{each.key}' must be static or computed, one of both."
                )
    if isinstance(config, model.FilterFields):
        for i, pattern in enumerate(config.patterns):
            for part in (pattern.key_pattern, pattern.value_pattern):
                if isinstance(part, model.Section) and len(part.model_fields_set) != 1:
                    file.problem((*place, "patterns", i), "a pattern has one key, such as starts_with.")
                try:
                    re.compile(getattr(part, "regex", None) or "")
                except re.error as error:
                    file.problem(
                        (*place, "patterns", i), f"'{getattr(part, 'regex', '')}' is not a regular expression: {error}."
                    )


def _dead_letters(file: Sections, errors: model.Errors | None) -> SinkEnd | None:
    if errors is None:
        return None
    if errors.mode != "dead_letter":
        if errors.sink is not None:
            file.problem(
                ("errors", "sink"), f"mode is '{errors.mode}', which writes no dead letters: leave 'sink' out."
            )
        return None
    if errors.sink is None:
        file.problem(("errors",), "mode is 'dead_letter', and there is no 'sink' for dead letters: add [errors.sink].")
        return None
    place: Place = ("errors", "sink")
    end = sink(file, place, {"name": "dead-letters", **errors.sink} if isinstance(errors.sink, dict) else errors.sink)
    if end is not None and end.kind.place is not None and end.messages:
        target = end.options.get(end.kind.place)
        if target is None:
            file.problem(place, f"the sink for dead letters does not say where they go: set '{end.kind.place}'.")
        elif templates.columns(target):
            file.problem(place, f"'{end.kind.place}' of dead letters is one name, without columns in braces.")
    return end


def _shorthands(
    file: Sections, source: model.Source, errors: model.Errors, trigger: model.Trigger
) -> tuple[model.Errors, model.Trigger]:
    """`skip_errors`, `poll_interval_ms` and `file.monitor.interval` of a source, as what they stand for."""
    if source.skip_errors:
        if "mode" in errors.model_fields_set and errors.mode != "skip":
            file.problem(
                ("source", "skip_errors"), f"skip_errors is true, and mode in [errors] is '{errors.mode}': set one."
            )
        errors = model.Errors(mode="skip")
    interval: float | None = source.poll_interval_ms / 1000 if source.poll_interval_ms else None
    if (text := source.properties.get("file.monitor.interval")) is not None:
        own = file.section(model.Trigger, ("source", "properties"), {"processing_time": text})
        interval = own.processing_time if own else None
    if interval is not None:
        if trigger.processing_time is not None:
            file.problem(
                ("trigger", "processing_time"), "the source says how often it is polled too: leave one of both out."
            )
        trigger = model.Trigger(processing_time=interval, available_now=trigger.available_now)
    if trigger.processing_time is not None and trigger.available_now:
        file.problem(("trigger",), "set processing_time or available_now, not both: what reads once has no interval.")
    return errors, trigger


def _check_place(
    file: Sections, place: Place, sink: SinkEnd, source: SourceEnd, expressions: Mapping[str, str]
) -> None:
    """A problem where nothing says to which subject, stream or topic rows go. Records that are not decoded go where
    they came from.
    """
    column = sink.kind.place
    if column is None or not sink.messages or column in sink.options or column in expressions:
        return
    comes_along = source.schema is None and column in source.kind.columns
    if not comes_along and source.kind.options is not None:
        file.problem(
            place, f"the sink '{sink.name}' does not say where rows go: set '{column}', or '{column}' in [routing]."
        )


def _without_own_ids(sink: SinkEnd) -> SinkEnd:
    """Iggy tells rows by their ids, which it then does not choose: it cannot know them again."""
    if sink.type != "iggy" or "delivery" in sink.options:
        return sink
    return replace(sink, options={**sink.options, "delivery": "at_least_once"})


def _routing(
    file: Sections,
    routing: model.Routing | None,
    sinks: Sequence[tuple[Place, SinkEnd]],
    dead_letters: SinkEnd | None,
    *,
    is_whole: bool,
) -> dict[str, str]:
    """The expressions, by the column that they fill. Each must be of use to a sink. `is_whole`: no sink was refused."""
    names = {dead_letters.name} if dead_letters is not None else set()
    for place, each in sinks:
        if each.name in names:
            file.problem(place, f"two sinks are called '{each.name}': give each a 'name' of its own.")
        names.add(each.name)
    if routing is None:
        return {}
    expressions = dict(routing.model_extra or {})
    takes = sorted({column for _, each in sinks for column in each.kind.takes})
    for key, value in expressions.items():
        if not isinstance(value, str):
            file.problem(("routing", key), f"'{key}' must be an SQL expression, as text.")
        elif key not in takes and is_whole:
            file.problem(("routing", key), f"no sink here takes a column '{key}'. {nearest(key, ['sink', *takes])}")
    return expressions | ({"sink": routing.sink} if routing.sink is not None else {})
