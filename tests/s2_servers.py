"""What tests need of S2: make streams, append, trim, read. By s2-sdk, which knows nothing of Penstock."""

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import s2_sdk
from s2_sdk import AppendInput, CommandRecord, ReadLimit, Record, SeqNum

from penstock.testing.s2_lite import S2Lite


class Cloud:
    """A server that is there already: S2_TEST_ENDPOINT (or the cloud's, where that is 'cloud'), S2_TEST_BASIN, and
    S2_ACCESS_TOKEN.
    """

    def __init__(self) -> None:
        self.url, self.basin = os.environ["S2_TEST_ENDPOINT"], os.environ["S2_TEST_BASIN"]

    def options(self) -> dict[str, str]:
        return {"basin": self.basin} | ({} if self.url == "cloud" else {"endpoint": self.url})


@contextlib.contextmanager
def server(folder: Path | None = None) -> Iterator[S2Lite | Cloud]:
    if "S2_TEST_ENDPOINT" in os.environ:
        yield Cloud()
        return
    with S2Lite(folder) as running:
        yield running


def lite(server: S2Lite | Cloud) -> S2Lite:
    """The server where it is ours, to stand a proxy before it or to look at it with its own tools."""
    if not isinstance(server, S2Lite):
        pytest.skip("this needs a server of our own, and S2_TEST_ENDPOINT names another")
    return server


class S2Admin:
    """The SDK, a call at a time."""

    def __init__(self, server: S2Lite | Cloud):
        self.server = server

    def _run(self, do: Any) -> Any:
        async def inside() -> Any:
            token = os.environ.get("S2_ACCESS_TOKEN", "ignored")
            options: dict[str, Any] = {}
            if self.server.url != "cloud":
                options["endpoints"] = s2_sdk.Endpoints(account=self.server.url, basin=self.server.url)
            async with s2_sdk.S2(token, **options) as client:
                return await do(
                    client[self.server.basin] if hasattr(client, "__getitem__") else client.basin(self.server.basin)
                )

        return asyncio.run(inside())

    def make(self, stream: str, **config: Any) -> None:
        given = {"config": s2_sdk.StreamConfig(**config)} if config else {}
        deadline = time.monotonic() + 60
        while True:
            try:
                self._run(lambda basin: basin.create_stream(stream, **given))
                return
            except s2_sdk.S2ServerError as error:  # one of the same name may be on its way out
                if error.code != "stream_deletion_pending" or time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def make_all(self, streams: Sequence[str]) -> None:
        async def do(basin: Any) -> None:
            for low in range(0, len(streams), 50):
                await asyncio.gather(*(basin.create_stream(name) for name in streams[low : low + 50]))

        self._run(do)

    def names(self, prefix: str) -> list[str]:
        return [info.name for info in self._run(lambda basin: basin.list_streams(prefix=prefix)).items]

    def delete(self, stream: str) -> None:
        self._run(lambda basin: basin.delete_stream(stream))

    def append(self, stream: str, records: Sequence[Record | bytes], **condition: Any) -> None:
        made = [record if isinstance(record, Record) else Record(record) for record in records]

        async def do(basin: Any) -> None:
            for low in range(0, len(made), 1000):
                await basin.stream(stream).append(AppendInput(made[low : low + 1000], **condition))

        self._run(do)

    def command(self, stream: str, record: Record) -> None:
        self.append(stream, [record])

    def trim(self, stream: str, position: int) -> None:
        self.append(stream, [CommandRecord.trim(position)])

    def tail(self, stream: str) -> int:
        return int(self._run(lambda basin: basin.stream(stream).check_tail()).seq_num)

    def read(self, stream: str) -> list[Any]:
        """Every record that is there, command records and all."""

        async def do(basin: Any) -> list[Any]:
            tail = (await basin.stream(stream).check_tail()).seq_num
            found: list[Any] = []
            if not tail or not (await basin.stream(stream).read(start=SeqNum(0))).records:
                return found
            async for batch in basin.stream(stream).read_session(start=SeqNum(0), limit=ReadLimit(count=tail)):
                found += batch.records
                if found and found[-1].seq_num >= tail - 1:
                    break
            return found

        return list(self._run(do))

    def read_some(self, stream: str, start: int) -> list[Any]:
        """What one request gives from a position on."""
        return list(self._run(lambda basin: basin.stream(stream).read(start=SeqNum(start))).records)

    def bodies(self, stream: str) -> list[bytes]:
        return [record.body for record in self.read(stream)]

    def bodies_if_there(self, stream: str) -> list[bytes]:
        try:
            return self.bodies(stream)
        except s2_sdk.S2ServerError as error:
            if error.code != "stream_not_found":
                raise
            return []
