"""Iggy in the rounds: a double of its server, which can do what no operator would get a real one to do."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import apache_iggy as sdk
import pyarrow as pa

from iggy_servers import IggyAdmin, options
from operators.model import Record, Row
from operators.scene import AWAY, HEADERS, LOSS, OTHER_ROWS, Operator, Scene, as_headers, of_body, pairs
from penstock.connectors.iggy import Iggy as Connection
from penstock.errors import ConnectError, OptionError, PenstockError
from penstock.spark.connector import Connector
from penstock.testing.iggy_double import IggyDouble, Partition

LIMITS = {"requestTimeout": "2s", "connectTimeout": "2s", "reconnectTimeout": "8s"}
FOREIGN = b"somebody else's"
UNSURE: tuple[type[PenstockError], str] = (PenstockError, "cannot tell|made again|gone|no topic|no stream")
LOST: tuple[type[PenstockError], str] = (ConnectError, "has lost what was written|lost what it had")
FAULTS = ["lose_reply", "lose_request", "transient:2", "late:0.02", ""]
POLL_FAULTS = ["cut", "empty", "skip:3", "hole:2", ""]
# The server cannot read, or its last offsets were never used: nobody can tell the two apart.
UNREAD: tuple[type[PenstockError], str] = (ConnectError, "gives no message|finds no message")


class Iggy:
    """The server of one round."""

    def __init__(self, scene: Scene):
        self.scene, self.server = scene, IggyDouble()
        # A jump that is there twice is believed. Where Iggy cannot read it gives nothing, for as long as that lasts.
        self.server.brief = True
        self.admin = IggyAdmin(self.server)
        self.leaves: list[Any] = []
        self.forgets: list[Any] = []

    def options(self, port: int | None = None) -> dict[str, str]:
        return options(self.server) | LIMITS | ({"address": f"127.0.0.1:{port}"} if port else {})

    def operators(self) -> list[Operator]:
        return [
            Operator("the server is restarted", lambda: self.restart(wipe=False), 1.0),
            Operator("the server loses its disk", lambda: self.restart(wipe=True), 0.3, quiet=True),
            Operator("polls fail", self._polls, 1.0),
        ]

    def restart(self, *, wipe: bool) -> None:
        self.scene.disturbed = True
        name = "the server comes back without its data" if wipe else "the server is restarted"
        self.scene.cause(name, AWAY, final=False)
        for leave in self.leaves:
            leave(wipe)
        self.server.stop()
        if wipe:
            self.server.streams.clear()
        time.sleep(self.scene.dice.choice([0, 0.05]))
        self.server.start()
        for forget in self.forgets:
            forget(wipe)

    def _polls(self) -> None:
        self.server.poll_faults += [self.scene.dice.choice(POLL_FAULTS) for _ in range(self.scene.dice.randint(1, 5))]
        self.scene.note(f"polls: {self.server.poll_faults}")
        self.scene.cause("polls failed", AWAY, UNREAD, final=False)

    def settle(self) -> None:
        self.server.faults.clear()
        self.server.poll_faults.clear()

    def send(self, topic: str, partition: int, messages: Sequence[tuple[bytes, dict[str, bytes]]]) -> int:
        """Send messages; the offset of the first."""
        first = self.server.topic("chaos", topic).partitions[partition].next
        faults, self.server.faults = self.server.faults, []

        async def do(client: Any) -> None:
            made = [sdk.SendMessage(body, user_headers=headers or None) for body, headers in messages]
            await client.send_messages("chaos", topic, sdk.Partitioning.partition_id(partition), made)

        self.admin.run(do)
        self.server.faults = faults
        return first

    def close(self) -> None:
        self.server.stop()


class TopicSource:
    """A topic with a few partitions."""

    connector: type[Connector] = Connection
    all = replayable = True

    def __init__(self, scene: Scene, iggy: Iggy, port: int | None):
        self.scene, self.iggy, dice = scene, iggy, scene.dice
        self.once = True
        iggy.forgets.append(self._came_back)
        self.count = dice.randint(1, 3)
        self.there = False
        self.gaps: set[int] = set()  # partitions whose last offsets were never used
        self.back: dict[int, int] = {}  # by partition: offsets below this were given before
        self.blind: dict[int, int] = {}  # and below this, with nothing by which the query could tell
        self._create()
        self.options = iggy.options(port) | scene.pace() | {"stream": "chaos", "topic": "in"}
        self.options |= {"discoveryInterval": dice.choice(["20ms", "10s"])}
        self.options["startingOffsets"] = "earliest" if scene.chance(0.8) else "latest"
        scene.model.from_earliest = self.options["startingOffsets"] == "earliest"
        scene.note(f"source iggy with {self.count} partitions, {self.options}")

    def _create(self) -> None:
        self.iggy.admin.make("chaos", "in", self.count)
        self.there = True
        self.gaps.clear()
        self.back.clear()
        self.blind.clear()
        for partition in self.iggy.server.topic("chaos", "in").partitions:
            self.scene.model.born(self._shard(partition.id), str(partition.created))

    @staticmethod
    def _shard(partition: int) -> str:
        return f"chaos/in/{partition}"

    def publish(self, count: int) -> None:
        if self.there:
            self._publish(self.scene.dice.randrange(self.count), count)

    def _publish(self, partition: int, count: int) -> None:
        self.gaps.discard(partition)
        made = []
        shard = self._shard(partition)
        for _ in range(count):
            record = self.scene.record(f"k{self.scene.dice.randrange(4)}")
            record.shard, record.life = shard, len(self.scene.model.epochs[shard]) - 1
            self.scene.model.records[record.number] = record
            made.append(record)
        first = self.iggy.send("in", partition, [(record.body, dict(record.headers)) for record in made])
        for position, record in enumerate(made, first):
            record.position = position
            if position < self.back.get(partition, 0):
                record.excuse = "its offset was given before"
            record.silent = position < self.blind.get(partition, 0)
        self.scene.note(f"{count} messages to {shard}, from {first}")

    def operators(self) -> Sequence[Operator]:
        return [
            Operator("delete old messages", self._trim, 2.0),
            Operator("purge the topic", self._purge, 1.5),
            Operator("lose the last messages", self._lose, 1.0),
            Operator("skip offsets", self._gap, 1.0),
            Operator("make the topic again", self._recreate, 1.0),
            Operator("delete the topic", self._delete, 0.5),
        ]

    def _live(self, partition: int) -> list[Record]:
        return self.scene.model.live(self._shard(partition))

    def _trim(self) -> None:
        if not self.there:
            return
        partition = self.scene.dice.randrange(self.count)
        live = self._live(partition)
        count = self.scene.dice.randint(0, len(live))
        gone = sorted(live, key=lambda r: r.position)[:count]
        self.iggy.server.trim("chaos", "in", partition, count)
        self.scene.note(f"the first {count} messages of partition {partition} are deleted")
        self.scene.take(gone, "old messages were deleted")
        if gone:
            self._unused(partition, gone[-1].position + 1)

    def _purge(self) -> None:
        """Offsets begin anew, and nothing else tells."""
        if not self.there:
            return
        lost = [record for partition in range(self.count) for record in self._live(partition)]
        for partition in self.iggy.server.topic("chaos", "in").partitions:
            self._went_back(partition.id, partition.next)
            if self._marked(partition.id) is None:
                self.blind[partition.id] = max(self._stands(partition), self.blind.get(partition.id, 0))
        self.iggy.server.purge("chaos", "in")
        self.gaps.clear()
        self.scene.note(f"the topic is purged of {len(lost)} messages")
        for partition in range(self.count):
            mine = [record for record in lost if record.shard == self._shard(partition)]
            self.scene.take(mine, "the topic was purged", silent=self._marked(partition) is None, always=True)
        for partition in self.iggy.server.topic("chaos", "in").partitions:
            self.scene.model.born(self._shard(partition.id), str(partition.created))

    def _marked(self, partition: int) -> int | None:
        """Where the query stands or will, if it knows a message before that by which it can tell."""
        offsets = self.scene.checkpoint.offsets
        at = json.loads(offsets[max(offsets)]) if offsets else {}
        shard = self._shard(partition)
        return int(at["next"][shard]) if shard in at.get("marks", {}) else None

    def _stands(self, partition: Partition) -> int:
        """Where the query stands, or would begin now."""
        offsets, first = self.scene.checkpoint.offsets, partition.next
        if partition.messages and self.scene.model.from_earliest:
            first = partition.messages[0].offset
        at = json.loads(offsets[max(offsets)])["next"] if offsets else {}
        return int(at.get(self._shard(partition.id), first))

    def _went_back(self, partition: int, end: int) -> None:
        """Offsets below `end` are given again. With failOnDataLoss=false a query that stands behind them goes on from
        the end that it finds; and one batch that was planned before may have new messages in place of the old.
        """
        self.back[partition] = max(end, self.back.get(partition, 0))
        if self.scene.checkpoint.open:
            self.once = False

    def _lose(self) -> None:
        """What was confirmed from memory is not there after a restart, and its offsets are given again."""
        if not self.there:
            return
        number = self.scene.dice.randrange(self.count)
        live = sorted(self._live(number), key=lambda r: r.position)
        count = self.scene.dice.randint(0, min(10, len(live)))
        if not count:
            return
        partition = self.iggy.server.topic("chaos", "in").partitions[number]
        if number in self.gaps or len(partition.messages) < count:
            return
        self.iggy.server.lose("chaos", "in", number, count)
        self.scene.note(f"partition {number} loses its last {count} messages")
        marked = self._marked(number)
        silent = marked is None or live[-count].position >= marked
        self.scene.take(live[-count:], "the server lost what it had confirmed", silent=silent, always=True)
        shard = self._shard(number)
        self.scene.model.born(shard, str(partition.created))
        self._went_back(number, live[-1].position + 1)

    def _gap(self) -> None:
        if self.there:
            number = self.scene.dice.randrange(self.count)
            end = self.iggy.server.topic("chaos", "in").partitions[number].next
            self.iggy.server.gap("chaos", "in", number, self.scene.dice.randint(1, 5))
            self.gaps.add(number)
            self.scene.cause("offsets were skipped", UNREAD, final=False, mend=self._prove)
            self._unused(number, end)

    def _unused(self, number: int, end: int) -> None:
        """Unused offsets from `end` on look like deleted messages once nothing is left before them."""
        partition = self.iggy.server.topic("chaos", "in").partitions[number]
        begins = partition.messages[0].offset if partition.messages else partition.next
        if begins > end:
            self.scene.note(f"partition {number} begins at {begins}, and {end} was never used")
            self.scene.cause("unused offsets look like deleted messages", LOSS)

    def _prove(self) -> None:
        """A message behind a gap says that it is one."""
        for number in sorted(self.gaps):
            self._publish(number, 1)

    def _delete(self) -> None:
        if not self.there:
            return
        lost = [record for partition in range(self.count) for record in self._live(partition)]
        self.iggy.admin.delete("chaos", "in")
        self.there = False
        self._lost(lost, "the topic is deleted")

    def _lost(self, lost: Sequence[Record], why: str) -> None:
        self.scene.note(f"{why}, with {len(lost)} messages")
        self.scene.model.take(lost, why)
        self.scene.cause(
            why,
            LOSS,
            OTHER_ROWS,
            (OptionError, "no topic|no stream|no partition"),
            (ConnectError, "not found|gone|refuses"),
        )

    def _recreate(self) -> None:
        if self.there:
            self._delete()
            self._create()
            self.scene.note("the topic is made again")

    def _came_back(self, wiped: bool) -> None:
        if wiped and self.there:
            self.there = False
            lost = [record for partition in range(self.count) for record in self._live(partition)]
            self._lost(lost, "the topic is gone with the server's disk")

    def rows(self, batch: pa.RecordBatch) -> list[Row]:
        columns = batch.select(["value", "headers"]).to_pylist()
        return [of_body(each["value"], tuple(sorted(pairs(each["headers"])))) for each in columns]

    def interrupted(self) -> None:
        pass

    def settle(self) -> None:
        self.iggy.settle()
        if not self.there:
            self._create()
            self.scene.note("the topic is made again")
        self._prove()

    def drained(self) -> bool:
        return True

    def complaints(self) -> list[str]:
        return []

    def close(self) -> None:
        pass


class TopicTarget:
    """A topic with a few partitions."""

    connector: type[Connector] = Connection
    settles = 0.05
    all = True

    def __init__(self, scene: Scene, iggy: Iggy, port: int | None):
        self.scene, self.iggy, dice = scene, iggy, scene.dice
        iggy.leaves.append(self._goes_away)
        iggy.forgets.append(self._came_back)
        self.count = dice.randint(1, 3)
        self.once = scene.chance(0.85)
        self.through_driver = scene.chance(0.5)
        self.twins = self.through_driver  # two attempts at the same time cannot be told apart
        self.ordered = self.once
        self.life, self.there, self.taken, self.foreign = -1, False, list[Row](), 0
        self._create()
        self.options = iggy.options(port) | {"stream": "chaos", "topic": "out", "settleTime": "50ms"}
        self.options |= {"delivery": "exactly_once" if self.once else "at_least_once"}
        self.options |= {
            "driverBytes": "4mb" if self.through_driver else "1",
            "batchLength": dice.choice(["7", "1000"]),
        }
        self.columns = pa.schema([("value", pa.binary()), ("headers", HEADERS), ("key", pa.string())])
        if self.count > 1 and scene.chance(0.5):
            self.columns = pa.schema([("value", pa.binary()), ("headers", HEADERS)])
        scene.note(f"target iggy with {self.count} partitions, {self.options}")

    def _create(self) -> None:
        self.iggy.admin.make("chaos", "out", self.count)
        self.there, self.foreign = True, 0
        self.life += 1

    def operators(self) -> Sequence[Operator]:
        return [
            Operator("somebody else writes to the target", self._foreign, 1.5),
            Operator("delete old rows", self._trim, 1.0),
            Operator("purge the target", self._purge, 0.7),
            Operator("the target loses its last rows", self._lose, 0.7),
            Operator("sends fail", self._faults, 2.0),
            Operator("make the target again", self._recreate, 0.4, quiet=True),
        ]

    def _foreign(self) -> None:
        if self.there:
            count = self.scene.dice.randint(1, 20)
            self.iggy.send("out", self.scene.dice.randrange(self.count), [(FOREIGN, {})] * count)
            self.foreign += count
            self.scene.note(f"{count} messages of somebody else")

    def _faults(self) -> None:
        self.iggy.server.faults += [self.scene.dice.choice(FAULTS) for _ in range(self.scene.dice.randint(1, 6))]
        self.scene.note(f"sends: {self.iggy.server.faults}")
        self.scene.cause("sends failed", AWAY, final=False)

    def _rows(self, partition: int) -> list[Row]:
        with self.iggy.server.lock:
            return [
                of_body(m.payload, None, place=f"out/{partition}", life=self.life)
                for m in self.iggy.server.topic("chaos", "out").partitions[partition].messages
                if m.payload != FOREIGN
            ]

    def _trim(self) -> None:
        if not self.there:
            return
        number = self.scene.dice.randrange(self.count)
        with self.iggy.server.lock:
            partition = self.iggy.server.topic("chaos", "out").partitions[number]
            count = self.scene.dice.randint(0, len(partition.messages))
            gone = partition.messages[:count]
            del partition.messages[:count]
        rows = [of_body(m.payload, None, place=f"out/{number}", life=self.life) for m in gone if m.payload != FOREIGN]
        self.foreign -= len(gone) - len(rows)
        self.taken += rows
        self.scene.note(f"the first {count} messages of out/{number} are deleted")
        self.scene.traces_are_gone()
        self.scene.cause("old rows were deleted", UNSURE)

    def _purge(self) -> None:
        if self.there:
            with self.iggy.server.lock:
                self._harvest(again=True)
                self.iggy.server.purge("chaos", "out")
            self.foreign = 0
            self.scene.note("the target is purged")
            self._says_so("the target was purged")

    def _lose(self) -> None:
        """What was confirmed from memory is not there after a crash."""
        if not self.there:
            return
        number = self.scene.dice.randrange(self.count)
        with self.iggy.server.lock:
            count = self.scene.dice.randint(0, len(self.iggy.server.topic("chaos", "out").partitions[number].messages))
            gone = self.iggy.server.topic("chaos", "out").partitions[number].messages[-count:] if count else []
            self.iggy.server.lose("chaos", "out", number, count) if count else None
        rows = [of_body(m.payload, None, life=self._lost()) for m in gone if m.payload != FOREIGN]
        self.foreign -= len(gone) - len(rows)
        self.taken += rows
        self.scene.note(f"out/{number} loses its last {count} messages")
        self._says_so("the target lost what it had confirmed")

    def _says_so(self, what: str) -> None:
        """The query stops, and goes on when it is started again, unless nobody can tell what is left of its batch."""
        self.scene.cause(what, UNSURE)
        self.scene.cause(what, LOST, final=False)

    def _lost(self) -> int:
        """The life of rows that are lost, and may be written again."""
        return -1 - len(self.taken)

    def _harvest(self, *, again: bool = False) -> None:
        for partition in range(self.count):
            rows = self._rows(partition)
            self.taken += [replace(row, life=self._lost()) for row in rows] if again else rows

    def _recreate(self) -> None:
        if self.there:
            self._harvest()
            self.iggy.admin.delete("chaos", "out")
            self._create()
            self.scene.note("the target is made again")
            self.scene.cause("the target was made again", UNSURE)

    def _goes_away(self, wiped: bool) -> None:
        if wiped and self.there:
            self._harvest()

    def _came_back(self, wiped: bool) -> None:
        if wiped and self.there:
            self.there = False
            self.scene.note("the target is lost")
            self.scene.cause(
                "the target was lost", UNSURE, (OptionError, "no topic|no stream"), (ConnectError, "not found")
            )

    def batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        made = {
            "value": pa.array([row.body for row in rows], pa.binary()),
            "headers": as_headers(rows),
            "key": pa.array([row.key for row in rows], pa.string()),
        }
        return pa.RecordBatch.from_arrays([made[name] for name in self.columns.names], schema=self.columns)

    def stored(self) -> list[Row]:
        rows = list(self.taken)
        if self.there:
            found = self.iggy.admin.read("chaos", "out")
            for message in found:
                if message.payload() != FOREIGN:
                    given = message.user_headers()
                    headers = given.to_scalar_dict() if given is not None else {}
                    place = f"out/{message.partition_id()}"
                    rows.append(of_body(message.payload(), tuple(sorted(headers.items())), place=place, life=self.life))
        return rows

    def settle(self) -> None:
        self.iggy.settle()
        if not self.there:
            self._create()
            self.scene.note("the target is made again")

    def complaints(self, *, well: bool) -> list[str]:
        if not self.there:
            return []
        there = sum(message.payload() == FOREIGN for message in self.iggy.admin.read("chaos", "out"))
        return [] if there == self.foreign else [f"{there} of {self.foreign} messages of somebody else are left"]

    def close(self) -> None:
        pass
