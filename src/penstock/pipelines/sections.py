"""One file that is being read: its tables as models, options as text, and all that is wrong. Knows declarations of keys
and options; starts nothing, and asks no server.
"""

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from penstock.connectors import FORMATS
from penstock.errors import OptionError
from penstock.options import Options, alias, secrets, shown, spellings
from penstock.options.documents import Document, Place, Problem, Secret
from penstock.options.model import SECRET
from penstock.pipelines import model, schemas, systems

# A table of such a name holds options for each source and sink of that type.
SHARED = (*(name for name, kind in systems.SINKS.items() if kind.ours), "kafka")

# Keys of a schema that name files.
_FILES = ("schema_file", "schema_registry_ca", "schema_registry_cert", "schema_registry_key")

Model = TypeVar("Model", bound=model.Section)


class Sections:
    """One file, and the problems in it so far."""

    def __init__(self, document: Document):
        self.document, self.problems = document, list[Problem]()
        self.values = document.values

    def problem(self, place: Place, text: str) -> None:
        """Note what is wrong at a place."""
        self.problems.append(self.document.problem(place, text))

    def table(self, kind: type[Model], name: str) -> Model | None:
        """A table of the file, or its defaults; None where it is wrong."""
        return self.section(kind, (name,), self.values.get(name, {}))

    def section(self, kind: type[Model], place: Place, values: Any, others: Sequence[str] = ()) -> Model | None:
        """Values as a model; None where they are wrong. `others`: names that may stand there as well."""
        where = f"[{'.'.join(str(part) for part in place if isinstance(part, str))}]" if place else "a pipeline file"
        if not isinstance(values, dict):
            self.problem(place, f"{where} must be a table, but is {kind_of(values)}.")
            return None
        try:
            return kind.model_validate(values)
        except ValidationError as error:
            for each in error.errors(include_url=False):
                self.problem((*place, *each["loc"]), _sentence(each, kind, where, others))
            return None

    def schema(self, name: str, place: Place, own: Any) -> model.Schema | None:
        """The schema of a source or sink: its own, or the one of the file."""
        common = self.values.get(name)
        given, place = (own, place) if own is not None else (common, (name,))
        if own is not None and common is not None and place[0] == "source":
            self.problem(place, f"[{name}] is there too: leave one of both out.")
        if isinstance(given, str):
            given = {"type": given}
        if given is None:
            return None
        schema = self.section(model.Schema, place, given)
        if schema is None:
            return None
        files = {key: self.path(path) for key in _FILES if (path := getattr(schema, key)) is not None}
        for key, path in files.items():
            if not Path(path).is_file():
                self.problem((*place, key), f"there is no file '{path}'.")
                return None
        schema = schema.model_copy(update=files)
        try:
            schemas.check(schema, reads=name == "input_schema")
        except OptionError as error:
            self.problem(place, str(error))
            return None
        return schema

    def options(
        self, name: str, declared: type[Options] | None, place: Place, given: Mapping[str, Any],
        properties: Mapping[str, Any], renamed: Mapping[str, str],
    ) -> tuple[dict[str, str], dict[str, str | None]]:  # fmt: skip
        """Options as text, by the names that Spark takes; and the secrets, by their environment variables."""
        shared = self.values.get(name, {}) if name in SHARED else {}
        if not isinstance(shared, dict):
            self.problem((name,), f"[{name}] must be a table of options.")
            shared = {}
        known = spellings(declared) if declared is not None else {}
        options: dict[str, str] = {}
        hidden: dict[str, str | None] = {}
        for key, value in {**shared, **properties, **given}.items():
            field = known.get(key.replace("_", "").lower()) if declared is not None else None
            if field is not None and declared is not None:
                spelt, is_secret = shown(declared, field), field in secrets(declared)
                if isinstance(value, Secret) and value.file is not None and f"{field}_file" in declared.model_fields:
                    spelt, value, is_secret = alias(f"{field}_file"), str(value.file), False
            elif key in shared and key not in given and key not in properties and declared is not None:
                continue  # of the other end: each says what it does not know
            else:
                spelt, is_secret = key, isinstance(value, Secret)
            options[renamed.get(spelt, spelt)] = _text(value, is_ours=is_secret and field is not None)
            if is_secret or isinstance(value, Secret):
                hidden[renamed.get(spelt, spelt)] = value.env if isinstance(value, Secret) else None
        return options, hidden

    def parse(
        self, name: str, declared: type[Options] | None, options: Mapping[str, str], place: Place,
        properties: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """Note every option that the format would refuse. Spark's own formats have more than are declared: `properties`
        of theirs are passed on.
        """
        if declared is None:
            return
        backwards = {"kafka.bootstrap.servers": "bootstrapServers"} if name == "kafka" else {}
        own = {backwards.get(key, key): value for key, value in options.items()}
        passed = {key for key in own if name == "kafka" and key.startswith("kafka.")}
        if name not in FORMATS:
            passed |= {key for key in properties if key.replace("_", "").lower() not in spellings(declared)}
        if declared in (systems.FileReadOptions,):
            passed |= {"path"}
        for key, text in declared.check(name, {k: v for k, v in own.items() if k not in passed})[1]:
            close = difflib.get_close_matches(key.lower(), _KEYS, n=1) if text.startswith("unknown option") else []
            if close and "Did you mean" not in text:
                text = f"unknown key '{key}'. Did you mean '{close[0]}'?"
            self.problem((*place, *self._place_of(place, key)), text)
        if name == "kafka" and "bootstrapServers" not in own:
            self.problem(place, "kafka needs 'bootstrap_servers': where is the broker?")

    def _place_of(self, place: Place, key: str) -> Place:
        """Where an option stands, in whatever spelling."""
        bare = key.replace("_", "").lower()
        for prefix in (place, (*place, "properties")):
            for written in self.document.lines:
                if written[: len(prefix)] == prefix and len(written) == len(prefix) + 1:
                    name = str(written[-1])
                    if name.replace("_", "").lower() == bare:
                        return written[len(place) :]
        return ()

    def place_paths(self, declared: type[Options] | None, options: dict[str, str]) -> None:
        """Let options that are paths begin where the file lies."""
        if declared is None:
            return
        for name, field in declared.model_fields.items():
            key = shown(declared, name)
            if field.annotation in (Path, Path | None) and key in options:
                options[key] = self.path(options[key])

    def path(self, text: str) -> str:
        """A path as Spark takes it: what is relative begins where the file lies. Addresses stay as they are."""
        return text if "://" in text or text.startswith("/") else str(self.document.path.resolve().parent / text)


# Keys of [source] and [[sinks]] that are no options of a format.
_KEYS = [*model.Source.model_fields, *model.Sink.model_fields]


def nearest(given: str, names: Sequence[str]) -> str:
    """A hint at what may be meant."""
    close = difflib.get_close_matches(given.lower(), names, n=1)
    return f"Did you mean '{close[0]}'?" if close else f"There are: {', '.join(names)}."


def kind_of(value: Any) -> str:
    """What TOML calls a value."""
    names = {dict: "a table", list: "an array", str: "text", bool: "true or false", int: "a whole number"}
    return names.get(type(value), "a number" if isinstance(value, float) else "a date or time")


def _text(value: Any, *, is_ours: bool) -> str:
    """A value of TOML as Spark's options have it. `is_ours`: a secret that Spark must hide in plans."""
    plain = value.value if isinstance(value, Secret) else value
    if isinstance(plain, bool):
        return str(plain).lower()
    if isinstance(plain, dict):
        return json.dumps(plain, default=str)
    if isinstance(plain, list):
        return ",".join(str(part) for part in plain)
    return f"{SECRET}{plain}" if is_ours and not str(plain).startswith(SECRET) else str(plain)


def _sentence(error: Any, kind: type[model.Section], where: str, others: Sequence[str]) -> str:
    """What pydantic found, in the words of the file."""
    loc = error["loc"]
    name = ".".join(str(part) for part in loc)
    if error["type"] == "extra_forbidden":
        names = [field.alias or own for own, field in kind.model_fields.items()] if len(loc) == 1 else []
        hint = f" {nearest(str(loc[0]), [*names, *others])}" if names else ""
        return f"unknown key '{name}' in {where}.{hint}"
    if error["type"] == "missing":
        meaning = (
            kind.model_fields[str(loc[0])].description if len(loc) == 1 and str(loc[0]) in kind.model_fields else ""
        )
        return f"{where} needs the key '{name}'. {meaning or ''}".rstrip()
    if error["type"] == "value_error":
        return f"{repr(name) if name else where} {error['ctx']['error']}."
    if error["type"] == "string_pattern_mismatch":
        return f"'{name}' {_PATTERNS.get(str(loc[-1]), 'has the wrong form')}."
    reason = error["msg"].replace("Input should be", "must be").replace("a valid integer", "a whole number")
    reason = reason.replace("a valid boolean", "true or false").replace("a valid string", "text")
    return f"'{name}' {reason}."


_PATTERNS = {
    "key": "must have letters, digits, - and _ only, and begin with a letter or digit",
    "name": "must have letters, digits, - and _ only, and begin with a letter or digit",
    "python": "must be module:function",
}
