"""What a plan consists of: its steps, what each changes and does, and which of them need a permission. Values only;
how they come about is in plan.py.
"""

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Any

from penstock.operate.declared.model import Config


class Action(Enum):
    """What happens to a stream or consumer."""

    NOTHING = "nothing"
    CREATE = "create"
    UPDATE = "update"
    REPLACE = "replace"  # deleted and created anew
    DELETE = "delete"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True)
class Change:
    """A field that becomes another value; None where it is not there."""

    field: str
    before: Any
    after: Any
    why_not: str = ""  # why the server cannot change it in place

    def __str__(self) -> str:
        why = f" ({self.why_not})" if self.why_not else ""
        return f"{self.field}: {text(self.before)} -> {text(self.after)}{why}"


@dataclass(frozen=True)
class Step:
    """What is to be done to one stream or consumer."""

    stream: str
    consumer: str  # empty for a stream
    title: str
    action: Action
    changes: tuple[Change, ...] = ()
    effects: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    config: Config | None = None  # what is sent
    seen: str | None = None  # the digest of what was there; None where nothing was
    deletes_messages: bool = False  # an update that does so at once

    @property
    def name(self) -> str:
        """As --allow-replace calls it."""
        return f"{self.stream}/{self.consumer}" if self.consumer else self.stream

    @property
    def is_change(self) -> bool:
        """Whether something is to be done."""
        return self.action not in (Action.NOTHING, Action.IMPOSSIBLE)

    @property
    def needs_permission(self) -> bool:
        """Whether something is deleted: a stream, a consumer, or messages that a smaller limit leaves no room for."""
        return self.action in (Action.REPLACE, Action.DELETE) or (
            self.action is Action.UPDATE and self.deletes_messages
        )


@dataclass(frozen=True)
class Plan:
    """All steps, in the order in which they are taken."""

    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()
    others: tuple[str, ...] = ()  # streams, and durable consumers of declared streams, that no file names

    @property
    def changes(self) -> tuple[Step, ...]:
        """The steps that do something."""
        return tuple(step for step in self.steps if step.is_change)

    @property
    def impossible(self) -> tuple[Step, ...]:
        """The steps that cannot be taken."""
        return tuple(step for step in self.steps if step.action is Action.IMPOSSIBLE)

    def refused(self, allowed: Collection[str]) -> tuple[Step, ...]:
        """The steps that delete something, without a permission by name. That of a stream which is deleted or created
        anew is for its consumers too.
        """
        whole = {
            step.stream for step in self.changes if not step.consumer and step.action in (Action.REPLACE, Action.DELETE)
        }
        return tuple(
            step for step in self.changes
            if step.needs_permission
            and step.name not in allowed
            and not (step.stream in allowed and step.stream in whole)
        )  # fmt: skip

    @property
    def fingerprint(self) -> str:
        """The same for the same steps on the same state of the server: numbers of messages do not matter."""
        said = [[step.name, step.action.value, step.config, step.seen, step.problems] for step in self.steps if
                step.action is not Action.NOTHING]  # fmt: skip
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:12]

    def as_json(self) -> dict[str, Any]:
        """The plan for programs."""
        steps = [
            {
                "name": step.name,
                "kind": "consumer" if step.consumer else "stream",
                "action": step.action.value,
                "changes": [
                    {"field": c.field, "before": c.before, "after": c.after, "whyNotInPlace": c.why_not or None}
                    for c in step.changes
                ],
                "effects": list(step.effects),
                "problems": list(step.problems),
                "needsPermission": step.needs_permission,
            }
            for step in self.steps
        ]
        return {"fingerprint": self.fingerprint, "steps": steps, "notes": list(self.notes), "others": list(self.others)}


def text(value: Any) -> str:
    """A value in a plan."""
    if value in (None, "", [], {}) and not isinstance(value, bool):
        return "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
