"""JetStream's streams and consumers, as the HTTP interface and Prometheus see them. Metrics have the names and labels
of prometheus-nats-exporter, so that its dashboards work. Knows names and types of metrics; asks a server only when
somebody asks here, and at most every few seconds.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric

from penstock.clients.answers import field
from penstock.clients.nats.options import NatsOptions
from penstock.errors import PenstockError
from penstock.kit.masking import harmless
from penstock.operate.figures import (
    ConsumerFigures,
    Look,
    StreamFigures,
    as_json,
    worst_consumers,
    worst_streams,
)
from penstock.operate.watching import Patiently, Seen, Watching

# Seconds for which figures are not asked for again, and how long a scrape waits for new ones.
EVERY, WAIT = 3.0, 2.0
# So many streams and consumers have metrics of their own, and so many are on the page: the worst.
SERIES, ROWS = 100, 50
# Figures that are older than this are not shown as if they were of now.
OLD = 60.0

_SERVER = ("server_id", "server_name", "cluster", "domain", "meta_leader", "is_meta_leader", "account")
_STREAM = (*_SERVER, "account_id", "stream_name", "stream_leader", "is_stream_leader")
_CONSUMER = (*_STREAM, "consumer_name", "consumer_leader", "is_consumer_leader", "consumer_desc", "consumer_created")


class Gauge(NamedTuple):
    """A metric of a stream or a consumer."""

    text: str
    value: Callable[[Any], float | None]


STREAMS: dict[str, Gauge] = {
    "jetstream_stream_total_messages": Gauge("Messages in a stream.", lambda s: s.messages),
    "jetstream_stream_total_bytes": Gauge("Bytes of a stream.", lambda s: s.size),
    "jetstream_stream_first_seq": Gauge("The first sequence of a stream.", lambda s: s.first),
    "jetstream_stream_last_seq": Gauge("The last sequence of a stream.", lambda s: s.last),
    "jetstream_stream_consumer_count": Gauge("Consumers of a stream.", lambda s: s.consumers),
    "jetstream_stream_subject_count": Gauge("Subjects in a stream.", lambda s: s.subjects),
    "jetstream_stream_limit_messages": Gauge(
        "The most messages that it keeps; -1 is no limit.", lambda s: s.max_messages
    ),
    "jetstream_stream_limit_bytes": Gauge("The most bytes that it keeps; -1 is no limit.", lambda s: s.max_bytes),
    "jetstream_stream_mirror_lag": Gauge(
        "Messages that a mirror lacks.", lambda s: s.lag if s.raw.get("mirror") else None
    ),
    "jetstream_stream_source_lag": Gauge(
        "Messages that a stream lacks of the source that is most behind.",
        lambda s: s.lag if s.raw.get("sources") else None,
    ),
}
CONSUMERS: dict[str, Gauge] = {
    "jetstream_consumer_delivered_consumer_seq": Gauge(
        "Messages that it gave, again ones included.", lambda c: c.delivered
    ),
    "jetstream_consumer_delivered_stream_seq": Gauge("The last sequence that it gave.", lambda c: c.delivered_stream),
    "jetstream_consumer_ack_floor_consumer_seq": Gauge(
        "Messages of which all are acknowledged.", lambda c: c.ack_floor
    ),
    "jetstream_consumer_ack_floor_stream_seq": Gauge("Up to here all are acknowledged.", lambda c: c.ack_floor_stream),
    "jetstream_consumer_num_pending": Gauge("Messages that it has not given yet.", lambda c: c.pending),
    "jetstream_consumer_num_ack_pending": Gauge("Messages that wait for an ack.", lambda c: c.ack_pending),
    "jetstream_consumer_num_redelivered": Gauge("Messages that were given again.", lambda c: c.redelivered),
    "jetstream_consumer_num_waiting": Gauge("Pulls that wait for messages.", lambda c: c.waiting),
    "jetstream_consumer_last_delivery_seconds": Gauge("Seconds since it gave a message.", lambda c: c.last_delivery),
    "jetstream_consumer_last_ack_seconds": Gauge("Seconds since it was acknowledged one.", lambda c: c.last_ack),
    "penstock_jetstream_consumer_lag_seconds": Gauge(
        "Age of the oldest message that it has not given, or that is not acknowledged.", lambda c: c.lag_seconds
    ),
}
SERVERS: dict[str, Gauge] = {
    "jetstream_server_total_streams": Gauge("Streams of the account.", lambda look: _total(look, "streams")),
    "jetstream_server_total_consumers": Gauge("Consumers of the account.", lambda look: _total(look, "consumers")),
    "jetstream_server_total_messages": Gauge(
        "Messages in all streams, where all are looked at.",
        lambda look: sum(each.messages for each in look.streams) if look.is_whole else None,
    ),
    "jetstream_server_total_message_bytes": Gauge(
        "Bytes of all streams, where all are looked at.",
        lambda look: sum(each.size for each in look.streams) if look.is_whole else None,
    ),
    "jetstream_server_max_memory": Gauge(
        "Memory that the account may use; -1 is no limit.", lambda look: _limit(look, "max_memory")
    ),
    "jetstream_server_max_storage": Gauge(
        "Storage that the account may use; -1 is no limit.", lambda look: _limit(look, "max_storage")
    ),
}


class JetStreams:
    """The servers of a program, each looked at when somebody asks: by the options of a connection, or as watched by
    somebody who knows which streams matter.
    """

    def __init__(self, servers: Sequence[NatsOptions | Watching], names: Sequence[str] = (), every: float = EVERY):
        watched = [each if isinstance(each, Watching) else Watching(each, names) for each in servers]
        self.watched = [Patiently(each, every) for each in watched]

    def shown(self) -> list[dict[str, Any]]:
        """Every server as JSON for the page: what is known now, without waiting for news. Left out are servers without
        JetStream, and those of which nothing is known yet.
        """
        return [
            {
                "place": each.watching.place,
                "at": seen.at or None,
                "error": harmless(seen.error),
                **(as_json(seen.look, ROWS) if seen.look is not None else {"streams": [], "consumers": []}),
            }
            for each in self.watched
            if ((seen := _fresh(each.seen())).look or seen.error) and not _is_off(seen)
        ]

    def collect(self) -> Iterator[Metric]:
        """All metrics. Of a server that is away there are none but that it is."""
        up = GaugeMetricFamily(
            "penstock_jetstream_up", "1 while the server tells its figures.", labels=["server", "user"]
        )
        left = GaugeMetricFamily(
            "penstock_jetstream_left_out",
            "Streams and consumers without metrics of their own: there are too many.",
            labels=["server", "user", "kind"],
        )
        families = {
            name: GaugeMetricFamily(name, gauge.text, labels=labels)
            for gauges, labels in ((SERVERS, _SERVER), (STREAMS, _STREAM), (CONSUMERS, _CONSUMER))
            for name, gauge in gauges.items()
        }
        for each in self.watched:
            each.seen()  # all begin to look
        until = time.monotonic() + WAIT
        told: set[tuple[str, ...]] = set()  # two connections may see the same account
        for each, user in zip(self.watched, _users([each.watching for each in self.watched]), strict=True):
            seen = _fresh(each.seen(max(0.0, until - time.monotonic())))
            if _is_off(seen):
                continue
            place, look = each.watching.place, seen.look
            up.add_metric([place, user], int(not seen.error and look is not None))
            if look is None or seen.error:
                continue
            for kind, count in (("streams", len(look.streams)), ("consumers", len(look.consumers))):
                left.add_metric([place, user, kind], max(0, count - SERIES))
            if not look.server.get("account"):
                look = replace(look, server={**look.server, "account": user})
            _add(families, SERVERS, look, _server(look), told)
            streams = {stream.name: stream for stream in look.streams}
            for stream in worst_streams(look)[:SERIES]:
                _add(families, STREAMS, stream, _of_stream(look, stream), told)
            for consumer in worst_consumers(look)[:SERIES]:
                if consumer.stream in streams:
                    labels = _of_consumer(look, streams[consumer.stream], consumer)
                    _add(families, CONSUMERS, consumer, labels, told)
        yield from (up, left, *families.values())

    def close(self) -> None:
        """Look no longer."""
        for each in self.watched:
            each.close()


def _add(
    families: dict[str, GaugeMetricFamily],
    gauges: dict[str, Gauge],
    thing: Any,
    labels: list[str],
    told: set[tuple[str, ...]],
) -> None:
    if tuple(labels) in told:
        return
    told.add(tuple(labels))
    for name, gauge in gauges.items():
        if (value := gauge.value(thing)) is not None:
            families[name].add_metric(labels, value)


def _server(look: Look) -> list[str]:
    """Labels as the exporter has them. Which server leads the cluster's meta group is not told to clients."""
    server = look.server
    known = [str(server.get(name) or "") for name in ("id", "name", "cluster", "domain")]
    return [*known, "", "", str(server.get("account") or "")]


def _of_stream(look: Look, each: StreamFigures) -> list[str]:
    """What a stream tells comes from its leader, so dashboards that ask for `is_stream_leader="true"` find it."""
    account = str(look.server.get("account") or "")
    return [*_server(look), account, each.name, each.leader or str(look.server.get("name") or ""), "true"]


def _of_consumer(look: Look, stream: StreamFigures, each: ConsumerFigures) -> list[str]:
    leader = each.leader or str(look.server.get("name") or "")
    description = field(dict(each.config), "description", str, "")
    return [*_of_stream(look, stream), each.name, leader, "true", harmless(description)[:80], each.created[:19]]


def _limit(look: Look, name: str) -> float | None:
    if look.account is None:
        return None
    try:
        return field(field(dict(look.account), "limits", dict, {}), name, int, -1)
    except PenstockError:
        return None


def _total(look: Look, name: str) -> float | None:
    """Of the account: as it tells itself, else what was seen where that is all. None where neither is known."""
    with suppress(PenstockError):
        if look.account is not None and (told := field(dict(look.account), name, int, -1)) >= 0:
            return told
    if not look.is_whole:
        return None
    return len(look.streams) if name == "streams" else sum(each.consumers for each in look.streams)


def _users(watched: Sequence[Watching]) -> list[str]:
    """A name for each connection to the same servers, never a secret: its user, and a number where that is taken. The
    first without a user has none.
    """
    found: list[str] = []
    taken: set[tuple[str, str]] = set()
    for each in watched:
        user = name = harmless(each.options.user or "")
        number = 1
        while (each.place, name) in taken:
            number += 1
            name = f"{user} {number}".strip()
        taken.add((each.place, name))
        found.append(name)
    return found


def _fresh(seen: Seen) -> Seen:
    """What was seen, without figures that are too old to be shown."""
    return replace(seen, look=None) if time.time() - seen.at > OLD else seen


def _is_off(seen: Seen) -> bool:
    """Whether it is a server without JetStream, such as one that is used for Core NATS alone."""
    return seen.look is None and ("not enabled" in seen.error or "JetStream does not answer" in seen.error)


def table() -> str:
    """The metrics, as a table of Markdown."""
    rows = [
        f"| `{name}` | {kind} | {gauge.text} |"
        for kind, gauges in (("server", SERVERS), ("stream", STREAMS), ("consumer", CONSUMERS))
        for name, gauge in gauges.items()
    ]
    return "\n".join(["| metric | of a | |", "|---|---|---|", *rows])
