"""A driver program that writes a few times, while a task is killed, or a stage is tried again as its input is gone."""

import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from penstock.spark.session import local_session

job = json.loads(sys.argv[1])
folder = Path(job["folder"])
conf = {
    "spark.log.level": "OFF",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    "spark.local.dir": str(folder / "local"),
    "spark.sql.adaptive.enabled": "false",
}
spark = local_session("retried", "local[2,4]", conf=conf)


class Write:
    """One write, and the harm that is done to it."""

    def __init__(self, number: int, how: str, format: str, options: dict[str, str]):
        self.how, self.format, self.options, self.attempts = how, format, options, folder / f"attempts-{number}"

    def run(self) -> tuple[int, int]:
        """How many attempts there were, and how many tasks."""
        threading.Thread(target=self.harm, daemon=True).start()
        attempts = self.attempts

        def noted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            """Each attempt leaves a line; the first ones are slow, so that there is time to do harm."""
            task = TaskContext.get()
            assert task is not None
            with attempts.open("a") as file:
                file.write(f"{task.partitionId()} {task.taskAttemptId()}\n")
            slow = len(attempts.read_text().splitlines()) <= 2
            for batch in batches:
                time.sleep(0.1 if slow else 0)
                yield batch

        rows = spark.range(job["rows"], numPartitions=2).repartition(6, "id")
        rows = rows.sortWithinPartitions("id")  # a shuffle keeps no order
        rows = rows.selectExpr("string(id) AS value").mapInArrow(noted, "value string")
        rows.write.format(self.format).options(**self.options).mode("append").save()
        return len(self.lines()), len({partition for partition, _ in self.lines()})

    def lines(self) -> list[tuple[int, int]]:
        text = self.attempts.read_text() if self.attempts.exists() else ""
        return [(int(partition), int(task)) for partition, task in (line.split() for line in text.splitlines())]

    def harm(self) -> None:
        """Once two tasks write: kill one of them, or take away what the others would read."""
        while len(self.lines()) < 2:
            time.sleep(0.02)
        time.sleep(0.4)
        if self.how == "task":
            spark.sparkContext._jsc.sc().killTaskAttempt(self.lines()[0][1], True, "a test")
            return
        for file in (folder / "local").rglob("shuffle_*"):
            file.unlink()


print(json.dumps([Write(number, *write).run() for number, write in enumerate(job["writes"])]), flush=True)
spark.stop()
