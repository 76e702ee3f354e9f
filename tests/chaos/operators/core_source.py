"""A source of core NATS: what nobody listened to is nowhere."""

import time
from collections.abc import Sequence

import pyarrow as pa

from operators.model import Row
from operators.nats import Nats, Wire
from operators.scene import Operator, Scene, of_body, pairs
from penstock.connectors.nats import CoreNats
from penstock.spark.connector import Connector


class CoreSource:
    """Subjects as they come: whoever does not listen has missed it."""

    connector: type[Connector] = CoreNats
    all, once, replayable = True, True, False

    def __init__(self, scene: Scene, nats: Nats, port: int | None):
        self.scene, self.nats, self.name = scene, nats, f"{scene.name}N"
        nats.enter(scene)
        self.options = nats.options(port) | {"subjects": f"{self.name}.>"} | scene.pace()
        scene.note(f"source nats, {self.options}")

    def publish(self, count: int) -> None:
        wire = Wire(self.nats.server.port)
        for _ in range(count):
            record = self.scene.record(f"{self.name}.k{self.scene.dice.randrange(4)}")
            self.scene.model.records[record.number] = record
            block = b"".join(b"%s: %s\r\n" % (k.encode(), v) for k, v in record.headers)
            block = b"NATS/1.0\r\n" + block + b"\r\n" if block else b""
            head = b"HPUB %s %d %d\r\n" % (record.key.encode(), len(block), len(block) + len(record.body))
            if not block:
                head = b"PUB %s %d\r\n" % (record.key.encode(), len(record.body))
            wire.send(head + block + record.body + b"\r\n")
            if not self.scene.running:
                record.gone, record.silent = "nobody listened", True
        wire.flush()
        wire.close()
        self.scene.note(f"{count} messages{'' if self.scene.running else ', and nobody listens'}")

    def operators(self) -> Sequence[Operator]:
        return [Operator("revoke a permission", self._deny, 1.0)]

    def _deny(self) -> None:
        self.nats.refusal(self.scene, [">"], "everything is denied")
        self.interrupted()

    def rows(self, batch: pa.RecordBatch) -> list[Row]:
        columns = batch.select(["value", "headers", "subject"]).to_pylist()
        return [of_body(each["value"], pairs(each["headers"]), each["subject"]) for each in columns]

    def interrupted(self) -> None:
        """What was not committed is lost."""
        mine = [r for r in self.scene.model.records.values() if r.number not in self.scene.read]
        self.scene.model.take(mine, "the run ended", silent=True)

    def settle(self) -> None:
        self.nats.allow()

    def drained(self) -> bool:
        time.sleep(0.02)
        return all(r.gone or r.number in self.scene.read for r in self.scene.model.records.values())

    def complaints(self) -> list[str]:
        return []

    def close(self) -> None:
        pass
