"""A proposal as a declaration file. Pure: text out."""

import json
import re
from collections.abc import Mapping
from typing import Any

from penstock.operate.migrate.proposal import Proposal

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def text(proposal: Proposal, subjects: str) -> str:
    """The file for `penstock jetstream plan` and `apply`."""
    lines = [f"# Written by `penstock jetstream migrate {subjects}`: streams that store what is published there."]
    for name, config in proposal.streams.items():
        lines += ["", *table(f"streams.{key(name)}", config)]
        for durable, settings in proposal.consumers.get(name, {}).items():
            lines += ["", *table(f"streams.{key(name)}.consumers.{key(durable)}", settings)]
    return "\n".join([*lines, ""])


def table(head: str, config: Mapping[str, Any]) -> list[str]:
    """The lines of a table of TOML."""
    return [f"[{head}]", *(f"{name} = {_value(value)}" for name, value in config.items())]


def key(name: str) -> str:
    """A key of TOML, in quotes where it needs them."""
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _value(value: Any) -> str:
    # What JSON writes for texts, numbers, truths and lists is TOML too, but for one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
