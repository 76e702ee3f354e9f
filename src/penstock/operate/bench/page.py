"""The report as one page of HTML that needs nothing else: plots are in it, and no script is. Pure.

All text is escaped: names and errors may be somebody else's.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from penstock.kit.masking import harmless
from penstock.operate.bench import plots, report
from penstock.operate.bench.figures import METRICS
from penstock.operate.bench.matrix import BASELINE
from penstock.operate.bench.soak import JUDGED, WARMING

STYLE = """
:root { --ink: #1b1f24; --soft: #57606a; --paper: #ffffff; --line: #d0d7de; --bar: #2f7fb8; --base: #1a7f5a;
 --shade: #eef1f4; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9aa5b1; --paper: #0d1117; --line: #30363d;
 --bar: #58a6d8; --base: #3fb98b; --shade: #1b222b; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
 max-width: 72rem; padding: 0 1rem; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.5rem; }
p.note { color: var(--soft); } div.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; margin: .5rem 0 1rem; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .6rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child, table.words td, table.words th { text-align: left; }
table.words td { white-space: normal; }
svg { max-width: 100%; height: auto; display: block; margin: .5rem 0; }
svg text { font: 12px system-ui, sans-serif; fill: var(--ink); } svg .name { text-anchor: end; }
svg .figure { fill: var(--soft); } .bar { fill: var(--bar); } .base { fill: var(--base); }
.spread, .axis { stroke: var(--ink); fill: none; stroke-width: 1.2; } .line { stroke: var(--bar); fill: none;
 stroke-width: 1.6; } .warming { fill: var(--shade); }
"""


def html(told: Mapping[str, Any]) -> str:
    """The report as a page."""
    parts = ["<h1>JetStream, measured</h1>", *(_p(line) for line in report.machine_lines(told))]
    if told["scenarios"]:
        parts.append(_p(f"{report.baseline_line()} Whiskers are the lowest and the highest round.", "note"))
        for shown in report.TABLES:
            parts += _section(told, shown)
        if limits := report.limit_rows(told):
            parts += ["<h2>What was the limit</h2>", _table(report.LIMIT_HEAD, limits, words=True)]
    if soak := told.get("soak"):
        parts += ["<h2>Over time</h2>", _p(report.soak_line(soak)), *_soaked(soak)]
        parts.append(_table(report.SOAK_HEAD, report.soak_rows(soak), words=True))
    if beside := told.get("beside"):
        parts += ["<h2>Beside <code>nats bench</code></h2>", _p(beside["said"])]
        parts.append(_table(report.BESIDE_HEAD, report.beside_rows(beside)))
    if part := told.get("against"):
        parts += [f"<h2>Against {_text(part['with'])}</h2>", _p(report.different(part))]
        parts.append(_table(report.COMPARED_HEAD, report.compared_rows(part)))
    if said := report.troubles(told):
        parts += ["<h2>To be known</h2>", "<ul>", *(f"<li>{_text(each)}</li>" for each in said), "</ul>"]
    head = '<meta charset="utf-8"/><meta name="viewport" content="width=device-width, initial-scale=1"/>'
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}<title>JetStream, measured</title>'
        f"<style>{STYLE}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _section(told: Mapping[str, Any], shown: report.Shown) -> list[str]:
    head, body = report.rows(told, shown)
    if not body:
        return []
    drawn = []
    for metric in METRICS:
        have = [each for each in told["scenarios"] if metric.key in each["figures"]]
        if metric.key in shown.keys and metric.plot and have:
            found = [each["figures"][metric.key] for each in have]
            made = [
                plots.Bar(each["name"], one["median"], one["low"], one["high"], each["name"] == BASELINE)
                for each, one in zip(have, found, strict=True)
            ]
            title = f"{metric.title}, {metric.unit}"
            drawn += [_p(title, "note"), plots.bars(title, made, [report.number(one["median"]) for one in found])]
    return [f"<h2>{_text(shown.title)}</h2>", *drawn, _table(head, body)]


def _soaked(soak: Mapping[str, Any]) -> list[str]:
    drawn = []
    counted_from = WARMING * soak["seconds"]
    for name, title in JUDGED.items():
        column = soak["samples"].get(name)
        if column is None:
            continue
        drawn += [_p(title, "note"), plots.line(title, column["seconds"], column["values"], counted_from)]
    return drawn


def _table(head: Sequence[str], body: Sequence[Sequence[str]], *, words: bool = False) -> str:
    top = "".join(f"<th>{_text(each)}</th>" for each in head)
    lines = "".join(f"<tr>{''.join(f'<td>{_text(each)}</td>' for each in line)}</tr>" for line in body)
    kind = ' class="words"' if words else ""
    return f'<div class="wide"><table{kind}><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div>'


def _p(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{_text(text)}</p>' if kind else f"<p>{_text(text)}</p>"


def _text(text: str) -> str:
    return escape(harmless(text))
