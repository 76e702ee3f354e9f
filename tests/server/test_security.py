"""Every way to be let in, the least that must be allowed, and an error that says what to do and gives nothing away."""

import contextlib
import json
import logging
import socket
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from credentials import JETSTREAM, UNLIMITED, Authority, Key, creds, jwt, key
from jetstream_sources import Query, everything, numbers, opened, sequences, table, whole

from nats_servers import Admin
from penstock.clients.jetstream.calls import ApiError
from penstock.clients.nats.client import Connection, Denied
from penstock.clients.nats.options import NatsOptions
from penstock.errors import ConnectError, OptionError, PenstockError, ProtocolError
from penstock.planning.positions import Range
from penstock.testing.nats_server import NatsServer, free_port

API = "$JS.API."
SHARED = ("STREAM.INFO.S", "STREAM.MSG.GET.S")
CONSUMER = (*SHARED, "CONSUMER.CREATE.S", "CONSUMER.MSG.NEXT.S.*", "CONSUMER.DELETE.S.*")
DIRECT = (*SHARED, "DIRECT.GET.S")
PROGRESS = ("CONSUMER.INFO.S.spark", "CONSUMER.CREATE.S.spark", "CONSUMER.RESET.S.spark")
OWNER = ("CONSUMER.INFO.Q.penstock", "CONSUMER.CREATE.Q.penstock")
QUEUE = ("STREAM.INFO.Q", "STREAM.MSG.GET.Q", "DIRECT.GET.Q", "CONSUMER.LIST.Q", "STREAM.PURGE.Q", *OWNER)

# The users of one server, and what each may publish to; a user's password is its name, twice.
USERS: dict[str, Sequence[str]] = {
    "consumer": CONSUMER,
    "direct": DIRECT,
    "both": (*CONSUMER, "DIRECT.GET.S"),
    "progress": (*DIRECT, *PROGRESS),
    "queue": QUEUE,
    "pattern": (*DIRECT, "STREAM.NAMES"),
    "nothing": (),
}
for owner in ("consumer", "direct", "progress", "queue", "pattern"):
    USERS |= {f"{owner}-{lacks}": [each for each in USERS[owner] if each != lacks] for lacks in USERS[owner]}


def password(user: str) -> str:
    return user + user


def grant(user: str, allowed: Sequence[str], inbox: str = "_INBOX.>") -> str:
    publish, subscribe = json.dumps([API + each for each in allowed]), json.dumps([inbox])
    permissions = f"{{ publish: {publish}, subscribe: {subscribe} }}" if allowed else '{ publish: { deny: ">" } }'
    return f'{{ user: "{user}", password: "{password(user)}", permissions: {permissions} }}'


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A server with users. S has 1,000 messages, every other one on S.a, of which the last is deleted; Q is a queue."""
    folder = tmp_path_factory.mktemp("guarded")
    users = "\n".join(
        [*(grant(user, allowed) for user, allowed in USERS.items()), grant("mine", DIRECT, "_MINE.bob.>")]
    )
    config = f"""
    jetstream {{ store_dir: "{folder / "data"}" }}
    accounts {{
      A {{ jetstream: enabled, users: [ {{ user: admin, password: "{password("admin")}" }}
      {{ nkey: {NKEY.public} }}
      {users} ] }}
      POOR {{ users: [ {{ user: poor, password: "{password("poor")}" }} ] }}
    }}"""
    with NatsServer(folder, config=config) as running:
        admin = Admin(running.url, user="admin", password=password("admin"))
        admin.create("S")
        admin.publish((f"S.{'ab'[i % 2]}", str(i).encode()) for i in range(1000))
        admin.delete_message("S", 999)
        admin.create("Q", retention="workqueue")
        admin.close()
        yield running


NKEY = key("user")


def login(user: str) -> dict[str, str]:
    return {"user": user, "password": password(user)}


def said(error: BaseException) -> str:
    """All that a log would show of an error."""
    return "".join(traceback.format_exception(error))


# --- ways to be let in ---


@pytest.mark.parametrize("form", ["option", "file"])
@pytest.mark.parametrize("kind", ["user and password", "nkey"])
def test_a_user_and_a_key_are_let_in(guarded: NatsServer, folder: Path, kind: str, form: str) -> None:
    options = {"nkeySeed": NKEY.seed} if kind == "nkey" else login("admin")
    if form == "file":
        options = in_files(folder, options)
    assert everything(guarded.url, "S", **options).num_rows == 999


def in_files(folder: Path, options: dict[str, str]) -> dict[str, str]:
    """The same options, each in a file with a line end after it."""
    for name, text in options.items():
        (folder / name).write_text(text + "\n")
    return {f"{name}File": str(folder / name) for name in options}


@pytest.mark.parametrize("form", ["option", "file"])
def test_a_token_is_let_in_and_a_wrong_one_is_not(folder: Path, form: str) -> None:
    config = f'jetstream {{ store_dir: "{folder / "data"}" }}\nauthorization {{ token: "open-sesame" }}'
    with NatsServer(folder, config=config) as running:
        admin = Admin(running.url, token="open-sesame")
        admin.create("S")
        admin.numbers("S", 5)
        admin.close()
        right, wrong = {"token": "open-sesame"}, {"token": "wrong-sesame"}
        if form == "file":
            right, wrong = in_files(folder, right), in_files(folder / "..", wrong)
        assert numbers(everything(running.url, "S", **right)) == list(range(5))
        with pytest.raises(ConnectError, match=r"refused the credentials \(a token\)") as caught:
            everything(running.url, "S", **wrong)
        assert "sesame" not in said(caught.value)


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NatsServer, str, str, Key]]:
    """A server that trusts an operator's JWTs: itself, the .creds of a user, that user's JWT and its account's key."""
    folder = tmp_path_factory.mktemp("operated")
    operator, system, account, user = key("operator"), key("account"), key("account"), key("user")
    account_jwt = jwt(operator, account, "account", limits=UNLIMITED | JETSTREAM)
    user_jwt = jwt(account, user, "user", subs=-1, data=-1, payload=-1)
    config = f"""
    jetstream {{ store_dir: "{folder / "data"}" }}
    operator: {jwt(operator, operator, "operator")}
    system_account: {system.public}
    resolver: MEMORY
    resolver_preload: {{
      {system.public}: {jwt(operator, system, "account", limits=UNLIMITED)}
      {account.public}: {account_jwt}
    }}"""
    text = creds(user_jwt, user.seed)
    with NatsServer(folder, config=config) as running:
        admin = Admin(running.url, credentials=text)
        admin.create("S")
        admin.numbers("S", 700)
        admin.close()
        yield running, text, user_jwt, account


@pytest.mark.parametrize("form", ["option", "file", "file with Windows line ends"])
def test_a_jwt_with_its_seed_is_let_in(operated: tuple[NatsServer, str, str, Key], folder: Path, form: str) -> None:
    running, text, *_ = operated
    options = {"credentials": text.replace("\n", "\r\n") if "Windows" in form else text}
    if form != "option":
        options = in_files(folder, options)
    assert numbers(everything(running.url, "S", **options)) == list(range(700))


def test_a_jwt_that_is_wrong_is_refused_and_not_shown(operated: tuple[NatsServer, str, str, Key]) -> None:
    running, _, user_jwt, account = operated
    stranger = key("user")
    expired = jwt(account, stranger, "user", subs=-1, data=-1, payload=-1)
    for text in (creds(user_jwt, stranger.seed), creds(expired[:-6] + "AAAAAA", stranger.seed)):
        with pytest.raises(ConnectError, match=r"refused the credentials \(a user JWT\)") as caught:
            everything(running.url, "S", credentials=text)
        assert stranger.seed not in said(caught.value)
        assert "eyJ" not in said(caught.value)


@pytest.mark.parametrize("lacks", ["seed", "jwt", "everything"])
def test_credentials_that_are_not_whole_are_refused_and_not_shown(
    operated: tuple[NatsServer, str, str, Key], lacks: str, tmp_path: Path
) -> None:
    running, text, user_jwt, _ = operated
    seed = next(line for line in text.splitlines() if line.startswith("SU"))
    broken = {"seed": text.replace(seed, ""), "jwt": text.replace(user_jwt, ""), "everything": "some words"}[lacks]
    file = tmp_path / "broken.creds"
    file.write_text(broken)
    for option, value in (("credentialsSecret", broken), ("credentialsFile", str(file))):
        with pytest.raises(OptionError, match=f"'{option}' has no user JWT and seed") as caught:
            everything(running.url, "S", **{option: value})
        assert seed not in said(caught.value)
        assert user_jwt not in said(caught.value)


# --- being refused ---


def test_a_wrong_password_names_the_user_and_not_the_password(guarded: NatsServer) -> None:
    wrong = "hunter" + "2"  # tracebacks show lines of source
    with pytest.raises(ConnectError, match=r"refused the credentials \(user 'admin'\)") as caught:
        everything(guarded.url, "S", user="admin", password=wrong)
    assert wrong not in said(caught.value)
    assert f"127.0.0.1:{guarded.port}" in str(caught.value)


def test_no_credentials_at_all_says_what_can_be_given(guarded: NatsServer) -> None:
    with pytest.raises(ConnectError, match="none given; set user and password, token, or credentialsFile"):
        everything(guarded.url, "S")


def test_a_wrong_or_broken_seed_is_refused_and_not_shown(guarded: NatsServer) -> None:
    stranger = key("user").seed
    with pytest.raises(ConnectError, match=r"refused the credentials \(an NKey\)") as caught:
        everything(guarded.url, "S", nkeySeed=stranger)
    assert stranger not in said(caught.value)
    for broken in (stranger[:-3], "SUSECRET", "not a seed", stranger[:20] + "0" + stranger[21:]):
        with pytest.raises(OptionError, match="the NKey seed in option 'nkeySecret' is not valid") as refused:
            everything(guarded.url, "S", nkeySeed=broken)
        assert broken not in said(refused.value)


@pytest.mark.parametrize("name", ["userFile", "passwordFile", "tokenFile", "nkeySeedFile", "credentialsFile"])
def test_a_file_that_is_not_there_is_named_with_its_option(guarded: NatsServer, folder: Path, name: str) -> None:
    with pytest.raises(OptionError, match=rf"(?s){name}.*no-such-file"):
        everything(guarded.url, "S", **{name: folder / "no-such-file"})


# --- what an account must be allowed to do ---


def use(url: str, user: str) -> None:
    """All that a user of this kind does: plan, look for a time, read up to a tail that is not there, commit."""
    kind = user.partition("-")[0]
    options = {
        "consumer": {"stream": "S", "readEngine": "consumer", "subjects": "S.a"},
        "direct": {"stream": "S", "readEngine": "direct", "subjects": "S.a"},
        "progress": {"stream": "S", "readEngine": "direct", "subjects": "S.a", "progressConsumer": "spark"},
        "queue": {"stream": "Q"},
        "pattern": {"streamPattern": "S", "subjects": "S.a", "readEngine": "direct"},
    }[kind]
    stream = options.get("stream", "S")
    with opened(url, **options, **login(user)) as source:
        query = Query(source)
        source.find(stream, 0)
        read = 0
        while (rows := query.batch(200)) is not None:
            read += rows.num_rows
            source.commit(query.offsets)
        assert read == (2 if kind == "queue" else 499)


@pytest.mark.parametrize("user", ["consumer", "direct", "progress", "queue", "pattern"])
def test_the_least_permissions_are_enough(guarded: NatsServer, user: str, caplog: pytest.LogCaptureFixture) -> None:
    as_new(guarded)
    with caplog.at_level(logging.WARNING, "penstock"):
        use(guarded.url, user)
    assert caplog.text == ""


def as_new(running: NatsServer) -> None:
    """Let the work queue hold three messages, the last of them deleted, and let no durable be there."""
    with contextlib.closing(Admin(running.url, **login("admin"))) as admin:
        admin.purge("Q")
        admin.delete_message("Q", admin.publish([("Q.n", b"")] * 3)[-1])
        for durable in ("S.spark", "Q.penstock"):
            with contextlib.suppress(ApiError):
                admin.calls.call(f"CONSUMER.DELETE.{durable}")


HARMLESS = ("CONSUMER.DELETE.S.*",)  # a consumer that is not deleted goes away by itself


@pytest.mark.parametrize("user", [user for user in USERS if "-" in user and not user.endswith(HARMLESS)])
def test_what_is_not_permitted_is_named(guarded: NatsServer, user: str, caplog: pytest.LogCaptureFixture) -> None:
    as_new(guarded)
    lacks = API + user.partition("-")[2].rstrip("*")
    with caplog.at_level(logging.WARNING, "penstock"):
        try:
            use(guarded.url, user)
            text = caplog.text
        except ConnectError as error:
            text = f"{error} {caplog.text}"
    assert f'Permissions Violation for Publish to "{lacks}' in text
    assert "Grant that" in text


def test_a_consumer_that_may_not_be_deleted_is_no_matter_of_luck(guarded: NatsServer) -> None:
    """The refusal arrives when another range is read: that one must not suffer for it."""
    with opened(
        guarded.url, stream="S", readEngine="consumer", requestTimeout="3s", **login("consumer-CONSUMER.DELETE.S.*")
    ) as source:
        for _ in range(4):
            assert sequences(table(source, Range("S", 1, 11))) == list(range(1, 11))


def test_auto_reads_with_direct_get_where_no_consumer_is_permitted(guarded: NatsServer) -> None:
    assert everything(guarded.url, "S", **login("direct")).num_rows == 999
    with opened(guarded.url, stream="S", minPartitions=3, subjects="S.a", **login("direct")) as source:
        query = Query(source)
        assert sum(rows.num_rows for rows in query.run()) == 499


def test_auto_reads_short_ranges_with_a_consumer_where_direct_get_is_not_permitted(guarded: NatsServer) -> None:
    with opened(guarded.url, stream="S", **login("consumer")) as source:
        assert table(source, whole(source, "S")).num_rows == 999
        assert sequences(table(source, Range("S", 1, 11))) == list(range(1, 11))


@pytest.mark.parametrize("user", ["nothing", "mine"])
def test_a_reply_that_may_not_be_received_is_named(guarded: NatsServer, user: str) -> None:
    with pytest.raises(ConnectError, match=r"Permissions Violation for (Subscription|Publish) to ") as caught:
        everything(guarded.url, "S", **login(user))
    assert ("_INBOX" in str(caught.value)) == (user == "mine")


def test_an_inbox_of_ones_own_is_used_for_all_replies(guarded: NatsServer) -> None:
    assert everything(guarded.url, "S", readEngine="direct", inboxPrefix="_MINE.bob", **login("mine")).num_rows == 999


# --- TLS ---


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ca")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that nobody here trusts."""
    return Authority(tmp_path_factory.mktemp("stranger") / "ca")


@contextlib.contextmanager
def encrypted(folder: Path, authority: Authority, more: str = "", **options: Any) -> Iterator[NatsServer]:
    """A server with TLS and the numbers 0 to 699 in stream S; `options` are what is needed to reach it."""
    certificate, private = authority.issue("server")
    config = f"""
    jetstream {{ store_dir: "{folder / "data"}" }}
    tls {{ cert_file: "{certificate}", key_file: "{private}", timeout: 5, {more} }}"""
    with NatsServer(folder, config=config) as running:
        admin = Admin(running.url, tlsCa=str(authority.file), **{k: str(v) for k, v in options.items()})
        admin.create("S")
        admin.numbers("S", 700)
        admin.close()
        yield running


def test_a_server_with_a_certificate_of_a_trusted_authority_is_read(
    folder: Path, authority: Authority, stranger: Authority
) -> None:
    with encrypted(folder, authority) as running:
        for engine in ("consumer", "direct"):
            rows = everything(running.url, "S", tlsCa=authority.file, readEngine=engine)
            assert numbers(rows) == list(range(700))
        assert numbers(everything(running.url.replace("nats:", "tls:"), "S", tlsCa=authority.file)) == list(range(700))
        for options in ({"tlsCa": stranger.file}, {}):
            with pytest.raises(ConnectError, match=r"TLS with 127\.0\.0\.1:\d+ failed: .*Check tlsCa") as caught:
                everything(running.url, "S", **options)
            assert "certificate verify failed" in str(caught.value)
        with pytest.raises(ConnectError, match="name in 'servers' is in the server's certificate"):
            everything(f"nats://localhost:{running.port}", "S", tlsCa=authority.file)
        with pytest.raises(OptionError, match="cannot use the files in tlsCa"):
            everything(running.url, "S", tlsCa=folder / "no-such-file")


def test_a_server_that_wants_a_certificate_of_the_client_gets_it(
    folder: Path, authority: Authority, stranger: Authority
) -> None:
    certificate, private = authority.issue("client")
    together = folder / "both.pem"
    together.write_text(certificate.read_text() + private.read_text())
    mine = {"tlsCert": certificate, "tlsKey": private}
    with encrypted(folder, authority, f'ca_file: "{authority.file}", verify: true', **mine) as running:
        for options in (mine, {"tlsCert": together}):
            assert numbers(everything(running.url, "S", tlsCa=authority.file, **options)) == list(range(700))
        with pytest.raises(ConnectError, match="tlsCert"):
            everything(running.url, "S", tlsCa=authority.file)
        foreign = dict(zip(("tlsCert", "tlsKey"), stranger.issue("client"), strict=True))
        with pytest.raises(ConnectError, match="tlsCert"):
            everything(running.url, "S", tlsCa=authority.file, **foreign)


def test_a_server_that_begins_with_tls_is_read(folder: Path, authority: Authority) -> None:
    options = {"tlsHandshakeFirst": True, "tlsCa": authority.file}
    with encrypted(folder, authority, "handshake_first: true", tlsHandshakeFirst=True) as running:
        assert numbers(everything(running.url, "S", **options)) == list(range(700))
        with pytest.raises(ConnectError, match=r"no NATS server answers \(127\.0\.0\.1:\d+: "):
            everything(running.url, "S", tlsCa=authority.file, connectTimeout="500ms")


def test_tls_is_refused_by_a_server_that_has_none(nats: NatsServer) -> None:
    for url, options in ((nats.url, {"tls": True}), (nats.url.replace("nats:", "tls:"), {})):
        with pytest.raises(OptionError, match=r"the options ask for TLS, but 127\.0\.0\.1:\d+ has none"):
            everything(url, "S", **options)


def test_whoever_says_whom_to_trust_sends_no_password_in_the_clear(nats: NatsServer, tmp_path: Path) -> None:
    """The files are not even looked at: that they are named is enough."""
    for name in ("tlsCa", "tlsCert"):
        with pytest.raises(OptionError, match=r"the options ask for TLS, but 127\.0\.0\.1:\d+ has none"):
            everything(nats.url, "S", user="u", password="p", **{name: str(tmp_path / "any.pem")})


# --- not being there, or being something else ---


def test_a_refused_connection_lists_every_address_tried() -> None:
    ports = [free_port(), free_port()]
    servers = ",".join(f"nats://127.0.0.1:{port}" for port in ports)
    with pytest.raises(ConnectError, match="Check the option 'servers' and that the server runs") as caught:
        everything(servers, "S")
    for port in ports:
        assert f"127.0.0.1:{port}: Connection refused" in str(caught.value)


def test_the_first_address_that_answers_is_used(admin: Admin, nats: NatsServer, stream: str) -> None:
    admin.create(stream)
    admin.numbers(stream, 5)
    servers = f"nats://127.0.0.1:{free_port()},{nats.url}"
    assert numbers(everything(servers, stream)) == list(range(5))


@contextlib.contextmanager
def answering(greeting: bytes) -> Iterator[int]:
    """A server that says `greeting` to whoever comes, and nothing more."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        came: list[socket.socket] = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    guest, _ = listener.accept()
                    came.append(guest)
                    guest.sendall(greeting)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)
            for guest in came:
                guest.close()


@pytest.mark.parametrize(
    ("greeting", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is no NATS server: it greets with b'HTTP/'"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "is no NATS server: it greets with b'SSH-2'"),
        (b"", "no answer in time"),
        (b"INFO {", "no answer in time"),
        (b"INFO this is no JSON\r\n", "is no NATS server"),
        (b"INFO []\r\n", "is no NATS server"),
    ],
)
def test_what_is_no_nats_server_is_told_apart(greeting: bytes, words: str) -> None:
    with answering(greeting) as port, pytest.raises(ConnectError) as caught:
        everything(f"nats://127.0.0.1:{port}", "S", connectTimeout="300ms")
    assert f"127.0.0.1:{port}: {words}" in str(caught.value)


def test_a_server_that_greets_and_then_says_nothing_is_given_up_in_time() -> None:
    began = time.monotonic()
    with answering(b'INFO {"version": "2.15.1"}\r\n') as port, pytest.raises(ConnectError, match="did not finish"):
        everything(f"nats://127.0.0.1:{port}", "S", connectTimeout="400ms")
    assert time.monotonic() - began < 3


def test_a_refusal_is_told_also_behind_the_late_answer_to_an_earlier_question() -> None:
    """An error ends the first wait before its PONG is there. The second must not take that PONG for its own."""
    refusal = b"-ERR 'Permissions Violation for Publish to \"x\"'\r\n"

    def serve(guest: socket.socket) -> None:
        guest.sendall(b'INFO {"version": "2.15.1"}\r\n')
        lines = guest.makefile("rb")
        answers = [[b"PONG\r\n"], [refusal], [b"PONG\r\n", refusal + b"PONG\r\n"]]
        for line in lines:
            for answer in answers.pop(0) if line == b"PING\r\n" and answers else []:
                guest.sendall(answer)
                time.sleep(0.05)  # the late one comes alone

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: serve(listener.accept()[0]), daemon=True)
        thread.start()
        servers = f"nats://127.0.0.1:{listener.getsockname()[1]}"
        connection = Connection(NatsOptions.parse("nats", {"servers": servers}))
        for _ in range(2):
            with pytest.raises(Denied, match='Publish to "x"'):
                connection.flush()
        connection.close()
        thread.join(5)


@pytest.mark.parametrize("name", ["", "a b", "X 0\r\n\r\nPUB orders.x 5\r\nhello\r\nPUB y", "a\tb", "a\x00b"])
def test_a_name_that_a_server_told_is_not_sent_if_it_is_more_than_a_subject(nats: NatsServer, name: str) -> None:
    connection = Connection(NatsOptions.parse("nats", {"servers": nats.url}))
    for send in (connection.request, connection.publish, connection.ask):
        with pytest.raises(ProtocolError, match="is no subject"):
            send(name if not name else f"$JS.API.STREAM.INFO.{name}")
    connection.close()


def test_a_server_without_jetstream_says_so(folder: Path) -> None:
    with (
        NatsServer(folder, config="max_payload: 1MB\n") as running,
        pytest.raises(ConnectError, match=r"JetStream does not answer on '\$JS\.API'.*Start nats-server with -js"),
    ):
        everything(running.url, "S")


def test_an_account_without_jetstream_says_so(guarded: NatsServer) -> None:
    with pytest.raises(ConnectError, match=r"(?i)jetstream.*not enabled.*give the account JetStream limits"):
        everything(guarded.url, "S", **login("poor"))


def test_a_domain_is_asked_by_its_name(folder: Path) -> None:
    with NatsServer(folder, config=f'jetstream {{ store_dir: "{folder / "data"}", domain: hub }}') as running:
        admin = Admin(running.url)
        admin.create("S")
        admin.numbers("S", 700)
        admin.close()
        for options in ({"domain": "hub"}, {"apiPrefix": "$JS.hub.API"}, {}):
            for engine in ("consumer", "direct"):
                assert numbers(everything(running.url, "S", readEngine=engine, **options)) == list(range(700))
        with pytest.raises(ConnectError, match=r"JetStream does not answer on '\$JS\.elsewhere\.API'.*'domain'"):
            everything(running.url, "S", domain="elsewhere")


@pytest.mark.parametrize("user", ["direct-DIRECT.GET.S", "consumer-CONSUMER.CREATE.S", "queue-STREAM.INFO.Q"])
def test_no_error_after_the_login_shows_the_password(guarded: NatsServer, user: str) -> None:
    with pytest.raises(PenstockError) as caught:
        use(guarded.url, user)
    assert password(user) not in said(caught.value)
    assert password(user) not in repr(caught.value)
