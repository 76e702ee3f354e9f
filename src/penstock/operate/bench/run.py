"""Running scenarios: streams are made, filled, read and deleted; what was measured is told, and what was lost is an
error. Knows the order of things; how load is made is in publishing.py and consuming.py.

Rounds alternate between scenarios, so that what else happens on the machine meets all of them.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from penstock.clients.jetstream.calls import Calls
from penstock.clients.nats.client import Connection
from penstock.clients.nats.options import NatsOptions
from penstock.errors import DataLossError, Disconnected, PenstockError
from penstock.kit.masking import harmless
from penstock.operate.bench import figures, publishing, streams
from penstock.operate.bench.jobs import Consume, Deliver, Job, Pace, Place, Publish, Told
from penstock.operate.bench.machine import Look, Watch, disk_bytes
from penstock.operate.bench.matrix import Scenario, most_messages
from penstock.operate.bench.processes import Processes

# Beyond the seconds of a phase: for the last acks, for servers that come back, for a slow machine.
GRACE = 60.0
# Times the seconds of a phase, and at least so many seconds: all that was published is to be consumed.
CONSUMING, CONSUMING_AT_LEAST = 2.0, 5.0


CLEANING = 5.0  # seconds in which streams must be deleted
T = TypeVar("T")


@dataclass(frozen=True)
class Server:
    """A server to measure: how it is reached, and where one can look at it."""

    options: NatsOptions
    look: Look | None = None
    folders: tuple[Path, ...] = ()  # where it keeps its files, if that is on this machine


@dataclass(frozen=True)
class Settings:
    """How long and how much."""

    seconds: float = 2.0
    rounds: int = 3
    rate: float = 1000.0
    most_bytes: int = 256 << 20

    def as_json(self) -> dict[str, Any]:
        """As a report has it."""
        return {"seconds": self.seconds, "rounds": self.rounds, "rate": self.rate, "most_bytes": self.most_bytes}


class Progress(NamedTuple):
    """Where a run is."""

    number: int
    total: int
    scenario: str
    phase: str
    rate: float  # messages a second of this phase so far
    seconds_left: float


Tell = Callable[[Progress], None]
Open = Callable[[Scenario], AbstractContextManager[Server]]


@dataclass
class Outcome:
    """What came of a scenario."""

    scenario: Scenario
    rounds: list[dict[str, Any]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """As a report has it: medians and spread of the rounds that succeeded."""
        over = figures.over_rounds([each["figures"] for each in self.rounds])
        return {
            "name": self.scenario.name,
            "values": self.scenario.values(),
            "figures": {key: value._asdict() for key, value in over.items()},
            "limits": {
                phase: figures.limit(self.rounds[-1]["phases"][phase], os.cpu_count() or 1)
                for phase in ("publish", "consume")
                if self.rounds and phase in self.rounds[-1]["phases"]
            },
            "rounds": self.rounds,
            "failed": self.failed,
            "remarks": list(dict.fromkeys(self.remarks)),
        }


class Stopped(KeyboardInterrupt):
    """Ctrl-C after some rounds had ended. `outcomes` are of what was measured until then."""

    def __init__(self, outcomes: list[Outcome]):
        super().__init__()
        self.outcomes = outcomes


@contextmanager
def calling(options: NatsOptions) -> Iterator[Calls]:
    """The calls of JetStream on a connection of their own."""
    connection = Connection(options)
    try:
        yield Calls(connection, options)
    finally:
        connection.close()


def run(
    scenarios: Sequence[Scenario], settings: Settings, run_id: str, open_server: Open, tell: Tell, needed: float
) -> list[Outcome]:
    """Run all scenarios, round by round. A scenario that fails is told as such, and the others go on. Stopped where
    Ctrl-C ends it and something was measured.
    """
    outcomes = [Outcome(scenario) for scenario in scenarios]
    total, began, done = len(scenarios) * settings.rounds, time.monotonic(), 0
    with Processes() as processes:
        for _ in range(settings.rounds):
            for outcome in outcomes:
                spent = time.monotonic() - began
                left = spent / done * (total - done) if done else needed
                say = _sayer(tell, done + 1, total, outcome.scenario.name, left)
                try:
                    with open_server(outcome.scenario) as server:
                        said = Round(outcome.scenario, settings, run_id, server, processes, say, left).measured()
                    outcome.rounds.append(said)
                    outcome.remarks += said.pop("remarks")
                except (PenstockError, OSError) as error:
                    outcome.failed.append(harmless(error))
                except KeyboardInterrupt:
                    if any(each.rounds for each in outcomes):
                        raise Stopped(outcomes) from None
                    raise
                done += 1
    return outcomes


def _sayer(tell: Tell, number: int, total: int, name: str, left: float) -> Callable[[str, float], None]:
    began = time.monotonic()
    return lambda phase, rate: tell(Progress(number, total, name, phase, rate, max(0, left - time.monotonic() + began)))


class Round:
    """One round of one scenario, on streams of its own."""

    def __init__(
        self,
        scenario: Scenario,
        settings: Settings,
        run_id: str,
        server: Server,
        processes: Processes,
        say: Callable[[str, float], None],
        left: float,
    ):
        self.scenario, self.settings, self.server, self.processes, self.say = scenario, settings, server, processes, say
        self.place: Place = streams.place(run_id, scenario)
        self.marked = streams.mark(run_id, left)
        self.figures: dict[str, float] = {}
        self.phases: dict[str, dict[str, float]] = {}
        self.checked: dict[str, int] = {}
        self.remarks: list[str] = []

    def measured(self) -> dict[str, Any]:
        """Publish, look at the storage, consume, and measure latency. The streams are deleted, whatever happens."""
        before = self._disk_before()
        with self.streams():
            stored = self.publish()
            self._storage(before)
            self.consume(stored)
            if self.scenario.publish in ("pipelined", "one-by-one"):
                self.ask(self._empty)
                self._latency()
            else:
                self.remarks.append("latency is measured with single messages only, not with batches")
        return {"figures": self.figures, "phases": self.phases, "checked": self.checked, "remarks": self.remarks}

    def _disk_before(self) -> int:
        """What is on the disk, when servers have deleted the files of the scenario before."""
        size, deadline = disk_bytes(self.server.folders), time.monotonic() + 2
        while self.server.folders and time.monotonic() < deadline:
            time.sleep(0.05)
            before, size = size, disk_bytes(self.server.folders)
            if size == before:
                break
        return size

    @contextmanager
    def streams(self, **limits: Any) -> Iterator[None]:
        """The streams of this scenario, while they are needed."""
        options = self.server.options
        wanted = streams.configs(self.place, self.scenario, self.marked, limits)
        self.say("preparing", 0.0)
        try:
            # A cluster that has just been started does not answer for a while, and forgets what it was asked then.
            with calling(options.model_copy(update={"request_timeout": min(2.0, options.request_timeout)})) as calls:
                streams.create(calls, wanted)
            yield
        finally:
            with suppress(PenstockError):
                self.ask(self._delete, CLEANING)

    def ask(self, what: Callable[[Calls], T], seconds: float = publishing.PATIENCE) -> T:
        """Ask the server something, on a connection of its own. Where it is lost, or a stream has no leader just then,
        it is asked again for a while.
        """
        deadline = time.monotonic() + min(seconds, self.server.options.reconnect_timeout)
        while True:
            try:
                with calling(self.server.options) as calls:
                    return what(calls)
            except Disconnected:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def _delete(self, calls: Calls) -> None:
        if left := streams.delete(calls, self.place.streams):
            raise Disconnected(f"stream '{left[0]}' could not be deleted")

    def publish(self) -> list[int]:
        """Publish, and check that what was acknowledged is stored: how many messages each stream has."""
        scenario, settings = self.scenario, self.settings
        most = max(1, most_messages(scenario, settings.most_bytes) // scenario.publishers)
        job = Publish(self.server.options, self.place, scenario.publish, scenario.size, settings.seconds, most)
        told = self._phase("publish", [job] * scenario.publishers, settings.seconds)
        acked, unknown = sum(each.messages for each in told), sum(each.unknown for each in told)
        stored, _ = self.ask(lambda calls: streams.settled(calls, self.place))
        self.checked |= {"acked": acked, "stored": sum(stored), "unknown": unknown}
        if not acked <= sum(stored) <= acked + unknown:
            raise DataLossError(
                f"{acked:,} messages were acknowledged, {unknown:,} have no answer, and {sum(stored):,} are stored."
            )
        calls_ms: Mapping[str, float] = told[0].more.get("call_ms", {})
        self.figures |= {f"call_{name}": value for name, value in calls_ms.items()}
        return stored

    def _storage(self, before: int) -> None:
        """What a message takes. Files are looked at when the server has written them."""
        stored, size = self.ask(lambda calls: streams.counts(calls, self.place))
        messages = max(1, sum(stored))
        self.figures["stored_bytes"] = size / messages
        if self.server.folders and self.scenario.storage == "file":
            grown, deadline = 0, time.monotonic() + 3
            while grown < size * self.scenario.copies and time.monotonic() < deadline:
                grown = disk_bytes(self.server.folders) - before
                time.sleep(0.05)
            self.figures["disk_bytes"] = grown / messages

    def consume(self, stored: list[int]) -> None:
        """Consume what is stored, and check that each consumer got all of it."""
        scenario, settings = self.scenario, self.settings
        seconds = max(CONSUMING * settings.seconds, CONSUMING_AT_LEAST)
        jobs = [
            Consume(
                self.server.options, self.place, f"c{k}", scenario.consume, scenario.ack, scenario.size, tuple(stored),
                seconds,
            )
            for k in range(scenario.consumers)
        ]  # fmt: skip
        told = self._phase("consume", jobs, seconds)
        self.checked["consumed"] = sum(each.messages for each in told)
        for each in told:
            check_consumed(scenario.ack, stored, each)
            if each.remark:
                self.remarks.append(f"consuming: {each.remark}")

    def _empty(self, calls: Calls) -> None:
        """Nothing is left of what was measured before."""
        for name in self.place.streams:
            for k in range(self.scenario.consumers):
                calls.call(f"CONSUMER.DELETE.{name}.c{k}")
            calls.call(f"STREAM.PURGE.{name}")

    def _latency(self) -> None:
        scenario, settings = self.scenario, self.settings
        options, size = self.server.options, max(scenario.size, 21)
        seconds, rate = settings.seconds, settings.rate
        jobs: list[Job] = [
            Pace(options, self.place, size, seconds, rate, seconds + GRACE),
            Deliver(options, self.place, "d", scenario.consume, scenario.ack, size, seconds, rate, seconds + GRACE),
        ]
        self.say("latency", rate)
        paced, delivered = self.processes.work(jobs, seconds + GRACE)
        check_delivered(paced, delivered, int(seconds * rate))
        for kind, values in (("ack", paced.latency_ms), ("delivered", delivered.latency_ms)):
            self.figures |= {f"{kind}_{name}": at for name, at in figures.percentiles(np.array(values)).items()}
        late = figures.percentiles(np.array(paced.late_ms))
        self.figures |= {"late_p99": late["p99"]} if "p99" in late else {}
        self._interrupted([paced, delivered])

    def _phase(self, name: str, jobs: Sequence[Publish] | Sequence[Consume], seconds: float) -> list[Told]:
        """Do jobs while the servers are watched."""
        counted: dict[int, int] = {}
        began = time.monotonic()

        def hear(which: int, said: dict[str, Any]) -> None:
            counted[which] = said.get("messages", 0)
            self.say(name, sum(counted.values()) / max(0.1, time.monotonic() - began))

        with Watch(self.server.look) as watch:
            told = self.processes.work(jobs, seconds + GRACE, hear, watch.begin)
        messages, longest = sum(each.messages for each in told), max(each.seconds for each in told)
        rate = messages / longest if longest else 0.0
        self.figures |= {f"{name}_rate": rate, f"{name}_mb": rate * self.scenario.size / 1e6}
        cpu = sum(each.cpu for each in told)
        self.figures[f"{name}_load_cores"] = cpu / longest if longest else 0.0
        phase = {"busiest": max(each.cpu / each.seconds for each in told if each.seconds), "seconds": longest}
        phase["load"] = cpu / watch.seconds
        if watch.cores is not None:
            self.figures[f"{name}_server_cores"] = watch.cores
            self.figures["server_mb"] = max(self.figures.get("server_mb", 0.0), watch.memory / 2**20)
            phase["servers"] = watch.cores
        if watch.idle is not None:
            phase["idle"] = watch.idle
        self.phases[name] = phase
        self._interrupted(told)
        return told

    def _interrupted(self, told: Sequence[Told]) -> None:
        if times := sum(each.interruptions for each in told):
            self.remarks.append(
                f"connections were lost and made anew, {times} times in all: figures contain the waiting"
            )


def check_consumed(ack: str, stored: Sequence[int], told: Told) -> None:
    """A DataLossError where a consumer did not get what is stored, or the server does not know that it did."""
    got = told.more.get("got", [])
    if sum(stored) and not told.messages:
        raise DataLossError(f"{sum(stored):,} messages are stored, and a consumer got none in {told.seconds:.1f} s.")
    if told.remark:  # the time was over
        return
    if told.interruptions:
        wrong = [i for i, n in enumerate(stored) if got[i] < n]
    else:
        wrong = [i for i, n in enumerate(stored) if got[i] != n]
    if wrong:
        i = wrong[0]
        raise DataLossError(f"{stored[i]:,} messages are stored in stream {i + 1}, and a consumer got {got[i]:,}.")
    if ack != "none" and not told.interruptions and told.more.get("ack_pending"):
        raise DataLossError(f"{told.more['ack_pending']:,} acks of a consumer did not arrive.")


def check_delivered(paced: Told, delivered: Told, expected: int) -> None:
    """A DataLossError where messages at a constant rate were not stored, or stored and not delivered."""
    if paced.interruptions or delivered.interruptions:
        return
    if paced.messages < expected:
        raise DataLossError(
            f"{expected:,} messages were published at a constant rate, and {paced.messages:,} acks came."
        )
    if delivered.messages != expected:
        raise DataLossError(
            f"{expected:,} messages were published at a constant rate, and {delivered.messages:,} were delivered."
        )
