"""A schema registry with Confluent's API: schemas by id, the latest of a subject, and new ones. Knows HTTP; reads no
record.

A schema never changes once it has an id. So each is asked for once in a process, and kept.
"""

import base64
import http.client
import json
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.errors import ConnectError, Disconnected, OptionError, PenstockError
from penstock.kit.process_cache import shared
from penstock.kit.retry import Retry

TIMEOUT = 10.0
Strategy = Literal["topic_name", "record_name", "topic_record_name"]
# An id that the registry does not know is asked for again after so many seconds: replicas of a registry differ a while.
UNKNOWN_FOR = 30.0


def subject_name(
    strategy: Strategy, *, topic: str | None = None, record: str | None = None, is_key: bool = False
) -> str:
    """The subject in which Kafka's clients keep a schema. `topic_name` is their default: `orders-value`, or
    `orders-key`. The others are made of the full name of the record or message, such as `shop.Order`. An OptionError
    where the topic or the name is missing.
    """
    needs = {"topic_name": {"topic": topic}, "record_name": {"record": record}}
    needs["topic_record_name"] = needs["topic_name"] | needs["record_name"]
    if strategy not in needs:
        raise OptionError(f"'{strategy}' is no strategy for subjects. There are: {', '.join(needs)}.")
    for what, value in needs[strategy].items():
        if not value:
            raise OptionError(f"the subject of {strategy} is made of the {what}, which is not given.")
    if strategy == "topic_name":
        return f"{topic}-{'key' if is_key else 'value'}"
    return "-".join(str(value) for value in needs[strategy].values())


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

    def __post_init__(self) -> None:
        if "@" in self.url:  # without the address, which has a password in it
            raise OptionError("the address of a registry has no user in it: give username and password by themselves.")
        if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", self.url):
            raise OptionError(f"'{self.url}' is no address of a registry, such as http://localhost:8081.")
        if re.search(r"[\x00-\x1f\x7f]", self.token or ""):
            raise OptionError("the token for the registry has a line end or another control character in it.")

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
        """The newest schema of a subject. A NoSchemaError where there is none."""
        try:
            answer = self._ask(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest")
        except NoSchemaError:
            raise NoSchemaError(f"the registry at {self.url} has no subject '{subject}'") from None
        return self._registered(_id(answer), answer)

    def register(self, subject: str, type: str, text: str) -> int:
        """The id of a schema in a subject, which gets it where it does not have it."""
        body: dict[str, Any] = {"schema": text} | ({} if type == "AVRO" else {"schemaType": type})
        answer = self._ask(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions", body)
        return _id(answer)

    def lookup(self, subject: str, type: str, text: str) -> int:
        """The id of a schema that a subject has. A NoSchemaError where it has not."""
        body: dict[str, Any] = {"schema": text} | ({} if type == "AVRO" else {"schemaType": type})
        try:
            return _id(self._ask(f"/subjects/{urllib.parse.quote(subject, safe='')}", body))
        except NoSchemaError:
            raise NoSchemaError(f"the registry at {self.url} does not have this schema in '{subject}'") from None

    def _unknown(self, number: int) -> NoSchemaError:
        return NoSchemaError(f"the registry at {self.url} has no schema with the id {number}")

    def _registered(self, number: int, answer: dict[str, Any]) -> Registered:
        references: dict[str, str] = {}
        self._collect(answer.get("references"), references)
        return Registered(number, answer.get("schemaType") or "AVRO", _schema(answer), tuple(references.items()))

    def _collect(self, listed: Any, into: dict[str, str], above: tuple[str, ...] = ()) -> None:
        """The texts of schemas that are referred to, those that others need first."""
        for each in listed if isinstance(listed, list) else []:
            try:
                name, subject, version = (
                    str(each["name"]),
                    urllib.parse.quote(each["subject"], safe=""),
                    each["version"],
                )
            except (KeyError, TypeError):
                raise Disconnected(f"the registry at {self.url} refers to something else than a schema") from None
            if name in above:
                raise NoSchemaError(f"the registry at {self.url} has schemas that refer to each other: {name}")
            if name in into:
                continue
            answer = self._ask(f"/subjects/{subject}/versions/{version}")
            self._collect(answer.get("references"), into, (*above, name))
            into[name] = _schema(answer)

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
            with self._opener().open(request, timeout=TIMEOUT) as answer:
                content = json.loads(_within(answer, TIMEOUT))
        except urllib.error.HTTPError as error:
            raise self._refused(error, path) from None
        except ssl.SSLCertVerificationError as error:
            raise ConnectError(
                f"the certificate of the registry at {self.url} is not trusted: {error.reason}."
            ) from None
        except ValueError:
            raise Disconnected(f"the registry at {self.url} does not answer with JSON") from None
        except http.client.HTTPException as error:
            raise Disconnected(f"the registry at {self.url} breaks off: {error!r}") from None
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

    def _opener(self) -> urllib.request.OpenerDirector:
        """Goes nowhere else: a redirect would take the password along."""
        context = self._context()
        secure = [urllib.request.HTTPSHandler(context=context)] if context is not None else []
        return urllib.request.build_opener(_NoRedirect, *secure)

    def _refused(self, error: urllib.error.HTTPError, path: str) -> PenstockError:
        with error:
            text = error.read(1000).decode(errors="replace")
        try:
            text = str(json.loads(text)["message"])
        except (ValueError, KeyError, TypeError):
            text = text.strip() or error.reason
        where = f"the registry at {self.url}"
        if 300 <= error.code < 400:
            target = error.headers.get("Location", "elsewhere")
            return OptionError(f"{where} sends us to {target}, where no password is sent to: set that address.")
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


def _schema(answer: dict[str, Any]) -> str:
    text = answer.get("schema")
    if not isinstance(text, str):
        raise Disconnected("the registry answers without a schema")
    return text


def _id(answer: dict[str, Any]) -> int:
    number = answer.get("id")
    if type(number) is not int:
        raise Disconnected("the registry answers without the id of a schema")
    return number


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *given: Any, **named: Any) -> None:
        """No request: the answer is an error then."""


def _within(answer: Any, seconds: float) -> bytes:
    """All of an answer. A TimeoutError where it takes too long, also if it comes byte by byte."""
    parts, deadline = [], time.monotonic() + seconds
    while part := answer.read1(1 << 16):
        parts.append(part)
        if time.monotonic() > deadline:
            raise TimeoutError(f"its answer takes longer than {seconds:g}s")
    return b"".join(parts)
