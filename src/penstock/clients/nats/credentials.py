"""Who we say we are to a NATS server. Knows the options and the server's nonce; opens no socket."""

import base64
from typing import Any

from penstock.clients.nats.options import NatsOptions
from penstock.errors import OptionError


def introduce(options: NatsOptions, nonce: str) -> dict[str, Any]:
    """The fields of CONNECT that name and prove the user."""
    said: dict[str, Any] = {}
    user, password, token = options.reveal("user"), options.reveal("password"), options.reveal("token")
    if user is not None:
        said["user"] = user
    if password is not None:
        said["pass"] = password
    if token is not None:
        said["auth_token"] = token
    seed, creds = options.reveal("nkey_seed"), options.reveal("credentials")
    giver = options.giver("nkey_seed" if creds is None else "credentials")
    if creds is not None:
        parts = [p for p in creds.replace("\r", "").split("\n") if p and not p.startswith("-") and "*" not in p]
        found = [p.strip() for p in parts]
        jwt = next((p for p in found if p.startswith("ey")), None)
        seed = next((p for p in found if p.startswith("SU")), None)
        if jwt is None or seed is None:
            raise OptionError(
                f"option '{giver}' has no user JWT and seed, as a .creds file does. Make one with nsc generate creds."
            )
        said["jwt"] = jwt
    if seed is not None:
        said |= _signed(seed, nonce, giver, with_key="jwt" not in said)
    return said


def who(said: dict[str, Any]) -> str:
    """The same in words that may be shown."""
    for key, words in (("jwt", "a user JWT"), ("nkey", "an NKey"), ("auth_token", "a token")):
        if key in said:
            return words
    return (
        f"user '{said['user']}'" if "user" in said else "none given; set user and password, token, or credentialsFile"
    )


def _signed(seed: str, nonce: str, giver: str, *, with_key: bool) -> dict[str, str]:
    try:
        import nkeys
    except ImportError:
        raise OptionError("NKeys and .creds need the package nkeys. Install it: pip install 'penstock[nats]'") from None
    try:
        pair = nkeys.from_seed(seed.encode())
        signature = base64.urlsafe_b64encode(pair.sign(nonce.encode())).decode().rstrip("=")
    except Exception:  # whatever it was, its text may quote the seed
        raise OptionError(
            f"the NKey seed in option '{giver}' is not valid: it starts with SU and has 58 characters."
        ) from None
    return {"sig": signature} | ({"nkey": pair.public_key.decode()} if with_key else {})
