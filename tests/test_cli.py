"""The command line where it meets what cannot be done, and where it is told to end."""

import os
import platform
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from typer.testing import CliRunner

import iggy_servers
import kinesis_servers
import penstock
import s2_servers
from nats_servers import Admin
from penstock.cli import app
from penstock.connectors.s2 import S2Streams
from penstock.kit.contract import Origin
from penstock.testing.nats_server import NatsServer
from penstock.testing.s2_lite import S2Lite
from spark.jobs import command, descendants, kill, wait


def peek(*words: str) -> tuple[int, str]:
    """The exit code, and what it said as one line."""
    ran = CliRunner().invoke(app, ["peek", *words])
    assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
    return ran.exit_code, " ".join(ran.output.split())


def test_the_version_tells_all_that_a_report_of_a_problem_needs() -> None:
    ran = CliRunner().invoke(app, ["--version"])
    assert ran.exit_code == 0
    told = dict(line.split(maxsplit=1) for line in ran.output.splitlines())
    assert list(told) == ["Penstock", "Spark", "Java", "Python"]
    assert told["Penstock"] == penstock.__version__
    assert told["Spark"] == pyspark.__version__
    assert int(told["Java"]) >= 17
    assert told["Python"].startswith(platform.python_version())


@pytest.mark.parametrize("java", ["none", "a script that fails", "no program"])
def test_the_version_tells_which_java_to_install(java: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "bin" / "java"
    file.parent.mkdir()
    if java != "none":
        file.write_text("#!/bin/sh\nexit 1\n")
        file.chmod(0o755 if java == "a script that fails" else 0o644)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    ran = CliRunner().invoke(app, ["--version"])
    assert ran.exit_code == 0, ran.exception
    told = ran.output.splitlines()[2]
    assert told.startswith("Java      not usable: ")
    assert "Spark needs a JDK 17 or 21." in told


@pytest.mark.parametrize("words", [["describe"], ["describe", "s2"], ["peek", "jetstream", "stream=X"], ["demo"]])
def test_without_spark_a_command_says_in_a_sentence_what_to_install(words: list[str]) -> None:
    code = f"import sys; sys.modules['pyspark'] = None\nfrom penstock.cli import app; app({words})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert " ".join(ran.stderr.split()).startswith(
        "penstock: there is no Spark in this Python. Install it: pip install 'penstock[local]', or"
    )
    assert "Traceback" not in ran.stderr


def test_peek_at_core_nats_says_that_nothing_is_kept(nats: NatsServer) -> None:
    code, said = peek("nats", f"servers={nats.url}", "subjects=x.>")
    assert code == 1
    assert "cannot do so here: Core NATS keeps no message. Set capture=true to keep them in a stream." in said


def test_peek_at_captured_messages_shows_them(nats: NatsServer, admin: Admin, stream: str) -> None:
    admin.create(stream)
    admin.numbers(stream, 20)
    code, said = peek("nats", f"servers={nats.url}", f"subjects={stream}.>", "capture=true", "-n", "3")
    assert code == 0, said
    assert "the newest 3 of nats" in said
    assert all(f"{stream} │ {sequence} │" in said for sequence in (18, 19, 20))


def test_peek_shows_bytes_that_are_no_text_as_numbers(nats: NatsServer, admin: Admin, stream: str) -> None:
    """Avro, for one, is valid UTF-8 more often than not, and a terminal would act on its control characters."""
    admin.create(stream)
    admin.publish([(f"{stream}.n", b"\x02\x1b[2J\x00"), (f"{stream}.n", b"tab\tline\n"), (f"{stream}.n", b"\xff")])
    code, said = peek("jetstream", f"servers={nats.url}", f"stream={stream}")
    assert code == 0, said
    assert [text in said for text in ("0x021b5b324a00", "tab line", "0xff")] == [True, True, True], said


@pytest.mark.parametrize("kind", ["json", "avro", "raw"])
def test_new_asks_and_writes_a_file_that_passes_check(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.toml"
    answers = ["jetstream", "", "", "console", kind, "", ""]
    ran = CliRunner().invoke(app, ["new", str(file)], input="\n".join(answers))
    assert ran.exit_code == 0, ran.output
    assert (f'type = "{kind}"' in file.read_text()) == (kind != "raw")
    assert CliRunner().invoke(app, ["check", str(file)]).exit_code == 0


def test_peek_takes_no_message_from_a_shared_consumer(nats: NatsServer, admin: Admin, stream: str) -> None:
    admin.create(stream)
    admin.numbers(stream, 3)
    config = {"stream_name": stream, "config": {"durable_name": "shared", "ack_policy": "explicit"}}
    admin.calls.call(f"CONSUMER.CREATE.{stream}.shared", config)
    code, said = peek("jetstream", f"servers={nats.url}", f"stream={stream}", "ack=explicit", "consumer=shared")
    assert code == 1
    assert "leave 'ack' at none to look at a stream" in said
    assert admin.calls.call(f"CONSUMER.INFO.{stream}.shared")["num_pending"] == 3


def test_peek_at_a_work_queue_needs_direct_gets_and_says_how_to_allow_them(
    nats: NatsServer, admin: Admin, stream: str
) -> None:
    admin.create(stream, retention="workqueue", allow_direct=False)
    admin.numbers(stream, 3)
    code, said = peek("jetstream", f"servers={nats.url}", f"stream={stream}")
    assert code == 1
    assert (
        f"needs DIRECT.GET, which the stream does not allow. Allow it: nats stream edit {stream} --allow-direct" in said
    )
    admin.create(f"{stream}2", retention="workqueue", allow_direct=True)
    admin.numbers(f"{stream}2", 3)
    code, said = peek("jetstream", f"servers={nats.url}", f"stream={stream}2")
    assert code == 0, said
    assert admin.calls.stream(f"{stream}2").messages == 3


def test_peek_shows_changes_to_a_table(
    s2: "S2Lite | s2_servers.Cloud", s2_admin: s2_servers.S2Admin, stream: str
) -> None:
    name = f"peek-{stream.lower()}"
    s2_admin.make(name)
    rows = pa.record_batch({"id": ["a", "b"], "amount": [1, 2]})
    given = {**s2.options(), "mode": "upsert", "keyColumns": "id"}
    sink = S2Streams.open_sink(
        S2Streams.parse_sink({**given, "stream": name, "delivery": "at_least_once"}), rows.schema
    )
    sink.write(iter([rows]), Origin("q", 0, 0))
    sink.close()
    words = [f"{key}={value}" for key, value in {**given, "streams": name}.items()]
    code, said = peek("s2", *words, "columns=id STRING, amount BIGINT, _sequence BIGINT")
    assert code == 0, said
    assert "│ a │ 1 │ 0 │" in said
    code, said = peek("s2", *words, "columns=id STRING, amount BIGINT", "snapshot=true")
    assert code == 1
    assert "leave out 'snapshot'" in said


def test_peek_at_iggy_shows_the_newest_of_all_partitions(
    iggy: iggy_servers.Server, iggy_admin: iggy_servers.IggyAdmin, stream: str
) -> None:
    iggy_admin.make(f"peek-{stream}", "orders", 2)
    for partition in range(2):
        iggy_admin.send(f"peek-{stream}", "orders", [b"p%d-%d" % (partition, i) for i in range(5)], partition)
    words = [f"{key}={value}" for key, value in iggy_servers.options(iggy).items()]
    code, said = peek("iggy", *words, f"stream=peek-{stream}", "topic=orders", "typedHeaders=true", "-n", "10")
    assert code == 0, said
    assert all(f"p{partition}-{i}" in said for partition in range(2) for i in range(5))


def test_peek_at_kinesis_shows_the_newest_however_old_they_are(kinesis: "kinesis_servers.Kinesis", stream: str) -> None:
    kinesis.make(f"peek-{stream}", 2)
    kinesis.put(f"peek-{stream}", [b"old-%d" % i for i in range(5)], "shardId-000000000000")
    kinesis.age(f"peek-{stream}", timedelta(hours=3))
    kinesis.put(f"peek-{stream}", [b"new"], "shardId-000000000001")
    words = [f"{key}={value}" for key, value in kinesis.options(f"peek-{stream}").items()]
    code, said = peek("kinesis", *words, "-n", "3")
    assert code == 0, said
    assert [name in said for name in ("old-2", "old-3", "old-4", "new")] == [False, True, True, True]


@pytest.mark.parametrize(
    ("number", "started"),
    [
        (signal.SIGTERM, ("nats-server", "SparkSubmit", "penstock.spark.warm", "pyspark.daemon")),
        (signal.SIGINT, ("nats-server",)),
        (signal.SIGHUP, ("nats-server",)),
    ],
    ids=["SIGTERM", "SIGINT", "SIGHUP"],
)
def test_the_demo_ends_everything_that_it_started(
    number: signal.Signals, started: tuple[str, ...], tmp_path: Path
) -> None:
    """In the middle of its first query, with a server, a driver, a JVM and Python workers, and already before that."""
    ran = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", "demo", "--records", "200000", "--master", "local[2]"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    began: list[int] = []
    try:
        wait(lambda: all(any(name in command(pid) for pid in descendants(ran.pid)) for name in started), ran)
        began = descendants(ran.pid)
        ran.send_signal(number)
        assert ran.wait(30) == (130 if number == signal.SIGINT else 128 + number)
        wait(lambda: not any(command(pid) for pid in began), seconds=30)
    finally:
        for pid in [*began, ran.pid]:
            kill(pid)
    assert not list(tmp_path.glob("penstock-demo-*"))
