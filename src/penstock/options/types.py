"""The types of options, and how they are parsed from text. Knows no server, no Spark."""

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_SIZES = {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30}


def _split(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return tuple(part.strip() for part in value.split(",") if part.strip())


def _seconds(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*", value)
    if not match:
        raise ValueError("must be a duration such as 500ms, 10s or 15m")
    return float(match[1]) * _UNITS[match[2]]


def _bytes(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+)\s*([kmg]?b?)\s*", value.lower())
    if not match:
        raise ValueError("must be a size such as 65536, 512kb or 64mb")
    return int(match[1]) * _SIZES[match[2]]


def _micros(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return value * 1000
    if not isinstance(value, str):
        return value
    if re.fullmatch(r"\d+", value):
        return int(value) * 1000
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("must be milliseconds since 1970 or a time such as 2026-11-15T12:00:00Z") from None
    if moment.tzinfo is None:
        raise ValueError("must say its time zone, such as 2026-11-15T12:00:00Z")
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _positions(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if not value.lstrip().startswith("{"):
        return value.strip().lower()
    try:
        positions = json.loads(value)
    except ValueError:
        positions = None
    if not isinstance(positions, dict) or not all(type(n) is int and n >= 0 for n in positions.values()):
        raise ValueError('must be JSON from names to whole numbers, such as {"ORDERS": 17}')
    return positions


# What a user may write, for the JSON Schema.
_LIST = WithJsonSchema({"type": ["string", "array"], "items": {"type": "string"}})
_DURATION = WithJsonSchema({"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*(ms|s|m|h|d)\s*$"})
_SIZE = WithJsonSchema({"type": ["string", "integer"], "pattern": r"^\s*\d+\s*([kKmMgG]?[bB]?)\s*$"})
_MOMENT = WithJsonSchema({"type": ["string", "integer"]})
_OFFSETS = WithJsonSchema({"type": ["string", "object"], "additionalProperties": {"type": "integer", "minimum": 0}})

Csv = Annotated[tuple[str, ...], BeforeValidator(_split), _LIST]
Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0), _DURATION]
Bytes = Annotated[int, BeforeValidator(_bytes), Field(gt=0), _SIZE]
Micros = Annotated[int, BeforeValidator(_micros), _MOMENT]
Positions = Annotated[str | dict[str, int], BeforeValidator(_positions), _OFFSETS]
Count = Annotated[int, Field(gt=0)]


def duration(seconds: float) -> str:
    """A duration as users write it, in the largest unit that is whole: 15m."""
    for unit, length in sorted(_UNITS.items(), key=lambda item: -item[1]):
        if seconds >= length and round(seconds / length, 9) % 1 == 0:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:g}s"


def size(count: int) -> str:
    """A size as users write it, in the largest unit that is whole: 64mb."""
    for unit in ("gb", "mb", "kb"):
        if count and count % _SIZES[unit] == 0:
            return f"{count // _SIZES[unit]}{unit}"
    return str(count)


def is_size(metadata: Iterable[object]) -> bool:
    """Whether an option with such metadata is a size."""
    return _SIZE in metadata
