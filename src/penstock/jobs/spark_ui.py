"""What a Spark UI, a history server and a standalone master answer, as queries. Pure: asks nobody.

Spark has no REST endpoint for streaming queries. Their ids and batches stand in the descriptions of jobs, and their
states and errors only in the page that people read. Lag stands in neither: it is in event logs.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin

from penstock.jobs.rows import LONG_AGO, Job, merged, moment, number
from penstock.kit.masking import harmless
from penstock.spark.said import said

# The page has times without a zone. This is more than zones differ.
DAY = timedelta(days=1)
_STATES = {"RUNNING": "running", "FINISHED": "finished", "FAILED": "failed"}
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DESCRIPTION = re.compile(rf"(?s)(.*)\nid = ({_ID.pattern})\nrunId = {_ID.pattern}\nbatch = (\d+|init)")


@dataclass(frozen=True)
class Application:
    """An application of Spark. `attempt` is empty where it has no numbers."""

    id: str
    name: str
    attempt: str
    running: bool

    @property
    def path(self) -> str:
        """Where the REST API has it."""
        return f"{self.id}/{self.attempt}" if self.attempt else self.id


def applications(answer: Any) -> list[Application]:
    """From `/api/v1/applications`. A ValueError where it is something else."""
    if not isinstance(answer, list):
        raise ValueError("is no list of applications")
    found = []
    for each in answer:
        try:
            last = each["attempts"][0]  # the newest comes first
            name, attempt = harmless(each["name"]), str(last.get("attemptId") or "")
            found.append(Application(str(each["id"]), name, attempt, not last["completed"]))
        except (TypeError, KeyError, IndexError, AttributeError):
            raise ValueError("has an application without an id, a name or attempts") from None
    return found


def of_jobs(answer: Any, application: Application, place: str) -> list[Job]:
    """From `/api/v1/applications/ID/jobs`: the queries that have run jobs. A ValueError where it is something else."""
    if not isinstance(answer, list):
        raise ValueError("is no list of jobs")
    found = []
    for job in answer:
        match = _DESCRIPTION.match(str(job.get("description") or "")) if isinstance(job, Mapping) else None
        if match is None:
            continue
        when = moment(job.get("submissionTime"))
        batch = int(match[3]) if match[3].isdigit() else None
        found.append(
            Job(
                match[2],
                harmless(match[1]),
                application.name,
                batch=batch,
                seen=when,
                places=(place,),
                state="running" if application.running else "finished",
                told=when or LONG_AGO,
            )
        )
    return merged(found)


def of_page(page: str, application: Application, place: str, now: datetime) -> list[Job]:
    """From the page `/StreamingQuery/`: states, rates and errors. Nothing where it has no such tables.

    A query of a page that is running is so now; one that has ended is older than whatever tells that it runs again.
    """
    cells = _Cells()
    cells.feed(page)
    cells.close()
    found = []
    for row in cells.rows:
        if len(row) < 9 or row[1] not in _STATES or not _ID.fullmatch(row[2]):
            continue
        name = "" if row[0] == "<no name>" else harmless(row[0])
        state = _STATES[row[1]]
        if state == "running" and not application.running:
            state = "finished"  # its end was not written
        began = moment(row[4].replace("/", "-"))
        found.append(
            Job(
                row[2],
                name,
                application.name,
                state,
                int(row[8]) if row[8].isdigit() else None,
                rate=_decimal(row[7]),
                error=harmless(said(row[9])) if len(row) > 9 and row[9] != "-" else "",
                places=(place,),
                told=now if state == "running" else began - DAY if began is not None else LONG_AGO,
            )
        )
    return merged(found)


def joined(of_page: Sequence[Job], of_jobs: Sequence[Job]) -> list[Job]:
    """What the page and the jobs of one application tell. States are those of the page, where it has the query."""
    states = {job.id: job for job in of_page}
    rest = [replace(job, state=states[job.id].state, told=LONG_AGO) if job.id in states else job for job in of_jobs]
    return merged([*rest, *of_page])


def uis(json_page: Any, html: str, base: str) -> list[tuple[str, str]]:
    """The applications that run on a standalone master, and the addresses of their UIs: its `/json/` has the
    applications, and its page the addresses. A ValueError where it is something else.
    """
    active = json_page.get("activeapps") if isinstance(json_page, Mapping) else None
    if not isinstance(active, list):
        raise ValueError("is not the state of a standalone master")
    found = []
    for app in active:
        id = str(app.get("id", "")) if isinstance(app, Mapping) else ""
        after = html.partition(f'appId={id}"')[2] if id else ""
        links = re.findall(r'href="(https?://[^"]+|proxy/[^"]+)"', after.partition("</tr>")[0])
        if links:
            found.append((harmless(app.get("name")), urljoin(base, links[0])))
    return found


def _decimal(text: str) -> float | None:
    try:
        return number(float(text.replace(",", "")))
    except ValueError:
        return None


class _Cells(HTMLParser):
    """The text of each cell, row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A row or a cell begins."""
        if tag == "tr":
            self.rows.append([])
        elif tag == "td" and self.rows:
            self.rows[-1].append("")
            self._inside = True

    def handle_endtag(self, tag: str) -> None:
        """A cell ends."""
        if tag == "td":
            self._inside = False
            if self.rows and self.rows[-1]:
                self.rows[-1][-1] = self.rows[-1][-1].strip()

    def handle_data(self, data: str) -> None:
        """Text, perhaps of a cell."""
        if self._inside and self.rows and self.rows[-1]:
            self.rows[-1][-1] += data
