"""A plan carried out, step by step: each stream or consumer is read again before it is changed, and after a lost
answer. Knows the client; decides nothing that the plan has not decided.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from penstock.clients.jetstream import api
from penstock.clients.jetstream.calls import ApiError, Calls
from penstock.errors import Disconnected, OptionError, PenstockError
from penstock.operate.declared import live
from penstock.operate.declared.configs import canonical, digest, merged
from penstock.operate.declared.fields import CONSUMER_FIELDS, STREAM_FIELDS
from penstock.operate.declared.model import Config
from penstock.operate.declared.plan import Action, Plan, Step
from penstock.operate.declared.retrying import STORE_IN_USE, Asking


class Stopped(PenstockError):  # noqa: N818 - what happened, and the base says that it is an error
    """Not all steps were taken. `done` has those that were, `left` the others, `at` the one that failed."""

    def __init__(self, why: str, at: Step, done: tuple[Step, ...], left: tuple[Step, ...]):
        self.at, self.done, self.left = at, done, left
        made = f"done before: {_names(done)}" if done else "nothing was changed before"
        rest = f"not done: {_names(left)}" if left else "nothing else was left to do"
        super().__init__(f"{at.action.value} {at.title}: {why} ({made}; {rest}). Plan again, and apply what is left.")


@dataclass(frozen=True)
class Applied:
    """What was done, and what the server made otherwise than asked."""

    done: tuple[Step, ...]
    remarks: tuple[str, ...] = ()


def apply(
    calls: Calls, plan: Plan, allow_replace: Collection[str] = (), tell: Callable[[Step], None] | None = None
) -> Applied:
    """Carry out a plan. Nothing is done where a step is impossible, or would delete without a permission by name.

    Before each step its stream or consumer is read, and compared with what the plan saw. A server that goes away is
    waited for as long as reconnectTimeout; a change without an answer is read back, and sent again only if it is not
    there. What cannot be done ends in Stopped; applying a new plan does the rest. `tell` gets each step that is done.
    """
    _check(plan, allow_replace)
    asking = Asking(calls)
    done: list[Step] = []
    remarks: list[str] = []
    steps = plan.changes
    try:
        for number, step in enumerate(steps):
            try:
                remarks += _Doing(step).run(asking)
            except PenstockError as error:
                raise Stopped(str(error), step, tuple(done), steps[number + 1 :]) from error
            done.append(step)
            if tell is not None:
                tell(step)
    finally:
        asking.close()
    return Applied(tuple(done), tuple(remarks))


def _check(plan: Plan, allow_replace: Collection[str]) -> None:
    if wrong := plan.impossible:
        raise OptionError(
            f"nothing was changed, for this is not possible: {wrong[0].title}: {' '.join(wrong[0].problems)}"
        )
    if refused := plan.refused(allow_replace):
        needed = " ".join(f"--allow-replace {step.name}" for step in refused)
        what = ", ".join(f"{'messages of ' * (step.action is Action.UPDATE)}'{step.name}'" for step in refused)
        raise OptionError(f"nothing was changed, for this would delete {what}. To allow that: {needed}")


class _Doing:
    """One step. It may be begun several times: `_deleted` and `_sent` tell what was tried before."""

    def __init__(self, step: Step):
        self.step = step
        self.wanted = _wanted(step)
        self._deleted = self._sent = False
        self._before: Config = {}

    def run(self, asking: Asking) -> list[str]:
        """Take the step; remarks where the server made something else of it."""
        return asking.run(f"{self.step.action.value} {self.step.title}", self._once)

    def _once(self, calls: Calls) -> list[str]:
        step = self.step
        there = self._read(calls)
        if self._sent and there is not None and self._is_done(there[1]):
            return self._remarks(there[1])  # the answer was lost, the change was not
        if step.action is Action.DELETE and there is None and self._deleted:
            return []
        if there is None and step.seen is not None and not self._deleted:
            raise OptionError("it was there, and somebody else has deleted it meanwhile")
        if there is not None and digest(*there) != step.seen:
            if step.seen is None:
                raise OptionError("it was not there, and somebody else has created it meanwhile")
            raise OptionError("somebody else has changed it meanwhile")
        if there is not None and step.action in (Action.DELETE, Action.REPLACE):
            self._deleted, self._before = True, there[1]
            self._delete(calls)
        if step.action is Action.DELETE:
            return []
        self._sent = True
        try:
            self._send(calls, self.wanted)
        except ApiError as error:
            if not self._deleted or error.code == STORE_IN_USE:
                raise
            raise self._restored(calls, error) from None
        after = self._read(calls)
        if after is None:
            raise Disconnected("the server took it, and does not have it")
        return self._remarks(after[1])

    def _read(self, calls: Calls) -> tuple[str, Config] | None:
        """When it was created, and its configuration."""
        found: Any = (
            live.consumer(calls, self.step.stream, self.step.consumer)
            if self.step.consumer
            else live.stream(calls, self.step.stream)
        )
        return None if found is None else (found.created, found.config)

    def _delete(self, calls: Calls) -> None:
        step = self.step
        what = f"CONSUMER.DELETE.{step.stream}.{step.consumer}" if step.consumer else f"STREAM.DELETE.{step.stream}"
        try:
            calls.call(what)
        except ApiError as error:
            if error.code not in (api.NO_STREAM, api.NO_CONSUMER):
                raise

    def _restored(self, calls: Calls, error: ApiError) -> OptionError:
        """The error for what was deleted and cannot be created as wanted: it is there again as it was, but empty."""
        try:
            self._send(calls, merged({}, self._before, {}))
        except ApiError as again:
            return OptionError(f"{error}. It was deleted, and cannot be created as it was either: {again}")
        return OptionError(f"{error}. It was deleted, and is there again as it was before, but begins anew")

    def _send(self, calls: Calls, config: Config) -> None:
        step = self.step
        is_new = step.action is not Action.UPDATE
        if not step.consumer:
            calls.call(f"STREAM.{'CREATE' if is_new else 'UPDATE'}.{step.stream}", config)
            return
        body = {"stream_name": step.stream, "config": config, "action": "create" if is_new else "update"}
        calls.call(f"CONSUMER.CREATE.{step.stream}.{step.consumer}", body)
        if not is_new and any(change.field == "pause_until" for change in step.changes):
            until = config.get("pause_until")  # an update leaves it as it is
            calls.call(f"CONSUMER.PAUSE.{step.stream}.{step.consumer}", {"pause_until": until} if until else {})

    def _is_done(self, config: Config) -> bool:
        return not self._differing(config)

    def _differing(self, config: Config) -> list[str]:
        """The wanted fields that the server has otherwise."""
        fields = CONSUMER_FIELDS if self.step.consumer else STREAM_FIELDS
        name = {"name": self.step.stream}
        after, wanted = canonical(fields, name | config), canonical(fields, name | self.wanted)
        said = {"filter_subjects" if each == "filter_subject" else each for each in self.wanted}
        return [each for each in wanted if each in said and after.get(each) != wanted[each]]

    def _remarks(self, config: Config) -> list[str]:
        fields = {change.field for change in self.step.changes}
        return [
            f"{self.step.title}: the server made another value of '{name}' than asked."
            for name in self._differing(config)
            if name in fields
        ]


def _wanted(step: Step) -> Config:
    """What is sent."""
    return dict(step.config or {})


def _names(steps: Collection[Step]) -> str:
    return ", ".join(f"'{step.name}'" for step in steps)
