"""Reading and writing S2: beside s2-sdk, beside a socket that is drained, and a thousand small streams at once."""

import asyncio
import multiprocessing
import os
import tempfile
import time
from typing import Any

import pyarrow as pa
import s2_sdk

from jetstream_write import _workers
from measure import cpu_seconds, median, save
from penstock.clients.s2.appends import append_input, encode
from penstock.clients.s2.calls import SESSION, Calls, path
from penstock.clients.s2.http import Request
from penstock.clients.s2.session import Session
from penstock.connectors.s2.chain import Batch
from penstock.connectors.s2.options import S2SinkOptions
from penstock.session import local_session
from penstock.testing.s2_lite import S2Lite

SIZE = 200


def _options(server: S2Lite, **more: Any) -> S2SinkOptions:
    return S2SinkOptions.parse("s2", {**server.options(), **more})


def fill(server: S2Lite, stream: str, rows: int) -> None:
    """A stream of records, by one session."""
    calls = Calls(_options(server))
    calls.make(stream, {})
    calls.close()
    session = Session(_options(server), stream)
    for low in range(0, rows, 1000):
        count = min(1000, rows - low)
        data = encode(pa.array([b"%0*d" % (SIZE, i) for i in range(low, low + count)], pa.binary()))
        session.send(Batch(low + count, count, low, append_input(bytes(data.joined()), None)))
        while session.size > 8 << 20:
            session.receive()
    while session.unacked:
        session.receive()
    session.close()


def _drain(server: S2Lite, stream: str, low: int, high: int, begin: Any, out: Any) -> None:
    calls = Calls(_options(server))
    connection = calls.open()
    begin.wait()
    began = time.perf_counter()
    where = f"{path(stream)}?seq_num={low}&count={high - low}&wait=0"
    _, body = connection.stream(Request("GET", where, SESSION))
    size = sum(map(len, body))
    out.put((time.perf_counter() - began, size))


def drain(server: S2Lite, stream: str, rows: int, sockets: int) -> float:
    """Records a second of so many sockets at once whose bodies are thrown away."""
    context = multiprocessing.get_context("fork")
    begin, out = context.Barrier(sockets), context.Queue()
    edges = [rows * i // sockets for i in range(sockets + 1)]
    each = [
        context.Process(target=_drain, args=(server, stream, edges[i], edges[i + 1], begin, out))
        for i in range(sockets)
    ]
    for process in each:
        process.start()
    took = max(out.get()[0] for _ in each)
    for process in each:
        process.join()
    return rows / took


def _client(server: S2Lite) -> Any:
    return s2_sdk.S2("ignored", endpoints=s2_sdk.Endpoints(account=server.url, basin=server.url))


def sdk_read(server: S2Lite, stream: str, rows: int) -> float:
    async def run() -> float:
        async with _client(server) as client:
            target = client.basin(server.basin).stream(stream)
            began, seen = time.perf_counter(), 0
            limit = s2_sdk.ReadLimit(count=rows)
            async for batch in target.read_session(start=s2_sdk.SeqNum(0), limit=limit):
                seen += len(batch.records)
                if seen >= rows:
                    break
            return rows / (time.perf_counter() - began)

    return asyncio.run(run())


def sdk_write(server: S2Lite, stream: str, rows: int) -> float:
    """An append session with as much under way as Penstock has."""

    async def run() -> float:
        async with _client(server) as client:
            target = client.basin(server.basin).stream(stream)
            bodies = [b"%0*d" % (SIZE, i) for i in range(rows)]
            began = time.perf_counter()
            session = target.append_session(max_unacked_bytes=32 << 20)
            tickets = [
                await session.submit(s2_sdk.AppendInput([s2_sdk.Record(b) for b in bodies[low : low + 1000]]))
                for low in range(0, rows, 1000)
            ]
            for ticket in tickets:
                await ticket
            await session.close()
            return rows / (time.perf_counter() - began)

    return asyncio.run(run())


def into_noop(spark: Any, server: S2Lite, rows: int, **options: str) -> dict[str, float]:
    """Spark's own time for the rows of one AvailableNow run, and the workers' CPU for each."""
    before = cpu_seconds(_workers())
    query = (
        spark.readStream.format("s2")
        .options(**server.options(), startingOffsets="earliest", minPartitions="2", maxRecordsPerPartition=str(rows))
        .options(**options)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", tempfile.mkdtemp(prefix="penstock-bench-"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sum(p.numInputRows for p in query.recentProgress) == rows
    took = sum(p.durationMs["addBatch"] for p in query.recentProgress if p.numInputRows) / 1000
    return {"rate": rows / took, "cpu_us": (cpu_seconds(_workers()) - before) / rows * 1e6}


def out_of_spark(spark: Any, server: S2Lite, prefix: str, rows: int) -> dict[str, float]:
    """Two tasks, each to a stream of its own, exactly once."""
    frame = spark.range(0, rows, 1, 2).selectExpr(f"lpad(string(id), {SIZE}, '0') AS value")
    before, began = cpu_seconds(_workers()), time.perf_counter()
    writer = frame.write.format("s2").options(**server.options(), stream=f"{prefix}/{{partition}}", ensureStream="true")
    writer.mode("append").save()
    took = time.perf_counter() - began
    return {"rate": rows / took, "cpu_us": (cpu_seconds(_workers()) - before) / rows * 1e6}


def small_streams(spark: Any, server: S2Lite, streams: int, each: int) -> dict[str, float]:
    """Packed into tasks, beside one session of the SDK for each stream, a hundred of them at a time."""

    async def sessions() -> float:
        async with _client(server) as client:
            basin = client.basin(server.basin)

            async def one(i: int) -> None:
                seen = 0
                limit = s2_sdk.ReadLimit(count=each)
                stream = basin.stream(f"small/{i:04}")
                async for batch in stream.read_session(start=s2_sdk.SeqNum(0), limit=limit):
                    seen += len(batch.records)
                    if seen >= each:
                        return

            began = time.perf_counter()
            for low in range(0, streams, 100):
                await asyncio.gather(*(one(i) for i in range(low, min(streams, low + 100))))
            return streams / (time.perf_counter() - began)

    ours = into_noop(spark, server, streams * each, streamPrefix="small/")
    return {"packed": ours["rate"] / each, "sessions": asyncio.run(sessions())}


def main() -> dict[str, Any]:
    """All scenarios on one server in memory and one session, alternating."""
    rows, rounds = int(os.environ.get("ROWS", "600000")), 5
    seen: dict[str, list[float]] = {}

    def note(**values: float) -> None:
        for key, value in values.items():
            seen.setdefault(key, []).append(value)

    with S2Lite() as server:
        spark = local_session("bench", "local[2]", conf={"spark.log.level": "ERROR"})
        fill(server, "source", rows)
        for i in range(1000):
            fill(server, f"small/{i:04}", 100)
        for warm in range(2):
            into_noop(spark, server, rows, streams="source")
            out_of_spark(spark, server, f"warm/{warm}", rows)
        for turn in range(rounds):
            read = into_noop(spark, server, rows, streams="source")
            note(read=read["rate"], read_us=read["cpu_us"])
            before = time.process_time()
            note(sdk_read=sdk_read(server, "source", rows // 3))
            note(sdk_read_us=(time.process_time() - before) / (rows // 3) * 1e6)
            note(drain=drain(server, "source", rows, 2), drain_one=drain(server, "source", rows, 1))
            wrote = out_of_spark(spark, server, f"out/{turn}", rows)
            note(write=wrote["rate"], write_us=wrote["cpu_us"])
            fill(server, f"sdk/{turn}", 1)
            before = time.process_time()
            note(sdk_write=sdk_write(server, f"sdk/{turn}", rows // 3))
            note(sdk_write_us=(time.process_time() - before) / (rows // 3) * 1e6)
            note(**small_streams(spark, server, 1000, 100))
            last = {key: values[-1] for key, values in seen.items()}
            note(read_of_sdk=last["read"] / last["sdk_read"], read_of_drain=last["read"] / last["drain"])
            note(read_of_drain_one=last["read"] / last["drain_one"])
            note(write_of_sdk=last["write"] / last["sdk_write"], packed_of_sessions=last["packed"] / last["sessions"])
            print({key: round(values[-1], 2) for key, values in seen.items()}, flush=True)
        spark.stop()
    return {"rows": rows, "size": SIZE} | {key: round(median(values), 3) for key, values in seen.items()}


if __name__ == "__main__":
    save("s2", main())
