"""What is varied in a benchmark, declared once: dimensions, scenarios, and which of them a server can run. Pure.

A scenario is the baseline with one or more dimensions changed. Its name tells these changes, and is the same in every
run, so that runs can be compared.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import OptionError

APPS = 10  # applications, each with its own `app.*.*.*`
EVENTS = 10  # kinds of events of each application
BASELINE = "baseline"


class Dimension(NamedTuple):
    """Something that is varied. The first value is the baseline's."""

    name: str
    values: tuple[str, ...]
    doc: str
    quick: tuple[str, ...] | None = None  # the values of a quick run, where they are fewer


DIMENSIONS = (
    Dimension("streams", ("one", "per-app"), f"One stream for all subjects, or one for each of {APPS} applications."),
    Dimension("storage", ("file", "memory"), "Where the stream is kept."),
    Dimension("cipher", ("none", "chachapoly", "aes"), "Encryption at rest. Embedded servers only: it is the server's.",
              quick=("none", "chachapoly")),
    Dimension("replicas", ("1", "1-of-3", "3"), "One server; one replica in a cluster of three; three replicas.",
              quick=("1", "3")),
    Dimension("size", ("256", "16", "1024", "16384"), "Bytes of a message, without subject and headers.",
              quick=("256", "1024")),
    Dimension("publishers", ("1", "4"), "Processes that publish, each on a connection of its own."),
    Dimension("consumers", ("1", "4"), "Consumers, each with a process. Each gets every message."),
    Dimension("publish", ("pipelined", "one-by-one", "atomic", "fast"),
              "How acks are awaited: many on the way, one by one, one for an atomic batch (server 2.12), or fast "
              "ingest (server 2.14)."),
    Dimension("consume", ("pull", "push"), "Who decides when messages come: the client or the server."),
    Dimension("ack", ("explicit", "all", "none"), "What a consumer acknowledges."),
)  # fmt: skip
# The combinations that decide between one stream and many, and between memory and file, in a cluster.
TOGETHER = (
    {"replicas": "3", "storage": "memory"},
    {"replicas": "3", "streams": "per-app"},
    {"replicas": "3", "storage": "memory", "streams": "per-app"},
)
# The version of the server that has a value.
SINCE = {("publish", "atomic"): (2, 12), ("publish", "fast"): (2, 14)}


@dataclass(frozen=True)
class Scenario:
    """One combination of values."""

    name: str
    streams: str
    storage: str
    cipher: str
    replicas: str
    size: int
    publishers: int
    consumers: int
    publish: str
    consume: str
    ack: str

    @classmethod
    def of(cls, changed: Mapping[str, str]) -> "Scenario":
        """The baseline with these values changed."""
        values = {each.name: changed.get(each.name, each.values[0]) for each in DIMENSIONS}
        own = [f"{each.name}={values[each.name]}" for each in DIMENSIONS if values[each.name] != each.values[0]]
        numbers = {name: int(values.pop(name)) for name in ("size", "publishers", "consumers")}
        return cls(name=" ".join(own) or BASELINE, **values, **numbers)  # type: ignore[arg-type]

    @property
    def copies(self) -> int:
        """How many servers keep each message."""
        return 3 if self.replicas == "3" else 1

    @property
    def clustered(self) -> bool:
        """Whether it needs a cluster of three."""
        return self.replicas != "1"

    @property
    def stream_count(self) -> int:
        """How many streams it has."""
        return APPS if self.streams == "per-app" else 1

    def values(self) -> dict[str, str]:
        """Each dimension's value."""
        return {each.name: str(getattr(self, each.name)) for each in DIMENSIONS}

    def sense(self) -> str:
        """Why this combination makes no sense; empty where it does."""
        if self.cipher != "none" and self.storage == "memory":
            return "only files are encrypted"
        if self.cipher != "none" and self.clustered:
            return "encryption is measured on one server"
        return ""


def scenarios(*, full: bool = False, quick: bool = False) -> list[Scenario]:
    """The baseline, then each dimension varied alone, then the combinations of TOGETHER; `full` has every combination
    that makes sense.
    """
    values = {each.name: (each.quick if quick and each.quick else each.values) for each in DIMENSIONS}
    if full:
        product = itertools.product(*values.values())
        made = [Scenario.of(dict(zip(values, each, strict=True))) for each in product]
        return [each for each in made if not each.sense()]
    alone = [{name: value} for name, allowed in values.items() for value in allowed[1:]]
    return [Scenario.of(changed) for changed in ({}, *alone, *(() if quick else TOGETHER))]


def only(found: Sequence[Scenario], pattern: str | None) -> list[Scenario]:
    """The scenarios whose name has a match of the regular expression; an OptionError where none has."""
    if pattern is None:
        return list(found)
    try:
        regex = re.compile(pattern)
    except re.error as error:
        raise OptionError(f"--only has '{pattern}', which is no regular expression: {error}.") from None
    kept = [each for each in found if regex.search(each.name)]
    if not kept:
        names = ", ".join(each.name for each in found[:12])
        raise OptionError(f"no scenario matches --only '{pattern}'. There are: {names}{', ...' * (len(found) > 12)}.")
    return kept


class Able(NamedTuple):
    """What a server can run."""

    version: tuple[int, int]
    embedded: bool
    cluster: bool  # has at least three servers
    max_payload: int = 1 << 20


def runnable(found: Iterable[Scenario], able: Able) -> tuple[list[Scenario], dict[str, str]]:
    """The scenarios that this server can run, and why it cannot run the others, by name."""
    kept, left_out = [], {}
    for each in found:
        if why := _unable(each, able):
            left_out[each.name] = why
        else:
            kept.append(each)
    return kept, left_out


def _unable(scenario: Scenario, able: Able) -> str:
    major, minor = able.version
    for (dimension, value), since in SINCE.items():
        if getattr(scenario, dimension) == value and able.version < since:
            return f"{dimension}={value} needs server {since[0]}.{since[1]} or later, and this is {major}.{minor}"
    if scenario.cipher != "none" and not able.embedded:
        return "encryption is a setting of the server, which a client cannot change"
    if scenario.clustered and not able.cluster:
        return "it needs a cluster of three servers"
    if scenario.size > able.max_payload:
        return f"the server takes messages of at most {able.max_payload:,} bytes (max_payload)"
    return ""


def most_messages(scenario: Scenario, most_bytes: int) -> int:
    """How many messages are published at most, so that the stream has no more than about `most_bytes`."""
    return max(1000, most_bytes // (scenario.size + OVERHEAD))


OVERHEAD = 80  # bytes that a stored message has besides its body: about 22 of the record, and the subject


def most_written(found: Iterable[Scenario], most_bytes: int) -> tuple[int, int]:
    """The most bytes that are stored at the same time, in files and in memory, all copies counted."""
    written = {"file": 0, "memory": 0}
    for each in found:
        need = most_messages(each, most_bytes) * (each.size + OVERHEAD) * each.copies
        written[each.storage] = max(written[each.storage], need)
    return written["file"], written["memory"]


def seconds_needed(
    found: Sequence[Scenario], rounds: int, seconds: float, starting: Callable[[Scenario], float]
) -> float:
    """About how long a run takes: three phases for each scenario and round, and what `starting` says."""
    return sum(rounds * (3 * seconds + starting(each)) for each in found)
