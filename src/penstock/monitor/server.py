"""The HTTP server in a thread of its own. Knows uvicorn, addresses and TLS."""

import logging
import secrets
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

import uvicorn
from starlette.types import ASGIApp

from penstock.errors import ConnectError, OptionError
from penstock.monitor.app import is_loopback

STOPS_WITHIN = 5.0


@dataclass(frozen=True)
class Address:
    """Where the server listens, and with what. Port 0 takes any that is free."""

    host: str = "127.0.0.1"
    port: int = 0
    cert: str | None = None
    cert_key: str | None = None
    key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not is_loopback(self.host) and not self.key:
            raise OptionError(
                f"'{self.host}' can be reached by others: set a key (PENSTOCK_API_KEY), which they then must send."
            )
        if (self.cert is None) != (self.cert_key is None):
            raise OptionError("a certificate and its key belong together: set both, or none.")
        if self.cert is not None:
            try:
                ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(self.cert, self.cert_key)
            except (OSError, ssl.SSLError) as error:
                raise OptionError(
                    f"the certificate '{self.cert}' with the key '{self.cert_key}' cannot be used: {error}. Both must "
                    "be files in PEM, of the same pair."
                ) from None

    def require_free(self) -> None:
        """A ConnectError where somebody else listens there already."""
        self.listening().close()

    def listening(self) -> socket.socket:
        """A socket that is bound to it. A ConnectError where that cannot be."""
        bound = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((self.host, self.port))
        except OSError as error:
            bound.close()
            raise ConnectError(
                f"nothing can listen at {self.host}:{self.port}: {error.strerror}. Name another port."
            ) from None
        return bound

    @classmethod
    def parse(cls, text: str, **more: str | None) -> Self:
        """From `host:port`, `port` or `host`."""
        host, _, port = text.rpartition(":") if ":" in text.rpartition("]")[2] else (text, "", "")
        if not port and text.isdecimal():
            host, port = "127.0.0.1", text
        if port and not (port.isdecimal() and int(port) < 65536):
            raise OptionError(f"'{text}' is no address such as 127.0.0.1:8080.")
        return cls(host.strip("[]") or "127.0.0.1", int(port or 0), **more)


class Server:
    """Serves an application until it is stopped. `end` is called before: answers that never end must end by it."""

    def __init__(self, app: ASGIApp, address: Address, end: Callable[[], None] | None = None):
        self.address, self._end = address, end
        self._socket = address.listening()
        self._socket.listen(128)  # who asks from now on waits until it answers
        config = uvicorn.Config(
            app, log_level="error", access_log=False, ssl_certfile=address.cert, ssl_keyfile=address.cert_key,
            timeout_graceful_shutdown=1, lifespan="on",
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="penstock-http", daemon=True)

    @property
    def url(self) -> str:
        """Where it answers."""
        host, port = self._socket.getsockname()[:2]
        named = f"[{host}]" if ":" in host else host
        return f"{'https' if self.address.cert else 'http'}://{named}:{port}"

    def start(self) -> Self:
        """Begin to answer."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Answer what was asked, and end."""
        # Who is cut off in the middle of a request would be told with a traceback each.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        if self._end is not None:
            self._end()
        self._server.should_exit = True
        self._thread.join(STOPS_WITHIN)
        with suppress(OSError):
            self._socket.close()

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])


def new_key() -> str:
    """A key that nobody can guess."""
    return secrets.token_urlsafe(24)
