"""Options for connecting to an Iggy server."""

from pathlib import Path
from typing import Self

from pydantic import SecretStr, model_validator

from penstock.options import CountedRetryOptions, Seconds, option


class IggyOptions(CountedRetryOptions):
    """Address, credentials and time limits."""

    address: str = option("127.0.0.1:8090", doc="Address of the server, its TCP port.", place=True)
    username: str = option("iggy", doc="User name.")
    password: SecretStr | None = option(None, doc="Password.", env="IGGY_PASSWORD")
    password_file: Path | None = option(None, doc="File that holds the password.")
    token: SecretStr | None = option(None, doc="Personal access token, instead of user and password.", env="IGGY_TOKEN")
    token_file: Path | None = option(None, doc="File that holds the token.")
    tls: bool = option(False, doc="Use TLS.")
    tls_domain: str | None = option(None, doc="Name in the server's certificate, where it is not that of the address.")
    tls_ca: Path | None = option(None, doc="PEM file of the authorities to trust, instead of the system's.")
    request_timeout: Seconds = option(30.0, doc="The longest wait for an answer.")

    def secure(self) -> bool:
        """Whether to use TLS: tlsCa or tlsDomain implies it, so that no password goes over a plain connection."""
        return bool(self.tls or self.tls_ca or self.tls_domain)

    @model_validator(mode="after")
    def _says_where_and_who(self) -> Self:
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdigit() or "@" in host or "/" in host:
            raise ValueError("address must be host:port, such as 127.0.0.1:8090")
        if not (self.password or self.password_file or self.token or self.token_file):
            raise ValueError(
                f"no password is given for user '{self.username}'. Set 'password', 'passwordFile' or 'token', or "
                "IGGY_PASSWORD in the environment of the driver"
            )
        return self
