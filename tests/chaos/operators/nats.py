"""A NATS server of the rounds' own, and what its operators do to it."""

import base64
import json
import shutil
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nats_servers import Admin
from operators.model import Headers
from operators.scene import AWAY, DENIED, Operator, Scene
from penstock.clients.jetstream.calls import ApiError
from penstock.testing.nats_server import NatsServer

LIMITS = {"reconnectTimeout": "3s", "requestTimeout": "3s", "connectTimeout": "2s"}
NO_STREAM, NO_MESSAGE = 10059, 10037
KEEPER = "KEEPER"


class Nats:
    """The server. `spark` is the user of the query, whose permissions may be taken away; `admin` may do everything."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.server = NatsServer(folder, config=self._config())
        self.server.start()
        self._admin: Admin | None = None
        self.denied: Sequence[str] = ()
        self.scene: Scene | None = None
        self.leaves: list[Callable[[bool], None]] = []  # what to do before it goes: True where it will lose all
        self.fragile = False  # whether it must not go while somebody writes: nobody would know what was there
        self.forgets: list[Callable[[bool], None]] = []  # what to do when it comes back: True where it has lost all

    @property
    def admin(self) -> Admin:
        if self._admin is None or not self._admin.connection.alive():
            self._admin = Admin(self.server.url, user="admin", password="admin")
        return self._admin

    def enter(self, scene: Scene) -> None:
        """A round begins."""
        if self.scene is scene:
            return
        self.scene, self.leaves, self.forgets, self.fragile = scene, [], [], False
        self.allow()
        for name in self.admin.calls.names():
            if name != KEEPER:
                self.admin.delete(name)
        self._keep()

    def _keep(self) -> None:
        """With its last stream an account loses its folder, and a stream that is made just then has none."""
        if self.info(KEEPER) is None:
            self.admin.create(KEEPER)

    def options(self, port: int | None = None) -> dict[str, str]:
        return {
            "servers": f"nats://127.0.0.1:{port or self.server.port}",
            "user": "spark",
            "password": "spark",
            **LIMITS,
        }

    def deny(self, subjects: Sequence[str]) -> None:
        """The query's user may no longer publish to these."""
        self._reload(subjects)

    def allow(self) -> None:
        if self.denied:
            self._reload(())

    def operators(self) -> list[Operator]:
        return [
            Operator("the server is restarted", lambda: self.restart(wipe=False), 1.0, quiet=self.fragile),
            Operator("the server loses its disk", lambda: self.restart(wipe=True), 0.3, quiet=True),
        ]

    def restart(self, *, wipe: bool) -> None:
        """It ends, politely or not, and comes back at once or later, with what it had on disk or without."""
        scene = self.scene
        assert scene is not None
        scene.disturbed = True
        name = "the server comes back without its data" if wipe else "the server is restarted"
        scene.cause(name, AWAY, final=False)
        for leave in self.leaves:
            leave(wipe)
        if scene.chance(0.5):
            self.server.stop()
        else:
            self.server.kill()
        if wipe:
            shutil.rmtree(self.folder / "data", ignore_errors=True)
        time.sleep(scene.dice.choice([0, 0, 0.05, 0.3]))
        self.server.start()
        self._keep()
        for forget in self.forgets:
            forget(wipe)

    def close(self) -> None:
        self.server.stop()

    def _config(self, denied: Sequence[str] = ()) -> str:
        permissions = f", permissions: {{ publish: {{ deny: {json.dumps(list(denied))} }} }}" if denied else ""
        return f"""
        jetstream {{ store_dir: "{self.folder / "data"}" }}
        accounts {{ A {{ jetstream: enabled, users: [
            {{ user: admin, password: admin }}, {{ user: spark, password: spark{permissions} }} ] }} }}
        """

    def _reload(self, denied: Sequence[str]) -> None:
        self.denied = denied
        self.server.config = self._config(denied)
        file, log = self.folder / "server.conf", self.folder / "server.log"
        before = log.read_text().count("Reloaded server configuration")
        head = file.read_text().splitlines()[:2]
        file.write_text("\n".join(head) + "\n" + self.server.config)
        assert self.server.process is not None
        self.server.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 5
        while log.read_text().count("Reloaded server configuration") == before:
            assert time.monotonic() < deadline, "the server did not read its configuration again"
            time.sleep(0.002)

    def info(self, stream: str) -> dict[str, Any] | None:
        """What the server says of a stream; None where there is none."""
        try:
            return self.admin.calls.call(f"STREAM.INFO.{stream}")
        except ApiError as error:
            if error.code != NO_STREAM:
                raise
            return None

    def update(self, stream: str, **config: Any) -> None:
        info = self.info(stream)
        assert info is not None
        self.admin.calls.call(f"STREAM.UPDATE.{stream}", info["config"] | config)

    def messages(self, stream: str) -> list[tuple[int, str, bytes, Headers]]:
        """All that a stream holds, message by message, as the server's own API has it."""
        info = self.info(stream)
        if info is None or not info["state"]["messages"]:
            return []
        first, last = info["state"]["first_seq"], info["state"]["last_seq"]
        asked = [(f"$JS.API.STREAM.MSG.GET.{stream}", b'{"seq": %d}' % at) for at in range(first, last + 1)]
        found = []
        for low in range(0, len(asked), 500):
            for reply in self.admin.connection.requests(asked[low : low + 500]):
                answer = json.loads(reply.payload)
                if "error" in answer:
                    assert answer["error"]["err_code"] == NO_MESSAGE, answer
                    continue
                message = answer["message"]
                body, block = (base64.b64decode(message.get(name, "")) for name in ("data", "hdrs"))
                found.append((message["seq"], message["subject"], body, fields(block)))
        return found

    def refusal(self, scene: Scene, subjects: Sequence[str], name: str) -> None:
        """A permission is revoked, until it is given back."""
        scene.cause(name, *DENIED, final=False, mend=self.allow)
        scene.disturbed = True
        self.deny(subjects)


def fields(block: bytes) -> Headers:
    """The header lines of a message, without those that a sink adds."""
    lines = [line.partition(b": ") for line in block.split(b"\r\n")[1:] if line]
    return tuple((k.decode(), v) for k, _, v in lines if not k.startswith(b"Nats-"))


class Wire:
    """NATS' protocol by hand: what a stranger does, who knows nothing of Penstock."""

    def __init__(self, port: int):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=2)
        self._buffer = b""
        self.send(b'CONNECT {"user": "admin", "pass": "admin", "headers": true, "verbose": false}\r\n')
        self.flush()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def flush(self) -> list[tuple[str, str, bytes, bytes]]:
        """Wait until the server has seen all that was sent; what came in between."""
        self.send(b"PING\r\n")
        found = []
        while (frame := self.next(2.0)) is not None:
            if frame[0] == "PONG":
                return found
            found.append(frame)
        raise TimeoutError("the server does not answer a PING")

    def next(self, timeout: float) -> tuple[str, str, bytes, bytes] | None:
        """The next message, as subject, reply, headers and body; ("PONG", ...) for that; None where none comes."""
        while True:
            line, found, rest = self._buffer.partition(b"\r\n")
            words = line.decode().split(" ") if found else []
            if words and words[0] in ("MSG", "HMSG"):
                size = int(words[-1])
                if len(rest) >= size + 2:
                    self._buffer = rest[size + 2 :]
                    named = words[:-1] if words[0] == "MSG" else words[:-2]
                    edge = int(words[-2]) if words[0] == "HMSG" else 0
                    return words[1], named[3] if len(named) > 3 else "", rest[:edge], rest[edge:size]
            elif words:
                self._buffer = rest
                if words[0] == "PING":
                    self.send(b"PONG\r\n")
                elif words[0] == "PONG":
                    return "PONG", "", b"", b""
                continue
            self.socket.settimeout(timeout)
            try:
                data = self.socket.recv(1 << 16)
            except TimeoutError:
                return None
            if not data:
                raise ConnectionError("the server closed the connection")
            self._buffer += data

    def close(self) -> None:
        self.socket.close()
