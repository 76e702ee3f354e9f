"""A source of one or several streams, and what may happen to them: messages go, streams go, owners change."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from operators.model import Record, Row
from operators.nats import Nats
from operators.scene import LOSS, OTHER_ROWS, Operator, Scene, of_body, pairs
from penstock.clients.jetstream.calls import ApiError
from penstock.connectors.jetstream import JetStream
from penstock.connectors.nats import CoreNats
from penstock.errors import ConnectError, OptionError, PenstockError
from penstock.planning.planner import Planner
from penstock.spark.connector import Connector

FOLLOWER = "follower"
ADMIN = {"user": "admin", "password": "admin"}


class StreamSource:
    """One stream, or two. `kind`: limits, memory, capture; workqueue, interest, last, which drop messages by design."""

    all = once = replayable = True

    def __init__(self, scene: Scene, nats: Nats, port: int | None, kind: str):
        self.scene, self.nats, self.kind, dice = scene, nats, kind, scene.dice
        nats.enter(scene)
        nats.forgets.append(self._came_back)
        self.connector: type[Connector] = CoreNats if kind == "capture" else JetStream
        self.releases = kind in ("workqueue", "interest", "last")  # messages go by design
        self.names = [f"{scene.name}S{i}" for i in range(2 if kind == "limits" and scene.chance(0.3) else 1)]
        self.filtered = kind != "capture" and scene.chance(0.5)
        # Whether what goes unread can pass without a word: of a queue that is read whole, nobody else takes any.
        self.silent = kind in ("interest", "last") or (kind == "workqueue" and self.filtered)
        self.per_subject = dice.choice([1, 1, 3])
        self.wrong: list[str] = []
        self.direct = kind != "limits" or scene.chance(0.6)
        self.subjects: dict[str, list[str]] = {}  # of each stream that is there, now
        for name in self.names:
            self._create(name)
        self.options = nats.options(port) | self._what()
        self.options |= scene.pace()
        scene.model.from_earliest = self.options.get("startingOffsets", "earliest") == "earliest"
        if kind == "last":
            scene.cause("newer messages took the place of older ones", OTHER_ROWS)
        scene.note(f"source {kind} {self.names}, {self.options}")

    def _what(self) -> dict[str, str]:
        scene, name = self.scene, self.names[0]
        if self.kind == "capture":
            return {"subjects": f"{name}.>", "capture": "true", "captureStream": name, "startingOffsets": "earliest"}
        given = {"startingOffsets": "earliest" if scene.chance(0.8) else "latest"}
        if self.kind == "workqueue":  # which starts at its earliest message, unless the rest may go
            given = scene.dice.choice([{}, {}, {"startingOffsets": "latest", "purgeUnread": "true"}])
        if len(self.names) > 1 and scene.chance(0.5):
            given |= {"streamPattern": f"{scene.name}S.*", "discoveryInterval": "50ms"}
        else:
            given |= {"stream": ",".join(self.names)}
        if self.filtered:
            given |= {"subjects": ",".join(f"{name}.a.>" for name in self.names)}
        if self.kind == "interest" or (self.kind == "limits" and scene.chance(0.2)):
            given |= {"progressConsumer": FOLLOWER}
        if self.kind in ("limits", "memory") and scene.chance(0.3):
            given |= {"readEngine": scene.dice.choice(["consumer", "direct"] if self.direct else ["consumer"])}
        return given

    def _create(self, name: str) -> None:
        config: dict[str, Any] = {"allow_direct": self.direct}
        if self.kind == "memory":
            config["storage"] = "memory"
        if self.kind == "last":
            config["max_msgs_per_subject"] = self.per_subject
        if self.kind in ("workqueue", "interest"):
            config["retention"] = self.kind
        self.subjects[name] = [f"{name}.a.>", f"{name}.b.>"] if self.kind != "capture" else [f"{name}.>"]
        made = self.nats.admin.create(name, *self.subjects[name], **config)
        self.scene.model.born(name, made["created"])
        if self.kind == "interest" and self.filtered:
            # Somebody else waits for the other messages of the stream.
            body = {"stream_name": name, "config": {"durable_name": "other", "ack_policy": "explicit",
                    "filter_subject": f"{name}.b.>"}}  # fmt: skip
            self.nats.admin.calls.call(f"CONSUMER.CREATE.{name}.other", body)

    def _adopt(self) -> None:
        """A query that captures makes its stream by itself, where there is none."""
        name = self.names[0]
        info = self.nats.info(name) if self.kind == "capture" and name not in self.subjects else None
        if info is not None:
            self.subjects[name] = [f"{name}.>"]
            self.scene.model.born(name, info["created"])
            self.scene.note(f"the query has made {name}")

    def publish(self, count: int) -> None:
        """As many messages as the streams take, on four subjects each."""
        scene = self.scene
        self._adopt()
        for name in self.names:
            if name not in self.subjects:
                continue
            held = self.kind != "interest" or self._is_held(name)
            made = []
            for _ in range(count):
                key = f"{name}.{scene.dice.choice('ab')}.k{scene.dice.randrange(4)}"
                if not any(
                    key == text or (text[-1] == ">" and key.startswith(text[:-1])) for text in self.subjects[name]
                ):
                    continue
                record = scene.record(key)
                scene.model.records[record.number] = record
                made.append(record)
            at = self.nats.admin.publish((r.key, r.body, [(k, v.decode()) for k, v in r.headers]) for r in made)
            for record, position in zip(made, at, strict=True):
                record.shard, record.life, record.position = name, len(scene.model.epochs[name]) - 1, position
                record.asked = not self.filtered or ".a." in record.key
                if self.kind == "interest" and not held and (record.asked or not self.filtered):
                    record.gone, record.silent = "nobody waits for it", True
                if self.kind == "last":
                    older = [r for r in scene.model.live(name) if r.key == record.key and r.position <= position]
                    scene.model.take(older[: -self.per_subject], "a newer one took its place", silent=True)
            scene.note(f"{len(made)} messages to {name}, {at[:1]} to {at[-1:]}")

    def _is_held(self, name: str) -> bool:
        """Whether the query's own consumer keeps messages for it."""
        try:
            self.nats.admin.calls.call(f"CONSUMER.INFO.{name}.{FOLLOWER}")
        except ApiError:
            return False
        return True

    def operators(self) -> Sequence[Operator]:
        given = [
            Operator("purge", self._purge, 1.0),
            Operator("purge up to a sequence", lambda: self._purge(part=True), 1.5),
            Operator("purge a subject", self._purge_subject, 1.0),
            Operator("delete a message", self._delete_message, 1.0),
            Operator("make the stream again", self._recreate, 1.0),
            Operator("delete the stream", self._delete, 0.5),
            Operator("lower max_msgs for a moment", self._trim, 1.0),
            Operator("edit the subjects", self._edit, 2.0),
            Operator("revoke a permission", self._deny, 1.0),
            Operator("revoke all permissions for a moment", self._deny_all, 0.5),
        ]
        if self.kind == "workqueue":
            given.append(Operator("delete the durable of the queue", self._delete_owner, 1.0))
            given.append(Operator("somebody else wants to read the queue", self._read_too, 1.0))
            given.append(Operator("another query takes the queue over", self._take_over, 1.0))
        if "progressConsumer" in self.options:
            given.append(Operator("delete the progress consumer", self._delete_follower, 2.0))
        return given

    def _there(self) -> str | None:
        self._adopt()
        names = [name for name in self.names if name in self.subjects]
        return self.scene.dice.choice(names) if names else None

    def _gone(
        self, name: str, records: Sequence[Record], why: str, *, silent: bool = False, always: bool = False
    ) -> None:
        self.scene.note(f"{why}: {len(records)} of {name} are gone")
        self.scene.take(records, why, silent=silent or self.silent, always=always)

    def _purge(self, part: bool = False) -> None:
        if (name := self._there()) is None:
            return
        live = self.scene.model.live(name)
        info = self.nats.info(name)
        assert info is not None
        if part:
            state = info["state"]
            at = self.scene.dice.randint(state["first_seq"], state["last_seq"] + 1)
            self.nats.admin.purge(name, seq=at)
            self._gone(name, [r for r in live if r.position < at], f"purge of {name} below {at}")
        else:
            self.nats.admin.purge(name)
            self._gone(name, live, f"purge of {name}")

    def _purge_subject(self) -> None:
        if (name := self._there()) is None:
            return
        live = self.scene.model.live(name)
        if not live:
            return
        key = self.scene.dice.choice(live).key
        self.nats.admin.purge(name, filter=key)
        # Deletions in the middle are not loss; at the beginning of the stream they look like it.
        self._gone(name, [r for r in live if r.key == key], f"purge of {key}", silent=True)

    def _delete_message(self) -> None:
        if (name := self._there()) is None:
            return
        live = self.scene.model.live(name)
        there = {seq for seq, *_ in self.nats.messages(name)} if self.releases else {r.position for r in live}
        some = [r for r in live if r.position in there]
        if some:
            record = self.scene.dice.choice(some)
            self.nats.admin.delete_message(name, record.position)
            self._gone(name, [record], f"message {record.position} of {name} is deleted", silent=True)

    def _recreate(self) -> None:
        if (name := self._there()) is not None:
            self._delete(name)
            self._create(name)

    def _delete(self, name: str | None = None) -> None:
        name = name or self._there()
        if name is None:
            return
        live = self.scene.model.live(name)
        self.nats.admin.delete(name)
        del self.subjects[name]
        self._lost(name, live, f"stream {name} is deleted")

    def _lost(self, name: str, live: Sequence[Record], why: str) -> None:
        self.scene.note(f"{why}, with {len(live)} messages")
        self.scene.model.take(live, why)
        # It may be found missing, or made again, or be named in an option that nothing matches any more.
        self.scene.cause(
            why, LOSS, (OptionError, "does not exist|no stream|not found"), (PenstockError, "with other rows"),
            (ConnectError, "no stream|not found|gone|consumer"),
        )  # fmt: skip

    def _came_back(self, wiped: bool) -> None:
        """The server did: what was only in memory is gone, or everything is."""
        for name in list(self.subjects):
            if wiped or self.kind == "memory":
                live = self.scene.model.live(name)
                del self.subjects[name]
                self._lost(name, live, f"stream {name} is gone since the server was restarted")

    def _trim(self) -> None:
        if (name := self._there()) is None:
            return
        live = self.scene.model.live(name)
        keep = self.scene.dice.randint(1, max(1, len(live)))
        self.nats.update(name, max_msgs=keep)
        info = self.nats.info(name)
        assert info is not None
        self.nats.update(name, max_msgs=-1)
        first = info["state"]["first_seq"]
        self._gone(name, [r for r in live if r.position < first], f"max_msgs={keep} of {name}")

    def _edit(self) -> None:
        """Subjects are taken out, and others put in; what is stored stays."""
        if (name := self._there()) is None or self.kind == "capture":
            return
        choices = [
            [f"{name}.b.>", f"{name}.c.>"],
            [f"{name}.c.>"],
            [f"{name}.a.>", f"{name}.b.>"],
            [f"{name}.a.k0", f"{name}.b.>"],
        ]
        self.subjects[name] = self.scene.dice.choice(choices)
        self.nats.update(name, subjects=self.subjects[name])
        self.scene.note(f"{name} takes {self.subjects[name]} now")
        self.scene.cause(
            f"the subjects of {name} were edited", (OptionError, "no message can match|no filter in|no stream"),
            final=False, mend=self._restore,
        )  # fmt: skip

    def _restore(self) -> None:
        for name in self.subjects:
            wanted = [f"{name}.a.>", f"{name}.b.>"] if self.kind != "capture" else [f"{name}.>"]
            if self.subjects[name] != wanted:
                self.subjects[name] = wanted
                self.nats.update(name, subjects=wanted)

    def _deny(self) -> None:
        what = ["STREAM.INFO", "STREAM.MSG.GET", "CONSUMER.CREATE", "DIRECT.GET", "STREAM.PURGE", "CONSUMER.>"]
        subject = f"$JS.API.{self.scene.dice.choice(what)}.>"
        self.nats.refusal(self.scene, [subject.replace(">.>", ">")], f"{subject} is denied")

    def _deny_all(self) -> None:
        self.nats.refusal(self.scene, [">"], "everything is denied")

    def _owners(self, name: str) -> list[str]:
        durables = [config.get("durable_name", "") for config in self.nats.admin.calls.consumers(name)]
        return [durable for durable in durables if durable.startswith("penstock")]

    def _delete_owner(self) -> None:
        """The query makes it again, and keeps what it has."""
        if (name := self._there()) is None:
            return
        for durable in self._owners(name):
            self.nats.admin.calls.call(f"CONSUMER.DELETE.{name}.{durable}")
            self.scene.note(f"the durable {durable} of {name} is deleted")

    def _read_too(self) -> None:
        """The server lets nobody, as long as the query's durable stands."""
        if (name := self._there()) is None or not self._owners(name):
            return
        body = {"durable_name": "worker", "ack_policy": "explicit", "filter_subject": f"{name}.a.>"}
        try:
            self.nats.admin.calls.call(f"CONSUMER.CREATE.{name}.worker", {"stream_name": name, "config": body})
        except ApiError:
            self.scene.note(f"nobody else may read {name}")
            return
        self.nats.admin.calls.call(f"CONSUMER.DELETE.{name}.worker")
        self.wrong.append(f"somebody else could read {name}")

    def _take_over(self) -> None:
        """A new query on the same messages, which reads nothing: ours must stop, and lose nothing by it."""
        if (name := self._there()) is None:
            return
        given = {key: value for key, value in self.options.items() if key in ("stream", "subjects")}
        source: Any = JetStream.open_source(JetStream.parse({"servers": self.nats.server.url, **ADMIN, **given}))
        try:
            planner = Planner(source, source.options, "earliest")
            planner.next(planner.initial(), None)
        except PenstockError as error:
            self.scene.note(f"another query could not take {name} over: {error}")
            return
        finally:
            source.close()
        self.scene.note(f"another query has taken {name} over")
        fits = (OptionError, "taken over|another Penstock query")
        self.scene.cause(f"another query took {name} over", fits, final=False, mend=self._delete_owner)

    def _delete_follower(self) -> None:
        if (name := self._there()) is None or not self._is_held(name):
            return
        live = [r for r in self.scene.model.live(name) if r.asked]
        self.nats.admin.calls.call(f"CONSUMER.DELETE.{name}.{FOLLOWER}")
        if self.kind == "interest":
            # What nobody waits for any more is dropped.
            there = {seq for seq, *_ in self.nats.messages(name)}
            lost = [r for r in live if r.position not in there]
            self.scene.note(f"the consumer {FOLLOWER} is deleted, and {len(lost)} messages with it")
            # A restart in just that moment finds another consumer, and all that came since: nobody can tell.
            self.scene.model.take(lost, "the progress consumer was deleted", silent=self.scene.running)
            # So is what comes until the query has made it again.
            self.scene.cause("the progress consumer was deleted", LOSS, (PenstockError, FOLLOWER))

    def rows(self, batch: pa.RecordBatch) -> list[Row]:
        columns = batch.select(["value", "headers", "subject"]).to_pylist()
        return [of_body(each["value"], pairs(each["headers"]), each["subject"]) for each in columns]

    def interrupted(self) -> None:
        pass

    def settle(self) -> None:
        self.nats.allow()
        self._adopt()
        for name in self.names:
            if name not in self.subjects:
                self._create(name)
                self.scene.note(f"{name} is made again")
        self._restore()

    def drained(self) -> bool:
        return True

    def complaints(self) -> list[str]:
        """What the query did not ask for must be there still; where it began behind jobs, these too."""
        found = self.wrong
        for name in self.subjects:
            there = {seq for seq, *_ in self.nats.messages(name)}
            others = [r for r in self.scene.model.live(name) if not (r.asked and self.scene.model.begun(r))]
            if self.kind == "interest" and not self.filtered:
                others = []
            if "purgeUnread" in self.options:
                others = [r for r in others if not r.asked]
            lost = [r.number for r in others if r.position not in there]
            if lost:
                found.append(f"{len(lost)} messages of {name} that were not the query's are gone: {lost[:8]}")
            if self.kind in ("limits", "memory", "capture"):
                gone = [r.number for r in self.scene.model.live(name) if r.position not in there]
                if gone:
                    found.append(f"{len(gone)} messages of {name} are gone, and nobody removed them: {gone[:8]}")
        return found

    def close(self) -> None:
        pass
