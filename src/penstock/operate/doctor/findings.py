"""Findings: what is wrong, how much harm it does, and what mends it. Every check is declared here, and the table in the
documentation is made of that. Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    """How much harm a finding does, the worst first."""

    ERROR = "error"  # something does not work
    WARNING = "warning"  # it works, and will not for long, or not safely
    ADVICE = "advice"  # it could be faster or safer
    UNCHECKED = "not checked"  # and why
    OK = "ok"


_ORDER = {level: place for place, level in enumerate(Level)}

# So many findings that say the same become one, which names so many of what they are about.
FEW, SHOWN = 4, 5
# What is looked at, by the name in the first column of the table.
CHECKS = {
    "reachable": "Every server that is given, and every one that the cluster tells of: whether it lets us in, how long that takes, and how long an answer takes.",  # noqa: E501
    "version": "Versions and API levels of the servers, and whether they differ.",
    "tls": "Whether TLS is used, when the server's certificate expires, and whether a password goes over a plain connection.",  # noqa: E501
    "credentials": "When the user JWT of a .creds file expires.",
    "clock": "Clocks of the servers against ours and each other.",
    "monitoring": "What the server tells at its monitoring address: health, slow consumers, CPU, memory and storage.",
    "account": "Whether JetStream is on, and how much of the account's limits is used.",
    "permission": "Each subject that reading and writing need is tried, without changing or taking anything.",
    "publish": "Whether the subjects of a stream, or that of --publish, may be published to, and which stream stores it. Nothing is stored.",  # noqa: E501
    "ledger": "Whether the stream that keeps `exactly_once` over restarts is as it must be.",
    "flags": "Settings that make Penstock faster on this version: `allow_direct`, `allow_batched`.",
    "duplicates": "How long a stream knows the ids of messages, against what writing exactly once needs.",
    "limits": "Streams that are full or will be, and when, by the rate that was seen; streams without any limit; limits that make no sense.",  # noqa: E501
    "retention": "What is deleted before its consumers have read it, and streams that keep nothing.",
    "replicas": "Streams without a leader, with too few or an even number of replicas, and replicas that are away or late.",  # noqa: E501
    "feeds": "Mirrors and sources that are late or silent.",
    "takes": "Streams into which nobody can publish.",
    "consumer": "Consumers that stand still, that nobody reads from, that give messages again and again, or whose pulls wait at the limit.",  # noqa: E501
}


@dataclass(frozen=True)
class Finding:
    """One finding. `about`: a server, a stream, a consumer. `mend`: the command or setting that mends it."""

    check: str
    level: Level
    about: str
    says: str
    mend: str = ""

    def __post_init__(self) -> None:
        assert self.check in CHECKS, self.check

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """By harm, the worst first; then in the order of CHECKS, and by what they are about."""
    places = {name: place for place, name in enumerate(CHECKS)}
    return sorted(findings, key=lambda each: (_ORDER[each.level], places[each.check], each.about))


def merged(findings: Sequence[Finding]) -> list[Finding]:
    """The same, with those that say the same of many things as one. Their order stays."""
    alike: dict[tuple[str, str, str], list[Finding]] = {}
    for each in findings:
        alike.setdefault((each.check, each.level, each.says), []).append(each)
    found = []
    for group in alike.values():
        if len(group) < FEW:
            found += group
            continue
        first, names = group[0], [each.about for each in group]
        kind = first.about.partition(" ")[0]
        short = [name.removeprefix(f"{kind} ") for name in names[:SHOWN]]
        more = f" and {len(names) - SHOWN:,} others" if len(names) > SHOWN else ""
        mend = f"{first.mend} Likewise for the others." if first.mend else ""
        found.append(
            Finding(
                first.check, first.level, f"{len(names):,} {kind}s", f"{', '.join(short)}{more}: {first.says}", mend
            )
        )
    return found


def exit_code(findings: Sequence[Finding]) -> int:
    """0 where all is well or there is only advice, 1 where there are warnings, 2 where there are errors."""
    levels = {each.level for each in findings}
    return 2 if Level.ERROR in levels else 1 if Level.WARNING in levels else 0


def setting(stream: str, line: str, nats: str = "") -> str:
    """How a setting of a stream is changed."""
    declared = f"{line} under [streams.{stream}], then penstock jetstream apply"
    return f"nats stream edit {stream} {nats}; or {declared}." if nats else f"Declare {declared}."


def table() -> str:
    """The checks, as a table of Markdown."""
    rows = [f"| `{name}` | {text} |" for name, text in CHECKS.items()]
    return "\n".join(["| check | |", "|---|---|", *rows])
