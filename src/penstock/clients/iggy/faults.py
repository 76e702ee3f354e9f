"""What the texts of the SDK's errors mean: it has no codes and no classes. Pure: knows options, no client."""

from collections.abc import Callable

from penstock.clients.iggy.options import IggyOptions
from penstock.errors import ConnectError, Disconnected, PenstockError

# How the texts begin of what another try may mend. An evicted session is unauthenticated; a request that was applied
# without an answer is looked for like any other whose answer is lost.
_LOST = (
    "disconnected", "cannot establish connection", "connection closed", "not connected", "client shutdown",
    "stale client", "tcp error", "io error", "empty response", "unauthenticated", "vsr session",
    "request transiently not committed", "request transiently not accepted", "request already applied",
    "shard communication error", "task execution timeout",
)  # fmt: skip
_NOBODY = (
    "invalid credentials", "invalid username", "invalid password", "invalid user status", "user inactive",
    "invalid personal access token", "personal access token", "unauthenticated",
)  # fmt: skip
_OTHER_VERSION = ("incompatible binary protocol version", "invalid version")
_TLS = ("invalid tls", "failed to add certificate")


class NotFound(ConnectError):  # noqa: N818 - what happened, and the base says that it is an error
    """The stream, topic or partition of a request is not there."""


class OtherVersion(ConnectError):  # noqa: N818 - likewise
    """The server speaks another protocol."""


def of_call(error: Exception, options: IggyOptions) -> PenstockError:
    """What it means that a call failed."""
    said, at = str(error).rstrip(".:, "), options.address
    lower = said.lower()
    if isinstance(error, PenstockError):
        return error
    if isinstance(error, TimeoutError):
        return Disconnected(f"Iggy at {at} did not answer in {options.request_timeout:g}s (requestTimeout)")
    if lower.startswith("unauthorized"):
        return ConnectError(f"Iggy at {at} does not allow user '{options.username}' to do that: {said}. Grant it.")
    if lower.startswith(_OTHER_VERSION):
        return OtherVersion(f"Iggy at {at} speaks another protocol: {said}. Iggy 0.10 does; this build talks to 0.9.")
    if lower.startswith(_LOST):
        return Disconnected(f"lost the connection to Iggy at {at}: {said}")
    return (NotFound if "not found" in lower else ConnectError)(f"Iggy at {at} refuses: {said}.")


def of_connecting(error: Exception, options: IggyOptions, dial: Callable[[], str | None]) -> PenstockError:
    """What it means that there is no connection. `dial` says why the address takes none: the SDK does not."""
    said, at = str(error).rstrip(".:, "), options.address
    lower = said.lower()
    if lower.startswith(_NOBODY):
        if options.reveal("token"):
            return ConnectError(f"Iggy at {at} refused the token: {said}. Check 'token'.")
        return ConnectError(
            f"Iggy at {at} refused the credentials of '{options.username}': {said}. Check 'username' and 'password'."
        )
    if lower.startswith(_TLS):
        return ConnectError(f"TLS with Iggy at {at} failed: {said}. Check 'tlsCa' and 'tlsDomain'.")
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
