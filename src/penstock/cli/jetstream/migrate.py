"""`penstock jetstream migrate`: from Core NATS or from Kafka to JetStream. Knows typer and rich; what is found,
proposed and proven comes from penstock.operate.migrate.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from penstock.cli.formats import is_option
from penstock.cli.jetstream.asking import InJson, asking, completed, options_of
from penstock.cli.jetstream.durations import seconds_of
from penstock.cli.jetstream.migrate_showing import (
    per_day,
    refuse_existing,
    show_lines,
    show_subscriptions,
    show_traffic,
    telling,
    write,
)
from penstock.cli.lines import closed_pipe
from penstock.cli.pipelines import console
from penstock.cli.sentences import sentences
from penstock.cli.tail import told_on_stderr
from penstock.clients.nats.subjects import problem
from penstock.errors import OptionError
from penstock.kit.masking import harmless

if TYPE_CHECKING:
    from penstock.clients.nats.options import NatsOptions
    from penstock.operate.declared.model import Declared
    from penstock.operate.declared.plan import Plan
    from penstock.operate.migrate.proposal import Proposal, World
    from penstock.operate.migrate.proving import Proven

# Exit codes besides 0, 1 for errors and 130 for Ctrl-C.
NOT_PROVEN, PARTLY_PROVEN = 3, 4
PROVE = "10s"
MAX_AGE = 7 * 86_400.0
_LAYOUTS = ("one", "per-prefix")


class Migrate(TyperCommand):
    """A command where `--prove` may stand without its duration."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the duration in where it is left out."""
        words: list[str] = []
        for number, word in enumerate(args, start=1):
            words.append(word)
            if word == "--prove" and not re.fullmatch(r"\d+(\.\d+)?(ms|s|m|h|d)", "".join(args[number : number + 1])):
                words.append(PROVE)
        return super().parse_args(ctx, words)


def migrate(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="SUBJECT... [OPTION=VALUE...]", autocompletion=completed)
    ] = None,
    monitoring: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Where a server is monitored, such as http://HOST:8222; may be repeated."),
    ] = None,
    listen: Annotated[str, typer.Option(metavar="DURATION", help="How long to listen.")] = "10s",
    layout: Annotated[
        str, typer.Option(metavar="one|per-prefix|FILE", help="One stream, one per application, or those of a file.")
    ] = "one",
    name: Annotated[str | None, typer.Option(help="The name of the stream, or the beginning of the names.")] = None,
    storage: Annotated[str, typer.Option(metavar="file|memory")] = "file",
    replicas: Annotated[
        int | None, typer.Option(min=1, max=5, help="By default 3 in a cluster of three or more, else 1.")
    ] = None,
    max_age: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long messages are kept, 7d by default.")
    ] = None,
    no_ack: Annotated[
        bool, typer.Option("--no-ack", help="Store requests too: the streams acknowledge nothing.")
    ] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Make the streams. Without it, nothing is changed.")] = False,
    prove: Annotated[
        str | None, typer.Option(metavar="[DURATION]", help="Compare streams with subscribers, 10s by default.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the declaration; with --from-kafka, a folder of files.")
    ] = None,
    from_kafka: Annotated[
        bool, typer.Option("--from-kafka", help="The words are topics of Kafka; brokers=HOST:9092 says where.")
    ] = False,
    by_key: Annotated[bool, typer.Option("--by-key", help="With --from-kafka: subjects by key.")] = False,
    in_json: InJson = False,
) -> None:
    """Move to JetStream without losing a message: penstock jetstream migrate 'orders.>' --monitoring http://HOST:8222.

    Proposes streams for what is published on the subjects, and changes nothing without --apply. With --prove it
    compares what a plain subscriber gets with what the streams store. Exit code 3 where messages are missing, 4 where
    only a part could be proven, or a subject has no stream.
    """
    with sentences(), closed_pipe(), told_on_stderr():
        given = [word for word in words or () if is_option(word)]
        subjects = tuple(word for word in words or () if not is_option(word))
        if storage not in ("file", "memory"):
            raise OptionError(f"--storage '{harmless(storage)}' is neither file nor memory.")
        kept = seconds_of(max_age, "--max-age") if max_age else 0.0
        wait = None if prove is None else seconds_of(prove, "--prove")
        if from_kafka:
            from penstock.cli.jetstream.migrate_kafka import migrate_topics

            code = migrate_topics(
                subjects, given, by_key=by_key, name=name, storage=storage, replicas=replicas or 1,
                max_age=kept or None, apply=apply, wait=wait, folder=out, in_json=in_json,
            )  # fmt: skip
        else:
            _check(subjects)
            run = _Run(subjects, options_of(given), in_json)
            if out is not None:
                refuse_existing(out)
            run.read(layout)
            with telling() as tell:
                run.find(seconds_of(listen, "--listen"), monitoring or (), tell)
                run.propose(name, storage, replicas, kept or MAX_AGE, no_ack)
            code = run.carry_out(apply, wait, out)
    if code:
        raise typer.Exit(code)


def _check(subjects: Sequence[str]) -> None:
    if not subjects:
        raise OptionError("say which subjects should be stored: penstock jetstream migrate 'orders.>'.")
    for text in subjects:
        if why := problem(text, wildcards=True):
            raise OptionError(f"'{harmless(text)}' {why}: write subjects such as 'orders.>'.")


class _Run:
    """One migration, from what is found to what is proven."""

    def __init__(self, subjects: tuple[str, ...], options: "NatsOptions", in_json: bool):
        self.subjects, self.options, self.in_json = subjects, options, in_json
        self.said: dict[str, Any] = {}
        self.declared: Declared | None = None
        self.text = ""

    def read(self, layout: str) -> None:
        """Which layout it is; the declaration, where it is a file."""
        from penstock.operate.migrate import applying

        self.layout = layout
        if layout in _LAYOUTS:
            return
        path = Path(layout)
        if not path.exists():
            raise OptionError(f"--layout '{harmless(layout)}' is neither one, per-prefix, nor a file.")
        self.declared = applying.loaded_file(path)
        self.text = path.read_text() if path.is_file() else ""

    def find(self, seconds: float, monitoring: Sequence[str], tell: Callable[[str], None]) -> None:
        """Look at what there is, also on subjects that only the declaration has: requests may come there."""
        from penstock.operate.migrate import applying
        from penstock.operate.migrate.filters import watched
        from penstock.operate.migrate.survey import find

        streams = applying.streams(self.declared) if self.declared else {}
        taken = [text for config in streams.values() for text in config.get("subjects") or ()]
        self.world: World = find(self.options, watched(self.subjects, taken), seconds, monitoring, tell)

    def propose(self, name: str | None, storage: str, replicas: int | None, max_age: float, no_ack: bool) -> None:
        """Decide on streams."""
        from penstock.operate.migrate import applying, declaration
        from penstock.operate.migrate.proposal import Wish, given, propose

        self.proposal: Proposal
        if self.declared is None:
            wish = Wish(self.subjects, self.layout, name, storage, replicas, max_age, no_ack)
            self.proposal = propose(wish, self.world)
            self.text = declaration.text(self.proposal, " ".join(map(shlex.quote, self.subjects)))
            self.declared = applying.loaded(self.text)
            return
        consumers = {
            each.name: {one.name: one.config for one in each.consumers.values()}
            for each in self.declared.streams.values()
            if each.consumers
        }
        self.proposal = given(applying.streams(self.declared), consumers, self.world)

    def carry_out(self, apply: bool, wait: float | None, out: Path | None) -> int:
        """Show the plan, apply it, prove it; the exit code."""
        from penstock.operate.migrate import applying

        assert self.declared is not None  # since the proposal
        streams = [*self.proposal.streams, *(each.name for each in self.proposal.captured)]
        streams = list(dict.fromkeys(streams))
        if not streams:
            raise OptionError(
                f"there is nothing to store on these subjects: {' '.join(self.proposal.remarks)} Listen longer, or "
                "name the subjects themselves."
            )
        with asking(self.options) as calls:
            plan = applying.planned(calls, self.declared)
            if out is not None:
                write({out: self.text}, mode="x")
            self._show_found(applying.steps(plan))
            if apply and plan.changes:
                remarks = applying.applied(calls, plan, self._say)
                self._lines("remarks of the server", remarks)
        self.said |= {"applied": apply, "declaration": self.text, "plan": plan.as_json()}
        code = 0
        try:
            if wait is not None:
                made = self.proposal.streams if apply else {}
                code = self._prove(streams if apply else [each.name for each in self.proposal.captured], wait, made)
        except (Exception, KeyboardInterrupt) as error:
            # The streams are there whatever became of the proof: what was made, and how to undo it, is told first.
            self.said["proof"] = {"error": harmless(str(error)) or "stopped"}
            self._conclude(apply, plan)
            raise
        self._conclude(apply, plan)
        return code

    def _conclude(self, apply: bool, plan: "Plan") -> None:
        """Show what to do now."""
        from penstock.operate.migrate import applying, steps

        self._lines("what to change in programs", steps.programs(self.proposal))
        self._lines("how to go back", steps.back(applying.created(plan)))
        if not apply and plan.changes:
            self._say("nothing was changed. --apply makes the streams.")
        if self.in_json:
            print(json.dumps(self.said, ensure_ascii=False), flush=True)

    def _prove(self, streams: Sequence[str], seconds: float, made: Mapping[str, Mapping[str, Any]]) -> int:
        from penstock.operate.migrate.proving import Prover
        from penstock.operate.migrate.verdicts import lines, unstored, without_stream

        if not streams:
            raise OptionError("there is no stream to prove yet: add --apply, which makes those above.")
        with telling() as tell:
            told = lambda got, left: tell(f"proving: {got:,} messages came, {left:.0f} s left")  # noqa: E731
            proven: Proven = Prover(self.options, streams, told).prove(seconds)
        taken = [text for each in self.world.existing for text in each.subjects]
        taken += [text for config in made.values() for text in config.get("subjects") or ()]
        left_out = [each.subject for each in self.proposal.left_out]
        proven.without_stream = unstored(self.world.heard.subjects, self.subjects, taken, left_out)
        self._lines("proof", lines(proven))
        self.said["proof"] = {
            "holds": proven.holds,
            "whole": proven.whole,
            "messages": proven.messages,
            "parts": [asdict(part) for part in proven.parts],
            "remarks": [*([without_stream(proven.without_stream)] if proven.without_stream else []), *proven.remarks],
            "withoutStream": [harmless(each) for each in proven.without_stream],
        }
        return NOT_PROVEN if not proven.holds else 0 if proven.whole else PARTLY_PROVEN

    def _show_found(self, plan: Sequence[str]) -> None:
        from penstock.operate.migrate import steps

        world, proposal = self.world, self.proposal
        self.said |= {
            "heard": {
                "seconds": round(world.heard.seconds, 3),
                "messages": world.heard.all().messages,
                "subjects": {harmless(name): asdict(each) for name, each in world.heard.subjects.items()},
            },
            "subscriptions": [each._asdict() for each in world.seen.subscriptions],
            "streams": dict(proposal.streams),
            "consumers": {name: dict(each) for name, each in proposal.consumers.items()},
            "captured": [each._asdict() for each in proposal.captured],
            "leftOut": [each._asdict() for each in proposal.left_out],
            "bytesPerDay": dict(proposal.daily),
            "remarks": list(proposal.remarks),
        }
        if not self.in_json:
            show_traffic(world)
            show_subscriptions(world)
        captured = [f"{each.name} takes {', '.join(each.subjects)}" for each in proposal.captured]
        self._lines("streams that take some of this already", captured, said=False)
        self._lines("left out", steps.left_out(proposal.left_out), said=False)
        self._lines("plan", plan, said=False)
        self._lines("bytes a day, at this rate", per_day(proposal.daily), said=False)
        self._lines("to know", proposal.remarks, said=False)

    def _lines(self, title: str, lines: Iterable[str], *, said: bool = True) -> None:
        found = [harmless(line) if not line.startswith(" ") else f"  {harmless(line)}" for line in lines]
        if said:
            words = title.split()
            self.said["".join([words[0], *(word.title() for word in words[1:])])] = found
        if self.in_json or not found:
            return
        show_lines(title, found)

    def _say(self, line: str) -> None:
        if not self.in_json:
            console().print(harmless(line), markup=False, highlight=False, soft_wrap=True)
