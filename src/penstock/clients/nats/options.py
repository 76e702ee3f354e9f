"""Options for connecting and publishing to NATS. Shared by Core NATS and JetStream."""

import re
from pathlib import Path
from typing import Self

from pydantic import SecretStr, field_validator, model_validator

from penstock.clients.nats.subjects import problem
from penstock.options import ConnectionOptions, Csv, Options, option


class NatsOptions(ConnectionOptions):
    """Addresses, credentials and time limits. Each secret can be in a file instead."""

    servers: Csv = option(
        ("nats://127.0.0.1:4222",),
        doc="Addresses of the servers, a comma list; each is tried in turn.",
        example="nats://a:4222,nats://b:4222",
        place=True,
    )
    user: str | None = option(None, doc="User name.")
    user_file: Path | None = option(None, doc="File that holds the user name.")
    password: SecretStr | None = option(None, doc="Password.")
    password_file: Path | None = option(None, doc="File that holds the password.")
    token: SecretStr | None = option(None, doc="Token.")
    token_file: Path | None = option(None, doc="File that holds the token.")
    nkey_seed: SecretStr | None = option(
        None, doc="Seed of an NKey (`SU...`); needs the extra `nats`.", hidden_as="nkeySecret"
    )
    nkey_seed_file: Path | None = option(None, doc="File that holds the seed of an NKey.")
    credentials: SecretStr | None = option(
        None,
        doc="Content of a `.creds` file, JWT and seed; needs the extra `nats`.",
        lines=True,
        hidden_as="credentialsSecret",
    )
    credentials_file: Path | None = option(None, doc="A `.creds` file.", example="/etc/nats/spark.creds")
    tls: bool = option(False, doc="Insist on TLS. It is used anyway where the server asks for it or for `tls://`.")
    tls_ca: Path | None = option(None, doc="PEM file of the authorities to trust, instead of the system's.")
    tls_cert: Path | None = option(None, doc="PEM file of the client's certificate.")
    tls_key: Path | None = option(None, doc="PEM file of its key, where `tlsCert` does not hold it.")
    tls_handshake_first: bool = option(False, doc="Start TLS before the server speaks, as its `handshake_first` asks.")
    domain: str | None = option(None, doc="JetStream domain, as behind a leaf node.", example="hub")
    api_prefix: str | None = option(None, doc="Prefix of the JetStream API where an account imports it elsewhere.")
    inbox_prefix: str = option("_INBOX", doc="Prefix of the subjects for replies; the account must allow to subscribe.")
    connection_name: str = option("penstock", doc="Name of the connection in the server's reports.")

    @field_validator("servers")
    @classmethod
    def _no_user_in_addresses(cls, servers: tuple[str, ...]) -> tuple[str, ...]:
        if not servers:
            raise ValueError("must name at least one server")
        if any("@" in server for server in servers):
            raise ValueError("must not hold a user: addresses show in messages. Use 'user' and 'password', or 'token'")
        return servers

    @field_validator("domain", "api_prefix", "inbox_prefix")
    @classmethod
    def _are_subjects(cls, text: str | None) -> str | None:
        if text is not None and (why := problem(text, wildcards=False)):
            raise ValueError(f"has '{text}', which {why}")
        return text

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.domain and self.api_prefix:
            raise ValueError("set 'domain' or 'apiPrefix', not both")
        for server in self.servers:
            if not re.fullmatch(r"((nats|tls)://)?(\[[^\]]+\]|[^:/\s]+)(:\d+)?/?", server):
                raise ValueError(f"'servers' has '{server}', which is no address such as nats://host:4222")
        return self


LEFT_OUT = (
    "By default they are left out, as in a copied row they would do again what they did to the message that it was "
    "read from."
)


class PublishOptions(Options):
    """How rows are published to NATS."""

    command_headers: bool = option(
        False,
        doc="Whether headers that tell a server what to do (`Nats-Msg-Id`, `Nats-Rollup`, `Nats-TTL`, "
        "`Nats-Expected-*`, `Nats-Schedule*`, `Nats-Incr`, `Nats-Required-Api-Level`, `Nats-Batch-*`, "
        f"`Nats-Stream-Source`, `Nats-Trace-*`) are published as well. {LEFT_OUT}",
    )
