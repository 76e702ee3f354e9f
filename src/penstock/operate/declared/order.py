"""The order of steps: what frees a subject before what takes it, what is copied before its copies, streams before their
consumers. Pure.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.operate.declared import between
from penstock.operate.declared.model import Live

if TYPE_CHECKING:
    from penstock.operate.declared.plan import Step


def ordered(streams: Sequence["Step"], consumers: Sequence["Step"], live: Live) -> list["Step"]:
    """All steps in order. Streams that would have to exchange subjects cannot be ordered: they become impossible."""
    first = [step for step in consumers if step.action.value == "delete"]
    then = _sorted(streams, live)
    rest = [step for step in consumers if step.action.value != "delete"]
    return [*first, *then, *rest]


def _sorted(steps: Sequence["Step"], live: Live) -> list["Step"]:
    waits = _waits(steps, live)
    done: list[Step] = []
    left = {step.stream: step for step in sorted(steps, key=lambda step: (_rank(step), step.stream))}
    while left:
        ready = next((step for name, step in left.items() if not any(other in left for other in waits[name])), None)
        if ready is None:  # all of these wait for each other
            done += [
                _in_a_circle(step, {other for other in waits[name] if other in left}) for name, step in left.items()
            ]
            return done
        done.append(left.pop(ready.stream))
    return done


def _rank(step: "Step") -> int:
    ranks = {"delete": 0, "update": 1, "replace": 2, "create": 3}
    return ranks.get(step.action.value, 4)


def _waits(steps: Sequence["Step"], live: Live) -> dict[str, set[str]]:
    """For each stream, those that must come before it."""
    changing = {step.stream: step for step in steps if step.is_change}
    before = between.Taken()
    for name in changing:
        if name in live.streams:
            before.add(name, between.taken(name, live.streams[name].config))
    waits: dict[str, set[str]] = {step.stream: set() for step in steps}
    for name, step in changing.items():
        if step.config is None:
            continue
        had = set(between.taken(name, live.streams[name].config)) if name in live.streams else set()
        for text in between.taken(name, step.config):
            if text not in had or step.action.value == "replace":
                waits[name] |= {other for other, _ in before.matching(text) if other != name}
        waits[name] |= {
            origin for origin in between.origins(step.config)
            if origin in changing and changing[origin].action.value in ("create", "replace") and origin != name
        }  # fmt: skip
    return waits


def _in_a_circle(step: "Step", others: set[str]) -> "Step":
    from penstock.operate.declared.plan import Action

    names = ", ".join(f"'{name}'" for name in sorted(others))
    words = f"it would have to wait for {names}, and these for it, as they exchange subjects: do it in two steps."
    return replace(step, action=Action.IMPOSSIBLE, problems=(*step.problems, words)) if step.is_change else step
