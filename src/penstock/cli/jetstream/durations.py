"""Durations as arguments of commands."""

from pydantic import TypeAdapter, ValidationError

from penstock.errors import OptionError
from penstock.kit.masking import harmless
from penstock.options.types import Seconds


def seconds_of(text: str, option: str) -> float:
    """Seconds from text such as 2s. An OptionError where it is no duration."""
    try:
        return TypeAdapter(Seconds).validate_python(text)
    except ValidationError:
        raise OptionError(f"{option} '{harmless(text)}' is no duration: write 500ms, 2s or 5m.") from None
