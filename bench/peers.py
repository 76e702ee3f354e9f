"""What we are measured against: the socket drained with nothing parsed, and nats-py's fetch."""

import asyncio
import json
import multiprocessing
import socket
import time

from penstock.clients.jetstream import api
from penstock.clients.jetstream.calls import Calls
from penstock.clients.nats.client import Connection
from penstock.connectors.jetstream.options import JetStreamOptions

PULL = 20_000


def _reader(url: str, stream: str) -> tuple[Connection, Calls]:
    options = JetStreamOptions.parse("jetstream", {"servers": url, "stream": stream})
    connection = Connection(options)
    return connection, Calls(connection, options)


def frame_bytes(url: str, stream: str, start: int, end: int) -> int:
    """How many bytes the server sends for a range, statuses left out: counted once, by parsing."""
    connection, calls = _reader(url, stream)
    made = calls.create(stream, api.reader(start, [], stream))
    sid, inbox = connection.subscribe()
    subject = f"{calls.prefix}.CONSUMER.MSG.NEXT.{stream}.{made['name']}"
    total = 0
    at, pulls = start, 0
    while at < end:
        batch = min(PULL, end - at)
        pulls += 1
        connection.publish(subject, json.dumps({"batch": batch, "no_wait": True}).encode(), f"{inbox}.{pulls}")
        seen = 0
        while seen < batch:
            scan = connection.receive(sid, linger=True)
            seen += len(scan.messages) if scan.messages is not None else 0
            total += scan.used - sum(len(b"PING\r\n") for _ in scan.others)
        at += batch
    connection.close()
    return total


def _drain(url: str, stream: str, start: int, end: int, size: int, ready: object, go: object, out: object) -> None:
    connection, calls = _reader(url, stream)
    made = calls.create(stream, api.reader(start, [], stream))
    _, inbox = connection.subscribe()
    subject = f"{calls.prefix}.CONSUMER.MSG.NEXT.{stream}.{made['name']}"
    raw: socket.socket = connection._socket
    raw.settimeout(20)
    buffer = bytearray(1 << 20)
    per_message = size / (end - start)
    asked, got, pulls = 0, 0, 0
    ready.release()  # type: ignore[attr-defined]
    go.wait()  # type: ignore[attr-defined]
    began, cpu = time.perf_counter(), time.process_time()
    while got < size:
        # Two pulls are kept in flight, as the source does; where we are is told by bytes, not by parsing.
        while asked < end - start and asked - got / per_message < 2 * PULL:
            batch = min(PULL, end - start - asked)
            pulls += 1
            connection.publish(subject, json.dumps({"batch": batch, "no_wait": True}).encode(), f"{inbox}.{pulls}")
            raw.settimeout(20)
            asked += batch
        got += raw.recv_into(buffer)
    out.put((began, time.perf_counter(), time.process_time() - cpu))  # type: ignore[attr-defined]
    connection.close()


def drain(url: str, stream: str, spans: list[tuple[int, int]], sizes: list[int]) -> float:
    """Seconds in which that many processes at once take all bytes of the ranges off their sockets."""
    context = multiprocessing.get_context("fork")
    ready, go, out = context.Semaphore(0), context.Event(), context.Queue()
    jobs = [
        context.Process(target=_drain, args=(url, stream, a, b, size, ready, go, out))
        for (a, b), size in zip(spans, sizes, strict=True)
    ]
    for job in jobs:
        job.start()
    for _ in jobs:
        ready.acquire()
    go.set()
    times = [out.get(timeout=60) for _ in jobs]
    for job in jobs:
        job.join()
    return max(end for _, end, _ in times) - min(begin for begin, _, _ in times)


def nats_py_fetch(url: str, stream: str, count: int) -> float:
    """Seconds in which nats-py fetches `count` messages, 1,000 at a time, without acknowledging."""

    async def run() -> float:
        import nats
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        client = await nats.connect(url)
        js = client.jetstream()
        config = ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL, mem_storage=True)
        subscription = await js.pull_subscribe("", stream=stream, config=config)
        began, seen = time.perf_counter(), 0
        while seen < count:
            seen += len(await subscription.fetch(min(1000, count - seen), timeout=10))
        took = time.perf_counter() - began
        await client.close()
        return took

    return asyncio.run(run())
