"""How much a stream will hold, and whether that fits. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.clients.nats.subjects import intersect
from penstock.operate.migrate.subscribers import Server
from penstock.operate.migrate.traffic import Heard
from penstock.options.types import duration, size

# Bytes that the file store needs for a message besides its subject, headers and body.
RECORD = 34
DAY = 86_400
# At most this share of what is left should be what a migration fills.
SHARE = 0.8


class Limits(NamedTuple):
    """What an account may use; None is no limit, or not known."""

    storage: int | None = None
    storage_used: int = 0
    memory: int | None = None
    memory_used: int = 0
    streams: int | None = None
    needs_max_bytes: bool = False


def daily_bytes(heard: Heard, subjects: Sequence[str]) -> int:
    """Bytes a day of one replica, at the rate that was measured."""
    if not heard.seconds:
        return 0
    total = sum(
        figures.size + figures.messages * (RECORD + len(name))
        for name, figures in heard.subjects.items()
        if any(intersect(name, text) for text in subjects)
    )
    return int(total / heard.seconds * DAY)


def max_bytes(daily: int, max_age: float) -> str:
    """Twice what comes in that time, and at least 64 MB, in whole megabytes."""
    return size(max(64, int(2 * daily * max_age / DAY) >> 20) << 20)


class _Place(NamedTuple):
    name: str
    most: int | None
    used: int
    need: int


def lacks(
    kept: int, replicas: int, storage: str, max_age: float, limits: Limits, servers: Sequence[Server]
) -> list[str]:
    """Where `kept` bytes of each replica do not fit: the account, or a server."""
    is_file = storage == "file"
    account = (limits.storage, limits.storage_used) if is_file else (limits.memory, limits.memory_used)
    places = [_Place("the account", *account, kept * replicas)]
    for each in servers:
        has = (each.storage, each.storage_used) if is_file else (each.memory, each.memory_used)
        places.append(_Place(f"server '{each.name}'", *has, kept))
    return [_sentence(each, storage, max_age) for each in places if each.most is not None and _is_tight(each)]


def _is_tight(place: _Place) -> bool:
    return place.most is not None and place.need > (place.most - place.used) * SHARE


def _sentence(place: _Place, storage: str, max_age: float) -> str:
    left = max(0, (place.most or 0) - place.used)
    when = f" after {left / place.need * max_age / DAY:.1f} days" if place.need > left > 0 else " or almost"
    return (
        f"{place.name} has {approximate(left)} left in {storage} storage, and {duration(max_age)} at this rate are "
        f"{approximate(place.need)}: it would be full{when}. Lower --max-age, or raise the limit."
    )


def approximate(count: float) -> str:
    """Bytes as people say them: 1.2 GB."""
    for unit, length in (("TB", 1 << 40), ("GB", 1 << 30), ("MB", 1 << 20), ("kB", 1 << 10)):
        if count >= length:
            return f"{count / length:.1f} {unit}"
    return f"{count:.0f} bytes"
