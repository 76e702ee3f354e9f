"""The types of options: what text of a user becomes. Knows strings; knows no server, no Spark."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_SIZES = {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30}


def _split(value: Any) -> Any:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


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
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return value.strip().lower() if isinstance(value, str) else value
    try:
        positions = json.loads(value)
    except ValueError:
        positions = None
    if not isinstance(positions, dict) or not all(type(n) is int and n >= 0 for n in positions.values()):
        raise ValueError('must be JSON from names to whole numbers, such as {"ORDERS": 17}')
    return positions


Csv = Annotated[tuple[str, ...], BeforeValidator(_split)]
Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0)]
Bytes = Annotated[int, BeforeValidator(_bytes), Field(gt=0)]
Micros = Annotated[int, BeforeValidator(_micros)]
Positions = Annotated[str | dict[str, int], BeforeValidator(_positions)]
Count = Annotated[int, Field(gt=0)]
