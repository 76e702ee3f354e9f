"""What is declared, and what is there: streams with their consumers. Values only; knows no files and no server."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.operate.declared.fields import Version

Config = dict[str, Any]  # JetStream's JSON
BUCKET_PREFIX = "KV_"  # of the name of the stream that a key-value bucket is


@dataclass(frozen=True)
class Place:
    """Where something is declared."""

    file: Path
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class DeclaredConsumer:
    """A durable consumer of a file. Only the fields that the file has."""

    name: str
    config: Config
    place: Place
    absent: bool = False


@dataclass(frozen=True)
class DeclaredStream:
    """A stream or bucket of files. `config` has the fields that they say; `initial` is for a new one only."""

    name: str
    config: Config
    place: Place
    consumers: dict[str, DeclaredConsumer] = field(default_factory=dict)
    absent: bool = False
    is_whole: bool = True  # False where files only say consumers of it
    bucket: str = ""
    initial: Config = field(default_factory=dict)

    @property
    def title(self) -> str:
        """As messages call it."""
        return f"bucket '{self.bucket}'" if self.bucket else f"stream '{self.name}'"


@dataclass(frozen=True)
class Declared:
    """All that files declare, by the names of streams."""

    streams: dict[str, DeclaredStream]


@dataclass(frozen=True)
class LiveConsumer:
    """A consumer of the server."""

    name: str
    config: Config
    created: str
    ack_floor: int = 0  # stream sequences
    delivered: int = 0
    pending: int = 0
    ack_pending: int = 0

    @property
    def is_durable(self) -> bool:
        """Whether it stays without being used."""
        return bool(self.config.get("durable_name"))


@dataclass(frozen=True)
class LiveStream:
    """A stream of the server. `consumers` is None where they were not asked for."""

    name: str
    config: Config
    created: str
    messages: int = 0
    size: int = 0
    first: int = 1
    last: int = 0
    first_time: int = 0  # microseconds
    last_time: int = 0
    subjects: int = 0  # how many different ones it holds
    consumer_count: int = 0
    consumers: dict[str, LiveConsumer] | None = None


@dataclass(frozen=True)
class Live:
    """What the server has."""

    version: Version
    streams: dict[str, LiveStream]
    server: str = ""  # its version as it says it
    is_clustered: bool | None = None  # None where that cannot be known
    servers: int | None = None  # how many the cluster seems to have
    account: dict[str, Any] = field(default_factory=dict)  # the answer to INFO
    now: int = 0  # microseconds
    unseen: tuple[str, ...] = ()  # what could not be looked at, in sentences
    unknown: tuple[str, ...] = ()  # streams that there are, and that did not answer
