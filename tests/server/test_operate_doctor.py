"""The doctor at real servers: what it finds, what it changes (nothing), and what it does where it may not ask."""

import contextlib
import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from credentials import JETSTREAM, UNLIMITED, Authority, creds, jwt, key
from typer.testing import CliRunner

from nats_servers import Admin, server_binary
from penstock.cli import app
from penstock.clients.jetstream.api import LEDGER
from penstock.clients.nats.options import NatsOptions
from penstock.operate.doctor import collect as collecting
from penstock.operate.doctor.collect import collect
from penstock.operate.doctor.findings import Finding, Level
from penstock.operate.doctor.judge import judge
from penstock.testing.nats_cluster import NatsCluster
from penstock.testing.nats_server import NatsServer, free_port

API = "$JS.API."
READING = ("INFO", "STREAM.INFO.*", "STREAM.MSG.GET.*", "STREAM.LIST", "STREAM.NAMES", "CONSUMER.LIST.*",
           "DIRECT.GET.*", "CONSUMER.CREATE.>", "CONSUMER.MSG.NEXT.>", "CONSUMER.DELETE.>")  # fmt: skip
# What each user may publish to; its password is its name.
USERS: dict[str, Sequence[str]] = {
    "reader": [API + each for each in READING],
    "direct": [API + each for each in ("INFO", "STREAM.INFO.S", "STREAM.MSG.GET.S", "DIRECT.GET.S")],
    "blind": [API + "INFO"],
    "writer": [API + "STREAM.INFO.S", API + "STREAM.NAMES", "S.ok.>"],
}


def options(url: str, **more: Any) -> NatsOptions:
    return NatsOptions.parse("jetstream", {"servers": url, **more})


def examined(url: str, names: Sequence[str] = (), seconds: float = 0.05, **more: Any) -> list[Finding]:
    asked = {name: more.pop(name) for name in ("monitoring", "publish") if name in more}
    return judge(collect(options(url, **more), names=names, seconds=seconds, **asked))


def of(findings: Sequence[Finding], check: str, about: str = "") -> list[Finding]:
    return [each for each in findings if each.check == check and about in each.about]


@pytest.fixture(autouse=True)
def _monitoring_that_nobody_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may have a server on this machine at the usual port."""
    monkeypatch.setattr(collecting, "PORT", 1)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NatsServer, Admin, str]]:
    """A server with users and monitoring. S has messages, Q is a work queue, FULL is full, `stuck` has no acks."""
    folder, port = tmp_path_factory.mktemp("guarded"), free_port()
    users = "\n".join(
        f"{{ user: {user}, password: {user}, "
        f'permissions: {{ publish: {json.dumps(allowed)}, subscribe: ["_INBOX.>"] }} }}'
        for user, allowed in USERS.items()
    )
    config = f"""
    jetstream {{ store_dir: "{folder / "data"}" }}
    http: "127.0.0.1:{port}"
    accounts {{
      A {{ jetstream: enabled, users: [ {{ user: admin, password: admin }}
      {{ user: mute, password: mute, permissions: {{ subscribe: {{ deny: ">" }} }} }}
      {users} ] }}
      POOR {{ users: [ {{ user: poor, password: poor }} ] }}
    }}"""
    with NatsServer(folder, config=config) as running:
        admin = Admin(running.url, user="admin", password="admin")
        admin.create("S")
        admin.numbers("S", 100)
        admin.create("Q", retention="workqueue")
        admin.numbers("Q", 3)
        admin.create("FULL", max_msgs=10, discard="new")
        admin.numbers("FULL", 10)
        durable = {"durable_name": "stuck", "ack_policy": "explicit", "max_ack_pending": 5, "ack_wait": 60 * 10**9}
        admin.calls.call("CONSUMER.CREATE.S.stuck", {"stream_name": "S", "config": durable})
        sid, inbox = admin.connection.subscribe()
        admin.connection.publish(f"{API}CONSUMER.MSG.NEXT.S.stuck", b'{"batch": 9, "expires": 50000000}', f"{inbox}.1")
        admin.connection.receive(sid, linger=True)
        yield running, admin, f"http://127.0.0.1:{port}"
        admin.close()


def state(admin: Admin) -> list[Any]:
    """All that somebody could change: messages, configurations, consumers and what they have given."""
    names = sorted(admin.calls.names())
    infos = admin.calls.streams(names)
    consumers = [admin.calls.call(f"CONSUMER.LIST.{name}", {"offset": 0})["consumers"] for name in names]
    told = [
        [(c["name"], c["config"], c["delivered"], c["num_ack_pending"], c["num_pending"]) for c in each]
        for each in consumers
    ]
    return [(name, infos[name]) for name in names] + told


def test_a_full_stream_and_a_stalled_consumer_are_found_and_nothing_is_changed(
    guarded: tuple[NatsServer, Admin, str],
) -> None:
    running, admin, monitoring = guarded
    before = state(admin)
    findings = examined(running.url, user="admin", password="admin", monitoring=[monitoring], publish="S.x")
    assert state(admin) == before
    assert LEDGER not in admin.calls.names()
    errors = {(each.check, each.about) for each in findings if each.level is Level.ERROR}
    assert errors == {("limits", "stream FULL"), ("consumer", "consumer S/stuck")}
    (stuck,) = of(findings, "consumer", "stuck")
    assert "5 messages wait for an ack, which is its limit" in stuck.says
    assert "nats consumer edit S stuck --max-pending=10" in stuck.mend
    assert [each.level for each in of(findings, "publish")] == [Level.OK]
    assert "S.x into S" in of(findings, "publish")[0].says
    assert [each.level for each in of(findings, "monitoring")] == [Level.OK]
    assert [each.level for each in of(findings, "clock")] == [Level.OK]


def test_a_reader_lacks_nothing_that_reading_needs(guarded: tuple[NatsServer, Admin, str]) -> None:
    findings = examined(guarded[0].url, ["S"], user="reader", password="reader")
    assert {each.level for each in of(findings, "permission")} == {Level.OK}
    assert {each.level for each in of(findings, "publish")} <= {Level.ADVICE, Level.UNCHECKED}


def test_what_may_not_be_asked_is_told_with_what_to_grant(guarded: tuple[NatsServer, Admin, str]) -> None:
    running, admin, _ = guarded
    before = state(admin)
    findings = examined(running.url, ["S", "Q"], user="direct", password="direct")
    assert state(admin) == before
    (other,) = [
        each for each in of(findings, "permission", "stream S") if each.level is Level.ADVICE and "alone" in each.says
    ]
    assert '"$JS.API.CONSUMER.CREATE.S", "$JS.API.CONSUMER.MSG.NEXT.S.>", "$JS.API.CONSUMER.DELETE.S.>"' in other.mend
    hidden = [each for each in of(findings, "permission", "stream Q") if each.level is Level.ERROR]
    assert any("$JS.API.STREAM.INFO.Q" in each.mend for each in hidden)
    assert not [each for each in of(findings, "permission", "stream S") if each.level is Level.ERROR]


@pytest.mark.parametrize(("subject", "level"), [("S.ok.x", Level.OK), ("S.no", Level.ERROR)])
def test_a_subject_is_tried_without_storing_anything(
    guarded: tuple[NatsServer, Admin, str], subject: str, level: Level
) -> None:
    running, admin, _ = guarded
    before = admin.calls.stream("S").last
    findings = examined(running.url, ["S"], user="writer", password="writer", publish=subject)
    assert admin.calls.stream("S").last == before
    assert [each.level for each in of(findings, "publish")] == [level], of(findings, "publish")
    assert any(LEDGER in each.says for each in of(findings, "ledger") if each.level is Level.WARNING)


def test_an_account_that_may_list_nothing_gets_a_report_all_the_same(guarded: tuple[NatsServer, Admin, str]) -> None:
    findings = examined(guarded[0].url, user="blind", password="blind")
    (listing,) = of(findings, "account", "streams")
    assert listing.level is Level.UNCHECKED
    assert "--stream NAME" in listing.says
    assert of(findings, "reachable")[0].level is Level.OK


@pytest.mark.parametrize(
    ("user", "words"), [("mute", "may not subscribe to its inbox"), ("poor", "not enabled")], ids=["mute", "poor"]
)
def test_an_account_that_can_ask_nothing_is_an_error(
    guarded: tuple[NatsServer, Admin, str], user: str, words: str
) -> None:
    findings = examined(guarded[0].url, user=user, password=user)
    (finding,) = of(findings, "account")
    assert finding.level is Level.ERROR
    assert words in finding.says


def test_wrong_credentials_and_no_server_are_findings_and_not_errors_of_ours(
    guarded: tuple[NatsServer, Admin, str],
) -> None:
    for url, words in ((guarded[0].url, "refused the credentials"), (f"nats://127.0.0.1:{free_port()}", "refused")):
        findings = examined(url, user="admin", password="wrong-sesame")
        (finding,) = of(findings, "reachable")
        assert finding.level is Level.ERROR
        assert words in finding.says
        assert "sesame" not in json.dumps([each.as_json() for each in findings])


def test_the_command_prints_a_table_and_json_and_ends_with_the_code(guarded: tuple[NatsServer, Admin, str]) -> None:
    words = ["jetstream", "doctor", f"servers={guarded[0].url}", "user=admin", "password=admin", "--watch", "50ms"]
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 2
    assert "consumer S/stuck" in ran.stdout
    assert "--max-pending=10" in ran.stdout
    assert "2 errors" in ran.stdout
    ran = CliRunner().invoke(app, [*words, "--json", "--stream", "S"])
    told = json.loads(ran.stdout)
    assert (ran.exit_code, told["exit"]) == (2, 2)
    assert {"check", "level", "about", "says", "mend"} == told["findings"][0].keys()
    ran = CliRunner().invoke(app, [*words, "--json", "--stream", "T"])
    assert any(
        "Did you mean" in each["says"] or "There are" in each["says"] for each in json.loads(ran.stdout)["findings"]
    )
    ran = CliRunner().invoke(app, [*words, "--publish", "a.*"])
    assert ran.exit_code == 64
    assert "has a wildcard" in ran.stderr


# --- monitoring that lies ---


@contextlib.contextmanager
def liar(answer: bytes) -> Iterator[str]:
    """Something that listens, and answers everything so; nothing where that is empty."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        held: list[socket.socket] = []

        def run() -> None:
            with contextlib.suppress(OSError):
                while True:
                    talking, _ = listening.accept()
                    held.append(talking)
                    if answer:
                        talking.recv(4096)
                        talking.sendall(answer)
                        talking.close()

        threading.Thread(target=run, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        for each in held:
            each.close()


def page(body: str) -> bytes:
    return f"HTTP/1.0 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "not answer"),
        (b"SSH-2.0-OpenSSH_9\r\n", "does not answer"),
        (page("<html>"), "something else than JSON"),
        (page("[1]"), "no report of a nats-server"),
        (page('{"server_id": "somebody"}'), "another server"),
    ],
    ids=["silent", "ssh", "html", "list", "stranger"],
)
def test_a_lying_or_silent_monitoring_is_told_and_holds_up_nobody(
    guarded: tuple[NatsServer, Admin, str], monkeypatch: pytest.MonkeyPatch, answer: bytes, words: str
) -> None:
    monkeypatch.setattr(collecting, "MONITORING", 0.5)
    began = time.monotonic()
    with liar(answer) as url:
        findings = examined(guarded[0].url, ["S"], user="admin", password="admin", monitoring=[url])
    assert time.monotonic() - began < 3
    (finding,) = of(findings, "monitoring")
    assert finding.level is Level.WARNING
    assert words in finding.says
    assert of(findings, "consumer", "stuck"), "all else is told"


# --- certificates and JWTs ---


def days(authority: Authority, name: str, count: int) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that expires in so many days, or has."""
    cert, secret = authority.issue(name)
    ext, csr = authority.folder / f"{name}.ext", authority.folder / f"{name}.csr"
    words = ["x509", "-req", "-in", csr, "-CA", authority.file, "-CAkey", authority.folder / "ca.key", "-extfile", ext]
    subprocess.run(
        ["openssl", *map(str, [*words, "-CAcreateserial", "-days", count, "-out", cert])],
        check=True,
        capture_output=True,
    )
    return cert, secret


@pytest.mark.parametrize(("count", "level"), [(-1, Level.ERROR), (5, Level.WARNING), (400, Level.OK)])
def test_a_certificate_that_has_expired_or_will_is_told(tmp_path: Path, count: int, level: Level) -> None:
    authority = Authority(tmp_path / "ca")
    cert, secret = days(authority, "server", count)
    config = f'jetstream {{ store_dir: "{tmp_path / "data"}" }}\ntls {{ cert_file: "{cert}", key_file: "{secret}" }}'
    with NatsServer(tmp_path, config=config) as running:
        findings = examined(running.url.replace("nats://", "tls://"), tlsCa=str(authority.file))
    (finding,) = of(findings, "tls")
    assert finding.level is level
    assert "certificate expire" in finding.says
    reached = of(findings, "reachable")[0].level
    assert reached is (Level.ERROR if count < 0 else Level.OK), "an expired certificate is not accepted"


def test_the_end_of_a_user_jwt_is_told(tmp_path: Path) -> None:
    operator, system, account, user = key("operator"), key("account"), key("account"), key("user")
    account_jwt = jwt(operator, account, "account", limits=UNLIMITED | JETSTREAM)
    user_jwt = jwt(account, user, "user", subs=-1, data=-1, payload=-1)
    config = f"""
    jetstream {{ store_dir: "{tmp_path / "data"}" }}
    operator: {jwt(operator, operator, "operator")}
    system_account: {system.public}
    resolver: MEMORY
    resolver_preload: {{ {account.public}: {account_jwt}, {system.public}: {jwt(operator, system, "account")} }}
    """
    with NatsServer(tmp_path, config=config) as running:
        findings = examined(running.url, credentials=creds(user_jwt, user.seed))
        assert of(findings, "credentials") == [], "it never expires"
        assert of(findings, "account")[0].level is Level.OK


# --- versions and clusters ---


@pytest.mark.parametrize("version", ["2.10.26", "2.12.6"])
def test_older_servers_are_examined_as_far_as_they_tell(tmp_path: Path, version: str) -> None:
    with NatsServer(tmp_path, executable=server_binary(version)) as running:
        admin = Admin(running.url)
        admin.create("S", allow_direct=False)
        admin.numbers("S", 5)
        before = state(admin)
        findings = examined(running.url, publish="S.x")
        assert state(admin) == before
        admin.close()
    assert not [each for each in findings if each.level is Level.ERROR], findings
    (publishing,) = of(findings, "publish")
    assert publishing.level is (Level.UNCHECKED if version < "2.11" else Level.OK)
    assert bool(of(findings, "flags", "stream S")) == (version > "2.11"), "it is told only what it knows"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NatsCluster, Admin]]:
    with NatsCluster(tmp_path_factory.mktemp("cluster")) as running:
        admin = connected(running.url)
        yield running, admin
        admin.close()


def connected(url: str) -> Admin:
    """A connection, once the cluster has a leader and has made a stream of three replicas."""
    admin, deadline = Admin(url, requestTimeout="2s"), time.monotonic() + 30
    while True:
        try:
            admin.create("R3", num_replicas=3)
            return admin
        except Exception:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def test_a_cluster_with_one_server_down_is_reported_by_the_others(cluster: tuple[NatsCluster, Admin]) -> None:
    running, admin = cluster
    admin.create("R1", num_replicas=1)
    well = examined(running.servers[0].url)
    reached = of(well, "reachable")
    assert len(reached) == 3, "those that the cluster tells of are examined too"
    assert {each.level for each in reached} == {Level.OK}
    assert [each.about for each in of(well, "replicas")] == ["stream R1"]
    leader = str(admin.calls.stream("R1").leader)
    away = next(each for each in running.servers if f"s{each.port}" != leader and each is not running.servers[0])
    away.stop()  # it says so to the others; of one that is killed they know after ten seconds
    try:
        deadline = time.monotonic() + 20
        while True:
            findings = examined(running.servers[0].url, ["R3"])
            late = of(findings, "replicas", "stream R3")
            if any(f"s{away.port}" in each.says for each in late):
                break
            assert time.monotonic() < deadline, findings
            time.sleep(0.3)
    finally:
        away.start()
    assert {each.level for each in late} == {Level.WARNING}
    assert {each.level for each in of(findings, "reachable", str(away.port))} <= {Level.WARNING}
