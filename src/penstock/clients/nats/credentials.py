"""The credentials in CONNECT. Knows the options and the server's nonce; opens no socket."""

import base64
from collections.abc import Mapping

from penstock.clients.nats.options import NatsOptions
from penstock.errors import OptionError


def introduce(options: NatsOptions, nonce: str) -> dict[str, str]:
    """The fields of CONNECT that identify the user, with the nonce signed where that takes a key."""
    fields: dict[str, str] = {}
    user, password, token = options.reveal("user"), options.reveal("password"), options.reveal("token")
    if user is not None:
        fields["user"] = user
    if password is not None:
        fields["pass"] = password
    if token is not None:
        fields["auth_token"] = token
    seed, creds = options.reveal("nkey_seed"), options.reveal("credentials")
    giver = options.giver("nkey_seed" if creds is None else "credentials")
    if creds is not None:
        lines = creds.replace("\r", "").split("\n")
        contents = [line.strip() for line in lines if not line.startswith("-") and "*" not in line]
        jwt = next((line for line in contents if line.startswith("ey")), None)
        seed = next((line for line in contents if line.startswith("SU")), None)
        if jwt is None or seed is None:
            raise OptionError(
                f"option '{giver}' has no user JWT and seed, as a .creds file does. Make one with nsc generate creds."
            )
        fields["jwt"] = jwt
    if seed is not None:
        fields |= _signed(seed, nonce, giver, with_key="jwt" not in fields)
    return fields


def who(fields: Mapping[str, object]) -> str:
    """Whom these fields of CONNECT identify, for an error: no secrets."""
    for key, words in (("jwt", "a user JWT"), ("nkey", "an NKey"), ("auth_token", "a token")):
        if key in fields:
            return words
    if "user" in fields:
        return f"user '{fields['user']}'"
    return "none given; set user and password, token, or credentialsFile"


def _signed(seed: str, nonce: str, giver: str, *, with_key: bool) -> dict[str, str]:
    try:
        import nkeys
    except ImportError:
        raise OptionError("NKeys and .creds need the package nkeys. Install it: pip install 'penstock[nats]'") from None
    try:
        pair = nkeys.from_seed(seed.encode())
        signature = base64.urlsafe_b64encode(pair.sign(nonce.encode())).decode().rstrip("=")
    except Exception:  # of any class: the text may quote the seed
        raise OptionError(
            f"the NKey seed in option '{giver}' is not valid: it starts with SU and has 58 characters."
        ) from None
    return {"sig": signature} | ({"nkey": pair.public_key.decode()} if with_key else {})
