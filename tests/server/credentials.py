"""Keys, JWTs and certificates, made by hand for the tests of security."""

import base64
import hashlib
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

import nkeys

UNLIMITED = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1) | {"wildcards": True}
JETSTREAM = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)


class Key(NamedTuple):
    pair: Any
    seed: str

    @property
    def public(self) -> str:
        return str(self.pair.public_key.decode())


def key(kind: str) -> Key:
    """A new key of an operator, account or user."""
    prefix = getattr(nkeys, f"PREFIX_BYTE_{kind.upper()}")
    seed = nkeys.encode_seed(os.urandom(32), prefix)
    return Key(nkeys.from_seed(seed), seed.decode())


def _base64(data: Any) -> str:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def jwt(signer: Key, subject: Key, kind: str, **claims: Any) -> str:
    """A JWT about `subject`, as `nsc` would make it."""
    body = {
        "iat": int(time.time()),
        "iss": signer.public,
        "name": kind,
        "sub": subject.public,
        "nats": {**claims, "type": kind, "version": 2},
    }
    body["jti"] = base64.b32encode(hashlib.sha256(json.dumps(body).encode()).digest()).decode().rstrip("=")
    signed = f"{_base64({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_base64(body)}"
    return f"{signed}.{_base64(signer.pair.sign(signed.encode()))}"


def creds(user_jwt: str, seed: str) -> str:
    """The text of a .creds file."""
    return f"""-----BEGIN NATS USER JWT-----
{user_jwt}
------END NATS USER JWT------

************************* IMPORTANT *************************
NKEY Seed printed below can be used to sign and prove identity.
NKEYs are sensitive and should be treated as secrets.

-----BEGIN USER NKEY SEED-----
{seed}
------END USER NKEY SEED------

*************************************************************
"""


class Authority:
    """A certificate authority in a folder, by openssl."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True)
        self.folder, self.file = folder, folder / "ca.pem"
        self._run("req", "-x509", *self._key("ca"), "-days", "2", "-subj", "/CN=Test authority", "-out", self.file)

    def issue(self, name: str) -> tuple[Path, Path]:
        """Certificate and key for 127.0.0.1, to serve or to show as a client."""
        request, found, extra = (self.folder / f"{name}.{end}" for end in ("csr", "pem", "ext"))
        extra.write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
        self._run("req", *self._key(name), "-subj", f"/CN={name}", "-out", request)
        self._run(
            *("x509", "-req", "-in", request, "-CA", self.file, "-CAkey", self.folder / "ca.key", "-CAcreateserial"),
            *("-days", "2", "-extfile", extra, "-out", found),
        )
        return found, self.folder / f"{name}.key"

    def _key(self, name: str) -> tuple[Any, ...]:
        return (
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", self.folder / f"{name}.key"),
        )

    @staticmethod
    def _run(*words: Any) -> None:
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=30)
