"""Calls of JetStream's API over a connection, one method each, with errors in sentences. The requests are in api.py.
Knows no ranges and no Spark.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock.clients.answers import an_object, field, objects, texts
from penstock.clients.jetstream import api, columns
from penstock.clients.nats import headers, wire
from penstock.clients.nats.client import Connection
from penstock.clients.nats.options import NatsOptions
from penstock.errors import ConnectError, Disconnected, OptionError, PenstockError, ProtocolError, nearest

# The most consumers at the same time while messages are counted: accounts may have few.
MOST_AT_ONCE = 16


class ApiError(ConnectError):
    """JetStream refused a call; `code` is its err_code."""

    def __init__(self, code: int, text: str):
        super().__init__(text)
        self.code = code


class Stored(NamedTuple):
    """A message of a stream."""

    sequence: int
    time: int  # microseconds
    body: bytes = b""
    subject: str = ""
    headers: bytes = b""  # the whole block, if there is one

    @classmethod
    def of(cls, reply: dict[str, Any]) -> "Stored":
        """From a reply to STREAM.MSG.GET."""
        message = field(reply, "message", dict)
        sequence, moment = field(message, "seq", int), api.micros(field(message, "time", str))
        return cls(sequence, moment, _bytes(message, "data"), field(message, "subject", str), _bytes(message, "hdrs"))


class Calls:
    """The calls, on one connection. `ledger` is a stream of our own, which `others` leaves out."""

    def __init__(self, connection: Connection, options: NatsOptions, ledger: str = api.LEDGER):
        self.connection, self.ledger = connection, ledger
        self.prefix = options.api_prefix or (f"$JS.{options.domain}.API" if options.domain else "$JS.API")

    def streams(self, names: Sequence[str]) -> dict[str, api.StreamInfo | None]:
        """The info of each stream, from its leader, asked together; None where it does not exist."""
        replies = self.connection.requests([(f"{self.prefix}.STREAM.INFO.{name}", b"") for name in names])
        infos: dict[str, api.StreamInfo | None] = {}
        for name, reply in zip(names, replies, strict=True):
            try:
                infos[name] = api.StreamInfo.of(self.answer(reply))
            except ApiError as error:
                if error.code != api.NO_STREAM:
                    raise
                infos[name] = None
        return infos

    def stream(self, name: str) -> api.StreamInfo:
        """The info of one stream. An OptionError with similar names where it does not exist."""
        info = self.streams([name])[name]
        if info is None:
            raise self.missing(name)
        return info

    def missing(self, name: str) -> OptionError:
        """The error for a stream that does not exist."""
        try:
            names = self.others()
        except PenstockError:  # the account may not be allowed to list them
            names = []
        return OptionError(f"stream '{name}' does not exist. {nearest(name, names)}")

    def others(self) -> list[str]:
        """The names of all streams except ledgers."""
        return [name for name in self.names() if name not in (api.LEDGER, self.ledger)]

    def names(self, subject: str | None = None) -> list[str]:
        """The names of all streams, or of those with `subject`."""
        names: dict[str, None] = {}
        while True:
            body = {"offset": len(names)} | ({"subject": subject} if subject else {})
            page = self.call("STREAM.NAMES", body)
            before = len(names)
            names |= dict.fromkeys(texts(page, "streams"))
            if len(names) == before or len(names) >= field(page, "total", int, 0):  # nothing new, or all
                return list(names)

    def consumers(self, stream: str) -> list[dict[str, Any]]:
        """The configurations of a stream's consumers."""
        configs: dict[str, dict[str, Any]] = {}
        while True:
            page = self.call(f"CONSUMER.LIST.{stream}", {"offset": len(configs)})
            before = len(configs)
            configs |= {field(each, "name", str): field(each, "config", dict) for each in objects(page, "consumers")}
            if len(configs) == before or len(configs) >= field(page, "total", int, 0):
                return list(configs.values())

    def first_from(self, stream: str, sequence: int, filters: Sequence[str] = ()) -> Stored | None:
        """The first message at or after `sequence` that matches a filter; None without one. From the leader: a replica
        may lack messages.
        """
        subject = f"{self.prefix}.STREAM.MSG.GET.{stream}"
        bodies = [json.dumps({"seq": max(1, sequence), "next_by_subj": text}).encode() for text in filters or (">",)]
        messages = []
        for reply in self.connection.requests([(subject, body) for body in bodies]):
            try:
                messages.append(Stored.of(self.answer(reply)))
            except ApiError as error:
                if error.code != api.NO_MESSAGE:
                    raise
        return min(messages, default=None)

    def times(self, sequences: Mapping[str, int]) -> dict[str, int]:
        """When each stream stored the message with that sequence, from the leaders, asked together. Streams without
        such a message are left out.
        """
        requests = [
            (f"{self.prefix}.STREAM.MSG.GET.{name}", b'{"seq": %d}' % number) for name, number in sequences.items()
        ]
        times = {}
        for name, reply in zip(sequences, self.connection.requests(requests), strict=True):
            try:
                times[name] = api.micros(field(field(self.answer(reply), "message", dict), "time", str))
            except ApiError as error:
                if error.code != api.NO_MESSAGE:
                    raise
        return times

    def last_of(self, stream: str, subject: str) -> Stored | None:
        """The newest message on a subject, from the leader; None without one or without the stream."""
        return self.last_answer(self.connection.request(*self.last_request(stream, subject)))

    def last_request(self, stream: str, subject: str) -> tuple[str, bytes]:
        """The request of `last_of`, to be sent together with others."""
        return f"{self.prefix}.STREAM.MSG.GET.{stream}", json.dumps({"last_by_subj": subject}).encode()

    def last_answer(self, reply: wire.Frame) -> Stored | None:
        """The message in the answer to `last_request`."""
        try:
            return Stored.of(self.answer(reply))
        except ApiError as error:
            if error.code not in (api.NO_MESSAGE, api.NO_STREAM):
                raise
            return None

    def at(self, stream: str, sequence: int) -> Stored | None:
        """The message with this sequence, or None."""
        message = self.first_from(stream, sequence)
        return message if message is not None and message.sequence == sequence else None

    def publish(self, subject: str, body: bytes) -> int:
        """Publish one message: its sequence. An ApiError with code 503 where no stream has the subject."""
        return self.stored(subject, self.connection.request(subject, body))

    def stored(self, subject: str, reply: wire.Frame) -> int:
        """The sequence in the answer to a publish."""
        if reply.headers:
            raise ApiError(headers.fields(reply.headers)[0], f"no stream takes the subject '{subject}'")
        return field(self.answer(reply), "seq", int)

    def create(self, stream: str, body: bytes, name: str = "") -> dict[str, Any]:
        """Create a consumer: its info, with at least name, config and num_pending."""
        subject = f"{self.prefix}.CONSUMER.CREATE.{stream}" + (f".{name}" if name else "")
        return _consumer_info(self.answer(self.connection.request(subject, body)))

    def counts(self, stream: str, bodies: Sequence[bytes]) -> list[int]:
        """How many messages each of these consumers would read. Each is created, and deleted without waiting."""
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
                info = _consumer_info(self.answer(reply))
            except ApiError as error:
                refused = error
                continue
            self.forget(stream, info["name"])
            counted.append(info["num_pending"])
        if refused is not None:
            raise refused
        return counted

    def forget(self, stream: str, consumer: str) -> None:
        """Delete a consumer, without waiting. If the request is lost, the server deletes it later by itself."""
        self.connection.ask(f"{self.prefix}.CONSUMER.DELETE.{stream}.{consumer}")

    def call(self, action: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Any call with a JSON body: its JSON answer."""
        return self.answer(
            self.connection.request(f"{self.prefix}.{action}", json.dumps(body).encode() if body else b"")
        )

    def direct_counts(self, stream: str, text: str, positions: Sequence[int]) -> list[int] | None:
        """How many messages match one filter at or after each position, from DIRECT.GET of server 2.11 or later.

        None where a mirror answered: it may hold fewer messages.
        """
        subject = f"{self.prefix}.DIRECT.GET.{stream}"
        bodies = [json.dumps({"seq": max(1, at), "next_by_subj": text, "batch": 1}).encode() for at in positions]
        itself = int(self.connection.version() >= (2, 12))  # 2.11 includes the message itself in the count
        counted = []
        for reply in self.connection.requests([(subject, body) for body in bodies]):
            values = columns.direct_fields(reply.headers)
            if values is not None:
                if values[0] != stream.encode():
                    return None
                counted.append(api.number(values[4]) + itself)
                continue
            status, words, _ = headers.fields(reply.headers)
            if status == 503:
                if self.streams([stream])[stream] is None:  # just deleted: the next call finds that out
                    return [0] * len(positions)
                raise Disconnected(f"no server answers DIRECT.GET for stream '{stream}'")
            if status != 404:
                raise ProtocolError(f"DIRECT.GET of stream '{stream}' answered {status} {words}")
            counted.append(0)
        return counted

    def answer(self, reply: wire.Frame) -> dict[str, Any]:
        """The JSON answer in a reply. Raises its error, where it has one."""
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
    """A base64 field of STREAM.MSG.GET; empty where it is missing."""
    text = field(message, name, str, "")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ProtocolError(f"JetStream answered with the {name} {text[:40]!r}, which is no base64.") from None


def _consumer_info(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer, after a check of the fields that are used."""
    field(answer, "name", str)
    field(answer, "num_pending", int)
    field(answer, "config", dict)
    return answer
