"""Where streaming queries can be found from outside: Spark UIs, history servers, standalone masters, event logs,
checkpoints, and the API of our own runner. Asks them; what they answer is known to others here.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.checkpoints import storage
from penstock.checkpoints.lease import FILE, TTL, Holder
from penstock.checkpoints.log import Log
from penstock.clients.pages import TIMEOUT, Missing, Site
from penstock.errors import ConnectError, OptionError, PenstockError
from penstock.jobs import spark_ui
from penstock.jobs.event_logs import EventLogs
from penstock.jobs.events import type_of
from penstock.jobs.rows import Job, merged, number
from penstock.kit.masking import harmless

# Where Spark puts its UI: the first port that is free. Seconds for each to answer.
PORTS, PROBE = range(4040, 4050), 3.0
# Applications of a history server, and folders in folders.
MOST_APPLICATIONS, DEEPEST = 50, 8

LAST = 253_402_300_799  # the last second that a datetime has


@dataclass
class Places:
    """Where to look. Without any, the ports of this machine where Spark puts its UI."""

    spark: Sequence[str] = ()
    masters: Sequence[str] = ()
    events: Sequence[str] = ()
    checkpoints: Sequence[str] = ()
    apis: Sequence[str] = ()
    _logs: dict[str, EventLogs] = field(default_factory=dict)

    def look(self) -> tuple[list[Job], list[str]]:
        """All queries that are found, one row each; and what went wrong, in sentences. One place that cannot be asked
        does not hide what others tell.
        """
        asked: list[tuple[Any, str]] = [(_ui, url) for url in self.spark]
        asked += [(_master, url) for url in self.masters]
        asked += [(self._events, location) for location in self.events]
        asked += [(_checkpoints, location) for location in self.checkpoints]
        asked += [(_api, url) for url in self.apis]
        if not asked:
            return self._here()
        jobs: list[Job] = []
        problems: list[str] = []
        for ask, place in asked:
            try:
                found, more = ask(place)
            except PenstockError as error:
                problems.append(str(error))
            else:
                jobs += found
                problems += more
        return merged(jobs), problems

    def _events(self, location: str) -> tuple[list[Job], list[str]]:
        return self._logs.setdefault(location, EventLogs(location)).jobs()

    def _here(self) -> tuple[list[Job], list[str]]:
        """The queries of Spark UIs on this machine. What else listens on these ports is passed over."""

        def probe(port: int) -> list[Job] | None:
            try:
                return _ui(f"http://127.0.0.1:{port}", timeout=PROBE)[0]
            except PenstockError:
                return None

        with ThreadPoolExecutor(len(PORTS)) as pool:
            found = [jobs for jobs in pool.map(probe, PORTS) if jobs is not None]
        if not found:
            return [], [
                f"no Spark UI answers on this machine, at ports {PORTS[0]} to {PORTS[-1]}. Say where to look, by "
                "--spark, --master, --events or --checkpoints; of `penstock run --http`, by --api."
            ]
        return merged(job for jobs in found for job in jobs), []


def _ui(url: str, timeout: float = TIMEOUT) -> tuple[list[Job], list[str]]:
    """The queries of a Spark UI, or of the newest applications of a history server."""
    site = Site(url, timeout)
    try:
        applications = spark_ui.applications(site.json(f"/api/v1/applications?limit={MOST_APPLICATIONS}"))
    except Missing as error:
        raise ConnectError(f"{error} This is no Spark UI and no history server.") from None
    except ValueError as error:
        raise ConnectError(f"{site.url} is no Spark UI and no history server: its answer {error}.") from None
    found: list[Job] = []
    problems: list[str] = []
    for each in applications:
        try:
            found += _application(site, each)
        except (ConnectError, ValueError) as error:
            problems.append(f"application '{harmless(each.name)}' of {site.url} cannot be asked: {error}")
    return found, problems


def _application(site: Site, application: spark_ui.Application) -> list[Job]:
    page = ""
    for path in ("/StreamingQuery/", f"/history/{application.path}/StreamingQuery/"):
        try:
            page = site.text(path)
            break
        except ConnectError:  # it has no streaming queries, or is at the other address
            continue
    told = spark_ui.of_page(page, application, site.url, datetime.now(UTC))
    jobs = site.json(f"/api/v1/applications/{application.path}/jobs")
    return spark_ui.joined(told, spark_ui.of_jobs(jobs, application, site.url))


def _master(url: str) -> tuple[list[Job], list[str]]:
    """The queries of all applications that run on a standalone master, asked of their UIs."""
    site = Site(url.removesuffix("/").removesuffix("/json"))
    try:
        found = spark_ui.uis(site.json("/json/"), site.text("/"), f"{site.url}/")
    except ValueError as error:
        raise ConnectError(f"{site.url}/json/ {error}. Name the web address of the master, as port 8080.") from None
    jobs: list[Job] = []
    problems: list[str] = []
    for name, address in found:
        try:
            more, wrong = _ui(address)
            jobs, problems = [*jobs, *more], [*problems, *wrong]
        except PenstockError as error:
            problems.append(f"application '{name}' of {site.url} cannot be asked: {error}")
    return jobs, problems


def _checkpoints(location: str) -> tuple[list[Job], list[str]]:
    """The queries whose checkpoints are below a folder. What runs holds a lease, if Penstock runs it."""
    folder = storage.folder(location)
    if not folder.exists():
        raise OptionError(f"there is no folder '{folder.location}' to look for checkpoints in.")
    jobs: list[Job] = []
    problems: list[str] = []
    todo = [("", folder, 0)]
    while todo:
        below, at, depth = todo.pop()
        names = set(at.names())
        if {"metadata", "offsets"} <= names:
            try:
                head, mark, rest = location.partition("?")  # behind it may be credentials, which messages do not show
                log = Log(f"{head.rstrip('/')}/{below}{mark}{rest}".replace("/?", "?").rstrip("/"))
                jobs.append(
                    _checkpoint(
                        log, below.removeprefix(".penstock/") or at.location.rpartition("/")[2], has_lease=FILE in names
                    )
                )
            except PenstockError as error:
                problems.append(str(error))
        elif depth < DEEPEST:
            # A copy that a rewind has made has the id of its query, and tells of the past.
            inner = [name for name in at.folders() if not name.startswith("_") and ".before-rewind-" not in name]
            todo += [(f"{below}/{name}".lstrip("/"), at.within(name), depth + 1) for name in inner]
    return jobs, problems


def _checkpoint(log: Log, name: str, *, has_lease: bool) -> Job:
    last = log.last_planned
    entry = log.entry(last) if last is not None else None
    offsets = [offset.text for offset in entry.offsets().values() if offset is not None] if entry is not None else []
    return Job(
        log.query_id,
        harmless(name),
        state="running" if has_lease and _is_held(log.folder) else "not running",
        batch=log.last_committed,
        seen=entry.planned if entry is not None else None,
        sources=tuple(dict.fromkeys(filter(None, map(type_of, offsets)))),
        places=(log.where,),
    )


def _is_held(folder: storage.Folder) -> bool:
    """Whether a lease is alive: its holder has not ended, and has written it within the time for which it is good."""
    holder = Holder.parse(folder.read(FILE) or b"")
    written = folder.changed(FILE)
    if holder is not None and holder.is_dead():
        return False
    return written is None or datetime.now(UTC) - written < timedelta(seconds=TTL * 2)


def _api(url: str) -> tuple[list[Job], list[str]]:
    """The pipelines of a runner of ours, by its API. Off loopback it wants the key, which the environment has."""
    site = Site(url, key=os.environ.get("PENSTOCK_API_KEY", ""))
    answer = site.json("/pipelines")
    if not isinstance(answer, list) or not all(isinstance(each, dict) and "key" in each for each in answer):
        raise ConnectError(f"{site.url}/pipelines answers with something else than a list of pipelines.")
    return [of_pipeline(each, site.url) for each in answer], []


def of_pipeline(body: dict[str, Any], place: str) -> Job:
    """A pipeline as the API of a runner tells it. What it does not tell is left out."""
    key = harmless(body.get("key"))
    batch, lag, at = number(body.get("batch")), number(body.get("lag")), number(body.get("at"))
    sources = body.get("sources")
    return Job(
        harmless(body.get("query")) or f"{place}/pipelines/{key}",
        key,
        state=harmless(body.get("state")),
        batch=None if batch is None else int(batch),
        seen=None if at is None or not 0 < at < LAST else datetime.fromtimestamp(at, UTC),
        rate=number(body.get("rate")),
        lag=None if lag is None else int(lag),
        lag_seconds=number(body.get("lag_seconds")),
        sources=tuple(harmless(each)[:40] for each in sources[:20]) if isinstance(sources, list) else (),
        error=harmless(body.get("error")),
        places=(place,),
        told=datetime.now(UTC),
    )
