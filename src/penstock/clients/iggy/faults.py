"""Our errors for those of the SDK, by their texts: they have no codes and no classes. Knows options; no client."""

from collections.abc import Callable

from penstock.clients.iggy.options import IggyOptions
from penstock.errors import ConnectError, Disconnected, PenstockError

# Starts of texts after which a retry may help. "unauthenticated" is a session that the server has evicted; "request
# already applied" is handled like a lost answer.
_LOST = (
    "disconnected", "cannot establish connection", "connection closed", "not connected", "client shutdown",
    "stale client", "tcp error", "io error", "empty response", "unauthenticated", "vsr session",
    "request transiently not committed", "request transiently not accepted", "request already applied",
    "shard communication error", "task execution timeout",
)  # fmt: skip
_REFUSED_LOGIN = (
    "invalid credentials", "invalid username", "invalid password", "invalid user status", "user inactive",
    "invalid personal access token", "personal access token", "unauthenticated",
)  # fmt: skip
_OTHER_VERSION = ("incompatible binary protocol version", "invalid version")
_TLS = ("invalid tls", "failed to add certificate")


class NotFound(ConnectError):  # noqa: N818 - what happened, and the base says that it is an error
    """The stream, topic or partition of a request does not exist."""


class OtherVersion(ConnectError):  # noqa: N818 - likewise
    """The server speaks another protocol."""


def of_call(error: Exception, options: IggyOptions) -> PenstockError:
    """The error for a call that failed."""
    text, at = str(error).rstrip(".:, "), options.address
    lower = text.lower()
    if isinstance(error, PenstockError):
        return error
    if isinstance(error, TimeoutError):
        return Disconnected(f"Iggy at {at} did not answer in {options.request_timeout:g}s (requestTimeout)")
    if lower.startswith("unauthorized"):
        return ConnectError(f"Iggy at {at} does not allow user '{options.username}' to do that: {text}. Grant it.")
    if lower.startswith(_OTHER_VERSION):
        return OtherVersion(f"Iggy at {at} speaks another protocol: {text}. Iggy 0.10 does; this build talks to 0.9.")
    if lower.startswith(_LOST):
        return Disconnected(f"lost the connection to Iggy at {at}: {text}")
    if "not found" in lower:
        return NotFound(f"Iggy at {at} refuses: {text}.")
    return ConnectError(f"Iggy at {at} refuses: {text}.")


def of_connecting(error: Exception, options: IggyOptions, dial: Callable[[], str | None]) -> PenstockError:
    """The error for a failed connection. `dial` returns why the address accepts none, which the SDK does not tell."""
    text, at = str(error).rstrip(".:, "), options.address
    lower = text.lower()
    if lower.startswith(_REFUSED_LOGIN):
        if options.reveal("token"):
            return ConnectError(f"Iggy at {at} refused the token: {text}. Check 'token'.")
        return ConnectError(
            f"Iggy at {at} refused the credentials of '{options.username}': {text}. Check 'username' and 'password'."
        )
    if lower.startswith(_TLS):
        return ConnectError(f"TLS with Iggy at {at} failed: {text}. Check 'tlsCa' and 'tlsDomain'.")
    slow = isinstance(error, TimeoutError)
    if not slow and not lower.startswith(_LOST):
        return of_call(error, options)
    why = dial()
    if why is not None:
        return Disconnected(f"no Iggy server answers at {at} ({why}). Check 'address' and that the server runs.")
    how = f"does not answer in {options.connect_timeout:g}s (connectTimeout)" if slow else "closes the connection"
    tls = "has TLS, as the options ask for" if options.secure() else "wants TLS (tls=true)"
    return Disconnected(
        f"something listens at {at}, but {how} when Iggy's login is sent. Check that 'address' is the TCP port of Iggy "
        f"0.9, 8090 by default, and whether it {tls}."
    )
