"""Targets on NATS: streams of every kind, and subjects that somebody listens to."""

import json
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from operators.model import Row
from operators.nats import Nats, Wire, fields
from operators.scene import HEADERS, Operator, Scene, as_headers, of_body
from penstock.connectors.jetstream import JetStream
from penstock.connectors.nats import CoreNats
from penstock.errors import ConnectError, OptionError, PenstockError
from penstock.spark.connector import Connector

COLUMNS = pa.schema([("value", pa.binary()), ("headers", HEADERS), ("subject", pa.string())])
LEDGER = "PENSTOCK_LEDGER"
FOREIGN = b"somebody else's"
# Whether rows are there can no longer be told: a sink that promises each once must stop.
UNSURE: tuple[type[PenstockError], str] = (PenstockError, "cannot be told|cannot tell|ledger|missing|removed|gone")


def _batch(rows: Sequence[Row], prefix: str) -> pa.RecordBatch:
    values = pa.array([row.body for row in rows], pa.binary())
    subjects = pa.array([f"{prefix}.{row.key}" for row in rows], pa.string())
    return pa.RecordBatch.from_arrays([values, as_headers(rows), subjects], schema=COLUMNS)


class StreamTarget:
    """A stream. `kind`: limits, memory, workqueue, whose jobs somebody takes, and last, which keeps one a subject."""

    connector: type[Connector] = JetStream
    columns = COLUMNS
    twins, settles = True, 0.0

    def __init__(self, scene: Scene, nats: Nats, port: int | None, kind: str):
        self.scene, self.nats, self.kind, self.name = scene, nats, kind, f"{scene.name}T"
        nats.enter(scene)
        nats.leaves.append(self._goes_away)
        nats.forgets.append(self._came_back)
        nats.fragile = kind == "memory"
        self.once = scene.chance(0.85)
        self.ordered = self.once and kind != "last"
        self.all = kind != "last"  # what is there is judged apart
        self.window = scene.dice.choice([120.0, 120.0, 1.0, 0.2])
        self.flags = scene.dice.choice([{}, {"allow_atomic": True}, {"allow_batched": True}])
        self.life = -1
        self.there = False
        self.taken: list[Row] = []  # what somebody took away, as it was
        self.foreign = 0
        self.full = False
        self._create()
        self.options = nats.options(port) | {"delivery": "exactly_once" if self.once else "at_least_once"}
        if scene.chance(0.2):
            self.options["ackTimeout"] = "500ms"
        if kind == "last":
            scene.cause("newer rows took the place of older ones", UNSURE)
        scene.note(f"target {kind} {self.flags}, window {self.window:g}s, {self.options}")

    def _create(self) -> None:
        config: dict[str, Any] = {"duplicate_window": int(self.window * 1e9), **self.flags}
        if self.kind == "memory":
            config["storage"] = "memory"
        if self.kind == "workqueue":
            config["retention"] = "workqueue"
        if self.kind == "last":
            config["max_msgs_per_subject"] = 1
        self.nats.admin.create(self.name, **config)
        self.there, self.full, self.foreign = True, False, 0
        self.life += 1

    def operators(self) -> Sequence[Operator]:
        takes = {"workqueue": 3.0, "last": 0.5}.get(self.kind, 0.7)
        return [
            Operator("somebody takes rows away", self._take, takes),
            Operator("somebody else writes to the target", self._foreign, 1.0),
            Operator("the target is full", self._full, 1.5),
            Operator("make the target again", self._recreate, 0.3, quiet=True),
            Operator("the target takes other subjects", self._edit, 0.7),
            Operator("delete the ledger", self._forget, 0.7),
            Operator("the ledger is full", self._full_ledger, 0.3),
            Operator("revoke a permission", self._deny, 1.0),
        ]

    def _rows(self) -> list[tuple[int, Row]]:
        prefix = f"{self.name}."
        return [
            (at, of_body(body, headers, subject.removeprefix(prefix), place=self.name, life=self.life))
            for at, subject, body, headers in self.nats.messages(self.name)
            if body != FOREIGN
        ]

    def _take(self) -> None:
        """The first messages, or all: a worker has done them, or an operator purges."""
        if not self.there:
            return
        rows = self._rows()
        if not rows:
            return
        count = self.scene.dice.choice([len(rows), self.scene.dice.randint(1, len(rows))])
        self.taken += [row for _, row in rows[:count]]
        at = rows[count - 1][0] + 1
        before = self._foreign_there()
        self.nats.admin.purge(self.name, seq=at)
        self.foreign -= before - self._foreign_there()
        self.scene.note(f"somebody takes {count} rows away, below {at}")
        self.scene.cause("rows were taken away", UNSURE)

    def _foreign_there(self) -> int:
        return sum(body == FOREIGN for _, _, body, _ in self.nats.messages(self.name))

    def _foreign(self) -> None:
        if self.there and not self.full:
            count = self.scene.dice.randint(1, 20)
            self.nats.admin.publish((f"{self.name}.foreign.{self.foreign + i}", FOREIGN) for i in range(count))
            self.foreign += count
            self.scene.note(f"{count} messages of somebody else")

    def _full(self) -> None:
        info = self.nats.info(self.name)
        if info is None:
            return
        room = info["state"]["messages"] + self.scene.dice.choice([0, 1, 10])
        limit = {"max_msgs": max(1, room)} if self.scene.chance(0.5) else {"max_bytes": info["state"]["bytes"] + 500}
        self.nats.update(self.name, discard="new", **limit)
        # What is refused for its size comes behind a smaller one that still had room.
        self.full, self.ordered = True, False
        self.scene.note(f"the target takes no more than {limit}")
        self.scene.cause(
            "the target is full", (ConnectError, "refused|maximum|room|exceed"), final=False, mend=self._room
        )

    def _room(self) -> None:
        if self.there:
            self.nats.update(self.name, discard="old", max_msgs=-1, max_bytes=-1)
        self.full = False

    def _recreate(self) -> None:
        if self.there:
            self._harvest()
            self.nats.admin.delete(self.name)
            self._create()
            self.scene.note("the target is made again")
            self.scene.cause("the target was made again", UNSURE, (OptionError, "no stream"), (ConnectError, ""))

    def _harvest(self) -> None:
        self.taken += [row for _, row in self._rows()]

    def _edit(self) -> None:
        if self.there:
            self.nats.update(self.name, subjects=[f"{self.name}.other.>", f"{self.name}.foreign.>"])
            self.scene.note("the target takes other subjects")
            fits = ((OptionError, "no stream takes"), (ConnectError, "no (stream|server) takes"))
            self.scene.cause("the target takes other subjects", *fits, final=False, mend=self._restore)

    def _restore(self) -> None:
        if self.there:
            self.nats.update(self.name, subjects=[f"{self.name}.>"])

    def _forget(self) -> None:
        if self.nats.info(LEDGER) is None:
            return
        if self.scene.chance(0.5):
            self.nats.admin.delete(LEDGER)
            self.scene.note("the ledger is deleted")
        else:  # as from a backup
            notes = [subject.split(".") for _, subject, _, _ in self.nats.messages(LEDGER) if subject.endswith(".done")]
            older = [(query, int(batch) - 1) for _, query, batch, _ in notes if int(batch)]
            self.nats.admin.purge(LEDGER)
            self.nats.admin.publish(
                (f"{LEDGER}.{query}.{batch}.done", json.dumps({"batch": batch, "rows": {}}).encode())
                for query, batch in older
            )
            self.scene.note(f"the ledger is set back to {older}")
        self.scene.cause("the ledger was deleted or set back", UNSURE)

    def _full_ledger(self) -> None:
        info = self.nats.info(LEDGER)
        if info is not None:
            self.nats.update(LEDGER, max_msgs=max(1, info["state"]["messages"]))
            self.scene.note("the ledger is full")
            fits = ((PenstockError, "ledger|maximum|full|room"),)
            self.scene.cause("the ledger is full", *fits, final=False, mend=self._empty_ledger)

    def _empty_ledger(self) -> None:
        if self.nats.info(LEDGER) is not None:
            self.nats.update(LEDGER, max_msgs=-1)

    def _deny(self) -> None:
        what = [f"{self.name}.>", f"{LEDGER}.>", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO.>"]
        subject = self.scene.dice.choice(what)
        self.nats.refusal(self.scene, [subject], f"{subject} is denied")

    def _came_back(self, wiped: bool) -> None:
        if not self.there:
            return
        if wiped or self.kind == "memory":
            self.there = False
            name = "the target was lost"
            self.scene.note(name)
            fits = (UNSURE, (OptionError, "no stream"), (ConnectError, "no stream|not found|no server"))
            self.scene.cause(name, *fits)
        if self.kind in ("workqueue", "last") or self.taken:
            # The server knows again only what it has; what was taken away would be stored twice.
            self.scene.cause("the server was restarted, and rows were taken away before", UNSURE)

    def _goes_away(self, wiped: bool) -> None:
        if self.there and (wiped or self.kind == "memory"):
            self._harvest()

    def batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        return _batch(rows, self.name)

    def stored(self) -> list[Row]:
        return self.taken + ([row for _, row in self._rows()] if self.there else [])

    def settle(self) -> None:
        self.nats.allow()
        if not self.there:
            self._create()
            self.scene.note("the target is made again")
        self._room()
        self._restore()
        self._empty_ledger()

    def complaints(self, *, well: bool) -> list[str]:
        if not self.there:
            return []
        if self.kind == "last":
            return self._not_the_last() if well else []
        there = self._foreign_there()
        return [] if there == self.foreign else [f"{there} of {self.foreign} messages of somebody else are left"]

    def _not_the_last(self) -> list[str]:
        """A stream that keeps one message a subject has seen each row once, and keeps the last of each."""
        model, found = self.scene.model, []
        info = self.nats.info(self.name)
        assert info is not None
        rows, tried = sum(map(len, model.tasks.values())), len(self.scene.tried)
        written = info["state"]["last_seq"] - self.foreign
        if self.once and not self.life and not rows <= written <= tried:
            found.append(f"{written} rows were written for {rows}, or {tried} with those of batches that lost some")
        for _, row in self._rows():
            batches = [
                b for (b, _), numbers in model.tasks.items() if any(model.records[n].key == row.key for n in numbers)
            ]
            newest = [numbers for (b, _), numbers in model.tasks.items() if b == max(batches, default=-1)]
            last = [[n for n in numbers if model.records[n].key == row.key][-1:] for numbers in newest]
            if batches and [row.number] not in last:
                found.append(f"{row.key} is row {row.number}, but the last one was {last}")
        return found

    def close(self) -> None:
        pass


class CoreTarget:
    """Subjects, with somebody who listens to them."""

    connector: type[Connector] = CoreNats
    columns = COLUMNS
    all, once, ordered, twins, settles = True, False, False, True, 0.0

    def __init__(self, scene: Scene, nats: Nats, port: int | None):
        self.scene, self.nats, self.name = scene, nats, f"{scene.name}T"
        nats.enter(scene)
        nats.forgets.append(lambda wiped: self._again())
        self.heard: list[tuple[str, str, bytes, bytes]] = []
        self.deaf = False  # whether the listener may have missed something
        self.options = nats.options(port)
        self._listen()
        scene.note(f"target nats, {self.options}")

    def _listen(self) -> None:
        self._wire = Wire(self.nats.server.port)
        self._wire.send(b"SUB %s.> 1\r\n" % self.name.encode())
        self.heard += self._wire.flush()

        def hear(wire: Wire) -> None:
            with suppress(OSError):
                while True:
                    if (frame := wire.next(0.5)) is not None:
                        self.heard.append(frame)

        threading.Thread(target=hear, args=(self._wire,), daemon=True).start()

    def _again(self) -> None:
        self.deaf = True
        self._wire.close()
        self._listen()

    def operators(self) -> Sequence[Operator]:
        return [Operator("revoke a permission", self._deny, 1.0)]

    def _deny(self) -> None:
        self.nats.refusal(self.scene, [f"{self.name}.>"], f"{self.name}.> is denied")

    def batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        return _batch(rows, self.name)

    def stored(self) -> list[Row]:
        self.all = not self.deaf
        # What the listener has not taken from its socket yet comes before the end of this.
        marker = Wire(self.nats.server.port)
        marker.send(b"PUB %s.end 3\r\nend\r\n" % self.name.encode())
        marker.flush()
        marker.close()
        wait = threading.Event()
        for _ in range(500):
            if any(frame[0] == f"{self.name}.end" for frame in self.heard):
                break
            wait.wait(0.01)
        prefix = f"{self.name}."
        return [
            of_body(body, fields(block), subject.removeprefix(prefix))
            for subject, _, block, body in self.heard
            if subject != f"{self.name}.end"
        ]

    def settle(self) -> None:
        self.nats.allow()

    def complaints(self, *, well: bool) -> list[str]:
        return []

    def close(self) -> None:
        self._wire.close()
