"""Findings about servers: reachable, same version, TLS, credentials, clocks, monitoring. Pure."""

from collections.abc import Iterator
from typing import Any

from penstock.clients.answers import field
from penstock.errors import ProtocolError
from penstock.kit.masking import harmless
from penstock.operate.doctor.facts import Facts, Monitored, ServerFacts
from penstock.operate.doctor.findings import Finding, Level
from penstock.operate.figures import duration, size_text

DAY = 86400.0
# A certificate or JWT that expires sooner than this is a warning.
SOON = 30 * DAY
# Seconds: a connection that takes longer, a round trip that takes longer, and clocks that differ more, are told.
SLOW_CONNECT, SLOW_ANSWER, APART = 1.0, 0.1, 1.0
# With clocks further apart than this, a sink that reads back by time may miss rows (CLOCK_SLACK of the contract).
FAR_APART = 60.0
OLDEST = (2, 10)
# How much of its cores or its storage a server may use before that is told, and bytes that wait for a client.
BUSY, MOST_STORED, MOST_PENDING = 0.9, 0.8, 8 << 20


def servers(facts: Facts) -> Iterator[Finding]:
    """Reachability, versions, TLS, credentials and clocks."""
    yield from _reachable(facts)
    yield from _versions([each for each in facts.servers if not each.error])
    for each in facts.servers:
        yield from _tls(each, facts)
    if facts.login.expires is not None:
        yield _expiry("credentials", "user JWT", "it", facts.login.expires - facts.now, _NEW_CREDENTIALS)
    yield from _clocks(facts)
    for watched in facts.monitored:
        yield from monitoring(watched, facts)


_NEW_CREDENTIALS = "Make a new one (nsc edit user, nsc generate creds) and give it to the queries: credentialsFile."


def _reachable(facts: Facts) -> Iterator[Finding]:
    is_any = any(not each.error for each in facts.servers)
    for each in facts.servers:
        about = f"server {each.address}"
        if each.error:
            level = Level.WARNING if is_any else Level.ERROR
            whose = "The cluster tells clients to use it. " if each.told else ""
            mend = (
                "Start it, open its port, or let the server advertise an address that clients can reach "
                "(cluster.no_advertise, client_advertise)."
                if each.told
                else "Check the option 'servers', that the server runs, and the credentials."
            )
            yield Finding("reachable", level, about, f"{whose}{_sentence(each.error)}", mend)
            continue
        took = f"connected in {_ms(each.connect)}, answers in {_ms(each.round_trip)}"
        if (each.round_trip or 0) > SLOW_ANSWER or (each.connect or 0) > SLOW_CONNECT:
            yield Finding(
                "reachable",
                Level.WARNING,
                about,
                f"It is slow: {took}.",
                "Run queries near to the server, or look at its load: each batch makes several round trips.",
            )
        else:
            yield Finding("reachable", Level.OK, about, f"{each.name}: {took}.")


def _versions(reached: list[ServerFacts]) -> Iterator[Finding]:
    versions = {str(each.info.get("version", "?")) for each in reached}
    if len(versions) > 1:
        shown = ", ".join(f"{each.name} has {each.info.get('version', '?')}" for each in reached)
        yield Finding(
            "version",
            Level.WARNING,
            "cluster",
            f"Servers differ: {shown}.",
            "Bring all to the newest of these: what a query may use depends on the server that it finds.",
        )
    for version in sorted(versions):
        parts = version.split(".")
        number = (
            (int(parts[0]), int(parts[1])) if len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit() else None
        )
        if number is not None and number < OLDEST:
            yield Finding(
                "version",
                Level.WARNING,
                f"nats-server {version}",
                "Penstock is tested with 2.10 and later.",
                "Update nats-server: 2.11 brings reading without consumers, 2.14 fast ingest.",
            )
        elif len(versions) == 1:
            level = next((each.info["api_lvl"] for each in reached if each.info.get("api_lvl")), None)
            says = f"API level {level}." if level else "It tells no API level: those came with 2.12."
            yield Finding("version", Level.OK, f"nats-server {version}", says)


def _tls(each: ServerFacts, facts: Facts) -> Iterator[Finding]:
    about = f"server {each.address}"
    if each.expires is not None:
        mend = "Renew the server's certificate, and let it load it: nats-server --signal reload."
        yield _expiry("tls", about, "Its certificate", each.expires - facts.now, mend)
        return
    if each.error or each.tls or each.is_loopback:
        return
    if facts.login.kind in ("password", "token"):
        yield Finding(
            "tls",
            Level.WARNING,
            about,
            f"The {facts.login.kind} goes over a plain connection, and so does all data.",
            "Let the server use TLS (tls { cert_file, key_file }) and set tls=true, so that nothing goes plain by "
            "mistake; or use an NKey or a .creds file, which send no secret.",
        )
    else:
        yield Finding(
            "tls",
            Level.ADVICE,
            about,
            "Data goes over a plain connection.",
            "Let the server use TLS (tls { cert_file, key_file }), and set tls=true.",
        )


def _expiry(check: str, about: str, what: str, left: float, mend: str) -> Finding:
    what = what[0].upper() + what[1:]
    if left <= 0:
        return Finding(check, Level.ERROR, about, f"{what} expired {duration(-left)} ago.", mend)
    if left < SOON:
        return Finding(check, Level.WARNING, about, f"{what} expires in {duration(left)}.", mend)
    return Finding(check, Level.OK, about, f"{what} expires in {duration(left)}.")


def _clocks(facts: Facts) -> Iterator[Finding]:
    if not facts.clocks:
        if facts.connected is not None:
            yield Finding(
                "clock", Level.UNCHECKED, "clocks", "No server told its time: there is no stream to ask for it."
            )
        return
    mend = "Let chrony or ntpd set the clocks of the servers and of this machine."
    widest = max(facts.clocks, key=lambda each: max(0.0, abs(each.ahead) - each.unsure))
    off = max(0.0, abs(widest.ahead) - widest.unsure)
    word = "ahead of" if widest.ahead > 0 else "behind"
    if off > APART:
        level = Level.ERROR if off > FAR_APART else Level.WARNING
        yield Finding(
            "clock",
            level,
            f"server {widest.server}",
            f"Its clock is {duration(abs(widest.ahead))} {word} ours. Starting by a time, max_age and lag in seconds "
            "are wrong by as much.",
            mend,
        )
    early, late = min(facts.clocks, key=lambda e: e.ahead), max(facts.clocks, key=lambda e: e.ahead)
    apart = late.ahead - early.ahead - late.unsure - early.unsure
    if apart > APART and early.server != late.server:
        yield Finding(
            "clock",
            Level.ERROR if apart > FAR_APART else Level.WARNING,
            "cluster",
            f"The clocks of {late.server} and {early.server} differ by {duration(apart)}.",
            mend,
        )
    if off <= APART and apart <= APART:
        says = f"Within {max(off, 0.001) * 1000:,.0f} ms of ours, as far as that can be told."
        yield Finding("clock", Level.OK, "clocks", says)


def monitoring(each: Monitored, facts: Facts) -> Iterator[Finding]:
    """What the monitoring of one server shows."""
    about = f"monitoring {each.url}"
    if each.error:
        mend = "Start nats-server with -m 8222, and give --monitoring http://HOST:8222."
        if each.guessed:
            says = "Nothing answers there. Slow consumers and storage of the server are not known."
            yield Finding("monitoring", Level.UNCHECKED, about, says, mend)
        else:
            yield Finding("monitoring", Level.WARNING, about, _sentence(each.error), mend)
        return
    known = {str(server.info.get("server_id")) for server in facts.servers if server.info}
    if known and each.varz.get("server_id") not in known:
        yield Finding(
            "monitoring",
            Level.WARNING,
            about,
            f"It is of another server, '{harmless(each.varz.get('server_name'))}', which is none of those above.",
            "Give the monitoring address of the server that is asked.",
        )
        return
    try:
        findings = list(_varz(each, about))
    except ProtocolError as error:
        yield Finding(
            "monitoring",
            Level.WARNING,
            about,
            f"It answers with what is no report of a server: {error}",
            "Give the monitoring address of a nats-server: --monitoring http://HOST:8222.",
        )
        return
    if each.health:
        yield Finding(
            "monitoring",
            Level.ERROR,
            about,
            f"The server says that it is not well: {harmless(each.health)}.",
            "Look at its log. After a restart a server is not well until it has caught up.",
        )
    yield from findings


def _varz(each: Monitored, about: str) -> Iterator[Finding]:
    varz: dict[str, Any] = dict(each.varz)
    name = field(varz, "server_name", str, "")
    slow = field(varz, "slow_consumers", int, 0)
    if slow:
        waits = "; ".join(f"{harmless(client)} has {size_text(count)} waiting" for client, count in each.pending[:3])
        now = f". Now {waits}" if waits else ""
        yield Finding(
            "monitoring",
            Level.WARNING,
            about,
            f"Since it started, {slow:,} clients were cut off because they read too slowly{now}.",
            "Look in its log for 'Slow Consumer', and let these clients read faster, or several share the work.",
        )
    elif each.pending and each.pending[0][1] > MOST_PENDING:
        client, count = each.pending[0]
        yield Finding(
            "monitoring",
            Level.WARNING,
            about,
            f"{size_text(count)} wait for the client {harmless(client)}, which reads too slowly; at max_pending "
            f"({size_text(field(varz, 'max_pending', int, 64 << 20))}) it is cut off.",
            "Let it read faster, or several clients share the work.",
        )
    cpu, cores = float(varz.get("cpu") or 0), field(varz, "cores", int, 1)
    if cpu > BUSY * 100 * cores:
        yield Finding(
            "monitoring",
            Level.WARNING,
            about,
            f"The server uses {cpu:,.0f}% of {cores} cores.",
            "Give it more, or spread streams over more servers.",
        )
    jetstream = field(varz, "jetstream", dict, {})
    config, stats = field(jetstream, "config", dict, {}), field(jetstream, "stats", dict, {})
    said = []
    for what, setting in (("storage", "max_file_store"), ("memory", "max_memory_store")):
        most, used = field(config, f"max_{what}", int, 0), field(stats, what, int, 0)
        if most <= 0:
            continue
        said.append(f"{size_text(used)} of {size_text(most)} {what}")
        if used > MOST_STORED * most:
            yield Finding(
                "monitoring",
                Level.ERROR if used >= most else Level.WARNING,
                about,
                f"JetStream uses {size_text(used)} of the {size_text(most)} {what} that the server gives it.",
                f"Raise {setting} in the server's jetstream block, or lower the limits of streams.",
            )
    memory = size_text(field(varz, "mem", int, 0))
    used_text = f", JetStream {' and '.join(said)}" if said else ""
    says = f"{harmless(name)}: {cpu:,.0f}% CPU, {memory} memory{used_text}, {slow:,} slow consumers."
    yield Finding("monitoring", Level.OK, about, says)


def _ms(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds * 1000:,.1f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def _sentence(text: str) -> str:
    text = harmless(text)
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "?", "!")) else f"{text}."
