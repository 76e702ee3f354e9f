"""Counters of what sources and sinks did. The only place that counts. Knows no server, no Spark.

A process counts everything that happens in it. What one task did is the difference between two moments.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from pydantic.alias_generators import to_camel

from penstock.kit.process_cache import shared


@dataclass
class Figures:
    """Counters. Seconds have fractions; all else are whole numbers."""

    rows: int = 0  # read or written
    bytes: int = 0
    retries: int = 0  # of anything, after a lost connection
    waited: float = 0.0  # seconds before retries
    reconnects: int = 0  # lost connections after which it worked again
    redelivered: int = 0  # messages that a consumer got before
    skipped: int = 0  # records that were lost before they were read, or that are not rows
    dropped: int = 0  # messages for which the buffer had no room
    already_there: int = 0  # rows that an earlier attempt had written
    acks: int = 0  # messages that a consumer has acknowledged
    ack_delay: float = 0.0  # seconds from the delivery of these to their acknowledgement, all added up
    writes: int = 0  # partitions that tasks have written
    write_time: float = 0.0  # seconds that these took, all added up

    def __add__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))

    def as_json(self) -> dict[str, float]:
        """The counters that are not zero, by the names that users see."""
        return {to_camel(name): round(value, 3) for name, value in vars(self).items() if value}

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Self:
        """The opposite of `as_json`."""
        return cls(**{f.name: values.get(to_camel(f.name), 0) for f in fields(cls)})


def count(**more: float) -> None:
    """Add to the counters of this process."""
    figures = shared("figures", Figures)
    with shared("figures_lock", threading.Lock):  # sources may count in a thread of their own
        for name, value in more.items():
            setattr(figures, name, getattr(figures, name) + value)


def so_far() -> Figures:
    """A copy of the counters of this process."""
    return shared("figures", Figures) + Figures()
