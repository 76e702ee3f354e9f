"""A declaration planned and applied, by penstock.operate.declared. Knows files and calls; decides nothing."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.clients.jetstream.calls import Calls
from penstock.errors import OptionError

if TYPE_CHECKING:
    from penstock.operate.declared.model import Declared, DeclaredStream
    from penstock.operate.declared.plan import Plan


def loaded(text: str) -> "Declared":
    """What a declaration says."""
    from penstock.operate.declared import files

    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        path = Path(folder) / "streams.toml"
        path.write_text(text)
        return files.load([path])


def loaded_file(path: Path) -> "Declared":
    """What a file declares. An OptionError where it declares no stream."""
    from penstock.operate.declared import files

    declared = files.load([path])
    if not streams(declared):
        raise OptionError(f"'{path}' declares no stream: write [streams.NAME], and its subjects.")
    return declared


def streams(declared: "Declared") -> dict[str, dict[str, Any]]:
    """The streams that are to be there, as the server's JSON, with the subject that a server gives to one without."""
    return {each.name: _with_subjects(each) for each in declared.streams.values() if each.is_whole and not each.absent}


def _with_subjects(stream: "DeclaredStream") -> dict[str, Any]:
    config = stream.config
    if config.get("subjects") or config.get("mirror") or config.get("sources"):
        return config
    return config | {"subjects": stream.initial.get("subjects") or [stream.name]}


def planned(calls: Calls, declared: "Declared") -> "Plan":
    """What it takes."""
    from penstock.operate.declared import live
    from penstock.operate.declared.plan import plan

    return plan(declared, live.look(calls, list(declared.streams)))


def applied(calls: Calls, plan: "Plan", tell: Callable[[str], None]) -> list[str]:
    """Carry it out; what the server made otherwise. Nothing is deleted: a plan that would is refused."""
    from penstock.operate.declared.apply import apply

    return list(apply(calls, plan, (), lambda step: tell(f"{step.action.value}d {step.title}")).remarks)


def created(plan: "Plan") -> list[str]:
    """The streams that were not there before the plan."""
    from penstock.operate.declared.plan import Action

    return [step.stream for step in plan.steps if not step.consumer and step.action is Action.CREATE]


def steps(plan: "Plan") -> list[str]:
    """The plan in lines."""
    lines = []
    for step in plan.steps:
        lines.append(f"{step.action.value} {step.title}")
        lines += [f"    {change}" for change in step.changes]
        lines += [f"    {text}" for text in (*step.effects, *step.problems)]
    return lines + list(plan.notes)
