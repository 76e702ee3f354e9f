"""The way from the query to a server, and what befalls it."""

import time
from collections.abc import Callable

from operators.scene import AWAY, Operator, Scene
from penstock.testing.proxy import Proxy


class Link:
    """A way that can be cut, held up, slowed down and closed."""

    def __init__(self, scene: Scene, port: int):
        self.scene, self.proxy = scene, Proxy(port)
        self.port = self.proxy.port

    def operators(self) -> list[Operator]:
        return [
            Operator("the connection is cut", self._bad(self.proxy.cut), 1.0),
            Operator("the connection will be cut", self._bad(lambda: self._soon("cut", 3000)), 2.0),
            Operator("the connection will hang", self._bad(lambda: self._soon("stall", 1000)), 0.3),
            Operator("the server cannot be reached for a moment", self._bad(self._away), 1.0),
            Operator("the link is slow", self._slow, 1.0),
        ]

    def _bad(self, do: Callable[[], None]) -> Callable[[], None]:
        def act() -> None:
            self.scene.disturbed = True
            self.scene.cause("the connection was bad", AWAY, final=False)
            do()

        return act

    def _soon(self, step: str, most: int) -> None:
        after = self.scene.dice.randint(1, most)
        self.scene.note(f"{step} after {after} bytes")
        self.proxy.soon(step, after)

    def _away(self) -> None:
        self.proxy.reachable = False
        self.proxy.cut()
        time.sleep(self.scene.dice.choice([0.01, 0.1, 0.4]))
        self.proxy.reachable = True

    def _slow(self) -> None:
        """Slow, and nothing else: no reason to complain."""
        self.proxy.rate = self.scene.dice.choice([200_000, 2_000_000])
        self.proxy.delay = self.scene.dice.choice([0.0, 0.005])
        self.scene.note(f"{self.proxy.rate:g} bytes a second, {self.proxy.delay:g}s later")

    def settle(self) -> None:
        self.proxy.rate, self.proxy.delay, self.proxy.plan = 0.0, 0.0, []

    def close(self) -> None:
        self.proxy.refuse()
