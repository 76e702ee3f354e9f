"""Options for reaching a stream of Kinesis: where it is, and who we are."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, SecretStr, model_validator

from penstock.options import ConnectionOptions, option

Provider = Literal["default", "env", "profile", "basic", "assume_role"]
# Names that other connectors have for the same.
_PROVIDERS = {
    "auto": "default",
    "env_var": "env",
    "role": "assume_role",
    "static": "basic",
    "web_identity_token": "default",
}
_ARN = re.compile(r"arn:[\w-]+:kinesis:([\w-]+):\d{12}:stream/(.+)")


def _provider(value: Any) -> Any:
    name = value.lower() if isinstance(value, str) else value
    return _PROVIDERS.get(name, name)


class KinesisOptions(ConnectionOptions):
    """Addresses, secrets and time limits."""

    stream: str = option(doc="Name of the stream, or its ARN.", example="orders")
    region: str | None = option(
        None,
        doc="Region of AWS. By default that of the ARN, of `AWS_REGION` or `AWS_DEFAULT_REGION`, or of the profile.",
        example="eu-central-1",
        also="aws.region",
    )
    endpoint: str | None = option(
        None,
        doc="Address of the service, where it is not that of the region: a private endpoint, or a server for tests.",
        example="http://127.0.0.1:5000",
        place=True,
        also="aws.endpoint",
    )
    credentials_provider: Annotated[Provider, BeforeValidator(_provider)] | None = option(
        None,
        doc="Where credentials come from. `default`: environment, web identity, profiles, and the machine's role, as "
        "all of AWS' tools look for them. `env`: `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY` alone. `profile`: "
        "`profile`. `basic`: `accessKeyId` and `secretAccessKey`. `assume_role`: `roleArn`. By default whichever of "
        "these options are set, else `default`. They are looked for on the driver and on each machine of the cluster.",
        also="aws.credentials.provider",
    )
    profile: str | None = option(
        None, doc="Profile of the files in `~/.aws`.", also="aws.credentials.provider.profile.name"
    )
    role_arn: str | None = option(
        None,
        doc="Role to assume. The other options say who assumes it.",
        example="arn:aws:iam::123456789012:role/reader",
        also="aws.credentials.provider.role.arn",
    )
    external_id: str | None = option(
        None, doc="External id that the role asks for.", also="aws.credentials.provider.role.externalid"
    )
    access_key_id: str | None = option(
        None, doc="Id of an access key.", also="aws.credentials.provider.basic.accesskeyid"
    )
    secret_access_key: SecretStr | None = option(
        None, doc="Secret of the access key.", also="aws.credentials.provider.basic.secretkey"
    )
    secret_access_key_file: Path | None = option(None, doc="File that holds the secret.")
    session_token: SecretStr | None = option(None, doc="Token of temporary credentials.")
    session_token_file: Path | None = option(None, doc="File that holds the token.")
    tls_ca: Path | None = option(None, doc="PEM file of the authorities to trust, instead of boto3's.")

    @model_validator(mode="after")
    def _names_and_credentials_fit(self) -> Self:
        if not re.fullmatch(r"[a-zA-Z0-9_.-]{1,128}", self.stream) and not _ARN.fullmatch(self.stream):
            raise ValueError(f"'{self.stream}' is no name of a stream: 1 to 128 letters, digits, '_', '.' and '-'")
        if self.endpoint is not None and not re.fullmatch(r"https?://[^/\s@]+/?", self.endpoint):
            raise ValueError(
                "endpoint must be an address such as https://vpce-1.kinesis.eu-central-1.vpce.amazonaws.com"
            )
        has_secret = self.secret_access_key is not None or self.secret_access_key_file is not None
        if (self.access_key_id is not None) != has_secret:
            raise ValueError("'accessKeyId' and 'secretAccessKey' belong together: set both, or none")
        wanted = {"basic": ("access_key_id", "accessKeyId"), "profile": ("profile", "profile"),
                  "assume_role": ("role_arn", "roleArn")}  # fmt: skip
        field, name = wanted.get(self.credentials_provider or "", ("stream", ""))
        if getattr(self, field) is None:
            raise ValueError(f"credentialsProvider={self.credentials_provider} needs '{name}'")
        if self.external_id is not None and self.role_arn is None:
            raise ValueError("'externalId' belongs to a role: set 'roleArn'")
        return self

    @property
    def of_stream(self) -> dict[str, str]:
        """What names the stream in a request."""
        return {"StreamARN" if self.stream.startswith("arn:") else "StreamName": self.stream}

    @property
    def stream_name(self) -> str:
        """The name of the stream, also where its ARN is given."""
        arn = _ARN.fullmatch(self.stream)
        return arn[2] if arn else self.stream

    @property
    def stream_region(self) -> str | None:
        """The region that the options name; None where the environment must."""
        arn = _ARN.fullmatch(self.stream)
        return self.region or (arn[1] if arn else None)
