"""A process of the load generator: takes jobs from its standard input, and tells what came of them on its standard
output, a line of JSON each. `python -m penstock.operate.bench`.

A job is pickled, as options have secrets: these travel through the pipe and are in no command line. It is prepared at
once, and begins when the word `go` comes, so that all processes begin together.
"""

import json
import os
import pickle
import resource
import struct
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import BinaryIO

from penstock.errors import PenstockError
from penstock.operate.bench import consuming, pacing, publishing
from penstock.operate.bench.jobs import Consume, Deliver, Job, Pace, Publish, Told


def main() -> None:
    """Do jobs until the pipe is closed."""
    source, said = sys.stdin.buffer, os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else prints must not be in between

    def tell(what: dict[str, object]) -> None:
        said.write(json.dumps(what) + "\n")

    while (job := _next(source)) is not None:
        try:
            begin = _prepared(job, tell)
            tell({"ready": True})
            if source.readline() != b"go\n":  # another one was not ready
                continue
            before = resource.getrusage(resource.RUSAGE_SELF)
            told = begin()
            after = resource.getrusage(resource.RUSAGE_SELF)
            told.cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            told.memory = after.ru_maxrss * 1024
            tell({"told": asdict(told)})
        except PenstockError as error:
            tell({"failed": str(error)})
        except Exception as error:  # anything else is a fault of ours, and still must not stop a run
            tell({"failed": f"{type(error).__name__} in the load generator: {error}"})


def _next(source: BinaryIO) -> Job | None:
    """The next job; None where the pipe is closed."""
    head = source.read(4)
    if len(head) < 4:
        return None
    job: Job = pickle.loads(source.read(struct.unpack(">I", head)[0]))
    return job


def _prepared(job: Job, tell: Callable[[dict[str, object]], None]) -> Callable[[], Told]:
    """What is to be done when all are ready."""
    if isinstance(job, Publish):
        return publishing.Publishing(job, tell).run
    if isinstance(job, Pace):
        return lambda: pacing.paced(job, tell)
    consumer = consuming.Consumer(job)
    if isinstance(job, Consume):
        return lambda: consuming.consumed(job, tell, consumer)
    assert isinstance(job, Deliver)
    return lambda: consuming.delivered(job, tell, consumer)
