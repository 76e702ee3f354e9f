"""A proposal as a declaration file. Pure: text out."""

from penstock.operate.declared.writing import table
from penstock.operate.migrate.proposal import Proposal


def text(proposal: Proposal, subjects: str) -> str:
    """The file for `penstock jetstream plan` and `apply`."""
    blocks = [f"# Written by `penstock jetstream migrate {subjects}`: streams that store what is published there.\n"]
    for name, config in proposal.streams.items():
        blocks.append(table(("streams", name), config))
        for durable, settings in proposal.consumers.get(name, {}).items():
            blocks.append(table(("streams", name, "consumers", durable), settings))
    return "\n".join(blocks)
