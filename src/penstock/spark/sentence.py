"""An error of ours, found in the text that Spark makes of it. Pure text."""

import re
from typing import NamedTuple

# The name of one of our classes, at the beginning of a line or behind words of Spark, and what the error says.
_OURS = re.compile(
    r"(?:^|(?<=: ))penstock\.(?:\w+\.)*(\w+): (.+(?:\n(?![ \t]|at |===|SQLSTATE|JVM stacktrace).+)*)", re.MULTILINE
)
_STATES = re.compile(r"(?:\s*SQLSTATE: \w+)+$")
# Between an error and the next one, which was raised because of it: the last one is what failed.
_NEXT = re.compile(r"^(?:During handling of|The above exception was) .*", re.MULTILINE)


class Told(NamedTuple):
    """The class of an error, and what it says."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def found(text: str) -> Told | None:
    """The error of ours that Spark's text tells of. None where there is none, or where another one came of it."""
    ours = _OURS.findall(_NEXT.split(text)[-1])
    if not ours:
        return None
    kind, said = ours[-1]
    return Told(kind, _STATES.sub("", said.strip()))
