"""Options for connecting to an S2 basin."""

import base64
import binascii
import re
from pathlib import Path
from typing import Literal, Self

from pydantic import SecretStr, model_validator

from penstock.errors import OptionError
from penstock.options import CountedRetryOptions, alias, option, shown

CLOUD_BASIN, CLOUD_ACCOUNT = "https://{basin}.b.s2.dev", "https://a.s2.dev"


class S2Options(CountedRetryOptions):
    """Addresses, secrets and time limits."""

    basin: str = option(
        doc="Name of the basin, which is what S2 calls a group of streams: the streams to read or write are in it.",
        example="my-basin",
    )
    access_token: SecretStr | None = option(None, doc="Access token; s2-lite asks for none.", env="S2_ACCESS_TOKEN")
    access_token_file: Path | None = option(None, doc="File that holds the access token.")
    endpoint: str | None = option(
        None, doc="One address for everything, as s2-lite has it.", example="http://127.0.0.1:8080", place=True
    )
    account_endpoint: str = option(
        CLOUD_ACCOUNT, doc="Address of the account's API.", env="S2_ACCOUNT_ENDPOINT", place=True
    )
    basin_endpoint: str = option(
        CLOUD_BASIN,
        doc="Address of the basin's API; `{basin}` stands for its name.",
        env="S2_BASIN_ENDPOINT",
        place=True,
    )
    encryption_key: SecretStr | None = option(
        None, doc="Key of streams that are encrypted, in base64.", hidden_as="encryptionSecret"
    )
    encryption_key_file: Path | None = option(None, doc="File that holds the key.")
    compression: Literal["none", "gzip", "zstd"] = option(
        "none", doc="How records travel; `zstd` needs the extra `s2`."
    )
    tls_ca: Path | None = option(None, doc="PEM file of the authorities to trust, instead of the system's.")

    @model_validator(mode="after")
    def _addresses_and_keys_are_well_formed(self) -> Self:
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{6,46}[a-z0-9]", self.basin):
            raise ValueError(f"'{self.basin}' is no name of a basin: 8 to 48 of a-z, 0-9 and '-', no '-' at either end")
        for name in ("endpoint", "account_endpoint", "basin_endpoint"):
            endpoint = getattr(self, name)
            if endpoint is not None and not re.fullmatch(r"https?://[^/\s@]+(/v1)?/?", endpoint):
                raise ValueError(f"{alias(name)} must be an address such as http://127.0.0.1:8080 or https://host")
        for name, secret in (("access_token", self.access_token), ("encryption_key", self.encryption_key)):
            if secret is not None and (why := _unfit(name, secret.get_secret_value())):
                raise ValueError(why)
        return self

    def secret(self, name: str) -> str | None:
        """The access token or the encryption key, also from its file. An OptionError where it cannot be a header."""
        value = self.reveal(name)
        why = None if value is None else _unfit(name, value)
        if why:
            raise OptionError(f"{why}. It comes from {shown(S2Options, name)} or {alias(name)}File.")
        return value

    def base(self) -> str:
        """The address of the basin's API."""
        text = self.endpoint or self.basin_endpoint.replace("{basin}", self.basin)
        return text.rstrip("/").removesuffix("/v1")

    def places(self) -> str:
        """The options that make up that address, for an error."""
        if self.endpoint is not None:
            return "the option 'endpoint'"
        return "the options 'basin' and 'basinEndpoint'" if "{basin}" in self.basin_endpoint else "'basinEndpoint'"

    def account(self) -> str | None:
        """The address of the account's API. None where the basin is at another address and no account is set: the token
        for that basin must not be sent to S2's cloud.
        """
        elsewhere = {"basin_endpoint", "account_endpoint"} & self.model_fields_set == {"basin_endpoint"}
        if self.endpoint is None and elsewhere:
            return None
        return (self.endpoint or self.account_endpoint).rstrip("/").removesuffix("/v1")

    def names_basin(self) -> bool:
        """Whether each request must name the basin, as the address does not."""
        return self.endpoint is not None or "{basin}" not in self.basin_endpoint


def _unfit(name: str, value: str) -> str | None:
    """Why a secret cannot be a header, without the secret; None where it can."""
    if name == "access_token":
        fits = re.fullmatch(r"[!-~]+", value)
        return None if fits else f"{shown(S2Options, name)} must be plain ASCII without spaces or line breaks"
    try:
        base64.b64decode(value, validate=True)
    except (ValueError, binascii.Error):
        return f"{shown(S2Options, name)} must be base64"
    return None
