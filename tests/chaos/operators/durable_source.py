"""A source that reads by a durable consumer, which others read from too, and which may go."""

import time
from collections.abc import Sequence
from contextlib import suppress

import pyarrow as pa

from operators.model import Row
from operators.nats import Nats, Wire
from operators.scene import Operator, Scene, of_body, pairs
from penstock.clients.jetstream.calls import ApiError
from penstock.connectors.jetstream import JetStream
from penstock.errors import PenstockError
from penstock.spark.connector import Connector


class DurableSource:
    """A durable consumer that others share. Its messages are delivered again until they are acknowledged."""

    connector: type[Connector] = JetStream
    all, once, replayable = True, False, False

    def __init__(self, scene: Scene, nats: Nats, port: int | None, ack: str):
        self.scene, self.nats, self.ack, self.name = scene, nats, ack, f"{scene.name}D"
        nats.enter(scene)
        nats.forgets.append(self._came_back)
        # A work queue has acknowledgements of each message only.
        self.retention = scene.dice.choice(["limits", "interest", *(["workqueue"] if ack == "explicit" else [])])
        self.there = False
        self._create()
        self.options = nats.options(port) | {"stream": self.name, "ack": ack, "consumer": "shared"} | scene.pace()
        scene.note(f"source ack={ack} on a stream with {self.retention} retention, {self.options}")

    def _create(self) -> None:
        made = self.nats.admin.create(self.name, retention=self.retention)
        self.scene.model.born(self.name, made["created"])
        self.there = True
        self._make_consumer()

    def _make_consumer(self) -> None:
        config = {"durable_name": "shared", "ack_policy": self.ack, "ack_wait": 700_000_000, "deliver_policy": "all",
                  "max_ack_pending": self.scene.dice.choice([20, 1000, 1000])}  # fmt: skip
        body = {"stream_name": self.name, "config": config}
        self.nats.admin.calls.call(f"CONSUMER.CREATE.{self.name}.shared", body)
        self.awaited = True

    def publish(self, count: int) -> None:
        if not self.there:
            return
        made = []
        for _ in range(count):
            record = self.scene.record(f"{self.name}.k{self.scene.dice.randrange(4)}")
            self.scene.model.records[record.number] = record
            made.append(record)
        at = self.nats.admin.publish((r.key, r.body, [(k, v.decode()) for k, v in r.headers]) for r in made)
        for record, position in zip(made, at, strict=True):
            record.shard, record.position, record.life = (
                self.name,
                position,
                len(self.scene.model.epochs[self.name]) - 1,
            )
            if self.retention == "interest" and not self.awaited:
                record.gone, record.silent = "nobody waits for it", True
        self.scene.note(f"{count} messages to {self.name}, {at[:1]} to {at[-1:]}")

    def operators(self) -> Sequence[Operator]:
        return [
            Operator("another worker takes messages", lambda: self._worker(dies=False), 2.0),
            Operator("another worker takes messages and dies", lambda: self._worker(dies=True), 3.0),
            Operator("purge", self._purge, 0.5),
            Operator("delete the consumer", self._delete_consumer, 0.5),
            Operator("make the stream again", self._recreate, 0.3),
            Operator("revoke a permission", self._deny, 0.7),
        ]

    def _worker(self, *, dies: bool) -> None:
        if not self.there:
            return
        scene, count = self.scene, self.scene.dice.randint(1, 12)
        wire = Wire(self.nats.server.port)
        wire.send(b"SUB worker.%d 1\r\n" % id(wire))
        pull = b'{"batch": %d, "no_wait": true}' % count
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.name}.shared".encode()
        wire.send(b"PUB %s worker.%d %d\r\n%s\r\n" % (subject, id(wire), len(pull), pull))
        taken = []
        while len(taken) < count and (frame := wire.next(0.5)) is not None and frame[1].startswith("$JS.ACK."):
            taken.append((int(frame[1].split(".")[-4]), frame[1]))
        scene.note(f"another worker takes {[at for at, _ in taken]}{' and dies' if dies else ''}")
        if taken and not dies:
            replies = [reply for _, reply in (taken[-1:] if self.ack == "all" else taken)]
            wire.send(b"".join(b"PUB %s 4\r\n+ACK\r\n" % reply.encode() for reply in replies))
            wire.flush()
            numbers, last = {at for at, _ in taken}, taken[-1][0]
            mine = [
                r for r in scene.model.live(self.name)
                if r.position in numbers or (self.ack == "all" and r.position <= last)
            ]  # fmt: skip
            scene.model.take(mine, "another worker has done it", silent=True)
        wire.close()

    def _purge(self) -> None:
        if self.there:
            live = self.scene.model.live(self.name)
            self.nats.admin.purge(self.name)
            self.scene.note(f"purge of {self.name}")
            self.scene.model.take(live, "purge", silent=True)

    def _delete_consumer(self) -> None:
        if not self.there:
            return
        live = self.scene.model.live(self.name)
        with suppress(ApiError):  # it may be gone already
            self.nats.admin.calls.call(f"CONSUMER.DELETE.{self.name}.shared")
        self.scene.note("the consumer is deleted")
        self.awaited = False
        if self.retention == "interest":
            self.scene.model.take(live, "nobody waited for it any more", silent=True)
        self.scene.cause("the consumer is deleted", (PenstockError, "consumer"), final=False, mend=self._mend)

    def _mend(self) -> None:
        if self.there:
            try:
                self._make_consumer()
            except ApiError as error:
                self.scene.note(f"the consumer is there: {error}")

    def _recreate(self) -> None:
        if self.there:
            live = self.scene.model.live(self.name)
            self.nats.admin.delete(self.name)
            self.scene.note(f"{self.name} is made again")
            self.scene.model.take(live, "the stream was deleted", silent=True)
            self.scene.cause("the stream was deleted", (PenstockError, "stream|consumer"), final=False)
            self._create()

    def _came_back(self, wiped: bool) -> None:
        if wiped and self.there:
            self.there = False
            self.scene.model.take(self.scene.model.live(self.name), "the server lost it", silent=True)
            self.scene.cause("the server lost it", (PenstockError, "stream|consumer"), final=False, mend=self.settle)

    def _deny(self) -> None:
        what = [f"$JS.API.CONSUMER.MSG.NEXT.{self.name}.>", "$JS.ACK.>", "$JS.API.CONSUMER.INFO.>"]
        subject = self.scene.dice.choice(what)
        self.nats.refusal(self.scene, [subject], f"{subject} is denied")

    def rows(self, batch: pa.RecordBatch) -> list[Row]:
        columns = batch.select(["value", "headers", "subject"]).to_pylist()
        return [of_body(each["value"], pairs(each["headers"]), each["subject"]) for each in columns]

    def interrupted(self) -> None:
        pass

    def settle(self) -> None:
        self.nats.allow()
        if not self.there:
            self._create()
        else:
            self._mend()

    def drained(self) -> bool:
        """Whether every message has come: those of others that died come again after a while."""
        time.sleep(0.02)
        return all(r.gone or r.number in self.scene.read for r in self.scene.model.records.values())

    def complaints(self) -> list[str]:
        return []

    def close(self) -> None:
        pass
