"""Draws results beside what they were measured against."""

from typing import Any

import matplotlib

from measure import RESULTS

matplotlib.use("Agg")
from matplotlib import pyplot as plt


def draw(r: dict[str, Any]) -> None:
    """Throughput as bars, and each ratio beside what was asked of it."""
    if "PLAIN_drain" not in r:
        return
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
    names = ["drained\nsocket", "Penstock\ninto Spark", "drained,\nheaders", "Penstock,\nheaders", "nats-py\nfetch"]
    rates = [r["PLAIN_drain"], r["PLAIN_penstock"], r["HEADED_drain"], r["HEADED_penstock"], r["nats_py"]]
    left.bar(names, [rate / 1000 for rate in rates], color=["#999", "#1a6", "#999", "#1a6", "#c63"])
    left.set_ylabel("thousand messages a second")
    left.set_title("200-byte messages, two cores")
    asked = [
        ("of the drain", r["PLAIN_ratio"], 0.6),
        ("of the drain,\nheaders", r["HEADED_ratio"], 0.4),
        ("worker CPU,\nµs a message", r["PLAIN_worker_us"], 1.2),
        ("trickle, times\nrate-micro-batch", r.get("trickle_ratio", 0), 1.15),
        ("ten times the\nmessages, /10", r.get("ten_times", 0) / 10, 1.05),
    ]
    right.bar([name for name, _, _ in asked], [value for _, value, _ in asked], color="#1a6")
    for place, (_, _, goal) in enumerate(asked):
        right.hlines(goal, place - 0.4, place + 0.4, color="black", linestyle="--")
    right.set_title("ratios; dashes: the goal")
    for axes in (left, right):
        axes.tick_params(axis="x", labelsize=7)
    figure.tight_layout()
    figure.savefig(RESULTS / "jetstream-read.png", dpi=110)
