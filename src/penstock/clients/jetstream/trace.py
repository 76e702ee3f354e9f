"""Message traces: which server would store a message, and on which subject. Nothing is stored. Knows no sink."""

import time
from typing import NamedTuple

from penstock.clients.answers import an_object, field, objects
from penstock.clients.nats.client import Connection
from penstock.errors import Disconnected

# Seconds to wait for a trace. Servers that support it answer at once, others never.
TRACE_TIMEOUT = 1.0


class Trace(NamedTuple):
    """Where a message would be stored."""

    server: str  # the id of the server that leads the stream; it is new after each start
    subject: str  # after the mappings of accounts and the stream


def trace(connection: Connection, subject: str, stream: str) -> Trace | None:
    """Trace a message to its stream. None where a server before 2.11 or an account on the way hides the trace."""
    if connection.version() < (2, 11):
        return None
    sid, inbox = connection.subscribe()
    block = f"NATS/1.0\r\nNats-Trace-Dest: {inbox}.0\r\nNats-Trace-Only: true\r\n\r\n".encode()
    connection.send(b"HPUB %s %d %d\r\n%s\r\n" % (subject.encode(), len(block), len(block), block))
    deadline = time.monotonic() + TRACE_TIMEOUT
    result = None
    while result is None and (left := deadline - time.monotonic()) > 0:
        try:
            scan = connection.receive(sid, linger=False, timeout=left, kind="any")
        except Disconnected:  # late, or lost: then the next use of the connection fails
            break
        bodies = [frame.payload for frame in scan.others if frame.subject.startswith(inbox.encode())]
        if scan.messages is not None:
            bodies += scan.messages.values.to_pylist()
        result = next(filter(None, (_parse(body, stream) for body in bodies)), None)
    connection.unsubscribe(sid)
    return result


def _parse(body: bytes, stream: str) -> Trace | None:
    """The trace from the leader of the stream; None where it is from a server on the way."""
    answer = an_object(body, "JetStream")
    events, server = objects(answer, "events"), field(answer, "server", dict)
    for event in events:
        if event.get("type") == "js" and event.get("stream") == stream:
            return Trace(field(server, "id", str), field(event, "subject", str, ""))
    return None
