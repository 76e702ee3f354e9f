"""Reading JetStream: against the drained socket, nats-py, ten times the messages, and Spark's own source at a trickle."""

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from load import HEADERS, fill
from measure import cpu_seconds, median, processes, resident_mb, save
from peers import drain, frame_bytes, nats_py_fetch
from penstock.embedded import NatsServer
from penstock.session import local_session


def query(spark: Any, url: str, stream: str, **options: Any) -> dict[str, float]:
    """One AvailableNow run into noop; the batch with the rows: seconds, CPU and memory of the Python workers."""
    reader = spark.readStream.format("jetstream").option("servers", url).option("stream", stream)
    for key, value in options.items():
        reader = reader.option(key, value)
    before = cpu_seconds(_workers())
    jvm = processes("org.apache.spark.deploy.SparkSubmit")
    jvm_before, began = cpu_seconds(jvm), time.perf_counter()
    run = (
        reader.load()
        .writeStream.format("noop")
        .option("checkpointLocation", tempfile.mkdtemp(prefix="penstock-bench-"))
        .trigger(availableNow=True)
        .start()
    )
    run.awaitTermination()
    took = time.perf_counter() - began
    workers = _workers()
    batches = [p for p in run.recentProgress if p.numInputRows]
    return {
        "rows": sum(p.numInputRows for p in batches),
        "seconds": sum(p.durationMs["addBatch"] for p in batches) / 1000,
        "wall": took,
        "worker_cpu": cpu_seconds(workers) - before,
        "jvm_cpu": cpu_seconds(jvm) - jvm_before,
        "worker_mb": resident_mb(workers),
    }


def _workers() -> list[int]:
    """The processes that run tasks; those that plan have a module of pyspark.sql.worker in their command line."""
    return [pid for pid, line in processes("pyspark.daemon").items() if "pyspark.sql" not in line]


def throughput(spark: Any, url: str, count: int, rounds: int = 3) -> dict[str, Any]:
    """Drain, Penstock without and with headers, nats-py: alternating."""
    half = count // 2
    spans = [(1, half + 1), (half + 1, count + 1)]
    options = {"startingOffsets": "earliest", "minPartitions": 2, "maxRecordsPerPartition": count}
    sizes = {s: [frame_bytes(url, s, a, b) for a, b in spans] for s in ("PLAIN", "HEADED")}
    query(spark, url, "PLAIN", **options)  # warm
    seen: dict[str, list[float]] = {}
    for _ in range(rounds):
        for stream in ("PLAIN", "HEADED"):
            drained = drain(url, stream, spans, sizes[stream])
            ours = query(spark, url, stream, **options)
            assert ours["rows"] == count, ours
            seen.setdefault(f"{stream}_drain", []).append(count / drained)
            seen.setdefault(f"{stream}_penstock", []).append(count / ours["seconds"])
            seen.setdefault(f"{stream}_ratio", []).append(drained / ours["seconds"])
            seen.setdefault(f"{stream}_worker_us", []).append(ours["worker_cpu"] / count * 1e6)
            seen.setdefault(f"{stream}_jvm_us", []).append(ours["jvm_cpu"] / count * 1e6)
            print({k: round(v[-1], 3) for k, v in seen.items() if k.startswith(stream)}, flush=True)
        peer = min(count, 50_000)
        seen.setdefault("nats_py", []).append(peer / nats_py_fetch(url, "PLAIN", peer))
        seen.setdefault("times_nats_py", []).append(seen["PLAIN_penstock"][-1] / seen["nats_py"][-1])
    return {key: round(median(values), 3) for key, values in seen.items()}


def main() -> None:
    count = int(os.environ.get("COUNT", "1000000"))
    with tempfile.TemporaryDirectory() as folder, NatsServer(Path(folder)) as server:
        fill(server.url, "PLAIN", count)
        fill(server.url, "HEADED", count, headers=HEADERS)
        spark = local_session("bench", "local[2]")
        result = throughput(spark, server.url, count)
        print(result)
        save("jetstream-read", result)
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
