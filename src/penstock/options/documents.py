"""TOML files as values, each with the line that it stands in; environment variables and secrets put in. Knows files;
nothing of pipelines.
"""

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import OptionError

Place = tuple[str | int, ...]  # the way to a value: names of tables and keys, and numbers in arrays

_VARIABLE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_KEY = re.compile(r"""\s*("(?:\\.|[^"\\])*"|'[^']*'|[A-Za-z0-9_-]+)\s*""")


class Problem(NamedTuple):
    """What is wrong in a file, and where: line 0 is the file itself."""

    file: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}" if self.line else f"{self.file}: {self.text}"


class FileError(OptionError):
    """All that is wrong in one or more files, one line each."""

    def __init__(self, problems: Iterable[Problem]):
        self.problems = sorted(set(problems), key=lambda problem: (str(problem.file), problem.line))
        super().__init__("\n".join(map(str, self.problems)))


@dataclass(frozen=True)
class Secret:
    """A value that is never shown: from an environment variable or a file."""

    value: str = field(repr=False)
    env: str | None = None
    file: Path | None = None

    def __str__(self) -> str:
        return f"(from the environment variable {self.env})" if self.env else f"(from the file {self.file})"


@dataclass(frozen=True)
class Document:
    """A file: its values, and where each stands."""

    path: Path
    values: dict[str, Any]
    lines: Mapping[Place, int]
    missing: tuple[Problem, ...] = ()  # variables that are not set, and files of secrets that cannot be read

    def line(self, place: Place) -> int:
        """The line of a value, or of the nearest table around it."""
        for end in range(len(place), -1, -1):
            if place[:end] in self.lines:
                return self.lines[place[:end]]
        return 1

    def problem(self, place: Place, text: str) -> Problem:
        """A problem at a value."""
        return Problem(self.path, self.line(place), text)


def read(path: Path) -> Document:
    """The file, with `${VARIABLE}`, `{ env = "NAME" }` and `{ file = "PATH" }` replaced. Relative paths of secrets
    begin where the file lies. A FileError where it cannot be read; variables and files that are missing are in its
    `missing`.
    """
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise FileError([Problem(path, 0, f"cannot be read: {error.strerror}.")]) from None
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise FileError([Problem(path, line, "is not UTF-8, as TOML must be.")]) from None
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = re.search(r"\(at line (\d+), column \d+\)", str(error))
        line = int(match[1]) if match else text.rstrip().count("\n") + 1
        why = re.sub(r" \(at .*\)$", "", str(error))
        raise FileError([Problem(path, line, f"is not valid TOML: {why}.")]) from None
    except RecursionError:
        raise FileError([Problem(path, 1, "is not valid TOML: it is nested too deeply.")]) from None
    document = Document(path, values, dict(_lines(text)))
    problems: list[Problem] = []
    replaced = _replace(document, values, (), problems)
    return Document(path, replaced, document.lines, tuple(problems))


def _replace(document: Document, value: Any, place: Place, problems: list[Problem]) -> Any:
    """A value with variables and secrets put in."""
    if isinstance(value, str):
        return _VARIABLE.sub(lambda match: _variable(document, match, place, problems), value)
    if isinstance(value, list):
        return [_replace(document, item, (*place, i), problems) for i, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and isinstance(name := value.get("env"), str):
        if name not in os.environ:
            problems.append(document.problem(place, f"the environment variable '{name}' is not set."))
        return Secret(os.environ.get(name, "unset"), env=name)
    if len(value) == 1 and isinstance(name := value.get("file"), str):
        path = document.path.parent / name
        try:
            return Secret(path.read_text().strip(), file=path)
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
            problems.append(document.problem(place, f"the file '{name}' cannot be read: {why}."))
            return Secret("unset", file=path)
    return {key: _replace(document, item, (*place, key), problems) for key, item in value.items()}


def _variable(document: Document, match: re.Match[str], place: Place, problems: list[Problem]) -> str:
    name, default = match[1], match[2]
    if name is None:
        return "${"  # written as $${
    if name not in os.environ and default is None:
        text = f"the environment variable '{name}' is not set. Set it, or write ${{{name}:-default}}."
        problems.append(document.problem(place, text))
    return os.environ.get(name, default or "")


def _lines(text: str) -> Iterator[tuple[Place, int]]:
    """Where each table and each key stands, given valid TOML. Keys inside of a value have no line of their own."""
    table: Place = ()
    counts: dict[Place, int] = {}
    lines = iter(enumerate(text.splitlines(), start=1))
    for number, line in lines:
        stripped = line.lstrip()
        if stripped.startswith("["):
            is_array = stripped.startswith("[[")
            table = _within_arrays(_dotted(stripped.lstrip("["))[0], counts, is_array)
            yield table, number
        elif stripped and not stripped.startswith("#"):
            names, rest = _dotted(stripped)
            for end in range(1, len(names) + 1):
                yield (*table, *names[:end]), number
            _skip_value(rest.lstrip()[1:], lines)


def _within_arrays(names: list[str], counts: dict[Place, int], is_array: bool) -> Place:
    """The place of a table: each array of tables on the way has the number of its last item behind it."""
    place: Place = ()
    for i, name in enumerate(names):
        place = (*place, name)
        if is_array and i == len(names) - 1:
            counts[place] = counts.get(place, -1) + 1
        if place in counts:
            place = (*place, counts[place])
    return place


def _dotted(text: str) -> tuple[list[str], str]:
    """A dotted key at the beginning of a line, and what follows it."""
    names: list[str] = []
    while match := _KEY.match(text):
        name = match[1]
        if name.startswith('"'):
            name = tomllib.loads(f"k = {name}")["k"]
        names.append(name.strip("'") if name.startswith("'") else name)
        text = text[match.end() :]
        if not text.startswith("."):
            break
        text = text[1:]
    return names, text


def _skip_value(rest: str, lines: Iterator[tuple[int, str]]) -> None:
    """Go to the last line of a value that begins with `rest`: strings and arrays may take several."""
    depth, quote = 0, ""
    while True:
        at = 0
        while at < len(rest):
            if quote:
                if rest[at] == "\\" and quote.startswith('"'):
                    at += 2
                elif rest.startswith(quote, at):
                    at, quote = at + len(quote), ""
                else:
                    at += 1
            elif rest[at] in "\"'":
                quote = rest[at] * 3 if rest.startswith(rest[at] * 3, at) else rest[at]
                at += len(quote)
            elif rest[at] == "#":
                break
            else:
                depth += (rest[at] in "[{") - (rest[at] in "]}")
                at += 1
        if len(quote) < 3 and not depth:
            return
        following = next(lines, None)
        if following is None:
            return
        rest = following[1]
