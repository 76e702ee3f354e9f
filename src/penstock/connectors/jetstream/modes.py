"""Which way to publish suits a stream: fast ingest, atomic batches, or one by one. Knows what servers and streams
allow; publishes nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.clients.jetstream.api import StreamInfo
from penstock.clients.nats.client import Connection
from penstock.errors import OptionError

# A batch is sent whole, whatever the clock says: the duplicate window must be far longer than sending takes.
LEAST_WINDOW = 10.0


class Mode(NamedTuple):
    """A way to publish that is faster than one by one."""

    name: str
    flag: str  # the setting that the stream must have
    since: tuple[int, int]  # the first version of the server


MODES = (Mode("fast", "allow_batched", (2, 14)), Mode("atomic", "allow_atomic", (2, 12)))


def refuse(wanted: str, connection: Connection, streams: Sequence[StreamInfo]) -> None:
    """Refuse the option publishMode where the server is too old for it or a stream does not allow it."""
    for mode in MODES:
        if wanted != mode.name:
            continue
        lacking = [info.name for info in streams if not getattr(info, mode.flag)]
        if connection.version() >= mode.since and not lacking:
            continue
        where = f" on stream {', '.join(lacking)}" if lacking else ""
        needs, has = ".".join(map(str, mode.since)), connection.info.get("version")
        raise OptionError(
            f"publishMode={mode.name} needs nats-server {needs} (this is {has}) and {mode.flag}{where}. Turn it on, or "
            "leave publishMode at auto."
        )


def choose(
    wanted: str, connection: Connection, streams: Sequence[StreamInfo], *, conditional: bool, window: float | None
) -> str:
    """The way that the option publishMode wants, or with `auto` the fastest that suits. One by one where batches do not
    suit: several streams, `conditional` rows, or a short duplicate `window`, None where duplicates do not matter.
    """
    info = streams[0]
    allows_batches = len(streams) == 1 and not info.one_per_subject and not conditional
    if not allows_batches or (window is not None and window < LEAST_WINDOW):
        return "pipelined"
    for mode in MODES:
        if wanted not in ("auto", mode.name) or connection.version() < mode.since or not getattr(info, mode.flag):
            continue
        # A stream on disk stages atomic batches there first, and takes 0.6 of the rows that it takes one by one.
        if mode.name == "atomic" and wanted == "auto" and not info.in_memory:
            continue
        return mode.name
    return "pipelined"
