"""S2 in the rounds: streams of records and of changes to a table, as sources and as targets."""

import asyncio
import json
import os
import shutil
import threading
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import s2_sdk
from s2_sdk import AppendInput, CommandRecord, Record

from operators.model import Record as Published
from operators.model import Row
from operators.scene import AWAY, HEADERS, LOSS, OTHER_ROWS, Operator, Scene, as_headers, of_body, pairs
from penstock.connectors.s2 import S2Streams
from penstock.errors import ConnectError, OptionError, PenstockError
from penstock.spark.connector import Connector
from penstock.testing.s2_lite import S2Lite
from s2_servers import S2Admin

LIMITS = {"requestTimeout": "3s", "connectTimeout": "2s", "reconnectTimeout": "8s"}
FOREIGN = b"somebody else's"
UNSURE: tuple[type[PenstockError], str] = (
    PenstockError,
    "cannot tell|trimmed|made again|deleted|not found|no stream",
)


class Admin(S2Admin):
    """The SDK, with one client that stays."""

    def __init__(self, server: S2Lite):
        super().__init__(server)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._client: Any = None

    def _run(self, do: Any) -> Any:
        async def inside() -> Any:
            if self._client is None:
                endpoints = s2_sdk.Endpoints(account=self.server.url, basin=self.server.url)
                self._client = await s2_sdk.S2("ignored", endpoints=endpoints).__aenter__()
            client = self._client
            basin = client[self.server.basin] if hasattr(client, "__getitem__") else client.basin(self.server.basin)
            return await do(basin)

        return asyncio.run_coroutine_threadsafe(inside(), self._loop).result(30)

    def forget(self) -> None:
        """The server is another one now."""
        self._client = None

    def put(self, stream: str, records: Sequence[Record]) -> int:
        """Append records; the number of the first."""
        ack = self._run(lambda basin: basin.stream(stream).append(AppendInput(list(records))))
        return int(ack.start.seq_num)

    def make_soon(self, stream: str) -> bool:
        """Make a stream, unless one of the same name is on its way out, which can take a minute."""
        deadline = time.monotonic() + 0.5
        while True:
            try:
                self._run(lambda basin: basin.create_stream(stream))
                return True
            except s2_sdk.S2ServerError as error:
                if error.code != "stream_deletion_pending":
                    raise
                if time.monotonic() > deadline:
                    return False
            time.sleep(0.05)


class S2:
    """The server, with what it holds in a folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.server = S2Lite(folder)
        self._start()
        self.admin = Admin(self.server)
        self.scene: Scene | None = None
        self.leaves: list[Callable[[bool], None]] = []
        self.forgets: list[Callable[[bool], None]] = []

    def enter(self, scene: Scene) -> None:
        if self.scene is not scene:
            self.scene, self.leaves, self.forgets = scene, [], []

    def options(self, port: int | None = None) -> dict[str, str]:
        given = self.server.options() | LIMITS
        return given | ({"endpoint": f"http://127.0.0.1:{port}"} if port else {})

    def listed(self, prefix: str) -> dict[str, str]:
        """The streams that are there, and when each was made, in the server's own words."""
        url = f"{self.server.url}/v1/streams?limit=1000&prefix={urllib.parse.quote(prefix, safe='')}"
        request = urllib.request.Request(url, headers={"s2-basin": self.server.basin})
        with urllib.request.urlopen(request, timeout=5) as answer:
            found = json.load(answer)["streams"]
        return {each["name"]: each["created_at"] for each in found if each.get("deleted_at") is None}

    def operators(self) -> list[Operator]:
        return [
            Operator("the server is restarted", lambda: self.restart(wipe=False), 1.0),
            Operator("the server loses its disk", lambda: self.restart(wipe=True), 0.3, quiet=True),
        ]

    def restart(self, *, wipe: bool) -> None:
        scene = self.scene
        assert scene is not None
        scene.disturbed = True
        name = "the server comes back without its data" if wipe else "the server is restarted"
        scene.cause(name, AWAY, final=False)
        for leave in self.leaves:
            leave(wipe)
        self.server.kill()  # politely it would wait for its clients, up to ten seconds
        if wipe:
            shutil.rmtree(self.folder, ignore_errors=True)
        self._start()
        self.admin.forget()
        for forget in self.forgets:
            forget(wipe)

    def _start(self) -> None:
        """It waits for a second, lest another instance be at work, unless it is told not to."""
        before = os.environ.get("SL8_MANIFEST_POLL_INTERVAL")
        os.environ["SL8_MANIFEST_POLL_INTERVAL"] = "50ms"
        try:
            self.server.start()
        finally:
            del os.environ["SL8_MANIFEST_POLL_INTERVAL"]
            if before is not None:
                os.environ["SL8_MANIFEST_POLL_INTERVAL"] = before

    def close(self) -> None:
        self.server.stop()


class StreamSource:
    """One stream, or two, of records or of changes."""

    connector: type[Connector] = S2Streams
    all = once = replayable = True

    def __init__(self, scene: Scene, s2: S2, port: int | None, kind: str):
        self.scene, self.s2, self.upsert, dice = scene, s2, kind == "upsert", scene.dice
        s2.enter(scene)
        s2.forgets.append(self._came_back)
        prefix = f"{scene.name.lower()}-{time.time_ns()}/"
        self.names = [f"{prefix}{i}" for i in range(dice.choice([1, 1, 2]))]
        self.there: set[str] = set()
        for name in self.names:
            self._create(name)
        self.options = s2.options(port) | scene.pace() | {"discoveryInterval": dice.choice(["20ms", "10s"])}
        self.options |= {"streamPrefix": prefix} if scene.chance(0.4) else {"streams": ",".join(self.names)}
        self.options["startingOffsets"] = "earliest" if scene.chance(0.8) else "latest"
        scene.model.from_earliest = self.options["startingOffsets"] == "earliest"
        if self.upsert:
            self.options |= {"mode": "upsert", "keyColumns": "id", "columns": "id STRING, body STRING, _action STRING"}
        scene.note(f"source s2 {kind} {self.names}, {self.options}")

    def _create(self, name: str) -> None:
        if self.s2.admin.make_soon(name):
            self.scene.model.born(name, self.s2.listed(name)[name])
            self.there.add(name)
            self.scene.note(f"{name} is made")

    def publish(self, count: int) -> None:
        scene = self.scene
        for name in self.names:
            if name not in self.there:
                continue
            made: list[Published] = []
            for _ in range(count):
                record = scene.record(f"k{scene.dice.randrange(4)}", headers=not self.upsert)
                record.shard, record.life = name, len(scene.model.epochs[name]) - 1
                scene.model.records[record.number] = record
                made.append(record)
            first = self.s2.admin.put(name, [self._raw(record) for record in made])
            for position, record in enumerate(made, first):
                record.position = position
            scene.note(f"{count} records to {name}, from {first}")

    def _raw(self, record: Published) -> Record:
        if not self.upsert:
            return Record(record.body, headers=[(k.encode(), v) for k, v in record.headers])
        key = json.dumps({"id": record.key}).encode()
        body = json.dumps({"body": record.body.decode()}).encode()
        return Record(body, headers=[(b"@key", key), (b"@action", b"u")])

    def operators(self) -> Sequence[Operator]:
        return [
            Operator("trim", self._trim, 2.0),
            Operator("make a stream again", self._recreate, 1.0),
            Operator("delete a stream", self._delete, 0.7),
            Operator("fence a stream", self._fence, 0.5),
        ]

    def _some(self) -> str | None:
        return self.scene.dice.choice(sorted(self.there)) if self.there else None

    def _trim(self) -> None:
        if (name := self._some()) is None:
            return
        live = self.scene.model.live(name)
        tail = self.s2.admin.tail(name)
        at = self.scene.dice.randint(0, tail)
        self.scene.note(f"{name} is trimmed at {at}")
        self.scene.take([r for r in live if r.position < at], f"{name} was trimmed at {at}")
        self.s2.admin.trim(name, at)

    def _fence(self) -> None:
        if (name := self._some()) is not None:
            self.s2.admin.command(name, CommandRecord.fence(f"token-{self.scene.dice.randrange(100)}"))
            self.scene.note(f"{name} has a fence record")

    def _delete(self, name: str | None = None) -> None:
        name = name or self._some()
        if name is None:
            return
        # Before it is done: a task may see it sooner than the server answers.
        self._lost(name, self.scene.model.live(name), f"{name} is deleted")
        self.s2.admin.delete(name)
        self.there.discard(name)

    def _recreate(self) -> None:
        if (name := self._some()) is not None:
            self._delete(name)
            self._create(name)

    def _lost(self, name: str, live: Sequence[Published], why: str) -> None:
        self.scene.note(f"{why}, with {len(live)} records")
        self.scene.model.take(live, why)
        self.scene.cause(
            why, LOSS, OTHER_ROWS, (OptionError, "no stream|does not exist"), (ConnectError, "not found|delet")
        )

    def _came_back(self, wiped: bool) -> None:
        if wiped:
            for name in sorted(self.there):
                self.there.discard(name)
                self._lost(name, self.scene.model.live(name), f"{name} is gone with the server's disk")

    def rows(self, batch: pa.RecordBatch) -> list[Row]:
        if self.upsert:
            return [of_body(each["body"].encode(), (), each["id"]) for each in batch.to_pylist()]
        return [
            of_body(each["value"], pairs(each["headers"])) for each in batch.select(["value", "headers"]).to_pylist()
        ]

    def interrupted(self) -> None:
        pass

    def settle(self) -> None:
        for name in self.names:
            if name not in self.there:
                self._create(name)

    def drained(self) -> bool:
        return True

    def complaints(self) -> list[str]:
        return []

    def close(self) -> None:
        _clear(self.s2, self.names)


class StreamTarget:
    """A stream, or one for each task. `kind`: append or changes."""

    connector: type[Connector] = S2Streams
    all = True
    twins, settles = True, 0.0

    def __init__(self, scene: Scene, s2: S2, port: int | None, kind: str):
        self.scene, self.s2, self.upsert, dice = scene, s2, kind == "changes", scene.dice
        s2.enter(scene)
        s2.leaves.append(self._goes_away)
        s2.forgets.append(self._came_back)
        prefix = f"{scene.name.lower()}-{time.time_ns()}-out"
        self.apart = scene.chance(0.5)  # whether each task has a stream of its own
        self.prefix = prefix
        self.once = self.ordered = scene.chance(0.85)
        self.life, self.taken, self.foreign = 0, list[Row](), Counter[str]()
        self.token = "mine" if not self.apart and scene.chance(0.5) else None
        self._make()
        self.options = s2.options(port) | {"delivery": "exactly_once" if self.once else "at_least_once"}
        self.options |= {"stream": f"{prefix}/{{partition}}" if self.apart else prefix, "ensureStream": "true"}
        self.options |= {
            "driverBytes": dice.choice(["1", "4mb"]),
            "appendSession": dice.choice(["true", "true", "false"]),
        }
        if self.token:
            self.options["fencingToken"] = self.token
        if self.upsert:
            self.options |= {"mode": "upsert", "keyColumns": "id"}
        self.columns = pa.schema([("value", pa.binary()), ("headers", HEADERS)])
        if self.upsert:
            self.columns = pa.schema([("id", pa.string()), ("body", pa.string()), ("_action", pa.string())])
        scene.note(f"target s2 {kind}, {self.options}")

    def _make(self) -> None:
        made = not self.apart and self.s2.admin.make_soon(self.prefix)
        if self.token and made:
            self.s2.admin.command(self.prefix, CommandRecord.fence(self.token))

    def operators(self) -> Sequence[Operator]:
        given = [
            Operator("somebody else writes to the target", self._foreign, 1.5),
            Operator("trim the target", self._trim, 1.0),
            Operator("make the target again", self._recreate, 0.4, quiet=True),
        ]
        if self.token:
            given.append(Operator("fence the target", self._fence, 2.0))
        return given

    def _present(self) -> list[str]:
        return list(self.s2.listed(self.prefix))

    def _records(self, name: str) -> list[tuple[int, Row]]:
        found = []
        for record in self.s2.admin.read(name):
            headers = tuple((k.decode(), v) for k, v in record.headers)
            if record.body == FOREIGN or any(not k for k, _ in headers):
                continue
            own = dict(headers)
            kept = tuple((k, v) for k, v in headers if not k.startswith("@"))
            body, key = record.body, None
            if self.upsert:
                body, key, kept = json.loads(body)["body"].encode(), json.loads(own["@key"])["id"], None
            found.append((record.seq_num, of_body(body, kept, key, place=name, life=self.life)))
        return found

    def _foreign(self) -> None:
        present = self._present()
        if present:
            name, count = self.scene.dice.choice(present), self.scene.dice.randint(1, 30)
            self.s2.admin.append(name, [Record(FOREIGN)] * count)
            self.foreign[name] += count
            self.scene.note(f"{count} records of somebody else to {name}")

    def _trim(self) -> None:
        present = self._present()
        if not present:
            return
        name = self.scene.dice.choice(present)
        rows = self._records(name)
        if not rows:
            return
        count = self.scene.dice.choice([len(rows), self.scene.dice.randint(1, len(rows))])
        self.taken += [row for _, row in rows[:count]]
        at = rows[count - 1][0] + 1
        before = sum(r.body == FOREIGN for r in self.s2.admin.read(name) if r.seq_num < at)
        self.s2.admin.trim(name, at)
        deadline = time.monotonic() + 10
        while any(r.seq_num < at for r in self.s2.admin.read_some(name, 0)) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.foreign[name] -= before
        self.scene.note(f"{name} is trimmed at {at}, with {count} rows")
        self.scene.traces_are_gone()
        self.scene.cause("the target was trimmed", UNSURE)

    def _fence(self) -> None:
        for name in self._present():
            self.s2.admin.command(name, CommandRecord.fence("theirs"))
        self.scene.note("somebody fences the target")
        self.scene.cause("the target is fenced", (ConnectError, "fenc"), final=False, mend=self._unfence)

    def _unfence(self) -> None:
        for name in self._present():
            self.s2.admin.command(name, CommandRecord.fence(self.token or ""))

    def _harvest(self) -> None:
        for name in self._present():
            self.taken += [row for _, row in self._records(name)]

    def _recreate(self) -> None:
        self._harvest()
        for name in self._present():
            self.s2.admin.delete(name)
        self._again("the target was made again")

    def _again(self, why: str) -> None:
        self.life += 1
        self.foreign.clear()
        self.scene.note(why)
        self.scene.cause(why, UNSURE, (ConnectError, "fenc|delet"))
        self._make()

    def _goes_away(self, wiped: bool) -> None:
        if wiped:
            self._harvest()

    def _came_back(self, wiped: bool) -> None:
        if wiped:
            self._again("the target was lost with the server's disk")

    def batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        if self.upsert:
            columns = [[row.key for row in rows], [row.body.decode() for row in rows], ["u"] * len(rows)]
            return pa.RecordBatch.from_arrays([pa.array(each, pa.string()) for each in columns], schema=self.columns)
        return pa.RecordBatch.from_arrays(
            [pa.array([row.body for row in rows], pa.binary()), as_headers(rows)], schema=self.columns
        )

    def stored(self) -> list[Row]:
        return self.taken + [row for name in self._present() for _, row in self._records(name)]

    def settle(self) -> None:
        if self.token:
            self._unfence()

    def complaints(self, *, well: bool) -> list[str]:
        found = []
        for name in self._present():
            there = sum(record.body == FOREIGN for record in self.s2.admin.read(name))
            if there != self.foreign[name]:
                found.append(f"{there} of {self.foreign[name]} records of somebody else are left in {name}")
        return found

    def close(self) -> None:
        _clear(self.s2, self._present())


def _clear(s2: S2, names: Sequence[str]) -> None:
    for name in names:
        with suppress(s2_sdk.S2ServerError):
            s2.admin.delete(name)
