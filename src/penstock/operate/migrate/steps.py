"""What to do after a migration, and how to undo it, as lines of text. Pure."""

import shlex
from collections.abc import Sequence

from penstock.operate.migrate.proposal import LeftOut, Proposal


def programs(proposal: Proposal) -> list[str]:
    """What to change in programs, step by step."""
    lines = [
        "Publishers: nothing has to change. What they publish on these subjects is stored from now on. Without waiting "
        "for the ack, a message is not stored while its stream has no leader or is full, and nobody is told. With the "
        "ack, and a Nats-Msg-Id to send it again by, it is stored once."
    ]
    if any(config.get("no_ack") for config in proposal.streams.values()):
        lines = ["Publishers: nothing has to change, and they cannot wait for acks: the streams have no_ack."]
    lines.append(
        "Subscribers: nothing has to change. They get every message as before, whether it is stored or not. To get "
        "also what was published while they were away, one after the other:"
    )
    for stream, durables in proposal.consumers.items():
        for name, config in durables.items():
            subjects: list[str] = config.get("filter_subjects") or proposal.streams.get(stream, {}).get("subjects", [])
            lines.append(
                f"  - start '{name}' anew with a pull on the durable '{name}' of stream '{stream}' "
                f"({', '.join(subjects)}), and then stop the old one. How far it is: nats consumer info "
                f"{shlex.quote(stream)} {shlex.quote(name)}"
            )
    if not proposal.consumers:
        lines.append("  - make a durable for each: nats consumer add STREAM NAME --pull --ack explicit --defaults")
    lines.append(
        "A durable begins with the first message of its stream: what the old subscriber has handled since then comes "
        "once more. Each message is acknowledged by itself (explicit), and comes again after ack_wait if it is not. "
        "Several programs on one durable share its messages, as a queue group does."
    )
    return lines


def left_out(subjects: Sequence[LeftOut]) -> list[str]:
    """Why some subjects are not stored."""
    if not subjects:
        return []
    return [
        "A stream answers every message that has a reply subject with its ack, and a requester would take that for its "
        "answer. So these are not stored (--no-ack stores them too, without acks):",
        *(f"  - {each.subject}: {each.why}" for each in subjects),
    ]


def back(streams: Sequence[str]) -> list[str]:
    """How to undo it: nothing where no stream was made."""
    if not streams:
        return []
    return [
        "To go back, delete the streams. Old subscribers and publishers go on as before: they never knew of them. Lost "
        "are then all stored messages, and how far each consumer had got. Take programs back first that use a durable "
        "or wait for acks.",
        *(f"  nats stream rm {shlex.quote(name)} --force" for name in streams),
    ]
