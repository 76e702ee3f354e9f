"""A report of a run: as JSON, which later runs are compared with, and as Markdown. The page is in page.py. Pure.

Text of others, such as the version that a server tells, is made harmless before it is shown.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import OptionError
from penstock.kit.masking import harmless
from penstock.operate.bench import figures
from penstock.operate.bench.figures import BY_KEY, METRICS
from penstock.operate.bench.matrix import BASELINE, DIMENSIONS
from penstock.operate.bench.soak import JUDGED

FORMAT = 1  # of the JSON
NAME = "jetstream-bench"  # of the files


class Shown(NamedTuple):
    """A table of the report: its title, and the figures that are its columns."""

    title: str
    keys: tuple[str, ...]


TABLES = (
    Shown("Throughput", ("publish_rate", "publish_mb", "consume_rate", "consume_mb")),
    Shown("Publish to ack, at a constant rate", tuple(f"ack_{p}" for p in figures.PERCENTILES)),
    Shown("Publish to delivery, at a constant rate", tuple(f"delivered_{p}" for p in figures.PERCENTILES)),
    Shown("Storage and memory", ("stored_bytes", "disk_bytes", "server_mb")),
    Shown(
        "Who used the CPU",
        ("publish_server_cores", "publish_load_cores", "consume_server_cores", "consume_load_cores", "late_p99"),
    ),
)


def loaded(file: Path) -> dict[str, Any]:
    """An earlier report; an OptionError where the file is none."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(f"'{file}' is no report of a benchmark: {harmless(error)}.") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT or not isinstance(found.get("scenarios"), list):
        raise OptionError(f"'{file}' is no report of `penstock jetstream bench` that this version can read.")
    spread = {"median", "low", "high", "rounds"}
    for each in found["scenarios"]:
        known = isinstance(each, dict) and isinstance(each.get("name"), str) and isinstance(each.get("figures"), dict)
        if not known or not all(isinstance(one, dict) and set(one) == spread for one in each["figures"].values()):
            raise OptionError(f"'{file}' has a scenario without a name or without figures: it is damaged.")
    return found


def compared(report: Mapping[str, Any], before: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The part of a report that compares it with an earlier one."""
    return {
        "with": name,
        "differences": figures.differences(report, before),
        "figures": [each._asdict() for each in figures.compare(report, before)],
    }


def number(value: float | None) -> str:
    """A figure with as many digits as say something."""
    if value is None or value != value:  # not a number
        return ""
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def cell(figure: Mapping[str, Any] | None) -> str:
    """A median, and how far the rounds are from it."""
    if not figure:
        return ""
    shown = number(figure["median"])
    if figure["rounds"] < 2:
        return shown
    return f"{shown} ({number(figure['low'])} to {number(figure['high'])})"


def machine_lines(report: Mapping[str, Any]) -> list[str]:
    """Where and how it was measured, as sentences."""
    machine, server, settings = report["machine"], report["server"], report["settings"]
    kind = (
        "embedded, on the same machine as the load generator"
        if server["kind"] == "embedded"
        else "given by its address"
    )
    lines = [
        f"Machine: {harmless(machine['processor'])}, {machine['cores']} cores, {machine['memory_gb']} GB, "
        f"{harmless(machine['system'])}, Python {machine['python']}. Load average before the run: "
        f"{machine['load_before']}.",
        f"Server: nats-server {harmless(server['version'])}, {kind}.",
        f"Settings: {settings['rounds']} rounds, {settings['seconds']:g} s for each phase, latency at "
        f"{settings['rate']:,.0f} messages/s, at most {settings['most_bytes'] / 2**20:,.0f} MB in a stream. "
        f"Began {report['began']}, took {report['took'] / 60:.1f} minutes.",
    ]  # fmt: skip
    busy = [each for each in report["scenarios"] if "other processes" in " ".join(each.get("limits", {}).values())]
    if busy:
        lines.append(
            f"In {len(busy)} of {len(report['scenarios'])} scenarios, other processes used the machine as well: rates "
            "are too low and latencies too high by that. Compare scenarios of this run with each other only."
        )
    return lines


def rows(report: Mapping[str, Any], shown: Shown) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of a table."""
    used = [key for key in shown.keys if any(key in each["figures"] for each in report["scenarios"])]
    head = ["scenario", *(f"{BY_KEY[key].title}, {BY_KEY[key].unit}" for key in used)]
    body = [
        [each["name"], *(cell(each["figures"].get(key)) for key in used)]
        for each in report["scenarios"]
        if any(key in each["figures"] for key in used)
    ]
    return head, body


def baseline_line() -> str:
    """What the baseline is, in one sentence."""
    values = ", ".join(f"{each.name}={each.values[0]}" for each in DIMENSIONS)
    return f"The scenario `{BASELINE}` is {values}. The others change what their names say."


def troubles(report: Mapping[str, Any]) -> list[str]:
    """What failed, was left out, or is to be known."""
    said = []
    for each in report["scenarios"]:
        said += [f"{each['name']}: failed: {harmless(text)}" for text in each["failed"]]
        said += [f"{each['name']}: {harmless(text)}" for text in each["remarks"]]
    said += [f"beside nats bench: failed: {harmless(text)}" for text in report.get("beside", {}).get("failed", [])]
    said += [f"{name}: left out: {harmless(why)}" for name, why in report.get("left_out", {}).items()]
    return said + [harmless(text) for text in report.get("remarks", [])]


LIMIT_HEAD = ("scenario", "publishing", "consuming")


def limit_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """Who was the limit in each phase."""
    return [
        [each["name"], each["limits"].get("publish", ""), each["limits"].get("consume", "")]
        for each in report["scenarios"]
        if each["limits"]
    ]


def soak_rows(soak: Mapping[str, Any]) -> list[list[str]]:
    """The verdicts of a soak."""
    return [
        [title, soak["verdicts"][name]["verdict"], harmless(soak["verdicts"][name]["sentence"])]
        for name, title in JUDGED.items()
        if name in soak["verdicts"]
    ]


def beside_rows(beside: Mapping[str, Any]) -> list[list[str]]:
    """Ours beside theirs."""
    return [
        [each["what"], cell(each["ours"]), cell(each["theirs"]), cell(each["ratio"]), number(each["server_cores"])]
        for each in beside["figures"]
    ]


BESIDE_HEAD = ("what", "ours, messages/s", "nats bench, messages/s", "ours/theirs", "server, cores, with ours")
COMPARED_HEAD = ("scenario", "figure", "now", "before", "ratio", "remark")
SOAK_HEAD = ("figure", "verdict", "slope")


def compared_rows(part: Mapping[str, Any]) -> list[list[str]]:
    """The comparison with an earlier run."""
    return [
        [each["scenario"], BY_KEY[each["metric"]].title, number(each["now"]), number(each["before"]),
         number(each["ratio"]), each["remark"]]
        for each in part["figures"]
    ]  # fmt: skip


def different(part: Mapping[str, Any]) -> str:
    """The warning where two runs are not of the same machine or server; empty where they are."""
    if not part["differences"]:
        return ""
    return f"These runs are not alike, so that ratios say little: {harmless('; '.join(part['differences']))}."


def markdown(report: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    parts = ["# JetStream, measured", *machine_lines(report)]
    if report["scenarios"]:
        parts.append(f"{baseline_line()} A cell is the median of the rounds, and the lowest and highest in brackets.")
        for shown in TABLES:
            head, body = rows(report, shown)
            if body:
                parts += [f"## {shown.title}", _table(head, body)]
        if limits := limit_rows(report):
            parts += ["## What was the limit", _table(LIMIT_HEAD, limits)]
    if soak := report.get("soak"):
        parts += ["## Over time", soak_line(soak), _table(SOAK_HEAD, soak_rows(soak))]
    if beside := report.get("beside"):
        parts += ["## Beside `nats bench`", harmless(beside["said"]), _table(BESIDE_HEAD, beside_rows(beside))]
    if part := report.get("against"):
        parts += [f"## Against {_plain(part['with'])}", different(part), _table(COMPARED_HEAD, compared_rows(part))]
    if said := troubles(report):
        parts += ["## To be known", "\n".join(f"- {_plain(each)}" for each in said)]
    return "\n\n".join(part for part in parts if part) + "\n"


def soak_line(soak: Mapping[str, Any]) -> str:
    """What was soaked, in one sentence."""
    return (
        f"{soak['rate']:,.0f} messages/s for {soak['seconds'] / 60:.1f} minutes, scenario {soak['scenario']}: "
        f"{soak['published']:,} published, {soak['delivered']:,} delivered. The first third, in which memory is taken "
        "and the stream fills up, does not count for the slopes."
    )


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(_plain(text) for text in line)} |" for line in lines)


def _plain(text: str) -> str:
    """Text as Markdown shows it as it is."""
    return re.sub(r"([|<>\[\]`*\\])", r"\\\1", harmless(text))


def settled(report: Mapping[str, Any]) -> dict[str, Any]:
    """The report as it is when it is read again: all that is shown of it is shown of that."""
    told: dict[str, Any] = json.loads(as_json(report))
    return told


def as_json(report: Mapping[str, Any]) -> str:
    """The report as JSON, the same for the same figures."""
    return json.dumps(_rounded(report), indent=1, sort_keys=True) + "\n"


def _rounded(value: Any) -> Any:
    """Figures with six digits that count: more would be noise."""
    if isinstance(value, Mapping):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if value == value and abs(value) != float("inf") else None
    return value


def failures(report: Mapping[str, Any]) -> int:
    """How many scenarios failed, in any round, or beside another program."""
    return sum(bool(each["failed"]) for each in report["scenarios"]) + len(report.get("beside", {}).get("failed", []))


def metric_table() -> str:
    """The figures, for the documentation."""
    lines = [f"| `{each.key}` | {each.title} | {each.unit} |" for each in METRICS]
    return "\n".join(["| in JSON | | unit |", "|---|---|---|", *lines])


def dimension_table() -> str:
    """What is varied, for the documentation."""
    lines = [
        f"| `{each.name}` | {', '.join(f'`{value}`' for value in each.values)} | {each.doc} |" for each in DIMENSIONS
    ]
    return "\n".join(["| | values, the baseline's first | |", "|---|---|---|", *lines])
