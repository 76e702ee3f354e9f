"""Which stream takes a subject, and what it allows. Asked once in a process, and again after a while."""

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

# Streams seldom change, and what is kept of them is a lower bound or a setting.
KEEP = 30.0


class Kept(NamedTuple):
    """A stream as it was a while ago."""

    at: float
    info: StreamInfo
    life: str = ""


class Targets:
    """The streams that a task writes to, by what their leaders say.

    A *life* is a name for the time in which one server leads a stream without a break, and so knows the ids of all that
    was stored since. It is empty where nobody can tell.
    """

    def __init__(self, calls: Calls):
        self.calls = calls
        self.streams: dict[str, StreamInfo] = {}
        self.lives: dict[str, str] = {}
        self._subjects: dict[str, str] = {}  # one that each stream takes
        # A server that has started anew is another one, whatever was known of it.
        self._key = (key(calls.connection.options), calls.connection.info.get("server_id"))

    def of(self, subjects: pa.Array) -> list[str]:
        """The streams that take these subjects; an OptionError where one is taken by none."""
        left, found = pc.unique(subjects), []
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
                found.append(name)
                left = left.filter(pa.array(~matches))
        return found

    def make_sure_of(self, ledger: str) -> StreamInfo:
        """The ledger, checked once in a while."""
        kept = self._kept()
        if ledger not in kept:
            replicas = max((info.replicas for info in self.streams.values()), default=1)
            kept[ledger] = Kept(time.monotonic(), Ledger(self.calls, ledger).check(replicas))
        return kept[ledger].info

    def look(self, stream: str) -> tuple[StreamInfo, str]:
        """A stream, and the life that it leads, now."""
        info = self.calls.stream(stream)
        return info, self._life(info)

    def rewrites(self, stream: str, subject: str) -> bool:
        """Whether a message on `subject` is stored on another one."""
        found = trace(self.calls.connection, subject, stream)
        return found is not None and found.subject != subject

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
                raise nobody(self.calls, subject)
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
        found = trace(self.calls.connection, self._subjects[info.name], info.name)
        return found.server if found is not None else ""

    def _kept(self) -> dict[str, Kept]:
        """What this process knows."""
        everything: dict[Hashable, dict[str, Kept]] = shared("targets", dict)
        kept = everything.setdefault(self._key, {})
        for name in [name for name, (at, *_) in kept.items() if time.monotonic() - at > KEEP]:
            del kept[name]
        return kept


def nobody(calls: Calls, subject: str) -> OptionError:
    """The error for a subject that no stream takes."""
    names = calls.others()
    infos = calls.streams(difflib.get_close_matches(subject.partition(".")[0], names, n=20, cutoff=0.0))
    takes = {text: info.name for info in infos.values() if info for text in info.subjects}
    close = difflib.get_close_matches(subject, takes, n=3, cutoff=0.0)
    there = ", ".join(f"'{takes[text]}' takes {text}" for text in close)
    what = f"Make one, or write to one that exists: {there}" if there else "Make one: there are none yet"
    return OptionError(
        f"no stream takes the subject '{subject}'. {what}. Where the account maps subjects, write to the one that it "
        "is mapped to."
    )
