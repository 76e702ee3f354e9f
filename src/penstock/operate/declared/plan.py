"""The plan: what it takes to make the server as declared, in which order, and what that does. Pure: decides, and sends
nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from penstock.clients.jetstream import api
from penstock.operate.declared import between, buckets, checks, effects, order, values
from penstock.operate.declared.configs import differences, digest, fitted, merged, normal
from penstock.operate.declared.fields import CONSUMER_FIELDS, STREAM_FIELDS, Field, Version
from penstock.operate.declared.model import (
    Config,
    Declared,
    DeclaredConsumer,
    DeclaredStream,
    Live,
    LiveConsumer,
    LiveStream,
)
from penstock.operate.declared.steps import Action, Change, Plan, Step

__all__ = ["Action", "Plan", "Step", "plan"]

# Written for consumers that are new: the server's own default is to acknowledge nothing.
_NEW_CONSUMER: Config = {"ack_policy": "explicit"}
_UNKNOWN = "its stream is there, but did not answer: what it has is not known."


def plan(declared: Declared, live: Live) -> Plan:
    """What it takes to make the server as declared."""
    planning = _Planning(declared, live)
    streams = [planning.stream(each) for each in declared.streams.values()]
    streams = planning.together(streams)
    by_name = {step.stream: step for step in streams}
    consumers = [
        planning.consumer(each, one, by_name[each.name])
        for each in declared.streams.values()
        if not each.absent
        for one in each.consumers.values()
    ]
    consumers = planning.queues(consumers, by_name)
    return Plan(tuple(order.ordered(streams, consumers, live)), live.unseen, tuple(_others(declared, live)))


def _others(declared: Declared, live: Live) -> Iterator[str]:
    """What is on the server and in no file. Penstock's own is left out."""
    for name, stream in live.streams.items():
        if name == api.LEDGER:
            continue
        said = declared.streams.get(name)
        if said is None:
            yield name
        own = effects.queries(stream)
        for consumer in (stream.consumers or {}).values() if said is None or not said.absent else ():
            if (
                consumer.is_durable
                and consumer.name not in own
                and (said is None or consumer.name not in said.consumers)
            ):
                yield f"{name}/{consumer.name}"


class _Planning:
    """One plan that is being made."""

    def __init__(self, declared: Declared, live: Live):
        self.declared, self.live = declared, live

    def stream(self, said: DeclaredStream) -> Step:
        """The step of a stream, seen by itself."""
        there = self.live.streams.get(said.name)
        seen = None if there is None else digest(there.created, there.config)
        step = Step(said.name, "", said.title, Action.NOTHING, seen=seen)
        if said.name in self.live.unknown:
            return replace(step, action=Action.IMPOSSIBLE, problems=(_UNKNOWN,))
        if said.absent:
            if there is None:
                return step
            gone = tuple(effects.of_deletion(there, None))
            return replace(step, action=Action.DELETE, effects=gone, config=None)
        problems = tuple(checks.newer(STREAM_FIELDS, said.config, self.live.version, self.live.server))
        wanted = checks.known(STREAM_FIELDS, said.config, self.live.version)
        if there is None:
            return self._new_stream(said, step, wanted, problems)
        if not said.is_whole:
            return step
        wanted = _with_window(wanted, there.config)
        changes = _changes(STREAM_FIELDS, wanted, there.config, self.live.version, buckets.word if said.bucket else str)
        if not changes:
            return replace(step, action=Action.IMPOSSIBLE if problems else Action.NOTHING, problems=problems)
        config = fitted(STREAM_FIELDS, merged(STREAM_FIELDS, there.config, wanted), wanted)
        is_new = any(change.why_not for change in changes)
        if is_new and "sealed" not in wanted:
            config.pop("sealed", None)
        problems += self._stream_problems(config, there, is_new=is_new, bucket=said.bucket)
        if is_new:
            told = (*effects.of_deletion(there, set(said.consumers)), *checks.few_servers(config, self.live))
        else:
            raw = differences(STREAM_FIELDS, wanted, there.config)
            told = tuple(effects.of_update(there, raw, config, self.live.now))
            told += tuple(checks.few_servers(config, self.live)) if "num_replicas" in raw else ()
            step = replace(step, deletes_messages=effects.deletes_messages(there, raw, config, self.live.now))
        action = Action.IMPOSSIBLE if problems else Action.REPLACE if is_new else Action.UPDATE
        return replace(step, action=action, changes=changes, effects=told, problems=problems, config=config)

    def _new_stream(self, said: DeclaredStream, step: Step, wanted: Config, problems: tuple[str, ...]) -> Step:
        if not said.is_whole:
            words = "it does not exist, and files only say consumers of it: declare it too, or correct its name."
            return replace(step, action=Action.IMPOSSIBLE, problems=(words,))
        initial = checks.known(STREAM_FIELDS, said.initial, self.live.version)
        config = merged(STREAM_FIELDS, {"name": said.name, **initial}, wanted)
        problems += self._stream_problems(config, None, is_new=True, bucket=said.bucket)
        changes = tuple(
            Change(buckets.word(name) if said.bucket else name, None, _shown(STREAM_FIELDS, name, value))
            for name, value in wanted.items()
        )
        action = Action.IMPOSSIBLE if problems else Action.CREATE
        told = tuple(checks.few_servers(config, self.live))
        return replace(step, action=action, changes=changes, effects=told, problems=problems, config=config)

    def _stream_problems(
        self, config: Config, there: LiveStream | None, *, is_new: bool, bucket: str
    ) -> tuple[str, ...]:
        found = [*checks.stream(config, self.live, is_new=is_new)]
        if bucket:
            found += checks.bucket(config)
        if there is not None and not is_new:
            found += checks.limits_of_consumers(config, there, self.live.version)
        return tuple(found)

    def together(self, steps: list[Step]) -> list[Step]:
        """The steps of streams, with what is wrong between streams: subjects that two have, and cycles."""
        after = {name: each.config for name, each in self.live.streams.items()}
        for step in steps:
            if step.action is Action.DELETE:
                after.pop(step.stream, None)
            elif step.config is not None:
                after[step.stream] = step.config
        subjects = between.Taken()
        for name, config in after.items():
            subjects.add(name, between.taken(name, config))
        account = between.Account(self.live)
        for step in steps:
            if step.action is Action.DELETE:
                account.without(self.live.streams[step.stream].config)
        return [self._between(step, after, subjects, account) for step in steps]

    def _between(
        self, step: Step, after: Mapping[str, Config], subjects: between.Taken, account: between.Account
    ) -> Step:
        if step.config is None or step.action is Action.NOTHING:
            return step
        there = self.live.streams.get(step.stream)
        problems = [*step.problems, *account.with_(step.config, there.config if there is not None else None)]
        told: set[str] = set()
        for mine in between.taken(step.stream, step.config):
            for other, its in subjects.matching(mine):
                if other != step.stream and other not in told:
                    told.add(other)
                    where = "" if other in self.declared.streams else ", which no file names"
                    words = f"its subject '{mine}' overlaps with '{its}' of stream '{other}'{where}"
                    problems.append(f"{words}: one subject, one stream.")
        if (pair := between.cycle(after, step.stream)) is not None:
            problems.append(
                f"streams would copy each other in a circle: '{pair[0]}' copies '{pair[1]}', which is on the way."
            )
        problems += between.origins_fit(step.config, after, self.declared.streams[step.stream].config)
        if not problems:
            return step
        return replace(step, action=Action.IMPOSSIBLE, problems=tuple(problems))

    def consumer(self, stream: DeclaredStream, said: DeclaredConsumer, above: Step) -> Step:
        """The step of a consumer, given that of its stream."""
        alive = self.live.streams.get(stream.name)
        there = (alive.consumers or {}).get(said.name) if alive is not None else None
        seen = None if there is None else digest(there.created, there.config)
        title = f"consumer '{said.name}' of {stream.title}"
        step = Step(stream.name, said.name, title, Action.NOTHING, seen=seen)
        if stream.name in self.live.unknown:
            return replace(step, action=Action.IMPOSSIBLE, problems=(_UNKNOWN,))
        if said.absent:
            if there is None or alive is None or above.action is Action.REPLACE:
                return step
            gone = tuple(effects.of_consumer_deletion(there, alive, None))
            return replace(step, action=Action.DELETE, effects=gone)
        problems = tuple(checks.newer(CONSUMER_FIELDS, said.config, self.live.version, self.live.server))
        wanted = checks.known(CONSUMER_FIELDS, said.config, self.live.version)
        if (until := wanted.get("pause_until")) and api.micros(until) <= self.live.now:
            del wanted["pause_until"]  # over: it says nothing any more
        config = above.config if above.config is not None else alive.config if alive is not None else None
        if config is None or (alive is None and above.action is Action.IMPOSSIBLE):
            return replace(step, action=Action.IMPOSSIBLE, problems=(*problems, "its stream cannot be made."))
        if there is None or alive is None:
            return self._new_consumer(step, wanted, config, problems)
        return self._old_consumer(step, there, alive, wanted, config, problems, again=above.action is Action.REPLACE)

    def _new_consumer(self, step: Step, wanted: Config, stream: Config, problems: tuple[str, ...]) -> Step:
        config = merged(CONSUMER_FIELDS, {**_named(step.consumer), **_NEW_CONSUMER}, wanted)
        problems += tuple(checks.consumer(config, stream, wanted))
        changes = tuple(Change(name, None, _shown(CONSUMER_FIELDS, name, value)) for name, value in wanted.items())
        action = Action.IMPOSSIBLE if problems else Action.CREATE
        told = tuple(checks.idle_filters(config, stream))
        return replace(step, action=action, changes=changes, effects=told, problems=problems, config=config)

    def _old_consumer(
        self,
        step: Step,
        there: LiveConsumer,
        stream: LiveStream,
        wanted: Config,
        above: Config,
        problems: tuple[str, ...],
        *,
        again: bool,
    ) -> Step:
        """A consumer that is there. `again`: its stream is replaced, and so it is created anew with it."""
        changes = _changes(CONSUMER_FIELDS, wanted, there.config, self.live.version, str)
        if not there.is_durable:
            changes += (
                Change("durable_name", None, step.consumer, "it is not durable, and cannot become it in place"),
            )
        if not changes and not again:
            return replace(step, action=Action.IMPOSSIBLE if problems else Action.NOTHING, problems=problems)
        config = fitted(CONSUMER_FIELDS, merged(CONSUMER_FIELDS, there.config, wanted), wanted) | _named(step.consumer)
        problems += tuple(checks.consumer(config, above, wanted))
        is_new = again or any(change.why_not for change in changes)
        if again:
            told: Iterable[str] = ("It starts anew with its stream.",)
        elif is_new:
            told = effects.of_consumer_deletion(there, stream, config)
        else:
            raw = differences(CONSUMER_FIELDS, wanted, there.config)
            retention = str(normal(STREAM_FIELDS["retention"], above.get("retention")))
            told = effects.of_consumer_update(there, raw, stream, retention)
            step = replace(step, deletes_messages=effects.filters_delete_messages(stream, raw, retention))
        kind = Action.CREATE if again else Action.REPLACE if is_new else Action.UPDATE
        action = Action.IMPOSSIBLE if problems else kind
        seen = None if again else step.seen
        told = (*told, *checks.idle_filters(config, above))
        return replace(step, action=action, changes=changes, effects=told, problems=problems, config=config, seen=seen)

    def queues(self, steps: list[Step], streams: Mapping[str, Step]) -> list[Step]:
        """The steps of consumers, with those of a work queue that would get the same messages refused."""
        found: dict[str, list[str]] = {}
        by_stream: dict[str, list[Step]] = {}
        for one in steps:
            by_stream.setdefault(one.stream, []).append(one)
        for name, step in streams.items():
            alive = self.live.streams.get(name)
            stream = step.config if step.config is not None else alive.config if alive is not None else None
            if stream is None or step.action is Action.DELETE:
                continue
            consumers = {} if alive is None or step.action is Action.REPLACE else {
                each.name: each.config for each in (alive.consumers or {}).values()
            }  # fmt: skip
            for one in by_stream.get(name, ()):
                if one.action is Action.DELETE:
                    consumers.pop(one.consumer, None)
                elif one.config is not None:
                    consumers[one.consumer] = one.config
            for consumer, words in checks.queue(stream, consumers):
                found.setdefault(f"{name}/{consumer}", []).append(words)
            most = normal(STREAM_FIELDS["max_consumers"], stream.get("max_consumers"))
            for one in by_stream.get(name, ()) if 0 < most < len(consumers) else ():
                if one.action is Action.CREATE:
                    words = f"the stream would have {len(consumers)} consumers, and max_consumers is {most}."
                    found.setdefault(one.name, []).append(words)
        return [
            replace(step, action=Action.IMPOSSIBLE, problems=(*step.problems, *found[step.name]))
            if step.name in found and step.action in (Action.CREATE, Action.UPDATE, Action.REPLACE)
            else step
            for step in steps
        ]


def _named(consumer: str) -> Config:
    return {"durable_name": consumer, "name": consumer}


def _with_window(wanted: Config, there: Config) -> Config:
    """The wanted fields; with a shorter max_age, the duplicate window follows it, unless a file says it."""
    age, window = wanted.get("max_age"), there.get("duplicate_window", 0)
    if age and "duplicate_window" not in wanted and window > age:
        return {**wanted, "duplicate_window": age}
    return wanted


def _changes(
    fields: Mapping[str, Field], wanted: Config, there: Config, version: Version, word: Any
) -> tuple[Change, ...]:
    """The changes, with the reason where the server cannot make one in place."""
    found = []
    for name, (before, after) in differences(fields, wanted, there).items():
        field = fields.get(name)
        why = field.change(before, after, version) if field is not None else ""
        found.append(Change(word(name), _shown(fields, name, before), _shown(fields, name, after), why))
    return tuple(found)


def _shown(fields: Mapping[str, Field], name: str, value: Any) -> Any:
    field = fields.get(name)
    if field is None or value is None:
        return value
    if field.limit:
        value = normal(field, value)
    return values.shown(field.kind, value)
