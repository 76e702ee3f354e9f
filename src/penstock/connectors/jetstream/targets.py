"""Which stream has a subject, and what it allows. Asked once per process, and again after KEEP seconds. Knows streams;
knows no rows and no attempts.
"""

import difflib
import time
from collections.abc import Hashable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.clients.jetstream.api import StreamInfo
from penstock.clients.jetstream.calls import Calls
from penstock.clients.jetstream.trace import trace
from penstock.clients.nats.pool import key
from penstock.clients.nats.subjects import as_regex, intersect
from penstock.connectors.jetstream.ledger import Ledger
from penstock.errors import OptionError
from penstock.kit.process_cache import shared

# How many seconds an info is kept. Streams seldom change, and only lower bounds and settings are used of it.
KEEP = 30.0


class Kept(NamedTuple):
    """The info of a stream, and when it was asked for."""

    at: float  # monotonic clock
    info: StreamInfo
    life: str = ""


class Targets:
    """The streams that a task writes to, as their leaders describe them.

    A *life* names the time in which one server leads a stream without a break, and so knows the ids of all messages
    since. It is empty where the server does not tell.
    """

    def __init__(self, calls: Calls):
        self.calls = calls
        self.streams: dict[str, StreamInfo] = {}
        self.lives: dict[str, str] = {}
        self._subjects: dict[str, str] = {}  # of each stream, one of its subjects
        # A server has a new id after a restart: then nothing that was kept is used.
        self._key = (key(calls.connection.options), calls.connection.info.get("server_id"))

    def of(self, subjects: pa.Array) -> list[str]:
        """The names of the streams that have these subjects; an OptionError where no stream has one of them."""
        left, names = pc.unique(subjects), []
        known = dict(self.streams)
        while len(left):
            if known:
                name, info = known.popitem()
            else:
                info = self._ask(left[0].as_py().decode(errors="replace"))
                name = info.name
            matches = np.asarray(pc.match_substring_regex(left, as_regex(info.subjects)))
            if matches.any():
                self.streams[name] = info
                names.append(name)
                left = left.filter(pa.array(~matches))
        return names

    def ledger(self, ledger: str) -> StreamInfo:
        """The info of a ledger, which is created where it does not exist and checked every KEEP seconds."""
        kept = self._kept()
        if ledger not in kept:
            replicas = max((info.replicas for info in self.streams.values()), default=1)
            kept[ledger] = Kept(time.monotonic(), Ledger(self.calls, ledger).check(replicas))
        return kept[ledger].info

    def look(self, stream: str) -> tuple[StreamInfo, str]:
        """The info of a stream and its life, asked now."""
        info = self.calls.stream(stream)
        return info, self._life(info)

    def rewrites(self, stream: str, subject: str) -> bool:
        """Whether the stream stores a message on `subject` under another subject."""
        stored = trace(self.calls.connection, subject, stream)
        return stored is not None and stored.subject != subject

    @property
    def window(self) -> float:
        """The shortest duplicate window of the streams, in seconds."""
        return min((info.duplicate_window for info in self.streams.values()), default=0.0)

    def _ask(self, subject: str) -> StreamInfo:
        kept = self._kept()
        for _, info, _ in kept.values():
            if any(intersect(text, subject) == subject for text in info.subjects):
                break
        else:
            names = self.calls.names(subject)
            if not names:
                raise no_stream_error(self.calls, subject)
            info = self.calls.stream(names[0])
        self._subjects.setdefault(info.name, subject)
        if info.name not in kept:
            kept[info.name] = Kept(time.monotonic(), info, self._life(info))
        self.lives[info.name] = kept[info.name].life
        return info

    def _life(self, info: StreamInfo) -> str:
        if info.leader_since:
            return f"{info.leader} since {info.leader_since}"
        server = self.calls.connection.info
        if server.get("server_name") == info.leader:
            return str(server.get("server_id", ""))
        stored = trace(self.calls.connection, self._subjects[info.name], info.name)
        return stored.server if stored is not None else ""

    def _kept(self) -> dict[str, Kept]:
        """What this process keeps of this server, by stream. Old entries are deleted."""
        kept_by_server: dict[Hashable, dict[str, Kept]] = shared("targets", dict)
        kept = kept_by_server.setdefault(self._key, {})
        for name in [name for name, (at, *_) in kept.items() if time.monotonic() - at > KEEP]:
            del kept[name]
        return kept


def no_stream_error(calls: Calls, subject: str) -> OptionError:
    """The error for a subject that no stream has, with similar subjects that one has."""
    names = calls.others()
    infos = calls.streams(difflib.get_close_matches(subject.partition(".")[0], names, n=20, cutoff=0.0))
    takes = {text: info.name for info in infos.values() if info for text in info.subjects}
    close = difflib.get_close_matches(subject, takes, n=3, cutoff=0.0)
    existing = ", ".join(f"'{takes[text]}' takes {text}" for text in close)
    remedy = f"Make one, or write to one that exists: {existing}" if existing else "Make one: there are none yet"
    return OptionError(
        f"no stream takes the subject '{subject}'. {remedy}. Where the account maps subjects, write to the one that it "
        "is mapped to."
    )
