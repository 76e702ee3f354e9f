"""Questions to a server that may go away: a lost connection is made anew, within reconnectTimeout. Knows the client."""

from collections.abc import Callable
from typing import TypeVar

from penstock.clients.jetstream.calls import ApiError, Calls
from penstock.clients.nats.client import Connection
from penstock.errors import Disconnected
from penstock.kit.retry import Retry

T = TypeVar("T")
# The server says so while a server that a stream needs is away: it may come back.
NO_PEERS = 10005
# And this where the files of a stream that was just deleted are not gone yet.
STORE_IN_USE = 10049


def may_pass(error: ApiError) -> bool:
    """Whether the server may take the same later: a server of the cluster is away, or old files are not gone yet."""
    return error.code == STORE_IN_USE or (error.code == NO_PEERS and "offline" in str(error))


class Asking:
    """The calls of a connection, and of those that take its place. The caller closes the first one, `close` others."""

    def __init__(self, calls: Calls):
        self._first, self._calls = calls, calls
        self._is_lost = False

    def run(self, what: str, ask: Callable[[Calls], T]) -> T:
        """The answer of `ask`, which may be called several times: it must look at what its last call has done."""
        options = self._first.connection.options
        return Retry(what, timeout=options.reconnect_timeout).run(lambda: self._once(ask))

    def _once(self, ask: Callable[[Calls], T]) -> T:
        try:
            if self._is_lost:
                self._open()
            return ask(self._calls)
        except Disconnected:
            self._is_lost = True
            raise
        except ApiError as error:
            if may_pass(error):
                raise Disconnected(str(error)) from None
            raise

    def _open(self) -> None:
        self.close()
        options = self._first.connection.options
        connection = Connection(options)
        self._calls = Calls(connection, options, self._first.ledger)
        self._is_lost = False

    def close(self) -> None:
        """Close what was opened here."""
        if self._calls is not self._first:
            self._calls.connection.close()
