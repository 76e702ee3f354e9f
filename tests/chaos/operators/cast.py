"""Who takes part in the rounds: servers that stay, and for each round a source, a target, and the ways to them."""

import os
from pathlib import Path
from typing import Any

from operators import iggy, nats_targets, s2
from operators.core_source import CoreSource
from operators.durable_source import DurableSource
from operators.link import Link
from operators.nats import Nats
from operators.rounds import Round, playing
from operators.scene import Operator, Scene, Source, Target
from operators.stream_source import StreamSource

STREAMS = ["limits", "memory", "capture", "workqueue", "interest", "last"]
SOURCES = [*STREAMS, "explicit", "all", "core", "records", "upsert", "iggy", "iggy"]
TARGETS = ["limits", "memory", "workqueue", "last", "core", "append", "changes", "iggy", "iggy"]


class Servers:
    """Those that serve all rounds, started when first needed."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._nats: Nats | None = None
        self._s2: s2.S2 | None = None

    @property
    def nats(self) -> Nats:
        if self._nats is None:
            self._nats = Nats(self.folder / "nats")
        return self._nats

    @property
    def s2(self) -> s2.S2:
        if self._s2 is None:
            self._s2 = s2.S2(self.folder / "s2")
        return self._s2

    def close(self) -> None:
        for each in (self._nats, self._s2):
            if each is not None:
                each.close()


class Cast:
    """The source and the target of a round. SOURCE and TARGET in the environment name them, else the dice do."""

    def __init__(self, scene: Scene, servers: Servers):
        self.scene, self.servers = scene, servers
        source, target = scene.dice.choice(SOURCES), scene.dice.choice(TARGETS)
        source, target = os.environ.get("SOURCE") or source, os.environ.get("TARGET") or target
        self.iggy = iggy.Iggy(scene) if "iggy" in (source, target) else None
        self.places: list[Any] = []
        self.links: list[Link] = []
        self.source, self.target = self._source(source), self._target(target)

    def _reach(self, place: Any) -> tuple[Any, int | None]:
        """A server, and the port of the way to it where that is not straight."""
        if place not in self.places:
            self.places.append(place)
        if self.scene.chance(0.6):
            return place, None
        self.links.append(Link(self.scene, place.server.port))
        return place, self.links[-1].port

    def _source(self, kind: str) -> Source:
        if kind in ("records", "upsert"):
            return s2.StreamSource(self.scene, *self._reach(self.servers.s2), kind)
        if kind == "iggy":
            return iggy.TopicSource(self.scene, *self._reach(self.iggy))
        if kind == "core":
            return CoreSource(self.scene, *self._reach(self.servers.nats))
        if kind in ("explicit", "all"):
            return DurableSource(self.scene, *self._reach(self.servers.nats), kind)
        return StreamSource(self.scene, *self._reach(self.servers.nats), kind)

    def _target(self, kind: str) -> Target:
        if kind in ("append", "changes"):
            return s2.StreamTarget(self.scene, *self._reach(self.servers.s2), kind)
        if kind == "iggy":
            return iggy.TopicTarget(self.scene, *self._reach(self.iggy))
        if kind == "core":
            return nats_targets.CoreTarget(self.scene, *self._reach(self.servers.nats))
        return nats_targets.StreamTarget(self.scene, *self._reach(self.servers.nats), kind)

    def operators(self) -> list[Operator]:
        return [operator for each in (*self.places, *self.links) for operator in each.operators()]

    def settle(self) -> None:
        for link in self.links:
            link.settle()

    def close(self) -> None:
        self.source.close()
        self.target.close()
        for link in self.links:
            link.close()
        if self.iggy is not None:
            self.iggy.close()


def play(servers: Servers, seed: int) -> Scene:
    """One round. A Failure where it shows something that must not be, with all that happened."""
    with playing(seed) as scene:
        cast = Cast(scene, servers)
        try:
            Round(scene, cast).play()
        finally:
            cast.close()
    return scene
