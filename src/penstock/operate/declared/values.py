"""Values of declarations: as a user writes them, and as JetStream's JSON has them. Pure; knows kinds of values, and no
field by name.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

# Longest first: each is one unit of what is written for people. Go, and so NACK, writes 1h30m and has no days.
_UNITS = {
    "d": 86_400_000_000_000, "h": 3_600_000_000_000, "m": 60_000_000_000, "s": 1_000_000_000, "ms": 1_000_000,
    "us": 1_000, "µs": 1_000, "ns": 1,
}  # fmt: skip
_SIZES = {"tb": 2**40, "gb": 2**30, "mb": 2**20, "kb": 2**10}
_PART = r"(\d+(?:\.\d+)?)\s*(ms|us|µs|ns|s|m|h|d)"


class Kind(Enum):
    """What a value is; its text is what a wrong one is told."""

    TEXT = "must be text"
    CHOICE = "must be one of"
    NUMBER = "must be a whole number"
    SIZE = "must be a size such as 65536, 512kb or 64mb"
    DURATION = "must be a duration such as 500ms, 10s, 15m or 7d"
    BOOL = "must be true or false"
    TEXTS = "must be a list of texts"
    DURATIONS = 'must be a list of durations such as ["1s", "10s", "1m"]'
    MOMENT = "must be a time with its zone, such as 2026-11-15T12:00:00Z"
    WORDS = 'must be a table of texts, such as { owner = "billing" }'
    OBJECT = "must be a table"
    OBJECTS = "must be a list of tables"


def parse(kind: Kind, value: Any) -> Any:
    """A value of a file as JetStream's JSON has it. A ValueError with a reason where it is none. Tables are for the
    caller, who knows their keys.
    """
    if kind is Kind.BOOL:
        return _checked(value, kind, isinstance(value, bool))
    if isinstance(value, bool):
        raise ValueError(kind.value)
    if kind in (Kind.TEXT, Kind.CHOICE):
        return _checked(value, kind, isinstance(value, str))
    if kind is Kind.NUMBER:
        return _checked(value, kind, isinstance(value, int))
    if kind is Kind.SIZE:
        return value if isinstance(value, int) else _size(value)
    if kind is Kind.DURATION:
        return nanoseconds(value)
    if kind is Kind.MOMENT:
        return moment(value)
    if kind is Kind.TEXTS:
        return _checked(value, kind, isinstance(value, list) and all(isinstance(each, str) for each in value))
    if kind is Kind.DURATIONS:
        if not isinstance(value, list):
            raise ValueError(kind.value)
        return [nanoseconds(each) for each in value]
    if kind is Kind.WORDS:
        fits = isinstance(value, Mapping) and all(isinstance(each, str) for each in value.values())
        return dict(_checked(value, kind, fits))
    raise AssertionError(kind)


def _checked(value: Any, kind: Kind, fits: bool) -> Any:
    if not fits:
        raise ValueError(kind.value)
    return value


def nanoseconds(value: Any) -> int:
    """A duration, exactly: 10s, 1h30m, 7d; 0 is none."""
    if value in (0, "0") and not isinstance(value, bool):
        return 0
    text = value.strip() if isinstance(value, str) else ""
    if not re.fullmatch(rf"(?:{_PART}\s*)+", text):
        raise ValueError(Kind.DURATION.value)
    return int(sum(Decimal(number) * _UNITS[unit] for number, unit in re.findall(_PART, text)))


def duration(value: int) -> str:
    """A duration as users write it, in the largest unit that is whole."""
    if not value:
        return "0s"
    unit = next(unit for unit, length in _UNITS.items() if value % length == 0)
    return f"{value // _UNITS[unit]}{unit}"


def _size(value: Any) -> int:
    match = re.fullmatch(r"\s*(-?\d+)\s*([kmgt]?)b?\s*", value.lower()) if isinstance(value, str) else None
    if not match:
        raise ValueError(Kind.SIZE.value)
    return int(match[1]) * _SIZES.get(f"{match[2]}b", 1)


def size(value: int) -> int | str:
    """A size as users write it, in the largest unit that is whole; a number where none is."""
    unit = next((unit for unit, length in _SIZES.items() if value > 0 and value % length == 0), None)
    return value if unit is None else f"{value // _SIZES[unit]}{unit}"


def moment(value: Any) -> str:
    """A time as the server writes it: in UTC, up to nine digits after the second, no zeros at its end."""
    if isinstance(value, datetime):
        value = value.isoformat()
    elif isinstance(value, date):
        value = ""
    match = re.fullmatch(r"(.*?T\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)", str(value).replace(" ", "T"))
    if not match:
        raise ValueError(Kind.MOMENT.value)
    try:
        whole = datetime.fromisoformat(f"{match[1]}{match[3]}").astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(Kind.MOMENT.value) from None
    fraction = (match[2] or "").rstrip("0")
    return f"{whole:%Y-%m-%dT%H:%M:%S}{f'.{fraction}' if fraction else ''}Z"


def shown(kind: Kind, value: Any) -> Any:
    """A value of JetStream's JSON as users write it; tables are for the caller."""
    if kind is Kind.DURATION and isinstance(value, int):
        return duration(value)
    if kind is Kind.SIZE and isinstance(value, int):
        return size(value)
    if kind is Kind.DURATIONS and isinstance(value, Sequence):
        return [duration(each) for each in value]
    return value
