"""Writes what documentation derives from declarations, between markers: tables of options, of the keys of pipeline
files, guarantees and figures; and the charts of the benchmarks.

What happens in which fault is declared in guarantees.toml, each with the tests that show it.

`python docs/generate.py` writes, `--check` only says whether anything would change.
"""

import json
import re
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from penstock.connectors import FORMATS, GUARANTEES, connector, guarantees
from penstock.kit.contract import Guarantee
from penstock.monitor.jetstream import table as jetstream_metrics
from penstock.monitor.metrics import ALIASES, Metrics
from penstock.monitor.view import Told
from penstock.operate.declared.fields import BUCKET, CONSUMER, STREAM
from penstock.operate.declared.fields import table as declared_fields
from penstock.operate.doctor.findings import table as doctor_checks
from penstock.options import Options, ReadOptions, WriteOptions, table
from penstock.options.shared import ConnectionOptions
from penstock.pipelines.job import FILES
from penstock.pipelines.schema import key_tables, snake
from penstock.pipelines.systems import SINKS, SOURCES
from penstock.watch.store import Store

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
from plots import charts  # noqa: E402 - the benchmarks are no package

# What stands in docs/options.md. A connector that declares one of them anew, with another default or meaning, shows it.
SHARED = (ReadOptions, ConnectionOptions, WriteOptions)


def option_table(model: type[Options], *without: type[Options]) -> str:
    """Options in Markdown; `without` those that stand in another table, as they stand there."""
    known = [row for other in without for row in table(other)]
    return _three("option", (row for row in table(model) if row not in known))


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
    parts += ["## Pipelines", "", "| what happens | and then | shown by |", "|---|---|---|"]
    parts += [
        f"| {fault['what']} | {_not_promised(fault)}{fault['then']} | {'<br>'.join(map(_linked, fault['tests']))} |"
        for fault in _guarantees()["pipeline"]
    ]
    return "\n".join(parts).rstrip()


def _not_promised(fault: dict[str, Any]) -> str:
    return "" if fault.get("holds", True) else f"**Not promised: {fault['lacks']}.** "


def _linked(test: str) -> str:
    file, _, name = test.partition("::")
    return f"[{name.removeprefix('test_').replace('_', ' ')}](../{file})"


def limits_table() -> str:
    """What no connector can promise."""
    rows = [
        f"| `{'`, `'.join(fault['formats'])}` | {fault['way']} | {fault['what']} | {fault['then']} |"
        for fault in faults()
        if not fault.get("holds", True)
    ]
    rows += [
        f"| [pipelines](pipelines.md) | | {fault['what']} | {fault['then']} |"
        for fault in _guarantees()["pipeline"]
        if not fault.get("holds", True)
    ]
    return "\n".join(["| format | | what happens | and then |", "|---|---|---|---|", *rows])


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _identifier(kind: Any) -> str:
    """The options that an identifier stands for: of Iggy it has two parts."""
    return "" if kind.identifier is None else "/".join(f"`{snake(name)}`" for name in kind.identifier("a/b"))


def _page(name: str, format: str) -> str:
    return f"[`{name}`](connectors/{format}.md)" if format in FORMATS else f"`{name}`"


def source_types() -> str:
    """The types of sources that a pipeline can have."""
    rows = [
        f"| {_page(name, kind.format)} | {_identifier(kind)} | {'yes' if kind.start else ''} | "
        f"{f'`{snake(kind.batch_size)}`' if kind.batch_size else ''} | "
        f"{f'`{snake(kind.parallelism)}`' if kind.parallelism else ''} | {kind.replayable.value} |"
        for name, kind in SOURCES.items()
    ]
    head = "| type | `identifier` is | `initial_offset` | `batch_size` is | `parallelism` is | can be read again |"
    return "\n".join([head, "|---|---|---|---|---|---|", *rows])


def sink_types() -> str:
    """The types of sinks that a pipeline can have, and what each promises."""
    rows = []
    for name, kind in SINKS.items():
        beside = kind.exactly_once if kind.txn or name in FILES else Guarantee.NO
        takes = f"messages; {_names(kind.takes)}" if kind.takes else "messages" if kind.messages else "columns"
        promises = f"{kind.exactly_once.value} | {beside.value}"
        rows.append(f"| {_page(name, kind.format)} | {_identifier(kind)} | {takes} | {promises} |")
    head = "| type | `identifier` is | takes | exactly once, alone | beside other sinks |"
    return "\n".join([head, "|---|---|---|---|---|", *rows])


def sparks_options() -> str:
    """The options of those types that have no page of their own."""
    titles: dict[type[Options], list[str]] = {}
    for way, kinds in (("source", SOURCES), ("sink", SINKS)):
        for name, kind in kinds.items():
            if kind.format not in FORMATS and kind.options is not None:
                titles.setdefault(kind.options, []).append(f"{way} `{name}`")
    parts = []
    for model, names in titles.items():
        rows = [(snake(option), default, doc) for option, default, doc in table(model)]
        if rows:
            parts += [f"**{', '.join(names)}**", "", _three("option", rows), ""]
    return "\n".join(parts).rstrip()


def pipeline_keys() -> str:
    """Every key of a pipeline file, table by table."""
    parts = []
    for name, meaning, rows in key_tables():
        kind = name.removeprefix("transform ")
        title = "Before the first table" if not name else f"`{name}`" if kind == name else f"Transform `{kind}`"
        if name == "[input_schema]":
            title += ", `[output_schema]`"
        parts += [f"**{title}.** {meaning if name else ''}".rstrip(), "", _three("key", rows), ""]
    return "\n".join(parts).rstrip()


def _three(what: str, rows: Iterable[tuple[str, str, str]]) -> str:
    lines = [
        f"| `{name}` | {default and f'`{default}`'} | {doc.replace('|', chr(92) + '|')} |"
        for name, default, doc in rows
    ]
    return "\n".join([f"| {what} | default | meaning |", "|---|---|---|", *lines])


def _result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text())
    return found


def _beside(unit: str, ours: str, rows: list[tuple[str, float, float]]) -> str:
    """What was measured beside us, its rate, and ours as times that: more is better in every column."""
    lines = [f"| {name} | {rate:,.0f} | {ratio:.2f} |" for name, rate, ratio in rows]
    return "\n".join([f"| beside | its {unit} | {ours}, times that |", "|---|---|---|", *lines])


def reading_table() -> str:
    """JetStream, reading."""
    r = _result("jetstream-read")
    rows = [
        ("a socket whose bytes are thrown away", r["PLAIN_drain"], r["PLAIN_ratio"]),
        ("the same, three headers on each message", r["HEADED_drain"], r["HEADED_ratio"]),
        ("nats-py, `fetch` of 1,000, no acknowledgements", r["nats_py"], r["times_nats_py"]),
    ]
    return _beside("messages/s", "Penstock into Spark", rows)


def trickle_table() -> str:
    """JetStream, a few messages at a time."""
    r = _result("jetstream-read")
    rows = [("Spark's own `rate-micro-batch`", 60_000 / r["trickle_rate_ms"], 1 / r["trickle_ratio"])]
    return _beside("micro-batches/min", "JetStream", rows)


def writing_table() -> str:
    """JetStream, writing."""
    r = _result("jetstream-write")
    rows = [
        ("a raw socket with the same frames, acks counted", r["raw"], r["of_raw"]),
        ("nats-py, `publish` and wait", r["nats_py"], r["times_nats_py"]),
        ("`publishMode=atomic`, beside `pipelined`", r["pipelined"], r["atomic_of_pipelined"]),
        ("`publishMode=fast`, beside `pipelined`", r["pipelined"], r["fast_of_pipelined"]),
        ("read and write in one query, beside the slower of both alone", r["write_half"], r["through_of_slower_half"]),
    ]
    return _beside("rows/s", "Spark to JetStream", rows)


def s2_table() -> str:
    """S2, both ways."""
    r = _result("s2")
    rows = [
        ("reading: a GET whose bytes are thrown away", r["drain_one"], r["read_of_drain_one"]),
        ("reading: two of them at once, as there are two tasks", r["drain"], r["read_of_drain"]),
        ("reading: a read session of s2-sdk", r["sdk_read"], r["read_of_sdk"]),
        ("writing exactly once: an append session of s2-sdk", r["sdk_write"], r["write_of_sdk"]),
        ("1,000 streams of 100 records: a session of s2-sdk each", r["sessions"] * 100, r["packed_of_sessions"]),
    ]
    return _beside("records/s", "Spark and Penstock", rows)


def s2_core_table() -> str:
    """S2, by CPU."""
    r = _result("s2")
    rows = [
        (f"{way}: s2-sdk", 1e6 / r[f"sdk_{key}_us"], r[f"sdk_{key}_us"] / r[f"{key}_us"])
        for way, key in (("reading", "read"), ("writing", "write"))
    ]
    return _beside("records for a second of one core", "Penstock", rows)


def iggy_table() -> str:
    """Iggy, by CPU."""
    r = _result("iggy")
    rows = [
        (name, 1e6 / r[f"sdk_{key}_us"], r[f"sdk_{key}_us"] / r[f"ours_{key}_us"])
        for name, key in (
            ("sending 1,000 a request, with ids", "write"),
            ("polling 10,000 at once, all columns", "read_10000"),
            ("polling 1,000 at once", "read_1000"),
        )
    ]
    return _beside("messages for a second of one core", "Penstock", rows)


def metrics_table() -> str:
    """Every metric, as a program with one pipeline tells it."""
    store = Store()
    store.started("id", "run", "orders")
    told = Told("orders", "Orders", "running", "", has_dead_letters=True)
    fake: Any = SimpleNamespace(states=["running"], all=lambda: [told])
    families = Metrics(store, fake).collect()
    rows = [
        f"| `{each.name}{'_total' if each.type == 'counter' else ''}` | {each.type} "
        f"| {', '.join(f'`{label}`' for label in each._labelnames if label != 'pipeline')} | {each.documentation} |"
        for each in families
    ]
    return "\n".join(["| metric | type | labels besides `pipeline` | |", "|---|---|---|---|", *rows])


def aliases_table() -> str:
    """What others call these metrics."""
    rows = [f"| `{name}` | `{target}` |" for name, target in ALIASES.items()]
    return "\n".join(["| there | here |", "|---|---|", *rows])


def pages() -> dict[Path, dict[str, str]]:
    """Which page has which generated part."""
    docs = ROOT / "docs"
    found: dict[Path, dict[str, str]] = {
        ROOT / "README.md": {"guarantees": guarantee_table()},
        docs / "guarantees.md": {"limits": limits_table(), "faults": fault_tables()},
        docs / "options.md": {
            "read options": option_table(ReadOptions),
            "connection options": option_table(ConnectionOptions),
            "write options": option_table(WriteOptions),
        },
        docs / "pipelines.md": {
            "source types": source_types(),
            "sink types": sink_types(),
            "options of Spark's formats": sparks_options(),
            "keys": pipeline_keys(),
        },
        docs / "jetstream" / "doctor.md": {"checks": doctor_checks()},
        docs / "jetstream" / "top.md": {"jetstream metrics": jetstream_metrics()},
        docs / "jetstream" / "declared.md": {
            "stream fields": declared_fields(STREAM),
            "consumer fields": declared_fields(CONSUMER),
            "bucket fields": declared_fields([field for _, field in BUCKET]),
        },
        docs / "observing.md": {"metrics": metrics_table(), "metric aliases": aliases_table()},
        docs / "benchmarks.md": {
            "reading": reading_table(),
            "trickle": trickle_table(),
            "writing": writing_table(),
            "s2": s2_table(),
            "s2 cores": s2_core_table(),
            "iggy": iggy_table(),
        },
    }
    for name in FORMATS:
        reads, writes = connector(name).options_type, connector(name).sink_options_type
        found[docs / "connectors" / f"{name}.md"] = {
            "options": option_table(reads, *SHARED),
            "sink options": option_table(writes, reads, *SHARED),
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
    """Write or check every page and chart; how many differ."""
    wanted = {path: fill(path.read_text(), parts) for path, parts in pages().items()} | charts()
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)} {'is not up to date: run make docs' if check else 'written'}")
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(wanted[path])
    return len(stale) if check else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
