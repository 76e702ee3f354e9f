"""A schema registry with Confluent's API: schemas by id, the latest of a subject, and new ones. Knows HTTP; reads no
record.

A schema never changes once it has an id. So each is asked for once in a process, and kept.
"""

import base64
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import ConnectError, Disconnected, OptionError, PenstockError
from penstock.kit.process_cache import shared
from penstock.kit.retry import Retry

TIMEOUT = 10.0
# An id that the registry does not know is asked for again after so many seconds: replicas of a registry differ a while.
UNKNOWN_FOR = 30.0


class NoSchemaError(PenstockError):
    """The registry answers, and has no such schema."""


@dataclass(frozen=True)
class Registered:
    """A schema as the registry has it. `references`: schemas that it names, in the order in which they are needed."""

    id: int
    type: str
    text: str = field(repr=False)
    references: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # names and texts


@dataclass(frozen=True)
class Registry:
    """Where a registry is, and how one signs in: not at all, with a user and a password, or with a token; and with a
    certificate of one's own where `cert` and `key` name files. `timeout`: how long one that is away is waited for.
    """

    url: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    timeout: float = 15.0

    def by_id(self, number: int) -> Registered:
        """The schema with an id. A NoSchemaError where there is none, a ConnectError where nobody answers."""
        known = shared("schemas", dict[tuple[str, int], Registered | float])
        found = known.get((self.url, number))
        if isinstance(found, float) and found > time.monotonic():
            raise self._unknown(number)
        if isinstance(found, Registered):
            return found
        try:
            answer = self._ask(f"/schemas/ids/{number}")
        except NoSchemaError:
            known[self.url, number] = time.monotonic() + UNKNOWN_FOR
            raise self._unknown(number) from None
        made = self._registered(number, answer)
        known[self.url, number] = made
        return made

    def latest(self, subject: str) -> Registered:
        """The newest schema of a subject."""
        answer = self._ask(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest")
        return self._registered(int(answer["id"]), answer)

    def register(self, subject: str, type: str, text: str) -> int:
        """The id of a schema in a subject, which gets it where it does not have it."""
        body: dict[str, Any] = {"schema": text} | ({} if type == "AVRO" else {"schemaType": type})
        answer = self._ask(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions", body)
        return int(answer["id"])

    def lookup(self, subject: str, type: str, text: str) -> int:
        """The id of a schema that a subject has. A NoSchemaError where it has not."""
        body: dict[str, Any] = {"schema": text} | ({} if type == "AVRO" else {"schemaType": type})
        answer = self._ask(f"/subjects/{urllib.parse.quote(subject, safe='')}", body)
        return int(answer["id"])

    def _unknown(self, number: int) -> NoSchemaError:
        return NoSchemaError(f"the registry at {self.url} has no schema with the id {number}")

    def _registered(self, number: int, answer: dict[str, Any]) -> Registered:
        references: dict[str, str] = {}
        self._collect(answer.get("references") or [], references)
        return Registered(number, answer.get("schemaType") or "AVRO", answer["schema"], tuple(references.items()))

    def _collect(self, listed: Sequence[dict[str, Any]], into: dict[str, str]) -> None:
        """The texts of schemas that are referred to, those that others need first."""
        for each in listed:
            if each["name"] in into:
                continue
            subject = urllib.parse.quote(each["subject"], safe="")
            answer = self._ask(f"/subjects/{subject}/versions/{each['version']}")
            self._collect(answer.get("references") or [], into)
            into[each["name"]] = answer["schema"]

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return Retry(f"asking the registry at {self.url}", timeout=self.timeout).run(lambda: self._once(path, body))

    def _once(self, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        kind = "application/vnd.schemaregistry.v1+json"
        headers = {"Accept": f"{kind}, application/json", "Content-Type": kind}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        elif self.username is not None:
            pair = base64.b64encode(f"{self.username}:{self.password or ''}".encode()).decode()
            headers["Authorization"] = f"Basic {pair}"
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.url.rstrip("/") + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT, context=self._context()) as answer:
                content = json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise self._refused(error, path) from None
        except ssl.SSLCertVerificationError as error:
            raise ConnectError(
                f"the certificate of the registry at {self.url} is not trusted: {error.reason}."
            ) from None
        except ValueError:
            raise Disconnected(f"the registry at {self.url} does not answer with JSON") from None
        except OSError as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise ConnectError(
                    f"the certificate of the registry at {self.url} is not trusted: {reason.verify_message}."
                ) from None
            raise Disconnected(f"the registry at {self.url} does not answer: {reason}") from None
        if not isinstance(content, dict):
            raise Disconnected(f"the registry at {self.url} answers with something else than a schema")
        return content

    def _refused(self, error: urllib.error.HTTPError, path: str) -> PenstockError:
        with error:
            text = error.read(1000).decode(errors="replace")
        try:
            text = str(json.loads(text)["message"])
        except (ValueError, KeyError, TypeError):
            text = text.strip() or error.reason
        where = f"the registry at {self.url}"
        if error.code in (401, 403):
            return OptionError(f"{where} refuses the user, password or token ({error.code}): {text}.")
        if error.code == 404:
            return NoSchemaError(f"{where} has nothing at {path}: {text}")
        if error.code in (409, 422):
            return OptionError(f"{where} does not take the schema ({error.code}): {text}.")
        return Disconnected(f"{where} answers {error.code} to {path}: {text}")

    def _context(self) -> ssl.SSLContext | None:
        if not self.url.startswith("https:"):
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert:
                context.load_cert_chain(self.cert, self.key)
        except OSError as error:
            raise OptionError(f"the certificate or key for {self.url} cannot be read: {error}.") from None
        return context
