"""All findings from all facts, in order of harm. Pure."""

from collections.abc import Iterator

from penstock.operate.doctor.check_account import account
from penstock.operate.doctor.check_consumers import consumers
from penstock.operate.doctor.check_servers import servers
from penstock.operate.doctor.check_streams import streams
from penstock.operate.doctor.facts import Facts
from penstock.operate.doctor.findings import Finding, merged, ordered


def judge(facts: Facts) -> list[Finding]:
    """What is wrong and what is well, the worst first."""
    return merged(ordered(_all(facts)))


def _all(facts: Facts) -> Iterator[Finding]:
    for check in (servers, account, streams, consumers):
        yield from check(facts)
