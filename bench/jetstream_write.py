"""Writing JetStream and Core NATS: beside a raw socket with the same frames, nats-py, and one way beside the other."""

import asyncio
import multiprocessing
import os
import socket
import tempfile
import time
from typing import Any

import nats
import numpy as np
import pyarrow as pa

from load import fill, publisher
from measure import cpu_seconds, median, processes, save
from penstock.arrow.buffers import join, numbers, offsets
from penstock.clients.jetstream.calls import Calls
from penstock.clients.nats.frames import frames
from penstock.connectors.jetstream.options import JetStreamSinkOptions
from penstock.connectors.jetstream.rows import chunk
from penstock.kit.contract import Origin
from penstock.session import local_session
from penstock.testing import NatsServer

SIZE, WINDOW, STEP = 200, 4000, 1000
WAYS = {"pipelined": {}, "atomic": {"allow_atomic": True}, "fast": {"allow_batched": True}}


def _raw(url: str, subject: str, partition: int, rows: int, begin: Any, out: Any) -> None:
    """Write frames that were made before, with ids, and count the acks: nothing is parsed."""
    options = JetStreamSinkOptions(subject=subject)
    values = pa.array([b"%0*d" % (SIZE, i) for i in range(rows)], pa.binary())
    origin = Origin(f"raw-{time.time()}", 0, partition)
    made = chunk(options, origin, pa.record_batch({"value": values}), 0)
    inbox = b"_INBOX.raw%d." % partition
    data = frames(made.subject, join(inbox, numbers(np.arange(rows))), made.block, made.value)
    at, view = offsets(data), memoryview(data.buffers()[2])
    host, port = url.removeprefix("nats://").split(":")
    with socket.create_connection((host, int(port))) as raw:
        raw.recv(65536)
        raw.sendall(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nSUB %s* 1\r\nPING\r\n' % inbox)
        raw.recv(65536)
        begin.wait()
        began = time.perf_counter()
        sent = acked = 0
        while acked < rows:
            while sent < rows and sent - acked + STEP <= WINDOW:
                high = min(rows, sent + STEP)
                raw.sendall(view[at[sent] : at[high]])
                sent = high
            acked += raw.recv(1 << 20).count(b"MSG _")
        out.put(time.perf_counter() - began)


def raw(url: str, stream: str, rows: int) -> float:
    """Two sockets at once, as Penstock has two tasks: the slower one's seconds."""
    context = multiprocessing.get_context("fork")
    begin, out = context.Barrier(2), context.Queue()
    each = [
        context.Process(target=_raw, args=(url, f"{stream}.x", partition, rows // 2, begin, out))
        for partition in (0, 1)
    ]
    for process in each:
        process.start()
    took = max(out.get() for _ in each)
    for process in each:
        process.join()
    return took


def ours(frame: Any, url: str, stream: str, rows: int, **options: str) -> dict[str, float]:
    """One write of two tasks by Spark."""
    before, served, began = cpu_seconds(_workers()), cpu_seconds(processes("nats-server")), time.perf_counter()
    writer = frame.write.format("jetstream").option("servers", url).option("subject", f"{stream}.x")
    writer.options(**options).mode("append").save()
    took = time.perf_counter() - began
    return {
        "rate": rows / took,
        "cpu_us": (cpu_seconds(_workers()) - before) / rows * 1e6,
        "server_us": (cpu_seconds(processes("nats-server")) - served) / rows * 1e6,
    }


def _workers() -> list[int]:
    return list(processes("pyspark.worker"))


def nats_py(url: str, subject: str, rows: int) -> float:
    """nats-py's own way to know that a message is stored: publish, wait, publish."""

    async def run() -> float:
        client = await nats.connect(url)
        js = client.jetstream()
        began = time.perf_counter()
        for i in range(rows):
            await js.publish(subject, b"%0*d" % (SIZE, i), headers={"Nats-Msg-Id": f"py/{i}"})
        took = time.perf_counter() - began
        await client.close()
        return took

    return asyncio.run(run())


def writing(spark: Any, url: str, rows: int, rounds: int = 3) -> dict[str, Any]:
    """Raw, pipelined, atomic, fast, at least once, nats-py: alternating."""
    frame = spark.range(0, rows, 1, 2).selectExpr(f"lpad(string(id), {SIZE}, '0') AS value")
    calls = Calls(publisher(url, "X"), publisher(url, "X").options)
    for name, flags in WAYS.items():
        stream = name.upper()
        calls.call(f"STREAM.CREATE.{stream}", {"name": stream, "subjects": [f"{stream}.>"], "storage": "file", **flags})
    for name in [*WAYS] * 2:  # until the JVM has compiled what it runs
        ours(frame, url, name.upper(), rows, publishMode=name)
    seen: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name in WAYS:
            calls.call(f"STREAM.PURGE.{name.upper()}")
        seen.setdefault("raw", []).append(rows / raw(url, "PIPELINED", rows))
        for name in WAYS:
            calls.call(f"STREAM.PURGE.{name.upper()}")
            got = ours(frame, url, name.upper(), rows, publishMode=name)
            assert calls.stream(name.upper()).messages == rows, "a row is missing or there twice"
            seen.setdefault(name, []).append(got["rate"])
            seen.setdefault(f"{name}_worker_us", []).append(got["cpu_us"])
            seen.setdefault(f"{name}_server_us", []).append(got["server_us"])
        got = ours(frame, url, "PIPELINED", rows, delivery="at_least_once")
        seen.setdefault("at_least_once", []).append(got["rate"])
        seen.setdefault("nats_py", []).append(2000 / nats_py(url, "PIPELINED.py", 2000))
        seen.setdefault("of_raw", []).append(seen["pipelined"][-1] / seen["raw"][-1])
        seen.setdefault("times_nats_py", []).append(seen["pipelined"][-1] / seen["nats_py"][-1])
        for name in ("atomic", "fast"):
            seen.setdefault(f"{name}_of_pipelined", []).append(seen[name][-1] / seen["pipelined"][-1])
        print({key: round(values[-1], 2) for key, values in seen.items()}, flush=True)
    return {key: round(median(values), 3) for key, values in seen.items()}


def through(spark: Any, url: str, rows: int, rounds: int = 3) -> dict[str, Any]:
    """JetStream to JetStream with a field added in SQL, beside the slower of the two halves alone."""
    fill(url, "SOURCE", rows)
    calls = Calls(publisher(url, "X"), publisher(url, "X").options)
    calls.call("STREAM.CREATE.COPY", {"name": "COPY", "subjects": ["COPY.>"], "storage": "file"})

    def read() -> Any:
        options = {"servers": url, "stream": "SOURCE", "startingOffsets": "earliest", "minPartitions": "2"}
        frame = spark.readStream.format("jetstream").options(**options, maxRecordsPerPartition=str(rows)).load()
        return frame.selectExpr("concat(string(value), subject) AS value")

    def run(frame: Any, format: str, **options: str) -> float:
        query = (
            frame.writeStream.format(format)
            .options(**options)
            .option("checkpointLocation", tempfile.mkdtemp(prefix="penstock-bench-"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return rows / (sum(p.durationMs["addBatch"] for p in query.recentProgress if p.numInputRows) / 1000)

    seen: dict[str, list[float]] = {}
    for _ in range(rounds):
        calls.call("STREAM.PURGE.COPY")
        seen.setdefault("read_half", []).append(run(read(), "noop"))
        whole = run(read(), "jetstream", servers=url, subject="COPY.x")
        assert calls.stream("COPY").messages == rows
        seen.setdefault("through", []).append(whole)
        frame = spark.range(0, rows, 1, 2).selectExpr(f"lpad(string(id), {SIZE}, '0') AS value")
        seen.setdefault("write_half", []).append(ours(frame, url, "COPY", rows)["rate"])
        slower = min(seen["read_half"][-1], seen["write_half"][-1])
        seen.setdefault("through_of_slower_half", []).append(whole / slower)
        print({key: round(values[-1], 2) for key, values in seen.items()}, flush=True)
    return {key: round(median(values), 3) for key, values in seen.items()}


def _listen(url: str, begin: Any, stop: Any, out: Any) -> None:
    """A socket that subscribes and counts, nothing else."""
    host, port = url.removeprefix("nats://").split(":")
    with socket.create_connection((host, int(port))) as drained:
        drained.recv(65536)
        drained.sendall(b'CONNECT {"verbose":false}\r\nSUB live.> 9\r\nPING\r\n')
        drained.recv(65536)
        begin.set()
        drained.settimeout(0.5)
        count = 0
        while not stop.is_set():
            try:
                count += drained.recv(1 << 20).count(b"MSG live.")
            except TimeoutError:
                continue
        out.put(count)


def core(spark: Any, url: str, rate: int, seconds: int = 8) -> dict[str, Any]:
    """Core NATS into noop at a steady rate, beside a socket that is drained at the same time."""
    context = multiprocessing.get_context("fork")
    begin, stop, out = context.Event(), context.Event(), context.Queue()
    listener = context.Process(target=_listen, args=(url, begin, stop, out))
    listener.start()
    begin.wait()
    query = (
        spark.readStream.format("nats")
        .option("servers", url)
        .option("subjects", "live.>")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", tempfile.mkdtemp(prefix="penstock-bench-"))
        .start()
    )
    while not query.recentProgress:
        time.sleep(0.05)
    connection = publisher(url, "X")
    frame = b"PUB live.x %d\r\n%s\r\n" % (SIZE, b"x" * SIZE) * 1000
    began, sent = time.perf_counter(), 0
    while sent < rate * seconds:
        connection.send(frame)
        sent += 1000
        time.sleep(max(0.0, began + sent / rate - time.perf_counter()))
    time.sleep(3)
    query.processAllAvailable()
    got = sum(p.numInputRows for p in query.recentProgress)
    query.stop()
    stop.set()
    drained = out.get()
    listener.join()
    result = {
        "core_rate": rate,
        "core_sent": sent,
        "core_drained": drained,
        "core_rows": got,
        "core_share": got / drained,
    }
    print(result, flush=True)
    return result


def main() -> dict[str, Any]:
    """All scenarios on one server and one session."""
    rows = int(os.environ.get("ROWS", "1200000"))
    with NatsServer() as server:
        spark = local_session("bench", "local[2]", conf={"spark.log.level": "ERROR"})
        result = {"rows": rows, "size": SIZE}
        result |= writing(spark, server.url, rows)
        result |= through(spark, server.url, rows)
        result |= core(spark, server.url, 50_000)
        spark.stop()
    return result


if __name__ == "__main__":
    save("jetstream-write", main())
