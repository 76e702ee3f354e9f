"""Events of Spark's streaming queries, as event logs have them: lines of JSON. Pure: opens no file.

An event of progress has all that a query tells of a batch, as `query.lastProgress` does.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from penstock.checkpoints.entries import Offset
from penstock.errors import OptionError
from penstock.jobs.rows import LONG_AGO, Job, merged, moment, number
from penstock.kit.masking import harmless
from penstock.spark.said import said
from penstock.watch.progress import source_of

_QUERY = '{"Event":"org.apache.spark.sql.streaming.StreamingQueryListener$'
_APPLICATION = '{"Event":"SparkListenerApplication'
# Longer lines are plans of queries, or not written by Spark.
LONGEST = 4 << 20


class Events:
    """What the events of one application tell, in the order in which they came."""

    def __init__(self, place: str, before: "Events | None" = None):
        """`before`: those of the file before, where the log of an application is in several."""
        self.place = place
        self.application: str = before.application if before else ""
        self.ended: bool = before.ended if before else False
        self.wrong = 0  # lines that are cut off or are no events
        self._jobs: dict[str, Job] = dict(before._jobs) if before else {}
        self._runs: dict[str, str] = dict(before._runs) if before else {}

    def take(self, lines: Iterable[str]) -> "Events":
        """Read lines. What is not about queries is passed over, and so is a last line that is just being written."""
        for line in lines:
            if not line.startswith((_QUERY, _APPLICATION)) or len(line) > LONGEST:
                continue
            try:
                event = json.loads(line)
                self._take(event["Event"].rpartition("$")[2], event)
            except (ValueError, KeyError, TypeError, AttributeError, OptionError):
                self.wrong += 1
        return self

    def jobs(self, *, running: bool) -> list[Job]:
        """The queries. `running`: whether the application is, as far as its log tells."""
        is_over = self.ended or not running
        return [
            replace(
                job,
                application=self.application,
                state="finished" if is_over and job.state == "running" else job.state,
            )
            for job in self._jobs.values()
        ]

    def _take(self, kind: str, event: Mapping[str, Any]) -> None:
        if kind == "SparkListenerApplicationStart":
            self.application = harmless(event["App Name"])
        elif kind == "SparkListenerApplicationEnd":
            self.ended = True
        elif kind == "QueryStartedEvent":
            when = moment(event["timestamp"])
            self._runs[event["id"]] = event["runId"]
            self._add(Job(str(event["id"]), harmless(event["name"]), state="running", seen=when, told=when or LONG_AGO))
        elif kind == "QueryProgressEvent":
            self._add(of_progress(event["progress"]))
        elif kind == "QueryIdleEvent":
            when = moment(event["timestamp"])
            self._add(Job(str(event["id"]), state="running", seen=when, told=when or LONG_AGO, rate=0.0))
        elif kind == "QueryTerminatedEvent":
            self._end(str(event["id"]), str(event["runId"]), event.get("exception"))

    def _end(self, id: str, run: str, exception: Any) -> None:
        if self._runs.get(id, run) != run:
            return  # of a run before the last one
        job = self._jobs.get(id, Job(id, places=(self.place,)))
        error = harmless(said(str(exception))) if exception else ""
        self._jobs[id] = replace(job, state="failed" if exception else "finished", error=error)

    def _add(self, job: Job) -> None:
        job = replace(job, places=(self.place,))
        known = self._jobs.get(job.id)
        self._jobs[job.id] = job if known is None else merged([replace(known, told=LONG_AGO), job])[0]


def of_progress(progress: Mapping[str, Any]) -> Job:
    """What one event of progress tells: also of a query that one asks for its last progress."""
    when = moment(progress["timestamp"])
    sources = [source for source in progress.get("sources") or [] if isinstance(source, Mapping)]
    told = [source_of(source) for source in sources]
    known = [source.lag for source in told if source.lag is not None]
    late = [source.lag_seconds for source in told if source.lag_seconds is not None]
    types = [
        harmless(each.format)[:40] or type_of(source.get("endOffset"))
        for each, source in zip(told, sources, strict=True)
    ]
    batch = number(progress.get("batchId"))
    return Job(
        str(progress["id"]),
        harmless(progress.get("name")),
        state="running",
        batch=None if batch is None else int(batch),
        seen=when,
        # Event logs have it only in the sources.
        rate=sum(number(source.get("processedRowsPerSecond")) or 0.0 for source in sources),
        lag=sum(known) if known else None,
        lag_seconds=max(late, default=None),
        sources=tuple(dict.fromkeys(filter(None, types))),
        told=when or LONG_AGO,
    )


def type_of(offset: Any) -> str:
    """What positions are of, by their shape: kafka, files, penstock, or nothing where it is not known."""
    text = offset if isinstance(offset, str) else json.dumps(offset)
    kind = Offset.parse(text).kind
    return kind if kind in ("kafka", "files", "penstock") else ""
