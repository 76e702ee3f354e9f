"""Collects the facts: connects as the user would, asks, tries, and looks twice. Each fact may be missing. Changes
nothing on a server.
"""

import base64
import binascii
import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from penstock.clients.answers import field, objects, texts
from penstock.clients.jetstream import api
from penstock.clients.jetstream.api import LEDGER
from penstock.clients.jetstream.calls import ApiError, Calls
from penstock.clients.nats.certificate import expires
from penstock.clients.nats.client import Connection, Denied
from penstock.clients.nats.credentials import introduce
from penstock.clients.nats.dial import address, peer_certificate
from penstock.clients.nats.options import NatsOptions
from penstock.clients.pages import Site
from penstock.errors import ConnectError, OptionError, PenstockError
from penstock.kit.masking import harmless
from penstock.operate.asking import one, settle
from penstock.operate.doctor.facts import Clock, Facts, Login, Monitored, ServerFacts
from penstock.operate.doctor.permissions import try_ledger, try_publish, try_streams
from penstock.operate.figures import Look, StreamFigures, rated
from penstock.operate.looking import Looker

T = TypeVar("T")
Say = Callable[[str], None]
# Seconds for a connection, for a monitoring address that nobody gave, and for one that was given, in all.
CONNECT, GUESS, MONITORING = 5.0, 0.5, 5.0
# Seconds for an answer. A cluster waits four for servers that are away before it lists streams.
ANSWER = 6.0
# How many servers are asked at once, and of how many streams permissions are tried.
AT_ONCE, MOST_TRIED = 8, 20
# The port of monitoring that everybody uses.
PORT = 8222


def collect(
    options: NatsOptions,
    *,
    names: Sequence[str] = (),
    monitoring: Sequence[str] = (),
    publish: str = "",
    seconds: float = 2.0,
    say: Say = lambda text: None,
) -> Facts:
    """All facts. `names`: only these streams. `seconds` lie between two looks. `say` is told what is done."""
    say("connecting")
    login = _login(options)
    servers = _servers(options)
    facts = Facts(now=time.time(), servers=tuple(servers), login=login, wants_to_write=bool(publish))
    reached = facts.connected
    say("asking for monitoring")
    facts = _with(facts, monitored=tuple(_monitored(servers, monitoring)))
    if reached is None:
        return facts
    try:
        connection = Connection(_only(options, reached.address))
    except ConnectError as error:
        return _with(facts, refused=str(error))
    try:
        return _asked(facts, Calls(connection, options), names, publish, seconds, say)
    except Denied as error:
        return _with(facts, refused=f"The account may not subscribe to its inbox: {error}")
    except ConnectError as error:  # also Disconnected: it went away meanwhile
        return _with(facts, refused=str(error))
    finally:
        connection.close()


def _asked(facts: Facts, calls: Calls, names: Sequence[str], publish: str, seconds: float, say: Say) -> Facts:
    calls.connection.flush()  # a refused inbox is told now
    account = one(calls, "INFO")
    if isinstance(account, PenstockError) and not isinstance(account, Denied):
        return _with(facts, refused=str(account))
    looker = Looker(calls, names)
    say("looking at streams and consumers")
    first = looker.look()
    began = time.monotonic()
    say("trying permissions")
    tried = try_streams(calls, first.streams[:MOST_TRIED], first.hidden)
    tried += try_publish(calls, first.streams[:MOST_TRIED], publish)
    ledger, is_known = _ledger(calls)
    tried += try_ledger(calls, ledger is not None)
    clocks = _clocks(calls, facts, first)
    say("looking again, for rates")
    time.sleep(max(0.0, seconds - (time.monotonic() - began)))
    second = rated(first, looker.look())
    return _with(
        facts,
        look=second,
        seconds=second.at - first.at,
        tried=tuple(tried),
        ledger=ledger,
        ledger_known=is_known,
        clocks=tuple(clocks),
    )


def _with(facts: Facts, **changed: Any) -> Facts:
    return replace(facts, **changed)


def _only(options: NatsOptions, server: str) -> NatsOptions:
    """The options for one server, with less patience."""
    return options.model_copy(
        update={
            "servers": (server,),
            "connect_timeout": min(CONNECT, options.connect_timeout),
            "request_timeout": min(ANSWER, options.request_timeout),
        }
    )


def _login(options: NatsOptions) -> Login:
    """Who we are, and until when. An OptionError where the credentials cannot be used at all."""
    fields = introduce(options, "")
    if "jwt" in fields:
        return Login("jwt", jwt_expiry(fields["jwt"]))
    kinds = {"nkey": "nkey", "auth_token": "token", "pass": "password", "user": "password"}
    return Login(next((kind for name, kind in kinds.items() if name in fields), "none"))


def jwt_expiry(token: str) -> float | None:
    """When a JWT expires, in seconds since 1970; None where it never does, or that cannot be read."""
    parts = token.split(".")
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"]) or None
    except (IndexError, KeyError, TypeError, ValueError, binascii.Error):
        return None


def _servers(options: NatsOptions) -> list[ServerFacts]:
    """Every server that is given, and every one that these tell of."""
    given = list(dict.fromkeys(options.servers))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda server: _reach(options, server, told=False), given))
        known = {str(address(server)) for server in given}
        known |= {f"{each.info.get('host')}:{each.info.get('port')}" for each in found if each.info}
        told = dict.fromkeys(
            url for each in found for url in texts(dict(each.info), "connect_urls") if str(address(url)) not in known
        )
        is_tls = any(each.tls for each in found)
        urls = [f"{'tls' if is_tls else 'nats'}://{url}" for url in told]
        found += pool.map(lambda server: _reach(options, server, told=True), urls)
    return found


def _reach(options: NatsOptions, server: str, *, told: bool) -> ServerFacts:
    """Connect to one server as a query would, and measure it."""
    at = address(server)
    here = at.host == "localhost" or at.host.startswith("127.") or at.host == "::1"
    own = _only(options, server)
    began = time.monotonic()
    try:
        connection = Connection(own)
    except PenstockError as error:
        return ServerFacts(address=server, told=told, error=str(error), is_loopback=here, expires=_expires(own, server))
    try:
        took = time.monotonic() - began
        trips = []
        for _ in range(3):
            began = time.monotonic()
            settle(connection)  # a refused inbox is told later
            trips.append(time.monotonic() - began)
    except PenstockError as error:
        return ServerFacts(address=server, told=told, error=str(error), is_loopback=here)
    finally:
        connection.close()
    return ServerFacts(
        address=server,
        told=told,
        connect=took,
        round_trip=min(trips),
        info={name: connection.info[name] for name in connection.info if name not in ("nonce", "xkey")},
        is_loopback=here,
        tls=connection.is_tls,
        expires=_expires(own, server),
    )


def _expires(options: NatsOptions, server: str) -> float | None:
    """When the server's certificate expires; None where it has none, or does not show it."""
    try:
        der = peer_certificate(address(server), options)
        return None if der is None else expires(der)
    except (OSError, PenstockError):
        return None


def _ledger(calls: Calls) -> tuple[StreamFigures | None, bool]:
    """The ledger, and whether it is known that there is one or none."""
    answer = one(calls, f"STREAM.INFO.{LEDGER}")
    if isinstance(answer, ApiError):
        return None, answer.code == api.NO_STREAM
    return (None, False) if isinstance(answer, PenstockError) else (StreamFigures.of(answer), True)


def _clocks(calls: Calls, facts: Facts, look: Look) -> list[Clock]:
    """Clocks of the leaders of streams, at most of one stream each, and those that monitoring tells."""
    found: dict[str, Clock] = {}
    own = str(calls.connection.info.get("server_name", ""))
    for stream in look.streams:
        name = stream.leader or own
        if name in found or len(found) > AT_ONCE:
            continue
        before = time.time()
        answer = one(calls, f"STREAM.INFO.{stream.name}")
        after = time.time()
        if isinstance(answer, PenstockError) or not (text := field(answer, "ts", str, "")):
            continue
        found[name] = Clock(name, api.micros(text) / 1e6 - (before + after) / 2, (after - before) / 2)
    return list(found.values())


def _monitored(servers: Sequence[ServerFacts], given: Sequence[str]) -> list[Monitored]:
    """What monitoring tells: at the addresses that are given, or at the usual port of the servers."""
    if given:
        return [_monitor(url, guessed=False) for url in given]
    hosts = dict.fromkeys(address(each.address).host for each in servers)
    guesses = [f"http://[{host}]:{PORT}" if ":" in host else f"http://{host}:{PORT}" for host in hosts]
    found = [_monitor(url, guessed=True) for url in guesses[:AT_ONCE]]
    known = {each.info.get("server_id") for each in servers if each.info}
    # Whatever else listens at a port that nobody named is nobody's business.
    found = [
        each
        if each.varz.get("server_id") in known
        else Monitored(each.url, guessed=True, error=each.error or "it is of no server that was asked")
        for each in found
    ]
    there = [each for each in found if not each.error]
    return there or found[:1]


def _monitor(url: str, *, guessed: bool) -> Monitored:
    try:
        site = Site(url, GUESS if guessed else MONITORING / 2)
    except OptionError as error:
        return Monitored(harmless(url), guessed=guessed, error=str(error))
    try:
        return within(MONITORING, lambda: _read(site, guessed))
    except PenstockError as error:
        return Monitored(site.url, guessed=guessed, error=str(error))


def _read(site: Site, guessed: bool) -> Monitored:
    varz = site.json("/varz")
    if not isinstance(varz, dict) or not isinstance(varz.get("server_id"), str):
        raise ConnectError(f"{site.url}/varz answers with what is no report of a nats-server.")
    try:
        told = site.json("/healthz")
        health = "" if not isinstance(told, dict) or told.get("status") == "ok" else str(told.get("error") or told)
    except ConnectError as error:
        health = str(error) if " answers 503" in str(error) else ""
    return Monitored(site.url, guessed, "", varz, health, _pending(site))


def _pending(site: Site) -> tuple[tuple[str, int], ...]:
    """The clients for whom the most bytes wait, by name; none where the server does not say."""
    try:
        told = site.json("/connz?sort=pending&limit=5")
        clients = objects(told, "connections") if isinstance(told, dict) else []
        return tuple((_named(each), count) for each in clients if (count := field(each, "pending_bytes", int, 0)))
    except PenstockError:
        return ()


def _named(client: dict[str, Any]) -> str:
    name = field(client, "name", str, "") or "without a name"
    return f"{name} ({field(client, 'ip', str, '?')}, cid {field(client, 'cid', int, 0)})"


def within(seconds: float, ask: Callable[[], T]) -> T:
    """What `ask` returns. A ConnectError where it takes longer: whoever sends byte by byte holds up nobody."""
    results: list[T] = []
    errors: list[PenstockError] = []

    def run() -> None:
        try:
            results.append(ask())
        except PenstockError as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise ConnectError(f"it has not answered in {seconds:g} s.")
    return results[0]
