"""Findings about streams: flags, duplicate window, replicas, feeds. Pure."""

from collections.abc import Iterator
from typing import Any

from penstock.clients.answers import field, objects, texts
from penstock.clients.jetstream.api import LEDGER
from penstock.operate.doctor.check_limits import limits, retention
from penstock.operate.doctor.facts import Facts
from penstock.operate.doctor.findings import Finding, Level, setting
from penstock.operate.figures import StreamFigures, duration

# Spark starts again within about this time, with its session and the first batch. The sink needs LEAST_WINDOW to
# publish in batches (connectors/jetstream/modes.py).
RESTART, LEAST_WINDOW = 120.0, 10.0
# A mirror or source that is late and has been silent so long is broken; one that is so many messages late is told.
SILENT, LATE = 60.0, 10_000


def streams(facts: Facts) -> Iterator[Finding]:
    """All findings about all streams, and a line for those with which all is well."""
    look = facts.look
    if look is None:
        return
    for name in look.missing:
        yield Finding(
            "replicas",
            Level.ERROR,
            f"stream {name}",
            "It does not answer: it has no leader, as when most of the servers that keep it are away.",
            f"Start these servers again; nats stream info {name} shows them.",
        )
    well = []
    for stream in look.streams:
        found = list(stream_findings(stream, facts))
        if any(each.level is not Level.OK for each in found):
            yield from found
        else:
            well.append(stream.name)
    if well:
        names = ", ".join(sorted(well)[:10]) + (f" and {len(well) - 10} others" if len(well) > 10 else "")
        yield Finding(
            "limits", Level.OK, f"{len(well)} streams" if len(well) > 1 else "stream", f"Nothing to say of {names}."
        )


def stream_findings(stream: StreamFigures, facts: Facts) -> Iterator[Finding]:
    """All findings about one stream."""
    config = field(dict(stream.raw), "config", dict, {})
    yield from _flags(stream, config, facts)
    yield from _duplicates(stream, config)
    yield from limits(stream, config, facts)
    yield from retention(stream, config, facts)
    yield from _replicas(stream, config, facts)
    yield from _feeds(stream)
    yield from _takes(stream, config)


def _about(stream: StreamFigures) -> str:
    return f"stream {stream.name}"


def _is_ours(stream: StreamFigures) -> bool:
    return stream.name == LEDGER


def _flags(stream: StreamFigures, config: dict[str, Any], facts: Facts) -> Iterator[Finding]:
    if _is_ours(stream):
        return
    retention = field(config, "retention", str, "limits")
    if not config.get("allow_direct") and facts.version >= (2, 11):
        needs = retention != "limits"
        why = "small batches make and delete a consumer each, which DIRECT.GET does not need"
        why = f"a query cannot read it, as it has {retention} retention" if needs else why
        yield Finding(
            "flags",
            Level.WARNING if needs else Level.ADVICE,
            _about(stream),
            f"allow_direct is off: {why}.",
            setting(stream.name, "allow_direct = true", "--allow-direct"),
        )
    may_take = not (config.get("sealed") or config.get("mirror"))
    if not config.get("allow_batched") and facts.version >= (2, 14) and may_take:
        yield Finding(
            "flags",
            Level.ADVICE,
            _about(stream),
            "allow_batched is off: a sink publishes message by message, where fast ingest takes several times as many.",
            setting(stream.name, "allow_batched = true"),
        )
    # On disk, atomic batches are slower than one by one.
    is_faster = (2, 12) <= facts.version < (2, 14) and config.get("storage") == "memory"
    if is_faster and not config.get("allow_atomic") and may_take:
        yield Finding(
            "flags",
            Level.ADVICE,
            _about(stream),
            "allow_atomic is off: a sink publishes message by message, where batches of 1,000 are faster in memory.",
            setting(stream.name, "allow_atomic = true"),
        )


def _duplicates(stream: StreamFigures, config: dict[str, Any]) -> Iterator[Finding]:
    if _is_ours(stream) or config.get("mirror") or config.get("sealed"):
        return
    window = field(config, "duplicate_window", int, 0) / 1e9
    mend = setting(stream.name, 'duplicate_window = "2m"', "--dupe-window=2m")
    if window < LEAST_WINDOW:
        yield Finding(
            "duplicates",
            Level.WARNING,
            _about(stream),
            f"It forgets ids after {duration(window)} (duplicate_window). Writing exactly once publishes one by one "
            "then, and stops where reading back what is stored takes longer than that.",
            mend,
        )
    elif window < RESTART:
        yield Finding(
            "duplicates",
            Level.ADVICE,
            _about(stream),
            f"It forgets ids after {duration(window)} (duplicate_window), which may be less than a restart of Spark "
            "takes. With the ledger, a sink then reads the stream back and writes nothing twice; with ledger=none it "
            "writes rows of the last batch twice.",
            mend,
        )


def _replicas(stream: StreamFigures, config: dict[str, Any], facts: Facts) -> Iterator[Finding]:
    cluster = field(dict(stream.raw), "cluster", dict, {})
    is_clustered = bool(facts.connected and facts.connected.info.get("cluster"))
    others = objects(cluster, "replicas")
    offline = [field(each, "name", str, "?") for each in others if each.get("offline")]
    late = [each for each in others if not each.get("offline") and each.get("current") is False]
    if is_clustered and stream.replicas == 1:
        yield Finding(
            "replicas",
            Level.WARNING,
            _about(stream),
            f"It has one replica in a cluster: while {stream.leader or 'its server'} is away, so is the stream.",
            setting(stream.name, "num_replicas = 3", "--replicas=3"),
        )
    elif stream.replicas % 2 == 0:
        yield Finding(
            "replicas",
            Level.ADVICE,
            _about(stream),
            f"{stream.replicas} replicas survive the loss of no more servers than {stream.replicas - 1} do.",
            setting(stream.name, f"num_replicas = {stream.replicas + 1}", f"--replicas={stream.replicas + 1}"),
        )
    if is_clustered and not stream.leader and stream.replicas > 1:
        yield Finding(
            "replicas", Level.ERROR, _about(stream), "It has no leader, and takes nothing.",
            "Start the servers that keep it.",
        )  # fmt: skip
    if offline:
        left = stream.replicas - len(offline)
        is_last = left - 1 < stream.replicas // 2 + 1
        more = " One more, and it stands still." if is_last else ""
        yield Finding(
            "replicas",
            Level.WARNING,
            _about(stream),
            f"{len(offline)} of {stream.replicas} replicas are offline: {', '.join(offline)}.{more}",
            f"Start {', '.join(offline)} again, or move the replica: nats server raft peer-remove NAME.",
        )
    for each in late:
        yield Finding(
            "replicas",
            Level.WARNING,
            _about(stream),
            f"The replica on {field(each, 'name', str, '?')} is not current: it was heard of "
            f"{duration(field(each, 'active', int, 0) / 1e9)} ago, and is {field(each, 'lag', int, 0):,} operations "
            "behind.",
            "Start that server if it is away. If it has just started, wait; else look at its disk and network.",
        )


def _feeds(stream: StreamFigures) -> Iterator[Finding]:
    raw = dict(stream.raw)
    feeds = [("mirror", each) for each in (raw.get("mirror"),) if isinstance(each, dict)]
    feeds += [("source", each) for each in objects(raw, "sources")]
    for kind, each in feeds:
        name, lag = field(each, "name", str, "?"), field(each, "lag", int, 0)
        active = field(each, "active", int, -1)
        error = field(each, "error", dict, {})
        if error:
            yield Finding(
                "feeds",
                Level.ERROR,
                _about(stream),
                f"Its {kind} {name} fails: {error.get('description', error)}.",
                f"Check that stream {name} exists, and that this account may read it.",
            )
        elif active < 0 or (active / 1e9 > SILENT and lag):
            since = ", ever" if active < 0 else f" for {duration(active / 1e9)}"
            yield Finding(
                "feeds",
                Level.WARNING,
                _about(stream),
                f"Its {kind} {name} has sent nothing{since}. It lacks {lag:,} messages.",
                f"Check that stream {name} exists and that its server can be reached.",
            )
        elif lag > LATE:
            yield Finding(
                "feeds",
                Level.WARNING,
                _about(stream),
                f"It lacks {lag:,} messages of its {kind} {name}.",
                "Wait, if it was just made; else look at the network between both.",
            )


def _takes(stream: StreamFigures, config: dict[str, Any]) -> Iterator[Finding]:
    if config.get("sealed"):
        yield Finding(
            "takes",
            Level.ADVICE,
            _about(stream),
            "It is sealed: nothing can be added or deleted, ever.",
            "To write, make another stream; to read it, all is well.",
        )
    elif not texts(config, "subjects") and not config.get("mirror") and not config.get("sources"):
        yield Finding(
            "takes",
            Level.WARNING,
            _about(stream),
            "It has no subjects, and is fed by no other stream: nobody can publish into it.",
            setting(stream.name, f'subjects = ["{stream.name.lower()}.>"]', f"--subjects='{stream.name.lower()}.>'"),
        )
