"""The streams of a benchmark: made with a mark, and deleted at the end. Knows which streams are ours, and touches no
other one.

A stream is ours by its name and by its metadata. The mark says which process made it, and until when it may need it:
what a killed benchmark has left behind is told from what another one uses right now.
"""

import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from penstock.clients.answers import field, objects
from penstock.clients.jetstream import api
from penstock.clients.jetstream.calls import ApiError, Calls
from penstock.errors import ConnectError, Disconnected, PenstockError
from penstock.operate.bench.jobs import PREFIX, Place
from penstock.operate.bench.matrix import APPS, Scenario

MARK, HOST, PROCESS, UNTIL = "penstock.bench", "penstock.bench.host", "penstock.bench.pid", "penstock.bench.until"
READY = 60.0  # seconds in which a cluster must have a leader


def place(run: str, scenario: Scenario) -> Place:
    """The names of a scenario's streams."""
    if scenario.streams == "per-app":
        return Place(run, tuple(f"{PREFIX}_{run}_{app:02d}" for app in range(APPS)), APPS)
    return Place(run, (f"{PREFIX}_{run}",), APPS)


def mark(run: str, seconds: float) -> dict[str, str]:
    """The metadata of our streams, for a run that takes so many seconds more."""
    until = str(int(time.time() + 2 * seconds + 600))
    return {MARK: run, HOST: platform.node(), PROCESS: str(os.getpid()), UNTIL: until}


def configs(
    at: Place, scenario: Scenario, marked: Mapping[str, str], limits: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The configurations of a scenario's streams, with no field that the scenario does not need: older servers refuse
    those that they do not know.
    """
    flags = {"atomic": {"allow_atomic": True}, "fast": {"allow_batched": True}}.get(scenario.publish, {})
    many = len(at.streams) > 1
    return [
        {
            "name": name,
            "subjects": [at.of_app(app)] if many else [f"{at.root}.>"],
            "storage": scenario.storage,
            "num_replicas": scenario.copies,
            "metadata": dict(marked),
            **flags,
            **limits,
        }
        for app, name in enumerate(at.streams)
    ]


def create(calls: Calls, wanted: Sequence[Mapping[str, Any]]) -> None:
    """Make streams. A cluster that has no leader yet is waited for."""
    deadline = time.monotonic() + READY
    for config in wanted:
        while True:
            try:
                calls.call(f"STREAM.CREATE.{config['name']}", dict(config))
                break
            except (Disconnected, ApiError) as error:
                waits = isinstance(error, Disconnected) or error.code in (NO_PEERS, *NOT_YET)
                if not waits or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)


NO_PEERS = 10005  # "no suitable peers for placement": servers of a cluster do not know each other yet
NOT_YET = (10008, 10009, 10074)  # the cluster is not ready; replicas are not possible yet


def counts(calls: Calls, at: Place) -> tuple[list[int], int]:
    """How many messages each stream has, and how many bytes they have together."""
    infos = calls.streams(at.streams)
    missing = [name for name, info in infos.items() if info is None]
    if missing:
        raise ConnectError(f"stream '{missing[0]}' is gone: somebody deleted it, or its server has lost it.")
    found = [info for info in infos.values() if info is not None]
    return [info.messages for info in found], sum(info.size for info in found)


def settled(calls: Calls, at: Place, seconds: float = 10.0) -> tuple[list[int], int]:
    """The counts, when they do not change any more: messages without an ack may still be on their way."""
    before, deadline = counts(calls, at), time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.1)
        now = counts(calls, at)
        if now == before:
            break
        before = now
    return before


def delete(calls: Calls, names: Sequence[str]) -> list[str]:
    """Delete streams of ours; the names of those that could not be deleted."""
    left = []
    for name in names:
        try:
            calls.call(f"STREAM.DELETE.{name}")
        except ApiError as error:
            if error.code != api.NO_STREAM:
                left.append(name)
        except PenstockError:
            left.append(name)
    return left


class Leftover(NamedTuple):
    """A stream that carries our mark."""

    name: str
    run: str
    dead: bool  # nobody uses it any more
    why: str


def leftovers(calls: Calls, now: float | None = None) -> list[Leftover]:
    """The streams of other benchmarks. Only those with our prefix and our mark are looked at."""
    found, offset = [], 0
    while True:
        page = calls.call("STREAM.LIST", {"offset": offset})
        streams = objects(page, "streams")
        for each in streams:
            config = field(each, "config", dict)
            left = judged(config, time.time() if now is None else now)
            if left is not None:
                found.append(left)
        offset += len(streams)
        if not streams or offset >= field(page, "total", int, 0):
            return found


def judged(config: Mapping[str, Any], now: float) -> Leftover | None:
    """What is left of another benchmark; None where a stream is not of one."""
    name, metadata = config.get("name"), config.get("metadata")
    if not isinstance(name, str) or not name.startswith(f"{PREFIX}_") or not isinstance(metadata, dict):
        return None
    run = metadata.get(MARK)
    if not isinstance(run, str) or not run:
        return None
    until = metadata.get(UNTIL, "")
    if not isinstance(until, str) or not until.isdigit():
        return Leftover(name, run, False, "its mark does not say until when it is used")
    if now > int(until):
        return Leftover(name, run, True, "its time is over")
    process = metadata.get(PROCESS, "")
    if metadata.get(HOST) == platform.node() and isinstance(process, str) and process.isdigit():
        if not Path(f"/proc/{process}").exists() and Path("/proc/self").exists():
            return Leftover(name, run, True, f"process {process}, which made it, has ended")
        return Leftover(name, run, False, f"process {process} of this machine still runs")
    return Leftover(name, run, False, "another machine may still use it")


def room(answer: Mapping[str, Any], storage: str, copies: int) -> int | None:
    """How many bytes an account may still store, from $JS.API.INFO; None where there is no limit."""
    tiers = answer.get("tiers")
    limits, use = answer.get("limits"), answer
    if isinstance(tiers, dict) and tiers:
        tier = tiers.get(f"R{copies}")
        if not isinstance(tier, dict):
            return 0
        limits, use = tier.get("limits"), tier
    if not isinstance(limits, dict):
        return None
    name = "memory" if storage == "memory" else "storage"
    most, taken = limits.get(f"max_{name}"), use.get(name)
    if not isinstance(most, int) or most < 0:
        return None
    return max(0, most - (taken if isinstance(taken, int) else 0))
