"""Answers in JSON: what is asked of them is there and of its kind, or a ProtocolError shows what was there instead.

Knows JSON; no server.
"""

import json
from typing import Any, TypeVar

from penstock.errors import ProtocolError

T = TypeVar("T")
_KINDS = {str: "text", int: "a whole number", bool: "true or false", dict: "an object", list: "a list"}


def an_object(body: bytes, who: str) -> dict[str, Any]:
    """The object that `who` answered."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise ProtocolError(f"{who} answered {body[:80]!r}, which is no JSON object.")
    return answer


def field(answer: dict[str, Any], name: str, kind: type[T], default: T | None = None) -> T:
    """A field of an answer. Where it is missing or null, the default if there is one."""
    value = answer.get(name)
    if value is None and default is not None:
        return default
    # A number of more than 64 bits is none that a server counts in.
    if type(value) is not kind or (isinstance(value, int) and abs(value) >= 2**63):
        raise ProtocolError(f"an answer has {value!r:.80} for '{name}', and not {_KINDS[kind]}: {answer!r:.200}")
    return value


def texts(answer: dict[str, Any], name: str) -> list[str]:
    """A field that lists names; none where it is missing or null."""
    found: list[Any] = field(answer, name, list, [])
    if not all(isinstance(value, str) for value in found):
        raise ProtocolError(f"an answer has {found!r:.80} for '{name}', and not names: {answer!r:.200}")
    return found


def objects(answer: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """A field that lists objects; none where it is missing or null."""
    found: list[Any] = field(answer, name, list, [])
    if not all(isinstance(value, dict) for value in found):
        raise ProtocolError(f"an answer has {found!r:.80} for '{name}', and not objects: {answer!r:.200}")
    return found
