"""Counting the messages of a stream that match filters, without reading them: by DIRECT.GET, or by a consumer that is
created for it. Knows no ranges and no Spark.
"""

from collections.abc import Sequence

from penstock.clients.jetstream import api
from penstock.clients.jetstream.calls import ApiError, Calls
from penstock.errors import Disconnected


def count(
    calls: Calls, info: api.StreamInfo, filters: Sequence[str], positions: Sequence[int], engine: str
) -> Sequence[int] | None:
    """How many messages are at or after each position; None where the server cannot tell.

    `engine` is the option readEngine. With `auto`, DIRECT.GET counts where that is cheaper and exact, otherwise a
    consumer.
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
        return None  # the account may create no consumer


def before(calls: Calls, info: api.StreamInfo, filters: Sequence[str], at: int) -> int:
    """How many matching messages are before a position; 0 without filters. The stream must allow DIRECT.GET."""
    counted = _direct(calls, info, filters, [info.first, at]) if filters else [0, 0]
    if counted is None:
        raise Disconnected(f"a mirror of stream '{info.name}' answers in its place")
    return counted[0] - counted[1]


def _suits_direct(calls: Calls, info: api.StreamInfo, filters: Sequence[str]) -> bool:
    """Whether DIRECT.GET counts cheaper than a consumer, and exactly: with replicas, one may lag."""
    one_answer = info.replicas == 1 and len(filters) <= 1
    return one_answer and info.allow_direct and calls.connection.version() >= (2, 11)


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
