"""Which streams a query reads: those that the options name, match by a pattern, or find by subjects. Knows names and
subjects; reads no messages.
"""

import logging
import re
import time
from collections.abc import Set as AbstractSet

from penstock.clients.jetstream.calls import Calls
from penstock.connectors.jetstream.admission import listed
from penstock.connectors.jetstream.options import JetStreamOptions
from penstock.errors import OptionError

log = logging.getLogger("penstock")

NEVER, AT_ONCE = float("inf"), float("-inf")


class Discovery:
    """The names of the streams, searched for again every `discoveryInterval`."""

    def __init__(self, options: JetStreamOptions):
        self.options = options
        self._names: list[str] = []
        self._next_search = AT_ONCE
        self._warned = False

    def search_again(self) -> None:
        """Search at the next call of `names`, whatever the interval."""
        self._next_search = AT_ONCE

    def names(self, calls: Calls, known: AbstractSet[str]) -> list[str]:
        """The names, as of the last search. `known` are streams that the query has read before: they stay, also where
        they no longer list its subjects. An OptionError where no stream has the subjects of the options.
        """
        now = time.monotonic()
        if now >= self._next_search:
            self._names = self._search(calls, known)
            searches = self.options.stream_pattern is not None or not self.options.stream
            self._next_search = now + self.options.discovery_interval if searches else NEVER
        return self._names

    def _search(self, calls: Calls, known: AbstractSet[str]) -> list[str]:
        if self.options.stream:
            return list(self.options.stream)
        if self.options.stream_pattern is not None:
            return self._by_pattern(calls, known, self.options.stream_pattern)
        return self._by_subjects(calls, known)

    def _by_pattern(self, calls: Calls, known: AbstractSet[str], pattern: str) -> list[str]:
        names = {name for name in calls.names() if re.fullmatch(pattern, name)}
        if not names and not self._warned:
            self._warned = True
            log.warning("no stream matches streamPattern '%s', up to now", pattern)
        new, subjects = names - known, self.options.user_subjects
        if subjects and new:
            infos = calls.streams(sorted(new))
            new = {name for name, info in infos.items() if info is not None and listed(info, subjects)}
        return sorted(new | (names & known))

    def _by_subjects(self, calls: Calls, known: AbstractSet[str]) -> list[str]:
        names = {name for subject in self.options.user_subjects for name in calls.names(subject)} | known
        if not names and not self.options.is_narrowed:
            raise OptionError(
                f"no stream takes messages on {', '.join(self.options.subjects)}. Name the 'stream' that has them from "
                "before, or make one."
            )
        return sorted(names)
