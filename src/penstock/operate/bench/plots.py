"""Plots in SVG, drawn by hand: bars with their spread, and lines over time. Pure text; colours are the page's."""

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from penstock.kit.masking import harmless

WIDTH, LEFT, RIGHT, BAR, GAP, TOP = 860, 280, 120, 18, 7, 8


class Bar(NamedTuple):
    """A figure with its spread."""

    name: str
    median: float
    low: float
    high: float
    base: bool = False  # drawn in another colour


def bars(title: str, shown: Sequence[Bar], text: Sequence[str]) -> str:
    """Horizontal bars with whiskers for the spread, and a text behind each."""
    most = max((max(each.high, each.median) for each in shown), default=0.0)
    most = most if math.isfinite(most) and most > 0 else 1.0
    width = WIDTH - LEFT - RIGHT
    height = TOP + len(shown) * (BAR + GAP)
    parts = [_open(title, height)]
    for k, (each, said) in enumerate(zip(shown, text, strict=True)):
        y = TOP + k * (BAR + GAP)
        ends = [LEFT + width * max(0.0, value) / most for value in (each.median, each.low, each.high)]
        kind = "bar base" if each.base else "bar"
        parts += [
            f'<text x="{LEFT - 8}" y="{y + BAR - 5}" class="name">{escape(_short(each.name))}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{max(1.0, ends[0] - LEFT):.1f}" height="{BAR}" class="{kind}"/>',
        ]
        if ends[2] > ends[1]:
            middle = y + BAR / 2
            parts.append(
                f'<path d="M{ends[1]:.1f} {middle}H{ends[2]:.1f}M{ends[1]:.1f} {y + 5}v{BAR - 10}'
                f'M{ends[2]:.1f} {y + 5}v{BAR - 10}" class="spread"/>'
            )
        parts.append(f'<text x="{max(ends) + 8:.1f}" y="{y + BAR - 5}" class="figure">{escape(said)}</text>')
    return "".join([*parts, "</svg>"])


def line(title: str, seconds: Sequence[float], values: Sequence[float], counted_from: float) -> str:
    """A line over time. What comes before `counted_from` is shaded: it is not judged."""
    height, left, bottom = 150, 70, 24
    width = WIDTH - left - 20
    last, most = max(seconds, default=1.0) or 1.0, max(values, default=0.0)
    most = most * 1.1 if math.isfinite(most) and most > 0 else 1.0

    def at(x: float, y: float) -> str:
        return f"{left + width * x / last:.1f},{TOP + (height - TOP - bottom) * (1 - max(0.0, y) / most):.1f}"

    points = " ".join(at(x, y) for x, y in zip(seconds, values, strict=True) if math.isfinite(y))
    shade = width * min(1.0, counted_from / last)
    return "".join(
        [
            _open(title, height),
            f'<rect x="{left}" y="{TOP}" width="{shade:.1f}" height="{height - TOP - bottom}" class="warming"/>',
            f'<path d="M{left} {TOP}V{height - bottom}H{left + width}" class="axis"/>',
            f'<text x="{left - 6}" y="{TOP + 10}" class="name">{escape(_figure(most))}</text>',
            f'<text x="{left - 6}" y="{height - bottom}" class="name">0</text>',
            f'<text x="{left + width}" y="{height - 6}" class="name">{last / 60:.1f} min</text>',
            f'<polyline points="{points}" class="line"/></svg>',
        ]
    )


def _open(title: str, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="{escape(title)}">'
    )


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _short(name: str) -> str:
    name = harmless(name)
    return name if len(name) <= 42 else f"{name[:40]}…"
