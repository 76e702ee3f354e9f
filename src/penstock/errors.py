"""Five ways to fail, by who must act. A message says what happened, the evidence, and what to do."""

import difflib
from collections.abc import Iterable


class PenstockError(Exception):
    """Anything Penstock refuses or could not do."""

    def add(self, sentence: str) -> None:
        """One more sentence to the message."""
        said = str(self)
        self.args = (f"{said}{'' if said.endswith(('.', '?', '!')) else '.'} {sentence}",)


class OptionError(PenstockError):
    """The user's settings are wrong: an option, a column, a name that does not exist."""


class ConnectError(PenstockError):
    """The server cannot be reached or refuses us: network, credentials, permissions, limits."""


class Disconnected(ConnectError):  # noqa: N818 - what happened, and the base says that it is an error
    """The connection broke, or the server is busy; another try may do."""


class Interrupted(PenstockError):  # noqa: N818 - what happened, and the base says that it is an error
    """Spark ended a task before all of its rows had come: it was stopped, or what feeds it failed."""


class DataLossError(PenstockError):
    """Data that was still to be read is gone."""


class ProtocolError(PenstockError):
    """The server answered something we do not understand: its fault or ours, never the user's."""


# Python and Spark print where a class is from before its name: penstock.OptionError says enough.
for _error in (PenstockError, OptionError, ConnectError, Disconnected, Interrupted, DataLossError, ProtocolError):
    _error.__module__ = "penstock"


def nearest(name: str, names: Iterable[str]) -> str:
    """What to say of a name that is not there: those like it, or some of those that are."""
    there = sorted(names)
    close = difflib.get_close_matches(name, there, n=3, cutoff=0.5)
    if close:
        return f"Did you mean {' or '.join(map(repr, close))}?"
    return f"There are: {', '.join(there[:10])}." if there else "There are none, or none to be seen."
