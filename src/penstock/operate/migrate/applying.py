"""A declaration planned and applied, by penstock.operate.declared. Knows files and calls; decides nothing."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.clients.jetstream.calls import Calls
from penstock.errors import OptionError

if TYPE_CHECKING:
    from penstock.operate.declared.model import Declared
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
    if not any(each.is_whole and not each.absent for each in declared.streams.values()):
        raise OptionError(f"'{path}' declares no stream: write [streams.NAME], and its subjects.")
    return declared


def planned(calls: Calls, declared: "Declared") -> "Plan":
    """What it takes."""
    from penstock.operate.declared import live
    from penstock.operate.declared.plan import plan

    return plan(declared, live.look(calls, list(declared.streams)))


def applied(calls: Calls, plan: "Plan", tell: Callable[[str], None]) -> list[str]:
    """Carry it out; what the server made otherwise. Nothing is deleted: a plan that would is refused."""
    from penstock.operate.declared.apply import apply

    return list(apply(calls, plan, (), lambda step: tell(f"{step.action.value}d {step.title}")).remarks)


def steps(plan: "Plan") -> list[str]:
    """The plan in lines."""
    lines = []
    for step in plan.steps:
        lines.append(f"{step.action.value} {step.title}")
        lines += [f"    {change}" for change in step.changes]
        lines += [f"    {text}" for text in (*step.effects, *step.problems)]
    return lines + list(plan.notes)
