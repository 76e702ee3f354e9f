"""Charts of the results, one for each connector, in SVG. The same figures give the same text, which can be checked.

`python bench/plots.py` draws all of them again; docs/generate.py does too, and says where one is not up to date.
"""

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent / "results"
IMAGES = Path(__file__).parent.parent / "docs" / "images"
OURS, THEIRS = "#1a7f5a", "#9aa5b1"
WIDTH, LEFT, RIGHT, BAR, GAP = 760, 270, 90, 20, 8


class Bar(NamedTuple):
    """What was measured, in units a second: more is better."""

    name: str
    rate: float
    ours: bool = False


class Panel(NamedTuple):
    """Bars that can be compared with each other."""

    title: str
    bars: Sequence[Bar]


def result(name: str) -> dict[str, Any]:
    """The last result of a benchmark."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def jetstream() -> list[Panel]:
    """Reading and writing a stream."""
    read, write = result("jetstream-read"), result("jetstream-write")
    return [
        Panel(
            "reading, messages a second",
            [
                Bar("socket drained, nothing parsed", read["PLAIN_drain"]),
                Bar("Penstock into Spark", read["PLAIN_penstock"], ours=True),
                Bar("nats-py, fetch of 1,000", read["nats_py"]),
            ],
        ),
        Panel(
            "reading, three headers on each message",
            [
                Bar("socket drained, nothing parsed", read["HEADED_drain"]),
                Bar("Penstock into Spark", read["HEADED_penstock"], ours=True),
            ],
        ),
        Panel(
            "writing, rows a second",
            [
                Bar("raw socket, the same frames", write["raw"]),
                Bar("Spark to JetStream, exactly once", write["pipelined"], ours=True),
                Bar("Spark to JetStream, at least once", write["at_least_once"], ours=True),
                Bar("nats-py, publish and wait", write["nats_py"]),
            ],
        ),
    ]


def s2() -> list[Panel]:
    """Reading and writing streams on s2-lite."""
    r = result("s2")
    return [
        Panel(
            "reading, records a second",
            [
                Bar("two GETs drained, nothing parsed", r["drain"]),
                Bar("Penstock into Spark", r["read"], ours=True),
                Bar("s2-sdk, a read session", r["sdk_read"]),
            ],
        ),
        Panel(
            "writing, records a second",
            [
                Bar("Spark to S2, exactly once", r["write"], ours=True),
                Bar("s2-sdk, an append session", r["sdk_write"]),
            ],
        ),
        Panel(
            "records for a second of one core",
            [
                Bar("Penstock, reading", 1e6 / r["read_us"], ours=True),
                Bar("s2-sdk, reading", 1e6 / r["sdk_read_us"]),
                Bar("Penstock, writing", 1e6 / r["write_us"], ours=True),
                Bar("s2-sdk, writing", 1e6 / r["sdk_write_us"]),
            ],
        ),
    ]


def iggy() -> list[Panel]:
    """CPU on the client's side."""
    r = result("iggy")
    cases = (
        ("sending 1,000 a request, with ids", "write"),
        ("polling 10,000 at once, all columns", "read_10000"),
        ("polling 1,000 at once", "read_1000"),
    )
    return [
        Panel(
            f"{title}: messages for a second of one core",
            [
                Bar("Penstock", 1e6 / r[f"ours_{case}_us"], ours=True),
                Bar("Iggy's SDK in a loop", 1e6 / r[f"sdk_{case}_us"]),
            ],
        )
        for title, case in cases
    ]


CHARTS = {"jetstream": jetstream, "s2": s2, "iggy": iggy}


def svg(panels: Sequence[Panel]) -> str:
    """Bars from left to right, each panel with a scale of its own."""
    parts: list[str] = []
    top = 12
    for panel in panels:
        top += 16
        parts.append(f'<text x="12" y="{top}" font-weight="bold">{escape(panel.title)}</text>')
        top += 10
        most = max(bar.rate for bar in panel.bars)
        for bar in panel.bars:
            long = (WIDTH - LEFT - RIGHT) * bar.rate / most
            middle = top + BAR - 6
            parts += [
                f'<text x="{LEFT - 8}" y="{middle}" text-anchor="end">{escape(bar.name)}</text>',
                f'<rect x="{LEFT}" y="{top}" width="{long:.1f}" height="{BAR}" fill="{OURS if bar.ours else THEIRS}"/>',
                f'<text x="{LEFT + long + 6:.1f}" y="{middle}">{bar.rate:,.0f}</text>',
            ]
            top += BAR + GAP
        top += 10
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}" viewBox="0 0 {WIDTH} {top}" '
        'font-family="sans-serif" font-size="13" fill="#222">'
    )
    return "\n".join([head, f'<rect width="{WIDTH}" height="{top}" fill="#fff"/>', *parts, "</svg>"]) + "\n"


def charts() -> dict[Path, str]:
    """Every chart, by its file."""
    return {IMAGES / f"bench-{name}.svg": svg(panels()) for name, panels in CHARTS.items()}


def draw() -> None:
    """Write every chart, from the results as they lie there."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    for file, text in charts().items():
        file.write_text(text)


if __name__ == "__main__":
    draw()
