"""A pipeline: what a file says, checked and complete, with the guarantee of the whole. Pure values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.kit.contract import Guarantee
from penstock.kit.masking import HIDDEN, is_secret, masked
from penstock.pipelines import model
from penstock.pipelines.systems import SinkKind, SourceKind

# Options that say what is read, or where rows go.
_TOPICS = ("topic", "topics", "subscribe", "subject", "stream", "subjects", "shard")
FILES = ("parquet", "orc", "json", "csv", "text")


@dataclass(frozen=True)
class End:
    """A source or a sink: its name in the file, and the options that its format is given."""

    name: str
    type: str
    options: Mapping[str, str] = field(repr=False)
    # Options that are secrets, and the environment variable that each comes from; None where it is no such.
    hidden: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def topic(self) -> str | None:
        """What a schema registry names a subject after: the topic, stream or subject; None where there is not one."""
        named = next((self.options[name] for name in _TOPICS if self.options.get(name)), None)
        if named is not None and named.startswith("arn:"):
            named = named.rpartition("/")[2]
        return named if named and not set(named) & set(",{}*>") else None

    def shown(self) -> dict[str, str]:
        """The options, without secrets, also of formats that declare none."""
        return {
            key: HIDDEN if key in self.hidden or is_secret(key) else masked(value)
            for key, value in self.options.items()
        }


@dataclass(frozen=True)
class SourceEnd(End):
    """Where records come from, and how they are decoded."""

    kind: SourceKind = field(kw_only=True)
    schema: model.Schema | None = None
    file_format: str | None = None  # of file_system

    @property
    def is_shared(self) -> bool:
        """Whether a durable consumer of JetStream gives out the records, to others as well."""
        return self.options.get("ack", "none") != "none"

    @property
    def replayable(self) -> Guarantee:
        """Whether a batch that is run again has the same rows."""
        is_captured = self.type == "nats" and self.options.get("capture", "false") == "true"
        return Guarantee.YES if is_captured else self.kind.replayable


@dataclass(frozen=True)
class SinkEnd(End):
    """Where rows go, and how they are encoded."""

    kind: SinkKind = field(kw_only=True)
    schema: model.Schema | None = None
    envelope: bool = False
    headers: str = "keep"
    partition_by: tuple[str, ...] = ()

    @property
    def messages(self) -> bool:
        """Whether rows become messages: not where they are changes to a table."""
        return self.kind.messages and self.options.get("mode") != "upsert"

    @property
    def exactly_once(self) -> Guarantee:
        """What the sink promises with these options."""
        return Guarantee.NO if self.options.get("delivery") == "at_least_once" else self.kind.exactly_once


@dataclass(frozen=True)
class Transform:
    """One step, with the line that it stands in. `function` is that of a Python step, where it is imported already."""

    kind: str
    config: model.Section
    line: int
    function: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Pipeline:
    """One file."""

    key: str
    title: str
    file: Path
    enabled: bool
    source: SourceEnd
    transforms: tuple[Transform, ...]
    routing: Mapping[str, str]
    sinks: tuple[SinkEnd, ...]
    errors: model.Errors
    dead_letters: SinkEnd | None
    trigger: model.Trigger
    checkpoint: model.CheckpointTable
    location: str
    restart: model.Restart
    spark: model.Spark
    had_several: bool = False  # whether its checkpoint is that of a pipeline with several sinks

    @property
    def is_one_write(self) -> bool:
        """Whether each batch is one write: then the streaming query itself writes it."""
        is_one = len(self.sinks) == 1 and self.dead_letters is None and "sink" not in self.routing
        return is_one and not self.needs_order and not self.had_several

    @property
    def needs_order(self) -> bool:
        """Whether rows must be put into an order before they are written. When a batch is run again, sources of Spark
        may give partitions and files to other tasks, and a sink that knows rows by their task would not know them.
        """
        return not self.source.kind.ours and self.is_remembered

    @property
    def is_remembered(self) -> bool:
        """Whether a sink knows rows again by their place in a task."""
        return any(sink.kind.ours and sink.exactly_once is not Guarantee.NO for sink in self._all_sinks())

    def guarantee(self) -> str:
        """What holds from the source to every sink, in a sentence."""
        if self.source.is_shared:
            return "at least once: the consumer delivers again what was not acknowledged"
        if self.source.kind.options is None:
            return f"whatever '{self.source.type}' promises: whether it can be read again is not known here"
        if self.source.replayable is Guarantee.NO:
            return "at most once: the source cannot be read again, so what is not yet written when a run ends is lost"
        weaker = [(sink, self._once(sink)) for sink in self._all_sinks() if self._once(sink) is not Guarantee.YES]
        if not weaker:
            return "exactly once"
        names = ", ".join(f"'{sink.name}'" for sink, _ in weaker)
        if all(guarantee is Guarantee.ONE_ATTEMPT for _, guarantee in weaker):
            return f"exactly once, if no two attempts of a task run at once ({names}: leave spark.speculation off)"
        names = ", ".join(f"'{sink.name}'" for sink, guarantee in weaker if guarantee is Guarantee.NO)
        rest = "; exactly once to the others" if len(weaker) < len(self._all_sinks()) else ""
        return f"at least once to {names}: a batch that is run again is written again{rest}"

    def _all_sinks(self) -> tuple[SinkEnd, ...]:
        return self.sinks if self.dead_letters is None else (*self.sinks, self.dead_letters)

    def _once(self, sink: SinkEnd) -> Guarantee:
        """A sink beside others is written by batch. Only some know a batch again."""
        is_known_again = self.is_one_write or sink.kind.txn or sink.kind.options is None or sink.type in FILES
        return sink.exactly_once if is_known_again else Guarantee.NO
