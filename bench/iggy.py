"""Reading and writing Iggy beside what its SDK does in a loop with the same batches, per core.

There is no server in any registry: by default the double of the tests stands in, in a process of its own, which is slow
and the same for both sides. IGGY_TEST_ADDRESS measures a real one. What counts is our CPU beside the SDK's.
"""

import asyncio
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

import apache_iggy as sdk
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from measure import median, save
from penstock.connectors.iggy import Iggy
from penstock.kit.contract import Origin
from penstock.planning.positions import Range
from penstock.testing.iggy_double import IggyDouble

SIZE, COUNT = 200, 1000


def _serve(out: Any, stop: Any) -> None:
    with IggyDouble() as server:
        out.put(server.address)
        stop.wait()


async def _client(address: str) -> Any:
    login = sdk.AutoLogin.username_password("iggy", os.environ.get("IGGY_TEST_PASSWORD", "iggy"))
    client = sdk.IggyClient(sdk.TcpConfig(server_address=address, auto_login=login, nodelay=True))
    await client.connect()
    return client


def sdk_write(address: str, topic: str, rows: int) -> float:
    """CPU seconds of sending rows that lie ready as bytes."""

    async def run() -> float:
        client = await _client(address)
        values = [b"%0*d" % (SIZE, i) for i in range(rows)]
        began = time.process_time()
        for low in range(0, rows, COUNT):
            part = [sdk.SendMessage(value, None, i + 1) for i, value in enumerate(values[low : low + COUNT])]
            await client.send_messages("bench", topic, sdk.Partitioning.partition_id(0), part)
        return time.process_time() - began

    return asyncio.run(run())


def sdk_read(address: str, topic: str, rows: int, count: int) -> float:
    """CPU seconds of polling messages and taking payload, offset, timestamp and id of each."""

    async def run() -> float:
        client = await _client(address)
        began, at = time.process_time(), 0
        while at < rows:
            found = await client.poll_messages(
                "bench", topic, consumer=sdk.Consumer.Single(1), polling_strategy=sdk.PollingStrategy.Offset(at),
                count=count, auto_commit=False, partition_id=0,
            )  # fmt: skip
            kept = [(m.payload(), m.offset(), m.timestamp(), m.id()) for m in found]
            at = kept[-1][1] + 1
        return time.process_time() - began

    return asyncio.run(run())


def our_write(address: str, topic: str, rows: int) -> float:
    """CPU seconds of writing the same rows from columns, exactly once."""
    given = {"address": address, "password": "iggy", "stream": "bench", "topic": topic, "driverBytes": "1"}
    values = pa.array([b"%0*d" % (SIZE, i) for i in range(rows)], pa.binary())
    batches = [pa.record_batch({"value": values[low : low + 10_000]}) for low in range(0, rows, 10_000)]
    sink = Iggy.open_sink(Iggy.parse_sink(given), batches[0].schema)
    began = time.process_time()
    assert sink.write(iter(batches), Origin(f"bench-{time.time_ns()}", 0, 0)).rows == rows
    return time.process_time() - began


def our_read(address: str, topic: str, rows: int, count: int) -> float:
    """CPU seconds of reading into columns, all of them."""
    given = {"address": address, "password": "iggy", "stream": "bench", "topic": topic, "pollCount": str(count)}
    source = Iggy.open_source(Iggy.parse(given))
    began = time.process_time()
    assert sum(len(batch) for batch in source.read(Range(f"bench/{topic}/0", 0, rows))) == rows
    return time.process_time() - began


def main() -> dict[str, Any]:
    """Both ways, alternating; microseconds of CPU a row on our side of the socket."""
    rows, rounds = int(os.environ.get("ROWS", "100000")), 5
    context = multiprocessing.get_context("fork")
    out, stop = context.Queue(), context.Event()
    serving = None
    address = os.environ.get("IGGY_TEST_ADDRESS")
    if address is None:
        serving = context.Process(target=_serve, args=(out, stop))
        serving.start()
        address = out.get()
    seen: dict[str, list[float]] = {}

    async def make(topic: str) -> None:
        client = await _client(address)
        if await client.get_stream("bench") is None:
            await client.create_stream("bench")
        await client.create_topic("bench", topic, 1)

    try:
        for turn in range(rounds):
            for name, write in (("sdk", sdk_write), ("ours", our_write)):
                topic = f"{name}-{turn}-{time.time_ns()}"
                asyncio.run(make(topic))
                seen.setdefault(f"{name}_write_us", []).append(write(address, topic, rows) / rows * 1e6)
            for count in (COUNT, 10_000):
                for name, read in (("sdk", sdk_read), ("ours", our_read)):
                    seen.setdefault(f"{name}_read_{count}_us", []).append(
                        read(address, topic, rows, count) / rows * 1e6
                    )
            print({key: round(values[-1], 2) for key, values in seen.items()}, flush=True)
    finally:
        stop.set()
        if serving is not None:
            serving.join()
    result = {key: round(median(values), 3) for key, values in seen.items()}
    result["write_of_sdk"] = round(result["sdk_write_us"] / result["ours_write_us"], 3)
    for count in (COUNT, 10_000):
        result[f"read_of_sdk_{count}"] = round(result[f"sdk_read_{count}_us"] / result[f"ours_read_{count}_us"], 3)
    return {"rows": rows, "size": SIZE, "server": "double" if serving is not None else "real", **result}


if __name__ == "__main__":
    save("iggy", main())
