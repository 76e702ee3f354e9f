"""An option is declared once, as a field of a model; parsing, masking and documentation derive from it.

Knows strings and types. Knows no server and no Spark, except that Spark lower-cases keys: names are
written in camelCase, and matched whatever their case.
"""

import difflib
import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from penstock.errors import OptionError
from penstock.kit.retry import Retry
from penstock.options.types import duration, is_size, size

log = logging.getLogger("penstock")

# Characters that must not get into a line of a protocol or a header: the end of a line would begin another one. Half a
# surrogate cannot be encoded.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
# Spark hides a value that begins so, whatever the name of the option.
SECRET = "secret:"

# What `option` declares besides the default, the meaning and an example.
_EXTRAS = ("env", "place", "lines", "hidden_as", "instead", "also")


def option(
    default: Any = ...,
    *,
    doc: str,
    example: str | None = None,
    env: str | None = None,
    place: bool = False,
    lines: bool = False,
    hidden_as: str | None = None,
    instead: str | None = None,
    also: str | None = None,
) -> Any:
    """Declare one option. Without a default it is required.

    `env`: the environment variable to use where the option is not set, read on the driver. `place`: it says where the
    server is, which gets to see the secrets. `lines`: it may have several lines; other text may have no control
    characters. `hidden_as`: the name of a secret in Spark, which hides options by name; outside of Spark, its own name
    works too. `instead`: the option that replaces this one, which works for one more version, with a warning. `also`:
    another name, by which users of other connectors know it.
    """
    if also:
        doc = f"{doc} Also called `{also}`."
    if env:
        doc = f"{doc} Also from the environment variable `{env}`."
    return Field(
        default,
        description=doc,
        examples=[example] if example else None,
        json_schema_extra=dict(zip(_EXTRAS, (env, place, lines, hidden_as, instead, also), strict=True)),
        validate_default=False,
    )


class Options(BaseModel):
    """What a user may set. Fields are declared with `option`; secrets are `SecretStr` and never shown."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True, hide_input_in_errors=True
    )

    # Errors for names that are often taken for options, by the name in lower case.
    no_options: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def parse(
        cls,
        owner: str,
        raw: Mapping[str, Any],
        ignore: Iterable[str] = (),
        elsewhere: Mapping[str, str] | None = None,
    ) -> Self:
        """The options of `owner` from text. An OptionError for an unknown name, and for a wrong or missing value.

        `elsewhere`: errors for options of something else, by the name in lower case.
        """
        options, problems = cls.check(owner, raw, ignore, elsewhere)
        if options is None:
            raise OptionError(problems[0][1])
        return options

    @classmethod
    def check(
        cls,
        owner: str,
        raw: Mapping[str, Any],
        ignore: Iterable[str] = (),
        elsewhere: Mapping[str, str] | None = None,
    ) -> tuple[Self | None, list[tuple[str, str]]]:
        """The options, or all that is wrong with them: names as they were written, and what to say. See `parse`."""
        known = spellings(cls)
        skipped, hidden = {name.lower() for name in ignore}, secrets(cls)
        given: dict[str, Any] = {}
        problems: list[tuple[str, str]] = []
        for key, value in raw.items():
            name = known.get(key.lower())
            if name is not None:
                if alias(name) in given:
                    problems.append(
                        (key, f"set '{alias(name)}' or '{shown(cls, name)}', not both: they are one option.")
                    )
                is_marked = name in hidden and isinstance(value, str)
                given[alias(name)] = value.removeprefix(SECRET) if is_marked else value
            elif key.lower() in skipped:
                continue
            elif (hint := _hints(cls, elsewhere).get(key.lower())) is not None:
                problems.append((key, hint.replace("{value}", str(value))))
            else:
                problems.append((key, _unknown(key, owner, [name for name, _, _ in table(cls)])))
        for name, field in cls.model_fields.items():
            variable = _extra(field, "env")
            is_given = bool({alias(name), alias(f"{name}_file")} & given.keys())
            if variable is not None and variable in os.environ and not is_given:
                given[alias(name)] = os.environ[variable]
        for name, field in cls.model_fields.items():
            if alias(name) in given and (instead := _extra(field, "instead")):
                log.warning("option '%s' of %s will go with the next version: set '%s'", alias(name), owner, instead)
        try:
            options = cls.model_validate(given)
        except ValidationError as error:
            return None, problems + _problems(error, owner, cls, given)
        return (None, problems) if problems else (options, [])

    @model_validator(mode="after")
    def _one_place_per_value(self) -> Self:
        for file in type(self).model_fields:
            name = file.removesuffix("_file")
            if name != file and getattr(self, name) is not None and getattr(self, file) is not None:
                raise ValueError(f"set '{shown(type(self), name)}' or '{alias(file)}', not both")
        return self

    @model_validator(mode="after")
    def _no_control_characters(self) -> Self:
        for name in type(self).model_fields:
            for text in _texts(getattr(self, name)):
                if why := self._unspeakable(name, text):
                    raise ValueError(f"'{shown(type(self), name)}' {why}")
        return self

    def _unspeakable(self, name: str, text: str) -> str | None:
        """Why a text must not be sent to a server; None where it may. Does not show the text, as it may be a secret."""
        if _extra(type(self).model_fields[name], "lines"):
            text = re.sub(r"[\t\r\n]", " ", text)
        match = _CONTROL.search(text)
        if match is None:
            return None
        return f"has the control character U+{ord(match[0]):04X}, which no server may be sent: take it out"

    def retry(self, what: str) -> Retry:
        """The retries of `what` after a lost connection. None here; connections have options for it."""
        return Retry(what, attempts=0)

    def reveal(self, name: str) -> str | None:
        """The value of an option, also of a secret: its own, or what its file has now."""
        value: SecretStr | str | None = getattr(self, name)
        if value is not None:
            return value.get_secret_value() if isinstance(value, SecretStr) else value
        file: Path | None = getattr(self, f"{name}_file", None)
        if file is None:
            return None
        try:
            text = file.read_text().strip()
        except UnicodeDecodeError:
            raise OptionError(f"the file of option '{alias(name + '_file')}' holds no text in UTF-8.") from None
        except OSError as error:
            raise OptionError(f"cannot read the file of option '{alias(name + '_file')}': {error}") from None
        if why := self._unspeakable(name, text):
            raise OptionError(f"the file of option '{alias(name + '_file')}' {why}.")
        return text

    def giver(self, name: str) -> str:
        """The name of the option that `reveal` takes a value from, as users write it."""
        in_file = getattr(self, name) is None and getattr(self, f"{name}_file", None) is not None
        return alias(f"{name}_file") if in_file else shown(type(self), name)

    def __repr__(self) -> str:
        hidden = secrets(type(self))
        shown = (f"{alias(n)}={getattr(self, n)!r}" for n in sorted(self.model_fields_set) if n not in hidden)
        return f"{type(self).__name__}({', '.join(shown)})"

    __str__ = __repr__


def alias(name: str) -> str:
    """The name of a field as users write it."""
    return to_camel(name)


def secrets(model: type[Options]) -> set[str]:
    """The fields that must never be shown."""
    return {name for name, field in model.model_fields.items() if "SecretStr" in str(field.annotation)}


def shown(model: type[Options], name: str) -> str:
    """The name of a field in documentation and errors: the one to use in Spark."""
    return _extra(model.model_fields[name], "hidden_as") or alias(name)


def spellings(model: type[Options]) -> dict[str, str]:
    """The fields, by every name that users may write, in lower case."""
    named = {
        name: (alias(name), shown(model, name), _extra(field, "also")) for name, field in model.model_fields.items()
    }
    return {spelt.lower(): name for name, spelt_so in named.items() for spelt in spelt_so if spelt}


def places(model: type[Options]) -> list[str]:
    """The fields that say where the server is."""
    return [name for name, field in model.model_fields.items() if _extra(field, "place")]


def _hints(model: type[Options], elsewhere: Mapping[str, str] | None) -> dict[str, str]:
    """The errors for names that are no options: those of `model` and its bases win over `elsewhere`."""
    hints = dict(elsewhere or {})
    for base in reversed(model.__mro__):
        hints |= base.__dict__.get("no_options", {})
    return hints


def _extra(field: FieldInfo, key: str) -> Any:
    extra = field.json_schema_extra
    return extra.get(key) if isinstance(extra, dict) else None


def _texts(value: Any) -> Iterable[str]:
    """All text in the value of an option. A path is left out, as it is sent to no server."""
    if isinstance(value, SecretStr):
        return (value.get_secret_value(),)
    parts = value if isinstance(value, tuple | dict) else (value,)
    return (part for part in parts if isinstance(part, str))


def table(model: type[Options]) -> list[tuple[str, str, str]]:
    """Name, default and meaning of each option, in the order of declaration."""
    return [
        (shown(model, name), _default(field), _meaning(name, field))
        for name, field in model.model_fields.items()
        if not _extra(field, "instead")
    ]


def json_schema(model: type[Options]) -> dict[str, Any]:
    """The options as JSON Schema, by the names that users write. Those that have been replaced are left out."""
    raw = model.model_json_schema(by_alias=True)["properties"]
    fields = {name: field for name, field in model.model_fields.items() if not _extra(field, "instead")}
    return {
        "type": "object",
        "properties": {shown(model, name): _property(raw[alias(name)], field) for name, field in fields.items()},
        "required": [shown(model, name) for name, field in fields.items() if field.is_required()],
        "additionalProperties": False,
    }


def _property(raw: Mapping[str, Any], field: FieldInfo) -> dict[str, Any]:
    """One option, as pydantic describes it, without null: an option is left out instead."""
    described = {key: raw[key] for key in raw if key not in (*_EXTRAS, "title", "anyOf", "default")}
    kinds = [kind for kind in raw.get("anyOf", ()) if kind.get("type") != "null"]
    if len(kinds) == 1:
        described |= kinds[0]
    elif kinds:
        described["anyOf"] = kinds
    if field.default is not None and not field.is_required():
        plain = isinstance(field.default, bool | int) and not is_size(field.metadata)
        described["default"] = field.default if plain else _default(field)
    return described


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):
        return duration(value)
    return size(value) if is_size(field.metadata) else str(value)


def _meaning(name: str, field: FieldInfo) -> str:
    doc = field.description or ""
    also = f" Outside of Spark also `{alias(name)}`." if _extra(field, "hidden_as") else ""
    choices = _choices(field.annotation)
    if any(f"`{choice}`" not in doc for choice in choices):
        also += f" One of {', '.join(f'`{choice}`' for choice in choices)}."
    return doc + also + (f" Example: `{field.examples[0]}`." if field.examples else "")


def _choices(annotation: Any) -> list[str]:
    """The values of a Literal, also of one that may be left out."""
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    return [choice for part in get_args(annotation) for choice in _choices(part)]


def _unknown(key: str, owner: str, names: Sequence[str]) -> str:
    known = {name.lower(): name for name in names}
    close = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.6)
    hint = f"Did you mean '{known[close[0]]}'?" if close else f"It takes: {', '.join(sorted(names))}."
    return f"unknown option '{key}' for {owner}. {hint}"


def _problems(
    error: ValidationError, owner: str, model: type[Options], given: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """All that pydantic found: the name of the option, empty where it is of none, and a sentence."""
    return [
        (str(each["loc"][0]) if each["loc"] else "", _sentence(each, owner, model, given))
        for each in error.errors(include_url=False)
    ]


def _sentence(problem: Any, owner: str, model: type[Options], given: Mapping[str, Any]) -> str:
    name = str(problem["loc"][0]) if problem["loc"] else ""
    label = next((shown(model, field) for field in model.model_fields if alias(field) == name), name)
    if problem["type"] == "missing":
        meaning = next(_meaning(n, f) for n, f in model.model_fields.items() if alias(n) == name)
        return f"{owner} needs the option '{label}'. {meaning}"
    if problem["type"] == "value_error":
        reason = str(problem["ctx"]["error"])
    else:
        reason = problem["msg"].replace("Input should be", "must be").replace("a valid integer", "a whole number")
        reason = reason.replace("a valid boolean", "true or false")
        reason = re.sub(r",? unable to .*", "", reason)
    if not name:
        return f"{owner}: {reason}"
    hidden = {alias(n) for n in secrets(model)}
    # An address may have a password in it, so it is not shown.
    if name in hidden or "@" in str(given.get(name)) or not reason.startswith("must"):
        return f"option '{label}' {reason}"
    return f"option '{label}' {reason}, but is {given.get(name)!r}"
