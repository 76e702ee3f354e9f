"""A program with made-up pipelines whose figures move, to look at the page: `python tests/browser/page_program.py`.

The HTTP interface, the store and the page are the real ones. No Spark, no servers.
"""

import argparse
import math
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from penstock.errors import OptionError
from penstock.kit.figures import Figures
from penstock.monitor.app import Access, Api
from penstock.monitor.jetstream import JetStreams
from penstock.monitor.metrics import Metrics
from penstock.monitor.server import Address, Server
from penstock.monitor.view import Told
from penstock.watch.progress import Batch, Shard, SourceProgress
from penstock.watch.store import Store

KEY = "swordfish"
ONCE = "exactly once"
ONE_WAY = "at most once: the source cannot be read again, so what is not yet written when a run ends is lost"
AGAIN = "at least once to 'alerts': a batch that is run again is written again; exactly once to the others"
STARTS_IN = 600.0


@dataclass
class Made:
    """A made-up pipeline: how fast it is, how far behind, and what it says of itself."""

    key: str
    title: str
    source: tuple[str, dict[str, str]]
    sinks: Sequence[tuple[str, str, dict[str, str]]]
    rate: float
    transforms: Sequence[tuple[str, str]] = ()
    dead_letters: tuple[str, dict[str, str]] | None = None
    shards: Sequence[str] = ("ORDERS",)
    lag: float = 0.0
    growth: float = 0.0  # rows of lag a second
    errors: float = 0.0  # of a row
    every: float = 1.0
    state: str = "running"
    error: str = ""
    guarantee: str = ONCE
    failures: int = 0
    restarts: int = 0
    due: float | None = None
    batch: int = 0
    run: int = 1
    positions: list[int] = field(default_factory=list)
    counted: int = 0
    log: list[tuple[float, str]] = field(default_factory=list)

    def told(self) -> Told:
        return Told(
            self.key, self.title, self.state, self.guarantee, self.error, self.failures, self.restarts, self.counted,
            self.dead_letters is not None, None if self.due is None else max(0.0, round(self.due - time.time(), 1)),
            self._flow(), self.log,
        )  # fmt: skip

    def _flow(self) -> list[Mapping[str, Any]]:
        kind, options = self.source
        flow: list[Mapping[str, Any]] = [{"part": "source", "name": kind, "type": kind, "options": options}]
        flow += [{"part": "transform", "name": name, "type": name, "text": text} for name, text in self.transforms]
        flow += [{"part": "sink", "name": name, "type": kind, "options": given} for name, kind, given in self.sinks]
        if self.dead_letters is not None:
            kind, options = self.dead_letters
            flow.append({"part": "dead_letters", "name": "dead-letters", "type": kind, "options": options})
        return flow

    def next(self, at: float, dice: random.Random) -> Batch:
        """A batch that began at that time."""
        wave = 1 + 0.25 * math.sin(at / 400 + self.rate) + dice.gauss(0, 0.06)
        rows = max(0, int(self.rate * self.every * wave))
        usual = self.rate * (0.1 + 0.1 * wave * dice.random())
        self.lag = max(usual, self.lag + self.growth * self.every if self.growth else 0.0)
        self.positions = self.positions or [1_000_000 + 977 * n for n in range(len(self.shards))]
        self.positions[self.batch % len(self.shards)] += rows
        share = self._shares()
        shards = tuple(
            Shard(name, at, int(self.lag * part))
            for name, at, part in zip(self.shards, self.positions, share, strict=True)
        )
        self.batch += 1
        errors = int(rows * self.errors + dice.random()) if self.errors else 0
        self.counted += errors
        figures = Figures(retries=self.batch // 500, reconnects=self.batch // 900)
        lag = sum(shard.lag or 0 for shard in shards)
        age = 0.15 + lag / max(self.rate, 1.0)
        source = SourceProgress(self.source[0], rows, shards, lag, lag * 220, round(age, 2), figures)
        return Batch(
            f"id-{self.key}", f"run-{self.run}", self.key, self.batch, at, rows, self._seconds(dice), (source,), rows,
            errors,
        )  # fmt: skip

    def _shares(self) -> list[float]:
        """The first shards are behind most."""
        weights = [1 / (1 + n) for n in range(len(self.shards))]
        whole = sum(weights)
        return [weight / whole for weight in weights]

    def _seconds(self, dice: random.Random) -> dict[str, float]:
        whole = self.every * (0.45 + 0.2 * dice.random())
        parts = {
            "addBatch": 0.72,
            "latestOffset": 0.08,
            "walCommit": 0.07,
            "commitOffsets": 0.06,
            "queryPlanning": 0.04,
        }
        return {
            stage: round(whole * part * (0.7 + 0.6 * dice.random()), 3) for stage, part in parts.items()
        } | {"getBatch": round(whole * 0.004, 3), "triggerExecution": round(whole, 3)}  # fmt: skip


NATS = {"servers": "nats://nats-1.example:4222", "stream": "ORDERS", "credentials": "****"}
FILES = {"path": "s3://lake.example/orders", "compression": "zstd"}


def ten() -> list[Made]:
    """Ten of them: one has failed, one waits to restart, one is behind with a thousand shards, one has dead letters."""
    return [
        Made("orders", "Orders into the lake", ("jetstream", NATS), [("lake", "parquet", FILES)], 3200,
             [("sql", "SELECT id, customer, amount, _meta.time AS at\nFROM input\nWHERE amount > 0")],
             shards=("ORDERS", "RETURNS", "REFUNDS"), restarts=1),
        Made("payments", "Payments", ("kinesis", {"stream": "payments", "region": "eu-central-1"}),
             [("ledger", "s2", {"basin": "payments", "stream": "ledger", "token": "****"})], 850,
             [("filter", "amount > 0")], shards=[f"shardId-{n:012}" for n in range(8)], state="failed", failures=5,
             error="the server 'payments.b.s2.example' refuses the token: 'token has expired'. Set a new one, and "
             "start the pipeline again.", lag=0, growth=14),
        Made("clicks", "Clicks of the shop", ("nats", {"servers": "nats://nats-1.example:4222", "subject": "clicks.>"}),
             [("board", "kafka", {"topic": "clicks", "kafka.bootstrap.servers": "kafka.example:9092"})], 12_400,
             [("filter", "bot IS FALSE"), ("window", "1 minute, by page")], state="waiting to restart", failures=2,
             restarts=2, due=time.time() + STARTS_IN, guarantee=ONE_WAY,
             error="nothing answers at 'kafka.example:9092': connection refused (tried 8 times in 60 s)."),
        Made("telemetry", "Telemetry of a thousand machines", ("iggy", {"address": "iggy.example:8090",
             "stream": "plant", "topic": "telemetry", "username": "reader", "password": "****"}),
             [("lake", "iceberg", {"table": "plant.telemetry"})], 18_500,
             [("sql", "SELECT machine, avg(value) FROM input")],
             shards=[f"telemetry/{n}" for n in range(1000)], lag=900_000, growth=1_200, every=2.0),
        Made("invoices", "Invoices", ("jetstream", {**NATS, "stream": "INVOICES"}),
             [("archive", "parquet", {"path": "s3://lake.example/invoices"}),
              ("alerts", "nats", {"subject": "alerts.invoices.{region}"})], 140,
             [("rename", "no = number"), ("filter", "total > 0"),
              ("sql", "SELECT *, round(total * vat, 2) AS tax FROM input")],
             ("jetstream", {"subject": "dead.invoices", "servers": "nats://nats-1.example:4222"}),
             shards=("INVOICES",), errors=0.01, guarantee=AGAIN),
        *(Made(key, title, ("s2", {"basin": "shop", "stream": key, "token": "****"}),
               [("lake", "delta", {"path": f"s3://lake.example/{key}"})], rate, shards=(key,), every=every)
          for key, title, rate, every in (("carts", "Carts", 610, 1.0), ("stock", "Stock", 95, 1.0),
                                          ("reviews", "Reviews", 4.2, 5.0), ("sessions", "Sessions", 2_300, 1.0))),
        Made("backfill", "Backfill of 2025", ("kinesis", {"stream": "history", "region": "eu-central-1"}),
             [("lake", "parquet", {"path": "s3://lake.example/history"})], 40_000, state="stopped"),
    ]  # fmt: skip


class World:
    """Made-up pipelines that move, and do what they are told."""

    states: Sequence[str] = ("starting", "running", "waiting to restart", "stopped", "done", "failed")

    def __init__(self, made: Sequence[Made], *, hour: float = 3600.0):
        self.store, self.dice, self.lock = Store(), random.Random(7), threading.Lock()
        self.made = {each.key: each for each in made}
        self.orders: list[tuple[str, str, dict[str, Any]]] = []
        self._due: dict[str, float] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._move, daemon=True)
        for each in made:
            self._remember(each, hour)

    def _remember(self, each: Made, hour: float) -> None:
        """What it did in the last hour."""
        now, every, step = time.time(), each.every, 10.0
        self.store.started(f"id-{each.key}", "run-1", each.key)
        self.store.queries[f"id-{each.key}"].began = now - hour - step
        end = now - (420 if each.state != "running" else 0) - 40 * every
        each.every = step
        for at in [end - n * step for n in range(int((end - now + hour) / step), -1, -1)]:
            self.store.progressed(
                replace(each.next(at, self.dice), seconds=_scaled(each._seconds(self.dice), every / step))
            )
        each.every = every
        for n in range(40):
            self.store.progressed(each.next(end + n * every, self.dice))
        if each.state != "running":
            self.store.ended(f"id-{each.key}", f"run-{each.run}", each.error)

    def start(self) -> "World":
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _move(self) -> None:
        while not self._stopping.wait(0.2):
            with self.lock:
                for each in self.made.values():
                    if each.due is not None and each.due <= time.time():
                        self._run(each)
                    if each.state == "running" and self._due.get(each.key, 0) <= time.time():
                        self._due[each.key] = time.time() + each.every
                        self.store.progressed(each.next(time.time() - each.every * 0.5, self.dice))

    def _run(self, each: Made) -> None:
        each.state, each.error, each.due, each.failures = "running", "", None, 0
        each.run += 1
        each.log.append((time.time(), f"running, {each.guarantee}"))
        self.store.started(f"id-{each.key}", f"run-{each.run}", each.key)

    def fail(self, key: str, error: str) -> None:
        with self.lock:
            self.made[key].state, self.made[key].error = "failed", error
            self.made[key].log.append((time.time(), error))
            self.store.ended(f"id-{key}", f"run-{self.made[key].run}", error)

    def all(self) -> list[Told]:
        with self.lock:
            return [each.told() for each in self.made.values()]

    def do(self, verb: str, key: str, **given: Any) -> Any:
        each = self.made[key]
        if verb == "checkpoints":
            return [_planned(each, each.batch - n) for n in range(min(40, each.batch))]
        if verb == "dead_letters":
            return _letters(each)
        time.sleep(0.2)
        with self.lock:
            self.orders.append((verb, key, given))
            return self._obey(verb, each, given)

    def _obey(self, verb: str, each: Made, given: Mapping[str, Any]) -> str:
        is_over = each.state in ("stopped", "failed", "done")
        if verb == "stop":
            if is_over:
                return f"{each.key} does not run: it is {each.state}"
            each.state, each.error, each.due = "stopped", "", None
            self.store.ended(f"id-{each.key}", f"run-{each.run}", "")
            return f"{each.key} is stopped"
        if verb == "start" and not is_over:
            return f"{each.key} runs already: it is {each.state}"
        if verb == "rewind":
            batch = given.get("batch")
            if not isinstance(batch, int) or not 0 < batch <= each.batch:
                raise OptionError(f"the checkpoint has no batch {batch}. Its batches are 1 to {each.batch}.")
            each.lag += each.rate * each.every * (each.batch - batch)
            each.growth, each.batch = -each.rate, batch
            return f"{each.key} is set back: its next batch is {batch + 1}. What was before is in .rewound-{each.run}"
        each.restarts += verb == "restart"
        self._run(each)
        return f"{each.key} starts" + (" again" if verb == "restart" else "")


def _scaled(seconds: Mapping[str, float], by: float) -> dict[str, float]:
    return {stage: value * by for stage, value in seconds.items()}


def _planned(each: Made, batch: int) -> dict[str, Any]:
    at = datetime.fromtimestamp(time.time() - (each.batch - batch) * each.every, UTC)
    return {"batch": batch, "planned": at.isoformat(), "committed": True, "records": int(each.rate * each.every)}


def _letters(each: Made) -> list[dict[str, Any]]:
    if each.dead_letters is None:
        raise OptionError(f'{each.key}.toml: it has no dead letters: set mode = "dead_letter" in [errors].')
    now = datetime.now(UTC)
    return [
        {"time": now.isoformat(), "stream": "INVOICES", "position": "1000412",
         "error": "no JSON: it ends too early, at 31", "value": '{"number": "R-2026-1187", "total"'},
        {"time": now.isoformat(), "stream": "INVOICES", "position": "1000397", "error": "'total' is no number",
         "value": '{"number": "R-2026-1171", "total": "<script>document.title = 1</script>"}'},
    ]  # fmt: skip


def serve(
    world: World,
    port: int = 0,
    *,
    host: str = "127.0.0.1",
    is_plain: bool = False,
    jetstream: JetStreams | None = None,
) -> Server:
    """The page about a world. `is_plain`: as of a program without pipelines, which cannot be told anything. `host`: by
    whose rules it answers; it listens on loopback only.
    """
    pipelines = None if is_plain else world
    api = Api(world.store, pipelines, Metrics(world.store, pipelines, jetstream), Access(host, KEY), jetstream)
    return Server(api.app(), Address("127.0.0.1", port), api.end).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8686)
    parser.add_argument("--plain", action="store_true", help="queries of a program, without pipelines")
    parser.add_argument("--hour", type=float, default=3600.0, help="so many seconds are remembered at first")
    given = parser.parse_args()
    server = serve(World(ten(), hour=given.hour).start(), given.port, is_plain=given.plain)
    print(f"{server.url}/#key={KEY}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
