"""Connections to S2 with the user's options, and the errors for S2's refusals. Knows addresses, secrets and errors; no
streams.
"""

from contextlib import closing
from typing import Any

from penstock.clients.answers import an_object, field, objects
from penstock.clients.s2.http import Connection, Request, Response
from penstock.clients.s2.options import S2Options
from penstock.errors import ConnectError, Disconnected, PenstockError
from penstock.kit import process_cache as pool

# Statuses after which the same request may succeed: the server is busy or restarting.
BUSY = (408, 429, 500, 502, 503, 504)


class ApiError(PenstockError):
    """S2 refused a request; `code` is its own."""

    def __init__(self, status: int, answer: dict[str, Any]):
        self.status, self.answer = status, answer
        self.code = str(answer.get("code", ""))
        super().__init__(f"{answer.get('message') or answer or 'no reason given'} ({status} {self.code})".strip())

    @property
    def is_gone(self) -> bool:
        """Whether the stream does not exist or is being deleted."""
        return self.code in ("stream_not_found", "stream_deletion_pending")


def refused(status: int, answer: dict[str, Any]) -> PenstockError:
    """The error for a refusal. One after which the same request may succeed is a Disconnected."""
    error = ApiError(status, answer)
    if status in BUSY or error.code == "transaction_conflict":
        return Disconnected(f"S2 is busy: {error}")
    if status == 401 or error.code == "permission_denied":
        return ConnectError(
            f"S2 refuses the access token: {error}. Check the option 'accessToken' or 'accessTokenFile', or the "
            "environment variable S2_ACCESS_TOKEN, whichever it comes from, and what the token allows."
        )
    if error.code == "decryption_failed":
        return ConnectError(
            f"S2 cannot decrypt the stream: {error}. Check the option 'encryptionSecret' or 'encryptionKeyFile'."
        )
    return error


def checked(response: Response) -> Response:
    """The response, where its status is a success; otherwise raises its error."""
    if 200 <= response.status < 300:
        return response
    raise refused(response.status, response.json())


def connect(options: S2Options) -> Connection:
    """A connection to the basin with the user's secrets, from the pool or new."""
    headers = _headers(options)
    if options.names_basin():
        headers["s2-basin"] = options.basin
    if key := options.secret("encryption_key"):
        headers["s2-encryption-key"] = key

    def make() -> Connection:
        try:
            return Connection(options.base(), headers, options.connect_timeout, options.request_timeout, options.tls_ca)
        except Disconnected as error:
            raise Disconnected(f"{error}: check {options.places()}, and that S2 is there") from None

    return pool.take(_key(options), make)


def keep(options: S2Options, connection: Connection) -> None:
    """Give a connection back to the pool after use; close it where it cannot be used again."""
    if connection.alive():
        pool.keep(_key(options), connection)
    else:
        connection.close()


def _key(options: S2Options) -> tuple[Any, ...]:
    # The current secrets are in the key: a file may hold another one later.
    secrets = hash((options.reveal("access_token"), options.reveal("encryption_key")))
    return ("s2", secrets, *(getattr(options, name) for name in S2Options.model_fields))


def _headers(options: S2Options) -> dict[str, str]:
    token = options.secret("access_token")
    return {"user-agent": "penstock"} | ({"authorization": f"Bearer {token}"} if token else {})


def basins(options: S2Options, account: str) -> list[str]:
    """The names of the account's basins; none where that fails: a token may not allow listing. The encryption key is
    not sent.
    """
    try:
        connection = Connection(
            account, _headers(options), options.connect_timeout, options.request_timeout, options.tls_ca
        )
        with closing(connection):
            answer = an_object(checked(connection.ask([Request("GET", "/v1/basins?limit=1000")])[0]).body, "S2")
            return [field(entry, "name", str) for entry in objects(answer, "basins")]
    except PenstockError:
        return []
