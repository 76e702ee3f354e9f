"""`penstock jetstream migrate --from-kafka`: files that copy topics, and the proof of a copy. Knows typer and rich."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.formats import parsed
from penstock.cli.jetstream.asking import asking, options_of
from penstock.cli.jetstream.migrate_showing import show_lines, telling, write
from penstock.cli.pipelines import console
from penstock.clients.nats.options import NatsOptions
from penstock.errors import OptionError
from penstock.kit.masking import harmless
from penstock.options import spellings
from penstock.options.types import duration

if TYPE_CHECKING:
    from penstock.operate.migrate.kafka_copy import Copy

# The exit code where records are missing.
NOT_PROVEN = 3


def migrate_topics(
    topics: Sequence[str],
    words: Sequence[str],
    *,
    by_key: bool,
    name: str | None,
    storage: str,
    replicas: int,
    max_age: float | None,
    apply: bool,
    wait: float | None,
    folder: Path | None,
    in_json: bool,
) -> int:
    """Write the files, make the streams, prove the copy; the exit code."""
    from penstock.jobs.brokers import settings
    from penstock.operate.migrate import applying, kafka_copy

    if not topics:
        raise OptionError("say which topics to copy: penstock jetstream migrate --from-kafka orders brokers=HOST:9092.")
    raw = parsed(words)
    brokers = raw.pop("brokers", "")
    if not brokers:
        raise OptionError("say where Kafka is: brokers=localhost:9092.")
    of_kafka = {key: raw.pop(key) for key in list(raw) if key.startswith("kafka.")}
    options = options_of([f"{key}={value}" for key, value in raw.items()])
    copies = kafka_copy.copies(topics, by_key=by_key, name=name)
    kept = duration(max_age) if max_age else None
    declared = kafka_copy.declaration(copies, storage=storage, replicas=replicas, max_age=kept)
    ends = {key: _absolute(options, key, value) for key, value in raw.items() if key != "servers"}
    files = {
        f"pipelines/{copy.topic}.toml": kafka_copy.pipeline(copy, brokers, ",".join(options.servers), of_kafka, ends)
        for copy in copies
    } | {"streams.toml": declared}
    said: dict[str, Any] = {"files": files, "applied": apply}
    if folder is not None:
        _write(folder, files)
    elif not in_json and wait is None:
        for path, text in files.items():
            show_lines(path, text.splitlines())
    if apply:
        with asking(options) as calls:
            plan = applying.planned(calls, applying.loaded(declared))
            applying.applied(calls, plan, lambda line: None if in_json else console().print(line, markup=False))
    proven = _Proven()
    try:
        if wait is not None:
            reach = settings({"kafka.bootstrap.servers": brokers} | of_kafka)
            proven.prove(options, reach, copies, wait)
            said["proof"] = proven.parts
    except (Exception, KeyboardInterrupt) as error:
        # The streams and files are there whatever became of the proof.
        said["proof"] = {"error": harmless(str(error)) or "stopped"}
        _conclude(said, proven.lines, folder, topics, in_json)
        raise
    _conclude(said, proven.lines, folder, topics, in_json)
    return 0 if proven.holds else NOT_PROVEN


class _Proven:
    """What is proven so far."""

    def __init__(self) -> None:
        self.parts: list[dict[str, Any]] = []
        self.lines: list[str] = []
        self.holds = True

    def prove(self, options: NatsOptions, reach: Mapping[str, Any], copies: Sequence["Copy"], wait: float) -> None:
        """Prove each copy."""
        from penstock.operate.migrate.kafka_proof import sentence
        from penstock.operate.migrate.kafka_reading import prove

        for copy in copies:
            with telling() as tell:
                verdicts, foreign = prove(options, reach, copy, wait, tell)
            self.lines += [sentence(verdict, copy.stream) for verdict in verdicts]
            if foreign:
                self.lines.append(
                    f"'{copy.stream}' has {foreign:,} messages besides, which are no records of this topic."
                )
            self.parts += [asdict(verdict) | {"holds": verdict.holds, "stream": copy.stream} for verdict in verdicts]
            self.holds = self.holds and all(verdict.holds for verdict in verdicts)


def _conclude(
    said: dict[str, Any], proof: Sequence[str], folder: Path | None, topics: Sequence[str], in_json: bool
) -> None:
    """Show what was proven, and what to do now."""
    if in_json:
        print(json.dumps(said, ensure_ascii=False), flush=True)
        return
    if proof:
        show_lines("proof", proof)
    if folder is not None:
        show_lines("what to do", _next_steps(folder, topics))


def _absolute(options: NatsOptions, key: str, value: str) -> str:
    """A path as a pipeline file needs it, which lies elsewhere; any other value as it is."""
    field = spellings(NatsOptions).get(key.lower(), "")
    return str(Path(value).absolute()) if isinstance(getattr(options, field, None), Path) else value


def _write(folder: Path, files: dict[str, str]) -> None:
    """Write the files. One that is there, and says something else, is not overwritten: it has a running query."""
    for path, text in files.items():
        file = folder / path
        if file.is_file() and file.read_text() != text:
            raise OptionError(
                f"'{file}' is there already, and says something else. Delete it, or choose another --out."
            )
    write({folder / path: text for path, text in files.items()})


def _next_steps(folder: Path, topics: Sequence[str]) -> list[str]:
    return [
        f"  penstock jetstream apply {folder / 'streams.toml'}",
        f"  penstock run {folder / 'pipelines'}",
        f"  penstock jetstream migrate --from-kafka {' '.join(topics)} brokers=... --prove",
        "Stop the producers of Kafka, let the pipelines catch up, prove, and start consumers on the streams.",
    ]
