"""Writes what documentation derives from declarations, between markers: option tables, guarantees and figures.

What happens in which fault is declared in guarantees.toml, each with the tests that show it.

`python docs/generate.py` writes, `--check` only says whether anything would change.
"""

import json
import re
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from penstock.connectors import FORMATS, GUARANTEES, connector, guarantees
from penstock.options import Options, table

ROOT = Path(__file__).resolve().parent.parent


def option_table(model: type[Options], without: type[Options] | None = None) -> str:
    """Options in Markdown; `without` those that stand in another table."""
    known = table(without) if without else []
    rows = [
        f"| `{option}` | {f'`{default}`' if default else ''} | {doc.replace('|', chr(92) + '|')} |"
        for option, default, doc in table(model)
        if (option, default, doc) not in known
    ]
    return "\n".join(["| option | default | meaning |", "|---|---|---|", *rows])


def guarantee_table() -> str:
    """What each connector can do, from its class."""
    rows = [f"| [`{name}`](docs/connectors/{name}.md) | {' | '.join(guarantees(name))} |" for name in FORMATS]
    return "\n".join([f"| format | {' | '.join(GUARANTEES)} |", "|---|---|---|---|---|", *rows])


def faults() -> list[dict[str, Any]]:
    """Every fault that a promise is made for, or not: guarantees.toml."""
    declared: list[dict[str, Any]] = _guarantees()["fault"]
    return declared


@cache
def _guarantees() -> dict[str, Any]:
    return tomllib.loads((ROOT / "docs" / "guarantees.toml").read_text())


def runs_with(test: str) -> list[str]:
    """The formats that a test runs with, by the longest beginning of its name that guarantees.toml has; else all."""
    declared: dict[str, list[str]] = _guarantees()["runs_with"]
    fits = [beginning for beginning in declared if test.startswith(beginning)]
    return declared[max(fits, key=len)] if fits else list(FORMATS)


def shown_by(fault: dict[str, Any], name: str) -> str:
    """The tests of a fault that run with a format. Where there is none, what all formats share was tested with another,
    which is said.
    """
    own = [_linked(test) for test in fault["tests"] if name in runs_with(test)]
    formats = runs_with(fault["tests"][0])
    others = [
        f"{_linked(test)} (with `{'`, `'.join(formats)}`)" for test in fault["tests"] if runs_with(test) == formats
    ]
    return "<br>".join(own or others)


def fault_tables() -> str:
    """Of each connector and direction, what happens in which fault, and the tests that show it."""
    parts = []
    for name in FORMATS:
        for way, title in (("read", "Reading"), ("write", "Writing")):
            rows = [
                f"| {fault['what']} | {_not_promised(fault)}{fault['then']} | {shown_by(fault, name)} |"
                for fault in faults()
                if name in fault["formats"] and fault["way"] == way
            ]
            if rows:
                parts += [
                    f"## {title} `{name}`",
                    "",
                    "| what happens | and then | shown by |",
                    "|---|---|---|",
                    *rows,
                    "",
                ]
    return "\n".join(parts).rstrip()


def _not_promised(fault: dict[str, Any]) -> str:
    return "" if fault.get("holds", True) else f"**Not promised: {fault['lacks']}.** "


def _linked(test: str) -> str:
    file, _, name = test.partition("::")
    return f"[{name.removeprefix('test_').replace('_', ' ')}](../{file})"


def limits_table() -> str:
    """What no connector can promise, for the README."""
    rows = [
        f"| `{'`, `'.join(fault['formats'])}` | {fault['way']} | {fault['what']} | {fault['then']} |"
        for fault in faults()
        if not fault.get("holds", True)
    ]
    return "\n".join(["| format | | what happens | and then |", "|---|---|---|---|", *rows])


def comparison_table() -> str:
    """The figures of the last benchmark, as ratios."""
    file = ROOT / "bench" / "results" / "jetstream-read.json"
    if not file.exists():
        return "Not measured yet."
    r = json.loads(file.read_text())
    rows = [
        ("the socket drained, nothing parsed", r["PLAIN_drain"], r["PLAIN_ratio"]),
        ("the same, three headers on each message", r["HEADED_drain"], r["HEADED_ratio"]),
        ("nats-py, `fetch` of 1,000, no acknowledgements", r["nats_py"], r["times_nats_py"]),
    ]
    lines = [f"| {name} | {rate:,.0f} | {ratio:.2f} |" for name, rate, ratio in rows]
    return "\n".join(["| beside | its messages/s | Penstock into Spark, times that |", "|---|---|---|", *lines])


def writing_table() -> str:
    """The figures of the last benchmark of the sinks, as ratios."""
    file = ROOT / "bench" / "results" / "jetstream-write.json"
    if not file.exists():
        return "Not measured yet."
    r = json.loads(file.read_text())
    rows = [
        ("a raw socket with the same frames, acks counted", r["raw"], r["of_raw"]),
        ("nats-py, `publish` and wait", r["nats_py"], r["times_nats_py"]),
        ("itself, one by one: atomic batches", r["pipelined"], r["atomic_of_pipelined"]),
        ("itself, one by one: fast ingest", r["pipelined"], r["fast_of_pipelined"]),
        ("the slower half of reading and writing: both at once", r["write_half"], r["through_of_slower_half"]),
    ]
    lines = [f"| {name} | {rate:,.0f} | {ratio:.2f} |" for name, rate, ratio in rows]
    return "\n".join(["| beside | its rows/s | Spark to JetStream, times that |", "|---|---|---|", *lines])


def s2_table() -> str:
    """The figures of the last benchmark of S2, as ratios."""
    file = ROOT / "bench" / "results" / "s2.json"
    if not file.exists():
        return "Not measured yet."
    r = json.loads(file.read_text())
    rows = [
        ("reading: a GET drained, nothing parsed", r["drain_one"], r["read_of_drain_one"]),
        ("reading: two at once, as there are two tasks", r["drain"], r["read_of_drain"]),
        ("reading: a read session of s2-sdk", r["sdk_read"], r["read_of_sdk"]),
        ("writing exactly once: an append session of s2-sdk", r["sdk_write"], r["write_of_sdk"]),
        ("1,000 streams of 100 records: a session of s2-sdk each", r["sessions"] * 100, r["packed_of_sessions"]),
        ("CPU of reading: s2-sdk, a core", 1e6 / r["sdk_read_us"], r["sdk_read_us"] / r["read_us"]),
        ("CPU of writing: s2-sdk, a core", 1e6 / r["sdk_write_us"], r["sdk_write_us"] / r["write_us"]),
    ]
    lines = [f"| {name} | {rate:,.0f} | {ratio:.2f} |" for name, rate, ratio in rows]
    return "\n".join(["| beside | its records/s | Spark and Penstock, times that |", "|---|---|---|", *lines])


def iggy_table() -> str:
    """The figures of the last benchmark of Iggy, in CPU a message."""
    file = ROOT / "bench" / "results" / "iggy.json"
    if not file.exists():
        return "Not measured yet."
    r = json.loads(file.read_text())
    rows = [
        ("sending 1,000 a request, with ids", r["sdk_write_us"], r["ours_write_us"]),
        ("polling 10,000 at once, all columns", r["sdk_read_10000_us"], r["ours_read_10000_us"]),
        ("polling 1,000 at once", r["sdk_read_1000_us"], r["ours_read_1000_us"]),
    ]
    lines = [f"| {name} | {theirs:.2f} | {ours:.2f} | {theirs / ours:.2f} |" for name, theirs, ours in rows]
    head = ["| | SDK in a loop, us a message | Penstock, us | messages a core, times the SDK |", "|---|---|---|---|"]
    return "\n".join([*head, *lines])


def pages() -> dict[Path, dict[str, str]]:
    """Which page has which generated part."""
    found: dict[Path, dict[str, str]] = {
        ROOT / "README.md": {
            "guarantees": guarantee_table(),
            "comparison": comparison_table(),
            "writing": writing_table(),
            "s2": s2_table(),
            "iggy": iggy_table(),
            "limits": limits_table(),
        },
        ROOT / "docs" / "guarantees.md": {"faults": fault_tables()},
    }
    for name in FORMATS:
        reads, writes = connector(name).options_type, connector(name).sink_options_type
        found[ROOT / "docs" / "connectors" / f"{name}.md"] = {
            "options": option_table(reads),
            "sink options": option_table(writes, without=reads),
        }
    return found


def fill(page: str, parts: dict[str, str]) -> str:
    """`page` with each part between its markers."""
    for name, text in parts.items():
        begin, end = f"<!-- generated: {name} -->", "<!-- end -->"
        pattern = re.compile(re.escape(begin) + r".*?" + re.escape(end), re.DOTALL)
        if not pattern.search(page):
            raise ValueError(f"the page has no place '{begin} ... {end}'")
        page = pattern.sub(lambda _, body=f"{begin}\n{text}\n{end}": body, page)
    return page


def main(check: bool) -> int:
    """Write or check every page; how many differ."""
    stale = 0
    for path, parts in pages().items():
        old = path.read_text()
        new = fill(old, parts)
        if new != old:
            stale += 1
            print(f"{path.relative_to(ROOT)} {'is not up to date: run make docs' if check else 'written'}")
            if not check:
                path.write_text(new)
    return stale if check else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
