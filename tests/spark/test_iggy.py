"""Iggy under Spark: kill the driver in the middle, start it again, count every row."""

import itertools
import time
from pathlib import Path

from iggy_harness import IggyAdmin, Server, options
from spark.jobs import Job, jvm, kill, task_workers, wait

_names = itertools.count(1)
ROWS = 40_000


def test_a_driver_killed_in_mid_batch_leaves_every_row_once(
    iggy: Server, iggy_admin: IggyAdmin, tmp_path: Path
) -> None:
    stream = f"spark{time.time_ns()}-{next(_names)}"
    iggy_admin.make(stream, "in", 2)
    iggy_admin.make(stream, "out", 3)
    for partition in range(2):
        half = range(partition * ROWS // 2, (partition + 1) * ROWS // 2)
        iggy_admin.send(stream, "in", [b"%d" % i for i in half], partition)
    limits = {"startingOffsets": "earliest", "maxRecordsPerTrigger": "8000", "minPartitions": "2"}
    reach = options(iggy) | {"stream": stream}
    job = Job(
        tmp_path,
        {**reach, "topic": "in", **limits},
        sink={**reach, "topic": "out", "driverBytes": "1", "batchLength": "200"},
        master="local[2,4]",
        format="iggy",
    )
    with job.running() as process:
        wait(lambda: job.batch_done(2) and job.batch_open(3), process)
        time.sleep(0.05)
        kill(jvm(process) or 0)
        for pid in task_workers(process):
            kill(pid)
    before = len(iggy_admin.payloads(stream, "out"))
    assert 0 < before < ROWS, "it was killed too early or too late to prove anything"
    job.run()
    found = [int(value) for value in iggy_admin.payloads(stream, "out")]
    assert sorted(found) == list(range(ROWS))
