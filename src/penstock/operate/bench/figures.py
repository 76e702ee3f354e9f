"""Arithmetic on measured figures: percentiles, medians with their spread, slopes with their uncertainty, comparisons of
runs. Pure: knows no server and no clock.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Metric(NamedTuple):
    """A figure of a scenario, as tables, plots and comparisons show it."""

    key: str
    title: str
    unit: str
    more_is_better: bool | None  # None where neither is
    plot: bool = False


PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9, "max": 100.0}
_SHOWN = {"p50": "p50", "p90": "p90", "p99": "p99", "p999": "p99.9", "max": "max"}
METRICS = (
    Metric("publish_rate", "publishing", "messages/s", True, plot=True),
    Metric("publish_mb", "publishing", "MB/s", True),
    Metric("consume_rate", "consuming", "messages/s", True, plot=True),
    Metric("consume_mb", "consuming", "MB/s", True),
    *(Metric(f"ack_{p}", f"publish to ack, {_SHOWN[p]}", "ms", False, plot=p == "p99") for p in PERCENTILES),
    *(Metric(f"delivered_{p}", f"publish to delivery, {_SHOWN[p]}", "ms", False, plot=p == "p99") for p in PERCENTILES),
    Metric("late_p99", "sent late by the load generator, p99", "ms", None),
    Metric("stored_bytes", "stored for each message, by the stream's state", "bytes", False, plot=True),
    Metric("disk_bytes", "on the disk for each message, all copies", "bytes", False),
    Metric("publish_server_cores", "CPU of the servers while publishing", "cores", None),
    Metric("consume_server_cores", "CPU of the servers while consuming", "cores", None),
    Metric("publish_load_cores", "CPU of the load generator while publishing", "cores", None),
    Metric("consume_load_cores", "CPU of the load generator while consuming", "cores", None),
    Metric("server_mb", "memory of the servers, at most", "MB", False),
)  # fmt: skip
BY_KEY = {each.key: each for each in METRICS}


def percentiles(values: Floats) -> dict[str, float]:
    """The percentiles of PERCENTILES. One that would be the maximum of too few values is left out: p99 needs a hundred
    values, p99.9 a thousand.
    """
    if not len(values):
        return {}
    wanted = {name: at for name, at in PERCENTILES.items() if at == 100 or len(values) >= round(100 / (100 - at))}
    ordered = np.sort(values)
    # The smallest value that so many are not above. Numbers such as 99.9 are not exact: a little less still is it.
    return {name: float(ordered[math.ceil(at / 100 * len(values) - 1e-6) - 1]) for name, at in wanted.items()}


class Spread(NamedTuple):
    """A figure over rounds."""

    median: float
    low: float
    high: float
    rounds: int


def spread(values: Sequence[float]) -> Spread:
    """The median of some rounds, the lowest and the highest."""
    return Spread(statistics.median(values), min(values), max(values), len(values))


def over_rounds(rounds: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """Each figure over the rounds that have it."""
    found = {}
    for metric in METRICS:
        values = [each[metric.key] for each in rounds if metric.key in each]
        if values:
            found[metric.key] = spread(values)
    return found


class Slope(NamedTuple):
    """A straight line through samples over time."""

    per_hour: float
    plus_minus: float  # half of the interval that has the true slope with 95 %; inf where it cannot be told
    level: float  # the median of the samples
    samples: int
    hours: float


def slope(seconds: Floats, values: Floats) -> Slope:
    """The least-squares line through samples. Neighbouring samples resemble each other, which makes a line look surer
    than it is: the uncertainty counts as many samples as are worth one of their own.
    """
    n = len(values)
    hours = (seconds - seconds[0]) / 3600 if n else seconds
    length = float(hours[-1]) if n else 0.0
    level = float(np.median(values)) if n else math.nan
    if n < 5 or length <= 0:
        return Slope(math.nan, math.inf, level, n, length)
    x = hours - hours.mean()
    square = float((x * x).sum())
    rise = float((x * values).sum() / square)
    rest = values - values.mean() - rise * x
    power = float((rest * rest).sum())
    alike = float((rest[1:] * rest[:-1]).sum() / power) if power > 0 else 0.0
    alike = min(max(alike, 0.0), 0.95)
    worth = max(3.0, n * (1 - alike) / (1 + alike))
    error = math.sqrt(power / max(1.0, worth - 2) / square * n / worth) if power > 0 else 0.0
    return Slope(rise, _t95(worth - 2) * error, level, n, length)


def _t95(freedom: float) -> float:
    """Student's t for 95 %, two-sided, by Cornish and Fisher's expansion: within 2 % from three degrees on."""
    z, v = 1.959964, max(1.0, freedom)
    if v < 3:
        return 12.71 if v < 2 else 4.30
    return z + (z**3 + z) / (4 * v) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)


DRIFTS, STEADY, UNKNOWN = "drifts", "steady", "cannot be told"
MATTERS = 0.05  # a change over the run that is smaller than this part of the level does not matter


def verdict(line: Slope) -> tuple[str, str]:
    """What a slope says about drift, in one word and in a sentence."""
    if not math.isfinite(line.plus_minus):
        return UNKNOWN, f"{line.samples} samples are too few to tell."
    level = abs(line.level) or 1.0
    change, unsure = line.per_hour * line.hours, line.plus_minus * line.hours
    told = f"{line.per_hour:+.3g} ± {line.plus_minus:.2g} an hour, at a level of {line.level:.4g}"
    if abs(change) > unsure and abs(change) > MATTERS * level:
        return DRIFTS, f"{told}: it {'rises' if change > 0 else 'falls'}, by {abs(change) / level:.0%} in this run."
    if unsure > 2 * MATTERS * level and abs(change) + unsure > 2 * MATTERS * level:
        return UNKNOWN, f"{told}: too uncertain for a run of {line.hours * 60:.0f} minutes."
    return STEADY, f"{told}: no drift that matters."


class Compared(NamedTuple):
    """A figure of two runs."""

    scenario: str
    metric: str
    now: float
    before: float
    ratio: float
    beyond: bool  # the two runs' rounds do not overlap
    remark: str


# What is compared: the percentiles between and what follows from the rest would only repeat it.
COMPARED = ("publish_rate", "consume_rate", "ack_p50", "ack_p99", "delivered_p50", "delivered_p99", "stored_bytes",
            "server_mb")  # fmt: skip


def compare(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[Compared]:
    """Each figure of the scenarios that two reports share, in the order of the first."""
    earlier = {each["name"]: each.get("figures", {}) for each in before["scenarios"]}
    return [
        _compared(each["name"], key, Spread(**each["figures"][key]), Spread(**earlier[each["name"]][key]))
        for each in now["scenarios"]
        for key in COMPARED
        if key in each.get("figures", {}) and key in earlier.get(each["name"], {})
    ]


def _compared(scenario: str, key: str, now: Spread, before: Spread) -> Compared:
    ratio = now.median / before.median if before.median else math.nan
    beyond = now.low > before.high or now.high < before.low
    if min(now.rounds, before.rounds) < 2:
        return Compared(scenario, key, now.median, before.median, ratio, False, "one round has no spread")
    if not beyond:
        return Compared(scenario, key, now.median, before.median, ratio, False, "within the spread of the rounds")
    better = BY_KEY[key].more_is_better
    word = "differs" if better is None else "better" if (ratio > 1) == better else "worse"
    return Compared(scenario, key, now.median, before.median, ratio, True, f"{word}, beyond the spread of the rounds")


def differences(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """What makes two reports hard to compare: other machines, servers or settings. A sentence each."""
    said = []
    for part, names in (
        ("machine", ("processor", "cores", "memory_gb", "system", "python")),
        ("server", ("version", "kind", "servers")),
        ("settings", ("seconds", "rate", "most_bytes", "rounds")),
    ):
        for name in names:
            new, old = now.get(part, {}).get(name), before.get(part, {}).get(name)
            if new != old:
                said.append(f"{part}: {name.replace('_', ' ')} is {new}, and was {old}")
    return said


OTHERS = 0.25  # cores that other processes use, from which on they are told


def others(phase: Mapping[str, float], cores: int) -> float:
    """The cores that processes used which are neither servers nor load generator."""
    return max(0.0, cores * (1 - phase.get("idle", 1.0)) - phase.get("load", 0.0) - phase.get("servers", 0.0))


def limit(phase: Mapping[str, float], cores: int) -> str:
    """Who limited a phase, by the CPU that was used: the machine, the load generator, or the server."""
    if phase.get("idle", 1.0) <= 0.1:
        foreign = others(phase, cores) if "servers" in phase else 0.0
        busy = f", {foreign:.1f} of them with other processes" if foreign >= OTHERS else ""
        return f"machine: all {cores} cores are busy{busy}"
    if phase.get("busiest", 0.0) >= 0.9:
        return "load generator"
    return "server, or waiting for it"
