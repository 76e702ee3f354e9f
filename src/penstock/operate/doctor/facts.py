"""What was learned of servers, before anybody judges it. Values only: a fact that is not there is None, or says why."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.operate.figures import Look, StreamFigures


@dataclass(frozen=True)
class ServerFacts:
    """One address. `told`: by the cluster, not by the user. `error`: why it cannot be used."""

    address: str
    told: bool = False
    error: str = ""
    connect: float | None = None  # seconds, with TLS and credentials
    round_trip: float | None = None  # seconds
    info: Mapping[str, Any] = field(default_factory=dict)
    is_loopback: bool = False
    tls: bool = False
    expires: float | None = None  # its certificate, in seconds since 1970

    @property
    def name(self) -> str:
        """As the server calls itself, or its address."""
        return str(self.info.get("server_name") or self.address)


class Clock(NamedTuple):
    """How far a server's clock is ahead of ours, in seconds, and how wrong that may be."""

    server: str
    ahead: float
    unsure: float


class Tried(NamedTuple):
    """A subject that was tried. `allowed` is None where it was not tried, and `why` says the reason, or the refusal."""

    need: str  # of NEEDS in permissions.py
    stream: str
    subject: str
    allowed: bool | None
    why: str = ""


@dataclass(frozen=True)
class Monitored:
    """What a server's monitoring tells. `guessed`: nobody gave the address."""

    url: str
    guessed: bool = False
    error: str = ""
    varz: Mapping[str, Any] = field(default_factory=dict)
    health: str = ""  # what is wrong; empty where it is well or unknown
    pending: tuple[tuple[str, int], ...] = ()  # the clients with the most bytes that wait for them


@dataclass(frozen=True)
class Login:
    """Who we are to the servers. `kind`: password, token, nkey, jwt or none."""

    kind: str = "none"
    expires: float | None = None  # of the JWT, in seconds since 1970


@dataclass(frozen=True)
class Facts:
    """All that was learned. `look` has the rates of `seconds`; None where no server let us in."""

    now: float  # seconds since 1970
    servers: tuple[ServerFacts, ...] = ()
    login: Login = Login()
    look: Look | None = None
    seconds: float = 0.0
    tried: tuple[Tried, ...] = ()
    ledger: StreamFigures | None = None
    ledger_known: bool = False  # whether its absence was seen
    clocks: tuple[Clock, ...] = ()
    monitored: tuple[Monitored, ...] = ()
    wants_to_write: bool = False  # --publish was given
    refused: str = ""  # why nothing of JetStream is known

    @property
    def connected(self) -> ServerFacts | None:
        """The server that was asked."""
        return next((each for each in self.servers if not each.error), None)

    @property
    def version(self) -> tuple[int, int]:
        """Of that server; (0, 0) where it does not say."""
        return version_of(self.connected.info) if self.connected else (0, 0)


def version_of(info: Mapping[str, Any]) -> tuple[int, int]:
    """Major and minor version in a server's INFO; (0, 0) where it does not say."""
    parts = str(info.get("version", "")).split(".")
    try:
        return int(parts[0]), int(parts[1])
    except (ValueError, IndexError):
        return 0, 0
