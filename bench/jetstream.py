"""Reading JetStream: against the drained socket, nats-py, ten times the messages, and Spark's own rate source."""

import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from load import HEADERS, fill, publisher
from measure import cpu_seconds, median, processes, resident_mb, save
from peers import drain, frame_bytes, nats_py_fetch
from penstock.session import local_session
from penstock.testing import NatsServer


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
    return list(processes("pyspark.worker"))


def throughput(spark: Any, url: str, count: int, rounds: int = 3) -> dict[str, Any]:
    """Drain, Penstock without and with headers, nats-py: alternating."""
    half = count // 2
    spans = [(1, half + 1), (half + 1, count + 1)]
    options = {"startingOffsets": "earliest", "minPartitions": 2, "maxRecordsPerPartition": count}
    sizes = {s: [frame_bytes(url, s, a, b) for a, b in spans] for s in ("PLAIN", "HEADED")}
    for stream in ("PLAIN", "HEADED") * 4:  # until the JVM has compiled what it runs
        query(spark, url, stream, **options)
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


def scaling(spark: Any, url: str, rounds: int = 3) -> dict[str, Any]:
    """Ten times the messages: how much longer, and do the workers grow."""
    options = {"startingOffsets": "earliest", "minPartitions": 2, "maxRecordsPerPartition": 10**9}
    seen: dict[str, list[float]] = {"times": [], "memory": []}
    for _ in range(rounds):
        one, ten = query(spark, url, "PLAIN", **options), query(spark, url, "TEN", **options)
        assert ten["rows"] == 10 * one["rows"]
        seen["times"].append(ten["seconds"] / one["seconds"])
        seen["memory"].append(ten["worker_mb"] / one["worker_mb"])
        print("ten times:", {k: round(v[-1], 3) for k, v in seen.items()}, flush=True)
    return {f"ten_{key}": round(median(values), 3) for key, values in seen.items()}


def trickle(spark: Any, url: str, rounds: int = 3, seconds: int = 20) -> dict[str, Any]:
    """A message a second: the median micro-batch beside that of Spark's own rate-micro-batch, alternating."""
    fill(url, "TRICKLE", 1)
    connection = publisher(url, "TRICKLE")
    seen: dict[str, list[float]] = {"rate": [], "penstock": []}
    for _ in range(rounds):
        rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        ours = spark.readStream.format("jetstream").option("servers", url).option("stream", "TRICKLE").load()
        for name, frame in (("rate", rate), ("penstock", ours)):
            run = (
                frame.writeStream.format("noop")
                .option("checkpointLocation", tempfile.mkdtemp(prefix="penstock-bench-"))
                .trigger(processingTime="1 second")
                .start()
            )
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                connection.publish("TRICKLE.1", b"x" * 200)
                time.sleep(1)
            run.stop()
            batches = [p.durationMs["triggerExecution"] for p in run.recentProgress if p.numInputRows][3:]
            seen[name].append(median(batches))
        print("trickle:", {k: round(v[-1], 1) for k, v in seen.items()}, flush=True)
    ratios = [ours / rate for ours, rate in zip(seen["penstock"], seen["rate"], strict=True)]
    return {
        "trickle_ratio": round(median(ratios), 3),
        "trickle_ms": round(median(seen["penstock"]), 1),
        "trickle_rate_ms": round(median(seen["rate"]), 1),
    }


COLD = """
import json, sys, tempfile, time
from penstock.session import local_session
url, lean = sys.argv[1], sys.argv[2] == "lean"
began = time.perf_counter()
spark = local_session("cold", "local[2]", lean=lean, conf={"spark.log.level": "ERROR"})
ready = time.perf_counter()
frame = spark.readStream.format("jetstream").option("servers", url).option("stream", "PLAIN").load()
loaded = time.perf_counter()
run = frame.writeStream.format("noop").option("checkpointLocation", tempfile.mkdtemp()).start()
while not run.recentProgress:
    time.sleep(0.01)
print(json.dumps({"session": ready - began, "load": loaded - ready, "first_batch": time.perf_counter() - loaded}))
run.stop()
"""


def cold(url: str, rounds: int = 3) -> dict[str, Any]:
    """From start() to the first finished batch in a new process, as Spark comes and with our lean path."""
    seen: dict[str, list[float]] = {}
    for _ in range(rounds):
        for kind in ("plain", "lean"):
            ran = subprocess.run([sys.executable, "-c", COLD, url, kind], capture_output=True, text=True, check=True)
            for part, took in json.loads(ran.stdout.splitlines()[-1]).items():
                seen.setdefault(f"cold_{kind}_{part}", []).append(took)
        print("cold:", {k: round(v[-1], 2) for k, v in seen.items()}, flush=True)
    return {key: round(median(values), 2) for key, values in seen.items()}


def main() -> dict[str, Any]:
    """All scenarios on one server and one session, about ten minutes."""
    count = int(os.environ.get("COUNT", "1000000"))
    only = os.environ.get("ONLY", "throughput,scaling,trickle,cold").split(",")
    result: dict[str, Any] = {"messages": count}
    with NatsServer() as server:
        fill(server.url, "PLAIN", count)
        fill(server.url, "HEADED", count, headers=HEADERS)
        if "cold" in only:
            result |= cold(server.url)
        spark = local_session("bench", "local[2]", conf={"spark.log.level": "ERROR"})
        if "trickle" in only:
            result |= trickle(spark, server.url)
        if "throughput" in only:
            result |= throughput(spark, server.url, count)
        if "scaling" in only:
            fill(server.url, "TEN", 10 * count)
            result |= scaling(spark, server.url)
        spark.stop()
    return result


if __name__ == "__main__":
    save("jetstream-read", main())
