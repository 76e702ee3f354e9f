"""Which engine reads a range, and which one takes over where it may not. The engines are in clients/jetstream/engines.
Knows what a stream and its account allow; knows no plans and no losses.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from penstock.clients.jetstream import api, engines
from penstock.clients.jetstream.calls import ApiError, Calls
from penstock.clients.nats.client import Denied
from penstock.connectors.jetstream.options import JetStreamOptions
from penstock.errors import ConnectError

log = logging.getLogger("penstock")

# Up to so many messages, DIRECT.GET is faster: it saves creating a consumer. Beyond, a consumer has smaller frames.
SMALL = 500

# Closes the connections, and returns calls on a new one.
Reconnect = Callable[[], Calls]


def choose(
    options: JetStreamOptions, calls: Calls, info: api.StreamInfo, messages: int, reconnect: Reconnect
) -> engines.Engine:
    """The engine for a range of `messages` sequences: the one that readEngine names, or the one that suits. With
    readEngine=auto the other one takes over where the first is not allowed or not complete.
    """
    wanted = options.read_engine
    if wanted == "direct" or info.retention != "limits":
        return engines.direct
    consumer = partial(engines.consumer, most_idle=info.most_idle)
    if wanted == "consumer" or not info.allow_direct or calls.connection.version() < (2, 11):
        return partial(_explained, consumer)
    if messages <= SMALL and len(options.subjects) <= 1:
        return partial(_one_or_other, engines.direct, consumer, reconnect)
    return partial(_one_or_other, consumer, engines.direct, reconnect)


def _one_or_other(
    first: engines.Engine,
    second: engines.Engine,
    reconnect: Reconnect,
    calls: Calls,
    stream: str,
    start: int,
    end: int,
    filters: Sequence[str],
) -> Iterator[engines.Rows]:
    """The rows of the first engine. Where the account, the stream or a mirror does not let it read on, the second
    engine continues after its last row.
    """
    at = start
    try:
        for rows in first(calls, stream, start, end, filters):
            yield rows
            at = rows.next
        return
    except Denied:
        calls = reconnect()
    except engines.Incomplete:
        pass
    except ApiError as error:
        log.info("stream '%s' is read the other way: %s", stream, error)
    yield from second(calls, stream, at, end, filters)


def _explained(
    consumer: engines.Engine, calls: Calls, stream: str, start: int, end: int, filters: Sequence[str]
) -> Iterator[engines.Rows]:
    """The rows of a consumer; a ConnectError with remedies where the server allows no more consumers."""
    try:
        yield from consumer(calls, stream, start, end, filters)
    except ApiError as error:
        if error.code not in api.TOO_MANY_CONSUMERS:
            raise
        raise ConnectError(
            f"stream '{stream}' has no consumer left: {error}. Raise its max_consumers or the account's, "
            f"or read with readEngine=auto and allow DIRECT.GET: nats stream edit {stream} --allow-direct"
        ) from None
