"""An append session on one stream: batches that were sent, and S2's answers to them. Knows requests and answers;
nothing of what is in the batches.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import suppress

from penstock.clients.s2.appends import Batch, append_ack
from penstock.clients.s2.calls import PROTO, SESSION, path
from penstock.clients.s2.frames import Deframer, failure, to_frame
from penstock.clients.s2.http import Connection, Request
from penstock.clients.s2.options import S2Options
from penstock.clients.s2.reach import connect, keep, refused
from penstock.errors import Disconnected, PenstockError, ProtocolError


class Session:
    """Appends batches in order; answers come in the same order. The first failure ends it, and no later batch is
    stored.

    When `shared`, all batches go through one long request. Otherwise each batch is a request of its own.
    """

    def __init__(self, options: S2Options, stream: str, *, shared: bool = True):
        self.options, self.stream, self.shared = options, stream, shared
        self.unacked: deque[Batch] = deque()
        self.size = 0  # bytes of the batches without an answer
        self._connection: Connection | None = None
        self._answers: Iterator[bytes] | None = None
        self._frames = Deframer()
        self._acks: deque[tuple[int, int]] = deque()
        self._failure: PenstockError | None = None

    @property
    def is_open(self) -> bool:
        """Whether it holds a connection."""
        return self._connection is not None

    def send(self, batch: Batch) -> None:
        """Send a batch, without waiting for its answer. Raises the refusal of an earlier batch if it has arrived, also
        where S2 has stopped reading because of it.
        """
        if self._connection is None or (self._connection.closed and not self.shared):
            self._connection = connect(self.options)
            if self.shared:
                self._connection.open(Request("POST", path(self.stream), SESSION))
        elif self.shared:
            self._take_answers(self._connection)
        self.unacked.append(batch)
        self.size += len(batch.message)
        with suppress(Disconnected):  # raised below, after the answers that came before it
            if self.shared:
                self._connection.piece(to_frame(batch.message, self.options.compression))
            else:
                self._connection.post(Request("POST", path(self.stream), PROTO, batch.message))
            return
        if self.shared:
            self._take_answers(self._connection)
        else:
            self._take_answer()

    @property
    def answered(self) -> bool:
        """Whether `receive` returns at once."""
        return bool(self._acks)

    def receive(self) -> Batch:
        """Wait for the next answer: its batch, with the position where it was stored. Raises what S2 refuses."""
        while not self._acks:
            if self._failure is not None:
                raise self._failure
            self._take_answer()
        first, end = self._acks.popleft()
        batch = self.unacked.popleft()
        self.size -= len(batch.message)
        if end - first != batch.records:
            raise ProtocolError(f"S2 says that {end - first} records were stored, but {batch.records} were sent.")
        return batch._replace(at=first)

    def close(self) -> None:
        """End the session after all answers were received, and give the connection back."""
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
        """Close the connection, without waiting for answers."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _take_answers(self, connection: Connection) -> None:
        """Take the answers that have arrived. Raises the failure, if one is among them."""
        while self._failure is None and connection.heard():
            self._take_answer()
        if self._failure is not None:
            raise self._failure

    def _take_answer(self) -> None:
        """Wait for answers: one, or those in the next piece of a shared request."""
        assert self._connection is not None
        if not self.shared:
            response = self._connection.response()
            if response.status != 200:
                raise refused(response.status, response.json())
            self._acks.append(append_ack(response.body))
            return
        if self._answers is None:
            response, self._answers = self._connection.answer()
            if response.status != 200:
                raise refused(response.status, response.json())
        piece = next(self._answers, None)
        if piece is None:
            raise Disconnected(f"{self._connection} ended the session")
        for frame in self._frames.feed(piece):
            if frame.terminal:  # `receive` raises it after the answers before it
                reason = failure(frame)
                self._failure = refused(reason.status, reason.answer)
                return
            self._acks.append(append_ack(frame.body))
