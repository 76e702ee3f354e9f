"""A plan carried out, step by step: each stream or consumer is read again before it is changed, and after a lost
answer. Knows the client; does nothing that the plan has not decided, and less where that would delete more by now.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from penstock.clients.jetstream import api
from penstock.clients.jetstream.calls import ApiError, Calls
from penstock.errors import Disconnected, OptionError, PenstockError
from penstock.operate.declared import effects, live, writing
from penstock.operate.declared.configs import canonical, differences, digest, merged
from penstock.operate.declared.fields import CONSUMER_FIELDS, STREAM_FIELDS
from penstock.operate.declared.model import Config, LiveConsumer, LiveStream
from penstock.operate.declared.retrying import Asking, may_pass
from penstock.operate.declared.steps import Action, Plan, Step


class Stopped(PenstockError):  # noqa: N818 - what happened, and the base says that it is an error
    """Not all steps were taken. `done` has those that were, `left` the others, `at` the one that failed. `was` is the
    old configuration, as a declaration, of what that one has deleted.
    """

    def __init__(self, why: str, at: Step, done: tuple[Step, ...], left: tuple[Step, ...], was: str = ""):
        self.at, self.done, self.left, self.was = at, done, left, was
        first = "it was the first step" if was else "nothing was changed before"
        made = f"done before: {_names(done)}" if done else first
        rest = f"not done: {_names(left)}" if left else "nothing else was left to do"
        told = f"{at.action.value} {at.title}: {why} ({made}; {rest}). Plan again, and apply what is left."
        super().__init__(f"{told} What was there before, as a declaration:\n\n{was}" if was else told)


class _Deleted(PenstockError):  # noqa: N818 - as above
    """A step has deleted something, and did not come to its end. `was` is the old configuration, as a declaration."""

    def __init__(self, why: str, was: str):
        super().__init__(why)
        self.was = was


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
    there. An update that would delete messages by now is not made without a permission either. What cannot be done
    ends in Stopped; applying a new plan does the rest. `tell` gets each step that is done.
    """
    _check(plan, allow_replace)
    asking = Asking(calls)
    done: list[Step] = []
    remarks: list[str] = []
    steps = plan.changes
    try:
        for number, step in enumerate(steps):
            try:
                remarks += _Doing(step, is_allowed=step.name in allow_replace).run(asking)
            except PenstockError as error:
                was = error.was if isinstance(error, _Deleted) else ""
                raise Stopped(str(error), step, tuple(done), steps[number + 1 :], was) from error
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

    def __init__(self, step: Step, *, is_allowed: bool):
        self.step, self.is_allowed = step, is_allowed
        self.wanted = dict(step.config or {})
        self._deleted = self._sent = False
        self._is_there: bool | None = None  # as far as answers tell; None where the last one did not come
        self._before: Config = {}
        self._was = ""  # as a declaration
        self._consumers: list[str] = []  # of a stream that is deleted
        self._refused: ApiError | None = None  # why the new one could not be created

    def run(self, asking: Asking) -> list[str]:
        """Take the step; remarks where the server made something else of it."""
        try:
            return asking.run(f"{self.step.action.value} {self.step.title}", self._once)
        except (PenstockError, KeyboardInterrupt) as error:
            if self.step.action is not Action.REPLACE or not self._deleted or isinstance(error, _Deleted):
                raise
            why = str(error) if isinstance(error, PenstockError) else "stopped by Ctrl-C"
            raise _Deleted(f"{why}. {_STATES[self._is_there]}", self._was) from error

    def _once(self, calls: Calls) -> list[str]:
        step = self.step
        found = self._read(calls)
        there = None if found is None else (found.created, found.config)
        if self._sent and there is not None and self._is_done(there[1]):
            return self._remarks(there[1])  # the answer was lost, the change was not
        if self._refused is not None and there is not None:
            raise self._begun_anew()  # the same
        if step.action is Action.DELETE and there is None and self._deleted:
            return []
        if there is None and step.seen is not None and not self._deleted:
            raise OptionError("it was there, and somebody else has deleted it meanwhile")
        if there is not None and digest(*there) != step.seen:
            if step.seen is None:
                raise OptionError("it was not there, and somebody else has created it meanwhile")
            raise OptionError("somebody else has changed it meanwhile")
        if found is not None and step.action in (Action.DELETE, Action.REPLACE):
            self._delete(calls, found)
        if step.action is Action.DELETE:
            return []
        if found is not None and step.action is Action.UPDATE and not self.is_allowed and self._loses(calls, found):
            raise OptionError(
                "it would delete messages at once, which have come since the plan. To allow that: --allow-replace "
                f"{step.name}"
            )
        self._create_or_update(calls)
        after = self._read(calls)
        if after is None:
            raise Disconnected("the server took it, and does not have it")
        return self._remarks(after.config)

    def _read(self, calls: Calls) -> LiveStream | LiveConsumer | None:
        step = self.step
        found = live.consumer(calls, step.stream, step.consumer) if step.consumer else live.stream(calls, step.stream)
        self._is_there = found is not None
        return found

    def _loses(self, calls: Calls, found: LiveStream | LiveConsumer) -> bool:
        """Whether an update deletes messages at once, now."""
        if isinstance(found, LiveStream):
            changes = differences(STREAM_FIELDS, self.wanted, found.config)
            return effects.deletes_messages(found, changes, self.wanted, time.time_ns() // 1000)
        changes = differences(CONSUMER_FIELDS, self.wanted, found.config)
        stream = live.stream(calls, self.step.stream) if "filter_subjects" in changes else None
        if stream is None:
            return False
        return effects.filters_delete_messages(stream, changes, str(stream.config.get("retention")))

    def _delete(self, calls: Calls, found: LiveStream | LiveConsumer) -> None:
        step = self.step
        self._before = found.config
        if isinstance(found, LiveConsumer):
            self._was = writing.of_consumer(step.stream, found)
        elif step.action is Action.REPLACE:
            found = replace(found, consumers=live.consumers(calls, step.stream))
            self._was, self._consumers = writing.of_streams([found]), list(found.consumers or {})
        what = f"CONSUMER.DELETE.{step.stream}.{step.consumer}" if step.consumer else f"STREAM.DELETE.{step.stream}"
        self._deleted, self._is_there = True, None
        try:
            calls.call(what)
        except ApiError as error:
            if error.code not in (api.NO_STREAM, api.NO_CONSUMER):
                self._deleted = False
                raise
        self._is_there = False

    def _create_or_update(self, calls: Calls) -> None:
        """Send what is wanted. Where that is refused after something was deleted, this is created as it was."""
        self._sent, self._is_there = True, None
        try:
            self._send(calls, self.wanted)
        except ApiError as error:
            self._is_there = not self._deleted
            if not self._deleted or may_pass(error):
                raise
            self._restore(calls, error)
            raise self._begun_anew() from None
        self._is_there = True

    def _restore(self, calls: Calls, error: ApiError) -> None:
        """Create what was deleted as it was: it begins anew."""
        self._refused, self._is_there = error, None
        try:
            self._send(calls, merged({}, self._before, {}))
        except ApiError as again:
            self._is_there = False
            if may_pass(again):
                raise
            words = f"{error}. It cannot be created as it was either: {again}. {_STATES[False]}"
            raise _Deleted(words, self._was) from None

    def _begun_anew(self) -> _Deleted:
        """The error for what was deleted, could not be created as wanted, and is there again as it was."""
        gone = f", and is empty; its consumers {effects.listed(self._consumers)} are gone" if self._consumers else ""
        words = f"{self._refused}. It was deleted, and is there again as it was before, but begins anew{gone}"
        return _Deleted(words, self._was)

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


_STATES = {
    False: "It is deleted, and is not there",
    None: "It may be deleted and not there: the last answer did not come",
    True: "It is deleted, and what is there now is another one",
}


def _names(steps: Collection[Step]) -> str:
    return ", ".join(f"'{step.name}'" for step in steps)
