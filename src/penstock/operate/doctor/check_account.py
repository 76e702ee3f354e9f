"""Findings about the account: JetStream and its limits, permissions, publishing, and the ledger. Pure."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.clients.answers import field
from penstock.clients.jetstream.api import LEDGER, StreamInfo, unfit_for_ledger
from penstock.operate.doctor.facts import Facts, Tried
from penstock.operate.doctor.findings import Finding, Level
from penstock.operate.figures import StreamFigures, size_text

# How much of a limit may be used before that is told, and how many of its calls may fail.
NEARLY, MANY_ERRORS, FEW_CALLS = 0.8, 0.1, 100
# What a refused subject means for reading, in words.
_FOR = {
    "names": "streamPattern, subjects without a stream, and writing",
    "list": "work queues and interest streams, and to show consumers",
    "claim": "a query that reads a work queue",
    "purge": "a query that reads a work queue, to release what it has read",
}
_SIZES = ("storage", "memory")
# What limits are called in the configuration of a server.
_IN_CONFIG = {"max_storage": "max_file", "max_memory": "max_mem"}
_CONSUMER_ENGINE = ("create", "next", "delete")


def account(facts: Facts) -> Iterator[Finding]:
    """JetStream, limits, permissions, publishing, ledger."""
    if facts.refused:
        yield Finding(
            "account",
            Level.ERROR,
            "JetStream",
            facts.refused,
            "Start nats-server with -js, and enable JetStream for the account (jetstream: enabled); with a domain or "
            "an imported API, set domain or apiPrefix.",
        )
        return
    if facts.look is None:
        return
    yield from _limits(facts)
    yield from _permissions([each for each in facts.tried if each.need != "publish" and each.stream != LEDGER], facts)
    yield from _publishing([each for each in facts.tried if each.need == "publish" and each.stream != LEDGER], facts)
    yield from _ledger(facts)
    for text in facts.look.absent:
        yield Finding("account", Level.ERROR, "streams", f"{text[0].upper()}{text[1:]}", "Check --stream, or make it.")
    for text in facts.look.problems:
        yield Finding("account", Level.UNCHECKED, "streams", text)


def _limits(facts: Facts) -> Iterator[Finding]:
    assert facts.look is not None
    told = facts.look.account
    if told is None:
        return
    tiers = field(dict(told), "tiers", dict, {}) or {"": dict(told)}
    said = []
    for name, tier in tiers.items():
        about = f"account, tier {name}" if name else "account"
        limits = field(tier, "limits", dict, {})
        for what, limit in (
            ("storage", "max_storage"),
            ("memory", "max_memory"),
            ("streams", "max_streams"),
            ("consumers", "max_consumers"),
        ):
            used, most = field(tier, what, int, 0), field(limits, limit, int, -1)
            less = "lower the limits of streams" if what in _SIZES else f"delete {what} that nobody needs"
            shown = size_text if what in _SIZES else "{:,}".format
            if most <= 0:
                continue
            said.append(f"{shown(used)} of {shown(most)} {what}")
            if used >= NEARLY * most:
                yield Finding(
                    "account",
                    Level.ERROR if used >= most else Level.WARNING,
                    about,
                    f"{shown(used)} of {shown(most)} {what} are used{': nothing more fits' if used >= most else ''}.",
                    f"Raise the account's {_IN_CONFIG.get(limit, limit)}, or {less}.",
                )
        per_stream = field(limits, "storage_max_stream_bytes", int, -1)
        if limits.get("max_bytes_required") or per_stream > 0:
            most_bytes = f", at most {size_text(per_stream)}" if per_stream > 0 else ""
            said.append(f"each stream must say its max_bytes{most_bytes}")
        unacked = field(limits, "max_ack_pending", int, -1)
        if unacked > 0:
            said.append(f"at most {unacked:,} unacknowledged messages a consumer")
    api = field(dict(told), "api", dict, {})
    calls, errors = field(api, "total", int, 0), field(api, "errors", int, 0)
    if calls > FEW_CALLS and errors > MANY_ERRORS * calls:
        yield Finding(
            "account",
            Level.ADVICE,
            "account",
            f"{errors:,} of {calls:,} calls of the JetStream API have failed since the server started.",
            "Listen to what is asked: nats events --all shows the API's audit.",
        )
    yield Finding("account", Level.OK, "account", f"JetStream is on: {'; '.join(said) or 'no limits'}.")


def _permissions(tried: Sequence[Tried], facts: Facts) -> Iterator[Finding]:
    assert facts.look is not None
    by_stream: dict[str, dict[str, Tried]] = {}
    for each in tried:
        by_stream.setdefault(each.stream, {})[each.need] = each
    retentions = {each.name: dict(each.raw).get("config", {}).get("retention", "limits") for each in facts.look.streams}
    well = 0
    for stream, needs in by_stream.items():
        found = list(_of_stream(stream, needs, retentions.get(stream, "limits"), facts))
        yield from found
        well += bool(stream) and not any(each.level in (Level.ERROR, Level.WARNING) for each in found)
    if well:
        yield Finding(
            "permission", Level.OK, f"{well} streams" if well > 1 else "stream", "All that reading needs is allowed."
        )


def _of_stream(stream: str, needs: dict[str, Tried], retention: str, facts: Facts) -> Iterator[Finding]:
    about = f"stream {stream}" if stream else "account"
    refused = {name: each for name, each in needs.items() if each.allowed is False}
    unknown = [each for each in needs.values() if each.allowed is None]
    for name in ("info", "get"):
        if name in refused:
            yield _refusal(Level.ERROR, about, [refused[name]], "No query can read this stream without it.")
    has_consumer = not any(name in refused for name in _CONSUMER_ENGINE)
    has_direct = "direct" in needs and "direct" not in refused and facts.version >= (2, 11)
    lacking = [refused[name] for name in (*_CONSUMER_ENGINE, "direct") if name in refused]
    if stream and lacking:
        if retention != "limits" and not has_direct:
            yield _refusal(
                Level.ERROR, about, lacking, f"A stream of {retention} retention is read by DIRECT.GET only."
            )
        elif not has_consumer and not has_direct:
            yield _refusal(Level.ERROR, about, lacking, "It can be read neither by consumers nor by DIRECT.GET.")
        elif retention == "limits":
            way = "DIRECT.GET" if has_direct else "consumers"
            yield _refusal(Level.ADVICE, about, lacking, f"It is read by {way} alone, which may be slower.")
    for name, purpose in _FOR.items():
        if name in refused:
            is_needed = (name in ("claim", "purge")) or (name == "list" and retention != "limits")
            is_needed = is_needed or (name == "names" and facts.wants_to_write)
            level = Level.WARNING if is_needed else Level.ADVICE
            yield _refusal(level, about, [refused[name]], f"Needed for {purpose}.")
    if unknown:
        subjects = ", ".join(each.subject for each in unknown)
        yield Finding("permission", Level.UNCHECKED, about, f"{subjects}: {unknown[0].why}.")


def _refusal(level: Level, about: str, refused: Sequence[Tried], why: str) -> Finding:
    subjects = ", ".join(_general(each) for each in refused)
    return Finding(
        "permission",
        level,
        about,
        f"The account may not publish to {subjects}. {why}",
        _grant([_general(each) for each in refused]),
    )


def _grant(subjects: Sequence[str]) -> str:
    return f"Allow it: permissions {{ publish: {json.dumps(list(subjects))} }}"


def _general(each: Tried) -> str:
    """The subject as it is granted: a name that was made up is a wildcard."""
    return each.subject.rpartition(".")[0] + ".>" if each.need in ("next", "delete") else each.subject


def _publishing(tried: Sequence[Tried], facts: Facts) -> Iterator[Finding]:
    allowed: list[str] = []
    for each in tried:
        about = f"stream {each.stream}" if each.stream else f"subject {each.subject}"
        if each.allowed is False:
            made_up = (
                ""
                if facts.wants_to_write
                else " (a made-up subject of the stream: --publish SUBJECT tries the one that counts)"
            )
            yield Finding(
                "publish",
                Level.ERROR if facts.wants_to_write else Level.ADVICE,
                about,
                f"The account may not publish to {each.subject}{made_up}. Reading needs no such right.",
                f'To write, allow it: permissions {{ publish: ["{each.subject}"] }}',
            )
        elif each.allowed is None:
            yield Finding("publish", Level.UNCHECKED, about, f"{each.subject}: {each.why}.")
        elif not each.stream:
            yield Finding(
                "publish",
                Level.ERROR,
                about,
                "No stream takes this subject, as far as can be seen.",
                f'Add it to one: subjects = ["{each.subject}"] under [streams.NAME], then penstock jetstream apply.',
            )
        else:
            allowed.append(f"{each.subject} into {each.stream}{f' ({each.why})' if each.why else ''}")
    if allowed:
        more = f" and {len(allowed) - 5} others" if len(allowed) > 5 else ""
        yield Finding("publish", Level.OK, "account", f"Publishing works: {', '.join(allowed[:5])}{more}.")


def _ledger(facts: Facts) -> Iterator[Finding]:
    tried = {each.need: each for each in facts.tried if each.stream == LEDGER}
    refused = [each for each in tried.values() if each.allowed is False]
    level = Level.WARNING if facts.wants_to_write else Level.ADVICE
    if refused:
        subjects = [f"{LEDGER}.>" if each.need == "publish" else each.subject for each in refused]
        yield Finding(
            "ledger",
            level,
            f"stream {LEDGER}",
            f"The account may not publish to {', '.join(subjects)}: a sink cannot write exactly once over restarts.",
            f"{_grant(subjects)}; or set ledger=none or delivery=at_least_once.",
        )
    if facts.ledger is None:
        yield from _no_ledger(facts, level)
        return
    info = StreamInfo.of(dict(facts.ledger.raw))
    yield from _of_ledger(info, facts.ledger, facts)


def _no_ledger(facts: Facts, level: Level) -> Iterator[Finding]:
    assert facts.look is not None
    limits = field(dict(facts.look.account or {}), "limits", dict, {})
    if not facts.ledger_known:
        yield Finding("ledger", Level.UNCHECKED, f"stream {LEDGER}", "Whether it exists cannot be seen.")
    elif limits.get("max_bytes_required"):
        yield Finding(
            "ledger",
            level,
            f"stream {LEDGER}",
            "It does not exist, and Penstock cannot make it: the account wants max_bytes of every stream.",
            f"nats stream add {LEDGER} --subjects='{LEDGER}.>' --max-msgs-per-subject=1 --discard=new "
            "--discard-per-subject --max-bytes=1GB --defaults",
        )
    else:
        says = "It does not exist yet. A sink that writes exactly once makes it."
        yield Finding("ledger", Level.OK, f"stream {LEDGER}", says)


def _of_ledger(info: StreamInfo, ledger: StreamFigures, facts: Facts) -> Iterator[Finding]:
    about = f"stream {LEDGER}"
    cluster: Any = facts.connected.info.get("cluster") if facts.connected else None
    if why := unfit_for_ledger(info):
        yield Finding(
            "ledger",
            Level.ERROR,
            about,
            f"It cannot be the ledger: it {why}. A sink that writes exactly once refuses it.",
            f"Change that, or delete it while no query runs (nats stream rm {LEDGER}): Penstock makes it anew.",
        )
    elif ledger.full >= NEARLY:
        yield Finding(
            "ledger",
            Level.ERROR if ledger.full >= 1 else Level.WARNING,
            about,
            f"{ledger.full:.0%} of its limits are used; when it is full, sinks that write exactly once stop.",
            f"Take its limits away: nats stream edit {LEDGER} --max-msgs=-1 --max-bytes=-1. What queries have left "
            f"that will never run again can go: nats stream purge {LEDGER} --subject='{LEDGER}.QUERY.>'.",
        )
    elif cluster and info.replicas == 1:
        yield Finding(
            "ledger",
            Level.WARNING,
            about,
            "It has one replica in a cluster: while that server is away, sinks that write exactly once wait.",
            f"nats stream edit {LEDGER} --replicas=3",
        )
    else:
        says = f"{ledger.messages:,} notes, {size_text(ledger.size)}, {info.replicas} replicas."
        yield Finding("ledger", Level.OK, about, says)
