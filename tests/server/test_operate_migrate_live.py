"""A migration while programs of others run: publishers, subscribers, queue groups and requests, by nats-py."""

import asyncio
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from typer.testing import CliRunner

from nats_servers import Admin, server_binary
from penstock.cli import app
from penstock.cli.jetstream.migrate_showing import write
from penstock.clients.nats.options import NatsOptions
from penstock.errors import OptionError, PenstockError
from penstock.operate.migrate.proving import Prover
from penstock.operate.migrate.survey import listen
from penstock.operate.migrate.verdicts import lines
from penstock.testing.nats_cluster import NatsCluster
from penstock.testing.nats_server import NatsServer, free_port

PAUSE = 0.004


class Programs:
    """Publishers and subscribers that know nothing of the migration, on one server that stays. Messages have numbers.

    `plain` are numbers that were published without acks, `acked` those whose ack came; the publisher of those sends a
    message again until it does. Subscribers count what they get.
    """

    def __init__(self, url: str, prefix: str):
        self.url, self.prefix = url, prefix
        self.plain, self.tried, self.acked = 0, 0, 0
        self.got: Counter[bytes] = Counter()  # by a plain subscriber
        self.shared: Counter[bytes] = Counter()  # by all members of a queue group
        self.members: list[int] = [0, 0, 0]
        self.answers: Counter[bytes] = Counter()
        self.with_acks = threading.Event()
        self.failures: list[str] = []
        self._stop, self._ready = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> "Programs":
        self._thread.start()
        assert self._ready.wait(20)
        assert not self.failures
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop publishing; subscribers have what was published when this returns."""
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    async def _run(self) -> None:
        try:
            names = ("shop", "acker", "audit", "member", "member", "member", "calc", "asker")
            clients = [await nats.connect(self.url, name=name, allow_reconnect=False) for name in names]
            shop, acker, audit, *members, calc, asker = clients
            await audit.subscribe(f"{self.prefix}.orders.>", cb=self._audit)
            for number, member in enumerate(members):
                await member.subscribe(f"{self.prefix}.orders.>", "workers", cb=self._member(number))
            await calc.subscribe(f"{self.prefix}.rpc.*", cb=_sum)
            for client in clients:
                await client.flush()
            self._ready.set()
            await asyncio.gather(self._publish(shop), self._publish_acked(acker), self._ask(asker))
            for client in clients:
                await client.flush()
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline and len(self.got) < self.plain + self.tried:
                await asyncio.sleep(0.02)
            for client in clients:
                await client.close()
        except Exception as error:
            self.failures.append(f"{type(error).__name__}: {error}")
            self._ready.set()

    async def _audit(self, message: Any) -> None:
        self.got[message.data] += 1

    def _member(self, number: int) -> Callable[[Any], Any]:
        async def take(message: Any) -> None:
            self.shared[message.data] += 1
            self.members[number] += 1

        return take

    async def _publish(self, client: Client) -> None:
        while not self._stop.is_set():
            await client.publish(f"{self.prefix}.orders.{self.plain % 3}", b"plain %d" % self.plain)
            self.plain += 1
            await asyncio.sleep(PAUSE)

    async def _publish_acked(self, client: Client) -> None:
        """One after the other, from the moment on that there is a stream."""
        while not self._stop.is_set():
            if not self.with_acks.is_set():
                await asyncio.sleep(PAUSE)
                continue
            self.tried += 1
            while not self._stop.is_set() or self.tried > self.acked:
                with suppress(nats.errors.Error, TimeoutError):
                    reply = await client.request(
                        f"{self.prefix}.orders.acked", b"acked %d" % self.acked, timeout=0.3,
                        headers={"Nats-Msg-Id": f"{self.prefix}-{self.acked}"},
                    )  # fmt: skip
                    if "seq" in json.loads(reply.data):
                        self.acked += 1
                        break
                await asyncio.sleep(0.02)

    async def _ask(self, client: Client) -> None:
        for number in itertools.count():
            if self._stop.is_set():
                return
            reply = await client.request(f"{self.prefix}.rpc.add", b"%d" % number, timeout=5)
            self.answers[b"right" if reply.data == b"sum of %d" % number else reply.data] += 1
            await asyncio.sleep(PAUSE)


async def _sum(message: Any) -> None:
    await message.respond(b"sum of " + message.data)


def assert_nothing_lost_by_core(programs: Programs) -> None:
    """Every message reached the plain subscriber and one member of the group, and every request its answer."""
    assert not programs.failures
    plain = {b"plain %d" % number: 1 for number in range(programs.plain)}
    for counted in (programs.got, programs.shared):
        assert {body: count for body, count in counted.items() if body.startswith(b"plain")} == plain
        # Sent again until the ack came: at least once each.
        acked = {body for body in counted if body.startswith(b"acked")}
        assert acked >= {b"acked %d" % number for number in range(programs.acked)}
    assert all(programs.members), "one member of the group got all"
    assert programs.answers.keys() == {b"right"}


def bodies(admin: Admin, stream: str) -> list[bytes]:
    from penstock.clients.jetstream import engines

    info = admin.calls.stream(stream)
    rows = engines.consumer(admin.calls, stream, info.first, info.last + 1, ())
    return [body for part in rows for body in part.value.to_pylist()]


def wait_until(ready: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def run(*words: str, code: int = 0) -> Any:
    """The command with --json: what it says."""
    ran = CliRunner().invoke(app, ["jetstream", "migrate", *words, "--json"])
    assert ran.exit_code == code, ran.output
    return json.loads(ran.stdout)


@contextmanager
def monitored(folder: Path, **more: Any) -> Iterator[tuple[NatsServer, str]]:
    port = free_port()
    config = f'jetstream {{ store_dir: "{folder / "data"}" }}\nhttp: "127.0.0.1:{port}"\n'
    with NatsServer(folder, config=config, **more) as server:
        yield server, f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NatsServer, str]]:
    with monitored(tmp_path_factory.mktemp("migrate")) as found:
        yield found


def test_programs_that_run_throughout_a_migration_lose_nothing(place: tuple[NatsServer, str], tmp_path: Path) -> None:
    server, page = place
    out = tmp_path / "streams.toml"
    with Programs(server.url, "app") as programs:
        wait_until(lambda: programs.plain > 50)
        words = ["app.>", f"servers={server.url}", "--listen", "700ms", "--monitoring", page]
        dry = run(*words, "--out", str(out))
        admin = Admin(server.url)
        assert admin.calls.names() == [], "a dry run made something"
        assert dry["streams"]["APP"]["subjects"] == ["app.orders.>"]
        assert [each["subject"] for each in dry["leftOut"]] == ["app.rpc.*"]
        # Three connections of the same name are a queue group here; the others have names of their own.
        assert list(dry["consumers"]["APP"]) == ["audit", "workers"]
        assert out.read_text() == dry["declaration"]

        done = run("app.>", f"servers={server.url}", "--listen", "100ms", "--layout", str(out), "--apply")
        assert done["applied"]
        programs.with_acks.set()
        proof = run(*words, "--prove", "1s")["proof"]
        assert (proof["holds"], proof["whole"]) == (True, True)
        assert proof["messages"] > 50
    assert_nothing_lost_by_core(programs)
    stored = bodies(admin, "APP")
    plain = [int(body.split()[1]) for body in stored if body.startswith(b"plain")]
    assert plain == list(range(plain[0], programs.plain)), "since the stream is there, it has all, in order"
    assert [body for body in stored if body.startswith(b"acked")] == [b"acked %d" % n for n in range(programs.acked)]
    assert programs.acked > 20
    # A reader's own consumer is deleted without waiting for the answer.
    wait_until(lambda: {config.get("name") for config in admin.calls.consumers("APP")} == {"audit", "workers"})
    # Back again: the programs never knew.
    with Programs(server.url, "app") as programs:
        admin.delete("APP")
        wait_until(lambda: programs.plain > 20)
    assert_nothing_lost_by_core(programs)
    admin.close()


def test_a_stream_answers_requests_with_its_ack_and_with_no_ack_it_does_not(place: tuple[NatsServer, str]) -> None:
    """Facts about the server, on which the advice rests."""
    server, _ = place
    admin = Admin(server.url)

    async def ask() -> tuple[bytes, str]:
        client = await nats.connect(server.url)
        await client.subscribe("facts.add", cb=_sum)
        first = (await client.request("facts.add", b"1")).data
        nobody = "answered"
        try:
            await client.request("facts.nobody", b"1", timeout=0.3)
        except nats.errors.Error as error:
            nobody = type(error).__name__
        await client.close()
        return first, nobody

    assert asyncio.run(ask()) == (b"sum of 1", "NoRespondersError")
    admin.create("FACTS", "facts.>")
    first, nobody = asyncio.run(ask())
    assert b'"stream":"FACTS"' in first
    assert nobody == "answered"
    admin.delete("FACTS")
    admin.create("FACTS", "facts.>", no_ack=True)
    assert asyncio.run(ask()) == (b"sum of 1", "TimeoutError")
    admin.delete("FACTS")
    admin.close()


def options(url: str) -> NatsOptions:
    return NatsOptions.parse("jetstream", {"servers": url})


class Watch:
    """How far a proof is, for threads that act in the middle of it."""

    def __init__(self) -> None:
        self.got, self.left = 0, float("inf")

    def __call__(self, got: int, left: float) -> None:
        self.got, self.left = got, left

    def when(self, left: float, act: Callable[[], object]) -> threading.Thread:
        """A thread that acts when only so many seconds are left."""
        thread = threading.Thread(target=lambda: (wait_until(lambda: self.left < left), act()), daemon=True)
        thread.start()
        return thread


class Ticker:
    """Publishes numbers, or always the same, by our own client until it ends, again after an interruption."""

    def __init__(self, url: str, subject: str, body: bytes | None = None):
        self.url, self.subject, self.body, self.sent = url, subject, body, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Ticker":
        self._thread.start()
        wait_until(lambda: self.sent > 0)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            with suppress(PenstockError):
                admin = Admin(self.url)
                while not self._stop.wait(PAUSE):
                    admin.connection.publish(self.subject, self.body or b"%d" % self.sent)
                    self.sent += 1


def test_a_message_that_a_stream_lacks_is_not_proven(place: tuple[NatsServer, str]) -> None:
    server, _ = place
    admin = Admin(server.url)
    admin.create("LACKS", "lacks.>", max_msg_size=10)
    with Ticker(server.url, "lacks.small"):
        watch = Watch()
        big = watch.when(0.6, lambda: admin.connection.publish("lacks.big", b"x" * 100))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("penstock.operate.migrate.proving.GRACE", 0.5)
            found = Prover(options(server.url), ["LACKS"], watch).prove(1.0)
        big.join()
    (verdict,) = found.verdicts
    assert (verdict.lacking, verdict.not_stored, verdict.unheard) == (1, ("lacks.big",), 0)
    assert verdict.stored > 50
    assert not found.holds
    assert "NOT PROVEN" in next(lines(found))
    admin.close()


def test_messages_that_are_published_again_with_the_same_id_are_no_loss(place: tuple[NatsServer, str]) -> None:
    server, _ = place
    admin = Admin(server.url)
    admin.create("MADE", "made.>")
    admin.publish([("made.before", b"1", {"Nats-Msg-Id": "old"})])

    def publish() -> None:
        for _ in range(3):
            admin.publish([("made.new", b"2", {"Nats-Msg-Id": "new"})])
        admin.publish([("made.before", b"1", {"Nats-Msg-Id": "old"})])

    watch = Watch()
    thread = watch.when(1.0, publish)
    found = Prover(options(server.url), ["MADE"], watch).prove(1.0)
    thread.join()
    (verdict,) = found.verdicts
    assert found.holds
    assert (verdict.stored, verdict.got, verdict.repeated) == (1, 4, 3)
    admin.close()


def test_equal_messages_that_are_stored_later_do_not_hide_that_some_were_lost(place: tuple[NatsServer, str]) -> None:
    server, _ = place
    admin = Admin(server.url)
    admin.create("TICKS", "ticks.>")

    def lose() -> None:
        config = admin.calls.call("STREAM.INFO.TICKS")["config"]
        admin.calls.call("STREAM.UPDATE.TICKS", config | {"subjects": ["nothing.ticks"]})
        start = ticker.sent
        wait_until(lambda: ticker.sent > start + 200)
        admin.calls.call("STREAM.UPDATE.TICKS", config)

    with Ticker(server.url, "ticks.a", b"tick") as ticker, pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.operate.migrate.proving.GRACE", 1.5)
        watch = Watch()
        thread = watch.when(1.7, lose)
        found = Prover(options(server.url), ["TICKS"], watch).prove(2.0)
        thread.join()
    (verdict,) = found.verdicts
    assert verdict.lacking + verdict.doubtful > 150
    assert not found.whole
    assert not found.holds
    admin.delete("TICKS")
    admin.close()


def test_messages_that_the_limits_of_a_stream_removed_are_not_called_lost(place: tuple[NatsServer, str]) -> None:
    server, _ = place
    admin = Admin(server.url)
    admin.create("FEW", "few.>", max_msgs=10)
    with Ticker(server.url, "few.a"):
        said = run("few.>", f"servers={server.url}", "--listen", "100ms", "--prove", "500ms", code=4)
    (part,) = said["proof"]["parts"]
    assert part["verdicts"][0]["lacking"] > 10
    assert part["verdicts"][0]["removed"] >= part["verdicts"][0]["lacking"]
    admin.delete("FEW")
    admin.close()


def test_a_subject_that_is_asked_for_and_that_no_stream_takes_is_named(place: tuple[NatsServer, str]) -> None:
    server, _ = place
    admin = Admin(server.url)
    admin.create("PART", "part.orders.>")
    with Ticker(server.url, "part.orders.x"), Ticker(server.url, "part.other.y"):
        words = ["part.>", f"servers={server.url}", "--listen", "200ms", "--prove", "300ms"]
        said = run(*words, code=4)["proof"]
        all_taken = run("part.orders.>", *words[1:])["proof"]
    assert (said["holds"], said["whole"], said["withoutStream"]) == (True, False, ["part.other.y"])
    assert "no stream takes part.other.y" in said["remarks"][0]
    assert (all_taken["whole"], all_taken["withoutStream"]) == (True, [])
    admin.delete("PART")
    admin.close()


def test_a_proof_that_gets_too_many_messages_ends_there_and_calls_nothing_lost(place: tuple[NatsServer, str]) -> None:
    server, _ = place
    admin = Admin(server.url)
    admin.create("MANY", "many.>")
    with Ticker(server.url, "many.a"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.operate.migrate.proving.MOST", 500)
        patch.setattr("penstock.operate.migrate.proving.GRACE", 0.5)
        found = Prover(options(server.url), ["MANY"]).prove(30)
    (part,) = found.parts
    (verdict,) = part.verdicts
    assert (verdict.unheard, verdict.lacking) == (0, 0)
    assert 0 < verdict.stored < verdict.got
    assert 500 <= verdict.got < 600
    assert not found.whole
    assert part.is_full
    assert part.seconds < 10
    admin.delete("MANY")
    admin.close()


def test_streams_that_would_be_changed_by_reading_are_left_out(place: tuple[NatsServer, str]) -> None:
    server, _ = place
    admin = Admin(server.url)
    admin.create("QUEUE", "queue.>", retention="workqueue")
    with pytest.raises(OptionError, match=r"nothing can be proven.*retention 'workqueue'"):
        Prover(options(server.url), ["QUEUE"]).prove(0.1)
    admin.publish([("queue.a", b"1")])
    assert admin.calls.stream("QUEUE").messages == 1
    admin.close()


LAYOUT = '[streams.{name}]\nsubjects = ["{subject}"]\nretention = "{retention}"\n'


def test_requests_on_a_subject_that_only_the_layout_file_has_are_found_before_a_stream_answers_them(
    place: tuple[NatsServer, str], tmp_path: Path
) -> None:
    server, _ = place
    file = tmp_path / "layout.toml"
    file.write_text(LAYOUT.format(name="WIDE", subject="wide.>", retention="limits"))
    words = ["other.>", f"servers={server.url}", "--listen", "300ms", "--layout", str(file), "--apply"]
    with Programs(server.url, "wide") as programs:
        wait_until(lambda: programs.answers.total() > 5)
        ran = CliRunner().invoke(app, ["jetstream", "migrate", *words])
        assert ran.exit_code == 1
        assert "stream 'WIDE' would take 'wide.rpc.add'" in ran.output
        answers = programs.answers.total()
        wait_until(lambda: programs.answers.total() > answers)
    assert_nothing_lost_by_core(programs)
    admin = Admin(server.url)
    assert "WIDE" not in admin.calls.names()
    admin.close()


def test_a_message_that_two_subscriptions_of_ours_get_is_counted_once(place: tuple[NatsServer, str]) -> None:
    server, _ = place
    admin = Admin(server.url)
    sent = threading.Event()

    def publish(line: str) -> None:  # it is told when it listens
        if not sent.is_set():
            sent.set()
            for subject in ("twice.a.b", "twice.a.c", "twice.x.b"):
                admin.connection.publish(subject, b"1")
            admin.connection.flush()

    heard = listen(options(server.url), ["twice.a.*", "twice.*.b"], 0.6, publish)
    assert {name: each.messages for name, each in heard.subjects.items()} == {
        "twice.a.b": 1, "twice.a.c": 1, "twice.x.b": 1,
    }  # fmt: skip
    admin.close()


@pytest.mark.parametrize(("stop", "code", "says"), [(None, 1, "nothing can be proven"), (KeyboardInterrupt, 130, "")])
def test_a_proof_that_fails_hides_neither_the_streams_that_were_made_nor_the_way_back(
    place: tuple[NatsServer, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stop: type[BaseException] | None,
    code: int,
    says: str,
) -> None:
    server, _ = place
    admin = Admin(server.url)
    if stop is not None:
        monkeypatch.setattr(Prover, "prove", _raising(stop))
    file = tmp_path / "layout.toml"
    file.write_text(LAYOUT.format(name="FAILS", subject="fails.>", retention="workqueue"))
    words = ["fails.>", f"servers={server.url}", "--listen", "50ms", "--layout", str(file), "--apply", "--prove", "1s"]
    ran = CliRunner().invoke(app, ["jetstream", "migrate", *words, "--json"])
    assert ran.exit_code == code, ran.output
    said = json.loads(ran.stdout)
    assert "FAILS" in admin.calls.names()
    assert [step["name"] for step in said["plan"]["steps"]] == ["FAILS"]
    assert said["howToGoBack"][1:] == ["  nats stream rm FAILS --force"]
    assert says in said["proof"]["error"]
    assert said["proof"]["error"]
    admin.delete("FAILS")
    ran = CliRunner().invoke(app, ["jetstream", "migrate", *words])
    assert ran.exit_code == code, ran.output
    assert "nats stream rm FAILS --force" in ran.stdout
    assert "penstock: " in ran.stderr
    # It is there already: it was not made by this run, so nobody is told to delete it.
    ran = CliRunner().invoke(app, ["jetstream", "migrate", *words])
    assert ran.exit_code == code, ran.output
    assert "what to change in programs" in ran.stdout
    assert "nats stream rm" not in ran.stdout
    assert "go back" not in ran.stdout
    admin.delete("FAILS")
    admin.close()


def _raising(kind: type[BaseException]) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise kind

    return fail


def test_a_proof_of_a_topic_that_fails_does_not_hide_that_streams_were_made(
    place: tuple[NatsServer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _ = place
    monkeypatch.setattr("penstock.operate.migrate.kafka_reading.prove", _raising(OptionError))
    words = ["--from-kafka", "topic", "brokers=127.0.0.1:1", f"servers={server.url}", "--apply", "--prove", "1s"]
    said = run(*words, code=1)
    assert said["applied"]
    assert said["proof"] == {"error": "stopped"}
    admin = Admin(server.url)
    assert "topic" in admin.calls.names()
    admin.delete("topic")
    admin.close()


def test_a_file_that_is_there_is_not_overwritten(place: tuple[NatsServer, str], tmp_path: Path) -> None:
    server, _ = place
    out = tmp_path / "precious.toml"
    out.write_text("mine")
    words = ["out.>", f"servers={server.url}", "--listen", "50ms", "--out", str(out), "--apply"]
    ran = CliRunner().invoke(app, ["jetstream", "migrate", *words])
    assert ran.exit_code == 1
    assert "is there already" in ran.output
    assert out.read_text() == "mine"
    with pytest.raises(OptionError, match="cannot be written: File exists"):
        write({out: "other"}, mode="x")
    assert out.read_text() == "mine"
    admin = Admin(server.url)
    assert "OUT" not in admin.calls.names()
    admin.close()


def test_an_interruption_of_the_proof_itself_is_told_and_both_parts_hold(tmp_path: Path) -> None:
    with NatsServer(tmp_path) as server:
        admin = Admin(server.url)
        admin.create("CUT", "cut.>")
        with Ticker(server.url, "cut.a") as ticker:
            watch = Watch()
            thread = watch.when(1.6, lambda: _restart(server))
            found = Prover(options(server.url), ["CUT"], watch).prove(2.8)
            thread.join()
        assert ticker.sent > 100
    assert len(found.parts) == 2
    assert found.parts[0].interruption
    assert found.holds
    assert not found.whole
    assert all(part.verdicts[0].stored > 10 for part in found.parts)
    assert "interrupted" in " ".join(lines(found))


def _restart(server: NatsServer) -> None:
    server.kill()
    server.start()


def test_an_account_that_may_not_use_jetstream_or_subscribe_is_told_in_a_sentence(tmp_path: Path) -> None:
    config = f"""
    jetstream {{ store_dir: "{tmp_path / "data"}" }}
    authorization {{ users: [
      {{ user: deaf, password: x, permissions: {{ subscribe: {{ allow: ["_INBOX.>"] }} }} }}
      {{ user: weak, password: x, permissions: {{ publish: {{ deny: ["$JS.API.STREAM.CREATE.>"] }} }} }}
    ] }}
    """
    with NatsServer(tmp_path, config=config) as server:
        for user, says in (("deaf", "Permissions Violation for Subscription"), ("weak", "Permissions Violation")):
            words = ["orders.>", f"servers={server.url}", f"user={user}", "password=x", "--listen", "100ms", "--apply"]
            ran = CliRunner().invoke(app, ["jetstream", "migrate", *words])
            assert ran.exit_code == 1
            assert says in ran.output
            assert "Traceback" not in ran.output
    ran = CliRunner().invoke(app, ["jetstream", "migrate", "orders.>", f"servers={server.url}", "--listen", "100ms"])
    assert ran.exit_code == 1
    assert "no NATS server answers" in ran.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "say which subjects"),
        (["orders..x"], "empty token"),
        (["orders.>", "--listen", "soon"], "no duration"),
        (["orders.>", "--storage", "tape"], "neither file nor memory"),
        (["--from-kafka", "orders"], "say where Kafka is"),
        (["--from-kafka", "brokers=x:1"], "say which topics"),
    ],
)
def test_wrong_words_are_answered_with_a_sentence(words: list[str], says: str) -> None:
    ran = CliRunner().invoke(app, ["jetstream", "migrate", *words])
    assert ran.exit_code == 1
    assert says in " ".join(ran.output.split())


def test_an_old_server_is_migrated_and_proven_too(tmp_path: Path) -> None:
    with monitored(tmp_path, executable=server_binary("2.10.26")) as (server, page), Ticker(server.url, "old.a"):
        words = ["old.>", f"servers={server.url}", "--listen", "300ms", "--monitoring", page]
        said = run(*words, "--layout", "per-prefix", "--apply", "--prove", "500ms")
        nothing = ["*.never", f"servers={server.url}", "--listen", "50ms"]
        ran = CliRunner().invoke(app, ["jetstream", "migrate", *nothing])
    assert (ran.exit_code, "there is nothing to store" in ran.output) == (1, True), ran.output
    assert list(said["streams"]) == ["OLD_A"]
    assert said["proof"]["holds"]
    assert said["proof"]["messages"] > 10


def test_with_nothing_published_a_proof_ends_with_a_code_of_its_own(place: tuple[NatsServer, str]) -> None:
    server, _ = place
    said = run("silent.>", f"servers={server.url}", "--listen", "100ms", "--apply", "--prove", "200ms", code=4)
    assert said["proof"]["messages"] == 0
    ran = CliRunner().invoke(
        app, ["jetstream", "migrate", "silent.>", f"servers={server.url}", "--listen", "100ms", "--prove", "200ms"]
    )
    assert ran.exit_code == 4
    assert "nothing was published, so nothing is proven" in " ".join(ran.output.split())


def test_in_a_cluster_a_killed_leader_costs_subscribers_nothing_and_no_acked_message() -> None:
    with NatsCluster() as cluster:
        stays = cluster.servers[0]
        _wait_for_jetstream(stays.url)
        with Programs(stays.url, "app") as programs:
            words = ["app.>", f"servers={stays.url}"]
            said = run(*words, "--listen", "500ms", "--apply")
            assert said["streams"]["APP"]["num_replicas"] == 3
            admin = Admin(stays.url)
            leader = _led_elsewhere(admin, "APP", f"s{stays.port}")
            programs.with_acks.set()
            wait_until(lambda: programs.acked > 20)
            watch = Watch()
            killer = watch.when(2.0, cluster.named(leader).kill)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("penstock.operate.migrate.proving.GRACE", 1.0)
                found = Prover(options(stays.url), ["APP"], watch).prove(3)
            killer.join()
            before = programs.acked
            wait_until(lambda: programs.acked > before + 20)
            answers = programs.answers.total()
            wait_until(lambda: programs.answers.total() > answers)
        # Core NATS and what was acknowledged: nothing is lost, on either side.
        assert_nothing_lost_by_core(programs)
        stored = bodies(admin, "APP")
        acked = [body for body in stored if body.startswith(b"acked")]
        assert acked == [b"acked %d" % number for number in range(programs.acked)]
        # What was published without acks while there was no leader is not stored, and the proof says just that.
        (verdict,) = found.verdicts
        assert verdict.unheard == 0
        assert not [subject for subject in verdict.not_stored if subject.endswith(".acked")]
        plain = [int(body.split()[1]) for body in stored if body.startswith(b"plain")]
        missing = set(range(plain[0], programs.plain)) - set(plain)
        assert bool(verdict.lacking) == bool(missing)
        assert verdict.lacking <= len(missing)
        assert any(f"changed from '{leader}'" in remark for remark in found.remarks)
        admin.close()


def _wait_for_jetstream(url: str) -> None:
    """Until the servers have a leader, and it knows all three of them."""

    def ready() -> bool:
        with suppress(PenstockError):
            admin = Admin(url, requestTimeout="1s")
            try:
                admin.create("READY", "ready.>", num_replicas=3, storage="memory")
                admin.delete("READY")
                return True
            finally:
                admin.close()
        return False

    wait_until(ready, 40)


def _led_elsewhere(admin: Admin, stream: str, name: str) -> str:
    """The leader of a stream, which steps down until it is another server than `name`."""
    found = ""

    def moved() -> bool:
        nonlocal found
        with suppress(PenstockError):
            found = admin.calls.stream(stream).leader
            if found == name:
                admin.calls.call(f"STREAM.LEADER.STEPDOWN.{stream}")
        return found not in ("", name)

    wait_until(moved)
    return found
