"""`penstock tail`, `put` and `streams`: at real servers and doubles, in a Python that has no Spark where it matters."""

import base64
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

import iggy_servers
import kinesis_servers
import s2_servers
from nats_servers import Admin, server
from penstock.cli import app
from penstock.cli.following import Following
from penstock.cli.put import lines
from penstock.connectors import FORMATS
from penstock.connectors.iggy import Iggy
from penstock.connectors.kinesis import Kinesis
from penstock.testing.nats_server import NatsServer
from penstock.testing.s2_lite import S2Lite

# A process in which an import of Spark fails.
PENSTOCK = [sys.executable, "-c", "import sys; sys.modules['pyspark'] = None; from penstock.cli import app; app()"]


def penstock(*words: str, stdin: str | bytes | None = None) -> tuple[int, str]:
    """The exit code of a command in this process, and all that it said."""
    ran = CliRunner().invoke(app, list(words), input=stdin)
    assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
    return ran.exit_code, ran.output


def words(options: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in options.items()]


class Running:
    """A command in a process of its own, and what it has printed up to now."""

    def __init__(self, *given: str):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen([*PENSTOCK, *given], **pipes)  # type: ignore[call-overload]
        self.out: list[str] = []
        self.errors: list[str] = []
        self.threads = [
            threading.Thread(target=self._read, args=pair, daemon=True)
            for pair in ((self.process.stdout, self.out), (self.process.stderr, self.errors))
        ]
        for thread in self.threads:
            thread.start()

    def _read(self, file: Any, to: list[str]) -> None:
        for line in file:
            to.append(line.decode().rstrip("\n"))

    def until(self, what: Callable[[], bool]) -> None:
        wait(lambda: what() or self.process.poll() is not None)
        assert what(), (self.out[-10:], self.errors)

    @property
    def values(self) -> list[str]:
        return [line.split("\t")[-1] for line in self.out]

    def said(self, text: str) -> bool:
        return any(text in line for line in self.errors)

    def stop(self) -> int:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(30)
        for thread in self.threads:
            thread.join(30)
        assert not self.said("Traceback"), self.errors
        return code


@contextmanager
def running(*given: str) -> Iterator[Running]:
    command = Running(*given)
    try:
        yield command
    finally:
        command.process.kill()
        command.process.wait()


def wait(what: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def test_tail_follows_a_stream_that_is_made_later_until_ctrl_c(nats: NatsServer, admin: Admin, stream: str) -> None:
    admin.create(f"{stream}_1")
    admin.numbers(f"{stream}_1", 5)
    with running("tail", "jetstream", f"servers={nats.url}", f"streamPattern={stream}_.*", "-n", "2", "-f") as tail:
        tail.until(lambda: tail.values == ["3", "4"])
        admin.create(f"{stream}_2")
        admin.numbers(f"{stream}_2", 3, start=100)
        tail.until(lambda: tail.values == ["3", "4", "100", "101", "102"])
        moment, name, subject, sequence, _ = tail.out[-1].split("\t")
        assert (name, subject, sequence) == (f"{stream}_2", f"{stream}_2.n", "3")
        assert moment.endswith("Z")
        assert admin.calls.consumers(f"{stream}_1") == []
        assert tail.stop() == 130
        assert tail.errors == []


def test_tail_waits_for_a_server_that_is_restarted(tmp_path: Path) -> None:
    with server(tmp_path) as (nats, admin):
        admin.create("S")
        admin.numbers("S", 3)
        with running("tail", "jetstream", f"servers={nats.url}", "stream=S", "-f", "--json") as tail:
            tail.until(lambda: len(tail.out) == 3)
            nats.stop()
            tail.until(lambda: tail.said("is tried again, up to 60s"))
            nats.start()
            again = Admin(nats.url)
            again.numbers("S", 2, start=10)
            again.close()
            tail.until(lambda: [json.loads(line)["value"] for line in tail.out] == ["0", "1", "2", "10", "11"])
            assert tail.said("the server answers again")
            assert tail.stop() == 130


def test_tail_tells_of_streams_that_are_purged_and_deleted(nats: NatsServer, admin: Admin, stream: str) -> None:
    admin.create(stream)
    admin.numbers(stream, 3)
    with running("tail", "jetstream", f"servers={nats.url}", f"stream={stream}", "-n", "1", "-f") as tail:
        tail.until(lambda: tail.values == ["2"])
        admin.purge(stream)
        tail.until(lambda: tail.said(f"'{stream}' has no records any more, as after a purge. It is followed from 4 on"))
        admin.numbers(stream, 1, start=50)
        tail.until(lambda: tail.values == ["2", "50"])
        admin.delete(stream)
        tail.until(lambda: tail.said(f"'{stream}' is gone. It is followed again if it is made again"))
        admin.create(stream)
        admin.numbers(stream, 2, start=70)
        tail.until(lambda: tail.values == ["2", "50", "70", "71"])
        assert tail.stop() == 130


def test_tail_ends_quietly_where_nobody_reads_on(nats: NatsServer, admin: Admin, stream: str) -> None:
    admin.create(stream)
    admin.publish((f"{stream}.n", b"x" * 1000) for _ in range(2000))
    command = f'"$@" tail jetstream servers={nats.url} stream={stream} -n 2000 | head -n 2; echo "${{PIPESTATUS[0]}}"'
    ran = subprocess.run(["bash", "-c", command, "sh", *PENSTOCK], capture_output=True, text=True, check=False)
    assert ran.stdout.splitlines()[2:] == ["0"]
    assert ran.stderr == ""


def test_tail_listens_to_core_nats(nats: NatsServer, admin: Admin, stream: str) -> None:
    with running("tail", "nats", f"servers={nats.url}", f"subjects={stream}.>", "-f") as tail:
        tail.until(lambda: tail.said(f"listening to {stream}.>"))
        code, said = penstock("put", "nats", f"servers={nats.url}", f"subject={stream}.a", "one", "two")
        assert (code, said) == (0, "penstock: 2 records were written\n")
        tail.until(lambda: tail.values == ["one", "two"])
        assert tail.out[0].split("\t")[1] == f"{stream}.a"
        assert tail.stop() == 130
    code, said = penstock("tail", "nats", f"servers={nats.url}", "subjects=a")
    assert code == 1
    assert "Core NATS keeps no message. Set capture=true to keep them in a stream, or add -f" in said
    code, said = penstock("tail", "nats", f"servers={nats.url}", "subjects=a", "queue=q", "-f")
    assert code == 1
    assert "take messages from the other members of the queue group 'q'" in said


def test_tail_shows_bytes_that_are_no_text_as_numbers_and_in_base64(
    nats: NatsServer, admin: Admin, stream: str
) -> None:
    admin.create(stream)
    values = [b"\x1b[2J", b"\xff\x00", b"two\nlines\tand \xc3\xa4", b""]
    admin.publish([(f"{stream}.n", value, {"k": "v"}) for value in values])
    given = ["tail", "jetstream", f"servers={nats.url}", f"stream={stream}"]
    code, said = penstock(*given)
    assert code == 0, said
    assert [line.split("\t")[4] for line in said.splitlines()] == ["0x1b5b324a", "0xff00", "two\\nlines\\tand ä", ""]
    records = [json.loads(line) for line in penstock(*given, "--json")[1].splitlines()]
    assert [record["value"] for record in records] == [
        "\x1b[2J", {"base64": base64.b64encode(b"\xff\x00").decode()}, "two\nlines\tand ä", "",
    ]  # fmt: skip
    assert records[0].keys() == {"value", "headers", "timestamp", "stream", "sequence", "subject"}
    assert records[0]["headers"] == [{"key": "k", "value": "v"}]


def test_tail_takes_nothing_from_a_work_queue_and_refuses_where_it_would(
    nats: NatsServer, admin: Admin, stream: str
) -> None:
    admin.create(stream, retention="workqueue")
    admin.numbers(stream, 3)
    code, said = penstock("tail", "jetstream", f"servers={nats.url}", f"stream={stream}")
    assert (code, len(said.splitlines())) == (0, 3)
    assert admin.calls.stream(stream).messages == 3
    admin.create(f"{stream}2", retention="workqueue", allow_direct=False)
    admin.numbers(f"{stream}2", 1)
    code, said = penstock("tail", "jetstream", f"servers={nats.url}", f"stream={stream}2")
    assert code == 1
    assert f"Allow it: nats stream edit {stream}2 --allow-direct" in said
    given = f"stream={stream}", "ack=explicit", "consumer=c"
    code, said = penstock("tail", "jetstream", f"servers={nats.url}", *given)
    assert code == 1
    assert "leave 'ack' at none to look at a stream" in said


def test_tail_says_in_a_sentence_what_is_wrong(nats: NatsServer, admin: Admin, stream: str) -> None:
    admin.create(stream)
    at = f"servers={nats.url}"
    for given, sentence in (
        (["strem=a"], "unknown option 'strem' for jetstream. Did you mean 'stream'?"),
        ([f"stream={stream}X"], f"stream '{stream}X' does not exist. Did you mean '{stream}'"),
        ([f"stream={stream}", "startingOffsets=earliest"], "'startingOffsets' does not change that. Leave it out."),
        (["password"], "'password' is no option: write name=value"),
    ):
        code, said = penstock("tail", "jetstream", at, *given, "-f")
        assert code == 1
        assert sentence in " ".join(said.split())
    assert "hunter2" not in penstock("tail", "jetstream", at, "pasword=hunter2", "stream=S")[1]


def test_put_writes_each_line_of_standard_input(nats: NatsServer, admin: Admin, stream: str) -> None:
    admin.create(stream)
    given = ["put", "jetstream", f"servers={nats.url}", f"subject={stream}.n"]
    code, said = penstock(*given, stdin="".join(f"line {i}\n" for i in range(10_000)))
    assert (code, said) == (0, "penstock: 10,000 records were written\n")
    assert admin.calls.stream(stream).messages == 10_000
    assert [admin.calls.at(stream, at).body for at in (1, 10_000)] == [b"line 0", b"line 9999"]  # type: ignore[union-attr]
    assert penstock(*given, "--whole", stdin=b"a\nb\xff")[0] == 0
    assert admin.calls.at(stream, 10_001).body == b"a\nb\xff"  # type: ignore[union-attr]


def test_put_writes_a_line_before_the_next_one_comes_and_tells_at_ctrl_c_how_many(
    nats: NatsServer, admin: Admin, stream: str
) -> None:
    admin.create(stream)
    with running("put", "jetstream", f"servers={nats.url}", f"subject={stream}.n", "--header", "a=b") as put:
        assert put.process.stdin is not None
        put.process.stdin.write(b"one\ntwo\nwithout an end")
        put.process.stdin.flush()
        wait(lambda: admin.calls.stream(stream).messages == 2)
        assert b"a: b" in admin.calls.at(stream, 1).headers  # type: ignore[union-attr]
        assert put.stop() == 130
        assert put.errors == ["penstock: stopped; 2 records were written"]
    assert admin.calls.stream(stream).messages == 2


def test_put_says_in_a_sentence_what_is_wrong(nats: NatsServer, admin: Admin, stream: str) -> None:
    admin.create(stream)
    for given, sentence in (
        (["subject=nowhere.x", "a"], "nowhere.x"),
        (["subjct=a", "a"], "unknown option 'subjct' for jetstream. Did you mean 'subject'?"),
        (["stream=S", "a"], "option 'stream' is for reading. A row is written to a subject"),
        ([f"subject={stream}.n", "--key", "k", "a"], "jetstream cannot write the column 'key': it writes value, "),
        ([f"subject={stream}.n", "--header", "k", "a"], "--header 'k' has no value: write --header name=value."),
        ([f"subject={stream}.n", "--whole", "a"], "--whole takes one record from standard input, and values"),
    ):
        code, said = penstock("put", "jetstream", f"servers={nats.url}", *given)
        assert code == 1, given
        assert sentence in " ".join(said.split())
        assert "drop(" not in said
    assert admin.calls.stream(stream).messages == 0
    given = ["put", "jetstream", f"servers={nats.url}", f"subject={stream}.{{region}}", "--column", "region=eu"]
    assert penstock(*given, "--", "a=b")[0] == 0
    stored = admin.calls.at(stream, 1)
    assert stored is not None
    assert (stored.subject, stored.body) == (f"{stream}.eu", b"a=b")


def test_lines_are_those_of_the_input_wherever_it_is_cut() -> None:
    text = b"one\n\ntwo\r\nthree"
    for size in range(1, len(text) + 1):
        chunks = [text[at : at + size] for at in range(0, len(text), size)]
        assert [line for some in lines(chunks) for line in some] == [b"one", b"", b"two\r", b"three"]
    assert list(lines([b"a\nb", None, b"c\n", None])) == [[b"a"], [b"bc"]]


def test_streams_of_jetstream_are_listed_with_their_sizes(tmp_path: Path) -> None:
    with server(tmp_path) as (nats, admin):
        for number in range(300):  # more than an answer has
            admin.create(f"S{number:03}", storage="memory")
        admin.numbers("S299", 3)
        code, said = penstock("streams", "jetstream", f"servers={nats.url}", "--json")
        assert code == 0, said
        found = [json.loads(line) for line in said.splitlines()]
        assert [each["stream"] for each in found] == [f"S{number:03}" for number in range(300)]
        assert [found[299][name] for name in ("subjects", "messages", "first", "last")] == [["S299.>"], 3, 1, 3]
        assert found[299]["bytes"] > 0
        assert found[299]["lastTime"] > "2026"
        assert found[0]["lastTime"] is None
        assert "S299.>" in penstock("streams", "jetstream", f"servers={nats.url}")[1]
        code, said = penstock("streams", "jetstream", f"servers={nats.url}", "stream=S1")
        assert code == 1
        assert "option 'stream' says how jetstream is read or written, and this lists all streams" in said
    code, said = penstock("streams", "nats")
    assert code == 1
    assert "Core NATS has no streams: it keeps nothing." in said


def test_s2_is_written_listed_and_followed(
    s2: "S2Lite | s2_servers.Cloud", s2_admin: s2_servers.S2Admin, stream: str
) -> None:
    name = f"terminal/{stream.lower()}"
    s2_admin.make(name)
    at = words(s2.options())
    assert penstock("put", "s2", *at, f"stream={name}", "--header", "a=b", stdin="one\ntwo\n")[0] == 0
    code, said = penstock("tail", "s2", *at, f"stream={name}")
    assert [line.split("\t")[1:] for line in said.splitlines()] == [[name, "0", "one"], [name, "1", "two"]], said
    code, said = penstock("streams", "s2", *at, "--json")
    assert code == 0, said
    assert {"stream": name, "next": 2} in [
        {key: json.loads(line)[key] for key in ("stream", "next")} for line in said.splitlines()
    ]
    code, said = penstock("put", "s2", *at, f"stream={name}x", "a")
    assert code == 1
    assert f"'{name}x'" in said


def test_iggy_is_written_listed_and_followed_into_new_partitions(
    iggy: iggy_servers.Server, iggy_admin: iggy_servers.IggyAdmin, stream: str
) -> None:
    iggy_admin.make(f"t-{stream}", "orders", 2)
    given = iggy_servers.options(iggy)
    at = [*words(given), f"stream=t-{stream}", "topic=orders"]
    assert penstock("put", "iggy", *at, "--key", "k", "one")[0] == 0
    assert penstock("put", "iggy", *at, "--column", "partition=1", "two")[0] == 0
    code, said = penstock("tail", "iggy", *at)
    assert sorted(line.split("\t")[-1] for line in said.splitlines()) == ["one", "two"], said
    code, said = penstock("streams", "iggy", *words(given), "--json")
    assert code == 0, said
    listed = [json.loads(line) for line in said.splitlines()]
    sizes = [
        (each["topic"], each["partitions"], each["messages"]) for each in listed if each["stream"] == f"t-{stream}"
    ]
    assert sizes == [("orders", 2, 2)]
    options = Iggy.parse({**given, "stream": f"t-{stream}", "topic": "orders", "failOnDataLoss": "false"})
    source = Iggy.open_source(options)
    told: list[str] = []
    following = Following(source, options, source.bounds(), told.append)
    assert followed(following) == []
    iggy_admin.grow(f"t-{stream}", "orders", 1)
    iggy_admin.send(f"t-{stream}", "orders", [b"three"], 2)
    assert followed(following) == [b"three"]
    iggy_admin.purge(f"t-{stream}", "orders")
    assert followed(following) == []
    assert f"'t-{stream}/orders/2' counts anew, as after a purge: 0 comes next, and it was 1." in told[-1]
    iggy_admin.send(f"t-{stream}", "orders", [b"four"], 2)
    assert followed(following) == [b"four"]


def test_kinesis_is_written_listed_and_followed_into_new_shards(
    kinesis: "kinesis_servers.Kinesis", stream: str
) -> None:
    name = f"t-{stream}"
    kinesis.make(name, 1)
    given = kinesis.options(name)
    assert penstock("put", "kinesis", *words(given), "--column", "partitionKey=k", "one", "two")[0] == 0
    assert [(key, value) for _, key, value in kinesis.written(name)] == [("k", b"one"), ("k", b"two")]
    code, said = penstock("tail", "kinesis", *words(given), "-n", "1")
    assert said.rstrip().split("\t")[-1] == "two"
    code, said = penstock("streams", "kinesis", *words({k: v for k, v in given.items() if k != "stream"}), "--json")
    assert code == 0, said
    assert [json.loads(line)["shards"] for line in said.splitlines() if f'"{name}"' in line] == [1]
    assert penstock("streams", "kinesis", *words(given))[0] == 1
    options = Kinesis.parse({**given, "pollInterval": "10ms", "discoveryInterval": "10ms"})
    source = Kinesis.open_source(options)
    following = Following(source, options, source.bounds(), print)
    kinesis.put(name, [b"three"])
    wait(lambda: followed(following) == [b"three"])
    kinesis.split(name, kinesis.shards(name)[0])
    kinesis.put(name, [b"four"])
    wait(lambda: followed(following) == [b"four"])
    source.close()


def followed(following: Following) -> list[bytes]:
    return [value for batch in following.step() for value in batch.column("value").to_pylist()]


def test_no_format_needs_spark_to_be_looked_at() -> None:
    code = "; ".join([
        "import sys", "sys.modules['pyspark'] = None", "from penstock.cli.formats import plain",
        "from penstock.connectors import FORMATS", "print(*(plain(name).name() for name in FORMATS))",
    ])  # fmt: skip
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout.split() == list(FORMATS), ran.stderr


def test_the_shell_completes_formats_and_options() -> None:
    def completed(*given: str) -> list[str]:
        typed = " ".join(["penstock", *given])
        env = {"_PENSTOCK_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(given))}
        ran = CliRunner().invoke(app, [], env=env, prog_name="penstock")
        return ran.output.split()

    assert completed("tail", "je") == ["jetstream"]
    assert completed("tail", "jetstream", "ser") == ["servers="]
    assert completed("put", "kinesis", "partitionK") == ["partitionKey="]
    assert "stream=" not in completed("streams", "kinesis", "s")
    assert completed("streams", "s2", "bas") == ["basin=", "basinEndpoint="]
    assert "--install-completion" in penstock("--help")[1]
