"""Findings about consumers: those that stand still, are forgotten, or give messages again and again. Pure."""

from collections.abc import Iterator
from typing import Any

from penstock.clients.answers import field
from penstock.operate.doctor.facts import Facts
from penstock.operate.doctor.findings import Finding, Level
from penstock.operate.figures import ConsumerFigures, duration, trouble

HOUR, DAY = 3600.0, 86400.0
# A durable that nobody has used for so long, or a follower whose query has not moved, is taken for forgotten.
FORGOTTEN = DAY

_MENDS = {
    "paused": "nats consumer resume {stream} {name}",
    "unbound": "Start the program that subscribes to {target}, or delete it: nats consumer rm {stream} {name}",
    "unacked": "Look at the program that reads it: it acknowledges nothing. If it only needs more at once, raise "
    "max_ack_pending: nats consumer edit {stream} {name} --max-pending={more}",
    "unpulled": "Start the program that pulls from it, or delete the consumer: nats consumer rm {stream} {name}",
    "follower": "Start the query again. If it is gone for good, delete its consumer: nats consumer rm {stream} {name}",
    "redelivered": "Look for messages that the program cannot process, and for an ack_wait ({ack_wait}) shorter "
    "than it takes. Set max_deliver, so that such a message ends: nats consumer edit {stream} {name} --max-deliver=5",
    "waiting": "Pull less often, with larger batches; or raise max_waiting, which takes a new consumer.",
}


def consumers(facts: Facts) -> Iterator[Finding]:
    """All findings about consumers, and a line for those with which all is well."""
    look = facts.look
    if look is None:
        return
    retentions = {
        each.name: field(field(dict(each.raw), "config", dict, {}), "retention", str, "limits") for each in look.streams
    }
    well = 0
    for each in look.consumers:
        found = list(consumer_findings(each, retentions.get(each.stream, "limits")))
        yield from found
        well += not found
    if look.unasked:
        yield Finding(
            "consumer",
            Level.UNCHECKED,
            f"{look.unasked:,} streams",
            "There are too many streams: the consumers of these, the smallest, were not looked at.",
            "Name those that matter: --stream NAME.",
        )
    if well:
        yield Finding(
            "consumer", Level.OK, f"{well:,} consumers" if well > 1 else "consumer", "Nothing to say of them."
        )


def consumer_findings(each: ConsumerFigures, retention: str) -> Iterator[Finding]:
    """All findings about one consumer of a stream with this retention."""
    about, config = f"consumer {each.stream}/{each.name}", dict(each.config)
    wrong = trouble(each)
    if wrong is not None:
        is_held = retention != "limits" and wrong.harm > 1
        behind = f" {each.pending:,} messages wait" if each.pending else ""
        held = f"{behind}, and the stream keeps what it has not read ({retention} retention)" if is_held else behind
        level = Level.ERROR if wrong.harm > 1 and wrong.kind != "unpulled" else Level.WARNING
        is_young = wrong.kind == "follower" and (each.lag_seconds or 0.0) < HOUR
        level = Level.ADVICE if wrong.kind == "paused" or is_young else level
        text = f"{wrong.text[0].upper()}{wrong.text[1:]}.{held}{'.' if held else ''}"
        yield Finding("consumer", level, about, text, f"{_mend(wrong.kind, each, config)}.")
    max_deliver = field(config, "max_deliver", int, -1)
    if max_deliver > 0 and each.redelivered:
        yield Finding(
            "consumer",
            Level.ADVICE,
            about,
            f"{each.redelivered:,} messages are being given again, and one that fails {max_deliver} times is given no "
            "more (max_deliver); nobody is told but the advisory.",
            f"Listen to $JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{each.stream}.{each.name}.",
        )
    is_idle = wrong is None and not each.pending and not each.ack_pending and each.quiet > FORGOTTEN
    if is_idle and retention != "limits" and not each.waiting and not each.is_push and not each.is_follower:
        yield Finding(
            "consumer",
            Level.ADVICE,
            about,
            f"It has not been used for {duration(each.quiet)}. If it is forgotten, the stream will keep all that comes "
            f"for it ({retention} retention).",
            f"nats consumer rm {each.stream} {each.name}, if nobody needs it.",
        )


def _mend(kind: str, each: ConsumerFigures, config: dict[str, Any]) -> str:
    return _MENDS[kind].format(
        stream=each.stream,
        name=each.name,
        target=config.get("deliver_subject", ""),
        more=2 * max(1, field(config, "max_ack_pending", int, 1000)),
        ack_wait=duration(field(config, "ack_wait", int, 30_000_000_000) / 1e9),
    )
