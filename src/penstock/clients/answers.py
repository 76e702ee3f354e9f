"""Reading JSON answers of a server: a field has the expected type, or a ProtocolError shows what is there instead.

Knows JSON; no server.
"""

import json
from typing import Any, TypeVar

from penstock.errors import ProtocolError

T = TypeVar("T")
_KINDS = {str: "text", int: "a whole number", bool: "true or false", dict: "an object", list: "a list"}


def an_object(body: bytes, who: str) -> dict[str, Any]:
    """The JSON object in an answer; `who` answered is for the error."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise ProtocolError(f"{who} answered {body[:80]!r}, which is no JSON object.")
    return answer


def field(answer: dict[str, Any], name: str, kind: type[T], default: T | None = None) -> T:
    """A field of an answer. Missing or null, it is the default; without a default, that is an error."""
    value = answer.get(name)
    if value is None and default is not None:
        return default
    # No server counts in more than 64 bits.
    if type(value) is not kind or (isinstance(value, int) and abs(value) >= 2**63):
        raise ProtocolError(f"an answer has {value!r:.80} for '{name}', and not {_KINDS[kind]}: {answer!r:.200}")
    return value


def texts(answer: dict[str, Any], name: str) -> list[str]:
    """A field that is a list of strings; empty where it is missing or null."""
    values: list[Any] = field(answer, name, list, [])
    if not all(isinstance(value, str) for value in values):
        raise ProtocolError(f"an answer has {values!r:.80} for '{name}', and not names: {answer!r:.200}")
    return values


def objects(answer: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """A field that is a list of objects; empty where it is missing or null."""
    values: list[Any] = field(answer, name, list, [])
    if not all(isinstance(value, dict) for value in values):
        raise ProtocolError(f"an answer has {values!r:.80} for '{name}', and not objects: {answer!r:.200}")
    return values
