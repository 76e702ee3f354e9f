"""The only user of Iggy's SDK: one loop and one client a process, made after the fork, every call with a time limit.

What its errors mean is in faults.py. What speaks another wire, as 0.10 does, is another file like this.
"""

import asyncio
import os
import socket
import struct
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.clients.iggy import faults, wire
from penstock.clients.iggy.faults import NotFound, OtherVersion
from penstock.clients.iggy.options import IggyOptions
from penstock.clients.iggy.wire import Messages, Where
from penstock.errors import ConnectError, Disconnected, OptionError, PenstockError, nearest

if TYPE_CHECKING:
    from apache_iggy import SendMessage


class PartitionInfo(NamedTuple):
    """What the server says of a partition: when it was made, and where the next message goes."""

    id: int
    created: str
    next: int
    messages: int
    size: int


class Client:
    """Calls that wait for their answers. Used by one thread."""

    def __init__(self, options: IggyOptions):
        self.options = options
        self._key: Any = None  # found when first needed: secrets may be in files

    def reach(self) -> None:
        """Connect, unless this process is. Nothing says that an address where nobody ever answered is right: that is
        no lost connection, to be tried again.
        """
        try:
            self._open()
        except Disconnected as error:
            raise ConnectError(str(error)) from None

    def topic(self, stream: str, topic: str) -> list[PartitionInfo] | None:
        """The partitions of a topic; None where it is not there."""
        try:
            found = self._call(lambda client: client.get_topic(stream, topic))
        except NotFound:
            return None
        if found is None:
            return None
        return [
            # The offset of the last message is 0 both of an empty partition and of one with a single message.
            PartitionInfo(p.id, str(p.created_at), p.current_offset + bool(p.messages_count or p.current_offset),
                          p.messages_count, p.size)
            for p in found.partitions
        ]  # fmt: skip

    def names(self, stream: str | None = None) -> list[str]:
        """The streams, or the topics of one."""
        if stream is None:
            return [found.name for found in self._call(lambda client: client.get_streams())]
        details = self._call(lambda client: client.get_stream(stream))
        return [] if details is None else [topic.name for topic in details.topics]

    def missing(self, stream: str, topic: str) -> OptionError:
        """The error for a topic that is not there."""
        try:
            streams = self.names()
            topics = self.names(stream) if stream in streams else []
        except PenstockError:  # asking is only a courtesy; the user may not be allowed to
            return OptionError(f"there is no topic '{topic}' in stream '{stream}', or none to be seen by this user.")
        if stream not in streams:
            return OptionError(f"there is no stream '{stream}'. {nearest(stream, streams)}")
        return OptionError(f"stream '{stream}' has no topic '{topic}'. {nearest(topic, topics)}")

    def poll(self, where: Where, kind: int, value: int, count: int) -> Messages:
        """Messages of a partition."""
        body = wire.poll(where, kind, value, count)
        return wire.read_poll(self._call(lambda client: client.send_binary_request(wire.POLL, body)))

    def store_offset(self, where: Where, consumer: str, offset: int) -> None:
        """Note where a consumer stands."""
        body = wire.store_offset(where, consumer, offset)
        self._call(lambda client: client.send_binary_request(wire.STORE_OFFSET, body))

    def send(self, where: Where, messages: "Sequence[SendMessage]") -> "Sending":
        """Put messages on their way; what they are told apart by when they arrived comes with `Sending.wait`."""
        loop, client = self._open()
        from apache_iggy import Partitioning

        async def begin() -> "asyncio.Future[Any]":
            to = Partitioning.partition_id(where.partition)
            return asyncio.ensure_future(_awaited(client.send_messages(where.stream, where.topic, to, list(messages))))

        return Sending(self, loop, loop.run_until_complete(begin()))

    def make(
        self,
        stream: str,
        topic: str,
        partitions: int,
        *,
        expiry: float | None = None,
        max_size: int | None = None,
        durability: str | None = None,
    ) -> None:
        """Make stream and topic, whichever is not there."""
        from apache_iggy import Durability, IggyExpiry, MaxTopicSize

        if stream not in self.names():
            self._unless_there(lambda client: client.create_stream(stream))
        more: dict[str, Any] = {}
        if expiry is not None:
            more["message_expiry"] = IggyExpiry.ExpireDuration(timedelta(seconds=expiry))
        if max_size is not None:
            more["max_topic_size"] = MaxTopicSize.Custom(max_size)
        if durability is not None:
            more["durability"] = Durability(durability)
        self._unless_there(lambda client: client.create_topic(stream, topic, partitions, **more))

    def drop(self) -> None:
        """Throw the client away, which closes its connection."""
        found = _kept().pop(self._key, None)
        if found is not None and not found[0].is_running():
            found[0].close()

    def _unless_there(self, make: Callable[[Any], Awaitable[Any]]) -> None:
        try:
            self._call(make)
        except PenstockError as error:
            if "already exists" not in str(error):
                raise

    def _call(self, ask: Callable[[Any], Awaitable[Any]]) -> Any:
        loop, client = self._open()

        async def whole() -> Any:
            return await asyncio.wait_for(_awaited(ask(client)), self.options.request_timeout)

        try:
            return loop.run_until_complete(whole())
        except Exception as error:
            raise self.told(error) from None

    def told(self, error: Exception) -> PenstockError:
        """What an error of the SDK means. A connection that is lost, or no good, is thrown away."""
        meaning = faults.of_call(error, self.options)
        if isinstance(meaning, (Disconnected, OtherVersion)):
            self.drop()
        return meaning

    def _open(self) -> tuple[asyncio.AbstractEventLoop, Any]:
        if self._key is None or self._key[0] != os.getpid():
            secrets = hash((self.options.reveal("token"), self.options.reveal("password")))
            own = (getattr(self.options, name) for name in IggyOptions.model_fields)
            self._key = (os.getpid(), secrets, *own)
        found = _kept().get(self._key)
        if found is None:
            found = _kept()[self._key] = self._connect()
        return found

    def _connect(self) -> tuple[asyncio.AbstractEventLoop, Any]:
        try:
            import apache_iggy as sdk
        except ImportError:
            raise OptionError("format iggy needs its client: pip install 'penstock[iggy]'") from None
        options = self.options
        token, password = options.reveal("token"), options.reveal("password")
        login = (
            sdk.AutoLogin.personal_access_token(token)
            if token
            else sdk.AutoLogin.username_password(options.username, password or "")
        )
        secure: dict[str, Any] = {"tls_enabled": True} if options.secure() else {}
        if options.tls_domain:
            secure["tls_domain"] = options.tls_domain
        if options.tls_ca:
            secure["tls_ca_file"] = str(options.tls_ca)
        # We connect again by ourselves: it would try for ever, or wait five seconds before it says that it will not.
        retries = sdk.TcpReconnectionConfig(enabled=False, max_retries=0)
        client = sdk.IggyClient(
            sdk.TcpConfig(
                server_address=options.address, auto_login=login, reconnection=retries, nodelay=True, **secure
            )
        )
        loop = asyncio.new_event_loop()

        async def connect() -> None:
            await asyncio.wait_for(_awaited(client.connect()), options.connect_timeout)

        try:
            loop.run_until_complete(connect())
        except Exception as error:
            loop.close()
            raise faults.of_connecting(error, options, self._dial) from None
        return loop, client

    def _dial(self) -> str | None:
        """Why the address takes no connection; None where it takes one."""
        host, _, port = self.options.address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), self.options.connect_timeout).close()
        except OSError as error:
            return "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
        return None


class Sending:
    """Messages on their way."""

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop, future: "asyncio.Future[Any]"):
        self._client, self._loop, self._future = client, loop, future

    def wait(self) -> int | None:
        """The offset of the first message, where the server tells it. Raises Disconnected where nobody knows."""

        async def whole() -> Any:
            return await asyncio.wait_for(self._future, self._client.options.request_timeout)

        try:
            confirmations = self._loop.run_until_complete(whole()).confirmations
        except Exception as error:
            raise self._client.told(error) from None
        return confirmations[0].base_offset if confirmations else None


def messages(values: Sequence[Any], ids: Sequence[int], headers: Sequence[Any] | None) -> "list[SendMessage]":
    """Messages as the SDK takes them; headers are pairs of name, kind and value."""
    from apache_iggy import HeaderKey, HeaderValue, SendMessage

    if headers is None:
        return [SendMessage(value, None, number) for value, number in zip(values, ids, strict=True)]
    made: list[Any] = [
        {HeaderKey.String(key): _header(HeaderValue, kind, value) for key, kind, value in row} or None
        for row in headers
    ]
    return [SendMessage(value, row, number) for value, row, number in zip(values, made, ids, strict=True)]


_FORMATS = {"bool": "?", "int8": "b", "int16": "<h", "int32": "<i", "int64": "<q", "uint8": "B", "uint16": "<H",
            "uint32": "<I", "uint64": "<Q", "float32": "<f", "float64": "<d"}  # fmt: skip


def _header(kinds: Any, kind: str, value: bytes) -> Any:
    if kind == "raw":
        return kinds.Raw(value)
    if kind == "string":
        return kinds.String(value.decode())
    names = {"int": "Int", "uint": "UnsignedInt", "float": "Float", "bool": "Bool"}
    word = kind.rstrip("0123456789")
    constructor = getattr(kinds, names[word] + kind[len(word) :])
    if kind in ("int128", "uint128"):
        return constructor(int.from_bytes(value, "little", signed=kind == "int128"))
    return constructor(struct.unpack(_FORMATS[kind], value)[0])


async def _awaited(what: Awaitable[Any]) -> Any:
    return await what


def _kept() -> dict[Any, tuple[asyncio.AbstractEventLoop, Any]]:
    """Kept on `sys`: a module that was pickled by value has new globals in each task."""
    kept: dict[Any, tuple[asyncio.AbstractEventLoop, Any]] = sys.__dict__.setdefault("_penstock_iggy", {})
    return kept
