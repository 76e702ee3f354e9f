"""JetStream's streams and consumers, as the HTTP interface and Prometheus see them. Metrics have the names and labels
of prometheus-nats-exporter, so that its dashboards work. Knows names and types of metrics; asks a server only when
somebody asks here, and at most every few seconds.
"""

import time
from collections.abc import Callable, Iterator, Sequence
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

_SERVER = ("server_id", "server_name", "cluster", "domain", "meta_leader", "is_meta_leader")
_STREAM = (*_SERVER, "account", "account_id", "stream_name", "stream_leader", "is_stream_leader")
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
    "jetstream_server_total_streams": Gauge("Streams of the account.", lambda look: len(look.streams)),
    "jetstream_server_total_consumers": Gauge(
        "Consumers of the account.", lambda look: sum(each.consumers for each in look.streams)
    ),
    "jetstream_server_total_messages": Gauge(
        "Messages in all streams.", lambda look: sum(each.messages for each in look.streams)
    ),
    "jetstream_server_total_message_bytes": Gauge(
        "Bytes of all streams.", lambda look: sum(each.size for each in look.streams)
    ),
    "jetstream_server_max_memory": Gauge(
        "Memory that the account may use; -1 is no limit.", lambda look: _limit(look, "max_memory")
    ),
    "jetstream_server_max_storage": Gauge(
        "Storage that the account may use; -1 is no limit.", lambda look: _limit(look, "max_storage")
    ),
}


class JetStreams:
    """The servers of a program, each looked at when somebody asks."""

    def __init__(self, servers: Sequence[NatsOptions], names: Sequence[str] = (), every: float = EVERY):
        self.watched = [Patiently(Watching(options, names), every) for options in servers]

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
            if (seen := each.seen()) != Seen() and not _is_off(seen)
        ]

    def collect(self) -> Iterator[Metric]:
        """All metrics. Of a server that is away there are none but that it is."""
        up = GaugeMetricFamily("penstock_jetstream_up", "1 while the server tells its figures.", labels=["server"])
        left = GaugeMetricFamily(
            "penstock_jetstream_left_out",
            "Streams and consumers without metrics of their own: there are too many.",
            labels=["server", "kind"],
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
        for each in self.watched:
            seen = each.seen(max(0.0, until - time.monotonic()))
            if _is_off(seen):
                continue
            place, look = each.watching.place, seen.look
            if (place,) not in told:
                up.add_metric([place], int(not seen.error and look is not None))
            told.add((place,))
            if look is None or seen.error:
                continue
            for kind, count in (("streams", len(look.streams)), ("consumers", len(look.consumers))):
                if (place, kind) not in told:
                    left.add_metric([place, kind], max(0, count - SERIES))
                told.add((place, kind))
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
    return [*(str(server.get(name) or "") for name in ("id", "name", "cluster", "domain")), "", ""]


def _of_stream(look: Look, each: StreamFigures) -> list[str]:
    """What a stream tells comes from its leader, so dashboards that ask for `is_stream_leader="true"` find it."""
    account = str(look.server.get("account") or "")
    return [*_server(look), account, account, each.name, each.leader or str(look.server.get("name") or ""), "true"]


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
