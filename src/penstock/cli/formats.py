"""Formats for commands that run without Spark, and the words of such a command. Knows how a format is loaded where no
Spark is; must not know any server.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import typer

from penstock.connectors import FORMATS, connector
from penstock.errors import OptionError
from penstock.kit.format import Format
from penstock.options import Options, table

_ADAPTER = "penstock.spark.connector"
# What an option looks like on the command line: a name, and a value that may be empty.
_OPTION = re.compile(r"([A-Za-z][A-Za-z0-9._-]*)=(.*)", re.DOTALL)


def plain(name: str) -> "type[Format[Any, Any]]":
    """The class of a format, without loading Spark: it opens sources and sinks, and is no data source of Spark.

    Where Spark is loaded already, it is the same class as everywhere. Where it is not, formats of this process stay
    without it, so this is for programs that do one thing and end.
    """
    if sys.modules.get(_ADAPTER) is None and sys.modules.get("pyspark") is None:
        adapter: Any = ModuleType(_ADAPTER, "Stands in for the adapter to Spark, which a terminal does not need.")
        adapter.Connector = Format
        sys.modules[_ADAPTER] = adapter
    return connector(name)


def parsed(words: Iterable[str]) -> dict[str, str]:
    """Options from words such as stream=ORDERS. An OptionError for a word that is none."""
    raw = {}
    for word in words:
        found = _OPTION.fullmatch(word)
        if found is None:
            raise OptionError(f"'{word}' is no option: write name=value, such as stream=ORDERS.")
        raw[found[1]] = found[2]
    return raw


def is_option(word: str) -> bool:
    """Whether a word is written as an option is: name=value. What begins as JSON or text does is not."""
    return _OPTION.fullmatch(word) is not None


def format_names(incomplete: str) -> list[str]:
    """For the shell: the formats that begin so."""
    return [name for name in FORMATS if name.startswith(incomplete)]


def options_to_read(ctx: typer.Context, incomplete: str) -> list[str]:
    """For the shell: the options to read this format that begin so."""
    return _completed(ctx, incomplete, "options_type")


def options_to_write(ctx: typer.Context, incomplete: str) -> list[str]:
    """For the shell: the options to write this format that begin so."""
    return _completed(ctx, incomplete, "sink_options_type")


def _completed(ctx: typer.Context, incomplete: str, which: str) -> list[str]:
    try:
        model = getattr(plain(ctx.params["name"]), which)
    except (KeyError, OptionError):  # what is wrong is said when the command runs
        return []
    return names_of(model, ctx.params.get("options") or (), incomplete)


def names_of(model: type[Options] | None, given: Sequence[str], incomplete: str) -> list[str]:
    """The options that begin so, whatever their case, as `name=`; without those that are given already."""
    taken = {word.partition("=")[0].lower() for word in given if word != incomplete}
    names = [name for name, _, _ in table(model)] if model is not None else []
    return [f"{name}=" for name in names if name.lower().startswith(incomplete.lower()) and name.lower() not in taken]
