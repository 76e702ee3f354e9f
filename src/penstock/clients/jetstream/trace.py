"""What would become of a message: which server would store it, and on which subject. Nothing is stored for that."""

import time
from typing import NamedTuple

from penstock.clients.answers import an_object, field, objects
from penstock.clients.nats.client import Connection
from penstock.errors import Disconnected

# A server that can be traced answers as fast as to any request; one that cannot, never.
PATIENCE = 1.0


class Trace(NamedTuple):
    """Where a message would end."""

    server: str  # the id of the server that leads the stream: a new one whenever it starts
    subject: str  # after all that accounts and the stream make of it


def trace(connection: Connection, subject: str, stream: str) -> Trace | None:
    """Follow a message to its stream; None where servers before 2.11 are on the way, or accounts that hide it."""
    if connection.version() < (2, 11):
        return None
    sid, inbox = connection.subscribe()
    block = f"NATS/1.0\r\nNats-Trace-Dest: {inbox}.0\r\nNats-Trace-Only: true\r\n\r\n".encode()
    connection.send(b"HPUB %s %d %d\r\n%s\r\n" % (subject.encode(), len(block), len(block), block))
    deadline = time.monotonic() + PATIENCE
    found = None
    while found is None and (left := deadline - time.monotonic()) > 0:
        try:
            scan = connection.receive(sid, linger=False, timeout=left, kind="any")
        except Disconnected:  # it is only late, or whoever uses the connection next will see
            break
        told = [frame.payload for frame in scan.others if frame.subject.startswith(inbox.encode())]
        told += [] if scan.messages is None else scan.messages.values.to_pylist()
        found = next(filter(None, (_found(body, stream) for body in told)), None)
    connection.unsubscribe(sid)
    return found


def _found(body: bytes, stream: str) -> Trace | None:
    """What the server that leads the stream tells; None where another one has passed the message on."""
    told = an_object(body, "JetStream")
    stored = (e for e in objects(told, "events") if e.get("type") == "js" and e.get("stream") == stream)
    server = field(told, "server", dict)
    return next((Trace(field(server, "id", str), field(event, "subject", str, "")) for event in stored), None)
