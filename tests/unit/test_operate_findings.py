"""What the doctor finds in facts, without any server."""

import base64
import json
import random
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli import app
from penstock.clients.jetstream.api import FOLLOWER, LEDGER
from penstock.clients.nats.certificate import expires
from penstock.clients.nats.options import NatsOptions
from penstock.errors import ConnectError, ProtocolError
from penstock.operate.doctor import collect as collected
from penstock.operate.doctor.collect import jwt_expiry, within
from penstock.operate.doctor.facts import Clock, Facts, Login, Monitored, ServerFacts, Tried
from penstock.operate.doctor.findings import CHECKS, Finding, Level, exit_code, merged, ordered, table
from penstock.operate.doctor.judge import judge
from penstock.operate.doctor.permissions import made_up
from penstock.operate.figures import ConsumerFigures, Look, StreamFigures, rated

NOW = 1_794_900_000.0
STAMP = "2026-11-17T07:20:00Z"  # the same moment
INFO = {"server_id": "ID", "server_name": "s1", "version": "2.15.1", "api_lvl": 5, "max_payload": 1 << 20}
SERVER = ServerFacts("nats://127.0.0.1:4222", connect=0.002, round_trip=0.0004, info=INFO, is_loopback=True)
ACCOUNT = {"memory": 0, "storage": 0, "streams": 1, "consumers": 0, "limits": {}, "api": {"total": 10, "errors": 0}}
FLAGS = {"allow_direct": True, "allow_batched": True, "allow_atomic": True}
BOUNDED = {"max_age": 3600 * 10**9, "duplicate_window": 120 * 10**9, "subjects": ["S.>"], **FLAGS}


def stream(
    name: str = "S", *, state: dict[str, Any] | None = None, cluster: Any = None, mirror: Any = None, **config: Any
) -> StreamFigures:
    item: dict[str, Any] = {
        "config": {"name": name, "retention": "limits", "num_replicas": 1, **BOUNDED, **config},
        "created": "2026-11-01T00:00:00Z",
        "state": {"messages": 0, "bytes": 0, "first_seq": 0, "last_seq": 0, "consumer_count": 0, **(state or {})},
        "ts": STAMP,
    }
    item |= {"cluster": cluster} if cluster else {}
    item |= {"mirror": mirror} if mirror else {}
    return StreamFigures.of(item)


def consumer(name: str = "c", *, of: str = "S", config: dict[str, Any] | None = None, **told: Any) -> ConsumerFigures:
    item: dict[str, Any] = {
        "stream_name": of, "name": name, "created": "2026-11-01T00:00:00Z", "ts": STAMP,
        "config": {"durable_name": name, "ack_policy": "explicit", "max_ack_pending": 1000, "max_waiting": 512,
                   **(config or {})},
        "delivered": {"consumer_seq": 0, "stream_seq": 0}, "ack_floor": {"consumer_seq": 0, "stream_seq": 0},
        **told,
    }  # fmt: skip
    return ConsumerFigures.of(item)


def facts(*things: StreamFigures | ConsumerFigures, look: dict[str, Any] | None = None, **more: Any) -> Facts:
    streams = tuple(each for each in things if isinstance(each, StreamFigures))
    consumers = tuple(each for each in things if isinstance(each, ConsumerFigures))
    told: dict[str, Any] = {"account": ACCOUNT, "streams": streams, "consumers": consumers} | (look or {})
    seen = Look(0, **told)
    known: dict[str, Any] = {"now": NOW, "servers": (SERVER,), "look": seen, "ledger_known": True, "seconds": 2.0}
    return Facts(**(known | more))


def found(given: Facts, check: str) -> list[Finding]:
    return [each for each in judge(given) if each.check == check]


def bad(given: Facts) -> list[tuple[str, str]]:
    return [(each.check, str(each.level)) for each in judge(given) if each.level in (Level.ERROR, Level.WARNING)]


# --- findings as such ---


def test_what_is_well_ends_with_0_warnings_with_1_and_errors_with_2() -> None:
    levels = [Level.OK, Level.UNCHECKED, Level.ADVICE, Level.WARNING, Level.ERROR]
    findings = [Finding("tls", level, "x", "y") for level in levels]
    assert [exit_code(findings[: count + 1]) for count in range(5)] == [0, 0, 0, 1, 2]
    assert [each.level for each in ordered(findings)] == list(Level)


def test_what_is_said_of_many_streams_is_said_once_and_names_some() -> None:
    many = [
        Finding("flags", Level.ADVICE, f"stream S{k}", "allow_direct is off.", f"nats stream edit S{k}")
        for k in range(9)
    ]
    (one,) = merged(many)
    assert (one.about, one.level) == ("9 streams", Level.ADVICE)
    assert one.says == "S0, S1, S2, S3, S4 and 4 others: allow_direct is off."
    assert one.mend == "nats stream edit S0 Likewise for the others."
    assert merged(many[:3]) == many[:3]


def test_a_healthy_server_gives_no_error_and_no_warning() -> None:
    assert bad(facts(stream(), consumer())) == []


def test_the_page_has_the_table_of_all_checks() -> None:
    page = (Path(__file__).parents[2] / "docs" / "jetstream" / "doctor.md").read_text()
    assert table() in page
    assert all(f"`{name}`" in page for name in CHECKS)


def test_every_finding_of_harm_says_what_mends_it() -> None:
    for given in (full(), stalled(), denied("info"), facts(servers=(ServerFacts("nats://x:1", error="it is away"),))):
        for each in judge(given):
            assert each.mend or each.level not in (Level.ERROR, Level.WARNING, Level.ADVICE), each
            assert re.search(r"[.!?]$", each.says), each.says


# --- servers ---


def test_one_server_that_is_away_is_a_warning_and_all_of_them_an_error() -> None:
    away = ServerFacts("nats://10.0.0.2:4222", told=True, error="Connection refused")
    (finding,) = [each for each in found(facts(servers=(SERVER, away)), "reachable") if each.level is not Level.OK]
    assert finding.level is Level.WARNING
    assert "The cluster tells clients to use it. Connection refused." in finding.says
    assert "client_advertise" in finding.mend
    alone = Facts(now=NOW, servers=(away,))
    assert bad(alone) == [("reachable", "error")]


def test_servers_of_different_versions_are_told() -> None:
    other = ServerFacts("nats://127.0.0.1:4223", connect=0.01, round_trip=0.001, info=INFO | {"version": "2.11.9"})
    (finding,) = [each for each in found(facts(servers=(SERVER, other)), "version") if each.level is Level.WARNING]
    assert "2.15.1" in finding.says
    assert "2.11.9" in finding.says


@pytest.mark.parametrize(("days", "level"), [(-1, "error"), (3, "warning"), (400, "ok")])
@pytest.mark.parametrize("check", ["tls", "credentials"])
def test_what_expires_is_told_before_it_does(days: int, level: str, check: str) -> None:
    until = NOW + days * 86400
    given = (
        facts(login=Login("jwt", until))
        if check == "credentials"
        else facts(
            servers=(ServerFacts("tls://db:4222", connect=0.1, round_trip=0.01, info=INFO, tls=True, expires=until),)
        )
    )
    assert [str(each.level) for each in found(given, check)] == [level]


@pytest.mark.parametrize(
    ("kind", "is_loopback", "level"),
    [("password", False, "warning"), ("token", False, "warning"), ("nkey", False, "advice"), ("password", True, None)],
)
def test_a_password_over_a_plain_connection_is_a_warning(kind: str, is_loopback: bool, level: str | None) -> None:
    server = ServerFacts("nats://db:4222", connect=0.1, round_trip=0.01, info=INFO, is_loopback=is_loopback)
    levels = [str(each.level) for each in found(facts(servers=(server,), login=Login(kind)), "tls")]
    assert levels == ([level] if level else [])


@pytest.mark.parametrize(("ahead", "level"), [(0.3, "ok"), (-4.0, "warning"), (90.0, "error")])
def test_clocks_are_compared_with_ours(ahead: float, level: str) -> None:
    (finding,) = found(facts(clocks=(Clock("s1", ahead, 0.01),)), "clock")
    assert str(finding.level) == level


def test_clocks_of_servers_are_compared_with_each_other_and_a_slow_answer_is_no_proof() -> None:
    clocks = (Clock("s1", 0.8, 0.01), Clock("s2", -0.7, 0.01))
    assert [each.about for each in found(facts(clocks=clocks), "clock")] == ["cluster"]
    assert [str(each.level) for each in found(facts(clocks=(Clock("s1", 3.0, 2.5),)), "clock")] == ["ok"]


VARZ = {"server_id": "ID", "server_name": "s1", "cpu": 1, "cores": 2, "mem": 1 << 24, "slow_consumers": 0}


def monitored(**varz: Any) -> Facts:
    return facts(
        monitored=(Monitored("http://h:8222", varz=VARZ | varz, pending=(("app (10.0.0.9, cid 7)", 1 << 20),)),)
    )


def test_slow_consumers_and_a_busy_server_are_told() -> None:
    (slow,) = [each for each in found(monitored(slow_consumers=3), "monitoring") if each.level is Level.WARNING]
    assert "3 clients were cut off" in slow.says
    assert "app (10.0.0.9, cid 7)" in slow.says
    assert any("190%" in each.says for each in found(monitored(cpu=190.0), "monitoring"))
    jetstream = {"config": {"max_storage": 1000, "max_memory": 0}, "stats": {"storage": 900}}
    assert any("max_file_store" in each.mend for each in found(monitored(jetstream=jetstream), "monitoring"))


def test_monitoring_of_another_server_is_not_believed() -> None:
    (finding,) = found(monitored(server_id="SOMEBODY", slow_consumers=99), "monitoring")
    assert "another server" in finding.says
    assert finding.level is Level.WARNING


@pytest.mark.parametrize(
    "lie", [{"slow_consumers": "many"}, {"jetstream": []}, {"cores": None, "jetstream": {"config": 7}}]
)
def test_a_lying_monitoring_is_told_and_never_a_crash(lie: dict[str, Any]) -> None:
    (finding,) = found(monitored(**lie), "monitoring")
    assert finding.level is Level.WARNING
    assert "no report of a server" in finding.says


def test_a_monitoring_address_that_nobody_gave_is_no_warning() -> None:
    for guessed, level in ((True, Level.UNCHECKED), (False, Level.WARNING)):
        (finding,) = found(facts(monitored=(Monitored("http://h:8222", guessed, "it is silent"),)), "monitoring")
        assert finding.level is level


# --- account and permissions ---


def test_limits_of_the_account_are_told_before_they_are_reached() -> None:
    account = ACCOUNT | {"storage": 90, "streams": 5, "limits": {"max_storage": 100, "max_streams": 5}}
    given = facts(look={"account": account})
    assert bad(given) == [("account", "error"), ("account", "warning")]
    assert bad(facts()) == []


def test_tiers_of_an_account_are_judged_each_for_itself() -> None:
    tiers = {
        "R1": {"storage": 5, "limits": {"max_storage": 100}},
        "R3": {"storage": 100, "limits": {"max_storage": 100}},
    }
    (finding,) = [each for each in found(facts(look={"account": ACCOUNT | {"tiers": tiers}}), "account") if each.mend]
    assert (finding.about, finding.level) == ("account, tier R3", Level.ERROR)


def test_an_account_without_jetstream_is_an_error_and_nothing_else_is_said() -> None:
    given = Facts(now=NOW, servers=(SERVER,), refused="JetStream is not enabled for this account.")
    assert bad(given) == [("account", "error")]


def tried(**allowed: bool | None) -> tuple[Tried, ...]:
    needs = {"info": True, "get": True, "direct": True, "create": True, "next": True, "delete": True, "list": True}
    subjects = {"next": "CONSUMER.MSG.NEXT.S.penstock-doctor-1", "delete": "CONSUMER.DELETE.S.penstock-doctor-1"}
    return tuple(
        Tried(n, "S", f"$JS.API.{subjects.get(n, n.upper() + '.S')}", may, "it says why")
        for n, may in (needs | allowed).items()
    )


def denied(*needs: str, **config: Any) -> Facts:
    return facts(stream(**config), tried=tried(**dict.fromkeys(needs, False)))


@pytest.mark.parametrize(
    ("needs", "retention", "level"),
    [
        ((), "limits", Level.OK),
        (("info",), "limits", Level.ERROR),
        (("get",), "limits", Level.ERROR),
        (("direct",), "limits", Level.ADVICE),
        (("create",), "limits", Level.ADVICE),
        (("delete",), "limits", Level.ADVICE),
        (("direct", "next"), "limits", Level.ERROR),
        (("direct",), "workqueue", Level.ERROR),
        (("create", "next", "delete"), "workqueue", Level.OK),
        (("purge",), "workqueue", Level.WARNING),
    ],
)
def test_what_is_refused_does_as_much_harm_as_no_other_way_is_left(
    needs: tuple[str, ...], retention: str, level: Level
) -> None:
    findings = found(denied(*needs, retention=retention), "permission")
    assert findings[0].level is level, findings


def test_a_refusal_says_what_to_grant_with_wildcards_for_names_that_were_made_up() -> None:
    (finding,) = [each for each in found(denied("direct", "next"), "permission") if each.level is Level.ERROR]
    assert '"$JS.API.CONSUMER.MSG.NEXT.S.>"' in finding.mend
    assert "penstock-doctor" not in finding.mend


def test_a_subject_that_may_not_be_published_to_matters_to_those_who_write() -> None:
    refused = (Tried("publish", "S", "S.x", False, "no"),)
    assert [each.level for each in found(facts(stream(), tried=refused), "publish")] == [Level.ADVICE]
    assert [each.level for each in found(facts(stream(), tried=refused, wants_to_write=True), "publish")] == [
        Level.ERROR
    ]
    assert made_up("orders.*.eu.>") == "orders.penstock-doctor.eu.penstock-doctor"


def ledger(**config: Any) -> StreamFigures:
    fit = {"subjects": [f"{LEDGER}.>"], "max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True}
    return stream(
        LEDGER, **({"max_age": 0, "storage": "file"} | fit | config),
        state={"first_ts": "0001-01-01T00:00:00Z", "last_ts": "0001-01-01T00:00:00Z"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("config", "level"),
    [
        ({}, Level.OK),
        ({"max_age": 10**12}, Level.ERROR),
        ({"storage": "memory"}, Level.ERROR),
        ({"max_msgs_per_subject": 2}, Level.ERROR),
    ],
)
def test_a_ledger_that_would_forget_is_an_error(config: dict[str, Any], level: Level) -> None:
    assert [each.level for each in found(facts(ledger=ledger(**config)), "ledger")] == [level]


def test_a_ledger_of_one_replica_in_a_cluster_is_a_warning() -> None:
    clustered = ServerFacts(
        "nats://127.0.0.1:1", connect=0.1, round_trip=0.01, info=INFO | {"cluster": "C"}, is_loopback=True
    )
    assert [each.level for each in found(facts(ledger=ledger(), servers=(clustered,)), "ledger")] == [Level.WARNING]


# --- streams ---


def full() -> Facts:
    return facts(stream(discard="new", max_msgs=10, state={"messages": 10, "bytes": 100, "last_seq": 10}))


def test_a_stream_that_refuses_because_it_is_full_is_an_error() -> None:
    assert bad(full()) == [("limits", "error")]


def seen_twice(one: StreamFigures, other: StreamFigures, *consumers: ConsumerFigures) -> Look:
    before = Look(0.0, streams=(one,), consumers=consumers[:1])
    return rated(before, Look(10.0, account=ACCOUNT, streams=(other,), consumers=consumers[1:]))


def test_when_a_stream_is_full_is_told_by_the_rate_that_was_seen() -> None:
    looks = [
        stream(discard="new", max_msgs=3000, state={"messages": n, "bytes": n, "last_seq": n}) for n in (1000, 2000)
    ]
    given = Facts(now=NOW, servers=(SERVER,), look=seen_twice(looks[0], looks[1]), ledger_known=True, seconds=10.0)
    (finding,) = [each for each in found(given, "limits") if each.level is Level.WARNING]
    assert "100 messages a second" in finding.says
    assert "refuses messages in 10 s" in finding.says


def test_a_consumer_that_the_oldest_messages_leave_behind_is_an_error_within_the_hour() -> None:
    def at(last: int) -> StreamFigures:
        return stream(
            max_msgs=1000, max_age=0, state={"messages": 1000, "bytes": 9000, "first_seq": last - 999, "last_seq": last}
        )

    slow = [consumer(num_pending=900, ack_floor={"consumer_seq": n, "stream_seq": 1100 + n}) for n in (0, 100)]
    given = Facts(
        now=NOW, servers=(SERVER,), look=seen_twice(at(2000), at(2200), *slow), ledger_known=True, seconds=10.0
    )
    (finding,) = found(given, "retention")
    assert finding.level is Level.ERROR
    # 1,200 is the next to read and 1,201 the first that is there: 20 come in a second and 10 are read.
    assert "in 0.0 s the stream deletes what it has not read" in finding.says
    quick = [consumer(num_pending=900, ack_floor={"consumer_seq": n, "stream_seq": 1100 + n}) for n in (0, 300)]
    given = Facts(
        now=NOW, servers=(SERVER,), look=seen_twice(at(2000), at(2200), *quick), ledger_known=True, seconds=10.0
    )
    assert found(given, "retention") == []


def test_a_burst_is_no_rate() -> None:
    state = {"messages": 5000, "bytes": 10**6, "last_seq": 5000, "first_ts": "2026-11-17T07:19:58Z", "last_ts": STAMP}
    (finding,) = [each for each in found(facts(stream(state=state, max_age=0)), "limits") if each.level is not Level.OK]
    assert finding.level is Level.ADVICE
    assert "a day" not in finding.says


def test_a_stream_without_limits_is_a_warning_where_the_storage_is_full_soon() -> None:
    hour = {
        "messages": 3600,
        "bytes": 3600 * 1000,
        "last_seq": 3600,
        "first_ts": "2026-11-17T06:20:00Z",
        "last_ts": STAMP,
    }
    account = ACCOUNT | {"limits": {"max_storage": 100 * 1000 * 1000}, "storage": 0}
    look = Look(0, account=account, streams=(stream(max_age=0, state=hour),))
    (finding,) = [
        each for each in found(Facts(now=NOW, servers=(SERVER,), look=look), "limits") if each.level is not Level.OK
    ]
    assert finding.level is Level.WARNING
    assert "the account is full in 28 h" in finding.says


@pytest.mark.parametrize(
    ("config", "check", "level"),
    [
        ({"allow_direct": False}, "flags", Level.ADVICE),
        ({"allow_direct": False, "retention": "workqueue"}, "flags", Level.WARNING),
        ({"allow_batched": False}, "flags", Level.ADVICE),
        ({"duplicate_window": 10**9}, "duplicates", Level.WARNING),
        ({"duplicate_window": 30 * 10**9}, "duplicates", Level.ADVICE),
        ({"retention": "interest"}, "retention", Level.WARNING),
        ({"sealed": True}, "takes", Level.ADVICE),
        ({"subjects": []}, "takes", Level.WARNING),
        ({"num_replicas": 2}, "replicas", Level.ADVICE),
        ({"max_msg_size": 8 << 20}, "limits", Level.ADVICE),
    ],
)
def test_settings_of_a_stream_are_judged(config: dict[str, Any], check: str, level: Level) -> None:
    findings = found(facts(stream(**config)), check)
    assert [each.level for each in findings] == [level]
    assert findings[0].about == "stream S"
    assert findings[0].mend


def test_old_servers_are_not_told_to_set_what_they_do_not_know() -> None:
    old = ServerFacts(
        "nats://127.0.0.1:1", connect=0.01, round_trip=0.01, info=INFO | {"version": "2.10.29"}, is_loopback=True
    )
    plain = stream(allow_direct=False, allow_batched=False, allow_atomic=False)
    assert found(facts(plain, servers=(old,)), "flags") == []


def test_replicas_that_are_away_and_streams_without_a_leader_are_told() -> None:
    cluster = {
        "leader": "s1",
        "replicas": [{"name": "s2", "offline": True}, {"name": "s3", "current": False, "lag": 7, "active": 90 * 10**9}],
    }
    clustered = ServerFacts(
        "nats://127.0.0.1:1", connect=0.01, round_trip=0.01, info=INFO | {"cluster": "C"}, is_loopback=True
    )
    findings = found(facts(stream(num_replicas=3, cluster=cluster), servers=(clustered,)), "replicas")
    assert [each.level for each in findings] == [Level.WARNING, Level.WARNING]
    assert "1 of 3 replicas are offline: s2. One more, and it stands still." in findings[0].says
    assert "s3 is not current: it was heard of 90 s ago, and is 7 operations behind" in findings[1].says
    lost = facts(look={"missing": ("S",)})
    assert bad(lost) == [("replicas", "error")]
    assert found(facts(stream(), servers=(clustered,)), "replicas")[0].level is Level.WARNING


def test_a_mirror_that_hears_nothing_is_told() -> None:
    for mirror, level in (
        ({"name": "UP", "lag": 0, "active": 10**9}, None),
        ({"name": "UP", "lag": 5, "active": 300 * 10**9}, Level.WARNING),
        ({"name": "UP", "lag": 0, "active": -1}, Level.WARNING),
        ({"name": "UP", "lag": 0, "active": -1, "error": {"description": "stream not found"}}, Level.ERROR),
    ):
        levels = [each.level for each in found(facts(stream(mirror=mirror, subjects=[])), "feeds")]
        assert levels == ([level] if level else [])


# --- consumers ---


def stalled() -> Facts:
    return facts(stream(), consumer(num_pending=5, num_ack_pending=1000))


def test_a_consumer_that_waits_for_acks_at_its_limit_is_an_error() -> None:
    (finding,) = [each for each in found(stalled(), "consumer") if each.level is Level.ERROR]
    assert finding.about == "consumer S/c"
    assert "--max-pending=2000" in finding.mend


RECENT, LONG_AGO = {"last_active": "2026-11-17T07:19:50Z"}, {"last_active": "2026-11-10T07:19:50Z"}


@pytest.mark.parametrize(
    ("told", "config", "level"),
    [
        ({"num_pending": 5, "delivered": RECENT}, {}, Level.OK),
        ({"num_pending": 5, "delivered": LONG_AGO}, {}, Level.WARNING),
        ({"num_pending": 5, "delivered": LONG_AGO, "num_waiting": 1}, {}, Level.OK),
        ({"num_pending": 5}, {"description": FOLLOWER}, Level.OK),
        ({"num_pending": 5, "push_bound": False}, {"deliver_subject": "to.me"}, Level.ERROR),
        ({"num_pending": 5}, {"deliver_subject": "to.me"}, Level.ERROR),
        ({"num_pending": 5, "push_bound": True}, {"deliver_subject": "to.me"}, Level.OK),
        ({"num_redelivered": 50, "num_ack_pending": 60, "delivered": RECENT}, {}, Level.WARNING),
        ({"num_redelivered": 3, "num_ack_pending": 60, "delivered": RECENT}, {}, Level.OK),
        ({"num_redelivered": 3, "delivered": RECENT}, {"max_deliver": 5}, Level.ADVICE),
        ({"num_waiting": 512}, {}, Level.WARNING),
        ({"paused": True, "num_pending": 5}, {}, Level.ADVICE),
    ],
)
def test_consumers_are_judged_by_what_they_show(told: dict[str, Any], config: dict[str, Any], level: Level) -> None:
    assert [each.level for each in found(facts(stream(), consumer(config=config, **told)), "consumer")] == [level]


@pytest.mark.parametrize(("seconds", "level"), [(5, Level.OK), (600, Level.ADVICE), (86400, Level.WARNING)])
def test_a_follower_is_judged_by_what_its_query_has_left_unread(seconds: float, level: Level) -> None:
    """The server tells of no delivery and no ack there, however often it is moved."""
    each = replace(consumer(num_pending=5, config={"description": FOLLOWER}), lag_seconds=seconds)
    assert [each.level for each in found(facts(stream(), each), "consumer")] == [level]


def test_a_forgotten_consumer_of_a_work_queue_is_told_what_it_costs() -> None:
    given = facts(stream(retention="workqueue"), consumer(num_pending=5, delivered=LONG_AGO))
    assert "the stream keeps what it has not read (workqueue retention)" in found(given, "consumer")[0].says


# --- small parts ---


@pytest.mark.parametrize("text", ["", "a.b", "a.!!.c", "a.e30.c", "a.bnVsbA.c", "a.eyJleHAiOiAieCJ9.c"])
def test_a_jwt_that_cannot_be_read_has_no_end(text: str) -> None:
    assert jwt_expiry(text) is None


def test_the_end_of_a_jwt_is_read() -> None:
    body = base64.urlsafe_b64encode(json.dumps({"exp": 1_800_000_000}).encode()).decode().rstrip("=")
    assert jwt_expiry(f"x.{body}.y") == 1_800_000_000


def test_bytes_that_are_no_certificate_are_a_sentence() -> None:
    chance = random.Random(7)
    for size in (0, 1, 2, 20, 300):
        for _ in range(50):
            with pytest.raises(ProtocolError, match="cannot be read"):
                expires(bytes([0x30]) + chance.randbytes(size))


def test_who_answers_too_late_is_not_waited_for() -> None:
    began = time.monotonic()
    with pytest.raises(ConnectError, match=r"not answered in 0\.05 s"):
        within(0.05, lambda: time.sleep(1))
    assert time.monotonic() - began < 0.5


# --- the command and the connection ---


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--publish", "a b"], "name one subject"),
        (["--watch", "soon"], "is no duration"),
        (["server=nats://a:4222"], "servers"),
        (["servers=nats://127.0.0.1:1", "credentialsFile=/no/such.creds"], "/no/such.creds"),
        (["--no-such-option"], "No such option"),
        (["--watch"], "requires an argument"),
    ],
)
def test_a_wrong_command_line_has_an_exit_code_of_its_own(words: list[str], why: str) -> None:
    ran = CliRunner().invoke(app, ["jetstream", "doctor", *words])
    assert ran.exit_code == 64, ran.output
    assert why in " ".join(ran.stderr.split())


def test_whether_a_connection_is_encrypted_is_asked_of_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    class Encrypted:
        is_tls, info = True, INFO

        def __init__(self, options: NatsOptions):
            pass

        def flush(self) -> None:
            pass

        def close(self) -> None:
            pass

    def fails(server: Any, options: NatsOptions) -> bytes:
        raise OSError("the extra handshake failed")

    monkeypatch.setattr(collected, "Connection", Encrypted)
    monkeypatch.setattr(collected, "peer_certificate", fails)
    reached = collected._reach(NatsOptions.parse("jetstream", {}), "nats://db:4222", told=False)
    assert (reached.tls, reached.expires) == (True, None)
    assert found(facts(servers=(reached,), login=Login("password")), "tls") == []
