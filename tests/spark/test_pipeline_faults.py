"""`penstock run` in a process of its own: killed, stopped, with a pipeline that fails, with a server that is late."""

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from nats_servers import Admin
from penstock.pipelines.runner import State
from penstock.testing.nats_server import NatsServer
from penstock.testing.s2_lite import S2Lite
from s2_servers import S2Admin
from spark.jobs import wait
from spark.pipeline_runs import ONCE, Command, batches, bodies, done, written

ROWS, EACH = 400, 40


def ids(values: list[bytes]) -> list[int]:
    return sorted(json.loads(value)["id"] for value in values)


@pytest.fixture
def orders(admin: Admin, stream: str) -> Iterator[str]:
    """A stream of orders, and one for copies of them."""
    admin.create(stream)
    admin.create(f"{stream}OUT")
    admin.publish((f"{stream}.n", json.dumps({"id": i}).encode()) for i in range(ROWS))
    yield stream
    admin.delete(stream)
    admin.delete(f"{stream}OUT")


# The first batch of a query has no rows: it keeps where the query starts.
def count(admin: Admin, stream: str) -> int:
    return int(admin.calls.call(f"STREAM.INFO.{stream}")["state"]["messages"])


def source(nats: NatsServer, stream: str) -> str:
    return f"""
[jetstream]
servers = "{nats.url}"
request_timeout = "5s"

[source]
type = "jetstream"
identifier = "{stream}"
batch_size = {EACH}
input_schema = {{ type = "json", schema = "id BIGINT" }}
"""


def test_a_command_killed_between_two_sinks_leaves_every_row_once_in_each(
    spark: SparkSession, nats: NatsServer, admin: Admin, orders: str, folder: Path
) -> None:
    """S2 does not answer any more when the rows of a batch are in JetStream. What it was sent, it stores later."""
    bad = [b"bad %d" % i for i in range(2 * EACH)]
    admin.publish((f"{orders}.n", body) for body in bad)
    admin.create(f"{orders}DEAD")
    with S2Lite() as s2:
        s2_admin = S2Admin(s2)
        s2_admin.make("out")
        text = f"""
{source(nats, orders)}
[[sinks]]
type = "jetstream"
subject = "{orders}OUT.x"

[[sinks]]
type = "s2"
endpoint = "{s2.url}"
basin = "{s2.basin}"
identifier = "out"

[errors]
mode = "dead_letter"
sink = {{ type = "jetstream", subject = "{orders}DEAD.x" }}
"""
        file = written(folder, "fork", text + ONCE)
        location = folder / ".penstock" / "fork"
        command = Command(folder, file)
        assert s2.process is not None
        with command.running() as process:
            wait(lambda: batches(location)[1] >= 2, process)
            os.kill(s2.process.pid, signal.SIGSTOP)
            wait(lambda: count(admin, f"{orders}OUT") > batches(location)[1] * EACH, process)
            time.sleep(0.3)  # long enough to begin with the other sink
            command.kill(process)
        os.kill(s2.process.pid, signal.SIGCONT)
        planned, committed = batches(location)
        assert planned == committed + 1, "it was not in a batch"
        first = count(admin, f"{orders}OUT")
        assert committed * EACH < first < ROWS, "it was killed too early or too late to prove anything"
        done(spark, file)
        assert ids(bodies(nats, f"{orders}OUT")) == list(range(ROWS))
        assert ids([record.body for record in s2_admin.read("out") if record.body]) == list(range(ROWS))
        assert sorted(bodies(nats, f"{orders}DEAD")) == sorted(bad)


def test_sigterm_in_mid_batch_finishes_the_batch_in_hand(
    spark: SparkSession, nats: NatsServer, admin: Admin, orders: str, folder: Path
) -> None:
    """The sink does not know rows again: of a batch that was cut off, rows would be there twice after a restart."""
    (folder / "slow.py").write_text(
        "import time\n\n"
        "def rows(df):\n"
        "    return df.mapInArrow(slowly, df.schema)\n\n"
        "def slowly(batches):\n"
        "    for batch in batches:\n"
        "        yield batch.slice(0, 1)\n"
        "        time.sleep(1)\n"
        "        yield batch.slice(1)\n"
    )
    text = f"""
{source(nats, orders)}
[[transforms]]
python = "slow:rows"

[[sinks]]
type = "jetstream"
subject = "{orders}OUT.x"
delivery = "at_least_once"
"""
    file = written(folder, "slow", text + ONCE)
    location = folder / ".penstock" / "slow"
    command = Command(folder, file)

    def mid_batch() -> int:
        planned, committed = batches(location)
        return planned if planned > max(committed, 1) else 0

    with command.running() as process:
        batch = wait(mid_batch, process)
        time.sleep(0.3)
        assert batches(location)[1] < batch
        process.terminate()
        assert process.wait(60) == 0, command.said()
    assert batches(location)[1] >= batch, "the batch in hand was not finished"
    assert "slow: stopped, " in command.said()
    stopped = count(admin, f"{orders}OUT")
    assert EACH <= stopped < ROWS
    assert ids(bodies(nats, f"{orders}OUT")) == list(range(stopped))
    done(spark, file)
    assert ids(bodies(nats, f"{orders}OUT")) == list(range(ROWS)), "a row is missing or there twice"


def test_sigterm_twice_in_mid_batch_stops_at_once_with_a_sentence(
    spark: SparkSession, nats: NatsServer, admin: Admin, orders: str, folder: Path
) -> None:
    """With several sinks, Python writes the batch: it is cut off there, in Java, and in the tasks."""
    (folder / "stuck.py").write_text(
        "import os, time\n\n"
        "def rows(df):\n"
        "    return df.mapInArrow(slowly, df.schema)\n\n"
        "def slowly(batches):\n"
        "    for batch in batches:\n"
        "        time.sleep(float(os.environ.get('STUCK', '0')))\n"
        "        yield batch\n"
    )
    sinks = f'[[sinks]]\ntype = "jetstream"\nsubject = "{orders}OUT.x"\n[[sinks]]\ntype = "noop"\n'
    text = f'{source(nats, orders)}\n[[transforms]]\npython = "stuck:rows"\n\n{sinks}'
    file = written(folder, "stuck", text + ONCE)
    location = folder / ".penstock" / "stuck"
    command = Command(folder, file)
    with command.running(STUCK="300") as process:
        wait(lambda: batches(location)[0] >= 1, process)
        time.sleep(1)  # long enough for its task to begin
        process.terminate()
        wait(lambda: "once more stops at once" in command.said(), process)
        process.terminate()
        assert process.wait(60) == 130, command.said()
    after = command.said().partition("once more stops at once\n")[2]
    # A Python process of Spark's may tell that nobody listens to it any more, which means nothing.
    after = re.sub(r"Traceback .*?BrokenPipeError: [^\n]*\n", "", after, flags=re.DOTALL)
    assert [line.partition(" ")[2] for line in after.splitlines()] == ["stuck: stopped, 0 records", "stopped"], (
        command.said()
    )
    assert batches(location) == (1, 0), "it was not in a batch"
    done(spark, file)
    assert ids(bodies(nats, f"{orders}OUT")) == list(range(ROWS))


def test_of_three_pipelines_one_fails_for_good_one_waits_for_its_server_and_one_knows_of_neither(
    nats: NatsServer, admin: Admin, orders: str, folder: Path
) -> None:
    """In one command: most of the time is Spark's start."""
    later = NatsServer(folder / "nats")  # not started
    files = folder / "files"
    files.mkdir()
    admin.create(f"{orders}BAD")
    admin.publish([(f"{orders}BAD.n", b"{bad")])
    sink = '[[sinks]]\ntype = "jetstream"\nsubject = "{}"\n'
    restart = '[restart]\nmax_restarts = 1\nbackoff = "100ms"\n'
    often = ONCE.replace("max_restarts = 0", 'max_restarts = 50\nbackoff = "200ms"\nmax_backoff = "200ms"')
    written(files, "bad", source(nats, f"{orders}BAD") + '[[sinks]]\ntype = "noop"\n' + restart)
    written(files, "good", source(nats, orders) + sink.format(f"{orders}OUT.x") + ONCE)
    written(files, "late", source(later, "IN").replace('"5s"', '"1s"') + sink.format("OUT.x") + often)
    command = Command(folder, files)
    with command.running() as process:
        wait(lambda: "late: starts again in 0.2 s" in command.said(), process)
        wait(lambda: "bad: stays down" in command.said(), process)
        with later:
            late = Admin(later.url)
            late.create("OUT")
            late.create("IN")
            late.publish(("IN.n", json.dumps({"id": i}).encode()) for i in range(5))
            late.close()
            assert process.wait(120) == 1, command.said()
            assert ids(bodies(later, "OUT")) == list(range(5))
    said = command.said()
    assert f"late: no NATS server answers (127.0.0.1:{later.port}: Connection refused)" in said
    assert "late: done, 5 records" in said
    error = f"bad: a record at 1 of '{orders}BAD' is not JSON of the schema (id BIGINT): {{bad"
    assert said.count(error) == 2, said
    assert "bad: starts again in 0.1 s (0 more after that)" in said
    assert "bad: stays down, after 2 failures" in said
    assert "\tat org.apache.spark" not in said, "a sentence tells it all"
    assert f"good: {State.DONE}, {ROWS} records" in said
    assert ids(bodies(nats, f"{orders}OUT")) == list(range(ROWS))
