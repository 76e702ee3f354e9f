"""What tests need of Iggy: make topics, send, read. By the SDK, straight, and knowing nothing of Penstock."""

import asyncio
import atexit
import contextlib
import functools
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import apache_iggy as sdk

from penstock.testing.iggy_double import IggyDouble


class Real:
    """A server that is there already: IGGY_TEST_ADDRESS, with the user and password iggy, or IGGY_TEST_PASSWORD."""

    def __init__(self) -> None:
        self.address = os.environ["IGGY_TEST_ADDRESS"]


Server = IggyDouble | Real


@contextlib.contextmanager
def server() -> Iterator[Server]:
    if "IGGY_TEST_ADDRESS" in os.environ:
        yield Real()
        return
    with IggyDouble() as running:
        yield running


def options(server: Server) -> dict[str, str]:
    """What a reader or writer needs to reach it."""
    return {"address": server.address, "username": "iggy", "passwordFile": _password_file()}


@functools.cache
def _password_file() -> str:
    """A file, as a table in a catalog needs one: it keeps no passwords."""
    with tempfile.NamedTemporaryFile("w", prefix="penstock-iggy-", delete=False) as file:
        file.write(os.environ.get("IGGY_TEST_PASSWORD", "iggy"))
    atexit.register(os.unlink, file.name)
    return file.name


class IggyAdmin:
    """The SDK, a call at a time."""

    def __init__(self, server: Server):
        self.server = server

    def run(self, do: Any) -> Any:
        async def inside() -> Any:
            login = sdk.AutoLogin.username_password("iggy", os.environ.get("IGGY_TEST_PASSWORD", "iggy"))
            retries = sdk.TcpReconnectionConfig(max_retries=0)
            config = sdk.TcpConfig(server_address=self.server.address, auto_login=login, reconnection=retries)
            client = sdk.IggyClient(config)
            await client.connect()
            return await do(client)

        return asyncio.run(inside())

    def make(self, stream: str, topic: str, partitions: int = 1) -> None:
        async def do(client: Any) -> None:
            if await client.get_stream(stream) is None:
                await client.create_stream(stream)
            await client.create_topic(stream, topic, partitions)

        self.run(do)

    def delete(self, stream: str, topic: str) -> None:
        self.run(lambda client: client.delete_topic(stream, topic))

    def purge(self, stream: str, topic: str) -> None:
        self.run(lambda client: client.purge_topic(stream, topic))

    def grow(self, stream: str, topic: str, more: int) -> None:
        self.run(lambda client: client.create_partitions(stream, topic, more))

    def send(self, stream: str, topic: str, values: Sequence[bytes], partition: int = 0, **more: Any) -> None:
        async def do(client: Any) -> None:
            to = sdk.Partitioning.partition_id(partition)
            for low in range(0, len(values), 1000):
                part = [sdk.SendMessage(value, **more) for value in values[low : low + 1000]]
                await client.send_messages(stream, topic, to, part)

        self.run(do)

    def next(self, stream: str, topic: str, consumer: str) -> list[Any]:
        """What a consumer of this name is given next, of the first partition."""

        async def do(client: Any) -> list[Any]:
            found = await client.poll_messages(
                stream, topic, consumer=sdk.Consumer.Single(consumer), polling_strategy=sdk.PollingStrategy.Next(),
                count=100, auto_commit=False, partition_id=0,
            )  # fmt: skip
            return list(found)

        found: list[Any] = self.run(do)
        return found

    def read(self, stream: str, topic: str) -> list[Any]:
        """Every message of every partition, in order of the partitions."""

        async def do(client: Any) -> list[Any]:
            found: list[Any] = []
            details = await client.get_topic(stream, topic)
            for partition in details.partitions if details else []:
                at = 0
                while True:
                    some = await client.poll_messages(
                        stream, topic, consumer=sdk.Consumer.Single(1), polling_strategy=sdk.PollingStrategy.Offset(at),
                        count=5000, auto_commit=False, partition_id=partition.id,
                    )  # fmt: skip
                    if not some:
                        break
                    found += some
                    at = some[-1].offset() + 1
            return found

        return list(self.run(do))

    def count(self, stream: str, topic: str) -> int:
        """How many messages there are."""
        details = self.run(lambda client: client.get_topic(stream, topic))
        return sum(partition.messages_count for partition in details.partitions)

    def payloads(self, stream: str, topic: str) -> list[bytes]:
        return [message.payload() for message in self.read(stream, topic)]

    def wait(self, what: Any, seconds: float = 10) -> None:
        deadline = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < deadline, "it did not happen"
            time.sleep(0.02)
