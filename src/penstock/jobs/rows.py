"""Streaming queries as rows: one for each query, out of what several places tell of it. Pure: asks nobody."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any

from penstock.errors import OptionError

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Job:
    """A streaming query, as far as one place knows it. `id` stays the same over restarts.

    `state`: running, finished, failed, or not running; empty where it is not known. `seen`: when it last did something.
    `told`: how new the state is; of several states the newest holds. `lag`: records behind, `lag_seconds` where only
    times tell. `sources`: types of sources. `places`: where it was found.
    """

    id: str
    name: str = ""
    application: str = ""
    state: str = ""
    batch: int | None = None
    seen: datetime | None = None
    rate: float | None = None
    lag: int | None = None
    lag_seconds: float | None = None
    sources: Sequence[str] = ()
    error: str = ""
    places: Sequence[str] = ()
    told: datetime = field(default=LONG_AGO, compare=False)

    def as_json(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        body = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "told"}
        seen = None if self.seen is None else self.seen.isoformat()
        return {name: value or None if isinstance(value, str) else value for name, value in body.items()} | {
            "seen": seen, "sources": list(self.sources), "places": list(self.places)
        }  # fmt: skip


def merged(jobs: Iterable[Job]) -> list[Job]:
    """One row for each query, in the order of their names. What is newer replaces what is older, and what only one
    place knows is kept.
    """
    by_id: dict[str, Job] = {}
    for job in sorted(jobs, key=lambda job: job.told):
        by_id[job.id] = _joined(by_id[job.id], job) if job.id in by_id else job
    rows = [job if job.state == "running" else replace(job, rate=None) for job in by_id.values()]
    return sorted(rows, key=lambda job: (job.name or "~", job.id))


def _joined(old: Job, new: Job) -> Job:
    state = new.state or old.state
    batches = [batch for batch in (old.batch, new.batch) if batch is not None]
    moments = [moment for moment in (old.seen, new.seen) if moment is not None]
    is_past = bool(new.state) and new.state != "failed"
    return replace(
        new,
        name=new.name or old.name,  # the folder of a checkpoint stands in for a name, and is the oldest
        application=new.application or old.application,
        state=state,
        batch=max(batches, default=None),
        seen=max(moments, default=None),
        rate=new.rate if new.rate is not None else old.rate,
        lag=new.lag if new.lag is not None else old.lag,
        lag_seconds=new.lag_seconds if new.lag_seconds is not None else old.lag_seconds,
        sources=_known(old.sources, new.sources),
        error=new.error or ("" if is_past else old.error),
        places=tuple(dict.fromkeys((*old.places, *new.places))),
    )


def _known(old: Sequence[str], new: Sequence[str]) -> Sequence[str]:
    """The types of sources: a name says more than that it is one of ours."""
    return next((types for types in (new, old) if types and "penstock" not in types), new or old)


@dataclass(frozen=True)
class Wanted:
    """Which queries are asked for. `id`: how it begins. `name`: a regular expression. Nothing is asked where empty."""

    id: str = ""
    name: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        try:
            re.compile(self.name)
        except re.error as error:
            raise OptionError(
                f"'{self.name}' is no regular expression: {error}. Write one such as '^orders'."
            ) from None

    def select(self, jobs: Iterable[Job]) -> tuple[list[Job], str]:
        """The queries that match; and a sentence of those that may match, but do not tell what they read."""
        found = [job for job in jobs if job.id.startswith(self.id) and re.search(self.name, job.name)]
        if not self.source:
            return found, ""
        mine = [job for job in found if self.source in job.sources]
        unclear = [job for job in found if not job.sources or "penstock" in job.sources]
        if not unclear or self.source == "penstock":
            return mine, ""
        count = "1 query does" if len(unclear) == 1 else f"{len(unclear)} queries do"
        return mine, f"{count} not tell what they read, and may read {self.source} too: leave out --source to see them."


def moment(text: Any) -> datetime | None:
    """A time as Spark writes it: 2026-11-17T17:18:01.220Z, or with GMT; None where it is none."""
    try:
        found = datetime.fromisoformat(str(text).removesuffix("GMT").removesuffix("Z"))
    except ValueError:
        return None
    if found.year <= 1970:
        return None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def number(value: Any) -> float | None:
    """A number of JSON; None for all else, and for what is not finite."""
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_one and abs(value) < float("inf") else None
