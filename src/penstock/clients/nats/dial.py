"""From an address to a socket: TCP, TLS and the server's first line, INFO. Knows no more of the protocol."""

import socket
import ssl
import time
from typing import Any, NamedTuple

from penstock.clients.nats import wire
from penstock.clients.nats.options import NatsOptions
from penstock.errors import ConnectError, Disconnected, OptionError, ProtocolError


class Address(NamedTuple):
    """The address of a server."""

    host: str
    port: int
    tls: bool

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def address(text: str) -> Address:
    """From nats://host:port. Without a scheme there is no TLS; without a port it is 4222."""
    scheme, _, rest = text.rpartition("://")
    host, _, port = rest.rstrip("/").rpartition(":")
    if not host or not port.isdigit():
        host, port = rest.rstrip("/"), "4222"
    return Address(host.strip("[]"), int(port), scheme == "tls")


def dial(server: Address, options: NatsOptions) -> tuple[socket.socket, dict[str, Any]]:
    """A connected socket, with TLS where the options or the server ask for it, and the INFO that was read from it."""
    raw = socket.create_connection(server[:2], timeout=options.connect_timeout)
    try:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        if options.tls_handshake_first:
            secured = _secure(raw, server, options, {})
            return secured, _read_info(secured, options.connect_timeout)
        info = _read_info(raw, options.connect_timeout)
        # tlsCa or tlsCert implies TLS: no password may go over a plain connection by mistake.
        wanted = options.tls or options.tls_ca or options.tls_cert or server.tls
        if not wanted and not info.get("tls_required"):
            return raw, info
        if not (info.get("tls_required") or info.get("tls_available")):
            raise OptionError(f"the options ask for TLS, but {server} has none.")
        return _secure(raw, server, options, info), info
    except BaseException:
        raw.close()
        raise


def _read_info(raw: socket.socket, timeout: float) -> dict[str, Any]:
    """The server's first line, read byte by byte: what follows may be TLS."""
    line = b""
    deadline = time.monotonic() + timeout
    raw.settimeout(timeout)
    while not line.endswith(b"\r\n"):
        if time.monotonic() > deadline or len(line) > 1 << 20:
            raise Disconnected("sent no greeting of NATS")
        byte = raw.recv(1)
        if not byte:
            raise Disconnected("closed the connection before greeting")
        line += byte
        if len(line) == 5 and line != b"INFO ":
            raise Disconnected(f"is no NATS server: it greets with {line!r}")
    try:
        return wire.info(line[5:])
    except ProtocolError as error:
        raise Disconnected(f"is no NATS server: {error}") from None


def _secure(raw: socket.socket, server: Address, options: NatsOptions, info: dict[str, Any]) -> socket.socket:
    if info.get("tls_verify") and not options.tls_cert:
        raise ConnectError(f"{server} wants a certificate of ours. Set tlsCert and tlsKey.")
    try:
        context = ssl.create_default_context(cafile=str(options.tls_ca) if options.tls_ca else None)
        if options.tls_cert:
            context.load_cert_chain(str(options.tls_cert), str(options.tls_key) if options.tls_key else None)
    except (OSError, ssl.SSLError) as error:
        raise OptionError(f"cannot use the files in tlsCa, tlsCert or tlsKey: {reason(error)}") from None
    try:
        return context.wrap_socket(raw, server_hostname=server.host)
    except ssl.SSLError as error:
        if not isinstance(error, ssl.SSLCertVerificationError) and "alert" not in str(error).lower():
            raise  # the connection broke, as when a server restarts: another server may work
        raise ConnectError(
            f"TLS with {server} failed: {reason(error)}. Check tlsCa, tlsCert, and that the name in 'servers' is in "
            "the server's certificate."
        ) from None


def peer_certificate(server: Address, options: NatsOptions) -> bytes | None:
    """The certificate of a server in DER, also one that is not to be trusted; None where it uses no TLS. Nothing is
    sent but the handshake: no credentials. An OSError or a PenstockError where it cannot be had.
    """
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection(server[:2], timeout=options.connect_timeout) as raw:
        if not options.tls_handshake_first:
            info = _read_info(raw, options.connect_timeout)
            if not (info.get("tls_required") or info.get("tls_available")):
                return None
        with context.wrap_socket(raw, server_hostname=server.host) as secured:
            return secured.getpeercert(binary_form=True)


def reason(error: BaseException) -> str:
    """The reason of an error, in words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
