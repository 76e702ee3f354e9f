"""A client of Iggy 0.9: the only user of its SDK. Each process has one event loop and one SDK client per server and
user, made after the fork. Every call has a time limit. Knows no rows and no positions; faults.py knows what errors
mean.

Iggy 0.10 has another protocol and needs another module like this.
"""

import asyncio
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Hashable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.clients.iggy import faults, wire
from penstock.clients.iggy.faults import NotFound, OtherVersion
from penstock.clients.iggy.options import IggyOptions
from penstock.clients.iggy.wire import Messages, Where
from penstock.errors import ConnectError, Disconnected, OptionError, PenstockError, nearest
from penstock.kit.process_cache import shared

if TYPE_CHECKING:
    from apache_iggy import SendMessage

# The event loop and the SDK client of a process.
_Session = tuple[asyncio.AbstractEventLoop, Any]


class PartitionInfo(NamedTuple):
    """A partition: when it was created, the offset of its next message, how many messages it has, and their bytes."""

    id: int
    created: str
    next: int
    messages: int
    size: int


class TopicInfo(NamedTuple):
    """A topic: how many partitions and messages it has, and the bytes of these."""

    name: str
    partitions: int
    messages: int
    size: int


class Client:
    """Blocking calls, used by one thread."""

    def __init__(self, options: IggyOptions):
        self.options = options
        self._key: tuple[Any, ...] | None = None  # made at the first call: secrets may be in files

    def reach(self) -> None:
        """Connect, unless this process is connected. A failure is a ConnectError, which is not retried: an address
        where nobody has answered yet may be wrong.
        """
        try:
            self._open()
        except Disconnected as error:
            raise ConnectError(str(error)) from None

    def topic(self, stream: str, topic: str) -> list[PartitionInfo] | None:
        """The partitions of a topic; None where it does not exist."""
        try:
            details = self._call(lambda client: client.get_topic(stream, topic))
        except NotFound:
            return None
        if details is None:
            return None
        return [
            # current_offset is 0 for an empty partition and for one with a single message.
            PartitionInfo(p.id, str(p.created_at), p.current_offset + bool(p.messages_count or p.current_offset),
                          p.messages_count, p.size)
            for p in details.partitions
        ]  # fmt: skip

    def names(self, stream: str | None = None) -> list[str]:
        """The names of all streams, or of the topics of one."""
        if stream is None:
            return [each.name for each in self._call(lambda client: client.get_streams())]
        details = self._call(lambda client: client.get_stream(stream))
        return [] if details is None else [topic.name for topic in details.topics]

    def topics(self, stream: str) -> list[TopicInfo]:
        """The topics of a stream; none where it does not exist."""
        try:
            details = self._call(lambda client: client.get_stream(stream))
        except NotFound:
            return []
        topics = [] if details is None else details.topics
        return [TopicInfo(each.name, each.partitions_count, each.messages_count, each.size) for each in topics]

    def missing(self, stream: str, topic: str) -> OptionError:
        """The error for a topic that does not exist, with similar names."""
        try:
            streams = self.names()
            topics = self.names(stream) if stream in streams else []
        except PenstockError:  # the user may not be allowed to list them
            return OptionError(f"there is no topic '{topic}' in stream '{stream}', or none to be seen by this user.")
        if stream not in streams:
            return OptionError(f"there is no stream '{stream}'. {nearest(stream, streams)}")
        return OptionError(f"stream '{stream}' has no topic '{topic}'. {nearest(topic, topics)}")

    def poll(self, where: Where, kind: int, value: int, count: int) -> Messages:
        """Up to `count` messages of a partition. `kind` and `value` say where to start: see wire.OFFSET."""
        body = wire.poll(where, kind, value, count)
        return wire.read_poll(self._call(lambda client: client.send_binary_request(wire.POLL, body)))

    def store_offset(self, where: Where, consumer: str, offset: int) -> None:
        """Store the offset of a consumer."""
        body = wire.store_offset(where, consumer, offset)
        self._call(lambda client: client.send_binary_request(wire.STORE_OFFSET, body))

    def send(self, where: Where, messages: "Sequence[SendMessage]") -> "Sending":
        """Start sending; `wait()` returns the base offset."""
        loop, client = self._open()
        from apache_iggy import Partitioning

        async def begin() -> "asyncio.Future[Any]":
            partition = Partitioning.partition_id(where.partition)
            sending = client.send_messages(where.stream, where.topic, partition, list(messages))
            return asyncio.ensure_future(_awaited(sending))

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
        """Create the stream and the topic, unless they exist. Settings are for a new topic."""
        from apache_iggy import Durability, IggyExpiry, MaxTopicSize

        if stream not in self.names():
            self._create(lambda client: client.create_stream(stream))
        settings: dict[str, Any] = {}
        if expiry is not None:
            settings["message_expiry"] = IggyExpiry.ExpireDuration(timedelta(seconds=expiry))
        if max_size is not None:
            settings["max_topic_size"] = MaxTopicSize.Custom(max_size)
        if durability is not None:
            settings["durability"] = Durability(durability)
        self._create(lambda client: client.create_topic(stream, topic, partitions, **settings))

    def drop(self) -> None:
        """Close the connection. The next call makes a new one."""
        session = _sessions().pop(self._key, None)
        if session is not None:
            loop, _ = session
            if not loop.is_running():
                loop.close()

    def _create(self, create: Callable[[Any], Awaitable[Any]]) -> None:
        """Call `create`; no error where another client was first."""
        try:
            self._call(create)
        except PenstockError as error:
            if "already exists" not in str(error):
                raise

    def _call(self, request: Callable[[Any], Awaitable[Any]]) -> Any:
        loop, client = self._open()

        async def limited() -> Any:
            return await asyncio.wait_for(_awaited(request(client)), self.options.request_timeout)

        try:
            return loop.run_until_complete(limited())
        except Exception as error:
            raise self.meaning(error) from None

    def meaning(self, error: Exception) -> PenstockError:
        """Our error for an error of the SDK. Closes a connection that is lost or speaks another protocol."""
        fault = faults.of_call(error, self.options)
        if isinstance(fault, (Disconnected, OtherVersion)):
            self.drop()
        return fault

    def _open(self) -> _Session:
        """The session of this process with these options; connects where there is none."""
        if self._key is None or self._key[0] != os.getpid():
            secrets = hash((self.options.reveal("token"), self.options.reveal("password")))
            values = (getattr(self.options, name) for name in IggyOptions.model_fields)
            self._key = (os.getpid(), secrets, *values)
        session = _sessions().get(self._key)
        if session is None:
            session = _sessions()[self._key] = self._connect()
        return session

    def _connect(self) -> _Session:
        try:
            import apache_iggy as sdk
        except ImportError:
            raise OptionError("format iggy needs its client: pip install 'penstock[iggy]'") from None
        options = self.options
        token, password = options.reveal("token"), options.reveal("password")
        if token:
            login = sdk.AutoLogin.personal_access_token(token)
        else:
            login = sdk.AutoLogin.username_password(options.username, password or "")
        tls: dict[str, Any] = {"tls_enabled": True} if options.secure() else {}
        if options.tls_domain:
            tls["tls_domain"] = options.tls_domain
        if options.tls_ca:
            tls["tls_ca_file"] = str(options.tls_ca)
        # Penstock reconnects by itself. The SDK would try for ever, or wait five seconds before it gives up.
        retries = sdk.TcpReconnectionConfig(enabled=False, max_retries=0)
        client = sdk.IggyClient(
            sdk.TcpConfig(server_address=options.address, auto_login=login, reconnection=retries, nodelay=True, **tls)
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
        """Why the address accepts no TCP connection; None where it does."""
        host, _, port = self.options.address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), self.options.connect_timeout).close()
        except OSError as error:
            return "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
        return None


class Sending:
    """Messages that are being sent."""

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop, future: "asyncio.Future[Any]"):
        self._client, self._loop, self._future = client, loop, future

    def wait(self) -> int | None:
        """Wait until they are stored: the offset of the first message, or None where the server does not tell it. A
        Disconnected where it is not known whether they are stored.
        """

        async def limited() -> Any:
            return await asyncio.wait_for(self._future, self._client.options.request_timeout)

        try:
            confirmations = self._loop.run_until_complete(limited()).confirmations
        except Exception as error:
            raise self._client.meaning(error) from None
        return confirmations[0].base_offset if confirmations else None


def messages(values: Sequence[Any], ids: Sequence[int], headers: Sequence[Any] | None) -> "list[SendMessage]":
    """Messages for the SDK. `headers` has a list of (name, kind, value) for each message."""
    from apache_iggy import HeaderKey, HeaderValue, SendMessage

    if headers is None:
        return [SendMessage(value, None, number) for value, number in zip(values, ids, strict=True)]
    typed: list[Any] = [
        {HeaderKey.String(key): _header(HeaderValue, kind, value) for key, kind, value in row} or None
        for row in headers
    ]
    return [SendMessage(value, row, number) for value, row, number in zip(values, typed, ids, strict=True)]


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


async def _awaited(future: Awaitable[Any]) -> Any:
    """The SDK returns futures; asyncio wants coroutines."""
    return await future


def _sessions() -> dict[Hashable, _Session]:
    """The sessions of this process."""
    sessions: dict[Hashable, _Session] = shared("iggy", dict)
    return sessions
