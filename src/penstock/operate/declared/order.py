"""The order of steps: what frees a subject before what takes it, what is copied before its copies, streams before their
consumers. Pure.
"""

from collections.abc import Sequence
from dataclasses import replace

from penstock.operate.declared import between
from penstock.operate.declared.model import Live
from penstock.operate.declared.steps import Action, Step


def ordered(streams: Sequence[Step], consumers: Sequence[Step], live: Live) -> list[Step]:
    """All steps in order. Streams that would have to exchange subjects cannot be ordered: they become impossible."""
    first = [step for step in consumers if step.action is Action.DELETE]
    then = _sorted(streams, live)
    rest = [step for step in consumers if step.action is not Action.DELETE]
    return [*first, *then, *rest]


def _sorted(steps: Sequence[Step], live: Live) -> list[Step]:
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


def _rank(step: Step) -> int:
    ranks = {Action.DELETE: 0, Action.UPDATE: 1, Action.REPLACE: 2, Action.CREATE: 3}
    return ranks.get(step.action, 4)


def _waits(steps: Sequence[Step], live: Live) -> dict[str, set[str]]:
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
            if text not in had or step.action is Action.REPLACE:
                waits[name] |= {other for other, _ in before.matching(text) if other != name}
        waits[name] |= {
            origin for origin in between.origins(step.config)
            if origin in changing and changing[origin].action in (Action.CREATE, Action.REPLACE) and origin != name
        }  # fmt: skip
    return waits


def _in_a_circle(step: Step, others: set[str]) -> Step:
    names = ", ".join(f"'{name}'" for name in sorted(others))
    words = f"it would have to wait for {names}, and these for it, as they exchange subjects: do it in two steps."
    return replace(step, action=Action.IMPOSSIBLE, problems=(*step.problems, words)) if step.is_change else step
