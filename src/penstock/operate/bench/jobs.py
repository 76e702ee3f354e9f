"""What a process of the load generator is asked to do, and what it tells. Values only; they travel through pipes."""

from dataclasses import dataclass, field
from typing import Any

from penstock.clients.nats.options import NatsOptions

PREFIX = "PENSTOCK_BENCH"


@dataclass(frozen=True)
class Place:
    """The streams of one scenario: their names, and the subjects that are published."""

    run: str
    streams: tuple[str, ...]
    apps: int

    @property
    def root(self) -> str:
        """What all subjects begin with."""
        return f"{PREFIX}.{self.run}"

    def subject(self, app: int, event: int) -> str:
        """The subject of an event. The number of its application has two digits, always in the same place."""
        return f"{self.root}.{app:02d}.orders.{event:02d}.v1"

    def of_app(self, app: int) -> str:
        """What the stream of an application takes."""
        return f"{self.root}.{app:02d}.*.*.*"

    @property
    def app_at(self) -> int:
        """Where in a subject the number of the application begins."""
        return len(self.root) + 1


@dataclass(frozen=True)
class Publish:
    """Publish as fast as it goes: for so many seconds, or so many messages."""

    options: NatsOptions
    place: Place
    mode: str
    size: int
    seconds: float
    most: int


@dataclass(frozen=True)
class Consume:
    """Consume what is stored: all of it, or for so many seconds."""

    options: NatsOptions
    place: Place
    name: str  # of the consumers, one on each stream
    consume: str
    ack: str
    size: int
    expected: tuple[int, ...]  # of each stream
    seconds: float


@dataclass(frozen=True)
class Pace:
    """Publish at a constant rate, each message at its time, and measure how late its ack comes."""

    options: NatsOptions
    place: Place
    size: int
    seconds: float
    rate: float
    window: float  # seconds that are told together


@dataclass(frozen=True)
class Deliver:
    """Consume what a Pace publishes, and measure how late it comes."""

    options: NatsOptions
    place: Place
    name: str
    consume: str
    ack: str
    size: int
    seconds: float
    rate: float
    window: float


Job = Publish | Consume | Pace | Deliver


@dataclass
class Told:
    """What came of a job."""

    messages: int = 0
    seconds: float = 0.0
    cpu: float = 0.0  # seconds of CPU
    memory: int = 0  # bytes, at most
    latency_ms: list[float] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)
    interruptions: int = 0
    unknown: int = 0  # messages whose ack was lost with a connection
    remark: str = ""
    more: dict[str, Any] = field(default_factory=dict)
