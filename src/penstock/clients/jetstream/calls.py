"""JetStream's API over a connection: one method a call, errors as sentences. What is sent is in api.py."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock.clients.answers import an_object, field, objects, texts
from penstock.clients.jetstream import api
from penstock.clients.nats import headers, wire
from penstock.clients.nats.client import Connection
from penstock.clients.nats.options import NatsOptions
from penstock.errors import ConnectError, Disconnected, OptionError, PenstockError, ProtocolError, nearest

# So many consumers stand at the same time while messages are counted: accounts may have few.
MOST_AT_ONCE = 16


class ApiError(ConnectError):
    """JetStream said no; `code` is its err_code."""

    def __init__(self, code: int, text: str):
        super().__init__(text)
        self.code = code


class Stored(NamedTuple):
    """A message, and where it stands."""

    sequence: int
    time: int  # microseconds
    body: bytes = b""
    subject: str = ""
    headers: bytes = b""  # the whole block, if there is one

    @classmethod
    def of(cls, reply: dict[str, Any]) -> "Stored":
        """From the reply to STREAM.MSG.GET."""
        message = field(reply, "message", dict)
        sequence, moment = field(message, "seq", int), api.micros(field(message, "time", str))
        return cls(sequence, moment, _bytes(message, "data"), field(message, "subject", str), _bytes(message, "hdrs"))


class Calls:
    """The calls, on one connection. `ledger` is the stream that no user means."""

    def __init__(self, connection: Connection, options: NatsOptions, ledger: str = api.LEDGER):
        self.connection, self.ledger = connection, ledger
        self.prefix = options.api_prefix or (f"$JS.{options.domain}.API" if options.domain else "$JS.API")

    def streams(self, names: Sequence[str]) -> dict[str, api.StreamInfo | None]:
        """What each stream holds, asked in one go; None for one that does not exist. Answered by its leader."""
        replies = self.connection.requests([(f"{self.prefix}.STREAM.INFO.{name}", b"") for name in names])
        found: dict[str, api.StreamInfo | None] = {}
        for name, reply in zip(names, replies, strict=True):
            try:
                found[name] = api.StreamInfo.of(self._answer(reply))
            except ApiError as error:
                if error.code != api.NO_STREAM:
                    raise
                found[name] = None
        return found

    def stream(self, name: str) -> api.StreamInfo:
        """One stream; an OptionError with the nearest names where there is none."""
        info = self.streams([name])[name]
        if info is None:
            raise self.missing(name)
        return info

    def missing(self, name: str) -> OptionError:
        """The error for a stream that does not exist."""
        try:
            names = self.others()
        except PenstockError:  # asking is only a courtesy; the account may not be allowed to
            names = []
        return OptionError(f"stream '{name}' does not exist. {nearest(name, names)}")

    def others(self) -> list[str]:
        """All streams that a user may mean: no ledger."""
        return [name for name in self.names() if name not in (api.LEDGER, self.ledger)]

    def names(self, subject: str | None = None) -> list[str]:
        """All streams, or those that take messages on `subject`."""
        found: dict[str, None] = {}
        while True:
            body = {"offset": len(found)} | ({"subject": subject} if subject else {})
            page = self.call("STREAM.NAMES", body)
            before = len(found)
            found |= dict.fromkeys(texts(page, "streams"))
            if len(found) == before or len(found) >= field(page, "total", int, 0):  # nothing new, or all
                return list(found)

    def consumers(self, stream: str) -> list[dict[str, Any]]:
        """The configurations of a stream's consumers."""
        found: dict[str, dict[str, Any]] = {}
        while True:
            page = self.call(f"CONSUMER.LIST.{stream}", {"offset": len(found)})
            before = len(found)
            found |= {field(each, "name", str): field(each, "config", dict) for each in objects(page, "consumers")}
            if len(found) == before or len(found) >= field(page, "total", int, 0):
                return list(found.values())

    def first_from(self, stream: str, sequence: int, filters: Sequence[str] = ()) -> Stored | None:
        """The first message at or after `sequence`, by the leader's word: what a replica lacks does not count."""
        subject = f"{self.prefix}.STREAM.MSG.GET.{stream}"
        asked = [json.dumps({"seq": max(1, sequence), "next_by_subj": text}).encode() for text in filters or (">",)]
        found = []
        for reply in self.connection.requests([(subject, body) for body in asked]):
            try:
                found.append(Stored.of(self._answer(reply)))
            except ApiError as error:
                if error.code != api.NO_MESSAGE:
                    raise
        return min(found, default=None)

    def times(self, sequences: Mapping[str, int]) -> dict[str, int]:
        """When each stream stored the message with that number, by the leader's word, asked in one go; none where it
        has none.
        """
        asked = [
            (f"{self.prefix}.STREAM.MSG.GET.{name}", b'{"seq": %d}' % number) for name, number in sequences.items()
        ]
        found = {}
        for name, reply in zip(sequences, self.connection.requests(asked), strict=True):
            try:
                found[name] = api.micros(field(field(self._answer(reply), "message", dict), "time", str))
            except ApiError as error:
                if error.code != api.NO_MESSAGE:
                    raise
        return found

    def last_of(self, stream: str, subject: str) -> Stored | None:
        """The newest message on a subject, by the leader's word."""
        return self.last_answer(self.connection.request(*self.last_request(stream, subject)))

    def last_request(self, stream: str, subject: str) -> tuple[str, bytes]:
        """The same as a request, to be sent together with others."""
        return f"{self.prefix}.STREAM.MSG.GET.{stream}", json.dumps({"last_by_subj": subject}).encode()

    def last_answer(self, reply: wire.Frame) -> Stored | None:
        """And its answer."""
        try:
            return Stored.of(self._answer(reply))
        except ApiError as error:
            if error.code not in (api.NO_MESSAGE, api.NO_STREAM):
                raise
            return None

    def at(self, stream: str, sequence: int) -> Stored | None:
        """The message with this sequence, or None."""
        found = self.first_from(stream, sequence)
        return found if found is not None and found.sequence == sequence else None

    def publish(self, subject: str, body: bytes) -> int:
        """Store one message; its sequence. An ApiError with code 503 where no stream takes the subject."""
        return self.stored(subject, self.connection.request(subject, body))

    def stored(self, subject: str, reply: wire.Frame) -> int:
        """What the answer to a publish says."""
        if reply.headers:
            raise ApiError(headers.fields(reply.headers)[0], f"no stream takes the subject '{subject}'")
        return field(self._answer(reply), "seq", int)

    def create(self, stream: str, body: bytes, name: str = "") -> dict[str, Any]:
        """Make a consumer; what the server made of it, with its name and how many messages it has."""
        subject = f"{self.prefix}.CONSUMER.CREATE.{stream}" + (f".{name}" if name else "")
        return _made(self._answer(self.connection.request(subject, body)))

    def counts(self, stream: str, bodies: Sequence[bytes]) -> list[int]:
        """How many messages each of these consumers would read. Each is made and deleted again."""
        subject = f"{self.prefix}.CONSUMER.CREATE.{stream}"
        counted: list[int] = []
        refused: ApiError | None = None
        replies = (
            reply
            for low in range(0, len(bodies), MOST_AT_ONCE)
            for reply in self.connection.requests([(subject, body) for body in bodies[low : low + MOST_AT_ONCE]])
        )
        for reply in replies:
            try:
                made = _made(self._answer(reply))
            except ApiError as error:
                refused = error
                continue
            self.forget(stream, made["name"])
            counted.append(made["num_pending"])
        if refused is not None:
            raise refused
        return counted

    def forget(self, stream: str, consumer: str) -> None:
        """Delete a consumer, without waiting: were it not to arrive, the consumer goes away by itself."""
        self.connection.ask(f"{self.prefix}.CONSUMER.DELETE.{stream}.{consumer}")

    def call(self, action: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Any call with a JSON body and answer."""
        return self._answer(
            self.connection.request(f"{self.prefix}.{action}", json.dumps(body).encode() if body else b"")
        )

    def direct_counts(self, stream: str, text: str, positions: Sequence[int]) -> list[int] | None:
        """How many messages match one filter at or after each position, from DIRECT.GET; servers from 2.11 on.

        None where a mirror answered in its place: it may keep less.
        """
        subject = f"{self.prefix}.DIRECT.GET.{stream}"
        bodies = [json.dumps({"seq": max(1, at), "next_by_subj": text, "batch": 1}).encode() for at in positions]
        itself = int(self.connection.version() >= (2, 12))  # 2.11 counts the message itself among those behind it
        found = []
        for reply in self.connection.requests([(subject, body) for body in bodies]):
            said = api.direct_fields(reply.headers)
            if said is not None:
                if said[0] != stream.encode():
                    return None
                found.append(api.number(said[4]) + itself)
                continue
            status, words, _ = headers.fields(reply.headers)
            if status == 503:
                if self.streams([stream])[stream] is None:  # deleted a moment ago: the next look tells so
                    return [0] * len(positions)
                raise Disconnected(f"no server answers DIRECT.GET for stream '{stream}'")
            if status != 404:
                raise ProtocolError(f"DIRECT.GET of stream '{stream}' answered {status} {words}")
            found.append(0)
        return found

    def _answer(self, reply: wire.Frame) -> dict[str, Any]:
        if reply.headers:
            status, words, _ = headers.fields(reply.headers)
            if status == 503:
                raise Disconnected(
                    f"JetStream does not answer on '{self.prefix}': it is not enabled on this server or account, or "
                    "'domain' or 'apiPrefix' is wrong. Start nats-server with -js, or check those options."
                )
            raise ProtocolError(f"JetStream answered {status} {words}")
        answer = an_object(reply.payload, "JetStream")
        error = field(answer, "error", dict, {})
        if not error:
            return answer
        code, text = field(error, "err_code", int, 0), error.get("description", "")
        if code in (api.NOT_ENABLED, api.NOT_ENABLED_FOR_ACCOUNT):
            raise ConnectError(f"{text}. Start nats-server with -js, and give the account JetStream limits.")
        if error.get("code") == 503 and code != api.STORE_FAILED:
            raise Disconnected(f"JetStream is not ready: {text}")
        raise ApiError(code, f"JetStream refuses: {text} (error {code})")


def _bytes(message: dict[str, Any], name: str) -> bytes:
    """A part of a message in an answer of STREAM.MSG.GET; empty where it has none."""
    text = field(message, name, str, "")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ProtocolError(f"JetStream answered with the {name} {text[:40]!r}, which is no base64.") from None


def _made(answer: dict[str, Any]) -> dict[str, Any]:
    field(answer, "name", str)
    field(answer, "num_pending", int)
    field(answer, "config", dict)
    return answer
