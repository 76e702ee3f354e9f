"""A plain subscription of our own, as any old subscriber has one: it is in no queue group, and takes no message from
anybody. Runs in a thread, on a connection of its own. Knows when it was interrupted; not what is done with messages.
"""

import threading
import time
from collections.abc import Callable, Sequence

from penstock.clients.nats import wire
from penstock.clients.nats.client import Connection
from penstock.clients.nats.options import NatsOptions
from penstock.clients.nats.subjects import intersect
from penstock.errors import Disconnected, PenstockError
from penstock.operate.migrate.traffic import Message, messages, subscriptions

# The name of our connections in reports of the server: they are not among the subscribers.
NAME = "penstock-migrate"
# Seconds between two looks. Between them, messages wait in the socket.
PAUSE = 0.01
# Seconds for the servers of a cluster to learn of a subscription, and to answer when asked whether they did.
INTEREST = 5.0
# The first number of a subscription of ours; our inboxes have those before.
_FIRST = 1000


class Listener:
    """Listens from `open` to `close`. `take` gets the messages, in this thread. After a look, all that the server had
    for us before is taken: it answers a PING behind them. Where filters overlap, `once` is needed: a server sends a
    message to each of them.
    """

    def __init__(
        self,
        options: NatsOptions,
        filters: Sequence[str],
        take: Callable[[Sequence[Message]], None],
        *,
        once: bool = False,
    ):
        self.options = options.model_copy(update={"connection_name": NAME})
        self.filters, self._take, self._once = filters, take, once
        self.lost: PenstockError | None = None  # why it was interrupted
        self.until = 0.0  # when the last look was complete; monotonic
        self.covered = 0.0  # when it began: what the server had for us by then is taken
        self.heard_probes: set[bytes] = set()
        self._stop, self._looks = threading.Event(), 0
        self._looked = threading.Condition()

    def open(self) -> None:
        """Subscribe. When this returns, the server that we are connected to knows of it. A Denied where the account may
        not subscribe.
        """
        self._connection = Connection(self.options)
        try:
            for number, text in enumerate(self.filters, start=_FIRST):
                self._connection.send(b"SUB %s %d\r\n" % (text.encode(), number))
            # Behind the others: a server that sends to this one knows of them too.
            _, self._probe = self._connection.subscribe()
            self._look()
        except BaseException:
            self._connection.close()
            raise
        self._thread = threading.Thread(target=self._run, name="penstock-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._stop.set()
        self._thread.join()
        self._connection.close()

    @property
    def server(self) -> str:
        """The name of the server that we are connected to."""
        return str(self._connection.info.get("server_name", ""))

    def wait_for_look(self, timeout: float) -> bool:
        """Wait until a look that began after this call is complete. False where that takes too long, or it is lost."""
        with self._looked:
            # The look that is on its way began before: the one behind it counts.
            due = self._looks + 2
            self._looked.wait_for(lambda: self._looks >= due or self.lost is not None, timeout)
            return self._looks >= due

    def probe(self) -> tuple[list[str], list[str]]:
        """Which servers of the cluster are known to send us what is published there, and which could not be asked. Each
        gets a message to an inbox of ours, until it arrives.
        """
        known: list[str] = []
        unknown: list[str] = []
        for url in self._others():
            try:
                other = Connection(
                    self.options.model_copy(
                        update={"servers": (url,), "connect_timeout": 2.0, "reconnect_timeout": 2.0}
                    )
                )
            except PenstockError:
                unknown.append(url)
                continue
            try:
                (known if self._reaches(other, url) else unknown).append(url)
            except PenstockError:
                unknown.append(url)
            finally:
                other.close()
        return known, unknown

    def _others(self) -> list[str]:
        """The addresses of other servers, as ours tells them."""
        told = self._connection.info.get("connect_urls") or []
        scheme = "tls://" if any(server.startswith("tls://") for server in self.options.servers) else "nats://"
        return [f"{scheme}{url}" for url in told if isinstance(url, str) and "@" not in url]

    def _reaches(self, other: Connection, url: str) -> bool:
        subject = f"{self._probe}.{abs(hash(url))}"
        deadline = time.monotonic() + INTEREST
        while time.monotonic() < deadline and self.lost is None:
            other.publish(subject)
            other.flush()
            if self.wait_for_look(INTEREST) and subject.encode() in self.heard_probes:
                return True
        return False

    def _run(self) -> None:
        try:
            while not self._stop.wait(PAUSE):
                self._look()
        except PenstockError as error:
            self.lost = error
        except Exception as error:  # whoever waits for this thread must learn of it
            self.lost = Disconnected(f"listening failed: {error}")
        finally:
            with self._looked:
                self._looked.notify_all()

    def _look(self) -> None:
        began = time.monotonic()
        self._connection.flush(self._keep)
        self.until, self.covered = time.monotonic(), began
        with self._looked:
            self._looks += 1
            self._looked.notify_all()

    def _keep(self, scan: wire.Scan) -> None:
        if scan.messages is None:
            return
        probe = self._probe.encode() + b"."
        came = list(messages(scan.messages))
        if self._once:
            numbers = subscriptions(scan.messages)
            came = [each for each, number in zip(came, numbers, strict=True) if self._is_first(each, number)]
        probes = {message.subject for message in came if message.subject.startswith(probe)}
        if probes:
            self.heard_probes |= probes
            came = [message for message in came if message.subject not in probes]
        if came:
            self._take(came)

    def _is_first(self, message: Message, number: int) -> bool:
        """Whether no subscription of ours before this one gets the message too."""
        subject = message.subject.decode(errors="replace")
        return not any(intersect(subject, text) for text in self.filters[: max(0, number - _FIRST)])
