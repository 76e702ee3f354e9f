"""One stream that is being appended to: batches on their way, and the answers to them. Knows requests and answers;
nothing of what the batches mean.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import suppress

from penstock.clients.s2 import wire
from penstock.clients.s2.calls import PROTO, SESSION, path
from penstock.clients.s2.http import Connection, Request
from penstock.clients.s2.options import S2Options
from penstock.clients.s2.reach import connect, keep, refused
from penstock.clients.s2.wire import Batch
from penstock.errors import Disconnected, PenstockError, ProtocolError


class Session:
    """Appends in order, with answers in order. The first that fails ends it, and none behind it is stored.

    Batches overlap in one long request, unless that is not to be `shared`: then each has one of its own.
    """

    def __init__(self, options: S2Options, stream: str, *, shared: bool = True):
        self.options, self.stream, self.shared = options, stream, shared
        self.unacked: deque[Batch] = deque()
        self.size = 0  # of what is on its way
        self._connection: Connection | None = None
        self._answers: Iterator[bytes] | None = None
        self._frames = wire.Deframer()
        self._acks: deque[tuple[int, int]] = deque()
        self._failure: PenstockError | None = None

    @property
    def is_open(self) -> bool:
        """Whether it holds a connection."""
        return self._connection is not None

    def send(self, batch: Batch) -> None:
        """Put a batch on its way. Raises what S2 has refused meanwhile, also where that shows only in that it takes no
        more bytes.
        """
        if self._connection is None or (self._connection.closed and not self.shared):
            self._connection = connect(self.options)
            if self.shared:
                self._connection.open(Request("POST", path(self.stream), SESSION))
        elif self.shared:
            self._hear(self._connection)
        self.unacked.append(batch)
        self.size += len(batch.message)
        with suppress(Disconnected):  # it is raised below, behind what was answered before
            if self.shared:
                self._connection.piece(wire.frame(batch.message, self.options.compression))
            else:
                self._connection.post(Request("POST", path(self.stream), PROTO, batch.message))
            return
        if self.shared:
            self._hear(self._connection)
        else:
            self._wait()

    @property
    def answered(self) -> bool:
        """Whether `receive` has an answer at hand."""
        return bool(self._acks)

    def receive(self) -> Batch:
        """Wait for the next answer: the batch that it is for. Raises what S2 refuses."""
        while not self._acks:
            if self._failure is not None:
                raise self._failure
            self._wait()
        first, end = self._acks.popleft()
        batch = self.unacked.popleft()
        self.size -= len(batch.message)
        if end - first != batch.records:
            raise ProtocolError(f"S2 says that {end - first} records were stored, but {batch.records} were sent.")
        return batch._replace(at=first)

    def close(self) -> None:
        """End the session, all answers being there, and give the connection back."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            if self.shared:
                connection.end()
                for _ in self._answers or iter(()):
                    pass
            keep(self.options, connection)
        except Disconnected:
            connection.close()

    def drop(self) -> None:
        """Throw the connection away, with whatever is on its way."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _hear(self, connection: Connection) -> None:
        """Take the answers that are there already."""
        while self._failure is None and connection.heard():
            self._wait()
        if self._failure is not None:
            raise self._failure

    def _wait(self) -> None:
        assert self._connection is not None
        if not self.shared:
            response = self._connection.response()
            if response.status != 200:
                raise refused(response.status, response.json())
            self._acks.append(wire.append_ack(response.body))
            return
        if self._answers is None:
            response, self._answers = self._connection.answer()
            if response.status != 200:
                raise refused(response.status, response.json())
        piece = next(self._answers, None)
        if piece is None:
            raise Disconnected(f"{self._connection} ended the session")
        for frame in self._frames.feed(piece):
            if frame.terminal:  # the answers before it count
                failure = wire.failure(frame)
                self._failure = refused(failure.status, failure.answer)
                return
            self._acks.append(wire.append_ack(frame.body))
