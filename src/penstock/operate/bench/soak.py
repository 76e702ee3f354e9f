"""A constant rate over a long time: what servers use, how late messages are and how much is stored, over time, and
whether any of it drifts. How slopes are judged is in figures.py.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.operate.bench import figures, streams
from penstock.operate.bench.jobs import Deliver, Job, Pace
from penstock.operate.bench.machine import disk_bytes, idle_seconds
from penstock.operate.bench.matrix import Scenario
from penstock.operate.bench.processes import Processes
from penstock.operate.bench.run import GRACE, Round, Server, Settings, calling, check_delivered

WARMING = 1 / 3  # the first part of a run: memory is taken and the stream fills up; it does not count
KEPT = 1 / 4  # of a run's messages are kept by the stream: then it has its size when the warming is over
WINDOWS = 60  # samples of a run
# What is judged, with its unit.
JUDGED = {
    "memory_mb": "memory of the servers, MB",
    "cores": "CPU of the servers, cores",
    "elsewhere": "CPU of everything else on the machine, cores",
    "ack_p50": "publish to ack, p50, ms",
    "ack_p99": "publish to ack, p99, ms",
    "delivered_p50": "publish to delivery, p50, ms",
    "delivered_p99": "publish to delivery, p99, ms",
    "stored_mb": "stored by the stream, MB",
    "disk_mb": "files of the servers, MB",
    "pending": "messages stored and not delivered",
}


def soak(
    scenario: Scenario,
    settings: Settings,
    run_id: str,
    server: Server,
    seconds: float,
    say: Callable[[str, float], None],
) -> dict[str, Any]:
    """Samples over time, and a verdict for each kind of figure."""
    window = max(1.0, seconds / WINDOWS)
    samples: list[dict[str, float]] = [{} for _ in range(int(seconds / window) + 2)]
    with Processes() as processes:
        measured = Round(scenario, settings, run_id, server, processes, say, seconds)
        kept = max(1000, int(settings.rate * seconds * KEPT) // scenario.stream_count)
        with measured.streams(max_msgs=kept):
            size, at = max(scenario.size, 21), measured.place
            jobs: list[Job] = [
                Pace(server.options, at, size, seconds, settings.rate, window),
                Deliver(
                    server.options, at, "d", scenario.consume, scenario.ack, size, seconds, settings.rate, window
                ),
            ]  # fmt: skip

            def hear(which: int, said: dict[str, Any]) -> None:
                for kind in ("ack", "delivered"):
                    if kind in said and said["window"] < len(samples):
                        into = samples[said["window"]]
                        into |= {f"{kind}_{p}": said[kind][p] for p in ("p50", "p99") if p in said[kind]}

            over = threading.Event()
            looking = threading.Thread(target=_look, args=(samples, measured, window, seconds, over), daemon=True)
            try:
                paced, delivered = processes.work(jobs, seconds + GRACE, hear, looking.start)
            finally:
                over.set()
                if looking.is_alive():
                    looking.join(10)
            check_delivered(paced, delivered, int(seconds * settings.rate))
            remarks = measured.remarks
            if times := paced.interruptions + delivered.interruptions:
                remarks.append(f"connections were lost and made anew, {times} times in all")
    return judged(samples, window, seconds) | {
        "scenario": scenario.name,
        "values": scenario.values(),
        "rate": settings.rate,
        "published": paced.messages,
        "delivered": delivered.messages,
        "remarks": remarks,
    }


def _look(
    samples: list[dict[str, float]],
    measured: Round,
    window: float,
    seconds: float,
    over: threading.Event,
) -> None:
    """Look at servers and streams at the end of each window. Runs in a thread, on a connection of its own."""
    server = measured.server
    before = server.look() if server.look is not None else None
    began = then = time.monotonic()
    idle = idle_seconds()
    for k in range(int(seconds / window)):
        if over.wait(max(0.0, began + (k + 1) * window - time.monotonic())):
            return
        into = samples[k]
        now, last = (server.look() if server.look is not None else None), then
        then = time.monotonic()
        if now is not None:
            into["memory_mb"] = now.memory / 2**20
            if before is not None:
                into["cores"] = (now.cpu - before.cpu) / (then - last)
        idle_before, idle = idle, idle_seconds()
        if idle is not None and idle_before is not None and "cores" in into and server.folders:
            busy = (os.cpu_count() or 1) - (idle - idle_before) / (then - last)
            into["elsewhere"] = max(0.0, busy - into["cores"])
        before = now
        try:
            with calling(server.options) as calls:
                _, size = streams.counts(calls, measured.place)
                into["stored_mb"] = size / 1e6
                infos = [calls.call(f"CONSUMER.INFO.{name}.d") for name in measured.place.streams]
                into["pending"] = float(sum(info.get("num_pending", 0) for info in infos))
        except PenstockError:
            pass  # the server is away: the sample has a gap
        if server.folders and measured.scenario.storage == "file":
            into["disk_mb"] = disk_bytes(server.folders) / 1e6
        measured.say("soak", measured.settings.rate)


def judged(samples: Sequence[Mapping[str, float]], window: float, seconds: float) -> dict[str, Any]:
    """The samples as columns, and for each kind of figure what its slope says. Pure."""
    moments = np.array([(k + 1) * window for k in range(len(samples))])
    verdicts, columns = {}, {}
    for name in JUDGED:
        here = np.array([k for k, each in enumerate(samples) if name in each], int)
        if not len(here):
            continue
        values = np.array([samples[k][name] for k in here], float)
        columns[name] = {"seconds": moments[here].round(3).tolist(), "values": [round(v, 6) for v in values.tolist()]}
        steady = moments[here] > WARMING * seconds
        line = figures.slope(moments[here][steady], values[steady])
        word, sentence = figures.verdict(line)
        verdicts[name] = {
            "verdict": word,
            "sentence": sentence,
            "per_hour": line.per_hour if np.isfinite(line.per_hour) else None,
            "plus_minus": line.plus_minus if np.isfinite(line.plus_minus) else None,
            "level": line.level if np.isfinite(line.level) else None,
        }
    return {"seconds": seconds, "window": window, "samples": columns, "verdicts": verdicts}
