"""Looks at real servers: what they tell of streams and consumers, also where they are away, large or not allowed."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nats_servers import Admin
from penstock.cli import app
from penstock.clients.jetstream.api import consumer, follower
from penstock.clients.nats.options import NatsOptions
from penstock.operate.figures import Look, as_json, rated
from penstock.operate.watching import Watching
from penstock.testing.nats_server import NatsServer, free_port

READER = ["$JS.API.INFO", "$JS.API.STREAM.LIST", "$JS.API.STREAM.INFO.*", "$JS.API.CONSUMER.LIST.S"]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NatsServer, Admin]]:
    """A server with S, which has 1,000 messages and a consumer, and with a user who may not read messages."""
    folder = tmp_path_factory.mktemp("top")
    config = f"""
    jetstream {{ store_dir: "{folder / "data"}" }}
    no_auth_user: admin
    accounts {{ A {{ jetstream: enabled, users: [ {{ user: admin, password: admin }}
      {{ user: looker, password: looker,
         permissions: {{ publish: {json.dumps(READER)}, subscribe: ["_INBOX.>"] }} }} ] }} }}
    """
    with NatsServer(folder, config=config) as server:
        admin = Admin(server.url)
        admin.create("S")
        admin.numbers("S", 1000)
        durable(admin, "S", "billing", filter_subject="S.n")
        yield server, admin
        admin.close()


def durable(admin: Admin, stream: str, name: str, **config: Any) -> None:
    config = {"durable_name": name, "ack_policy": "explicit", **config}
    admin.calls.call(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})


def watching(url: str, *names: str, **more: Any) -> Watching:
    return Watching(NatsOptions.parse("jetstream", {"servers": url, **more}), names)


def looked(watched: Watching) -> Look:
    seen = watched.look()
    assert not seen.error, seen.error
    assert seen.look is not None
    return seen.look


def test_two_looks_show_what_came_in_and_what_was_given(running: tuple[NatsServer, Admin]) -> None:
    server, admin = running
    watched = watching(server.url, "S")
    looked(watched)
    admin.numbers("S", 500)
    sid, inbox = admin.connection.subscribe()
    admin.connection.publish("$JS.API.CONSUMER.MSG.NEXT.S.billing", b'{"batch": 20, "no_wait": true}', f"{inbox}.1")
    admin.connection.receive(sid, linger=True)
    admin.connection.unsubscribe(sid)
    now = looked(watched)
    watched.close()
    (stream,), (given,) = now.streams, now.consumers
    assert stream.messages == 1500
    assert stream.rate is not None
    assert stream.rate > 0
    assert (given.pending, given.ack_pending, given.delivered) == (1480, 20, 20)
    assert given.rate is not None
    assert stream.out_rate == given.rate > 0
    assert given.lag_seconds is not None
    assert 0 < given.lag_seconds < 300


def test_a_stream_that_was_made_again_has_no_rate(running: tuple[NatsServer, Admin]) -> None:
    server, admin = running
    admin.create("AGAIN")
    admin.numbers("AGAIN", 50)
    watched = watching(server.url, "AGAIN")
    looked(watched)
    admin.delete("AGAIN")
    admin.create("AGAIN")
    admin.numbers("AGAIN", 900)
    assert looked(watched).streams[0].rate is None
    admin.delete("AGAIN")
    gone = looked(watched)
    watched.close()
    assert gone.streams == ()
    assert "stream 'AGAIN' does not exist" in gone.absent[0]


def test_the_consumer_of_a_query_shows_how_fast_the_query_reads(running: tuple[NatsServer, Admin]) -> None:
    server, admin = running
    admin.create("READ")
    admin.numbers("READ", 50)
    admin.calls.call("CONSUMER.CREATE.READ.spark", json.loads(consumer("READ", follower("spark", 1, ()))))
    watched = watching(server.url, "READ")
    looked(watched)
    admin.calls.call("CONSUMER.RESET.READ.spark", {"seq": 31})
    (each,) = looked(watched).consumers
    watched.close()
    admin.delete("READ")
    assert (each.pending, each.is_follower) == (20, True)
    assert each.rate is not None
    assert each.rate > 0


def test_who_may_not_read_messages_sees_all_but_ages(running: tuple[NatsServer, Admin]) -> None:
    server, admin = running
    admin.create("T")
    durable(admin, "T", "hidden")
    watched = watching(server.url, user="looker", password="looker")
    for _ in range(2):
        now = looked(watched)
        assert {"S", "T"} <= {each.name for each in now.streams}
        assert [(each.stream, each.lag_seconds) for each in now.consumers] == [("S", None)]
        assert "consumers of T cannot be listed" in " ".join(now.problems)
    watched.close()
    admin.delete("T")


def test_more_streams_than_a_page_has_are_all_seen(running: tuple[NatsServer, Admin]) -> None:
    server, admin = running
    names = [f"MANY{k:03}" for k in range(300)]
    bodies = [json.dumps({"name": name, "subjects": [f"{name}.x"], "storage": "memory"}).encode() for name in names]
    for low in range(0, 300, 50):
        part = range(low, low + 50)
        admin.connection.requests([(f"$JS.API.STREAM.CREATE.{names[k]}", bodies[k]) for k in part])
    watched = watching(server.url)
    now = looked(watched)
    watched.close()
    assert set(names) <= {each.name for each in now.streams}
    shown = as_json(rated(None, now), 50)
    assert len(shown["streams"]) == 50
    assert shown["other_streams"]["count"] == len(now.streams) - 50
    for low in range(0, 300, 50):
        admin.connection.requests([(f"$JS.API.STREAM.DELETE.{name}", b"") for name in names[low : low + 50]])


def test_a_server_that_goes_away_is_said_and_found_again(tmp_path: Path) -> None:
    with NatsServer(tmp_path) as server:
        admin = Admin(server.url)
        admin.create("S")
        admin.numbers("S", 5)
        admin.close()
        watched = watching(server.url)
        looked(watched)
        server.kill()
        seen = watched.look()
        assert "no NATS server answers" in seen.error
        assert seen.look is not None
        assert seen.look.streams[0].messages == 5, "what was seen before is still there"
        server.start()
        assert looked(watched).streams[0].messages == 5
        watched.close()


def test_once_prints_a_table_and_json_a_line(running: tuple[NatsServer, Admin]) -> None:
    words = ["jetstream", "top", f"servers={running[0].url}", "--once", "--interval", "50ms"]
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 0, ran.output
    assert "S/billing" in ran.stdout
    told = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert told["streams"][0]["stream"] == "S"
    assert told["consumers"][0].keys() >= {"pending", "rate", "ack_pending", "redelivered", "waiting", "lag_seconds"}
    ran = CliRunner().invoke(app, ["jetstream", "top", f"servers=nats://127.0.0.1:{free_port()}", "--once"])
    assert ran.exit_code == 1
    assert "no NATS server answers" in " ".join(ran.stderr.split())
    assert CliRunner().invoke(app, [*words[:-1], "soon"]).exit_code == 1


def test_the_page_and_metrics_are_served_without_spark(running: tuple[NatsServer, Admin]) -> None:
    port = free_port()
    code = (
        "import sys; from penstock.cli import app\n"
        "try: app(sys.argv[1:])\n"
        "finally: print('pyspark' in sys.modules, file=sys.stderr)"
    )
    words = [
        "jetstream",
        "top",
        f"servers={running[0].url}",
        "--json",
        "--interval",
        "500ms",
        "--http",
        f"127.0.0.1:{port}",
    ]
    env = os.environ | {"PENSTOCK_API_KEY": ""}
    program = subprocess.Popen(
        [sys.executable, "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )
    try:
        assert program.stdout is not None
        assert json.loads(program.stdout.readline())["error"] == ""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline, text = time.monotonic() + 20, ""
        while 'stream_name="S"' not in text:
            assert time.monotonic() < deadline, text
            text = opener.open(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
        assert "jetstream_consumer_num_pending" in text
        (server,) = json.loads(opener.open(f"http://127.0.0.1:{port}/jetstream", timeout=10).read())
        assert "S" in [each["stream"] for each in server["streams"]]
        assert b'id="jetstream"' in opener.open(f"http://127.0.0.1:{port}/", timeout=10).read()
    finally:
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=20)
    assert program.returncode == 130, said
    assert said.strip().endswith("False"), said
