"""How many messages of a stream match filters, without reading them. DIRECT.GET tells it, or a consumer made for it."""

from collections.abc import Sequence

from penstock.clients.jetstream import api
from penstock.clients.jetstream.calls import ApiError, Calls
from penstock.errors import Disconnected


def count(
    calls: Calls, info: api.StreamInfo, filters: Sequence[str], positions: Sequence[int], engine: str
) -> Sequence[int] | None:
    """How many lie at or after each position; None where nobody can tell.

    `engine` is the user's: with `auto`, DIRECT.GET counts where that costs less, and a consumer where that does not do.
    """
    if engine == "direct" or info.retention != "limits":
        return _direct(calls, info, filters, positions)
    if engine == "auto" and _suits_direct(calls, info, filters):
        counted = _direct(calls, info, filters, positions)
        if counted is not None:
            return counted
    try:
        return calls.counts(info.name, [api.reader(at, filters, info.name, info.most_idle) for at in positions])
    except ApiError:
        return None  # no consumer to be had


def before(calls: Calls, info: api.StreamInfo, filters: Sequence[str], at: int) -> int:
    """How many the stream has before a position, of one that allows DIRECT.GET; without filters none."""
    counted = _direct(calls, info, filters, [info.first, at]) if filters else [0, 0]
    if counted is None:
        raise Disconnected(f"a mirror of stream '{info.name}' answers in its place")
    return counted[0] - counted[1]


def _suits_direct(calls: Calls, info: api.StreamInfo, filters: Sequence[str]) -> bool:
    """Whether DIRECT.GET counts for less than a consumer does, and as well: replicas may lag behind each other."""
    alone = info.replicas == 1 and len(filters) <= 1
    return alone and info.allow_direct and calls.connection.version() >= (2, 11)


def _direct(
    calls: Calls, info: api.StreamInfo, filters: Sequence[str], positions: Sequence[int]
) -> Sequence[int] | None:
    total = [0] * len(positions)
    for text in filters or (">",):
        counted = calls.direct_counts(info.name, text, positions)
        if counted is None:
            return None
        total = [a + b for a, b in zip(total, counted, strict=True)]
    return total
