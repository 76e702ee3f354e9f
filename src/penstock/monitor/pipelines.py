"""The pipelines of a runner, as the HTTP interface and the page see them. Knows the runner and its orders."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from penstock.checkpoints.log import Log
from penstock.errors import OptionError
from penstock.monitor.view import Told
from penstock.pipelines.dead_letters import Letter
from penstock.pipelines.orders import Orders
from penstock.pipelines.pipeline import End, Pipeline
from penstock.pipelines.runner import Runner, Running, State

LETTERS = 50


class RunningPipelines:
    """What a runner's pipelines tell of themselves, and what they can be told. `letters`: how dead letters are read."""

    def __init__(self, runner: Runner, letters: Callable[[Pipeline, int], Sequence[Letter]]):
        self.runner, self.orders, self.letters = runner, Orders(runner), letters
        self.states: Sequence[str] = [str(state) for state in State]
        self._flows = {each.pipeline.key: _flow(each.pipeline) for each in runner.running}

    def all(self) -> list[Told]:
        """Every one, in the order of the files."""
        return [self._told(each) for each in self.runner.running]

    def do(self, verb: str, key: str, **given: Any) -> Any:
        """Carry out an order, or look something up."""
        if verb in ("checkpoints", "dead_letters"):
            pipeline = next(each.pipeline for each in self.runner.running if each.pipeline.key == key)
            return _batches(pipeline) if verb == "checkpoints" else _shown(self.letters(pipeline, LETTERS))
        return getattr(self.orders, verb)(key, **given)

    def _told(self, each: Running) -> Told:
        pipeline, is_waiting = each.pipeline, each.state is State.WAITING
        is_again = each.state is State.STARTING and each.failures > 0
        return Told(
            key=pipeline.key,
            title=pipeline.title,
            state=str(each.state),
            guarantee=pipeline.guarantee(),
            error=each.error if is_waiting or each.state is State.FAILED or is_again else "",
            failures=each.failures,
            restarts=each.restarts,
            errors=self.runner.store.totals(pipeline.key)[1],
            has_dead_letters=pipeline.dead_letters is not None,
            restarts_in=max(0.0, round(each.due - time.monotonic(), 1)) if is_waiting else None,
            flow=self._flows[pipeline.key],
            log=list(each.log),
        )


def _flow(pipeline: Pipeline) -> list[dict[str, Any]]:
    """The parts of a pipeline in their order, with options that are no secrets."""
    ends = [("source", pipeline.source), *(("sink", sink) for sink in pipeline.sinks)]
    if pipeline.dead_letters is not None:
        ends.append(("dead_letters", pipeline.dead_letters))
    source, *sinks = [_end(part, end) for part, end in ends]
    steps = [
        {"part": "transform", "name": step.kind, "type": step.kind, "text": _text(step.config)}
        for step in pipeline.transforms
    ]
    return [source, *steps, *sinks]


def _end(part: str, end: End) -> dict[str, Any]:
    return {"part": part, "name": end.name, "type": end.type, "options": end.shown()}


def _text(config: Any) -> str:
    told = config.model_dump(exclude_none=True, exclude_defaults=True)
    return str(next(iter(told.values()), "")) if len(told) == 1 else ", ".join(f"{k} = {v}" for k, v in told.items())


def _batches(pipeline: Pipeline) -> list[dict[str, Any]]:
    """The batches in the checkpoint, the newest first. None before the first."""
    try:
        log = Log(pipeline.location)
    except OptionError:
        return []
    return [
        {
            "batch": batch.number,
            "planned": batch.planned.isoformat() if batch.planned else None,
            "committed": batch.committed,
            "records": batch.size,
            **({"fault": batch.fault} if batch.fault else {}),
        }
        for batch in reversed(log.batches())
    ]


def _shown(letters: Sequence[Letter]) -> list[dict[str, Any]]:
    """Dead letters, the newest first, with the beginning of each as text."""
    return [{**each._asdict(), "value": each.value[:2000].decode(errors="replace")} for each in reversed(letters)]
