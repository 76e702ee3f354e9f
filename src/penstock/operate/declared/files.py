"""Declaration files: TOML in JetStream's own words, and NACK's YAML. Every problem of every file is told at once, with
its line. Knows files and fields; asks no server.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.operate.declared import buckets, names, values
from penstock.operate.declared.fields import BUCKET, CONSUMER_FIELDS, STREAM_FIELDS, Field
from penstock.operate.declared.model import Config, Declared, DeclaredConsumer, DeclaredStream, Place
from penstock.operate.declared.values import Kind
from penstock.options import documents
from penstock.options.documents import Document, FileError, Problem, Secret

_BUCKET_FIELDS = {field.name: field for _, field in BUCKET}
_TABLES = ("streams", "buckets")
_ENDINGS = (".toml", ".yaml", ".yml")


def load(paths: Sequence[Path]) -> Declared:
    """What files declare, and all such files in folders. A FileError with all that is wrong in any of them."""
    problems: list[Problem] = []
    found: list[DeclaredStream] = []
    for path in _files(paths, problems):
        try:
            if path.suffix == ".toml":
                reading = Reading(documents.read(path))
            else:
                from penstock.operate.declared import nack

                reading = Reading(nack.read(path))
            found += reading.streams()
            problems += reading.problems
        except FileError as error:
            problems += error.problems
    together = _together(found, problems)
    if problems:
        raise FileError(problems)
    return together


def _files(paths: Sequence[Path], problems: list[Problem]) -> Iterable[Path]:
    for path in paths:
        if path.is_dir():
            files = sorted(each for each in path.iterdir() if each.suffix in _ENDINGS)
            if not files:
                problems.append(Problem(path, 0, "this folder has no *.toml or *.yaml files."))
            yield from files
        elif path.suffix in _ENDINGS:
            yield path
        else:
            problems.append(Problem(path, 0, "must be a file *.toml, or NACK's resources in *.yaml."))


def _together(found: Iterable[DeclaredStream], problems: list[Problem]) -> Declared:
    """One declaration of each stream: its own fields are in one file, and its consumers may be in others."""
    streams: dict[str, DeclaredStream] = {}
    for each in found:
        before = streams.get(each.name)
        if before is None:
            streams[each.name] = each
            continue
        if before.is_whole and each.is_whole:
            problems.append(
                Problem(each.place.file, each.place.line, f"{each.title} is declared in {before.place} too.")
            )
        for name in before.consumers.keys() & each.consumers.keys():
            again, first = each.consumers[name].place, before.consumers[name].place
            problems.append(Problem(again.file, again.line, f"consumer '{name}' is declared in {first} too."))
        whole = each if each.is_whole else before
        streams[each.name] = replace(whole, consumers=before.consumers | each.consumers)
    return Declared(streams)


class Reading:
    """One file that is being read, and the problems in it so far."""

    def __init__(self, document: Document):
        self.document = document
        self.problems: list[Problem] = [each for each in document.missing if not _is_of_a_table(each)]

    def streams(self) -> list[DeclaredStream]:
        """The streams and buckets of the file, as far as they are right."""
        for key in self.document.values:
            if key in ("source", "sinks", "pipeline"):
                self._problem(
                    (key,), "this is a pipeline; `penstock run` takes it. Streams are declared in [streams.NAME]."
                )
            elif key not in _TABLES:
                self._problem((key,), f"unknown table '{key}'. {_nearest(key, [f'[{each}.NAME]' for each in _TABLES])}")
        found = [
            self._stream(name, ("streams", name), table, is_bucket=False)
            for name, table in self._tables(("streams",), self.document.values.get("streams", {}))
        ]
        found += [
            self._stream(name, ("buckets", name), table, is_bucket=True)
            for name, table in self._tables(("buckets",), self.document.values.get("buckets", {}))
        ]
        return found

    def _tables(self, place: documents.Place, values: Any) -> Iterable[tuple[str, dict[str, Any]]]:
        """The tables in a table, each with its name."""
        values = _plain(values, self.document.path)
        if not isinstance(values, dict):
            self._problem(place, f"'{place[-1]}' must be a table of tables, such as [{place[-1]}.NAME].")
            return
        for name, table in values.items():
            if isinstance(table, dict):
                yield name, table
            else:
                self._problem((*place, name), f"'{name}' must be a table, such as [{'.'.join(map(str, place))}.NAME].")

    def _stream(self, name: str, place: documents.Place, table: dict[str, Any], *, is_bucket: bool) -> DeclaredStream:
        self._check_name(name, place, "bucket" if is_bucket else "stream", is_bucket=is_bucket)
        own = {key: value for key, value in table.items() if key != "consumers"}
        absent = self._absent(own, place)
        fields = _BUCKET_FIELDS if is_bucket else STREAM_FIELDS
        config = self._fields(fields, own, place, f"[{'.'.join(map(str, place))}]", ["consumers", "absent", "extra"])
        consumers = {}
        for each, body in self._tables((*place, "consumers"), table.get("consumers", {})):
            consumers[each] = self._consumer(each, (*place, "consumers", each), body)
        if absent and consumers:
            self._problem((*place, "absent"), "'absent = true' deletes its consumers too: leave them out.")
        found = DeclaredStream(
            name, config, self._place(place), consumers, absent, is_whole=bool(own) or "consumers" not in table
        )
        return buckets.stream_of(found) if is_bucket else found

    def _consumer(self, name: str, place: documents.Place, table: dict[str, Any]) -> DeclaredConsumer:
        self._check_name(name, place, "consumer")
        absent = self._absent(table, place)
        config = self._fields(CONSUMER_FIELDS, table, place, "a consumer", ["absent", "extra"])
        if {"filter_subject", "filter_subjects"} <= config.keys():
            self._problem((*place, "filter_subject"), "'filter_subject' and 'filter_subjects': leave one of both out.")
        return DeclaredConsumer(name, config, self._place(place), absent)

    def _absent(self, table: dict[str, Any], place: documents.Place) -> bool:
        """Whether it should not be there. Nothing else is said of it then."""
        absent = table.get("absent", False)
        if not isinstance(absent, bool):
            self._problem((*place, "absent"), f"'absent' {Kind.BOOL.value}.")
        elif absent and len(table) > 1:
            others = ", ".join(f"'{key}'" for key in table if key != "absent")
            self._problem((*place, "absent"), f"'absent = true' asks to delete it: leave {others} out.")
        return absent is True

    def _fields(
        self, fields: Mapping[str, Field], table: dict[str, Any], place: documents.Place, where: str, others: list[str]
    ) -> Config:
        """The fields of a table as JetStream's JSON has them, and what `extra` adds."""
        config: Config = {}
        for key, value in table.items():
            if key in ("absent", "extra"):
                continue
            field = fields.get(key)
            if field is None:
                hint = _nearest(key, [*fields, *others])
                hint += "" if "mean" in hint else " A field of a newer server goes into extra = { ... }."
                self._problem((*place, key), f"unknown field '{key}' in {where}. {hint}")
            else:
                self._value(field, value, (*place, key), config)
        extra = table.get("extra", {})
        if not isinstance(extra, dict):
            self._problem((*place, "extra"), "'extra' must be a table of fields that the server knows.")
            return config
        for key, value in extra.items():
            if key in fields or key in ("name", "durable_name"):
                self._problem(
                    (*place, "extra"), f"'{key}' is no field to go into 'extra': write it beside, or leave it out."
                )
            config[key] = value
        return config

    def _value(self, field: Field, value: Any, place: documents.Place, into: Config) -> None:
        try:
            into[field.name] = self._parsed(field, value, place)
        except ValueError as error:
            choices = f" {', '.join(field.choices)}" if field.kind is Kind.CHOICE else ""
            self._problem(place, f"'{field.name}' {error}{choices if str(error) == Kind.CHOICE.value else ''}.")

    def _parsed(self, field: Field, value: Any, place: documents.Place) -> Any:
        if field.kind is Kind.OBJECT:
            if not isinstance(value, dict):
                raise ValueError(field.kind.value)
            return self._object(field, value, place) if value else {}
        if field.kind is Kind.OBJECTS:
            if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
                raise ValueError(field.kind.value)
            return [self._object(field, each, (*place, i)) for i, each in enumerate(value)]
        parsed = values.parse(field.kind, value)
        if field.choices and parsed not in field.choices:
            raise ValueError(f"is {parsed!r}, which is none of {', '.join(field.choices)}")
        if field.least is not None and parsed < field.least:
            raise ValueError(f"must be at least {field.least}")
        return parsed

    def _object(self, field: Field, value: dict[str, Any], place: documents.Place) -> Config:
        """A table inside of a field; parts without a default must be there."""
        found = self._fields({part.name: part for part in field.parts}, value, place, f"'{field.name}'", ["extra"])
        for part in field.parts:
            needed = part.default is None and part.kind is Kind.TEXT
            if needed and part.name not in value:
                self._problem(place, f"'{field.name}' needs '{part.name}': {part.meaning[0].lower()}{part.meaning[1:]}")
        return found

    def _check_name(self, name: str, place: documents.Place, what: str, *, is_bucket: bool = False) -> None:
        if words := names.problem(name, what, is_bucket=is_bucket):
            self._problem(place, words)

    def _place(self, place: documents.Place) -> Place:
        return Place(self.document.path, self.document.line(place))

    def _problem(self, place: documents.Place, text: str) -> None:
        if place not in self.document.lines:  # a table that only has tables stands where the first of them does
            place = next((each for each in self.document.lines if each[: len(place)] == place), place)
        self.problems.append(self.document.problem(place, text))


def _nearest(given: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(given.lower(), known, n=1)
    return f"Did you mean '{close[0]}'?" if close else f"There are: {', '.join(known)}."


def _is_of_a_table(problem: Problem) -> bool:
    """Whether it complains of `{ env = ... }` or `{ file = ... }`: nothing here is secret, so these are tables."""
    words = problem.text
    return words.endswith("is not set.") or (words.startswith("the file ") and " cannot be read: " in words)


def _plain(value: Any, path: Path) -> Any:
    """Tables that a pipeline would take for secrets, as tables again: metadata may well be { env = "prod" }."""
    if isinstance(value, Secret):
        if value.env is not None:
            return {"env": value.env}
        file = value.file or Path()
        return {"file": str(file.relative_to(path.parent) if file.is_relative_to(path.parent) else file)}
    if isinstance(value, dict):
        return {key: _plain(each, path) for key, each in value.items()}
    return [_plain(each, path) for each in value] if isinstance(value, list) else value
